"""The callback that exports while a model is trained."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from litefuse.errors import LitefuseError, UsageError
from litefuse.keras.exporter import SAMPLES, Exported, check_options, export
from litefuse.keras.sources import keras, one_line

_MODES = ("auto", "min", "max")
_HEADER = f"{'litefuse':9} {'size':>9} {'operators':>10} {'regions':>7} {'arena':>9} {'error':>8} {'latency':>9}  file"


@dataclass
class EpochExport:
    """An export during training."""

    epoch: int
    """Number of the epoch, from 0 as Keras counts."""
    exported: Exported


_keras = keras()


class LiteFuseExport(_keras.callbacks.Callback):  # type: ignore[misc, name-defined]
    """Exports and converts the model while it is trained: at the end, every few epochs, or when it is better.

    ::

        model.fit(
            x,
            y,
            validation_data=(x_val, y_val),
            callbacks=[LiteFuseExport("out/{epoch}-{val_loss:.2f}.tflite", monitor="val_loss", save_best_only=True)],
        )

    The size in bytes, the numbers of operators and regions, bytes of the arena, errors and latency of each export go
    into ``logs`` and History as `litefuse_size`, `litefuse_operators`, `litefuse_regions`, `litefuse_arena`,
    `litefuse_error`, `litefuse_source_error` and `litefuse_latency_ms`, as far as they were measured. In History they
    are as long as the other quantities when training has ended, with NaN for epochs without an export. Callbacks that
    read ``logs`` have to come after this one.

    An export that fails is a warning, and training goes on; TensorFlow's converter runs in a process of its own, so
    that not even a crash of it ends the run. Where it cannot be said whether the model is better, because the monitored
    quantity is missing, for one, that is a warning too, and the model is exported, as `ModelCheckpoint` does it.

    Args:
        filepath: the `.tflite` file to write; may hold `{epoch}` (from 1) and the names of logged quantities, with
            formats, as the one of `keras.callbacks.ModelCheckpoint`. Directories are made.
        every: export at the end of every so many epochs, and after the last one. None: after the last one only, or in
            every epoch with ``save_best_only``.
        save_best_only: export only when the monitored quantity is better than at every export before, and never
            because training has ended.
        monitor: the quantity to monitor.
        mode: "min" or "max": which is better; "auto" asks the metric, and takes a loss to be better when it is low.
        initial_value_threshold: what the quantity has to be better than at the first export.
        verbose: 1 prints one row of a table for each export, 0 nothing.
        strict: raise errors, instead of warning.
        options: those of :func:`litefuse.keras.export`: quantization, representative_data, input_shape, batch, target,
            package, level, check, latency and the rest.

    Attributes:
        exports: what was exported, with the epochs.
        best: the best value of the monitored quantity at an export.

    Raises:
        UsageError: an option is wrong; at once, not after training.
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        *,
        every: int | None = None,
        save_best_only: bool = False,
        monitor: str = "val_loss",
        mode: str = "auto",
        initial_value_threshold: float | None = None,
        verbose: int = 1,
        strict: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.filepath = os.fspath(filepath)
        if not self.filepath.endswith(".tflite"):
            raise UsageError(f"`filepath` has to end in .tflite, which {self.filepath} does not")
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise UsageError(f"`every` is a number of epochs from 1, or None, not {every!r}")
        if mode not in _MODES:
            raise UsageError(f"there is no mode `{mode}`; there are {', '.join(_MODES)}")
        self._options = {"isolated": True, **options}
        _refuse_wrong(self._options)
        data = options.get("representative_data")
        if isinstance(data, Iterator):  # would be used up by the first export
            kept = list(islice(data, SAMPLES))
            self._options["representative_data"] = lambda: kept
        self.every = every
        self.save_best_only = save_best_only
        self.monitor = monitor
        self.mode = mode
        self.best = initial_value_threshold
        self.verbose = verbose
        self.strict = strict
        self.exports: list[EpochExport] = []
        self._epoch = -1
        self._logs: dict[str, Any] = {}
        self._tried = -1
        self._headed = False
        self._lower: bool | None = None
        self._value: float | None = None

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Begins anew, as History does; the best value stays."""
        self._epoch = self._tried = -1
        self.exports = []
        self._headed = False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Exports where an epoch is one to export in, and adds the figures to ``logs``."""
        logs = {} if logs is None else logs
        self._epoch, self._logs = epoch, dict(logs)
        every = self.every or (1 if self.save_best_only else None)
        if every is None or (epoch + 1) % every:
            return
        if self.save_best_only and not self._better(logs):
            return
        self._tried = epoch
        done = self._export(epoch, logs)
        if done is not None:
            logs.update(done.logs())
            if self.save_best_only and self._value is not None:
                self.best = self._value

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Exports what was trained unless that is done already, and completes History."""
        if not self.save_best_only and self._tried != self._epoch and self._epoch >= 0:
            done = self._export(self._epoch, self._logs)
            if done is not None and logs is not None:
                logs.update(done.logs())
        self._complete()

    def _complete(self) -> None:
        """Makes the lists in History as long as there are epochs."""
        history = getattr(self.model, "history", None)
        if history is None or not self.exports:
            return
        found = {one.epoch: one.exported.logs() for one in self.exports}
        for name in dict.fromkeys(name for values in found.values() for name in values):
            history.history[name] = [found.get(epoch, {}).get(name, math.nan) for epoch in history.epoch]

    def _better(self, logs: Mapping[str, Any]) -> bool:
        """Whether the monitored quantity is better than before, or nobody knows."""
        self._value = None
        try:
            value = self._monitored(logs)
            if self._lower is None:
                self._lower = self._lower_is_better()
        except UsageError as error:
            self._fail(error, f"exporting in epoch {self._epoch + 1} whether it is better or not")
            return True
        if math.isnan(value):
            return False
        self._value = value
        return self.best is None or (value < self.best if self._lower else value > self.best)

    def _monitored(self, logs: Mapping[str, Any]) -> float:
        if self.monitor not in logs:
            raise UsageError(f"there is no `{self.monitor}` to monitor, but {', '.join(logs) or 'nothing'}")
        try:
            return float(logs[self.monitor])
        except (TypeError, ValueError):
            raise UsageError(f"`{self.monitor}` is not one number, so that it cannot be monitored") from None

    def _lower_is_better(self) -> bool:
        if self.mode != "auto":
            return self.mode == "min"
        if self.monitor.endswith("loss"):
            return True
        # Keras knows which way its metrics go, and says so to its own callbacks.
        asked = _keras.callbacks.EarlyStopping(monitor=self.monitor)
        asked.set_model(self.model)
        try:
            asked._set_monitor_op()
        except (AttributeError, ValueError):
            raise UsageError(
                f"whether `{self.monitor}` should be low or high is not known; say mode='min' or mode='max'"
            ) from None
        return bool(asked.monitor_op(0.0, 1.0))

    def _export(self, epoch: int, logs: Mapping[str, Any]) -> Exported | None:
        """Exports once; None when it failed."""
        try:
            try:
                path = Path(self.filepath.format(**{**logs, "epoch": epoch + 1}))
            except (KeyError, IndexError, ValueError) as error:
                known = ", ".join(["epoch", *logs])
                raise UsageError(f"{self.filepath} cannot be filled in: {error}; there are {known}") from None
            done = export(self.model, path, **self._options)
        except Exception as error:
            self._fail(error, f"nothing was exported in epoch {epoch + 1}")
            return None
        self.exports.append(EpochExport(epoch, done))
        if self.verbose:
            self._print(epoch, done)
        return done

    def _fail(self, error: Exception, what: str) -> None:
        """Raises the error where that is wanted; else warns."""
        if self.strict:
            raise error
        reason = str(error) if isinstance(error, LitefuseError) else f"{type(error).__name__}: {one_line(error)}"
        warnings.warn(f"litefuse: {what}: {reason}", stacklevel=4)

    def _print(self, epoch: int, done: Exported) -> None:
        print()  # Keras' progress bar has left its line open
        if not self._headed:
            print(_HEADER)
            self._headed = True
        print(_row(f"epoch {epoch + 1}", done), flush=True)


def _row(name: str, done: Exported) -> str:
    """An export as a row of the table that the callback prints, in characters that every terminal has."""
    operators = f"{done.stock_operators} -> {done.operators}"
    arena = "?" if done.arena_bytes is None else _bytes(done.arena_bytes)
    error = "-" if done.max_error is None else f"{done.max_error:.1e}"
    latency = "-" if done.latency_ms is None else f"{done.latency_ms:.3g} ms"
    return (
        f"{name:9} {_bytes(done.size):>9} {operators:>10} {done.regions:>7} {arena:>9} {error:>8} {latency:>9}"
        f"  {done.path}"
    )


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _refuse_wrong(options: Mapping[str, Any]) -> None:
    """Raises UsageError for options that `export` would refuse whatever the model."""
    own = ("input_shape", "check", "custom_objects", "safe_mode", "isolated", "progress")
    check_options(**{name: value for name, value in options.items() if name not in own})
