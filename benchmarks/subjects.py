"""What `vs_xnnpack.py` and `arm_counts.py` measure: whole models, and small ones that are a single region each."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from keras_models import NAMES, directory

from litefuse.errors import UsageError
from litefuse.graph.build import Builder
from litefuse.schema import Model
from litefuse.schema.enums import ActivationFunctionType as Activation
from litefuse.schema.operators import Op

# Ratios that are to be reached with one thread.
_GOALS = {
    "MobileNetV2": 0.90,
    "EfficientNetV2B0": 0.80,
    "ConvNeXtTiny": 0.65,
    "ResNet50V2": 0.87,
    "DenseNet121": 0.87,
    "MobileNetV3Small": 0.85,
    "expo_mtcnn_pnet": 0.42,
    "pefm_hourglass_v2": 0.80,
    "mp_palm_lite": 0.82,
    "fdt_face_full_range": 0.90,
    "mp_pose_det": 0.90,
    "mp_face_landmark": 0.90,
    "tfls_deeplabv3_meta": 0.90,
    "basic_pitch_nmp": 0.90,
    "gles_style_transfer_f16": 0.45,
}
_CORPUS_GOAL = 1.05  # what no other file of the corpus may exceed


class Subject(NamedTuple):
    """Something to measure: a file, or a model that a function builds."""

    name: str
    group: str
    """`networks`, `files`, or the kind of region."""
    path: str | None = None
    build: functools.partial[Model] | None = None
    goal: float | None = None
    """The ratio that is to be reached."""


def files(paths: Sequence[Path]) -> list[Subject]:
    """These files."""
    return [Subject(path.stem, "files", os.fspath(path), goal=_GOALS.get(path.stem)) for path in paths]


def whole(models: Path | None = None) -> list[Subject]:
    """The Keras networks, and the real models for which there are goals.

    The latter are looked for in the directory that LITEFUSE_CORPUS names, and left out without that.
    """
    networks = [
        Subject(name, "networks", os.fspath(directory(models) / f"{name}.tflite"), goal=_GOALS[name]) for name in NAMES
    ]
    names = [name for name in _GOALS if name not in NAMES] if os.environ.get("LITEFUSE_CORPUS") else []
    return networks + files([_corpus() / f"{name}.tflite" for name in names])


def corpus() -> list[Subject]:
    """Every file of the corpus."""
    found = files(sorted(_corpus().glob("*.tflite")))
    return [subject._replace(goal=subject.goal or _CORPUS_GOAL) for subject in found]


def _corpus() -> Path:
    where = os.environ.get("LITEFUSE_CORPUS")
    if not where:
        raise UsageError("LITEFUSE_CORPUS names no directory with `models/*.tflite`")
    return Path(where) / "models"


# -- small models ----------------------------------------------------------------------------------------------------


class Net(Builder):
    """A builder that knows layers, with random weights of a size that keeps values about one."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.shape = (1, *shape)
        self.x = self.input("x", self.shape)

    def weights(self, *shape: int, fan: int = 1, mean: float = 0.0) -> int:
        """Random constants of a deviation of 1 / sqrt(fan)."""
        value = self.rng.standard_normal(shape) / math.sqrt(fan) + mean
        return self.constant(f"w{len(self._subgraph.tensors)}", value.astype(np.float32))

    def conv(self, x: int, c: int, n: int, k: int = 1, act: str = "NONE") -> int:
        """A convolution of c into n channels with a window of k."""
        inputs = [x, self.weights(n, k, k, c, fan=k * k * c), self.weights(n, fan=100)]
        return self.op(Op.CONV_2D, inputs, fused_activation_function=Activation[act])

    def depthwise(self, x: int, c: int, k: int = 3, act: str = "NONE", stride: int = 1) -> int:
        """A depthwise convolution."""
        inputs = [x, self.weights(1, k, k, c, fan=k * k), self.weights(c, fan=100)]
        return self.op(
            Op.DEPTHWISE_CONV_2D,
            inputs,
            fused_activation_function=Activation[act],
            stride_w=stride,
            stride_h=stride,
        )

    def dense(self, x: int, c: int, n: int, act: str = "NONE") -> int:
        """A matrix product with weights, over the last axis."""
        inputs = [x, self.weights(n, c, fan=c), self.weights(n, fan=100)]
        return self.op(Op.FULLY_CONNECTED, inputs, fused_activation_function=Activation[act], keep_num_dims=True)

    def act(self, x: int, name: str, c: int) -> int:
        """An activation as an operator, or as the operators that converters write."""
        if name == "silu":
            return self.op(Op.MUL, [x, self.op(Op.LOGISTIC, [x])])
        if name == "prelu":
            return self.op(Op.PRELU, [x, self.weights(1, 1, c, fan=16, mean=0.25)])
        if name == "leaky_relu":
            return self.op(Op.LEAKY_RELU, [x], alpha=0.1)
        if name == "gelu_tanh":
            return self.op(Op.GELU, [x], approximate=True)
        return self.op(getattr(Op, name.upper()), [x])

    def mean(self, x: int, *axes: int) -> int:
        """The mean over axes, which stay with a size of one."""
        return self.op(Op.MEAN, [x, self.constant("axes", list(axes))], keep_dims=True)

    def norm(self, x: int, c: int, *axes: int) -> int:
        """Normalisation by mean and variance, then scale and shift, as Keras writes it."""
        mean = self.mean(x, *axes)
        variance = self.mean(self.op(Op.SQUARED_DIFFERENCE, [x, mean]), *axes)
        inverse = self.op(Op.RSQRT, [self.op(Op.ADD, [variance, self.constant("epsilon", 1e-3)])])
        scale = self.op(Op.MUL, [inverse, self.weights(c, fan=16, mean=1.0)])
        shift = self.op(Op.SUB, [self.weights(c, fan=16), self.op(Op.MUL, [mean, scale])])
        return self.op(Op.ADD, [self.op(Op.MUL, [x, scale]), shift])

    def scaled(self, x: int, c: int, act: str = "RELU") -> int:
        """Batch normalisation that nothing before it can take in, then an activation."""
        by = self.op(Op.MUL, [x, self.weights(c, fan=16, mean=1.0)])
        return self.op(Op.ADD, [by, self.weights(c, fan=16)], fused_activation_function=Activation[act])

    def squeezed(self, x: int, c: int, r: int) -> int:
        """Squeeze-and-excite with r channels inside."""
        small = self.conv(self.conv(self.mean(x, 1, 2), c, r, act="RELU"), r, c)
        return self.op(Op.MUL, [x, self.op(Op.LOGISTIC, [small])])


def _inverted(size: int, c: int, wide: int, n: int, stride: int = 1) -> Model:
    net = Net(size, size, c)
    y = net.depthwise(net.conv(net.x, c, wide, act="RELU6"), wide, 3, "RELU6", stride)
    y = net.conv(y, wide, n)
    return net.model([net.op(Op.ADD, [net.x, y]) if stride == 1 and c == n else y])


def _separable(size: int, c: int, n: int, k: int = 3, stride: int = 1, residual: bool = False) -> Model:
    net = Net(size, size, c)
    inner = "NONE" if residual else "RELU6"
    y = net.conv(net.depthwise(net.x, c, k, inner, stride), c, n, act=inner)
    return net.model([net.op(Op.ADD, [net.x, y], fused_activation_function=Activation.RELU) if residual else y])


def _norm(shape: Sequence[int], *axes: int) -> Model:
    net = Net(*shape)
    return net.model([net.norm(net.x, shape[-1], *axes)])


def _rms_norm(*shape: int) -> Model:
    net = Net(*shape)
    square = net.mean(net.op(Op.MUL, [net.x, net.x]), len(shape))
    inverse = net.op(Op.RSQRT, [net.op(Op.ADD, [square, net.constant("epsilon", 1e-3)])])
    y = net.op(Op.MUL, [net.op(Op.MUL, [net.x, inverse]), net.weights(shape[-1], fan=16, mean=1.0)])
    return net.model([y])


def _depthwise(size: int, c: int, k: int, act: str = "NONE", stride: int = 1) -> Model:
    net = Net(size, size, c)
    return net.model([net.depthwise(net.x, c, k, act, stride)])


def _activated(size: int, c: int, n: int, k: int, act: str) -> Model:
    net = Net(size, size, c)
    y = net.conv(net.x, c, n, k)
    if act == "residual":
        other = net.input("other", [1, size, size, n])
        return net.model([net.op(Op.ADD, [y, other], fused_activation_function=Activation.RELU)])
    return net.model([net.act(y, act, n)])


def _conv3(size: int, c: int, n: int) -> Model:
    net = Net(size, size, c)
    return net.model([net.conv(net.x, c, n, 3, "RELU")])


def _pre_activated(size: int, c: int, n: int, k: int) -> Model:
    net = Net(size, size, c)
    return net.model([net.conv(net.scaled(net.x, c), c, n, k)])


def _convnext(size: int, c: int) -> Model:
    net = Net(size, size, c)
    y = net.norm(net.depthwise(net.x, c, 7), c, 3)
    y = net.dense(net.op(Op.GELU, [net.dense(y, c, 4 * c)]), 4 * c, c)
    y = net.op(Op.MUL, [y, net.weights(c, fan=16)])
    return net.model([net.op(Op.ADD, [net.x, y])])


def _squeezed(size: int, c: int, r: int, n: int = 0) -> Model:
    net = Net(size, size, c)
    y = net.squeezed(net.x, c, r)
    return net.model([net.conv(y, c, n) if n else y])


def _softmax(*shape: int, axis: int = -1) -> Model:
    net = Net(*shape)
    if axis == -1:
        return net.model([net.op(Op.SOFTMAX, [net.x])])
    order = net.constant("order", [0, *(i for i in range(1, len(shape) + 1) if i != axis), axis])
    y = net.op(Op.SOFTMAX, [net.op(Op.TRANSPOSE, [net.x, order])])
    back = np.argsort([0, *(i for i in range(1, len(shape) + 1) if i != axis), axis])
    return net.model([net.op(Op.TRANSPOSE, [y, net.constant("back", back.astype(np.int32))])])


def _attention(heads: int, tokens: int, size: int, mask: bool = False) -> Model:
    net = Net(heads, tokens, size)
    keys, values = (net.input(name, net.shape) for name in ("keys", "values"))
    scores = net.op(Op.BATCH_MATMUL, [net.x, keys], adj_y=True)
    scores = net.op(Op.MUL, [scores, net.constant("scale", 1 / math.sqrt(size))])
    if mask:
        scores = net.op(Op.ADD, [scores, net.input("mask", [1, 1, tokens, tokens])])
    return net.model([net.op(Op.BATCH_MATMUL, [net.op(Op.SOFTMAX, [scores]), values])])


def _mlp(tokens: int, c: int, wide: int) -> Model:
    net = Net(tokens, c)
    return net.model([net.dense(net.op(Op.GELU, [net.dense(net.x, c, wide)]), wide, c)])


def _elementwise(size: int, c: int, *steps: str) -> Model:
    """Steps are activations, `scale` and `shift` by channel, `other` to add another tensor, `gate` to multiply it."""
    net = Net(size, size, c)
    y = net.x
    for i, step in enumerate(steps):
        if step in ("other", "gate"):
            y = net.op(Op.ADD if step == "other" else Op.MUL, [y, net.input(f"other{i}", net.shape)])
        elif step in ("scale", "shift"):
            by = net.weights(c, fan=16, mean=float(step == "scale"))
            y = net.op(Op.MUL if step == "scale" else Op.ADD, [y, by])
        else:
            y = net.act(y, step, c)
    return net.model([y])


def _upsampled(size: int, c: int, n: int, kind: Op, k: int = 3) -> Model:
    net = Net(size, size, c)
    options: dict[str, Any] = {"half_pixel_centers": True, "version": 3} if kind is Op.RESIZE_BILINEAR else {}
    y = net.op(kind, [net.x, net.constant("size", [2 * size, 2 * size])], **options)
    return net.model([net.conv(y, c, n, k, "RELU") if n else net.act(y, "hard_swish", c)])


def _pooled(size: int, c: int, n: int) -> Model:
    net = Net(size, size, c)
    y = net.act(net.conv(net.x, c, n, 3), "prelu", n)
    options: dict[str, Any] = {"filter_width": 2, "filter_height": 2, "stride_w": 2, "stride_h": 2}
    return net.model([net.op(Op.MAX_POOL_2D, [y], **options)])


def _convs(size: int, *channels: int) -> Model:
    """3x3 convolutions with PReLU one after the other."""
    net = Net(size, size, channels[0])
    y = net.x
    for c, n in itertools.pairwise(channels):
        y = net.act(net.conv(y, c, n, 3), "prelu", n)
    return net.model([y])


def _transposed(size: int, c: int, n: int, act: str) -> Model:
    net = Net(size, size, c)
    shape = [1, 2 * size, 2 * size, n]
    inputs = [net.constant("shape", shape), net.weights(n, 2, 2, c, fan=c), net.x, net.weights(n, fan=100)]
    y = net.op(Op.TRANSPOSE_CONV, inputs, type=net._subgraph.tensors[net.x].type, version=3, stride_w=2, stride_h=2)
    return net.model([net.act(y, act, n)])


def _concatenated(size: int, c: int, n: int, k: int) -> Model:
    net = Net(size, size, c)
    other = net.input("other", net.shape)
    return net.model([net.conv(net.op(Op.CONCATENATION, [net.x, other], axis=3), 2 * c, n, k, "RELU")])


def _dense(tokens: int, c: int, n: int, act: str) -> Model:
    net = Net(tokens, c)
    return net.model([net.act(net.dense(net.x, c, n), act, n)])


_INVERTED_GOAL, _EPILOGUE_GOAL = 0.85, 0.90
_NEAREST, _BILINEAR = Op.RESIZE_NEAREST_NEIGHBOR, Op.RESIZE_BILINEAR
# Group, goal, function, and its arguments for each model of the group.
_REGIONS: list[tuple[str, float | None, Callable[..., Model], list[tuple[Any, ...]]]] = [
    (
        "inverted residual",
        _INVERTED_GOAL,
        _inverted,
        [(112, 16, 96, 16), (112, 16, 96, 24, 2), (56, 24, 144, 24), (56, 24, 144, 32, 2), (28, 32, 192, 32)],
    ),
    (
        "inverted residual, late",
        None,
        _inverted,
        [(28, 32, 192, 64, 2), (14, 64, 384, 64), (14, 96, 576, 96), (14, 96, 576, 160, 2), (7, 160, 960, 160)],
    ),
    (
        "depthwise, pointwise",
        None,
        _separable,
        [
            (112, 32, 16),
            (112, 64, 128, 3, 2),
            (56, 128, 128),
            (28, 256, 256),
            (14, 512, 512),
            (7, 1024, 1024),
            (64, 32, 32, 5, 1, True),
        ],
    ),
    ("layer norm", 0.35, _norm, [((56, 56, 96), 3), ((28, 28, 192), 3), ((14, 14, 384), 3), ((7, 7, 768), 3)]),
    ("layer norm of tokens", 0.35, _norm, [((128, 512), 2), ((196, 192), 2)]),
    ("instance norm", None, _norm, [((96, 96, 64), 1, 2), ((28, 28, 128), 1, 2)]),
    ("RMS norm", None, _rms_norm, [(128, 512), (56, 56, 96)]),
    ("depthwise 7x7", 0.15, _depthwise, [(56, 96, 7), (28, 192, 7), (14, 384, 7), (7, 768, 7)]),
    ("depthwise 5x5", None, _depthwise, [(56, 64, 5, "RELU"), (28, 240, 5, "RELU", 2), (14, 480, 5, "RELU")]),
    ("depthwise 3x3", None, _depthwise, [(112, 96, 3, "RELU6", 2), (56, 144, 3, "RELU6"), (14, 384, 3, "RELU6")]),
    *(
        (
            f"convolution, {act}",
            _EPILOGUE_GOAL if act in ("silu", "prelu", "gelu", "hard_swish") else None,
            _activated,
            [(56, 32, 128, 1, act), (28, 64, 256, 1, act), (28, 64, 64, 3, act)],
        )
        for act in ("silu", "prelu", "gelu", "gelu_tanh", "hard_swish", "leaky_relu", "residual")
    ),
    (
        "convolution 3x3",
        None,
        _conv3,
        [(112, 32, 32), (56, 64, 64), (28, 128, 128), (14, 256, 256), (7, 512, 512), (56, 16, 16)],
    ),
    ("convolutions 3x3 in a chain", None, _convs, [(56, 32, 32, 32), (112, 3, 16, 32)]),
    (
        "BN, ReLU, convolution",
        None,
        _pre_activated,
        [(56, 128, 128, 1), (28, 256, 128, 1), (14, 512, 128, 1), (7, 1024, 128, 1), (56, 64, 64, 3)],
    ),
    ("ConvNeXt block", None, _convnext, [(56, 96), (28, 192), (14, 384), (7, 768)]),
    ("squeeze-and-excite", None, _squeezed, [(56, 64, 16), (28, 120, 32), (14, 480, 120), (14, 480, 120, 112)]),
    ("softmax", None, _softmax, [(128, 128), (196, 1000), (8, 128, 128)]),
    ("attention", None, _attention, [(4, 64, 32), (8, 196, 32), (8, 256, 64, True), (12, 128, 64)]),
    ("MLP", None, _mlp, [(196, 192, 768), (128, 256, 1024)]),
    (
        "elementwise",
        None,
        _elementwise,
        [
            (56, 64, "scale", "shift", "relu"),
            (56, 64, "scale", "shift", "other", "relu", "gate", "shift"),
            (56, 64, "scale", "silu", "gate"),
            (56, 64, "scale", "shift", "gelu", "other"),
            (14, 256, "shift", "hard_swish", "gate", "other"),
            (112, 32, "tanh", "scale", "abs", "sqrt", "exp"),
        ],
    ),
    (
        "upsampling, convolution",
        None,
        _upsampled,
        [(28, 64, 64, _NEAREST), (28, 64, 64, _BILINEAR), (56, 32, 32, _BILINEAR, 1), (28, 96, 0, _BILINEAR)],
    ),
    ("convolution, pooling", None, _pooled, [(112, 3, 16), (56, 32, 64)]),
    ("transposed convolution", None, _transposed, [(28, 64, 32, "prelu"), (56, 32, 16, "hard_swish")]),
    ("concatenation, convolution", None, _concatenated, [(56, 32, 64, 1), (28, 64, 64, 3)]),
    ("dense", None, _dense, [(1, 1024, 1024, "silu"), (128, 256, 512, "gelu")]),
]


def regions() -> list[Subject]:
    """Small models that are to become one region each, by kind and shape."""
    found = []
    for group, goal, build, cases in _REGIONS:
        for case in cases:
            parts = case[0] if isinstance(case[0], tuple) else case
            words = [v.name.split("_")[1].lower() if isinstance(v, Op) else str(v).lower() for v in parts]
            if words[-1] in group:
                words.pop()
            found.append(Subject(f"{group} {' '.join(words)}", group, build=functools.partial(build, *case), goal=goal))
    softmax = functools.partial(_softmax, 64, 196, axis=1)
    return [*found, Subject("softmax over axis 1 64 196", "softmax", build=softmax)]


# -- choosing --------------------------------------------------------------------------------------------------------


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The arguments with which subjects are chosen."""
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE", help="models to measure")
    add("--whole", action="store_true", help="the networks and real models for which there are goals")
    add("--regions", action="store_true", help="small models, by kind of region")
    add("--all", action="store_true", help="every file of the corpus")
    add(
        "--only", action="append", default=[], metavar="PATTERN", help="only what has this in its name; may be repeated"
    )
    add("--list", action="store_true", help="only say what would be measured")
    add("--models", type=Path, help="where the Keras networks are, see keras_models.py")


def chosen(given: argparse.Namespace, usual: Callable[[], list[Subject]]) -> list[Subject]:
    """What these arguments choose, or what is usual. Raises UsageError when there is no corpus."""
    found = files(given.files)
    if given.whole:
        found += whole(given.models)
    if given.all:
        there = {subject.path for subject in found}
        found += [subject for subject in corpus() if subject.path not in there]
    if given.regions:
        found += regions()
    if not (given.files or given.whole or given.regions or given.all):
        found = usual()
    wanted = [pattern.lower() for pattern in given.only]
    return [s for s in found if not wanted or any(w in f"{s.group} {s.name}".lower() for w in wanted)]
