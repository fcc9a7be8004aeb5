"""Regions of a graph that run as one kernel: which there are, what they cost, and the delegate that runs them.

::

    from ai_edge_litert.interpreter import Interpreter
    from litefuse.delegates import load

    interpreter = Interpreter("model.litefuse.tflite", experimental_delegates=[load(threads=2)])
"""

from litefuse.delegates.runtime import clear_profile, library, load, report

__all__ = ["clear_profile", "library", "load", "report"]
"""The functions for running packaged models. What forms and packages regions is in the modules."""
