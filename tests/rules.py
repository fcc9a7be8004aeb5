"""What the tests of rules share: apply rules, list what a model consists of, and compare two models by running them.

::

    model = b.model([...])
    after, report = fuse(model, rule)  # compares the results by the rule's own numerics class
    assert kinds(after) == ["CONV_2D"]
    assert refusals(after, rule) == []
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litefuse.fusions import FusionReport, Numerics, Rule, run
from litefuse.runtime import interpreter, quiet
from litefuse.schema import Model, deepcopy, to_bytes
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op, builtin_code, operator_code
from litefuse.schema.tables import AddOptions, Buffer, LessOptions, Operator, SubGraph, Tensor, WhileOptions

Array = NDArray[Any]
Inputs = list[Array]

FLOAT_CASES = ("normal", "wide", "zeros", "negative zeros", "specials", "subnormals")
NONFINITE_CASES = ("infinities", "nans", "huge")
INTEGER_CASES = ("random", "ramp", "lowest", "highest", "zeros")
SPECIALS = np.array([0, -0.0, 1, -1, 6, -6, 3, -3, 0.5, np.pi, -np.e, 1e-30, -1e-30, 1e4, -1e4, 1e15, -1e15])
SUBNORMALS = np.array([1e-40, -1e-40, 1e-44, -3e-39, 1e-38, -1e-38])


def apply(model: Model, *rules: Rule) -> FusionReport:
    """Runs rules over ``model`` in place, to a fixed point."""
    return run(model, rules)


def kinds(model: Model, subgraph: int = 0) -> list[str]:
    """The operators of a subgraph in order, with a fused activation behind a plus: ``["CONV_2D+RELU", "SOFTMAX"]``."""
    names = []
    for op in model.subgraphs[subgraph].operators:
        name = builtin_code(model.operator_codes[op.opcode_index]).name
        activation = getattr(op.builtin_options, "fused_activation_function", 0)
        names.append(f"{name}+{activation.name}" if activation else name)
    return names


def operators(model: Model, kind: str, subgraph: int = 0) -> list[Operator]:
    """The operators of one kind, by the name that :func:`kinds` shows without its activation."""
    return [
        op
        for op in model.subgraphs[subgraph].operators
        if builtin_code(model.operator_codes[op.opcode_index]).name == kind
    ]


def fuse(model: Model, *rules: Rule, numerics: Numerics | None = None, **options: Any) -> tuple[Model, FusionReport]:
    """Applies rules to a copy, compares the copy with the original and returns it with the report.

    Without ``numerics``, the loosest class among the rules that were applied is the measure. ``options`` are those of
    :func:`assert_same`.
    """
    after = deepcopy(model)
    report = apply(after, *rules)
    if numerics is None:
        used = {rule.numerics for rule in rules if rule.name in report.counts()} or {Numerics.EXACT}
        numerics = next(n for n in reversed(list(Numerics)) if n in used)
    assert_same(model, after, numerics, **options)
    return after, report


def refusals(model: Model, *rules: Rule) -> list[str]:
    """The reasons with which rules decline; asserts that none of them applies and that the model stays as it is."""
    copy = deepcopy(model)
    report = apply(copy, *rules)
    assert not report.applied, report.applied
    assert kinds(copy) == kinds(model)
    return [candidate.reason for candidate in report.refused]


def assert_same(
    before: Model,
    after: Model,
    numerics: Numerics = Numerics.EXACT,
    *,
    cases: Sequence[str] | None = None,
    inputs: Iterable[Inputs] | None = None,
    nonfinite: bool = False,
    signed_zeros: bool = True,
    reference: Callable[..., Any] | None = None,
    bound: float = 1e-5,
    batches: Sequence[int] = (1, 3),
    seed: int = 0,
    xnnpack: Sequence[bool] = (False, True),
) -> None:
    """Asserts that two models compute the same, with the builtin kernels and with XNNPACK.

    EXACT wants equal bits (any NaN equals any other). QUANTIZED allows one step of integer outputs. REASSOCIATED and
    REPAIR compare float outputs with ``reference`` where it is given, else with ``before``: the difference may be
    ``bound`` times the largest magnitude of that output, or with a reference also as large as the original's own error.
    Integer outputs must then be equal.

    Args:
        before: the original model.
        after: the rewritten model.
        numerics: the class that is asserted.
        cases: names out of FLOAT_CASES, NONFINITE_CASES and INTEGER_CASES; by default all that suit the inputs' types.
        inputs: input sets of one's own instead of the cases; one array for each model input.
        nonfinite: also run NONFINITE_CASES.
        signed_zeros: whether 0.0 and -0.0 count as different where bits are compared.
        reference: takes the inputs as arrays, floats in float64, and returns the output or list of outputs in float64.
        bound: see above.
        batches: what dimensions of unknown size become, one after the other.
        seed: of the random numbers.
        xnnpack: which of the two runtimes to use.
    """
    a, b = to_bytes(before), to_bytes(after)
    for use_xnnpack in xnnpack:
        for batch in batches if _is_dynamic(before) else (1,):
            first, second = _Runner(a, use_xnnpack, batch, before), _Runner(b, use_xnnpack, batch, before)
            assert first.interface() == second.interface(), f"{first.interface()} became {second.interface()}"
            sets = (
                _cases(first.inputs, cases, nonfinite, seed)
                if inputs is None
                else ((str(i), x) for i, x in enumerate(inputs))
            )
            for name, values in sets:
                where = f"case {name!r}, batch {batch}, {'XNNPACK' if use_xnnpack else 'builtin kernels'}"
                expected, actual = first(values), second(values)
                true: list[Any] = [None] * len(expected)
                if reference is not None:
                    with np.errstate(all="ignore"):
                        result = reference(*(v.astype(np.float64) if v.dtype.kind == "f" else v for v in values))
                    true = list(result) if isinstance(result, (list, tuple)) else [result]
                for i, (x, y, z) in enumerate(zip(expected, actual, true, strict=True)):
                    if not signed_zeros and x.dtype.kind == "f":
                        x, y = x + 0.0, y + 0.0
                    _compare(x, y, z, numerics, bound, f"output {i}, {where}")


def results(model: Model, *inputs: Array, xnnpack: bool = False) -> list[Array]:
    """The outputs of a model for one set of inputs, whose shapes it is resized to."""
    runner = interpreter(to_bytes(model), xnnpack=xnnpack)
    for detail, value in zip(runner.get_input_details(), inputs, strict=True):
        if list(detail["shape"]) != list(value.shape):
            runner.resize_tensor_input(detail["index"], value.shape)
    return _Runner.run(runner, list(inputs))


def looped(model: Model, times: int = 3) -> Model:
    """A model that applies ``model`` to its input again and again, in the body of a WHILE.

    ``model`` has one input and one output of the same shape and type. Its subgraph becomes subgraph 2.
    """
    model = deepcopy(model)
    body = model.subgraphs[0]
    (x,), (y,) = body.inputs, body.outputs
    main, condition = SubGraph(name="main"), SubGraph(name="condition")
    buffers = len(model.buffers)
    model.buffers += [Buffer(data=np.array([n], np.int32).tobytes()) for n in (0, 1, times)]

    def counter(graph: SubGraph, name: str, buffer: int = 0) -> int:
        graph.tensors.append(Tensor(name=name, shape=[1], type=TensorType.INT32, buffer=buffer, has_rank=True))
        return len(graph.tensors) - 1

    def value(graph: SubGraph, name: str) -> int:
        graph.tensors.append(body.tensors[x].replace(name=name))
        return len(graph.tensors) - 1

    def op(graph: SubGraph, kind: Op, inputs: list[int], outputs: list[int], options: Any) -> None:
        model.operator_codes.append(operator_code(kind))
        index = len(model.operator_codes) - 1
        graph.operators.append(Operator(opcode_index=index, inputs=inputs, outputs=outputs, builtin_options=options))

    zero, start = counter(main, "zero", buffers), value(main, "x")
    count, result = counter(main, "count"), value(main, "y")
    main.inputs, main.outputs = [start], [result]
    options = WhileOptions(cond_subgraph_index=1, body_subgraph_index=2)
    op(main, Op.WHILE, [zero, start], [count, result], options)

    i, _ = condition.inputs = [counter(condition, "i"), value(condition, "x")]
    condition.tensors.append(Tensor(name="go", shape=[1], type=TensorType.BOOL, has_rank=True))
    condition.outputs = [len(condition.tensors) - 1]
    op(condition, Op.LESS, [i, counter(condition, "times", buffers + 2)], condition.outputs, LessOptions())

    i, following, one = counter(body, "i"), counter(body, "next"), counter(body, "one", buffers + 1)
    op(body, Op.ADD, [i, one], [following], AddOptions())
    body.inputs, body.outputs = [i, x], [following, y]
    model.subgraphs = [main, condition, body]
    return model


class _Runner:
    """One model in an interpreter; state that the model keeps carries over from call to call."""

    def __init__(self, data: bytes, xnnpack: bool, batch: int, model: Model) -> None:
        self.interpreter = interpreter(data, xnnpack=xnnpack)
        for tensor, detail in zip(model.subgraphs[0].inputs, self.interpreter.get_input_details(), strict=True):
            signature = model.subgraphs[0].tensors[tensor].shape_signature
            if signature and any(d < 0 for d in signature):
                shape = [batch if d < 0 else d for d in signature]
                self.interpreter.resize_tensor_input(detail["index"], shape)
        with quiet():
            self.interpreter.allocate_tensors()
        self.inputs = self.interpreter.get_input_details()

    def interface(self) -> list[tuple[Any, ...]]:
        details = [*self.inputs, *self.interpreter.get_output_details()]
        # The shape itself is as in the file until a run, when only that can tell it.
        return [(d["name"], d["dtype"], d["shape_signature"].tolist(), d["quantization"]) for d in details]

    def __call__(self, values: Inputs) -> list[Array]:
        return self.run(self.interpreter, values)

    @staticmethod
    def run(runner: Any, values: Inputs) -> list[Array]:
        with quiet():
            runner.allocate_tensors()
        for detail, value in zip(runner.get_input_details(), values, strict=True):
            runner.set_tensor(detail["index"], value)
        with quiet():
            runner.invoke()
        return [runner.get_tensor(d["index"]) for d in runner.get_output_details()]


def _is_dynamic(model: Model) -> bool:
    main = model.subgraphs[0]
    return any(d < 0 for t in main.inputs for d in main.tensors[t].shape_signature or ())


def _cases(
    details: list[dict[str, Any]], cases: Sequence[str] | None, nonfinite: bool, seed: int
) -> Iterator[tuple[str, Inputs]]:
    rng = np.random.default_rng(seed)
    has_floats = any(np.dtype(d["dtype"]).kind == "f" for d in details)
    if cases is None:
        cases = (*FLOAT_CASES, *(NONFINITE_CASES if nonfinite else ())) if has_floats else INTEGER_CASES
    for case in cases:
        yield case, [_values(rng, case, np.dtype(d["dtype"]), tuple(d["shape"])) for d in details]


def _values(rng: np.random.Generator, case: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        # Wide integers are indices or counts more often than not: small numbers are the useful ones.
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.itemsize <= 2 else (-8, 8)
        if case == "ramp":
            return (low + np.arange(np.prod(shape, dtype=int)) % (high - low + 1)).reshape(shape).astype(dtype)
        fixed = {"lowest": low, "highest": high, "zeros": 0}.get(case)
        return rng.integers(low, high + 1, shape).astype(dtype) if fixed is None else np.full(shape, fixed, dtype)
    normal = rng.standard_normal(shape)
    sprinkled = rng.random(shape) < 0.2
    if case == "normal":
        value = normal
    elif case == "wide":
        value = normal * 10.0 ** rng.uniform(-4, 4, shape)
    elif case == "zeros":
        value = np.zeros(shape)
    elif case == "negative zeros":
        value = np.full(shape, -0.0)
    elif case == "specials":
        value = rng.choice(SPECIALS, shape)
    elif case == "subnormals":
        value = np.where(sprinkled, normal, rng.choice(SUBNORMALS, shape))
    elif case == "infinities":
        value = np.where(sprinkled, rng.choice([np.inf, -np.inf], shape), normal)
    elif case == "nans":
        value = np.where(sprinkled, np.nan, normal)
    elif case == "huge":
        value = np.where(sprinkled, rng.choice([3.4028234e38, -3.4028234e38], shape), normal)
    else:
        raise ValueError(f"there is no case {case!r} for {dtype}")
    return value.astype(dtype)


def _compare(before: Array, after: Array, true: Any, numerics: Numerics, bound: float, where: str) -> None:
    assert before.shape == after.shape, f"{where}: shape {after.shape} instead of {before.shape}"
    assert before.dtype == after.dtype, f"{where}: {after.dtype} instead of {before.dtype}"
    if before.dtype.kind != "f":
        allowed = 1 if numerics is Numerics.QUANTIZED and before.dtype.kind in "iu" else 0
        if before.dtype.kind in "iu":
            worst = int(np.max(np.abs(before.astype(np.int64) - after.astype(np.int64)), initial=0))
            assert worst <= allowed, f"{where}: differs by {worst}"
        else:
            assert np.array_equal(before, after), f"{where}: differs"
        return
    if numerics in (Numerics.EXACT, Numerics.QUANTIZED):
        bits = np.dtype(f"u{before.dtype.itemsize}")
        same = (before.view(bits) == after.view(bits)) | (np.isnan(before) & np.isnan(after))
        if not same.all():
            place = tuple(int(i) for i in np.argwhere(~same)[0])
            raise AssertionError(f"{where}: at {place} {after[place]!r} instead of {before[place]!r}")
        return
    x, y = before.astype(np.float64), after.astype(np.float64)
    z = x if true is None else np.asarray(true, np.float64)
    assert z.shape == y.shape, f"{where}: the reference has shape {z.shape}, the model {y.shape}"
    finite = np.isfinite(z)
    # Where the true result is not finite, the same infinity or NaN must come out.
    assert np.array_equal(y[~finite], z[~finite], equal_nan=True), f"{where}: non-finite results differ"
    scale = float(np.max(np.abs(z[finite]), initial=0.0))
    error = float(np.max(np.abs(y[finite] - z[finite]), initial=0.0))
    allowed_error = bound * scale
    if true is not None and numerics is Numerics.REASSOCIATED:
        allowed_error = max(allowed_error, float(np.max(np.abs(x[finite] - z[finite]), initial=0.0)))
    assert error <= allowed_error, f"{where}: error {error:.3g} of at most {allowed_error:.3g}"
