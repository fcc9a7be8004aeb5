// The part of TFLite's C interface that a delegate plugin touches, declared here so that the plugin builds without
// TFLite's headers and links nothing of it. The layouts are those of every runtime from TensorFlow 2.14 and
// tflite-runtime 2.14 up to LiteRT 2.3; abi_check.cc compares them with the official headers where these are at hand.
//
// Members that the plugin never uses are opaque pointers, named for their place.
#pragma once

#include <cstddef>
#include <cstdint>

namespace litefuse::abi {
extern "C" {

enum Status { kOk = 0, kError = 1 };

// TfLiteAllocationType, as far as needed: the value lies in the model's file and never changes.
constexpr int kMmapRo = 1;
// TfLiteQuantizationType
constexpr int kAffineQuantization = 1;
// TfLiteDimensionType
constexpr int kDense = 0;
constexpr int kSparseCsr = 1;
// TfLiteDelegateFlags
constexpr int64_t kAllowDynamicTensors = 1;
// TfLiteBuiltinOperator, beyond what is in litefuse::Kind
constexpr int32_t kBuiltinCustom = 32;
constexpr int32_t kBuiltinDelegate = 51;
constexpr int32_t kBuiltinComposite = 206;

struct IntArray {
  int size;
  int data[1];  // as many as `size`
};
struct FloatArray {
  int size;
  float data[1];
};

struct Context;
struct Delegate;

struct AffineQuantization {
  FloatArray* scale;
  IntArray* zero_point;
  int32_t quantized_dimension;
};
struct Quantization {
  int type;
  void* params;  // AffineQuantization where the type says so
};
struct QuantizationParams {
  float scale;
  int32_t zero_point;
};

struct DimensionMetadata {
  int format;  // kDense or kSparseCsr
  int dense_size;
  IntArray* array_segments;
  IntArray* array_indices;
};
struct Sparsity {
  IntArray* traversal_order;
  IntArray* block_map;
  DimensionMetadata* dim_metadata;
  int dim_metadata_size;
};

struct Tensor {
  int type;
  void* data;
  IntArray* dims;
  QuantizationParams params;
  int allocation_type;
  size_t bytes;
  const void* allocation;
  const char* name;
  Delegate* delegate;
  int buffer_handle;
  bool data_is_stale;
  bool is_variable;
  Quantization quantization;
  Sparsity* sparsity;
  const IntArray* dims_signature;
};

struct Node {
  IntArray* inputs;
  IntArray* outputs;
  IntArray* intermediates;
  IntArray* temporaries;
  void* user_data;
  void* builtin_data;
  const void* custom_initial_data;
  int custom_initial_data_size;
  Delegate* delegate;
  bool might_have_side_effect;
};

struct DelegateParams {
  Delegate* delegate;
  IntArray* nodes_to_replace;
  IntArray* input_tensors;
  IntArray* output_tensors;
};

struct Registration {
  void* (*init)(Context*, const char* buffer, size_t length);
  void (*free)(Context*, void* buffer);
  int (*prepare)(Context*, Node*);
  int (*invoke)(Context*, Node*);
  const char* (*profiling_string)(const Context*, const Node*);
  int32_t builtin_code;
  const char* custom_name;
  int version;
  void* registration_external;
  void* async_kernel;
  uint64_t inplace_operator;
};

struct Delegate {
  void* data;
  int (*prepare)(Context*, Delegate*);
  void* copy_from_buffer_handle;
  void* copy_to_buffer_handle;
  void* free_buffer_handle;
  int64_t flags;
  void* opaque_delegate_builder;
};

struct Context {
  size_t tensors_size;
  int (*get_execution_plan)(Context*, IntArray**);
  Tensor* tensors;
  void* impl;
  // Takes the array over; it must come from malloc.
  int (*resize_tensor)(Context*, Tensor*, IntArray*);
  void (*report_error)(Context*, const char* format, ...);
  void* add_tensors;
  int (*get_node_and_registration)(Context*, int index, Node**, Registration**);
  int (*replace_node_subsets_with_delegate_kernels)(Context*, Registration, const IntArray*, Delegate*);
  int recommended_num_threads;
  void* get_external_context;
  void* set_external_context;
  bool allow_fp32_relax_to_fp16;
  void* profiler;
  void* allocate_persistent_buffer;
  void* allocate_buffer_for_eval;
  void* request_scratch_buffer_in_arena;
  void* get_scratch_buffer;
  void* resize_tensor_explicit;
  // The array belongs to the context, until the next call.
  int (*preview_delegate_partitioning)(Context*, const IntArray*, DelegateParams**, int* count);
  void* get_tensor;
  void* get_eval_tensor;
  int (*get_model_metadata)(const Context*, const char* name, const char** data, size_t* bytes);
  int (*acquire_subgraph_context)(Context*, int index, Context**);
  int (*release_subgraph_context)(Context*, int index);
};

// -- what operators carry besides their tensors (builtin_data) -----------------------------------------------------
// Members that runtimes appended later, after those here, are left out.

struct ConvParams {
  int padding, stride_width, stride_height, activation, dilation_width_factor, dilation_height_factor;
};
struct DepthwiseConvParams {
  int padding, stride_width, stride_height, depth_multiplier, activation, dilation_width_factor, dilation_height_factor;
};
struct TransposeConvParams {
  int padding, stride_width, stride_height, activation;
};
struct PoolParams {
  int padding, stride_width, stride_height, filter_width, filter_height, activation;
};
struct FullyConnectedParams {
  int activation, weights_format;
  bool keep_num_dims, asymmetric_quantize_inputs;
};
struct BatchMatMulParams {
  bool adj_x, adj_y, asymmetric_quantize_inputs;
};
struct AddParams {  // also of SUB
  int activation;
  bool pot_scale_int16;
};
struct ActivationParams {  // MUL, DIV, L2_NORMALIZATION
  int activation;
};
struct SoftmaxParams {
  float beta;
};
struct LeakyReluParams {
  float alpha;
};
struct GeluParams {
  bool approximate;
};
struct ConcatenationParams {
  int axis, activation;
};
struct PackParams {
  int values_count, axis;
};
struct UnpackParams {
  int num, axis;
};
struct GatherParams {
  int axis, batch_dims;
};
struct SplitParams {
  int num_splits;
};
struct ReducerParams {
  bool keep_dims;
};
struct ResizeParams {
  bool align_corners, half_pixel_centers;
};
struct ReshapeParams {
  int32_t shape[8];
  int num_dimensions;
};
struct SqueezeParams {
  int32_t squeeze_dims[8];
  int num_squeeze_dims;
};
struct StridedSliceParams {
  int begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask;
  bool offset;
};
struct MirrorPaddingParams {
  int mode;  // 1 reflects, 2 is symmetric
};
struct BlockParams {  // DEPTH_TO_SPACE, SPACE_TO_DEPTH
  int block_size;
};
struct CompositeParams {
  const char* name;
  int32_t subgraph_index;
  int32_t version;
  const uint8_t* attributes;
  size_t attributes_size;
};

}  // extern "C"

// The runtime's profiler, by the order of its virtual functions (the same in all runtimes named above). Compilers that
// order overloads otherwise than the Itanium ABI does (MSVC) cannot use it.
class Profiler {
 public:
  virtual ~Profiler() = default;
  virtual uint32_t begin_event(const char* tag, int type, int64_t metadata1, int64_t metadata2) = 0;
  virtual void end_event_with_metadata(uint32_t handle, int64_t metadata1, int64_t metadata2) = 0;
  virtual void end_event(uint32_t handle) = 0;
};
constexpr int kDelegateOperatorInvokeEvent = 1 << 2;

}  // namespace litefuse::abi
