"""The rewrites of the graph. One rule family per module; :func:`rules` is the registry and the order of application."""

from litefuse.fusions import (
    activation,
    arithmetic,
    batch_norm,
    constant_folding,
    dead_code,
    dilation,
    duplicates,
    elu,
    gelu,
    hard_swish,
    horizontal,
    identity,
    image_pooling,
    leaky_relu,
    matmul,
    normalization,
    padding,
    prelu,
    quantization,
    quantized_batch_norm,
    reductions,
    reshapes,
    shape_folding,
    sigmoid,
    sink_activation,
    slicing,
    softmax,
    softplus,
    subsampling,
    transposes,
    upsampling,
)
from litefuse.fusions.pipeline import LEVELS, Candidate, FusionReport, run, select
from litefuse.fusions.rule import Applied, ModelRule, Numerics, PatternRule, Refused, Rule


def rules(*, widen_fp16: bool = False) -> tuple[Rule, ...]:
    """All rules in the order in which they are offered an operator.

    Cheap clean-up comes first, so that the others see fewer spellings; what recognises a spelled-out function comes
    before what would take it apart, as folding a factor into a convolution would.

    Args:
        widen_fp16: turn weights that are stored as float16 into float32, which makes the file larger.
    """
    return (
        *constant_folding.rules(widen_fp16),
        *shape_folding.RULES,
        *identity.RULES,
        *dead_code.RULES,
        *duplicates.RULES,
        *hard_swish.RULES,
        *gelu.RULES,
        *sigmoid.RULES,
        *elu.RULES,
        *softplus.RULES,
        *softmax.RULES,
        *reductions.RULES,
        *normalization.RULES,
        *prelu.RULES,
        *leaky_relu.RULES,
        *matmul.RULES,
        *quantization.RULES,
        *batch_norm.RULES,
        *arithmetic.RULES,
        *activation.RULES,
        *sink_activation.RULES,
        *quantized_batch_norm.RULES,
        *horizontal.RULES,
        *slicing.RULES,
        *padding.RULES,
        *dilation.RULES,
        *subsampling.RULES,
        *upsampling.RULES,
        *image_pooling.RULES,
        *reshapes.RULES,
        *transposes.RULES,
    )


__all__ = [
    "LEVELS",
    "Applied",
    "Candidate",
    "FusionReport",
    "ModelRule",
    "Numerics",
    "PatternRule",
    "Refused",
    "Rule",
    "rules",
    "run",
    "select",
]
