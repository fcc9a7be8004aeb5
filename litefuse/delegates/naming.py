"""The kinds of regions, and which one a set of operators is.

A kind says what the region does, for the names of nodes (`litefuse.<kind>`), reports and profiles. The delegate
compiles its kernel from the operators themselves, so that nothing depends on the kind being told well.
"""

from __future__ import annotations

from collections.abc import Collection

from litefuse.delegates.kinds import PADS, POOLS, RESIZES, VIEWS, OpClass
from litefuse.delegates.network import Network
from litefuse.schema.operators import Op

_BASES = {
    Op.CONV_2D: "conv",
    Op.DEPTHWISE_CONV_2D: "depthwise",
    Op.TRANSPOSE_CONV: "transpose_conv",
    Op.FULLY_CONNECTED: "fully_connected",
    Op.BATCH_MATMUL: "batch_matmul",
}

_GATES = frozenset({Op.LOGISTIC, Op.TANH, Op.MUL})

KINDS: dict[str, str] = {
    "conv": "one convolution for which there is a better algorithm (3x3, by Winograd)",
    "conv_epilogue": "convolution, then bias, activations, residual additions, gates or conversions",
    "conv_prologue": "batch normalisation, activation or conversion before a convolution, perhaps an epilogue behind",
    "conv_pool": "convolution, epilogue, then pooling, before the large result is written",
    "pad_conv": "padding that the convolution behind takes as its own",
    "upsample_conv": "resizing before a convolution, whose result is never written",
    "concat_conv": "convolution over several tensors as if they were concatenated",
    "depthwise": "one depthwise convolution with a large window",
    "depthwise_epilogue": "depthwise convolution, then bias, activations, residual additions, gates or conversions",
    "depthwise_prologue": "elementwise operators before a depthwise convolution, perhaps an epilogue behind",
    "depthwise_pool": "depthwise convolution, epilogue, then pooling",
    "pad_depthwise": "padding that the depthwise convolution behind takes as its own",
    "upsample_depthwise": "resizing before a depthwise convolution, whose result is never written",
    "concat_depthwise": "depthwise convolution over several tensors as if they were concatenated",
    "transpose_conv_epilogue": "transposed convolution, then bias, activations, residual additions or gates",
    "transpose_conv_prologue": "elementwise operators before a transposed convolution",
    "fully_connected_epilogue": "matrix product with weights, then bias, activations, residual additions or gates",
    "fully_connected_prologue": "elementwise operators before a matrix product with weights",
    "batch_matmul_epilogue": "matrix product of two tensors, then scaling, masks, activations or residual additions",
    "batch_matmul_prologue": "elementwise operators or transpositions before a matrix product of two tensors",
    "depthwise_pointwise": "depthwise, then pointwise convolution, strip by strip",
    "pointwise_depthwise": "pointwise, then depthwise convolution, strip by strip",
    "inverted_residual": "expansion, depthwise convolution and projection by strips of rows or slabs of channels, "
    "perhaps a residual addition",
    "pointwise_chain": "pointwise convolutions or matrix products one after the other, row by row (MLP)",
    "convnext_block": "depthwise convolution, normalisation and an MLP, strip by strip",
    "squeeze_excite": "global pooling, two small products, sigmoid, and the gate on all pixels",
    "squeeze_excite_project": "the same, with the gate applied on the way into the pointwise convolution behind",
    "attention": "product of queries and keys, scale, mask, softmax, product with values",
    "layer_norm": "normalisation by mean and variance over the last axes",
    "group_norm": "normalisation by mean and variance over pixels and groups of channels",
    "instance_norm": "normalisation by mean and variance over pixels, for each channel",
    "rms_norm": "normalisation by the root of the mean square",
    "l2_norm": "normalisation by length",
    "softmax": "softmax over any axis",
    "gated_cell": "matrix products whose results come together in gates, as in a cell of a recurrent network",
    "reduction": "reductions with the elementwise operators around them",
    "elementwise": "a cluster of elementwise operators, block by block",
    "pool": "pooling with elementwise operators around it",
    "resize": "resizing with elementwise operators around it",
    "small_network": "several of the others next to one another, all of whose data stay in the second cache",
    "movement": "transpositions, slices, concatenations and the like as a single copy",
}
"""All kinds with what they do."""


def kind_of(network: Network, members: Collection[int], prologue: Collection[int] = ()) -> str:
    """The kind of a region of these operators."""
    order = sorted(members)
    kinds = [network.kinds[i] for i in order]
    roots = [i for i in order if network.roles[i] is OpClass.ROOT]
    reductions = [i for i in order if network.roles[i] is OpClass.REDUCTION]
    pools = [i for i in order if network.kinds[i] in POOLS]
    whole = [i for i in pools if network.shape(network.outs[i][0])[1:3] == (1, 1)]
    if len(roots) >= 2 and _is_attention(network, order, roots):
        return "attention"
    if roots and (reductions or whole):
        small = _squeezed(network, roots, [*reductions, *whole])
        if small:
            return "squeeze_excite" if small == len(roots) else "squeeze_excite_project"
    behind = _behind_all(network, order, roots)
    if roots and behind is not None:
        gates = sum(network.kinds[i] in _GATES for i in behind)
        if gates > 2 and (len(roots) > 1 or any(network.kinds[i] in (Op.SPLIT, Op.SPLIT_V) for i in behind)):
            return "gated_cell"
        if len(roots) > 1:
            return f"{_base(network, roots[-1])}_epilogue"
    if len(roots) > 1:
        return _chain(network, roots, any(i < roots[-1] for i in reductions))
    if roots:
        return _single(network, roots[0], order, prologue)
    if reductions:
        return _reduced(network, order, reductions)
    if pools:
        return "pool"
    if any(kind in RESIZES for kind in kinds):
        return "resize"
    if all(network.roles[i] is OpClass.INJECTIVE for i in order):
        return "movement"
    return "elementwise"


def _is_attention(network: Network, order: list[int], roots: list[int]) -> bool:
    softmax = [i for i in order if network.kinds[i] in (Op.SOFTMAX, Op.EXP)]
    products = [i for i in roots if network.kinds[i] is Op.BATCH_MATMUL]
    return len(products) >= 2 and any(products[0] < i < products[-1] for i in softmax)


def _squeezed(network: Network, roots: list[int], reductions: list[int]) -> int:
    """How many products work on what is left of the pixels; 0 when the first one does not."""
    first = min(reductions)
    large = network.elements(network.data(first))
    small = [i > first and 4 * network.elements(network.data(i)) <= large for i in roots]
    return (*small, False).index(False)


def _behind_all(network: Network, order: list[int], roots: list[int]) -> set[int] | None:
    """What depends on the products of a region; None when one of these does itself."""
    depends: set[int] = set()
    for i in order:
        if any(p in depends or p in roots for t in network.ins[i] if (p := network.producer(t)) is not None):
            if i in roots:
                return None
            depends.add(i)
    return depends


def _chain(network: Network, roots: list[int], normal: bool) -> str:
    depthwise = [network.is_depthwise(i) for i in roots]
    if not any(depthwise):
        return "pointwise_chain"
    if normal or (depthwise[0] and len(roots) > 2):
        return "convnext_block"
    if depthwise[0]:
        return "depthwise_pointwise"
    return "pointwise_depthwise" if depthwise[-1] else "inverted_residual"


def _single(network: Network, root: int, order: list[int], prologue: Collection[int]) -> str:
    base = _base(network, root)
    if len(order) == 1:
        return base if base in KINDS else f"{base}_epilogue"
    pools = [i for i in order if network.kinds[i] in POOLS]
    reductions = [i for i in order if network.kinds[i] is Op.MEAN]
    before = {network.kinds[i] for i in prologue if i < root and _leads_to(network, i, root, order)}
    if base in ("conv", "depthwise"):
        if before & RESIZES:
            return f"upsample_{base}"
        if Op.CONCATENATION in before:
            return f"concat_{base}"
        if before & PADS:
            return f"pad_{base}"
    if before - VIEWS:
        return f"{base}_prologue"
    if base in ("conv", "depthwise") and any(i > root for i in (*pools, *reductions) if i not in prologue):
        return f"{base}_pool"
    return f"{base}_epilogue"


def _base(network: Network, root: int) -> str:
    return "depthwise" if network.is_depthwise(root) else _BASES[network.kinds[root]]


def _leads_to(network: Network, i: int, root: int, order: Collection[int]) -> bool:
    """Whether an operator of the region is computed on the way into its root."""
    todo, seen = [root], {root}
    while todo:
        for t in network.ins[todo.pop()]:
            maker = network.producer(t)
            if maker == i:
                return True
            if maker is not None and maker in order and maker not in seen:
                seen.add(maker)
                todo.append(maker)
    return False


_ROOTS = frozenset({Op.RSQRT, Op.SQRT, Op.POW})


def _reduced(network: Network, order: list[int], reductions: list[int]) -> str:
    kinds = {network.kinds[i] for i in order}
    if kinds & {Op.SOFTMAX, Op.LOG_SOFTMAX}:
        return "softmax"
    if Op.L2_NORMALIZATION in kinds:
        return "l2_norm"
    sums = [i for i in reductions if network.kinds[i] in (Op.MEAN, Op.SUM)]
    domain = max((network.elements(network.data(i)) for i in reductions), default=0)
    whole = any(network.elements(t) >= domain for t in network.outs[order[-1]]) or any(
        network.elements(t) >= domain for t in network.outputs_of(order)
    )
    if not whole or not sums:
        return "reduction"
    if Op.EXP in kinds:
        return "softmax"
    if not kinds & _ROOTS:
        return "reduction"
    if len(sums) < 2:
        return "rms_norm" if network.kinds[sums[0]] is Op.MEAN else "l2_norm"
    return _normal(network, order, sums[-1])


def _normal(network: Network, order: list[int], variance: int) -> str:
    """Which normalisation it is, by the axes of the variance."""
    shape = network.shape(network.data(variance))
    axes = _axes(network, variance, len(shape))
    reshaped = any(
        network.kinds[i] in VIEWS and network.elements(network.outs[i][0]) == network.elements(network.data(variance))
        for i in order
    )
    if reshaped and len(axes) > 1:
        return "group_norm"
    if shape and len(shape) - 1 not in axes and len(axes) > 1:
        return "instance_norm"
    return "layer_norm"


def _axes(network: Network, i: int, rank: int) -> set[int]:
    inputs = network.ops[i].inputs
    axes = network.graph.constant(inputs[1]) if len(inputs) > 1 else None
    return set() if axes is None else {int(a) % max(rank, 1) for a in axes.reshape(-1)}
