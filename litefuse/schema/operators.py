"""What the format says about operators beyond their number: which options table belongs to which operator."""

from __future__ import annotations

from litefuse.schema.declare import Table
from litefuse.schema.enums import BuiltinOperator
from litefuse.schema.tables import BuiltinOptions, BuiltinOptions2, OperatorCode

Op = BuiltinOperator

# Operators whose options table is not called like the operator itself.
_SHARED = {
    "Pool2DOptions": "AVERAGE_POOL_2D MAX_POOL_2D L2_POOL_2D",
    "ReducerOptions": "MEAN SUM REDUCE_PROD REDUCE_MAX REDUCE_MIN REDUCE_ANY REDUCE_ALL",
    "MaximumMinimumOptions": "MAXIMUM MINIMUM",
    "L2NormOptions": "L2_NORMALIZATION",
    "Conv3DOptions": "CONV_3D_TRANSPOSE",
    "SequenceRNNOptions": "UNIDIRECTIONAL_SEQUENCE_RNN",
    "RandomOptions": "RANDOM_STANDARD_NORMAL RANDOM_UNIFORM MULTINOMIAL",
    "StableHLOCompositeOptions": "STABLEHLO_COMPOSITE",
}


def _options_by_operator() -> dict[BuiltinOperator, str]:
    by_key = {name.removesuffix("Options").upper(): name for name in (*BuiltinOptions.types, *BuiltinOptions2.types)}
    keys = {op: op.name.replace("_", "") for op in BuiltinOperator}
    found = {op: by_key[key] for op, key in keys.items() if key in by_key}
    found.update((BuiltinOperator[op], table) for table, ops in _SHARED.items() for op in ops.split())
    return found


_OPTIONS = _options_by_operator()


def options_class(op: BuiltinOperator) -> type[Table] | None:
    """The options table that operators of this kind carry, or None for operators without options."""
    name = _OPTIONS.get(op)
    return Table.registry[name] if name else None


def in_second_union(options: Table) -> bool:
    """Whether an options table belongs to `builtin_options_2` rather than `builtin_options`."""
    return type(options).__name__ in BuiltinOptions2.number


def builtin_code(code: OperatorCode) -> int:
    """The effective builtin operator of an operator code.

    Codes up to 127 also fill the deprecated byte-sized field, and old files fill only that one; readers take the
    larger of the two. An unknown operator is returned as a plain int.
    """
    number = max(int(code.builtin_code), code.deprecated_builtin_code)
    return Op._value2member_map_.get(number, number)  # type: ignore[return-value]


def operator_code(op: BuiltinOperator, version: int = 1, custom_code: str | None = None) -> OperatorCode:
    """An operator code with both the current and the deprecated field set."""
    return OperatorCode(
        deprecated_builtin_code=min(int(op), 127), builtin_code=op, version=version, custom_code=custom_code
    )
