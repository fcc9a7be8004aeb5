"""Hardware profiles in files: the format, where they are kept, and the processor that one is for.

A file is a JSON object. `litefuse_target` is the version of the format, `figures` holds every field of
:class:`~litefuse.delegates.targets.Target` besides name and description, and `sources` says of each figure whether it
was `measured`, `read` from the system, or `derived` from the built-in profile that `base` names. Nothing is optional
and nothing else is allowed, so that a misspelt field is found instead of being ignored.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import re
import sys
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from litefuse.delegates.targets import Target, targets
from litefuse.errors import OutputError, UsageError
from litefuse.schema.enums import TensorType
from litefuse.schema.model import replacing

VERSION = 1
"""Of the format."""
USUAL = "local"
"""The name under which a calibrated profile is saved when none is given."""

_SOURCES = ("measured", "read", "derived")
_LEVELS = ("l1", "l2", "l3", "memory")
_TAKEN = ("tflm",)  # besides the names of built-in profiles: it is no hardware
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MAY_BE_ZERO = frozenset({"l3", "fallback_us", "fallback_operator_us", "fallback_tap_us", "fallback_byte_us"})
_MOST = 1e15  # of any figure
_LARGEST = 1 << 20  # bytes of a file: what is larger is no profile
_TEXTS = ("name", "description", "cpu", "architecture", "date", "litefuse", "runtime", "delegate", "base")


@dataclass(frozen=True)
class Profile:
    """A target with where its figures are from."""

    target: Target
    cpu: str
    """The processor that was measured."""
    architecture: str
    date: str
    """When that was, in UTC."""
    litefuse: str
    runtime: str
    delegate: str
    """What the delegate said of itself; empty where there was none."""
    base: str
    """The built-in profile that gave what was not measured."""
    sources: dict[str, tuple[str, ...]]
    """The figures that were `measured`, `read` from the system and `derived`."""
    notes: tuple[str, ...] = ()
    path: Path | None = field(default=None, compare=False)

    def source(self, figure: str) -> str:
        """Where a figure is from."""
        return next(source for source, figures in self.sources.items() if figure in figures)

    @property
    def elsewhere(self) -> str | None:
        """What to say when this is not the processor that was measured; None when it is."""
        here = processor()
        if (self.cpu, self.architecture) == (here, platform.machine()):
            return None
        where = f"{self.cpu} ({self.architecture})"
        return (
            f"the target `{self.target.name}` was measured on another processor, {where}, not on {here}: what is made "
            f"with it suits that one"
        )


# -- figures -----------------------------------------------------------------------------------------------------------


def flat(target: Target) -> dict[str, Any]:
    """The figures of a target by name, such as `bandwidth.l2` and `shares.pointwise.stock`."""
    found: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{name}.{key}" if name else key, inner)
        else:
            found[name] = tuple(value) if isinstance(value, list) else value

    add("", _figures(target))
    return found


def _figures(value: Any) -> Any:
    """A target, or a part of it, as it is in the file."""
    if dataclasses.is_dataclass(value):
        return {
            f.name: dict(zip(_LEVELS, getattr(value, f.name), strict=True))
            if f.name == "bandwidth"
            else _figures(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if f.name not in ("name", "description")
        }
    return list(value) if isinstance(value, tuple) else value


def with_figures(target: Target, figures: dict[str, Any]) -> Target:
    """A target with other values of some figures, which are named as by :func:`flat`."""
    values: dict[str, Any] = {}
    for name, value in figures.items():
        head, _, rest = name.partition(".")
        if not rest:
            values[head] = value
        elif head == "bandwidth":
            levels = list(values.get(head, target.bandwidth))
            levels[_LEVELS.index(rest)] = value
            values[head] = tuple(levels)
        else:
            part = values.get(head, getattr(target, head))
            which, _, side = rest.partition(".")
            inner = dataclasses.replace(getattr(part, which), **{side: value}) if side else value
            values[head] = dataclasses.replace(part, **{which: inner})
    return dataclasses.replace(target, **values)


# -- reading and writing -----------------------------------------------------------------------------------------------


def to_json(profile: Profile) -> str:
    """The text of a profile's file."""
    return json.dumps(
        {
            "litefuse_target": VERSION,
            "name": profile.target.name,
            "description": profile.target.description,
            **{key: getattr(profile, key) for key in _TEXTS[2:]},
            "figures": _figures(profile.target),
            "sources": {source: list(profile.sources.get(source, ())) for source in _SOURCES},
            "notes": list(profile.notes),
        },
        indent=2,
        allow_nan=False,
    )


def write(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Writes a profile; an older file stays as it is until the new one is complete. Raises OutputError."""
    with replacing(path) as file:
        file.write((to_json(profile) + "\n").encode())


def read(path: str | os.PathLike[str]) -> Profile:
    """Reads a profile. Raises UsageError, with the file and the field, when it is missing or damaged."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(f"{path}: the target cannot be read: {error.strerror or error}") from None
    return _File(os.fspath(path)).profile(data)


class _File:
    """Checks what is in a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def fail(self, name: str, wrong: str) -> UsageError:
        return UsageError(f"{self.path}: {f'`{name}` ' if name else ''}{wrong}")

    def profile(self, data: bytes) -> Profile:
        if len(data) > _LARGEST:
            raise self.fail("", "is too large to be a target")
        try:
            document = json.loads(data, object_pairs_hook=self._once, parse_constant=self._constant)
        except (ValueError, RecursionError) as error:
            raise self.fail("", f"is no target: it is not valid JSON ({error})") from None
        if not isinstance(document, dict) or "litefuse_target" not in document:
            raise self.fail("", "is no target: `litefuse_target` is missing")
        version = document["litefuse_target"]
        if version is True or version != VERSION:
            raise self.fail("litefuse_target", f"is {json.dumps(version)}, this version reads {VERSION} only")
        texts = dict.fromkeys(_TEXTS, str)
        self._keys("", document, ("litefuse_target", *texts, "figures", "sources", "notes"))
        for key in texts:
            self._text(key, document[key], empty=key == "delegate")
        if not _NAME.fullmatch(document["name"]):
            raise self.fail("name", "may have letters, digits, dots, dashes and underscores, 64 at most")
        if document["name"] in _reserved():
            raise self.fail("name", f"is `{document['name']}`, which is a built-in target")
        notes = document["notes"]
        if not isinstance(notes, list):
            raise self.fail("notes", "is no list")
        for i, note in enumerate(notes):
            self._text(f"notes[{i}]", note)
        values = self._part("figures", Target, document["figures"])
        target = Target(name=document["name"], description=document["description"], **values)
        if target.l1 > target.l2 or 0 < target.l3 < target.l2:
            raise self.fail("figures", "has a cache that is larger than the next one")
        return Profile(
            target,
            **{key: document[key] for key in _TEXTS[2:]},
            sources=self._sources(document["sources"], list(flat(target))),
            notes=tuple(notes),
            path=Path(self.path),
        )

    @staticmethod
    def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"`{key}` is there twice")
            found[key] = value
        return found

    @staticmethod
    def _constant(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON")

    def _keys(self, name: str, value: Any, keys: typing.Iterable[str]) -> None:
        if not isinstance(value, dict):
            raise self.fail(name, "is no object")
        keys = list(keys)
        inner = f"{name}." if name else ""
        for key in keys:
            if key not in value:
                raise self.fail(inner + key, "is missing")
        for key in value:
            if key not in keys:
                raise self.fail(inner + key, "is no field of a target")

    def _text(self, name: str, value: Any, empty: bool = False) -> None:
        if not isinstance(value, str) or not (value or empty):
            raise self.fail(name, "is no text" if not isinstance(value, str) else "is empty")

    def _part(self, name: str, cls: type, value: Any) -> dict[str, Any]:
        """The fields of a part of a target."""
        hints = typing.get_type_hints(cls)
        wanted = [f.name for f in dataclasses.fields(cls) if f.name not in ("name", "description")]
        self._keys(name, value, wanted)
        return {key: self._value(f"{name}.{key}", hints[key], value[key]) for key in wanted}

    def _value(self, name: str, kind: Any, value: Any) -> Any:
        if dataclasses.is_dataclass(kind):
            return typing.cast(type, kind)(**self._part(name, typing.cast(type, kind), value))
        if kind is bool:
            if not isinstance(value, bool):
                raise self.fail(name, "is neither true nor false")
            return value
        if name.endswith(".bandwidth"):
            self._keys(name, value, _LEVELS)
            return tuple(self._number(f"{name}.{key}", value[key]) for key in _LEVELS)
        if kind is int or kind is float:
            return self._number(name, value, whole=kind is int)
        # What is left are the types of elements.
        known = {type.name for type in TensorType}
        if not isinstance(value, list) or not value or any(not isinstance(v, str) or v not in known for v in value):
            raise self.fail(name, f"is no list of types of elements such as {', '.join(sorted(known)[:3])}")
        return tuple(value)

    def _number(self, name: str, value: Any, whole: bool = False) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(name, "is no number")
        if whole and not isinstance(value, int):
            raise self.fail(name, "is no whole number")
        zero = name.rpartition(".")[2] in _MAY_BE_ZERO
        if not math.isfinite(value) or value > _MOST or value < 0 or (value == 0 and not zero):
            raise self.fail(name, f"is {value}, not a number from {'zero' if zero else 'above zero'} to {_MOST:g}")
        return value if whole else float(value)

    def _sources(self, value: Any, figures: list[str]) -> dict[str, tuple[str, ...]]:
        self._keys("sources", value, _SOURCES)
        seen: set[str] = set()
        for source in _SOURCES:
            if not isinstance(value[source], list):
                raise self.fail(f"sources.{source}", "is no list")
            for figure in value[source]:
                if not isinstance(figure, str) or figure not in figures:
                    raise self.fail(f"sources.{source}", f"has {json.dumps(figure)}, which is no figure")
                if figure in seen:
                    raise self.fail(f"sources.{source}", f"has {figure}, which was named before")
                seen.add(figure)
        if missing := [figure for figure in figures if figure not in seen]:
            raise self.fail("sources", f"does not say where {missing[0]} is from")
        return {source: tuple(value[source]) for source in _SOURCES}


# -- where they are kept -----------------------------------------------------------------------------------------------


def directory() -> Path:
    """Where saved profiles are: `litefuse/targets` in XDG_CONFIG_HOME, or in ~/.config; on Windows in APPDATA."""
    given = os.environ.get("XDG_CONFIG_HOME") or (os.environ.get("APPDATA") if sys.platform == "win32" else None)
    home = Path(given) if given and os.path.isabs(given) else Path(os.path.expanduser("~")) / ".config"
    return home / "litefuse" / "targets"


def is_path(name: str | os.PathLike[str]) -> bool:
    """Whether what names a target is the path of a file: it ends in `.json` or has a slash."""
    text = os.fspath(name)
    return not isinstance(name, str) or text.endswith(".json") or "/" in text or os.sep in text


def is_name(name: str) -> bool:
    """Whether a measured profile may be called so."""
    return _NAME.fullmatch(name) is not None and name not in _reserved()


def place(name: str) -> Path:
    """Where a profile of that name is kept. Raises UsageError when nothing may be called so."""
    if name in _reserved():
        raise UsageError(f"`{name}` is a built-in target, a measured one cannot be called so")
    if not _NAME.fullmatch(name):
        raise UsageError(f"`{name}` is no name for a target: letters, digits, dots, dashes and underscores, 64 at most")
    return directory() / f"{name}.json"


def save(profile: Profile) -> Path:
    """Keeps a profile under its name, in place of an older one. Raises OutputError."""
    path = place(profile.target.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path.parent}: cannot be made: {error.strerror or error}") from None
    write(profile, path)
    return path


def named(name: str | os.PathLike[str]) -> Profile:
    """The profile in a file, or the saved one of that name. Raises UsageError when there is none, or a damaged one."""
    if is_path(name):
        return read(name)
    text = os.fspath(name)
    if is_name(text):
        path = place(text)
        if path.is_file():
            found = read(path)
            if found.target.name != text:
                raise UsageError(f"{path}: `name` is `{found.target.name}`, not `{text}` as the file is called")
            return found
    known = ["tflm", *(t.name for t in targets()), *(path.stem for path in _saved())]
    raise UsageError(f"there is no target `{text}`; the targets are {', '.join(known)}, and files that end in .json")


def saved() -> tuple[list[Profile], list[str]]:
    """The saved profiles in the order of their names, and what is wrong with those that cannot be read."""
    found, problems = [], []
    for path in _saved():
        try:
            found.append(named(path.stem))
        except UsageError as error:
            problems.append(str(error))
    return found, problems


def _saved() -> list[Path]:
    try:
        return sorted(p for p in directory().glob("*.json") if is_name(p.stem))
    except OSError:
        return []


def _reserved() -> frozenset[str]:
    return frozenset((*_TAKEN, *(t.name for t in targets())))


# -- the processor -----------------------------------------------------------------------------------------------------


def processor() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    known: dict[str, list[str]] = {}
    for line in lines:
        key, _, value = line.partition(":")
        known.setdefault(key.strip().lower(), []).append(value.strip())
    for key in ("model name", "hardware", "cpu model"):
        if known.get(key) and known[key][0]:
            return known[key][0]
    if parts := known.get("cpu part"):
        # Arm cores give numbers; those of different kinds are in one file.
        makers = known.get("cpu implementer", ["?"])
        return f"Arm implementer {makers[0]}, parts {' '.join(sorted(set(parts)))}"
    return platform.processor() or platform.machine() or "unknown"
