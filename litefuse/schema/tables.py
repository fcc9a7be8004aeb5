"""Every table and union of the TFLite schema, as of ai-edge-litert 2.3.0.

This is the one declaration of the format: see :mod:`litefuse.schema.declare` for how to read it. Fields are in the
order of their ids. A union takes two ids, its type's and its value's; the declaration names the value's.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from litefuse.schema.declare import (
    Table,
    Union,
    array,
    blob,
    bool_,
    enum,
    float32,
    int8,
    int32,
    int64,
    list_of,
    string,
    table,
    tables,
    uint32,
    uint64,
    union,
)
from litefuse.schema.enums import (
    ActivationFunctionType,
    BuiltinOperator,
    CombinerType,
    CustomOptionsFormat,
    DimensionType,
    FullyConnectedOptionsWeightsFormat,
    LSHProjectionType,
    LSTMKernelType,
    MirrorPadMode,
    Padding,
    ReduceWindowFunction,
    RngAlgorithm,
    StablehloComparisonDirection,
    StablehloComparisonType,
    StablehloPrecisionConfig,
    TensorType,
)

Array: TypeAlias = NDArray[Any]
Blob: TypeAlias = "bytes | bytearray | memoryview | NDArray[np.uint8]"

QuantizationDetails = Union(
    "QuantizationDetails",
    "CustomQuantization",
    "BlockwiseQuantization",
    "MultiAxisQuantization",
)

SparseIndexVector = Union(
    "SparseIndexVector",
    "Int32Vector",
    "Uint16Vector",
    "Uint8Vector",
)

BuiltinOptions = Union(
    "BuiltinOptions",
    "Conv2DOptions",
    "DepthwiseConv2DOptions",
    "ConcatEmbeddingsOptions",
    "LSHProjectionOptions",
    "Pool2DOptions",
    "SVDFOptions",
    "RNNOptions",
    "FullyConnectedOptions",
    "SoftmaxOptions",
    "ConcatenationOptions",
    "AddOptions",
    "L2NormOptions",
    "LocalResponseNormalizationOptions",
    "LSTMOptions",
    "ResizeBilinearOptions",
    "CallOptions",
    "ReshapeOptions",
    "SkipGramOptions",
    "SpaceToDepthOptions",
    "EmbeddingLookupSparseOptions",
    "MulOptions",
    "PadOptions",
    "GatherOptions",
    "BatchToSpaceNDOptions",
    "SpaceToBatchNDOptions",
    "TransposeOptions",
    "ReducerOptions",
    "SubOptions",
    "DivOptions",
    "SqueezeOptions",
    "SequenceRNNOptions",
    "StridedSliceOptions",
    "ExpOptions",
    "TopKV2Options",
    "SplitOptions",
    "LogSoftmaxOptions",
    "CastOptions",
    "DequantizeOptions",
    "MaximumMinimumOptions",
    "ArgMaxOptions",
    "LessOptions",
    "NegOptions",
    "PadV2Options",
    "GreaterOptions",
    "GreaterEqualOptions",
    "LessEqualOptions",
    "SelectOptions",
    "SliceOptions",
    "TransposeConvOptions",
    "SparseToDenseOptions",
    "TileOptions",
    "ExpandDimsOptions",
    "EqualOptions",
    "NotEqualOptions",
    "ShapeOptions",
    "PowOptions",
    "ArgMinOptions",
    "FakeQuantOptions",
    "PackOptions",
    "LogicalOrOptions",
    "OneHotOptions",
    "LogicalAndOptions",
    "LogicalNotOptions",
    "UnpackOptions",
    "FloorDivOptions",
    "SquareOptions",
    "ZerosLikeOptions",
    "FillOptions",
    "BidirectionalSequenceLSTMOptions",
    "BidirectionalSequenceRNNOptions",
    "UnidirectionalSequenceLSTMOptions",
    "FloorModOptions",
    "RangeOptions",
    "ResizeNearestNeighborOptions",
    "LeakyReluOptions",
    "SquaredDifferenceOptions",
    "MirrorPadOptions",
    "AbsOptions",
    "SplitVOptions",
    "UniqueOptions",
    "ReverseV2Options",
    "AddNOptions",
    "GatherNdOptions",
    "CosOptions",
    "WhereOptions",
    "RankOptions",
    "ReverseSequenceOptions",
    "MatrixDiagOptions",
    "QuantizeOptions",
    "MatrixSetDiagOptions",
    "HardSwishOptions",
    "IfOptions",
    "WhileOptions",
    "DepthToSpaceOptions",
    "NonMaxSuppressionV4Options",
    "NonMaxSuppressionV5Options",
    "ScatterNdOptions",
    "SelectV2Options",
    "DensifyOptions",
    "SegmentSumOptions",
    "BatchMatMulOptions",
    "CumsumOptions",
    "CallOnceOptions",
    "BroadcastToOptions",
    "Rfft2dOptions",
    "Conv3DOptions",
    "HashtableOptions",
    "HashtableFindOptions",
    "HashtableImportOptions",
    "HashtableSizeOptions",
    "VarHandleOptions",
    "ReadVariableOptions",
    "AssignVariableOptions",
    "RandomOptions",
    "BucketizeOptions",
    "GeluOptions",
    "DynamicUpdateSliceOptions",
    "UnsortedSegmentProdOptions",
    "UnsortedSegmentMaxOptions",
    "UnsortedSegmentMinOptions",
    "UnsortedSegmentSumOptions",
    "ATan2Options",
    "SignOptions",
    "BitcastOptions",
    "BitwiseXorOptions",
    "RightShiftOptions",
)

BuiltinOptions2 = Union(
    "BuiltinOptions2",
    "StablehloConcatenateOptions",
    "StablehloBroadcastInDimOptions",
    "StablehloSliceOptions",
    "StablehloConvolutionOptions",
    "StablehloCustomCallOptions",
    "StablehloReduceOptions",
    "StablehloScatterOptions",
    "StablehloCompareOptions",
    "StablehloDynamicSliceOptions",
    "StablehloPadOptions",
    "StablehloIotaOptions",
    "StablehloDotGeneralOptions",
    "StablehloReduceWindowOptions",
    "StablehloSortOptions",
    "StablehloWhileOptions",
    "StablehloGatherOptions",
    "StablehloTransposeOptions",
    "DilateOptions",
    "StablehloRngBitGeneratorOptions",
    "ReduceWindowOptions",
    "StableHLOCompositeOptions",
    "StablehloShiftLeftOptions",
    "StablehloCaseOptions",
)


class CustomQuantization(Table):
    """Quantisation in a form that only its producer knows."""

    custom: Blob | None = blob(0, align=16)


class BlockwiseQuantization(Table):
    """One scale per block of elements along a dimension; `scales` and `zero_points` are tensor indices."""

    scales: int = int32(0)
    zero_points: int = int32(1)
    block_size: int = int32(2)
    block_shape: list[int] | None = list_of(3, "int32")


class MultiAxisQuantization(Table):
    """Block-wise quantisation along several dimensions; `scales` and `zero_points` are tensor indices."""

    scales: int = int32(0)
    zero_points: int = int32(1)
    block_size: int = int32(2)
    quantized_dimensions: list[int] | None = list_of(3, "int32")


class QuantizationParameters(Table):
    """real = scale * (stored - zero_point), per tensor or per slice of `quantized_dimension`, or as `details` says."""

    min: Array | None = array(0, "float32")
    max: Array | None = array(1, "float32")
    scale: Array | None = array(2, "float32")
    zero_point: Array | None = array(3, "int64")
    details: Table | None = union(5, QuantizationDetails)
    quantized_dimension: int = int32(6)


class Int32Vector(Table):
    """A sparse index vector of 32-bit integers."""

    values: Array | None = array(0, "int32")


class Uint16Vector(Table):
    """A sparse index vector of 16-bit integers."""

    values: Array | None = array(0, "uint16", align=4)


class Uint8Vector(Table):
    """A sparse index vector of bytes."""

    values: Blob | None = blob(0, align=4)


class DimensionMetadata(Table):
    """One dimension of a sparse tensor: its size when dense, segments and indices when compressed."""

    format: DimensionType = enum(0, DimensionType)
    dense_size: int = int32(1)
    array_segments: Table | None = union(3, SparseIndexVector)
    array_indices: Table | None = union(5, SparseIndexVector)


class SparsityParameters(Table):
    """How a sparse tensor is traversed, blocked and indexed."""

    traversal_order: Array | None = array(0, "int32")
    block_map: Array | None = array(1, "int32")
    dim_metadata: list[DimensionMetadata] | None = tables(2, "DimensionMetadata")


class VariantSubType(Table):
    """The type of the tensors inside a VARIANT tensor."""

    shape: list[int] | None = list_of(0, "int32")
    type: TensorType = enum(1, TensorType)
    has_rank: bool = bool_(2, default=False)


class Tensor(Table):
    """A typed value. `buffer` 0 means that the value is computed at run time."""

    shape: list[int] | None = list_of(0, "int32")
    type: TensorType = enum(1, TensorType)
    buffer: int = uint32(2)
    name: str | None = string(3)
    quantization: QuantizationParameters | None = table(4, "QuantizationParameters")
    is_variable: bool = bool_(5, default=False)
    sparsity: SparsityParameters | None = table(6, "SparsityParameters")
    shape_signature: list[int] | None = list_of(7, "int32")
    has_rank: bool = bool_(8, default=False)
    variant_tensors: list[VariantSubType] | None = tables(9, "VariantSubType")
    external_buffer: int = uint32(10)


class StablehloGatherOptions(Table):
    """Options of STABLEHLO_GATHER."""

    offset_dims: list[int] | None = list_of(0, "int64")
    collapsed_slice_dims: list[int] | None = list_of(1, "int64")
    start_index_map: list[int] | None = list_of(2, "int64")
    index_vector_dim: int = int64(3)
    slice_sizes: list[int] | None = list_of(4, "int64")
    indices_are_sorted: bool = bool_(5)


class StablehloTransposeOptions(Table):
    """Options of STABLEHLO_TRANSPOSE."""

    permutation: list[int] | None = list_of(0, "int64")


class StablehloDotGeneralOptions(Table):
    """Options of STABLEHLO_DOT_GENERAL."""

    lhs_batching_dimensions: list[int] | None = list_of(0, "int64")
    rhs_batching_dimensions: list[int] | None = list_of(1, "int64")
    lhs_contracting_dimensions: list[int] | None = list_of(2, "int64")
    rhs_contracting_dimensions: list[int] | None = list_of(3, "int64")
    precision_config: list[int] | None = list_of(4, "uint32", enum=StablehloPrecisionConfig)


class StablehloReduceWindowOptions(Table):
    """Options of STABLEHLO_REDUCE_WINDOW."""

    window_dimensions: list[int] | None = list_of(0, "int64")
    window_strides: list[int] | None = list_of(1, "int64")
    base_dilations: list[int] | None = list_of(2, "int64")
    window_dilations: list[int] | None = list_of(3, "int64")
    padding: list[int] | None = list_of(4, "int64")
    body_subgraph_index: int = int32(5)


class StablehloWhileOptions(Table):
    """Options of STABLEHLO_WHILE."""

    cond_subgraph_index: int = int32(0)
    body_subgraph_index: int = int32(1)


class StablehloSortOptions(Table):
    """Options of STABLEHLO_SORT."""

    dimension: int = int64(0)
    is_stable: bool = bool_(1)
    comparator_subgraph_index: int = int32(2)


class StablehloConcatenateOptions(Table):
    """Options of STABLEHLO_CONCATENATE."""

    dimension: int = int64(0)


class StablehloBroadcastInDimOptions(Table):
    """Options of STABLEHLO_BROADCAST_IN_DIM."""

    broadcast_dimensions: list[int] | None = list_of(0, "int64")


class StablehloCompareOptions(Table):
    """Options of STABLEHLO_COMPARE."""

    comparison_direction: StablehloComparisonDirection = enum(0, StablehloComparisonDirection, scalar="uint32")
    compare_type: StablehloComparisonType = enum(1, StablehloComparisonType, scalar="uint32")


class StablehloDynamicSliceOptions(Table):
    """Options of STABLEHLO_DYNAMIC_SLICE."""

    slice_sizes: list[int] | None = list_of(0, "int64")


class StablehloPadOptions(Table):
    """Options of STABLEHLO_PAD."""

    edge_padding_low: list[int] | None = list_of(0, "int64")
    edge_padding_high: list[int] | None = list_of(1, "int64")
    interior_padding: list[int] | None = list_of(2, "int64")


class StablehloIotaOptions(Table):
    """Options of STABLEHLO_IOTA."""

    iota_dimension: int = int64(0)


class StablehloCustomCallOptions(Table):
    """Options of STABLEHLO_CUSTOM_CALL."""

    call_target_name: str | None = string(0)
    has_side_effect: bool = bool_(1)
    backend_config: str | None = string(2)
    api_version: int = int32(3)
    called_computations: list[int] | None = list_of(4, "int32")
    custom_attributes: Blob | None = blob(5)


class StablehloReduceOptions(Table):
    """Options of STABLEHLO_REDUCE."""

    dimensions: list[int] | None = list_of(0, "int64")
    body_subgraph_index: int = int32(1)


class StablehloSliceOptions(Table):
    """Options of STABLEHLO_SLICE."""

    start_indices: list[int] | None = list_of(0, "int64")
    limit_indices: list[int] | None = list_of(1, "int64")
    strides: list[int] | None = list_of(2, "int64")


class StablehloConvolutionOptions(Table):
    """Options of STABLEHLO_CONVOLUTION."""

    window_strides: list[int] | None = list_of(0, "int64")
    padding: list[int] | None = list_of(1, "int64")
    lhs_dilation: list[int] | None = list_of(2, "int64")
    rhs_dilation: list[int] | None = list_of(3, "int64")
    window_reversal: list[bool] | None = list_of(4, "bool")
    input_batch_dimension: int = int64(5)
    input_feature_dimension: int = int64(6)
    input_spatial_dimensions: list[int] | None = list_of(7, "int64")
    kernel_input_feature_dimension: int = int64(8)
    kernel_output_feature_dimension: int = int64(9)
    kernel_spatial_dimensions: list[int] | None = list_of(10, "int64")
    output_batch_dimension: int = int64(11)
    output_feature_dimension: int = int64(12)
    output_spatial_dimensions: list[int] | None = list_of(13, "int64")
    feature_group_count: int = int64(14)
    batch_group_count: int = int64(15)
    precision_config: list[int] | None = list_of(16, "uint32", enum=StablehloPrecisionConfig)


class StablehloScatterOptions(Table):
    """Options of STABLEHLO_SCATTER."""

    indices_are_sorted: bool = bool_(0)
    update_window_dims: list[int] | None = list_of(1, "int64")
    inserted_window_dims: list[int] | None = list_of(2, "int64")
    scatter_dims_to_operand_dims: list[int] | None = list_of(3, "int64")
    index_vector_dim: int = int64(4)
    unique_indices: bool = bool_(5)
    update_computation_subgraph_index: int = int32(6)


class StablehloCaseOptions(Table):
    """Options of STABLEHLO_CASE."""

    branch_subgraph_indices: list[int] | None = list_of(0, "int32")


class StablehloRngBitGeneratorOptions(Table):
    """Options of STABLEHLO_RNG_BIT_GENERATOR."""

    algorithm: RngAlgorithm = enum(0, RngAlgorithm)


class Conv2DOptions(Table):
    """Options of CONV2_D."""

    padding: Padding = enum(0, Padding)
    stride_w: int = int32(1)
    stride_h: int = int32(2)
    fused_activation_function: ActivationFunctionType = enum(3, ActivationFunctionType)
    dilation_w_factor: int = int32(4, default=1)
    dilation_h_factor: int = int32(5, default=1)
    quantized_bias_type: TensorType = enum(6, TensorType)


class Conv3DOptions(Table):
    """Options of CONV3_D."""

    padding: Padding = enum(0, Padding)
    stride_d: int = int32(1)
    stride_w: int = int32(2)
    stride_h: int = int32(3)
    fused_activation_function: ActivationFunctionType = enum(4, ActivationFunctionType)
    dilation_d_factor: int = int32(5, default=1)
    dilation_w_factor: int = int32(6, default=1)
    dilation_h_factor: int = int32(7, default=1)


class Pool2DOptions(Table):
    """Options of the 2-D pooling operators."""

    padding: Padding = enum(0, Padding)
    stride_w: int = int32(1)
    stride_h: int = int32(2)
    filter_width: int = int32(3)
    filter_height: int = int32(4)
    fused_activation_function: ActivationFunctionType = enum(5, ActivationFunctionType)


class DepthwiseConv2DOptions(Table):
    """Options of DEPTHWISE_CONV2_D."""

    padding: Padding = enum(0, Padding)
    stride_w: int = int32(1)
    stride_h: int = int32(2)
    depth_multiplier: int = int32(3)
    fused_activation_function: ActivationFunctionType = enum(4, ActivationFunctionType)
    dilation_w_factor: int = int32(5, default=1)
    dilation_h_factor: int = int32(6, default=1)


class ConcatEmbeddingsOptions(Table):
    """Options of CONCAT_EMBEDDINGS."""

    num_channels: int = int32(0)
    num_columns_per_channel: list[int] | None = list_of(1, "int32")
    embedding_dim_per_channel: list[int] | None = list_of(2, "int32")


class LSHProjectionOptions(Table):
    """Options of LSHPROJECTION."""

    type: LSHProjectionType = enum(0, LSHProjectionType)


class SVDFOptions(Table):
    """Options of SVDF."""

    rank: int = int32(0)
    fused_activation_function: ActivationFunctionType = enum(1, ActivationFunctionType)
    asymmetric_quantize_inputs: bool = bool_(2)


class RNNOptions(Table):
    """Options of RNN."""

    fused_activation_function: ActivationFunctionType = enum(0, ActivationFunctionType)
    asymmetric_quantize_inputs: bool = bool_(1)


class SequenceRNNOptions(Table):
    """Options of SEQUENCE_RNN."""

    time_major: bool = bool_(0)
    fused_activation_function: ActivationFunctionType = enum(1, ActivationFunctionType)
    asymmetric_quantize_inputs: bool = bool_(2)


class BidirectionalSequenceRNNOptions(Table):
    """Options of BIDIRECTIONAL_SEQUENCE_RNN."""

    time_major: bool = bool_(0)
    fused_activation_function: ActivationFunctionType = enum(1, ActivationFunctionType)
    merge_outputs: bool = bool_(2)
    asymmetric_quantize_inputs: bool = bool_(3)


class FullyConnectedOptions(Table):
    """Options of FULLY_CONNECTED."""

    fused_activation_function: ActivationFunctionType = enum(0, ActivationFunctionType)
    weights_format: FullyConnectedOptionsWeightsFormat = enum(
        1, FullyConnectedOptionsWeightsFormat, FullyConnectedOptionsWeightsFormat.DEFAULT
    )
    keep_num_dims: bool = bool_(2)
    asymmetric_quantize_inputs: bool = bool_(3)
    quantized_bias_type: TensorType = enum(4, TensorType)
    quant_spec: Blob | None = blob(5)


class SoftmaxOptions(Table):
    """Options of SOFTMAX."""

    beta: float = float32(0)


class ConcatenationOptions(Table):
    """Options of CONCATENATION."""

    axis: int = int32(0)
    fused_activation_function: ActivationFunctionType = enum(1, ActivationFunctionType)


class AddOptions(Table):
    """Options of ADD."""

    fused_activation_function: ActivationFunctionType = enum(0, ActivationFunctionType)
    pot_scale_int16: bool = bool_(1, default=True)


class MulOptions(Table):
    """Options of MUL."""

    fused_activation_function: ActivationFunctionType = enum(0, ActivationFunctionType)


class L2NormOptions(Table):
    """Options of L2_NORM."""

    fused_activation_function: ActivationFunctionType = enum(0, ActivationFunctionType)


class LocalResponseNormalizationOptions(Table):
    """Options of LOCAL_RESPONSE_NORMALIZATION."""

    radius: int = int32(0)
    bias: float = float32(1)
    alpha: float = float32(2)
    beta: float = float32(3)


class LSTMOptions(Table):
    """Options of LSTM."""

    fused_activation_function: ActivationFunctionType = enum(0, ActivationFunctionType)
    cell_clip: float = float32(1)
    proj_clip: float = float32(2)
    kernel_type: LSTMKernelType = enum(3, LSTMKernelType, LSTMKernelType.FULL)
    asymmetric_quantize_inputs: bool = bool_(4)


class UnidirectionalSequenceLSTMOptions(Table):
    """Options of UNIDIRECTIONAL_SEQUENCE_LSTM."""

    fused_activation_function: ActivationFunctionType = enum(0, ActivationFunctionType)
    cell_clip: float = float32(1)
    proj_clip: float = float32(2)
    time_major: bool = bool_(3)
    asymmetric_quantize_inputs: bool = bool_(4)
    diagonal_recurrent_tensors: bool = bool_(5)


class BidirectionalSequenceLSTMOptions(Table):
    """Options of BIDIRECTIONAL_SEQUENCE_LSTM."""

    fused_activation_function: ActivationFunctionType = enum(0, ActivationFunctionType)
    cell_clip: float = float32(1)
    proj_clip: float = float32(2)
    merge_outputs: bool = bool_(3)
    time_major: bool = bool_(4, default=True)
    asymmetric_quantize_inputs: bool = bool_(5)


class ResizeBilinearOptions(Table):
    """Options of RESIZE_BILINEAR."""

    new_height: int = int32(0, deprecated=True)
    new_width: int = int32(1, deprecated=True)
    align_corners: bool = bool_(2)
    half_pixel_centers: bool = bool_(3)


class ResizeNearestNeighborOptions(Table):
    """Options of RESIZE_NEAREST_NEIGHBOR."""

    align_corners: bool = bool_(0)
    half_pixel_centers: bool = bool_(1)


class CallOptions(Table):
    """Options of CALL."""

    subgraph: int = uint32(0)


class PadOptions(Table):
    """Options of PAD."""


class PadV2Options(Table):
    """Options of PAD_V2."""


class ReshapeOptions(Table):
    """Options of RESHAPE."""

    new_shape: list[int] | None = list_of(0, "int32")


class SpaceToBatchNDOptions(Table):
    """Options of SPACE_TO_BATCH_ND."""


class BatchToSpaceNDOptions(Table):
    """Options of BATCH_TO_SPACE_ND."""


class SkipGramOptions(Table):
    """Options of SKIP_GRAM."""

    ngram_size: int = int32(0)
    max_skip_size: int = int32(1)
    include_all_ngrams: bool = bool_(2)


class SpaceToDepthOptions(Table):
    """Options of SPACE_TO_DEPTH."""

    block_size: int = int32(0)


class DepthToSpaceOptions(Table):
    """Options of DEPTH_TO_SPACE."""

    block_size: int = int32(0)


class SubOptions(Table):
    """Options of SUB."""

    fused_activation_function: ActivationFunctionType = enum(0, ActivationFunctionType)
    pot_scale_int16: bool = bool_(1, default=True)


class DivOptions(Table):
    """Options of DIV."""

    fused_activation_function: ActivationFunctionType = enum(0, ActivationFunctionType)


class TopKV2Options(Table):
    """Options of TOP_KV2."""


class EmbeddingLookupSparseOptions(Table):
    """Options of EMBEDDING_LOOKUP_SPARSE."""

    combiner: CombinerType = enum(0, CombinerType)


class GatherOptions(Table):
    """Options of GATHER."""

    axis: int = int32(0)
    batch_dims: int = int32(1, default=0)


class TransposeOptions(Table):
    """Options of TRANSPOSE."""


class ExpOptions(Table):
    """Options of EXP."""


class CosOptions(Table):
    """Options of COS."""


class ReducerOptions(Table):
    """Options of MEAN, SUM and the other reductions."""

    keep_dims: bool = bool_(0)


class SqueezeOptions(Table):
    """Options of SQUEEZE."""

    squeeze_dims: list[int] | None = list_of(0, "int32")


class SplitOptions(Table):
    """Options of SPLIT."""

    num_splits: int = int32(0)


class SplitVOptions(Table):
    """Options of SPLIT_V."""

    num_splits: int = int32(0)


class StridedSliceOptions(Table):
    """Options of STRIDED_SLICE."""

    begin_mask: int = int32(0)
    end_mask: int = int32(1)
    ellipsis_mask: int = int32(2)
    new_axis_mask: int = int32(3)
    shrink_axis_mask: int = int32(4)
    offset: bool = bool_(5)


class LogSoftmaxOptions(Table):
    """Options of LOG_SOFTMAX."""


class CastOptions(Table):
    """Options of CAST."""

    in_data_type: TensorType = enum(0, TensorType)
    out_data_type: TensorType = enum(1, TensorType)


class DequantizeOptions(Table):
    """Options of DEQUANTIZE."""


class MaximumMinimumOptions(Table):
    """Options of MAXIMUM and MINIMUM."""


class TileOptions(Table):
    """Options of TILE."""


class ArgMaxOptions(Table):
    """Options of ARG_MAX."""

    output_type: TensorType = enum(0, TensorType)


class ArgMinOptions(Table):
    """Options of ARG_MIN."""

    output_type: TensorType = enum(0, TensorType)


class GreaterOptions(Table):
    """Options of GREATER."""


class GreaterEqualOptions(Table):
    """Options of GREATER_EQUAL."""


class LessOptions(Table):
    """Options of LESS."""


class LessEqualOptions(Table):
    """Options of LESS_EQUAL."""


class NegOptions(Table):
    """Options of NEG."""


class SelectOptions(Table):
    """Options of SELECT."""


class SliceOptions(Table):
    """Options of SLICE."""


class TransposeConvOptions(Table):
    """Options of TRANSPOSE_CONV."""

    padding: Padding = enum(0, Padding)
    stride_w: int = int32(1)
    stride_h: int = int32(2)
    fused_activation_function: ActivationFunctionType = enum(3, ActivationFunctionType, ActivationFunctionType.NONE)
    quantized_bias_type: TensorType = enum(4, TensorType)


class ExpandDimsOptions(Table):
    """Options of EXPAND_DIMS."""


class SparseToDenseOptions(Table):
    """Options of SPARSE_TO_DENSE."""

    validate_indices: bool = bool_(0)


class EqualOptions(Table):
    """Options of EQUAL."""


class NotEqualOptions(Table):
    """Options of NOT_EQUAL."""


class ShapeOptions(Table):
    """Options of SHAPE."""

    out_type: TensorType = enum(0, TensorType)


class RankOptions(Table):
    """Options of RANK."""


class PowOptions(Table):
    """Options of POW."""


class FakeQuantOptions(Table):
    """Options of FAKE_QUANT."""

    min: float = float32(0)
    max: float = float32(1)
    num_bits: int = int32(2)
    narrow_range: bool = bool_(3)


class PackOptions(Table):
    """Options of PACK."""

    values_count: int = int32(0)
    axis: int = int32(1)


class LogicalOrOptions(Table):
    """Options of LOGICAL_OR."""


class OneHotOptions(Table):
    """Options of ONE_HOT."""

    axis: int = int32(0)


class AbsOptions(Table):
    """Options of ABS."""


class HardSwishOptions(Table):
    """Options of HARD_SWISH."""


class LogicalAndOptions(Table):
    """Options of LOGICAL_AND."""


class LogicalNotOptions(Table):
    """Options of LOGICAL_NOT."""


class UnpackOptions(Table):
    """Options of UNPACK."""

    num: int = int32(0)
    axis: int = int32(1)


class FloorDivOptions(Table):
    """Options of FLOOR_DIV."""


class SquareOptions(Table):
    """Options of SQUARE."""


class ZerosLikeOptions(Table):
    """Options of ZEROS_LIKE."""


class FillOptions(Table):
    """Options of FILL."""


class FloorModOptions(Table):
    """Options of FLOOR_MOD."""


class RangeOptions(Table):
    """Options of RANGE."""


class LeakyReluOptions(Table):
    """Options of LEAKY_RELU."""

    alpha: float = float32(0)


class SquaredDifferenceOptions(Table):
    """Options of SQUARED_DIFFERENCE."""


class MirrorPadOptions(Table):
    """Options of MIRROR_PAD."""

    mode: MirrorPadMode = enum(0, MirrorPadMode)


class UniqueOptions(Table):
    """Options of UNIQUE."""

    idx_out_type: TensorType = enum(0, TensorType, TensorType.INT32)


class ReverseV2Options(Table):
    """Options of REVERSE_V2."""


class AddNOptions(Table):
    """Options of ADD_N."""


class GatherNdOptions(Table):
    """Options of GATHER_ND."""


class WhereOptions(Table):
    """Options of WHERE."""


class ReverseSequenceOptions(Table):
    """Options of REVERSE_SEQUENCE."""

    seq_dim: int = int32(0)
    batch_dim: int = int32(1, default=0)


class MatrixDiagOptions(Table):
    """Options of MATRIX_DIAG."""


class QuantizeOptions(Table):
    """Options of QUANTIZE."""


class MatrixSetDiagOptions(Table):
    """Options of MATRIX_SET_DIAG."""


class IfOptions(Table):
    """Options of IF."""

    then_subgraph_index: int = int32(0)
    else_subgraph_index: int = int32(1)


class CallOnceOptions(Table):
    """Options of CALL_ONCE."""

    init_subgraph_index: int = int32(0)


class WhileOptions(Table):
    """Options of WHILE."""

    cond_subgraph_index: int = int32(0)
    body_subgraph_index: int = int32(1)


class NonMaxSuppressionV4Options(Table):
    """Options of NON_MAX_SUPPRESSION_V4."""


class NonMaxSuppressionV5Options(Table):
    """Options of NON_MAX_SUPPRESSION_V5."""


class ScatterNdOptions(Table):
    """Options of SCATTER_ND."""


class SelectV2Options(Table):
    """Options of SELECT_V2."""


class DensifyOptions(Table):
    """Options of DENSIFY."""


class SegmentSumOptions(Table):
    """Options of SEGMENT_SUM."""


class BatchMatMulOptions(Table):
    """Options of BATCH_MAT_MUL."""

    adj_x: bool = bool_(0)
    adj_y: bool = bool_(1)
    asymmetric_quantize_inputs: bool = bool_(2)


class CumsumOptions(Table):
    """Options of CUMSUM."""

    exclusive: bool = bool_(0)
    reverse: bool = bool_(1)


class BroadcastToOptions(Table):
    """Options of BROADCAST_TO."""


class Rfft2dOptions(Table):
    """Options of RFFT2D."""


class HashtableOptions(Table):
    """Options of HASHTABLE."""

    table_id: int = int32(0)
    key_dtype: TensorType = enum(1, TensorType)
    value_dtype: TensorType = enum(2, TensorType)


class HashtableFindOptions(Table):
    """Options of HASHTABLE_FIND."""


class HashtableImportOptions(Table):
    """Options of HASHTABLE_IMPORT."""


class HashtableSizeOptions(Table):
    """Options of HASHTABLE_SIZE."""


class VarHandleOptions(Table):
    """Options of VAR_HANDLE."""

    container: str | None = string(0)
    shared_name: str | None = string(1)


class ReadVariableOptions(Table):
    """Options of READ_VARIABLE."""


class AssignVariableOptions(Table):
    """Options of ASSIGN_VARIABLE."""


class RandomOptions(Table):
    """Options of the random number generators."""

    seed: int = int64(0)
    seed2: int = int64(1)


class BucketizeOptions(Table):
    """Options of BUCKETIZE."""

    boundaries: Array | None = array(0, "float32")


class GeluOptions(Table):
    """Options of GELU."""

    approximate: bool = bool_(0)


class DynamicUpdateSliceOptions(Table):
    """Options of DYNAMIC_UPDATE_SLICE."""


class UnsortedSegmentProdOptions(Table):
    """Options of UNSORTED_SEGMENT_PROD."""


class UnsortedSegmentMaxOptions(Table):
    """Options of UNSORTED_SEGMENT_MAX."""


class UnsortedSegmentSumOptions(Table):
    """Options of UNSORTED_SEGMENT_SUM."""


class ATan2Options(Table):
    """Options of ATAN2."""


class UnsortedSegmentMinOptions(Table):
    """Options of UNSORTED_SEGMENT_MIN."""


class SignOptions(Table):
    """Options of SIGN."""


class BitcastOptions(Table):
    """Options of BITCAST."""


class BitwiseXorOptions(Table):
    """Options of BITWISE_XOR."""


class RightShiftOptions(Table):
    """Options of RIGHT_SHIFT."""


class DilateOptions(Table):
    """Options of DILATE."""


class ReduceWindowOptions(Table):
    """Options of REDUCE_WINDOW."""

    reduce_function: ReduceWindowFunction = enum(0, ReduceWindowFunction, scalar="int32")


class OperatorCode(Table):
    """An operator kind and its version; operators refer to it by index."""

    deprecated_builtin_code: int = int8(0)
    custom_code: str | None = string(1)
    version: int = int32(2, default=1)
    builtin_code: BuiltinOperator = enum(3, BuiltinOperator, scalar="int32")


class StableHLOCompositeOptions(Table):
    """Options of STABLEHLO_COMPOSITE."""

    name: str | None = string(0)
    decomposition_subgraph_index: int = int32(1)
    composite_attributes: Blob | None = blob(2)
    composite_attributes_format: CustomOptionsFormat = enum(3, CustomOptionsFormat)
    version: int = int32(4)


class StablehloShiftLeftOptions(Table):
    """Options of STABLEHLO_SHIFT_LEFT."""


class Operator(Table):
    """One step of a subgraph. Inputs and outputs are tensor indices; -1 marks an optional input left out."""

    opcode_index: int = uint32(0)
    inputs: list[int] = list_of(1, "int32", always=True)
    outputs: list[int] = list_of(2, "int32", always=True)
    builtin_options: Table | None = union(4, BuiltinOptions)
    custom_options: Blob | None = blob(5)
    custom_options_format: CustomOptionsFormat = enum(6, CustomOptionsFormat)
    mutating_variable_inputs: list[bool] | None = list_of(7, "bool")
    intermediates: list[int] | None = list_of(8, "int32")
    large_custom_options_offset: int = uint64(9)
    large_custom_options_size: int = uint64(10)
    builtin_options_2: Table | None = union(12, BuiltinOptions2)
    debug_metadata_index: int = int32(13, default=-1)


class SubGraph(Table):
    """Operators in execution order, over their own list of tensors."""

    tensors: list[Tensor] = tables(0, "Tensor", always=True)
    inputs: list[int] = list_of(1, "int32", always=True)
    outputs: list[int] = list_of(2, "int32", always=True)
    operators: list[Operator] = tables(3, "Operator", always=True)
    name: str | None = string(4)
    debug_metadata_index: int = int32(5, default=-1)


class Buffer(Table):
    """Raw bytes. `offset` > 1 says that they lie outside the flatbuffer, at that place in the file."""

    data: Blob | None = blob(0, align=16)
    offset: int = uint64(1)
    size: int = uint64(2)


class ExternalBufferGroup(Table):
    """A file beside the model that holds external buffers."""

    name: str | None = string(0)


class ExternalBuffer(Table):
    """A stretch of an external file that tensors refer to by `id`."""

    id: int = uint32(0)
    group: int = uint32(1)
    offset: int = uint64(2)
    length: int = uint64(3)
    packing: str | None = string(4)


class Metadata(Table):
    """A named buffer for tools: TFLite Metadata, memory plans, conversion details."""

    name: str | None = string(0)
    buffer: int = uint32(1)


class TensorMap(Table):
    """The name by which a signature knows a tensor."""

    name: str | None = string(0)
    tensor_index: int = uint32(1)


class SignatureDef(Table):
    """A named entry point: which subgraph, and what its inputs and outputs are called."""

    inputs: list[TensorMap] = tables(0, "TensorMap", always=True)
    outputs: list[TensorMap] = tables(1, "TensorMap", always=True)
    signature_key: str | None = string(2)
    deprecated_tag: str | None = string(3, deprecated=True)
    subgraph_index: int = uint32(4)


class Model(Table):
    """The root of a file."""

    version: int = uint32(0)
    operator_codes: list[OperatorCode] = tables(1, "OperatorCode", always=True)
    subgraphs: list[SubGraph] = tables(2, "SubGraph", always=True)
    description: str | None = string(3)
    buffers: list[Buffer] = tables(4, "Buffer", always=True)
    metadata_buffer: list[int] | None = list_of(5, "int32")
    metadata: list[Metadata] = tables(6, "Metadata", always=True)
    signature_defs: list[SignatureDef] = tables(7, "SignatureDef", always=True)
    external_buffer_groups: list[ExternalBufferGroup] | None = tables(8, "ExternalBufferGroup")
    external_buffers: list[ExternalBuffer] | None = tables(9, "ExternalBuffer")
