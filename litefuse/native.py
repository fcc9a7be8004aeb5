"""Finds the libraries that are built with the package."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

_FORMS = {"darwin": "lib{}.dylib", "win32": "{}.dll"}


def find(folder: str, name: str) -> Path:
    """Where a built library is, or where it should be if it is not there.

    Args:
        folder: the folder in the package, such as `arena`.
        name: the library's name without what the system adds to it.
    """
    file = _FORMS.get(sys.platform, "lib{}.so").format(name)
    places = [Path(__file__).parent / folder / file]
    try:
        # Of an editable installation, what is built lies apart from the sources.
        installed = importlib.metadata.distribution("litefuse").locate_file(f"litefuse/{folder}/{file}")
        places.append(Path(str(installed)))
    except importlib.metadata.PackageNotFoundError:
        pass
    return next((place for place in places if place.is_file()), places[-1])
