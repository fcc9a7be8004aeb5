#include "tflite/import.h"

#include <cmath>
#include <cstring>
#include <unordered_map>

#include "kernels/fixed_point.h"

namespace litefuse {
namespace {

Type known_type(int type) {
  switch (type) {
    case 1:
    case 2:
    case 3:
    case 4:
    case 6:
    case 7:
    case 9:
    case 10:
      return static_cast<Type>(type);
    default:
      return Type::kNone;
  }
}

// The scales of a tensor. Newer sources of TFLite have another array of floats; where the array does not look like the
// one known here, only the single scale that the tensor itself carries is read.
Status import_quantization(const abi::Tensor& from, Quantization* to) {
  if (from.quantization.type != abi::kAffineQuantization || from.quantization.params == nullptr) {
    if (from.params.scale != 0.0f) *to = {{from.params.scale}, {from.params.zero_point}, 0};
    return Status();
  }
  const auto* affine = static_cast<const abi::AffineQuantization*>(from.quantization.params);
  if (affine->scale == nullptr || affine->zero_point == nullptr) {
    if (from.params.scale != 0.0f) *to = {{from.params.scale}, {from.params.zero_point}, 0};
    return Status();
  }
  const int points = affine->zero_point->size;
  if (points <= 1) {
    *to = {{from.params.scale}, {from.params.zero_point}, 0};
    if (from.params.scale == 0.0f) *to = {};
    return Status();
  }
  const int axis = affine->quantized_dimension;
  const int rank = from.dims->size;
  LITEFUSE_REQUIRE(axis >= 0 && axis < rank && from.dims->data[axis] == points,
                   "its %d zero points do not match dimension %d", points, axis);
  LITEFUSE_REQUIRE(affine->scale->size == points, "its scales are stored in a way this delegate does not know");
  to->scales.assign(affine->scale->data, affine->scale->data + points);
  to->zero_points.assign(affine->zero_point->data, affine->zero_point->data + points);
  to->axis = axis;
  return Status();
}

// Copies at most `most` numbers; no array is like an empty one.
Status import_numbers(const abi::IntArray* from, int64_t most, std::vector<int32_t>* to) {
  if (from == nullptr) return Status();
  LITEFUSE_REQUIRE(from->size >= 0 && from->size <= most, "its sparsity lists %d numbers where %lld are possible",
                   from->size, static_cast<long long>(most));
  to->assign(from->data, from->data + from->size);
  return Status();
}

// How a sparse constant is stored, as the file says it: sizes are bounded, the rest is for the kernel of DENSIFY.
Status import_sparsity(const abi::Tensor& from, Tensor* to) {
  const abi::Sparsity& sparsity = *from.sparsity;
  auto made = std::make_shared<Sparsity>();
  LITEFUSE_REQUIRE(from.allocation_type == abi::kMmapRo && from.data != nullptr, "it is sparse and not constant");
  LITEFUSE_RETURN_IF_REFUSED(import_numbers(sparsity.traversal_order, 2 * kMaxRank, &made->order));
  LITEFUSE_RETURN_IF_REFUSED(import_numbers(sparsity.block_map, kMaxRank, &made->block_map));
  const int count = sparsity.dim_metadata_size;
  LITEFUSE_REQUIRE(count >= 0 && count <= 2 * kMaxRank && (count == 0 || sparsity.dim_metadata != nullptr),
                   "its sparsity describes %d dimensions", count);
  for (int i = 0; i < count; ++i) {
    const abi::DimensionMetadata& level = sparsity.dim_metadata[i];
    LITEFUSE_REQUIRE(level.format == abi::kDense || level.format == abi::kSparseCsr,
                     "its sparsity has the unknown format %d", level.format);
    Sparsity::Level read;
    read.dense = level.format == abi::kDense;
    if (read.dense) {
      read.size = level.dense_size;
    } else {
      // No level of a tree whose nodes are all different has more of them than there are elements.
      const int64_t most = to->shape.elements();
      LITEFUSE_RETURN_IF_REFUSED(import_numbers(level.array_segments, most + 1, &read.segments));
      LITEFUSE_RETURN_IF_REFUSED(import_numbers(level.array_indices, most, &read.indices));
    }
    made->levels.push_back(std::move(read));
  }
  made->values = static_cast<int64_t>(from.bytes / size_of(to->type));
  to->sparsity = std::move(made);
  return Status();
}

Status import_tensor(const abi::Tensor& from, Tensor* to) {
  to->name = from.name != nullptr ? from.name : "";
  to->type = known_type(from.type);
  LITEFUSE_REQUIRE(to->type != Type::kNone, "tensor `%s` is of type %d, which regions do not know", to->name.c_str(),
                   from.type);
  LITEFUSE_REQUIRE(!from.is_variable, "tensor `%s` is a variable", to->name.c_str());
  LITEFUSE_REQUIRE(from.dims != nullptr && to->shape.assign(from.dims->data, from.dims->size),
                   "tensor `%s` has a shape that regions cannot have", to->name.c_str());
  LITEFUSE_RETURN_IF_REFUSED(import_quantization(from, &to->quantization).at("tensor `" + to->name + "`"));
  for (float scale : to->quantization.scales) {
    LITEFUSE_REQUIRE(std::isfinite(scale) && scale > 0.0f, "tensor `%s` has a scale of %g", to->name.c_str(),
                     static_cast<double>(scale));
  }
  const Range range = range_of(to->type);
  for (int32_t point : to->quantization.zero_points) {
    LITEFUSE_REQUIRE(range.clamp(point) == point, "tensor `%s` has a zero point of %d", to->name.c_str(), point);
  }
  if (from.sparsity != nullptr) {
    LITEFUSE_RETURN_IF_REFUSED(import_sparsity(from, to).at("tensor `" + to->name + "`"));
  }
  if (from.allocation_type == abi::kMmapRo && from.data != nullptr) {
    const size_t size = size_of(to->type);
    LITEFUSE_REQUIRE(to->sparsity != nullptr || static_cast<uint64_t>(to->shape.elements()) * size <= from.bytes,
                     "constant `%s` has %zu bytes, which are too few for %s of %s", to->name.c_str(), from.bytes,
                     name_of(to->type), to->shape.str().c_str());
    LITEFUSE_REQUIRE(reinterpret_cast<uintptr_t>(from.data) % size == 0, "constant `%s` is not aligned",
                     to->name.c_str());
    to->constant = from.data;
  }
  return Status();
}

template <typename T>
Activation activation_of(const T* p) {
  return static_cast<Activation>(p->activation);
}
Padding padding_of(int padding) {
  return padding == 1 ? Padding::kSame : padding == 2 ? Padding::kValid : Padding::kUnknown;
}

// What all sorts of convolutions have.
template <typename T>
Conv2dParams convolution_of(const T* p) {
  Conv2dParams q;
  q.padding = padding_of(p->padding);
  q.stride_w = p->stride_width;
  q.stride_h = p->stride_height;
  q.activation = activation_of(p);
  return q;
}

template <typename T>
Conv2dParams dilated_of(const T* p) {
  Conv2dParams q = convolution_of(p);
  q.dilation_w_factor = p->dilation_width_factor;
  q.dilation_h_factor = p->dilation_height_factor;
  return q;
}

// Reads builtin_data; `from` is not nullptr.
Status import_params(Kind kind, const void* from, Params* to) {
  switch (kind) {
    case Kind::kConv2d:
      *to = dilated_of(static_cast<const abi::ConvParams*>(from));
      return Status();
    case Kind::kDepthwiseConv2d: {
      const auto* p = static_cast<const abi::DepthwiseConvParams*>(from);
      Conv2dParams q = dilated_of(p);
      q.depth_multiplier = p->depth_multiplier;
      *to = q;
      return Status();
    }
    case Kind::kTransposeConv:
      *to = convolution_of(static_cast<const abi::TransposeConvParams*>(from));
      return Status();
    case Kind::kAveragePool2d:
    case Kind::kMaxPool2d: {
      const auto* p = static_cast<const abi::PoolParams*>(from);
      *to = PoolParams{padding_of(p->padding), p->stride_width,  p->stride_height,
                       p->filter_width,        p->filter_height, activation_of(p)};
      return Status();
    }
    case Kind::kFullyConnected: {
      const auto* p = static_cast<const abi::FullyConnectedParams*>(from);
      *to = FullyConnectedParams{activation_of(p), p->weights_format != 0, p->keep_num_dims,
                                 p->asymmetric_quantize_inputs};
      return Status();
    }
    case Kind::kBatchMatmul: {
      const auto* p = static_cast<const abi::BatchMatMulParams*>(from);
      *to = BatchMatmulParams{p->adj_x, p->adj_y, p->asymmetric_quantize_inputs};
      return Status();
    }
    case Kind::kAdd:
    case Kind::kSub: {
      const auto* p = static_cast<const abi::AddParams*>(from);
      *to = ActivationParams{activation_of(p), p->pot_scale_int16};
      return Status();
    }
    case Kind::kMul:
    case Kind::kDiv:
    case Kind::kL2Normalization:
      *to = ActivationParams{activation_of(static_cast<const abi::ActivationParams*>(from)), false};
      return Status();
    case Kind::kSoftmax:
      *to = SoftmaxParams{static_cast<const abi::SoftmaxParams*>(from)->beta};
      return Status();
    case Kind::kLeakyRelu:
      *to = LeakyReluParams{static_cast<const abi::LeakyReluParams*>(from)->alpha};
      return Status();
    case Kind::kGelu:
      *to = GeluParams{static_cast<const abi::GeluParams*>(from)->approximate};
      return Status();
    case Kind::kConcatenation: {
      const auto* p = static_cast<const abi::ConcatenationParams*>(from);
      *to = ConcatenationParams{p->axis, activation_of(p)};
      return Status();
    }
    case Kind::kPack:
      *to = AxisParams{static_cast<const abi::PackParams*>(from)->axis, 0};
      return Status();
    case Kind::kUnpack:
      *to = AxisParams{static_cast<const abi::UnpackParams*>(from)->axis, 0};
      return Status();
    case Kind::kGather: {
      const auto* p = static_cast<const abi::GatherParams*>(from);
      *to = AxisParams{p->axis, p->batch_dims};
      return Status();
    }
    case Kind::kSplit:
    case Kind::kSplitV:
      *to = SplitParams{static_cast<const abi::SplitParams*>(from)->num_splits};
      return Status();
    case Kind::kMean:
    case Kind::kSum:
    case Kind::kReduceMax:
    case Kind::kReduceMin:
    case Kind::kReduceProd:
      *to = ReducerParams{static_cast<const abi::ReducerParams*>(from)->keep_dims};
      return Status();
    case Kind::kResizeBilinear:
    case Kind::kResizeNearestNeighbor: {
      const auto* p = static_cast<const abi::ResizeParams*>(from);
      *to = ResizeParams{p->align_corners, p->half_pixel_centers};
      return Status();
    }
    case Kind::kReshape: {
      const auto* p = static_cast<const abi::ReshapeParams*>(from);
      LITEFUSE_REQUIRE(p->num_dimensions >= 0 && p->num_dimensions <= 8, "its options list %d dimensions",
                       p->num_dimensions);
      *to = ReshapeParams{std::vector<int32_t>(p->shape, p->shape + p->num_dimensions)};
      return Status();
    }
    case Kind::kSqueeze: {
      const auto* p = static_cast<const abi::SqueezeParams*>(from);
      LITEFUSE_REQUIRE(p->num_squeeze_dims >= 0 && p->num_squeeze_dims <= 8, "its options list %d dimensions",
                       p->num_squeeze_dims);
      *to = SqueezeParams{std::vector<int32_t>(p->squeeze_dims, p->squeeze_dims + p->num_squeeze_dims)};
      return Status();
    }
    case Kind::kStridedSlice: {
      const auto* p = static_cast<const abi::StridedSliceParams*>(from);
      *to = StridedSliceParams{p->begin_mask,    p->end_mask,         p->ellipsis_mask,
                               p->new_axis_mask, p->shrink_axis_mask, p->offset};
      return Status();
    }
    case Kind::kMirrorPad: {
      const int mode = static_cast<const abi::MirrorPaddingParams*>(from)->mode;
      LITEFUSE_REQUIRE(mode == 1 || mode == 2, "its padding mode is unknown");
      *to = MirrorPadParams{mode == 1};
      return Status();
    }
    case Kind::kDepthToSpace:
    case Kind::kSpaceToDepth:
      *to = BlockParams{static_cast<const abi::BlockParams*>(from)->block_size};
      return Status();
    default:
      return Status();  // the others have no options that matter
  }
}

// Reads tensors on first use.
class Tensors {
 public:
  Tensors(abi::Context* context, Region* region) : context_(context), region_(region) {}

  Status add(int tensor, int32_t* index) {
    auto found = known_.find(tensor);
    if (found != known_.end()) {
      *index = found->second;
      return Status();
    }
    LITEFUSE_REQUIRE(tensor >= 0 && static_cast<size_t>(tensor) < context_->tensors_size, "tensor %d does not exist",
                     tensor);
    Tensor read;
    LITEFUSE_RETURN_IF_REFUSED(import_tensor(context_->tensors[tensor], &read));
    *index = static_cast<int32_t>(region_->tensors.size());
    region_->tensors.push_back(std::move(read));
    known_[tensor] = *index;
    return Status();
  }

 private:
  abi::Context* context_;
  Region* region_;
  std::unordered_map<int, int32_t> known_;
};

Status import_operator(abi::Context* context, int index, Tensors* tensors, Operator* op) {
  abi::Node* node = nullptr;
  abi::Registration* registration = nullptr;
  LITEFUSE_REQUIRE(
      context->get_node_and_registration(context, index, &node, &registration) == abi::kOk && node && registration,
      "operator #%d does not exist", index);
  const auto kind = static_cast<Kind>(registration->builtin_code);
  const char* name = name_of(kind);
  if (name == nullptr || registration->builtin_code == abi::kBuiltinCustom) {
    return refuse("operator #%d of kind %d (%s) is none that regions may contain", index, registration->builtin_code,
                  registration->custom_name != nullptr ? registration->custom_name : "builtin");
  }
  op->kind = kind;
  op->version = registration->version;
  op->index = index;
  const std::string place = std::string(name) + " #" + std::to_string(index);
  if (node->builtin_data != nullptr) {
    LITEFUSE_RETURN_IF_REFUSED(import_params(kind, node->builtin_data, &op->params).at(place));
  } else {
    // What would be read from zeros tells whether this kind has options at all.
    static constexpr uint64_t kZeros[8] = {};
    Params options;
    const bool none = import_params(kind, kZeros, &options).ok() && std::holds_alternative<std::monostate>(options);
    LITEFUSE_REQUIRE(none, "%s: its options are missing", place.c_str());
  }
  for (int tensor : elements_of(node->inputs)) {
    int32_t read = -1;
    if (tensor != -1) LITEFUSE_RETURN_IF_REFUSED(tensors->add(tensor, &read).at(place));
    op->inputs.push_back(read);
  }
  for (int tensor : elements_of(node->outputs)) {
    int32_t read = -1;
    LITEFUSE_RETURN_IF_REFUSED(tensors->add(tensor, &read).at(place));
    op->outputs.push_back(read);
  }
  return Status();
}

}  // namespace

std::vector<int> elements_of(const abi::IntArray* array) {
  if (array == nullptr || array->size <= 0) return {};
  return std::vector<int>(array->data, array->data + array->size);
}

Status import_region(abi::Context* context, const std::vector<int>& nodes, const std::vector<int>& inputs,
                     const std::vector<int>& outputs, Region* region) {
  Tensors tensors(context, region);
  for (int node : nodes) {
    Operator op;
    LITEFUSE_RETURN_IF_REFUSED(import_operator(context, node, &tensors, &op));
    region->operators.push_back(std::move(op));
  }
  for (int tensor : inputs) {
    int32_t read = -1;
    LITEFUSE_RETURN_IF_REFUSED(tensors.add(tensor, &read));
    region->inputs.push_back(read);
  }
  for (int tensor : outputs) {
    int32_t read = -1;
    LITEFUSE_RETURN_IF_REFUSED(tensors.add(tensor, &read));
    region->outputs.push_back(read);
  }
  return Status();
}

}  // namespace litefuse
