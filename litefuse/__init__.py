"""litefuse improves finished `.tflite` models: the same answers from fewer operators and less memory traffic.

::

    import litefuse

    conversion = litefuse.convert("model.tflite", "model.litefuse.tflite")
    print(conversion.fusions.counts(), conversion.before.operators, conversion.after.operators)

    model = litefuse.load("model.tflite")
    model.description = "renamed"
    model.save("renamed.tflite")

The functions are loaded at their first use, so that `import litefuse` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from litefuse.bench import BenchResult as BenchResult
    from litefuse.bench import bench as bench
    from litefuse.check import CheckResult as CheckResult
    from litefuse.check import check as check
    from litefuse.convert import Conversion as Conversion
    from litefuse.convert import Explanation as Explanation
    from litefuse.convert import convert as convert
    from litefuse.convert import explain as explain
    from litefuse.errors import LitefuseError as LitefuseError
    from litefuse.plan import Planned as Planned
    from litefuse.plan import plan as plan
    from litefuse.schema.model import Model as Model
    from litefuse.schema.model import read as load

__version__ = "0.1.0"

# Public name -> where it lives.
_PLACES = {
    "BenchResult": "litefuse.bench:BenchResult",
    "CheckResult": "litefuse.check:CheckResult",
    "Conversion": "litefuse.convert:Conversion",
    "Explanation": "litefuse.convert:Explanation",
    "LitefuseError": "litefuse.errors:LitefuseError",
    "Model": "litefuse.schema.model:Model",
    "Planned": "litefuse.plan:Planned",
    "bench": "litefuse.bench:bench",
    "check": "litefuse.check:check",
    "convert": "litefuse.convert:convert",
    "explain": "litefuse.convert:explain",
    "load": "litefuse.schema.model:read",
    "plan": "litefuse.plan:plan",
}

__all__ = [
    "BenchResult",
    "CheckResult",
    "Conversion",
    "Explanation",
    "LitefuseError",
    "Model",
    "Planned",
    "__version__",
    "bench",
    "check",
    "convert",
    "explain",
    "load",
    "plan",
]


class _Package(ModuleType):
    """The package itself, in which `bench`, `check`, `convert` and `plan` are always the functions.

    Importing the modules of the same names would otherwise put them there, at whatever time that happens.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PLACES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name == "keras":
            return import_module("litefuse.keras")
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _PLACES[name].partition(":")
        value = getattr(import_module(module), attribute)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
