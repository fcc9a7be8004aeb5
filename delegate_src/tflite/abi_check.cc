// Compares abi.h with the official headers (C interface of the Android library, or of TensorFlow). It is compiled,
// never linked: see LITEFUSE_TFLITE_HEADERS in CMakeLists.txt.
#include <cstddef>

#include "tensorflow/lite/core/c/common.h"
#include "tflite/abi.h"

#if __has_include("tensorflow/lite/core/c/builtin_op_data.h")
#include "tensorflow/lite/core/c/builtin_op_data.h"
#define LITEFUSE_HAS_OP_DATA 1
#endif

namespace litefuse::abi {

#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), #theirs " is larger or smaller")
#define SAME_PLACE(ours, a, theirs, b)                                                            \
  static_assert(offsetof(ours, a) == offsetof(theirs, b) && sizeof(ours::a) == sizeof(theirs::b), \
                #theirs "::" #b " lies elsewhere")

// A newer runtime may append to these; what comes before must stay.
SAME_PLACE(IntArray, size, TfLiteIntArray, size);
static_assert(offsetof(IntArray, data) == offsetof(TfLiteIntArray, data), "TfLiteIntArray::data lies elsewhere");
static_assert(offsetof(FloatArray, data) == offsetof(TfLiteFloatArray, data), "TfLiteFloatArray::data lies elsewhere");

SAME_SIZE(AffineQuantization, TfLiteAffineQuantization);
SAME_PLACE(AffineQuantization, scale, TfLiteAffineQuantization, scale);
SAME_PLACE(AffineQuantization, zero_point, TfLiteAffineQuantization, zero_point);
SAME_PLACE(AffineQuantization, quantized_dimension, TfLiteAffineQuantization, quantized_dimension);
SAME_SIZE(Quantization, TfLiteQuantization);
SAME_PLACE(Quantization, params, TfLiteQuantization, params);
SAME_SIZE(QuantizationParams, TfLiteQuantizationParams);

SAME_SIZE(DimensionMetadata, TfLiteDimensionMetadata);
SAME_PLACE(DimensionMetadata, format, TfLiteDimensionMetadata, format);
SAME_PLACE(DimensionMetadata, dense_size, TfLiteDimensionMetadata, dense_size);
SAME_PLACE(DimensionMetadata, array_segments, TfLiteDimensionMetadata, array_segments);
SAME_PLACE(DimensionMetadata, array_indices, TfLiteDimensionMetadata, array_indices);
SAME_SIZE(Sparsity, TfLiteSparsity);
SAME_PLACE(Sparsity, traversal_order, TfLiteSparsity, traversal_order);
SAME_PLACE(Sparsity, block_map, TfLiteSparsity, block_map);
SAME_PLACE(Sparsity, dim_metadata, TfLiteSparsity, dim_metadata);
SAME_PLACE(Sparsity, dim_metadata_size, TfLiteSparsity, dim_metadata_size);

SAME_SIZE(Tensor, TfLiteTensor);
SAME_PLACE(Tensor, type, TfLiteTensor, type);
SAME_PLACE(Tensor, data, TfLiteTensor, data);
SAME_PLACE(Tensor, dims, TfLiteTensor, dims);
SAME_PLACE(Tensor, params, TfLiteTensor, params);
SAME_PLACE(Tensor, allocation_type, TfLiteTensor, allocation_type);
SAME_PLACE(Tensor, bytes, TfLiteTensor, bytes);
SAME_PLACE(Tensor, name, TfLiteTensor, name);
SAME_PLACE(Tensor, delegate, TfLiteTensor, delegate);
SAME_PLACE(Tensor, is_variable, TfLiteTensor, is_variable);
SAME_PLACE(Tensor, quantization, TfLiteTensor, quantization);
SAME_PLACE(Tensor, sparsity, TfLiteTensor, sparsity);
SAME_PLACE(Tensor, dims_signature, TfLiteTensor, dims_signature);

SAME_SIZE(Node, TfLiteNode);
SAME_PLACE(Node, inputs, TfLiteNode, inputs);
SAME_PLACE(Node, outputs, TfLiteNode, outputs);
SAME_PLACE(Node, user_data, TfLiteNode, user_data);
SAME_PLACE(Node, builtin_data, TfLiteNode, builtin_data);
SAME_PLACE(Node, custom_initial_data, TfLiteNode, custom_initial_data);
SAME_PLACE(Node, custom_initial_data_size, TfLiteNode, custom_initial_data_size);
SAME_PLACE(Node, delegate, TfLiteNode, delegate);

SAME_SIZE(DelegateParams, TfLiteDelegateParams);
SAME_PLACE(DelegateParams, delegate, TfLiteDelegateParams, delegate);
SAME_PLACE(DelegateParams, nodes_to_replace, TfLiteDelegateParams, nodes_to_replace);
SAME_PLACE(DelegateParams, input_tensors, TfLiteDelegateParams, input_tensors);
SAME_PLACE(DelegateParams, output_tensors, TfLiteDelegateParams, output_tensors);

SAME_SIZE(Registration, TfLiteRegistration);
SAME_PLACE(Registration, init, TfLiteRegistration, init);
SAME_PLACE(Registration, free, TfLiteRegistration, free);
SAME_PLACE(Registration, prepare, TfLiteRegistration, prepare);
SAME_PLACE(Registration, invoke, TfLiteRegistration, invoke);
SAME_PLACE(Registration, profiling_string, TfLiteRegistration, profiling_string);
SAME_PLACE(Registration, builtin_code, TfLiteRegistration, builtin_code);
SAME_PLACE(Registration, custom_name, TfLiteRegistration, custom_name);
SAME_PLACE(Registration, version, TfLiteRegistration, version);

SAME_SIZE(Delegate, TfLiteDelegate);
SAME_PLACE(Delegate, data, TfLiteDelegate, data_);
SAME_PLACE(Delegate, prepare, TfLiteDelegate, Prepare);
SAME_PLACE(Delegate, flags, TfLiteDelegate, flags);

SAME_PLACE(Context, tensors_size, TfLiteContext, tensors_size);
SAME_PLACE(Context, get_execution_plan, TfLiteContext, GetExecutionPlan);
SAME_PLACE(Context, tensors, TfLiteContext, tensors);
SAME_PLACE(Context, resize_tensor, TfLiteContext, ResizeTensor);
SAME_PLACE(Context, report_error, TfLiteContext, ReportError);
SAME_PLACE(Context, get_node_and_registration, TfLiteContext, GetNodeAndRegistration);
SAME_PLACE(Context, replace_node_subsets_with_delegate_kernels, TfLiteContext, ReplaceNodeSubsetsWithDelegateKernels);
SAME_PLACE(Context, recommended_num_threads, TfLiteContext, recommended_num_threads);
SAME_PLACE(Context, profiler, TfLiteContext, profiler);
SAME_PLACE(Context, preview_delegate_partitioning, TfLiteContext, PreviewDelegatePartitioning);
SAME_PLACE(Context, get_model_metadata, TfLiteContext, GetModelMetadata);
SAME_PLACE(Context, acquire_subgraph_context, TfLiteContext, AcquireSubgraphContext);
SAME_PLACE(Context, release_subgraph_context, TfLiteContext, ReleaseSubgraphContext);

static_assert(kMmapRo == kTfLiteMmapRo && kAffineQuantization == kTfLiteAffineQuantization &&
                  kDense == kTfLiteDimDense && kSparseCsr == kTfLiteDimSparseCSR &&
                  kAllowDynamicTensors == kTfLiteDelegateFlagsAllowDynamicTensors &&
                  static_cast<int>(kOk) == static_cast<int>(kTfLiteOk),
              "a constant has another value");

#ifdef LITEFUSE_HAS_OP_DATA
SAME_PLACE(ConvParams, dilation_height_factor, TfLiteConvParams, dilation_height_factor);
SAME_PLACE(ConvParams, activation, TfLiteConvParams, activation);
SAME_PLACE(DepthwiseConvParams, activation, TfLiteDepthwiseConvParams, activation);
SAME_PLACE(DepthwiseConvParams, dilation_height_factor, TfLiteDepthwiseConvParams, dilation_height_factor);
SAME_PLACE(TransposeConvParams, activation, TfLiteTransposeConvParams, activation);
SAME_PLACE(PoolParams, activation, TfLitePoolParams, activation);
SAME_PLACE(FullyConnectedParams, weights_format, TfLiteFullyConnectedParams, weights_format);
SAME_PLACE(FullyConnectedParams, asymmetric_quantize_inputs, TfLiteFullyConnectedParams, asymmetric_quantize_inputs);
SAME_PLACE(BatchMatMulParams, asymmetric_quantize_inputs, TfLiteBatchMatMulParams, asymmetric_quantize_inputs);
SAME_PLACE(AddParams, pot_scale_int16, TfLiteAddParams, pot_scale_int16);
SAME_PLACE(AddParams, pot_scale_int16, TfLiteSubParams, pot_scale_int16);
SAME_PLACE(SoftmaxParams, beta, TfLiteSoftmaxParams, beta);
SAME_PLACE(ConcatenationParams, activation, TfLiteConcatenationParams, activation);
SAME_PLACE(PackParams, axis, TfLitePackParams, axis);
SAME_PLACE(UnpackParams, axis, TfLiteUnpackParams, axis);
SAME_PLACE(GatherParams, batch_dims, TfLiteGatherParams, batch_dims);
SAME_PLACE(ResizeParams, half_pixel_centers, TfLiteResizeBilinearParams, half_pixel_centers);
SAME_PLACE(ResizeParams, half_pixel_centers, TfLiteResizeNearestNeighborParams, half_pixel_centers);
SAME_PLACE(ReshapeParams, num_dimensions, TfLiteReshapeParams, num_dimensions);
SAME_PLACE(SqueezeParams, num_squeeze_dims, TfLiteSqueezeParams, num_squeeze_dims);
SAME_PLACE(StridedSliceParams, offset, TfLiteStridedSliceParams, offset);
SAME_PLACE(MirrorPaddingParams, mode, TfLiteMirrorPaddingParams, mode);
SAME_PLACE(BlockParams, block_size, TfLiteDepthToSpaceParams, block_size);
SAME_PLACE(CompositeParams, subgraph_index, TfLiteStablehloCompositeParams, subgraph_index);
SAME_PLACE(CompositeParams, attributes_size, TfLiteStablehloCompositeParams, attributes_size);
#endif

}  // namespace litefuse::abi
