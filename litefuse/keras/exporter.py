"""Exports once: source, TensorFlow's converter, litefuse's, and what came of it."""

from __future__ import annotations

import inspect
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from litefuse.convert import TFLM, Conversion, choose, convert
from litefuse.errors import CheckError, LitefuseError, OutputError, RuntimeMissingError, UsageError
from litefuse.inputs import Case, Feed, Graphs
from litefuse.interface import Entry, entries
from litefuse.isolation import ChildFailure, in_child
from litefuse.keras.sources import Array, Port, Saved, one_line, refuse_output, saved, tensorflow
from litefuse.runtime import interpreter, quiet
from litefuse.schema import Model, read, write
from litefuse.schema.operators import Op, builtin_code

if TYPE_CHECKING:
    from litefuse.bench import BenchResult

QUANTIZATIONS = ("dynamic", "float16", "int8", "int16x8")
CALIBRATED = ("int8", "int16x8")
"""The quantisations that need representative data."""

_PATIENCE = 3600.0  # seconds that a process of its own may take for one stage
SAMPLES = 200
"""Most samples that calibration looks at: it gains little from more, and takes time for each."""

_CASES = ("unit", "normal", "symmetric")  # inputs on which the file is compared with its source, without samples
_COMPARED = 8  # samples on which a quantised file is
_OPEN = 32  # what open dimensions other than the batch are tried with
_ALLOWED = 1e-2  # of the largest output; float kernels differ by 1e-5, a file without its weights by 1
_LATENCY_SECONDS = 2.0
_OWN = ("model", "output", "check", "progress")  # of the options of `convert`, those that are not passed on as they are


def _silent(text: Any) -> None:
    """What is told of progress when nobody wants to know."""


@dataclass
class Exported:
    """What :func:`export` did."""

    path: Path
    """The file that was written."""
    quantization: str | None
    """How weights and activations are stored."""
    size: int
    """Bytes of the file."""
    stock_size: int
    """Bytes of the file that TensorFlow's converter gave."""
    operators: int
    """Number of operators; those in regions count, with the decompositions of composites left out."""
    stock_operators: int
    """Number of operators that TensorFlow's converter left."""
    regions: int
    """Number of regions that were packaged for the delegate."""
    arena_bytes: int | None
    """Most bytes of intermediates that are live at one time; None where a shape is open."""
    max_error: float | None
    """Largest difference to TensorFlow's file, with the delegate too, relative to the largest magnitude of the output
    in the same run; None without check."""
    source_error: float | None
    """The same to the source itself, which quantisation is part of; None where it was not compared."""
    latency_ms: float | None
    """Median time of a run, with the delegate where there are regions and a delegate; None unless asked for."""
    stock_latency_ms: float | None
    """The same of TensorFlow's file in the stock runtime."""
    conversion: Conversion
    """What `litefuse.convert` says of it."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each stage took."""

    def logs(self) -> dict[str, float]:
        """What is known of the figures, by name, as the callback puts them into `logs` and History."""
        found = {
            "litefuse_size": self.size,
            "litefuse_operators": self.operators,
            "litefuse_regions": self.regions,
            "litefuse_arena": self.arena_bytes,
            "litefuse_error": self.max_error,
            "litefuse_source_error": self.source_error,
            "litefuse_latency_ms": self.latency_ms,
        }
        return {name: value for name, value in found.items() if value is not None}


def export(
    model: Any,
    path: str | os.PathLike[str],
    *,
    quantization: str | None = None,
    representative_data: Any = None,
    integer_io: bool = False,
    input_shape: Any = None,
    batch: int | None = 1,
    target: str | None = None,
    package: str | None = None,
    level: str = "default",
    check: bool = True,
    latency: bool | float = False,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
    isolated: bool = False,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Exported:
    """Exports a model as a `.tflite` file and improves it with :func:`litefuse.convert`.

    Args:
        model: a Keras 3 model, the path of a `.keras` or `.h5` file or of a SavedModel's directory, a `tf.function` or
            a concrete function. Models of mixed precision are exported as they compute in float32.
        path: the file to write. It appears when all is done, and not at all when something fails.
        quantization: None for float32; "dynamic" for int8 weights; "float16" for float16 weights; "int8" for int8
            arithmetic; "int16x8" for int16 activations with int8 weights.
        representative_data: what the last two need: an array of samples, a list of arrays (one for each input, in
            order), a dictionary of arrays (by the name of the input), or an iterable of batches or a function that
            returns one, such as a `tf.data.Dataset`. A batch that is a tuple counts as (inputs, targets, ...). At most
            200 samples are used.
        integer_io: whether inputs and outputs are integers too where ``quantization`` is "int8" or "int16x8".
        input_shape: shape of the input without the batch, or several, in order or by name: for what the model leaves
            open, and for subclassed models that were never called.
        batch: size of the batch where the model leaves it open; None leaves it open too, which costs operators.
        target: see :func:`litefuse.convert`, as for ``package``, ``level`` and ``options``.
        package: how regions are packaged.
        level: how exact the rules must be.
        check: compare the result with TensorFlow's file and with the model itself. A float32 file that computes
            something else than the model is an error; of quantised ones, the difference is told.
        latency: measure the time of a run, for two seconds or for so many.
        custom_objects: classes and functions by name that a `.keras` or `.h5` file refers to.
        safe_mode: refuse files that hold Python code (`Lambda` layers).
        isolated: run TensorFlow's converter in a process of its own, so that no crash of it can end this one.
        progress: called with a few words whenever something begins.
        options: any other option of :func:`litefuse.convert`, such as ``disable`` or ``arena_budget``.

    Raises:
        UsageError: an option is wrong, or does not fit the model.
        RuntimeMissingError: Keras or TensorFlow is not installed, or no TFLite runtime to compare with.
        SchemaError: a file cannot be read.
        CheckError: the file does not compute what the model does.
        OutputError: the file cannot be written.
        LitefuseError: the model cannot be traced, or TensorFlow has no TFLite operators for it.
    """
    check_options(
        quantization=quantization,
        representative_data=representative_data,
        integer_io=integer_io,
        batch=batch,
        target=target,
        package=package,
        level=level,
        latency=latency,
        **options,
    )
    output = Path(path)
    if isinstance(model, (str, os.PathLike)):
        refuse_output(model, output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{output.parent}: cannot be made a directory: {error.strerror or error}") from None
    say = progress or _silent
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    say("tracing the model")
    with (
        saved(
            model, input_shape=input_shape, batch=batch, custom_objects=custom_objects, safe_mode=safe_mode
        ) as source,
        tempfile.TemporaryDirectory(prefix="litefuse-") as directory,
    ):
        data = samples(representative_data, source.inputs) if quantization in CALIBRATED else []
        seed = options.get("seed", 0)
        seconds["tracing"] = time.perf_counter() - start
        say("TensorFlow's converter")
        start = time.perf_counter()
        stock = Path(directory) / "stock.tflite"
        wish = (str(source.directory), str(stock), quantization, data, integer_io, source.key, source.single)
        if isolated:
            _in_child("_convert_in_child", *wish, what="TensorFlow's converter")
        else:
            with quiet():
                to_tflite(*wish)
        original = read(stock)
        _refuse_without_weights(original)
        seconds["TensorFlow's converter"] = time.perf_counter() - start
        result = Path(directory) / "result.tflite"
        shapes = source.input_shapes | dict(options.pop("input_shapes", None) or {})
        done = convert(
            stock,
            result,
            batch=source.batch,
            input_shapes=shapes,
            target=target,
            package=package,
            level=level,
            check=check,
            progress=progress,
            **options,
        )
        seconds |= done.seconds
        source_error = None
        if check and done.not_run is None:
            say("comparing with the model")
            start = time.perf_counter()
            source_error = _compare(
                source,
                original,
                done.model,
                result,
                data[:_COMPARED],
                seed=seed,
                exact=quantization is None,
                custom=done.regions is not None and done.regions.mode == "custom",
            )
            seconds["comparing with the model"] = time.perf_counter() - start
        times: tuple[float | None, float | None] = (None, None)
        if latency:
            say("measuring")
            start = time.perf_counter()
            times = _latency(stock, result, _LATENCY_SECONDS if latency is True else float(latency))
            seconds["measuring"] = time.perf_counter() - start
        write(done.model, output)
    done.output = output
    return Exported(
        path=output,
        quantization=quantization,
        size=output.stat().st_size,
        stock_size=done.before.file_bytes or 0,
        operators=done.after.operators,
        stock_operators=done.before.operators,
        regions=0 if done.regions is None else len(done.regions.regions),
        arena_bytes=_arena(done),
        max_error=_max_error(done),
        source_error=source_error,
        latency_ms=times[1],
        stock_latency_ms=times[0],
        conversion=done,
        seconds=seconds,
    )


@contextmanager
def stock_file(
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    check: bool = True,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Iterator[tuple[Path, int | None]]:
    """What TensorFlow's converter makes of a `.keras` or `.h5` file or a SavedModel's directory, as a temporary file.

    With it comes the batch that is still to be fixed there, which is that of a SavedModel.

    Args:
        path: the source.
        batch: size of the batch where the model leaves it open; None leaves it open.
        check: compare the file with the source. A file that computes something else is an error.
        seed: of the inputs for the comparison.
        progress: called with a few words whenever something begins.

    Raises as :func:`export` does.
    """
    say = progress or _silent
    say("tracing the model")
    with saved(path, batch=batch) as source, tempfile.TemporaryDirectory(prefix="litefuse-") as directory:
        say("TensorFlow's converter")
        file = Path(directory) / f"{Path(path).stem or 'model'}.tflite"
        with quiet():
            to_tflite(str(source.directory), str(file), None, [], False, source.key, source.single)
        made = read(file)
        _refuse_without_weights(made)
        if check:
            say("comparing with the model")
            _compare(source, made, made, file, [], seed=seed, exact=True, isolated=True)
        yield file, source.batch


# -- options -------------------------------------------------------------------------------------------------------


def check_options(
    *,
    quantization: str | None = None,
    representative_data: Any = None,
    integer_io: bool = False,
    batch: int | None = 1,
    target: str | None = None,
    package: str | None = None,
    level: str = "default",
    latency: bool | float = False,
    **options: Any,
) -> None:
    """Refuses what is wrong whatever the model, so that it is known before hours of training.

    Raises UsageError; TypeError for an option that there is not; RuntimeMissingError where planning for the target
    needs a library that was not built.
    """
    known = inspect.signature(convert).parameters
    for name in options:
        if name not in known or name in _OWN:
            usual = sorted({*known} - {*_OWN, "batch", "target", "package", "level"})
            raise TypeError(f"there is no option `{name}`; options of litefuse.convert are {', '.join(usual)}")
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise UsageError(f"there is no quantization `{quantization}`; there are None, {', '.join(QUANTIZATIONS)}")
    if quantization in CALIBRATED and representative_data is None:
        raise UsageError(f"quantization `{quantization}` needs `representative_data`: some hundred usual inputs")
    if quantization not in CALIBRATED and representative_data is not None:
        raise UsageError(f"`representative_data` is for the quantizations {' and '.join(CALIBRATED)}")
    if integer_io and quantization not in CALIBRATED:
        raise UsageError(f"`integer_io` is for the quantizations {' and '.join(CALIBRATED)}")
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise UsageError(f"`batch` is a whole number from 1, or None to leave it open, not {batch!r}")
    if latency is not True and float(latency) < 0:
        raise UsageError(f"`latency` is True, or the seconds to measure for, not {latency!r}")
    choose(options.get("disable", ()), options.get("only", ()), level)
    if package is not None:
        from litefuse.delegates.package import MODES

        if package not in (*MODES, "none"):
            raise UsageError(f"there is no packaging `{package}`; there are {', '.join(MODES)}, none")
        if package != "none" and target in TFLM:
            raise UsageError(f"{target} runs no delegate, so that there is nothing to package; leave `package` out")
    if target is not None and target not in TFLM:
        from litefuse.delegates.targets import target as profile

        profile(target)
    if target in TFLM:
        import_module("litefuse.arena.budget")  # fails where the library for it was not built


def samples(data: Any, ports: Sequence[Port], limit: int = SAMPLES) -> list[dict[str, Array]]:
    """Representative data as inputs by name, each with the batch that the model takes (1 where that is open).

    Raises UsageError when the data do not fit the inputs.
    """
    found: list[dict[str, Array]] = []
    count = 0
    try:
        for batch in _batches(data, len(ports)):
            values = _by_name(batch, ports)
            length = min((len(v) for v in values.values() if v.ndim), default=1)
            for start, stop in _cuts(ports, length):
                found.append({p.name: _part(values[p.name], p, start, stop) for p in ports})
                count += stop - start
                if count >= limit:
                    return found
    except LitefuseError:
        raise
    except Exception as error:  # of a function or a generator of the user's
        raise UsageError(f"`representative_data` cannot be read: {one_line(error)}") from error
    if not found:
        raise UsageError("`representative_data` holds no sample, or fewer than a batch of the model")
    return found


def _batches(data: Any, inputs: int) -> Iterable[Any]:
    """The batches in representative data of any form."""
    if hasattr(data, "__array__") or isinstance(data, Mapping):
        return [data]
    if isinstance(data, (list, tuple)):
        return [list(data)] if len(data) == inputs or inputs == 1 else [data]
    made = data() if callable(data) else data
    if not isinstance(made, Iterable):
        raise UsageError(f"`representative_data` is a {type(made).__name__}, which holds no batches")
    return islice(made, SAMPLES)  # each has a sample at least, so that more are not needed


def _by_name(batch: Any, ports: Sequence[Port]) -> dict[str, Array]:
    """A batch as arrays by the name of the input."""
    if isinstance(batch, tuple):  # (inputs, targets, weights), as Keras reads datasets
        batch = batch[0]
    if isinstance(batch, Mapping):
        missing = [p.name for p in ports if p.name not in batch]
        if missing:
            raise UsageError(f"`representative_data` lacks the input {missing[0]}; it has {', '.join(map(str, batch))}")
        values = [batch[p.name] for p in ports]
    elif isinstance(batch, list) and (len(ports) > 1 or len(batch) == 1):
        values = list(batch)
    else:
        values = [batch]
    if len(values) != len(ports):
        raise UsageError(f"`representative_data` has {len(values)} arrays, but the model has {len(ports)} inputs")
    return {p.name: np.asarray(value).astype(p.dtype, copy=False) for p, value in zip(ports, values, strict=True)}


def _cuts(ports: Sequence[Port], length: int) -> Iterator[tuple[int, int]]:
    """From where to where a batch is cut into what the model takes at a time."""
    size = next((p.shape[0] for p in ports if p.shape and p.shape[0]), 1) or 1
    for start in range(0, length - size + 1, size):
        yield start, start + size


def _part(values: Array, port: Port, start: int, stop: int) -> Array:
    if not port.shape:
        return values
    part = values[start:stop]
    wanted = port.shape[1:]
    if part.ndim != len(port.shape) or any(
        w is not None and w != d for w, d in zip(wanted, part.shape[1:], strict=True)
    ):
        raise UsageError(
            f"`representative_data` has samples of shape {values.shape[1:]} for {port.name}, which takes {wanted}"
        )
    return np.ascontiguousarray(part)


# -- TensorFlow's converter ----------------------------------------------------------------------------------------


def to_tflite(
    directory: str,
    output: str,
    quantization: str | None,
    data: Sequence[Mapping[str, Array]],
    integer_io: bool,
    key: str,
    single: bool,
) -> None:
    """Converts a SavedModel with TensorFlow's converter, and writes the file.

    Raises LitefuseError when it refuses, with the operators for which there are none in TFLite.
    """
    tf = tensorflow()
    try:
        converter = tf.lite.TFLiteConverter.from_saved_model(directory)
        if quantization is not None:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if quantization == "float16":
            converter.target_spec.supported_types = [tf.float16]
        if quantization in CALIBRATED:
            sets = tf.lite.OpsSet
            wide = sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
            converter.target_spec.supported_ops = [sets.TFLITE_BUILTINS_INT8 if quantization == "int8" else wide]
            converter.representative_dataset = lambda: (dict(d) if single else (key, dict(d)) for d in data)
            if integer_io:
                kind = tf.int8 if quantization == "int8" else tf.int16
                converter.inference_input_type = converter.inference_output_type = kind
        content = converter.convert()
    except Exception as error:
        raise LitefuseError(f"TensorFlow's converter refuses the model: {_refusal(error)}") from error
    Path(output).write_bytes(content)


def _refusal(error: Exception) -> str:
    """What in a converter's error, which fills pages, says why."""
    text = str(error)
    found = []
    for kind in ("TF Select", "Custom"):
        found += re.findall(rf"{kind} ops: (.*)", text)[:1]
    if found:
        return one_line(f"TFLite has no operator for {', '.join(part.strip() for part in found)}")
    causes = re.findall(r"error: (.*)", text)
    return one_line(next((cause for cause in causes if "failed while" not in cause), text))


def _convert_in_child(*arguments: Any, say: Callable[[Any], None]) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the memory of a GPU may be full with what is being trained
    say("converting")
    try:
        to_tflite(*arguments)
    except LitefuseError as error:
        raise type(error)(str(error)) from None  # the cause may be something that cannot be sent


def _in_child(function: str, *arguments: Any, what: str) -> Any:
    try:
        return in_child(f"{__name__}:{function}", *arguments, timeout=_PATIENCE)
    except ChildFailure as failure:
        raise LitefuseError(f"{what} {failure.how}") from None


def _refuse_without_weights(model: Model) -> None:
    """Raises LitefuseError for a file that reads variables which nothing ever sets."""
    codes = {builtin_code(code) for code in model.operator_codes}
    if Op.READ_VARIABLE in codes and Op.ASSIGN_VARIABLE not in codes:
        raise LitefuseError(
            "TensorFlow's converter left the weights out of the file, which reads variables instead; save the model "
            "as .keras and export that"
        )


# -- what came of it -----------------------------------------------------------------------------------------------


def _compare(
    source: Saved,
    original: Model,
    result: Model,
    file: Path,
    given: list[dict[str, Array]],
    *,
    seed: int,
    exact: bool,
    custom: bool = False,
    isolated: bool = False,
) -> float | None:
    """The largest difference between a file and its source, relative to the largest output; None where one cannot run.

    Args:
        source: what was exported.
        original: what TensorFlow's converter made of it.
        result: what is in the file.
        file: what is run.
        given: inputs by name; random ones when there are none.
        seed: of the random inputs.
        exact: whether a difference that is more than rounding is an error.
        custom: whether the file has operators that only the delegate runs.
        isolated: run the file in a process of its own, where it has not run before.

    Raises CheckError when the file computes something else and ``exact``.
    """
    if source.reference is None:
        return None
    entry = next((e for e in entries(result) if e.key == source.key), None)
    stock = next((e for e in entries(original) if e.key == source.key), None)
    if entry is None or stock is None or {p.name for p in entry.inputs} != {p.name for p in source.inputs}:
        return None
    given = given or [_made_up(source, stock, entry, Graphs(original), kind, seed) for kind in _CASES]
    try:
        if isolated:
            made = _in_child("_run", str(file), entry, given, custom, what="the runtime")
        else:
            made = _run(str(file), entry, given, custom)
    except (RuntimeMissingError, ValueError, RuntimeError):
        return None
    worst, wrong = 0.0, []
    for values, got in zip(given, made, strict=True):
        try:
            wanted = source.reference(values)
        except Exception:  # made-up inputs may be such that the model refuses them
            return None
        if set(wanted) != set(got):
            return None
        off = 0.0
        for name, value in wanted.items():
            if value.dtype.kind not in "fiub" or value.shape != got[name].shape:
                continue
            a, b = value.astype(np.float64), got[name].astype(np.float64)
            finite = np.isfinite(a) & np.isfinite(b)
            scale = max(float(np.max(np.abs(a[finite]), initial=0.0)), 1e-6)
            difference = float(np.max(np.abs(a - b)[finite], initial=0.0)) / scale
            worst = max(worst, difference)
            if value.dtype.kind == "f":  # an integer, such as a class, may differ for a difference of nothing
                off = max(off, difference)
        wrong.append(off)
    if exact and wrong and min(wrong) > _ALLOWED:
        raise CheckError(
            f"the file does not compute what the model does: outputs differ by {min(wrong):.3g} of the largest at "
            f"least, where {_ALLOWED:g} is allowed. No file was written"
        )
    return worst


def _made_up(source: Saved, stock: Entry, entry: Entry, graphs: Graphs, kind: str, seed: int) -> dict[str, Array]:
    """Random inputs by name, of the types of the source and the shapes of the result."""
    dtypes = {port.name: port.dtype for port in source.inputs}
    values = {}
    for port, result in zip(stock.inputs, entry.inputs, strict=True):
        shape = tuple((_OPEN if i else 1) if d < 1 else d for i, d in enumerate(result.signature))
        value = Feed(port, stock, graphs).values(Case(kind, ordinary=True), shape, seed)
        values[port.name] = _real(value, port).astype(dtypes[port.name])
    return values


def _real(value: Array, port: Any) -> Array:
    """Integers of a quantised input as the real numbers for which they stand."""
    if not port.quantized:
        return value
    real: Array = (value.astype(np.float32) - np.float32(port.zero_point[0])) * np.float32(port.scale[0])
    return real


def _run(
    file: str, entry: Entry, given: Sequence[Mapping[str, Array]], custom: bool, say: Callable[[Any], None] = _silent
) -> list[dict[str, Array]]:
    """Runs a file on inputs by name, which are real numbers as the outputs are."""
    delegates = []
    if custom:
        from litefuse.delegates.runtime import load

        delegates.append(load())
    runner = interpreter(file, delegates=delegates).get_signature_runner(entry.key)
    found = []
    for values in given:
        say("running")
        fed = {}
        for port in entry.inputs:
            value = values[port.name]
            if port.quantized:
                info = np.iinfo(port.type.name.lower())
                steps = np.round(value / np.float32(port.scale[0])) + port.zero_point[0]
                value = np.clip(steps, info.min, info.max).astype(info.dtype)
            fed[port.name] = value
        made = runner(**fed)
        found.append({port.name: np.array(_real(np.asarray(made[port.name]), port)) for port in entry.outputs})
    return found


def _max_error(done: Conversion) -> float | None:
    """The largest difference to the stock file that the comparisons found; None when there was none."""
    found = [c for c in (done.check, done.delegate_check) if c is not None and not c.skipped]
    if not found:
        return None
    return max((float(output.max_rel) for c in found for output in c.outputs), default=0.0)


def _arena(done: Conversion) -> int | None:
    """Bytes of intermediates: as planned for TFLM where that is the target, else of what is live at one time."""
    if done.memory is not None:
        return int(done.memory.peak)
    from litefuse.bench import arena_bytes

    return arena_bytes(done.model, done.regions is not None and bool(done.regions.regions))


def _latency(stock: Path, result: Path, seconds: float) -> tuple[float | None, float | None]:
    """Milliseconds of a run of TensorFlow's file and of the result, run in turn in a process of their own."""
    found = cast("BenchResult", _in_child("_bench", str(stock), str(result), seconds, what="the measurement"))
    times = [None if c.latency is None else c.latency.p50 for c in found.contenders]
    mine = [t for t in times[1:] if t is not None]
    return times[0], mine[-1] if mine else None  # the delegate comes last where there is one


def _bench(stock: str, result: str, seconds: float, *, say: Callable[[Any], None]) -> BenchResult:
    from litefuse.bench import bench

    return bench(stock, result, seconds=seconds, progress=say)
