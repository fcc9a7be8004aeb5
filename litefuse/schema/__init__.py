"""A lossless reader and writer of `.tflite` files.

:mod:`~litefuse.schema.tables` declares the format once; :mod:`~litefuse.schema.reader` and
:mod:`~litefuse.schema.writer` turn files into these tables and back; :mod:`~litefuse.schema.model` adds what a file has
beyond them; :mod:`~litefuse.schema.validate` says what is wrong with a model.
"""

from litefuse.schema.declare import Table, deepcopy, diff
from litefuse.schema.model import Model, parse, read, to_bytes, write

__all__ = ["Model", "Table", "deepcopy", "diff", "parse", "read", "to_bytes", "write"]
