"""Random small graphs in the textual form, made of what the rules look for.

Everything is drawn from one random.Random, so that a seed is a graph, and hypothesis can shrink one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from litefuse.graph.text import TextError, from_text

UNARY = [
    "RELU",
    "RELU6",
    "RELU_N1_TO_1",
    "RELU_0_TO_1",
    "ABS",
    "NEG",
    "EXP",
    "LOG",
    "TANH",
    "LOGISTIC",
    "SQRT",
    "RSQRT",
    "SQUARE",
    "HARD_SWISH",
    "ELU",
    "GELU",
    "SIN",
    "FLOOR",
]
MILD = ["RELU", "RELU6", "RELU_N1_TO_1", "ABS", "NEG", "TANH", "LOGISTIC", "HARD_SWISH", "ELU", "GELU"]
ACTIVATIONS = ("", "", "", "RELU", "RELU6", "RELU_N1_TO_1")
SPLATS = (0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 6.0, -3.0, 1 / 6, 0.25, 1e-5, 0.2, -0.0, 0.1)
MOST_ELEMENTS = 1200


class Value(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type: str

    @property
    def real(self) -> bool:
        return self.type == "f32"

    @property
    def declared(self) -> str:
        head, _, tail = self.type.partition("{")
        dims = ",".join("?" if d < 0 else str(d) for d in self.shape)
        return f"{self.name}: {head}[{dims}]" + ("{" + tail if tail else "")


class Maker:
    """A graph that grows by one statement at a time."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self.lines: list[str] = []
        self.constants = 0

    # -- pieces ------------------------------------------------------------------------------------------------

    def constant(self, shape: Sequence[int], value: float | None = None) -> str:
        self.constants += 1
        name = f"c{self.constants}[{','.join(map(str, shape))}]"
        if value is None and self.rnd.random() < 0.3:
            value = self.rnd.choice(SPLATS)
        return name if value is None else f"{name}={value!r}"

    def integers(self, *values: int, shape: Sequence[int] | None = None) -> str:
        shape = [len(values)] if shape is None else shape
        return f"i32[{','.join(map(str, shape))}]=({', '.join(map(str, values))})"

    def put(self, call: str, options: str = "", type: str = "", outputs: int = 1) -> list[Value] | None:
        """Appends an operator; None, with nothing appended, when the shapes do not allow it."""
        names = [f"%v{len(self.lines)}" + (f"_{i}" if i else "") for i in range(outputs)]
        annotated = ", ".join(f"{n}: {type}" if type else n for n in names)
        line = f"{annotated} = {call}" + (f" {{{options}}}" if options else "")
        used = set(re.findall(r"%\w+", call))
        known = ", ".join(v.declared for v in self.values if v.name in used)
        try:
            model = from_text(f"graph g({known}) {{ {line} return {names[0]} }}")
        except TextError:
            return None
        tensors = {t.name: t for t in model.subgraphs[0].tensors}
        made = []
        for name in names:
            tensor = tensors[name[1:]]
            shape = tuple(tensor.shape_signature or tensor.shape or ())
            size = 1
            for d in shape:
                size *= abs(d)
            if not 0 < size <= MOST_ELEMENTS or any(d < 0 for d in shape[1:]):
                return None
            q = tensor.quantization
            kind = {0: "f32", 9: "i8", 3: "u8", 7: "i16"}.get(int(tensor.type))
            if kind is None:
                return None
            if q is not None and q.scale is not None:
                zero = 0 if q.zero_point is None else int(q.zero_point[0])
                kind += f"{{scale={q.scale[0]!s}, zero={zero}}}"
            made.append(Value(name, shape, kind))
        self.lines.append(line)
        self.values += made
        return made

    def one(self, call: str, options: str = "", type: str = "") -> Value | None:
        made = self.put(call, options, type)
        return made[0] if made else None

    def pick(self, real: bool | None = None) -> Value | None:
        """A value, likely a late one."""
        fitting = [v for v in self.values if real is None or v.real == real]
        if not fitting:
            return None
        return fitting[-1] if self.rnd.random() < 0.65 else self.rnd.choice(fitting)

    def options(self, **values: object) -> str:
        return ", ".join(f"{k}={v}" for k, v in values.items() if v not in ("", None))

    # -- operators on floats -----------------------------------------------------------------------------------

    def positive(self, x: Value) -> Value | None:
        """Something that is above zero for certain, so that logarithms and roots give no NaN."""
        kind = self.rnd.choice(("ABS", "SQUARE", "EXP", "LOGISTIC", "RELU"))
        source = self.bounded(x) if kind == "EXP" else x
        y = self.one(f"{kind}({source.name})") if source else None
        return self.one(f"ADD({y.name}, {self.constant([], 0.1)})") if y else None

    def bounded(self, x: Value) -> Value | None:
        """Something whose exponential is far from overflow, the place of which any rewrite moves."""
        return self.one(f"{self.rnd.choice(('TANH', 'LOGISTIC', 'RELU6', 'RELU_N1_TO_1'))}({x.name})")

    def unary(self, x: Value) -> Value | None:
        kind = self.rnd.choice(UNARY if self.rnd.random() < 0.5 else MILD)
        source: Value | None = x
        if kind in ("LOG", "SQRT", "RSQRT"):
            source = self.positive(x)
        elif kind == "EXP":
            source = self.bounded(x)
        return self.one(f"{kind}({source.name})") if source else None

    def leaky(self, x: Value) -> Value | None:
        return self.one(f"LEAKY_RELU({x.name})", f"alpha={self.rnd.choice((0.1, 0.2, 1.5, -0.5))}")

    def softmax(self, x: Value) -> Value | None:
        return self.one(f"{self.rnd.choice(('SOFTMAX', 'LOG_SOFTMAX', 'L2_NORMALIZATION'))}({x.name})")

    def broadcastable(self, x: Value) -> list[int]:
        """The shape of a constant that can be combined with a value, perhaps one that makes the result larger."""
        rnd, shape = self.rnd, [abs(d) if d > 0 else 1 for d in x.shape]
        choice = rnd.randrange(9)
        if choice == 0 or not shape:
            return []
        if choice == 1:
            return [1]
        if choice in (2, 3, 4):
            return [shape[-1]]
        if choice == 5:
            return [1] * (len(shape) - 1) + [shape[-1]]
        if choice == 6:
            return [1, *shape] if len(shape) < 4 and rnd.random() < 0.5 else shape
        if choice == 7:
            return [d if rnd.random() < 0.5 else 1 for d in shape]
        return [d if d > 1 or rnd.random() < 0.7 else 2 for d in shape]

    def binary(self, x: Value) -> Value | None:
        rnd = self.rnd
        kind = rnd.choice(["ADD", "ADD", "MUL", "MUL", "SUB", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"])
        others = [v for v in self.values if v.real]
        left, right = x.name, ""
        if kind == "DIV":
            if rnd.random() < 0.4:
                divisor = self.positive(rnd.choice(others))
                if divisor is None:
                    return None
                right = divisor.name
                left = left if rnd.random() < 0.7 else self.constant([])
            else:
                shape = self.broadcastable(x)
                right = self.constant(shape, rnd.choice((2.0, 6.0, -1.0, 0.1, None, None)))
                right = right.replace("=0.0", "=3.0").replace("=-0.0", "=-3.0")
        else:
            right = rnd.choice(others).name if rnd.random() < 0.35 else self.constant(self.broadcastable(x))
            if rnd.random() < 0.25:
                left, right = right, left
        activation = rnd.choice(ACTIVATIONS) if kind in ("ADD", "MUL", "SUB", "DIV") else ""
        return self.one(f"{kind}({left}, {right})", self.options(activation=activation))

    def power(self, x: Value) -> Value | None:
        exponent = self.rnd.choice((2.0, 3.0, 0.5, -0.5, 1.0, 1.5, -1.0))
        source = x if exponent in (1.0, 2.0, 3.0) else self.positive(x)
        return self.one(f"POW({source.name}, {self.constant([], exponent)})") if source else None

    def window(self) -> dict[str, object]:
        rnd = self.rnd
        return {"stride": rnd.choice(("", "", 2)), "padding": rnd.choice(("SAME", "VALID"))}

    def conv(self, x: Value) -> Value | None:
        if len(x.shape) != 4:
            return None
        rnd, channels = self.rnd, x.shape[-1]
        k = [rnd.choice((1, 1, 2, 3)) for _ in range(2)]
        window = self.window()
        if rnd.random() < 0.2:
            window |= {"stride": "", "dilation": 2}
        window["activation"] = rnd.choice(ACTIVATIONS)
        if rnd.random() < 0.6:
            groups = 1 if channels % 2 or rnd.random() < 0.85 else 2
            out = rnd.choice((1, 2, 4, 6)) * groups
            weights = self.constant([out, *k, channels // groups])
            bias = f", {self.constant([out])}" if rnd.random() < 0.7 else ""
            return self.one(f"CONV_2D({x.name}, {weights}{bias})", self.options(**window))
        multiplier = rnd.choice((1, 1, 2))
        weights = self.constant([1, *k, channels * multiplier])
        bias = f", {self.constant([channels * multiplier])}"  # XNNPACK crashes without it
        options = self.options(**window, depth_multiplier=multiplier)
        return self.one(f"DEPTHWISE_CONV_2D({x.name}, {weights}{bias})", options)

    def transpose_conv(self, x: Value) -> Value | None:
        if len(x.shape) != 4 or x.shape[0] < 0:
            return None
        rnd = self.rnd
        n, h, w, c = x.shape
        s, k, out = rnd.choice((1, 2)), rnd.choice((1, 2, 3)), rnd.choice((1, 2, 4))
        same = rnd.random() < 0.5
        size = [h * s, w * s] if same else [h * s + max(k - s, 0), w * s + max(k - s, 0)]
        bias = f", {self.constant([out])}" if rnd.random() < 0.6 else ""
        call = f"TRANSPOSE_CONV@3({self.integers(n, *size, out)}, {self.constant([out, k, k, c])}, {x.name}{bias})"
        return self.one(call, self.options(stride=s, padding="SAME" if same else "VALID"))

    def fc(self, x: Value) -> Value | None:
        if len(x.shape) < 2:
            return None
        rnd = self.rnd
        out = rnd.choice((1, 3, 4, 8))
        bias = self.constant([out]) if rnd.random() < 0.7 else "_"
        keep = "true" if len(x.shape) != 2 or rnd.random() < 0.2 else ""
        options = self.options(activation=rnd.choice(ACTIVATIONS), keep_num_dims=keep)
        return self.one(f"FULLY_CONNECTED({x.name}, {self.constant([out, x.shape[-1]])}, {bias})", options)

    def batch_matmul(self, x: Value) -> Value | None:
        if len(x.shape) < 2:
            return None
        rnd = self.rnd
        adjoint = rnd.random() < 0.3
        k, n = x.shape[-1], rnd.choice((1, 3, 4))
        batch = [abs(d) for d in x.shape[:-2]] if rnd.random() < 0.3 and x.shape[0] > 0 else []
        weights = self.constant([*batch, n, k] if adjoint else [*batch, k, n])
        return self.one(f"BATCH_MATMUL({x.name}, {weights})", "adj_y=true" if adjoint else "")

    def pool(self, x: Value) -> Value | None:
        if len(x.shape) != 4:
            return None
        kind = self.rnd.choice(("AVERAGE_POOL_2D", "MAX_POOL_2D"))
        options = self.options(
            filter=self.rnd.choice((1, 2, 3)), activation=self.rnd.choice(ACTIVATIONS[2:]), **self.window()
        )
        return self.one(f"{kind}({x.name})", options)

    # -- operators on anything ---------------------------------------------------------------------------------

    def pad(self, x: Value) -> Value | None:
        rnd, rank = self.rnd, len(x.shape)
        if not rank:
            return None
        amounts = []
        for axis in range(rank):
            inside = 0 < axis < rank - 1 if rank == 4 and rnd.random() < 0.8 else rnd.random() < 0.4 and axis > 0
            amounts += [rnd.choice((0, 1, 1, 2)), rnd.choice((0, 1, 1, 2))] if inside else [0, 0]
        paddings = self.integers(*amounts, shape=[rank, 2])
        choice = rnd.random()
        if choice < 0.15 and x.real:
            return self.one(f"PADV2({x.name}, {paddings}, {self.constant([])})")
        if choice < 0.3:
            return self.one(f"MIRROR_PAD({x.name}, {paddings})", f"mode={rnd.choice(('REFLECT', 'SYMMETRIC'))}")
        return self.one(f"PAD({x.name}, {paddings})")

    def reduce(self, x: Value) -> Value | None:
        rnd, rank = self.rnd, len(x.shape)
        if not rank:
            return None
        axes = (
            [1, 2] if rank == 4 and rnd.random() < 0.5 else [a for a in range(rank) if rnd.random() < 0.4] or [rank - 1]
        )
        if rnd.random() < 0.2:
            axes = [a - rank for a in axes]
        kinds = ("MEAN", "SUM", "REDUCE_MAX") if x.real else ("MEAN", "REDUCE_MAX", "REDUCE_MIN")
        kind = rnd.choice(kinds)
        type = self.annotated(x, kind) if not x.real and kind == "MEAN" else ""
        if type:
            return None
        return self.one(f"{kind}({x.name}, {self.integers(*axes)})", rnd.choice(("keep_dims=true", "")))

    def reshape(self, x: Value) -> Value | None:
        rnd = self.rnd
        shape = list(x.shape)
        dynamic = bool(shape) and shape[0] < 0
        rest = shape[1:] if dynamic else shape
        new = list(rest)
        for _ in range(rnd.choice((1, 1, 2))):
            move = rnd.randrange(4)
            if move == 0 and len(new) >= 2:
                i = rnd.randrange(len(new) - 1)
                new[i : i + 2] = [new[i] * new[i + 1]]
            elif move == 1:
                new.insert(rnd.randrange(len(new) + 1), 1)
            elif move == 2 and 1 in new:
                new.remove(1)
            elif new:
                i = rnd.randrange(len(new))
                for f in (2, 3):
                    if new[i] % f == 0 and new[i] > f:
                        new[i : i + 1] = [new[i] // f, f]
                        break
        if len(new) > 4 or (dynamic and len(new) > 3):
            return None
        target = [-1, *new] if dynamic else new
        if not target:
            return None
        return self.one(f"RESHAPE({x.name}, {self.integers(*target)})")

    def transpose(self, x: Value) -> Value | None:
        order = list(range(len(x.shape)))
        if len(order) < 2:
            return None
        if len(order) == 4 and self.rnd.random() < 0.6:
            order = self.rnd.choice(([0, 3, 1, 2], [0, 2, 3, 1]))
        else:
            self.rnd.shuffle(order)
        if x.shape[0] < 0 and order[0] != 0:
            return None
        return self.one(f"TRANSPOSE({x.name}, {self.integers(*order)})")

    def slice(self, x: Value) -> Value | None:
        rnd, rank = self.rnd, len(x.shape)
        if not rank:
            return None
        begin, size = [0] * rank, [-1 if d < 0 else d for d in x.shape]
        for axis in range(rank):
            if x.shape[axis] > 1 and rnd.random() < 0.4:
                begin[axis] = rnd.randrange(x.shape[axis])
                size[axis] = rnd.randint(1, x.shape[axis] - begin[axis])
        if rnd.random() < 0.5:
            return self.one(f"SLICE({x.name}, {self.integers(*begin)}, {self.integers(*size)})")
        end = [b + s if s > 0 else 0 for b, s in zip(begin, size, strict=True)]
        strides = [rnd.choice((1, 1, 1, 2)) if d > 2 else 1 for d in x.shape]
        masks = {"end_mask": sum(1 << i for i, s in enumerate(size) if s < 0) or ""}
        if rnd.random() < 0.2 and rank > 1:
            axis = rnd.randrange(1, rank)
            masks["shrink_axis_mask"] = 1 << axis
            end[axis], strides[axis] = begin[axis] + 1, 1
        bounds = ", ".join(self.integers(*v) for v in (begin, end, strides))
        return self.one(f"STRIDED_SLICE({x.name}, {bounds})", self.options(**masks))

    def split(self, x: Value) -> Value | None:
        rnd = self.rnd
        axes = [(a, n) for a, d in enumerate(x.shape) for n in (2, 3) if d > 1 and d % n == 0]
        if not axes:
            return None
        axis, n = rnd.choice(axes)
        made = self.put(f"SPLIT(i32[]={axis}, {x.name})", outputs=n)
        if made and rnd.random() < 0.4:
            parts = list(made)
            if rnd.random() < 0.3:
                rnd.shuffle(parts)
            return self.one(f"CONCATENATION({', '.join(p.name for p in parts)})", f"axis={axis}")
        return made[0] if made else None

    def concat(self, x: Value) -> Value | None:
        rnd = self.rnd
        if not x.shape:
            return None
        same = [v for v in self.values if v.type == x.type and len(v.shape) == len(x.shape)]
        axis = rnd.choice((len(x.shape) - 1, rnd.randrange(len(x.shape))))
        fitting = [v for v in same if v.shape[:axis] + v.shape[axis + 1 :] == x.shape[:axis] + x.shape[axis + 1 :]]
        parts = [x, *(rnd.choice(fitting) for _ in range(rnd.choice((1, 1, 2))))]
        rnd.shuffle(parts)
        if any(p.shape[axis] < 0 for p in parts):
            return None
        names = [p.name for p in parts]
        if x.real and rnd.random() < 0.1 and x.shape[0] > 0:
            names.append(self.constant(x.shape))
        return self.one(f"CONCATENATION({', '.join(names)})", f"axis={axis}")

    def pack(self, x: Value) -> Value | None:
        rnd = self.rnd
        if len(x.shape) > 3 or (x.shape and x.shape[0] < 0):
            return None
        same = [v for v in self.values if (v.type, v.shape) == (x.type, x.shape)]
        parts = [x, *(rnd.choice(same) for _ in range(rnd.choice((0, 1, 2))))]
        axis = rnd.randrange(len(x.shape) + 1)
        return self.one(f"PACK({', '.join(p.name for p in parts)})", f"axis={axis}")

    def unpack(self, x: Value) -> Value | None:
        axes = [a for a, d in enumerate(x.shape) if 1 <= d <= 3]
        if not axes:
            return None
        axis = self.rnd.choice(axes)
        made = self.put(f"UNPACK({x.name})", f"axis={axis}", outputs=x.shape[axis])
        if made and self.rnd.random() < 0.3:
            return self.one(f"PACK({', '.join(m.name for m in made)})", f"axis={axis}")
        return made[0] if made else None

    def gather(self, x: Value) -> Value | None:
        rnd = self.rnd
        if not x.shape:
            return None
        axis = rnd.randrange(len(x.shape))
        if x.shape[axis] < 0:
            return None
        start, count = rnd.randrange(x.shape[axis]), rnd.randint(1, 3)
        places = [(start + i) % x.shape[axis] for i in range(count)]
        indices = f"i32[]={start}" if rnd.random() < 0.2 else self.integers(*places)
        return self.one(f"GATHER({x.name}, {indices})", f"axis={axis}")

    def misc(self, x: Value) -> Value | None:
        rnd, rank = self.rnd, len(x.shape)
        choice = rnd.randrange(5)
        if choice == 0:
            axis = rnd.randint(0 if not x.shape or x.shape[0] > 0 else 1, rank)
            return self.one(f"EXPAND_DIMS({x.name}, i32[]={axis})") if rank < 4 else None
        if choice == 1:
            axes = [a for a, d in enumerate(x.shape) if d == 1]
            return self.one(f"SQUEEZE({x.name})", f"squeeze_dims=({axes[0]})") if axes else None
        if choice == 2 and rank == 4:
            size = self.integers(x.shape[1] * 2, x.shape[2] * 2)
            return self.one(f"RESIZE_NEAREST_NEIGHBOR({x.name}, {size})")
        if choice == 3 and rank == 4:
            block = rnd.choice((1, 2))
            return self.one(f"{rnd.choice(('SPACE_TO_DEPTH', 'DEPTH_TO_SPACE'))}({x.name})", f"block_size={block}")
        if rank:
            times = [rnd.choice((1, 1, 2)) for _ in range(rank)]
            return self.one(f"TILE({x.name}, {self.integers(*times)})")
        return None

    # -- quantised ---------------------------------------------------------------------------------------------

    def annotated(self, x: Value, kind: str) -> str:
        """The type of a result of the shape of ``x``, with other parameters."""
        dims = ",".join("?" if d < 0 else str(d) for d in x.shape)
        head = x.type.partition("{")[0]
        scale, zero = self.rnd.choice(((0.05, 0), (0.1, -5), (0.03, 7)))
        if head == "i16":
            zero = 0
        if kind == "LOGISTIC":
            scale, zero = 1 / 256, -128 if head == "i8" else 0
        elif kind == "TANH":
            scale, zero = 1 / 128, 0 if head == "i8" else 128
        return f"{head}[{dims}]{{scale={scale}, zero={zero}}}"

    def quantize(self, x: Value) -> Value | None:
        dims = ",".join("?" if d < 0 else str(d) for d in x.shape)
        scale, zero = self.rnd.choice(((0.05, 0), (0.1, -5), (0.03, 7)))
        return self.one(f"QUANTIZE({x.name})", type=f"i8[{dims}]{{scale={scale}, zero={zero}}}")

    def fake(self, x: Value) -> Value | None:
        """QUANTIZE and DEQUANTIZE."""
        q = self.quantize(x)
        return self.one(f"DEQUANTIZE({q.name})") if q else None

    def dequantize(self, x: Value) -> Value | None:
        return self.one(f"DEQUANTIZE({x.name})")

    def quantized_unary(self, x: Value) -> Value | None:
        kind = self.rnd.choice(
            ["QUANTIZE", "QUANTIZE", "RELU", "RELU6", "LOGISTIC", "TANH", "HARD_SWISH", "LEAKY_RELU", "RELU_N1_TO_1"]
        )
        options = "alpha=0.2" if kind == "LEAKY_RELU" else ""
        return self.one(f"{kind}({x.name})", options, type=self.annotated(x, kind))

    def quantized_binary(self, x: Value) -> Value | None:
        rnd = self.rnd
        same = [v for v in self.values if not v.real and v.shape == x.shape and v.type[:2] == x.type[:2]]
        kind = rnd.choice(("ADD", "MUL", "SUB"))
        if rnd.random() < 0.5:
            other = rnd.choice(same).name
        else:
            self.constants += 1
            shape = rnd.choice(("", str(x.shape[-1]) if x.shape else ""))
            other = f"c{self.constants}:i8[{shape}]{{scale=0.02, zero={rnd.choice((0, 3))}}}"
            if rnd.random() < 0.4:
                other += f"={rnd.choice((1, 50, 127, 0, 3))}"
        return self.one(
            f"{kind}({x.name}, {other})",
            self.options(activation=rnd.choice(ACTIVATIONS)),
            type=self.annotated(x, kind),
        )

    def quantized_conv(self, x: Value) -> Value | None:
        rnd = self.rnd
        if len(x.shape) not in (2, 4) or not x.type.startswith("i8{"):
            return None
        scale = float(x.type.partition("scale=")[2].partition(",")[0])
        out, channels = rnd.choice((2, 4)), x.shape[-1]
        self.constants += 1
        n = self.constants
        if len(x.shape) == 2:
            weights = f"c{n}:i8[{out},{channels}]{{scale=0.01}}"
            bias = f"b{n}:i32[{out}]{{scale={scale * 0.01!r}}}"
            kind, options, shape = "FULLY_CONNECTED", {}, [x.shape[0], out]
        else:
            ws = [round(0.01 + 0.003 * i, 4) for i in range(out)]
            weights = f"c{n}:i8[{out},1,1,{channels}]{{scale=({', '.join(map(str, ws))})}}"
            bias = f"b{n}:i32[{out}]{{scale=({', '.join(repr(scale * w) for w in ws)})}}"
            kind, options, shape = "CONV_2D", {"padding": "VALID"}, [*x.shape[:3], out]
        options["activation"] = rnd.choice(ACTIVATIONS)
        bias = "" if rnd.random() < 0.3 else f", {bias}"
        result = self.annotated(x._replace(shape=tuple(shape)), kind)
        return self.one(f"{kind}({x.name}, {weights}{bias})", self.options(**options), type=result)

    # -- spelled-out functions ---------------------------------------------------------------------------------

    def chain(self, x: Value, *steps: Callable[[Value], str]) -> Value | None:
        current: Value | None = x
        for step in steps:
            current = self.one(step(current)) if current else None
        return current

    def hard_swish(self, x: Value) -> Value | None:
        rnd = self.rnd
        sixth = rnd.choice((f"DIV({{}}, {self.constant([], 6.0)})", f"MUL({{}}, {self.constant([], 0.16666667)})"))
        y = self.chain(x, lambda v: f"ADD({v.name}, {self.constant([], 3.0)})", lambda v: f"RELU6({v.name})")
        if y is None:
            return None
        if rnd.random() < 0.5:
            y = self.one(f"MUL({x.name}, {y.name})")
            return self.one(sixth.format(y.name)) if y else None
        y = self.one(sixth.format(y.name))
        return self.one(f"MUL({y.name}, {x.name})") if y and rnd.random() < 0.7 else y

    def gelu(self, x: Value) -> Value | None:
        cube = self.one(f"POW({x.name}, {self.constant([], 3.0)})")
        if cube is None:
            return None
        t = self.chain(
            cube,
            lambda v: f"MUL({v.name}, {self.constant([], 0.044715)})",
            lambda v: f"ADD({x.name}, {v.name})",
            lambda v: f"MUL({v.name}, {self.constant([], 0.7978846)})",
            lambda v: f"TANH({v.name})",
            lambda v: f"ADD({v.name}, {self.constant([], 1.0)})",
        )
        half = self.one(f"MUL({x.name}, {self.constant([], 0.5)})")
        return self.one(f"MUL({half.name}, {t.name})") if half and t else None

    def gelu_error_function(self, x: Value) -> Value | None:
        return self.chain(
            x,
            lambda v: f"MUL({v.name}, {self.constant([], 1.702)})",
            lambda v: f"LOGISTIC({v.name})",
            lambda v: f"MUL({x.name}, {v.name})",
        )

    def hand_softmax(self, x: Value) -> Value | None:
        if not x.shape:
            return None
        axis = self.integers(self.rnd.choice((-1, len(x.shape) - 1, 1 if len(x.shape) > 1 else 0)))
        start: Value | None = x
        if self.rnd.random() < 0.7:
            top = self.one(f"REDUCE_MAX({x.name}, {axis})", "keep_dims=true")
            start = self.one(f"SUB({x.name}, {top.name})") if top else None
        power = self.one(f"EXP({start.name})") if start else None
        total = self.one(f"SUM({power.name}, {axis})", "keep_dims=true") if power else None
        return self.one(f"DIV({power.name}, {total.name})") if power and total else None

    def layer_norm(self, x: Value) -> Value | None:
        rnd = self.rnd
        if len(x.shape) < 2:
            return None
        axis = self.integers(rnd.choice((-1, len(x.shape) - 1)))
        mean = self.one(f"MEAN({x.name}, {axis})", "keep_dims=true")
        centred = (
            self.one(f"{rnd.choice(('SUB', 'SUB', 'SQUARED_DIFFERENCE'))}({x.name}, {mean.name})") if mean else None
        )
        if centred is None:
            return None
        squared = centred if "SQUARED" in self.lines[-1] else self.one(f"SQUARE({centred.name})")
        variance = self.one(f"MEAN({squared.name}, {axis})", "keep_dims=true") if squared else None
        if variance is None or mean is None:
            return None
        root = self.chain(
            variance, lambda v: f"ADD({v.name}, {self.constant([], 0.001)})", lambda v: f"RSQRT({v.name})"
        )
        if root is None:
            return None
        difference = self.one(f"SUB({x.name}, {mean.name})")
        normal = self.one(f"MUL({difference.name}, {root.name})") if difference else None
        return self.affine(normal) if normal and rnd.random() < 0.7 else normal

    def affine(self, x: Value) -> Value | None:
        if not x.shape:
            return None
        c = [x.shape[-1]] if x.shape[-1] > 0 else [1]
        kinds = ("MUL", "ADD") if self.rnd.random() < 0.7 else ("SUB", "MUL")
        return self.chain(x, *(lambda v, k=k: f"{k}({v.name}, {self.constant(c)})" for k in kinds))

    def conv_norm(self, x: Value) -> Value | None:
        """A convolution or matrix product with a normalisation before or behind it."""
        product = self.rnd.choice((self.conv, self.fc, self.conv))
        if self.rnd.random() < 0.4:
            y = self.affine(x)
            return product(y) if y else None
        y = product(x)
        y = self.affine(y) if y else None
        return self.one(f"RELU({y.name})") if y and self.rnd.random() < 0.5 else y

    def dilated(self, x: Value) -> Value | None:
        """SPACE_TO_BATCH_ND, a convolution, BATCH_TO_SPACE_ND."""
        if len(x.shape) != 4 or x.shape[0] < 0 or x.shape[1] % 2 or x.shape[2] % 2:
            return None
        p = self.rnd.choice((0, 2))
        paddings = self.integers(p, p, p, p, shape=[2, 2])
        y = self.one(f"SPACE_TO_BATCH_ND({x.name}, {self.integers(2, 2)}, {paddings})")
        y = self.conv(y) if y and self.rnd.random() < 0.8 else y
        if y is None:
            return None
        crops = self.integers(0, 0, 0, 0, shape=[2, 2])
        return self.one(f"BATCH_TO_SPACE_ND({y.name}, {self.integers(2, 2)}, {crops})")

    def softplus(self, x: Value) -> Value | None:
        return self.chain(
            x,
            lambda v: f"EXP({v.name})",
            lambda v: f"ADD({v.name}, {self.constant([], 1.0)})",
            lambda v: f"LOG({v.name})",
        )

    def hand_sigmoid(self, x: Value) -> Value | None:
        return self.chain(
            x,
            lambda v: f"NEG({v.name})",
            lambda v: f"EXP({v.name})",
            lambda v: f"ADD({v.name}, {self.constant([], 1.0)})",
            lambda v: f"DIV({self.constant([], 1.0)}, {v.name})",
        )

    def clamp(self, x: Value) -> Value | None:
        low, high = self.rnd.choice(((0.0, 6.0), (-1.0, 1.0), (0.0, 1.0), (-2.0, 3.0), (1.0, 0.0)))
        steps = [f"MAXIMUM({{}}, {self.constant([], low)})", f"MINIMUM({{}}, {self.constant([], high)})"]
        self.rnd.shuffle(steps)
        return self.chain(x, *(lambda v, s=s: s.format(v.name) for s in steps))

    def twins(self, x: Value) -> Value | None:
        """Two products of one value, put side by side."""
        product = self.rnd.choice((self.fc, self.conv))
        a, b = product(x), product(x)
        if a and b and a.shape[:-1] == b.shape[:-1] and self.rnd.random() < 0.6:
            return self.one(f"CONCATENATION({a.name}, {b.name})", f"axis={len(a.shape) - 1}")
        return a

    def there_and_back(self, x: Value) -> Value | None:
        """Something between two transpositions that cancel."""
        if len(x.shape) != 4:
            return None
        y = self.one(f"TRANSPOSE({x.name}, {self.integers(0, 3, 1, 2)})")
        between = (self.unary, self.binary, self.reduce, self.pad, self.split, self.concat, self.slice, self.softmax)
        y = self.rnd.choice(between)(y) if y else None
        return self.one(f"TRANSPOSE({y.name}, {self.integers(0, 2, 3, 1)})") if y and len(y.shape) == 4 else y

    # -- the whole ---------------------------------------------------------------------------------------------

    def grow(self) -> None:
        x = self.pick()
        if x is None:
            return
        rnd = self.rnd
        anything = (self.pad, self.reduce, self.reshape, self.transpose, self.slice, self.split, self.concat)
        anything += (self.pack, self.unpack, self.gather, self.misc, self.reshape, self.transpose, self.pool)
        if not x.real:
            own = (self.dequantize, self.quantized_unary, self.quantized_binary, self.quantized_conv)
            rnd.choice(own if rnd.random() < 0.7 else anything)(x)
            return
        plain = (self.unary, self.unary, self.binary, self.binary, self.binary, self.conv, self.conv, self.fc)
        plain += (self.transpose_conv, self.batch_matmul, self.power, self.leaky, self.softmax)
        spelled = (self.hard_swish, self.gelu, self.gelu_error_function, self.hand_softmax, self.layer_norm)
        spelled += (self.affine, self.affine, self.conv_norm, self.conv_norm, self.dilated, self.softplus, self.clamp)
        spelled += (self.hand_sigmoid, self.twins, self.there_and_back, self.there_and_back)
        choice = rnd.random()
        if choice < 0.4:
            rnd.choice(plain)(x)
        elif choice < 0.62:
            rnd.choice(anything)(x)
        elif choice < 0.95:
            rnd.choice(spelled)(x)
        else:
            rnd.choice((self.quantize, self.fake))(x)

    def text(self) -> str:
        """The graph: everything that nothing reads is an output, and sometimes something else too."""
        rnd = self.rnd
        names = {name for line in self.lines for name in re.findall(r"%\w+", line.partition(" = ")[2])}
        ends = [v for v in self.values if v not in self.inputs and v.name not in names]
        inner = [v for v in self.values if v not in self.inputs and v.name in names]
        outputs = ends[-3:]
        if inner and rnd.random() < 0.25:
            outputs.append(rnd.choice(inner))
        known = ", ".join(v.declared for v in self.inputs)
        body = "\n".join(f"  {line}" for line in self.lines)
        return f"graph main({known}) {{\n{body}\n  return {', '.join(v.name for v in outputs)}\n}}\n"


def random_graph(rnd: random.Random, most: int = 7) -> str:
    """A graph of some operators, as text."""
    maker = Maker(rnd)
    batch = rnd.choice((1, 1, 1, 2, 3, -1))
    shapes = (
        (batch, 6, 6, 4),
        (batch, 5, 7, 3),
        (batch, 4, 4, 2),
        (batch, 8),
        (batch, 6, 8),
        (batch, 1, 1, 4),
        (batch, 4, 1, 3),
    )
    shape = rnd.choice(shapes)
    quantized = rnd.random() < 0.15
    type = "i8{scale=0.05, zero=3}" if quantized else "f32"
    maker.inputs.append(Value("%x", shape, type))
    if rnd.random() < 0.3:
        maker.inputs.append(Value("%y", shape, type))
    maker.values += maker.inputs
    for _ in range(rnd.randint(1, most)):
        maker.grow()
    for _ in range(8):
        if maker.lines:
            break
        maker.grow()
    if not maker.lines:
        maker.one("ABS(%x)") if not quantized else maker.one("DEQUANTIZE(%x)")
    return maker.text()
