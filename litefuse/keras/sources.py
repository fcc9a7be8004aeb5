"""What can be exported, brought into one form: a SavedModel with known signature, which the converter reads.

Weights reach the converter as variables of a SavedModel. Converting the concrete functions of a Keras 3 model without
it leaves operators that read variables, and no weights, in the file.
"""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from litefuse.errors import LitefuseError, OutputError, RuntimeMissingError, SchemaError, UsageError
from litefuse.runtime import quiet

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int | None, ...]

DEFAULT_SIGNATURE = "serving_default"
SUFFIXES = (".keras", ".h5", ".hdf5")
"""Of the files that Keras reads."""

_HALF = ("float16", "bfloat16")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_INSTALL = 'install what is missing with `pip install "litefuse[keras]"`'


@dataclass(frozen=True)
class Port:
    """An input of a model to be exported."""

    name: str
    shape: Shape
    """With the batch; None for a dimension that is open."""
    dtype: str


@dataclass
class Saved:
    """A SavedModel that stands for what is to be exported."""

    directory: Path
    inputs: list[Port]
    """Of the signature `key`, in the order in which the caller gives them."""
    key: str = DEFAULT_SIGNATURE
    single: bool = True
    """Whether it is the only signature."""
    reference: Callable[[Mapping[str, Array]], dict[str, Array]] | None = None
    """Computes the outputs by name from inputs by name, as the source does; None where that is not possible."""
    input_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """What is left to be fixed in the converted file: shapes by input, -1 for what stays."""
    batch: int | None = None
    """The same for the batch."""


def tensorflow() -> Any:
    """The module `tensorflow`. Raises RuntimeMissingError where it cannot be imported."""
    return _module("tensorflow")


def keras() -> Any:
    """The module `keras`, of version 3. Raises RuntimeMissingError where it cannot be imported or is older."""
    found = _module("keras")
    if int(str(found.__version__).split(".")[0]) < 3:
        raise RuntimeMissingError(f"Keras {found.__version__} is installed, and 3 or newer is needed; {_INSTALL}")
    return found


def _module(name: str) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with quiet():  # TensorFlow says a lot about processors and graphics cards
            return import_module(name)
    except ModuleNotFoundError as error:
        if error.name in ("jax", "torch", "openvino"):
            raise RuntimeMissingError(
                f"Keras is to run on {error.name}, which is not installed; install it, or set KERAS_BACKEND=tensorflow"
            ) from None
        if error.name is None or error.name.split(".")[0] not in ("keras", "tensorflow"):
            raise RuntimeMissingError(f"{name} is there but lacks the module {error.name}; {_INSTALL}") from None
        raise RuntimeMissingError(f"{error.name} is not installed, and this needs it; {_INSTALL}") from None
    except Exception as error:  # importing what was built for another system fails in many ways
        raise RuntimeMissingError(f"{name} cannot be imported: {one_line(error)}") from error


def one_line(error: BaseException | str, limit: int = 400) -> str:
    """The message of an error in one line, shortened to ``limit`` characters."""
    text = " ".join(_COLOR.sub("", str(error)).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def is_source(path: str | os.PathLike[str]) -> bool:
    """Whether this is the name of a Keras file, or of a directory that holds a SavedModel."""
    where = Path(path)
    return where.suffix.lower() in SUFFIXES or _holds_saved_model(where)


def _holds_saved_model(path: Path) -> bool:
    return any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt"))


def refuse_output(source: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Raises OutputError for an output that is the source itself, or a file of the SavedModel."""
    own, where = Path(os.path.realpath(source)), Path(os.path.realpath(output))
    if own == where or (_holds_saved_model(own) and own in where.parents and where.suffix != ".tflite"):
        raise OutputError(f"{output}: is {'' if own == where else 'part of '}the input itself; choose another output")


@contextmanager
def saved(
    model: Any,
    *,
    input_shape: Any = None,
    batch: int | None = 1,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
) -> Iterator[Saved]:
    """A SavedModel for what is to be exported, in a temporary directory unless it is one already.

    Takes what :func:`litefuse.keras.export` takes and raises as it does.
    """
    with tempfile.TemporaryDirectory(prefix="litefuse-") as directory:
        where = Path(directory) / "saved_model"
        if isinstance(model, (str, os.PathLike)):
            path = Path(model)
            if path.is_dir():
                yield _directory(path, input_shape, batch)
                return
            model = load(path, custom_objects, safe_mode)
        if callable(getattr(model, "get_concrete_function", None)):
            yield _function(model, where, input_shape, batch)
        elif hasattr(model, "structured_input_signature"):
            yield _concrete(model, where, input_shape, batch)
        elif isinstance(model, keras().Model):
            with in_float32(model):
                yield _keras(model, where, input_shape, batch)
        else:
            raise UsageError(
                f"a {type(model).__module__}.{type(model).__qualname__} cannot be exported: a Keras 3 model, a file of "
                "one, a SavedModel's directory, a tf.function or a concrete function can"
            )


def load(path: Path, custom_objects: Mapping[str, Any] | None = None, safe_mode: bool = True) -> Any:
    """The Keras model in a `.keras` or `.h5` file.

    Raises SchemaError when it cannot be read, UsageError for another kind of file.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: is neither a .keras or .h5 file nor the directory of a SavedModel")
    if not path.is_file():
        raise SchemaError(f"{path}: there is no such file")
    module = keras()
    try:
        return module.models.load_model(
            path, custom_objects=dict(custom_objects or {}), compile=False, safe_mode=safe_mode
        )
    except Exception as error:
        raise SchemaError(f"{path}: Keras cannot load it: {_cause(error)}") from error


def _cause(error: Exception) -> str:
    """Why Keras could not load a file, and what helps."""
    text = one_line(error, limit=100_000)  # the cause may come last, after the whole configuration
    unknown = re.search(r"Could not locate \w+ '[^']*'|Unknown \w+: '[^']*'", text)
    if unknown:
        return f"{unknown[0]}; classes and functions of your own go into `custom_objects`, or are registered before"
    if "safe_mode" in text:
        return (
            "it holds Python code (a Lambda layer); `safe_mode=False` runs it, which only a trusted file should be let"
        )
    if "No model config found" in text:
        return "the file holds weights without a model"
    return one_line(error)


# -- Keras ---------------------------------------------------------------------------------------------------------


@contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Lets the layers compute in float32 that otherwise do in float16 or bfloat16, which no TFLite kernel does.

    Variables stay as they are: those of mixed policies are float32 anyway, others are converted where they are read.
    """
    base: Any = keras().DTypePolicy

    class Wide(base):  # type: ignore[misc]
        """Computes in float32 with variables of another type, which no name of a policy stands for."""

        def __init__(self, stored: str) -> None:
            super().__init__("float32")
            self.stored = stored

        @property
        def variable_dtype(self) -> str:
            return self.stored

    changed: list[tuple[Any, Any]] = []
    try:
        for layer in model._flatten_layers():
            policy = layer.dtype_policy
            if policy.compute_dtype in _HALF and policy.quantization_mode is None:
                changed.append((layer, policy))
                layer.dtype_policy = Wide(policy.variable_dtype)
        yield
    finally:
        for layer, policy in changed:
            layer.dtype_policy = policy


def _keras(model: Any, where: Path, input_shape: Any, batch: int | None) -> Saved:
    module = keras()
    structure, named = _inputs(model, input_shape, batch)
    flat = module.tree.flatten(structure)
    names = _unique([port.name for port in flat])
    ports = [replace(port, name=name) for port, name in zip(flat, names, strict=True)]

    parameters = inspect.signature(model.call).parameters
    says = "training" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    training = {"training": False} if says else {}  # Keras tells the layers of a model that does not take it

    def call(values: Sequence[Any]) -> Any:
        inputs = module.tree.pack_sequence_as(structure, list(values))
        return model(**inputs, **training) if named else model(inputs, **training)

    backend = module.backend.backend()
    # Where Keras writes the SavedModel, it names outputs itself: as a dictionary of them does, or by their number.
    output_names = _output_names(model) if backend == "tensorflow" else None

    def reference(values: Mapping[str, Array]) -> dict[str, Array]:
        made = _outputs(call([module.ops.convert_to_tensor(values[name]) for name in names]), output_names)
        return {name: np.asarray(module.ops.convert_to_numpy(value)) for name, value in made.items()}

    if not model.built:
        if input_shape is None:
            raise UsageError(
                "the model has not been built, so that it has no weights: call it once, or give `input_shape`"
            )
        with _failing("the model cannot be called with such inputs"):
            call([np.zeros([1 if d is None else d for d in port.shape], port.dtype) for port in ports])
    if backend != "tensorflow":
        return _other_backend(model, where, ports, structure, named, backend, reference)
    tf = tensorflow()
    specs = [tf.TensorSpec(port.shape, port.dtype, name=port.name) for port in ports]
    function = tf.function(lambda *values: _outputs(call(values), output_names), input_signature=specs, autograph=False)
    with _failing("Keras cannot trace the model with these inputs"):
        concrete = function.get_concrete_function()
    _save(tf, concrete, where, model)
    return Saved(where, ports, reference=reference)


def _other_backend(
    model: Any,
    where: Path,
    ports: Sequence[Port],
    structure: Any,
    named: bool,
    backend: str,
    reference: Callable[[Mapping[str, Array]], dict[str, Array]],
) -> Saved:
    """Leaves the way from JAX or torch into a SavedModel to Keras."""
    tensorflow()
    module = keras()
    specs = [module.InputSpec(shape=port.shape, dtype=port.dtype, name=port.name) for port in ports]
    packed = module.tree.pack_sequence_as(structure, specs)
    try:
        with quiet():
            model.export(
                str(where),
                format="tf_saved_model",
                verbose=False,
                input_signature=list(packed.values()) if named else [packed],
            )
    except Exception as error:
        raise LitefuseError(
            f"Keras cannot export this model from the backend {backend}: {one_line(error)}. Saved as .keras, it can be "
            "exported by a process with KERAS_BACKEND=tensorflow, if its layers run there"
        ) from error
    found = _directory(where, None, None)
    # Keras says nothing of the names that it gives to inputs; where they are others, nothing can be compared.
    found.reference = reference if {p.name for p in found.inputs} == {p.name for p in ports} else None
    return found


def _inputs(model: Any, input_shape: Any, batch: int | None) -> tuple[Any, bool]:
    """The model's inputs as a structure of ports, and whether they are arguments of `call` by name."""
    module = keras()
    symbolic = None
    if isinstance(model, module.Sequential):
        symbolic = model.inputs[0] if model.inputs else None
    elif getattr(model, "inputs", None):
        symbolic = model.input
    if symbolic is not None:
        count = [0]

        def port(path: Sequence[Any], tensor: Any) -> Port:
            name = str(tensor.name)
            if re.fullmatch(r"keras_tensor(_\d+)?", name):  # counts every tensor that the process has made
                name = next((str(p) for p in reversed(path) if isinstance(p, str)), f"input_{count[0]}")
            count[0] += 1
            shape = tuple(tensor.shape)
            return Port(name, (shape[0] or batch, *shape[1:]) if shape else (), str(tensor.dtype))

        ports = _mapped(module, port, symbolic)
        return (ports if input_shape is None else _reshaped(module, ports, input_shape)), False
    return _subclassed(module, model, input_shape, batch)


def _mapped(module: Any, function: Callable[[Sequence[Any], Any], Any], structure: Any) -> Any:
    made = [function(path, leaf) for path, leaf in module.tree.flatten_with_path(structure)]
    return module.tree.pack_sequence_as(structure, made)


def _reshaped(module: Any, ports: Any, input_shape: Any) -> Any:
    """Ports with the shapes that the user gave, without the batch: one, a sequence in order, or a dictionary."""
    flat: list[Port] = module.tree.flatten(ports)
    known = {port.name: port for port in flat}
    given: list[Any]
    if isinstance(input_shape, Mapping):
        odd = [name for name in input_shape if name not in known]
        if odd:
            raise UsageError(f"`input_shape` names {odd[0]}, but the inputs are {', '.join(known)}")
        given = [input_shape.get(port.name) for port in flat]
    else:
        given = [input_shape] if is_shape(input_shape) else list(input_shape)
    if len(given) != len(flat):
        raise UsageError(f"`input_shape` has {len(given)} shapes, but the model has {len(flat)} inputs")
    made = []
    for port, shape in zip(flat, given, strict=True):
        if shape is None:
            made.append(port)
            continue
        if not is_shape(shape):
            raise UsageError(f"`input_shape` wants sizes for {port.name}, without the batch, not {shape!r}")
        own = port.shape[1:]
        if len(own) != len(shape) or any(a is not None and a != b for a, b in zip(own, shape, strict=True)):
            raise UsageError(
                f"`input_shape` is {tuple(shape)} for {port.name}, but that takes {own}, without the batch"
            )
        made.append(replace(port, shape=(port.shape[0], *shape)))
    return module.tree.pack_sequence_as(ports, made)


def is_shape(value: Any) -> bool:
    """Whether this is one shape, rather than several."""
    return isinstance(value, (tuple, list)) and all(
        d is None or (isinstance(d, (int, np.integer)) and not isinstance(d, bool) and d > 0) for d in value
    )


def _subclassed(module: Any, model: Any, input_shape: Any, batch: int | None) -> tuple[Any, bool]:
    """The inputs of a model that is not made of symbolic tensors: from `input_shape`, or from its first call."""
    arguments = _arguments(model)
    if input_shape is None:
        required = [a.name for a in arguments if a.default is a.empty]
        if len(required) > 1:
            raise UsageError(
                f"the model's `call` takes {', '.join(required)}: give `input_shape` as a dictionary with these names"
            )
        built = (model.get_build_config() or {}).get("input_shape")
        if built is None:
            raise UsageError(
                "the model does not know its inputs: call it once on data, or give `input_shape` (without the batch)"
            )
        shapes = _structure(built, lambda shape: tuple(shape[1:]))
    else:
        shapes = _structure(input_shape, tuple)
    dtype = str(model.input_dtype)
    if dtype in _HALF:
        dtype = "float32"
    count = [0]

    def port(shape: Shape, name: str) -> Port:
        count[0] += 1
        return Port(name or f"input_{count[0] - 1}", (batch, *shape), dtype)

    ports = _structure(shapes, port, named=True)
    names = {a.name for a in arguments}
    return ports, isinstance(ports, dict) and set(ports) <= names


def _arguments(model: Any) -> list[inspect.Parameter]:
    """The arguments of a model's `call` that may be arrays."""
    own = {"self", "training", "mask"}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p for p in inspect.signature(model.call).parameters.values() if p.kind in kinds and p.name not in own]


def _structure(value: Any, leaf: Callable[..., Any], named: bool = False, name: str = "") -> Any:
    """Applies a function to every shape in a structure of tuples, lists and dictionaries."""
    if isinstance(value, Mapping):
        return {str(k): _structure(v, leaf, named, str(k)) for k, v in value.items()}
    if is_shape(value):
        return leaf(tuple(value), name) if named else leaf(value)
    if isinstance(value, (tuple, list)):
        return [_structure(v, leaf, named) for v in value]
    raise UsageError(f"`input_shape` wants a shape without the batch, a list or a dictionary of such, not {value!r}")


def _output_names(model: Any) -> list[str] | None:
    """The names of a functional model's outputs, where it has several; None for names that are counted."""
    names = getattr(model, "output_names", None)
    if not names or len(names) < 2:
        return None
    return _unique([str(name) for name in names])


def _outputs(made: Any, names: Sequence[str] | None) -> dict[str, Any]:
    """What a model returned, by name: keys of dictionaries, else the layers' names, else numbers."""
    module = keras()
    paths = module.tree.flatten_with_path(made)
    keys = [next((str(p) for p in reversed(path) if isinstance(p, str)), "") for path, _ in paths]
    if not all(keys):
        keys = list(names) if names is not None and len(names) == len(paths) else []
        keys = keys or [f"output_{i}" for i in range(len(paths))]
    return {name: leaf for name, (_, leaf) in zip(_unique(keys), paths, strict=True)}


def _unique(names: Sequence[str]) -> list[str]:
    """Names that a signature may have, each once."""
    made: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII) or "input"
        plain = f"_{plain}" if plain[0].isdigit() else plain
        choice, number = plain, 1
        while choice in made:
            choice, number = f"{plain}_{number}", number + 1
        made.append(choice)
    return made


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Makes whatever a model's own code raises an error of litefuse."""
    try:
        yield
    except LitefuseError:
        raise
    except Exception as error:
        raise LitefuseError(f"{what}: {one_line(error)}") from error


# -- TensorFlow ----------------------------------------------------------------------------------------------------


def _save(tf: Any, concrete: Any, where: Path, owner: Any) -> None:
    """Writes a concrete function as a SavedModel, together with the variables that it reads."""
    module = tf.Module()
    module.variables_read = list(concrete.variables)
    with _failing("TensorFlow cannot save it"), quiet():
        try:
            tf.saved_model.save(module, str(where), signatures={DEFAULT_SIGNATURE: concrete})
        except AssertionError:
            # It reads something else than variables, such as a table, which only its owner can name. The owner has
            # more than is needed, the state of the optimizer for one.
            module.owner = owner
            tf.saved_model.save(module, str(where), signatures={DEFAULT_SIGNATURE: concrete})


def _function(function: Any, where: Path, input_shape: Any, batch: int | None) -> Saved:
    """A tf.function: with the signature that it declares, or with float32 inputs of the given shapes."""
    tf = tensorflow()
    if getattr(function, "input_signature", None) is None:
        if input_shape is None:
            raise UsageError("the tf.function declares no `input_signature`: give `input_shape` (without the batch)")
        shapes = [input_shape] if is_shape(input_shape) else input_shape
        if isinstance(shapes, Mapping):
            given = {str(name): tf.TensorSpec((batch, *shape), tf.float32) for name, shape in shapes.items()}
            with _failing("TensorFlow cannot trace the function with these inputs"):
                return _concrete(function.get_concrete_function(**given), where, None, batch, function)
        specs = [tf.TensorSpec((batch, *shape), tf.float32) for shape in shapes]
        with _failing("TensorFlow cannot trace the function with these inputs"):
            return _concrete(function.get_concrete_function(*specs), where, None, batch, function)
    with _failing("TensorFlow cannot trace the function"):
        concrete = function.get_concrete_function()
    return _concrete(concrete, where, input_shape, batch, function)


def _concrete(concrete: Any, where: Path, input_shape: Any, batch: int | None, owner: Any = None) -> Saved:
    """A concrete function, traced anew with shapes that are fixed."""
    tf = tensorflow()
    module = keras()
    args, kwargs = concrete.structured_input_signature
    leaves = tf.nest.flatten((args, kwargs))
    specs = [leaf for leaf in leaves if isinstance(leaf, tf.TensorSpec)]
    names = _unique([str(s.name or f"input_{i}").split(":")[0] for i, s in enumerate(specs)])
    ports = []
    for spec, name in zip(specs, names, strict=True):
        if spec.shape.rank is None:
            raise UsageError(f"the input {name} has no known rank, which TFLite needs")
        shape = tuple(spec.shape)
        ports.append(Port(name, (shape[0] or batch, *shape[1:]) if shape else (), spec.dtype.name))
    if input_shape is not None:
        ports = module.tree.flatten(_reshaped(module, ports, input_shape))

    def call(*values: Any) -> dict[str, Any]:
        todo = iter(values)
        packed = [next(todo) if isinstance(leaf, tf.TensorSpec) else leaf for leaf in leaves]
        positional, keyword = tf.nest.pack_sequence_as((args, kwargs), packed)
        return _outputs(concrete(*positional, **keyword), None)

    fixed = [tf.TensorSpec(port.shape, port.dtype, name=port.name) for port in ports]
    with _failing("TensorFlow cannot trace the function with these inputs"):
        traced = tf.function(call, input_signature=fixed, autograph=False).get_concrete_function()
    _save(tf, traced, where, owner)

    def reference(values: Mapping[str, Array]) -> dict[str, Array]:
        made = call(*(tf.constant(values[port.name], port.dtype) for port in ports))
        return {name: np.asarray(value) for name, value in made.items()}

    return Saved(where, ports, reference=reference)


def _directory(path: Path, input_shape: Any, batch: int | None) -> Saved:
    """A SavedModel as it is: what is open in its signature is fixed after it was converted."""
    if not _holds_saved_model(path):
        raise SchemaError(f"{path}: is a directory without a saved_model.pb, and so no SavedModel")
    tf = tensorflow()
    try:
        with quiet():
            loaded = tf.saved_model.load(str(path))
    except Exception as error:
        raise SchemaError(f"{path}: TensorFlow cannot load it: {one_line(error)}") from error
    keys = list(loaded.signatures)
    if not keys:
        raise SchemaError(f"{path}: the SavedModel has no signature, so that there is nothing to convert")
    key = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in keys else keys[0]
    function = loaded.signatures[key]
    ports = []
    for name, spec in function.structured_input_signature[1].items():
        if spec.shape.rank is None:
            raise UsageError(f"{path}: the input {name} has no known rank, which TFLite needs")
        ports.append(Port(name, tuple(spec.shape), spec.dtype.name))
    shapes = {}
    if input_shape is not None:
        module = keras()
        wanted = module.tree.flatten(_reshaped(module, ports, input_shape))
        shapes = {port.name: tuple(-1 if d is None else d for d in port.shape) for port in wanted}

    def reference(values: Mapping[str, Array]) -> dict[str, Array]:
        made = function(**{port.name: tf.constant(values[port.name], port.dtype) for port in ports})
        # What was loaded holds the variables that the function reads.
        assert loaded is not None
        return {name: np.asarray(value) for name, value in made.items()}

    return Saved(path, ports, key, len(keys) == 1, reference, shapes, batch)
