"""Measures a machine, and keeps what was measured as a hardware profile in a file.

:mod:`~litefuse.delegates.calibrate.probes` holds the models that are run, :mod:`~litefuse.delegates.calibrate.figures`
what follows from their times, :mod:`~litefuse.delegates.calibrate.measure` runs them, and
:mod:`~litefuse.delegates.calibrate.profile` reads and writes the files.
"""
