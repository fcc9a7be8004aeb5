"""Keras models and other TensorFlow sources, exported and converted in one step.

::

    import litefuse.keras

    done = litefuse.keras.export(model, "model.tflite", quantization="float16")
    print(done.size, done.regions, done.arena_bytes, done.max_error)

    model.fit(x, y, epochs=10, callbacks=[litefuse.keras.LiteFuseExport("model.tflite", target="cortex-a76")])

Keras and TensorFlow are imported when they are needed, not before; `pip install "litefuse[keras]"` brings them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litefuse.keras.exporter import Exported, export

if TYPE_CHECKING:
    from litefuse.keras.callback import LiteFuseExport

__all__ = ["Exported", "LiteFuseExport", "export"]


def __getattr__(name: str) -> Any:
    # The base class of the callback is Keras's, so that the class cannot exist before Keras is imported.
    if name != "LiteFuseExport":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from litefuse.keras.callback import LiteFuseExport as found

    globals()[name] = found
    return found
