// Every kernel with operators that are nearly right: what its prepare() accepts must run inside the memory it was
// given. The sanitizers judge that; without them this only shows that nothing crashes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/fixed_point.h"
#include "kernels/kernel.h"
#include "region/executor.h"
#include "tests/random.h"
#include "tests/sparse.h"

namespace litefuse {
namespace {

using fake::Random;
using Dims = std::vector<int32_t>;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory reserve(size_t bytes) {
  void* memory = nullptr;
  return Memory(posix_memalign(&memory, kAlignment, bytes) == 0 ? memory : nullptr);
}

// An operand of a case.
struct In {
  Type type = Type::kFloat32;
  Dims dims;
  bool constant = false;
  bool absent = false;
  std::vector<int64_t> values{};  // of constants of integers; random where there are too few
  int axis = -1;                  // of scales per channel
  std::shared_ptr<Sparsity> sparsity{};
};

struct Case {
  Kind kind = Kind::kAdd;
  std::vector<In> inputs;
  std::vector<Type> outputs;
  Params params;
};

In numbers(std::vector<int64_t> values, Type type = Type::kInt32, bool scalar = false) {
  In in{type, {static_cast<int32_t>(values.size())}, true, false, std::move(values)};
  if (scalar) in.dims = {};
  return in;
}

Dims random_dims(Random* random, int rank, int largest = 5) {
  Dims dims;
  for (int i = 0; i < rank; ++i) dims.push_back(random->between(1, largest));
  return dims;
}

// What a converter might have written.
Case plausible(Kind kind, Random* random) {
  Case made;
  made.kind = kind;
  auto& in = made.inputs;
  const Type any = random->of<Type>({Type::kFloat32, Type::kFloat32, Type::kInt8, Type::kInt8, Type::kUInt8,
                                     Type::kInt16, Type::kInt32, Type::kInt64, Type::kBool});
  const Type numeric =
      random->of<Type>({Type::kFloat32, Type::kFloat32, Type::kInt8, Type::kUInt8, Type::kInt16, Type::kInt32});
  const Type real = random->of<Type>({Type::kFloat32, Type::kFloat32, Type::kInt8, Type::kUInt8, Type::kInt16});
  const Type index = random->of<Type>({Type::kInt32, Type::kInt32, Type::kInt64});
  const int rank = random->between(1, 5);
  const Dims dims = random_dims(random, rank);
  const Dims image = random_dims(random, 4, 6);
  const auto activation = static_cast<Activation>(random->between(0, 3));
  const Padding padding = random->one_in(2) ? Padding::kSame : Padding::kValid;
  const Type bias_type = real == Type::kFloat32 ? Type::kFloat32 : real == Type::kInt16 ? Type::kInt64 : Type::kInt32;
  const Type weight_type = real == Type::kInt16                          ? Type::kInt8
                           : real == Type::kFloat32 && random->one_in(4) ? Type::kInt8
                                                                         : real;
  auto one = [&](Type type) {
    in = {{type, dims}};
    made.outputs = {type};
  };
  switch (kind) {
    case Kind::kConv2d:
    case Kind::kDepthwiseConv2d: {
      const int out = random->between(1, 4), kh = random->between(1, 3), kw = random->between(1, 3);
      const bool depthwise = kind == Kind::kDepthwiseConv2d;
      const int32_t channels = depthwise ? image[3] * out : out;
      in = {{real, image},
            {weight_type, depthwise ? Dims{1, kh, kw, channels} : Dims{out, kh, kw, image[3]}, true},
            {bias_type, {channels}, true}};
      in[1].axis = weight_type == Type::kInt8 && random->one_in(2) ? (depthwise ? 3 : 0) : -1;
      in[2].axis = in[1].axis >= 0 ? 0 : -1;
      if (random->one_in(3)) in.pop_back();
      Conv2dParams p;
      p.padding = padding;
      p.stride_w = random->between(1, 2);
      p.stride_h = random->between(1, 2);
      p.dilation_w_factor = p.dilation_h_factor = random->between(1, 2);
      p.depth_multiplier = depthwise ? out : 1;
      p.activation = activation;
      made.params = p;
      made.outputs = {real};
      break;
    }
    case Kind::kTransposeConv: {
      const int out = random->between(1, 4), k = random->between(1, 3), stride = random->between(1, 2);
      const bool same = padding == Padding::kSame;
      auto length = [&](int n) { return int64_t{same ? n * stride : (n - 1) * stride + k}; };
      in = {numbers({image[0], length(image[1]), length(image[2]), out}),
            {weight_type, {out, k, k, image[3]}, true},
            {real, image}};
      if (random->one_in(2)) in.push_back({bias_type, {out}, true});
      if (real == Type::kFloat32) in[1].type = real;
      Conv2dParams p;
      p.padding = padding;
      p.stride_w = p.stride_h = stride;
      made.params = p;
      made.outputs = {real};
      break;
    }
    case Kind::kFullyConnected: {
      const int out = random->between(1, 5);
      in = {{real, dims}, {weight_type, {out, dims.back()}, true}, {bias_type, {out}, true}};
      if (weight_type == Type::kInt8 && random->one_in(3)) in[1].axis = in[2].axis = 0;
      if (random->one_in(3)) in[2].absent = true;
      FullyConnectedParams p;
      p.activation = activation;
      p.keep_num_dims = random->one_in(2);
      p.asymmetric_quantize_inputs = random->one_in(2);
      made.params = p;
      made.outputs = {real};
      break;
    }
    case Kind::kBatchMatmul: {
      BatchMatmulParams p{random->one_in(2), random->one_in(2), random->one_in(2)};
      const int m = random->between(1, 4), k = random->between(1, 4), n = random->between(1, 4);
      Dims a = random_dims(random, random->between(0, 3), 3), b = a;
      if (random->one_in(3) && !b.empty()) b[0] = 1;
      a.insert(a.end(), {p.adj_x ? k : m, p.adj_x ? m : k});
      b.insert(b.end(), {p.adj_y ? n : k, p.adj_y ? k : n});
      in = {{real, a}, {weight_type, b, random->one_in(2)}};
      made.params = p;
      made.outputs = {real};
      break;
    }
    case Kind::kPrelu: {
      Dims alpha(image.size(), 1);
      alpha.back() = image.back();
      in = {{real, image}, {real, alpha, true}};
      made.outputs = {real};
      break;
    }
    case Kind::kLogicalAnd:
    case Kind::kLogicalOr:
      in = {{Type::kBool, dims}, {Type::kBool, dims}};
      made.outputs = {Type::kBool};
      break;
    case Kind::kLogicalNot:
      one(Type::kBool);
      break;
    case Kind::kSelect:
    case Kind::kSelectV2:
      in = {{Type::kBool, dims}, {any, dims}, {any, dims}};
      if (kind == Kind::kSelectV2 && random->one_in(2)) in[1].dims.back() = 1;
      made.outputs = {any};
      break;
    case Kind::kQuantize:
      in = {{numeric, dims}};
      made.outputs = {random->of<Type>({Type::kInt8, Type::kUInt8, Type::kInt16, Type::kInt32})};
      break;
    case Kind::kDequantize:
      in = {{random->of<Type>({Type::kInt8, Type::kUInt8, Type::kInt16, Type::kFloat16, Type::kInt32}), dims,
             random->one_in(2)}};
      if (random->one_in(3)) in[0].axis = random->below(rank);
      made.outputs = {Type::kFloat32};
      break;
    case Kind::kDensify: {
      const Type type = random->of<Type>({Type::kFloat32, Type::kFloat16, Type::kInt8});
      Shape shape;
      if (!shape.assign(dims)) break;
      std::vector<int8_t> all(static_cast<size_t>(shape.elements()));
      for (int8_t& x : all) x = random->one_in(3) ? 1 : 0;
      in = {{type, dims, true}};
      in[0].sparsity = std::make_shared<Sparsity>(make_sparse(all, dims, fake::random_form(dims, random)).how);
      made.outputs = {type};
      break;
    }
    case Kind::kCast:
      one(any);
      made.outputs = {random->of<Type>({Type::kFloat32, Type::kInt8, Type::kUInt8, Type::kInt16, Type::kInt32,
                                        Type::kInt64, Type::kBool, Type::kFloat16})};
      break;
    case Kind::kMean:
    case Kind::kSum:
    case Kind::kReduceMax:
    case Kind::kReduceMin:
    case Kind::kReduceProd: {
      std::vector<int64_t> axes;
      for (int i = 0, n = random->between(1, rank); i < n; ++i) axes.push_back(random->between(-rank, rank - 1));
      one(numeric);
      in.push_back(numbers(axes, Type::kInt32, axes.size() == 1 && random->one_in(2)));
      made.params = ReducerParams{random->one_in(2)};
      break;
    }
    case Kind::kSoftmax:
      one(real);
      made.params = SoftmaxParams{random->one_in(4) ? random->odd_float() : 1.0f};
      if (random->one_in(4)) made.outputs = {Type::kInt16};
      break;
    case Kind::kAveragePool2d:
    case Kind::kMaxPool2d:
      in = {{real, image}};
      made.outputs = {real};
      made.params = PoolParams{
          padding,   random->between(1, 3), random->between(1, 3), random->between(1, 3), random->between(1, 3),
          activation};
      break;
    case Kind::kL2Normalization:
      one(real);
      made.params = ActivationParams();
      break;
    case Kind::kResizeBilinear:
    case Kind::kResizeNearestNeighbor: {
      in = {{real, image}, numbers({random->between(1, 7), random->between(1, 7)})};
      made.outputs = {real};
      const bool corners = random->one_in(3);
      made.params = ResizeParams{corners, !corners && random->one_in(2)};
      break;
    }
    case Kind::kReshape: {
      one(any);
      std::vector<int64_t> shape(dims.rbegin(), dims.rend());
      if (random->one_in(3)) shape[static_cast<size_t>(random->below(rank))] = -1;
      if (random->one_in(3)) {
        made.params = ReshapeParams{std::vector<int32_t>(shape.begin(), shape.end())};
      } else {
        in.push_back(numbers(shape));
      }
      break;
    }
    case Kind::kSqueeze: {
      one(any);
      SqueezeParams p;
      const int which = random->below(rank);
      in[0].dims[static_cast<size_t>(which)] = 1;
      if (random->one_in(2)) p.squeeze_dims = {random->one_in(2) ? which : which - rank};
      made.params = p;
      break;
    }
    case Kind::kExpandDims:
      one(any);
      in.push_back(numbers({random->between(-rank - 1, rank)}, index, random->one_in(2)));
      break;
    case Kind::kTranspose: {
      one(any);
      std::vector<int64_t> order;
      for (int i = 0; i < rank; ++i) order.push_back(i);
      for (int i = rank - 1; i > 0; --i) {
        std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(random->below(i + 1))]);
      }
      in.push_back(numbers(order));
      break;
    }
    case Kind::kPad:
    case Kind::kPadV2:
    case Kind::kMirrorPad: {
      one(any);
      std::vector<int64_t> pads;
      for (int i = 0; i < 2 * rank; ++i) {
        pads.push_back(random->between(0, kind == Kind::kMirrorPad ? in[0].dims[static_cast<size_t>(i / 2)] - 1 : 3));
      }
      in.push_back(numbers(pads, index));
      in[1].dims = {rank, 2};
      if (kind == Kind::kPadV2) in.push_back({any, {1}, random->one_in(2)});
      if (kind == Kind::kMirrorPad) made.params = MirrorPadParams{random->one_in(2)};
      break;
    }
    case Kind::kConcatenation: {
      const int axis = random->below(rank);
      for (int i = 0, n = random->between(1, 4); i < n; ++i) {
        in.push_back({any, dims, random->one_in(4)});
        in.back().dims[static_cast<size_t>(axis)] = random->between(1, 3);
      }
      made.outputs = {any};
      made.params = ConcatenationParams{random->one_in(2) ? axis : axis - rank, Activation::kNone};
      break;
    }
    case Kind::kSplit: {
      const int axis = random->below(rank), parts = random->between(1, 3);
      in = {numbers({random->one_in(2) ? axis : axis - rank}, Type::kInt32, random->one_in(2)), {any, dims}};
      in[1].dims[static_cast<size_t>(axis)] = parts * random->between(1, 2);
      made.outputs.assign(static_cast<size_t>(parts), any);
      made.params = SplitParams{parts};
      break;
    }
    case Kind::kSplitV: {
      const int axis = random->below(rank), parts = random->between(1, 3);
      std::vector<int64_t> sizes;
      int64_t sum = 0;
      for (int i = 0; i < parts; ++i) sum += sizes.emplace_back(random->between(0, 3));
      if (random->one_in(3)) sizes[0] = -1;
      in = {{any, dims}, numbers(sizes, index), numbers({axis}, Type::kInt32, random->one_in(2))};
      in[0].dims[static_cast<size_t>(axis)] = static_cast<int32_t>(sum);
      made.outputs.assign(static_cast<size_t>(parts), any);
      made.params = SplitParams{parts};
      break;
    }
    case Kind::kSlice:
    case Kind::kStridedSlice: {
      one(any);
      std::vector<int64_t> begin, second, strides;
      for (int32_t n : dims) {
        begin.push_back(random->below(n));
        second.push_back(kind == Kind::kSlice ? random->between(-1, n - static_cast<int>(begin.back()))
                                              : random->between(static_cast<int>(begin.back()), n + 2));
        strides.push_back(random->of<int64_t>({1, 1, 2, -1, -2}));
      }
      in.push_back(numbers(begin, index));
      in.push_back(numbers(second, index));
      if (kind == Kind::kStridedSlice) {
        in.push_back(numbers(strides, index));
        auto mask = [random]() { return random->one_in(2) ? random->below(32) : 0; };
        made.params = StridedSliceParams{mask(),
                                         mask(),
                                         random->one_in(5) ? 1 << random->below(5) : 0,
                                         random->one_in(5) ? random->below(32) : 0,
                                         random->one_in(3) ? random->below(32) : 0,
                                         random->one_in(5)};
      }
      break;
    }
    case Kind::kPack: {
      const int count = random->between(1, 4);
      in.assign(static_cast<size_t>(count), In{any, dims});
      made.outputs = {any};
      made.params = AxisParams{random->between(-rank - 1, rank), 0};
      break;
    }
    case Kind::kUnpack: {
      const int axis = random->below(rank);
      one(any);
      made.outputs.assign(static_cast<size_t>(dims[static_cast<size_t>(axis)]), any);
      made.params = AxisParams{random->one_in(2) ? axis : axis - rank, 0};
      break;
    }
    case Kind::kGather: {
      const int axis = random->below(rank), batch = random->one_in(3) ? random->between(0, axis) : 0;
      Dims where(dims.begin(), dims.begin() + batch);
      for (int i = 0, n = random->below(3); i < n; ++i) where.push_back(random->between(1, 4));
      one(any);
      in.push_back({index, where, random->one_in(2)});
      for (int i = 0; i < 300; ++i) in[1].values.push_back(random->below(dims[static_cast<size_t>(axis)]));
      made.params = AxisParams{axis, batch};
      break;
    }
    case Kind::kTile:
    case Kind::kBroadcastTo: {
      one(any);
      std::vector<int64_t> counts;
      for (int i = 0; i < rank; ++i) counts.push_back(random->between(kind == Kind::kTile ? 0 : 1, 3));
      if (kind == Kind::kBroadcastTo) {
        for (size_t i = 0; i < counts.size(); ++i) {
          if (random->one_in(2)) {
            in[0].dims[i] = 1;
          } else {
            counts[i] = dims[i];
          }
        }
      }
      in.push_back(numbers(counts, index));
      break;
    }
    case Kind::kDepthToSpace:
    case Kind::kSpaceToDepth: {
      const int block = random->between(1, 3);
      in = {{any, image}};
      if (kind == Kind::kDepthToSpace) {
        in[0].dims[3] = block * block * random->between(1, 2);
      } else {
        in[0].dims[1] = block * random->between(1, 2);
        in[0].dims[2] = block * random->between(1, 2);
      }
      made.outputs = {any};
      made.params = BlockParams{block};
      break;
    }
    case Kind::kSpaceToBatchNd:
    case Kind::kBatchToSpaceNd: {
      const int a = random->between(1, 2), b = random->between(1, 2);
      std::vector<int64_t> ends{random->below(2), random->below(2), random->below(2), random->below(2)};
      in = {{any, image}, numbers({a, b}), numbers(ends)};
      in[2].dims = {2, 2};
      if (kind == Kind::kSpaceToBatchNd) {
        in[0].dims[1] = static_cast<int32_t>(a * random->between(1, 3) - ends[0] - ends[1]);
        in[0].dims[2] = static_cast<int32_t>(b * random->between(1, 3) - ends[2] - ends[3]);
        in[0].dims[1] = std::max(in[0].dims[1], 0);
        in[0].dims[2] = std::max(in[0].dims[2], 0);
      } else {
        in[0].dims[0] = a * b * random->between(1, 2);
      }
      made.outputs = {any};
      break;
    }
    case Kind::kReverseV2:
      one(any);
      in.push_back(numbers({random->between(-rank, rank - 1)}));
      break;
    case Kind::kEqual:
    case Kind::kNotEqual:
    case Kind::kLess:
    case Kind::kLessEqual:
    case Kind::kGreater:
    case Kind::kGreaterEqual:
    case Kind::kAdd:
    case Kind::kSub:
    case Kind::kMul:
    case Kind::kDiv:
    case Kind::kMaximum:
    case Kind::kMinimum:
    case Kind::kSquaredDifference:
    case Kind::kPow:
    case Kind::kFloorDiv:
    case Kind::kFloorMod: {
      const Type type = random->one_in(6) ? Type::kInt64 : numeric;
      in = {{type, dims, random->one_in(6)}, {type, dims, random->one_in(3)}};
      In& small = in[static_cast<size_t>(random->below(2))];
      if (random->one_in(3)) small.dims.erase(small.dims.begin(), small.dims.begin() + random->between(0, rank));
      if (random->one_in(3) && !small.dims.empty()) {
        small.dims[static_cast<size_t>(random->below(static_cast<int>(small.dims.size())))] = 1;
      }
      const bool compares = kind >= Kind::kEqual && kind <= Kind::kNotEqual;
      const bool orders = kind == Kind::kLess || (kind >= Kind::kGreater && kind <= Kind::kLessEqual);
      made.outputs = {compares || orders ? Type::kBool : type};
      if (kind == Kind::kAdd || kind == Kind::kSub || kind == Kind::kMul || kind == Kind::kDiv) {
        made.params = ActivationParams{activation, random->one_in(4)};
      }
      break;
    }
    default:  // of one operand
      one(random->one_in(6) ? any : real);
      if (kind == Kind::kLeakyRelu) made.params = LeakyReluParams{random->odd_float()};
      if (kind == Kind::kGelu) made.params = GeluParams{random->one_in(2)};
      break;
  }
  return made;
}

// Sets something in the parameters to what no converter writes.
class Spoiler {
 public:
  explicit Spoiler(Random* random) : random_(random) {}

  void operator()(std::monostate&) const {}
  void operator()(Conv2dParams& p) const {
    int32_t* fields[] = {&p.stride_w, &p.stride_h, &p.dilation_w_factor, &p.dilation_h_factor, &p.depth_multiplier};
    if (random_->one_in(4)) p.padding = static_cast<Padding>(random_->between(-1, 3));
    if (random_->one_in(4)) p.activation = static_cast<Activation>(random_->odd());
    *fields[random_->below(5)] = random_->odd();
  }
  void operator()(PoolParams& p) const {
    int32_t* fields[] = {&p.stride_w, &p.stride_h, &p.filter_width, &p.filter_height};
    if (random_->one_in(4)) p.padding = static_cast<Padding>(random_->between(-1, 3));
    if (random_->one_in(4)) p.activation = static_cast<Activation>(random_->odd());
    *fields[random_->below(4)] = random_->odd();
  }
  void operator()(FullyConnectedParams& p) const {
    p.activation = static_cast<Activation>(random_->odd());
    p.shuffled_weights = random_->one_in(4);
  }
  void operator()(BatchMatmulParams& p) const { (random_->one_in(2) ? p.adj_x : p.adj_y) ^= true; }
  void operator()(ActivationParams& p) const {
    p.activation = static_cast<Activation>(random_->odd());
    p.pot_scale_int16 = random_->one_in(2);
  }
  void operator()(SoftmaxParams& p) const { p.beta = random_->odd_float(); }
  void operator()(LeakyReluParams& p) const { p.alpha = random_->odd_float(); }
  void operator()(GeluParams& p) const { p.approximate ^= true; }
  void operator()(ConcatenationParams& p) const {
    if (random_->one_in(3)) p.activation = static_cast<Activation>(random_->odd());
    p.axis = random_->odd();
  }
  void operator()(AxisParams& p) const { (random_->one_in(2) ? p.axis : p.batch_dims) = random_->odd(); }
  void operator()(SplitParams& p) const { p.num_splits = random_->odd(); }
  void operator()(ReducerParams& p) const { p.keep_dims ^= true; }
  void operator()(ResizeParams& p) const { (random_->one_in(2) ? p.align_corners : p.half_pixel_centers) ^= true; }
  void operator()(ReshapeParams& p) const { spoil(&p.new_shape); }
  void operator()(SqueezeParams& p) const { spoil(&p.squeeze_dims); }
  void operator()(StridedSliceParams& p) const {
    int32_t* fields[] = {&p.begin_mask, &p.end_mask, &p.ellipsis_mask, &p.new_axis_mask, &p.shrink_axis_mask};
    *fields[random_->below(5)] = random_->one_in(2) ? random_->odd() : random_->below(256);
  }
  void operator()(MirrorPadParams& p) const { p.reflect ^= true; }
  void operator()(BlockParams& p) const { p.block_size = random_->odd(); }

 private:
  void spoil(std::vector<int32_t>* list) const {
    if (list->empty() || random_->one_in(4)) {
      list->push_back(random_->odd());
    } else {
      (*list)[static_cast<size_t>(random_->below(static_cast<int>(list->size())))] = random_->odd();
    }
  }
  Random* random_;
};

Type any_type(Random* random) {
  return random->of<Type>({Type::kFloat32, Type::kInt32, Type::kUInt8, Type::kInt64, Type::kBool, Type::kInt16,
                           Type::kInt8, Type::kFloat16});
}

void spoil_dims(Dims* dims, Random* random) {
  switch (random->below(4)) {
    case 0:
      dims->insert(dims->begin() + random->below(static_cast<int>(dims->size()) + 1), random->between(0, 3));
      break;
    case 1:
      if (!dims->empty()) dims->erase(dims->begin() + random->below(static_cast<int>(dims->size())));
      break;
    default:
      if (!dims->empty()) {
        (*dims)[static_cast<size_t>(random->below(static_cast<int>(dims->size())))] =
            random->one_in(3) ? std::max(random->odd(), 0) : random->between(0, 7);
      }
  }
}

void spoil(Case* made, Random* random) {
  auto input = [&]() -> In& {
    return made->inputs[static_cast<size_t>(random->below(static_cast<int>(made->inputs.size())))];
  };
  if (made->inputs.empty()) return;
  if (made->inputs[0].sparsity != nullptr && random->one_in(2)) {
    // Another of its own: inputs may share it.
    made->inputs[0].sparsity = std::make_shared<Sparsity>(*made->inputs[0].sparsity);
    fake::spoil(made->inputs[0].sparsity.get(), random);
    return;
  }
  switch (random->below(9)) {
    case 0:
      input().type = any_type(random);
      break;
    case 1:
    case 2:
      spoil_dims(&input().dims, random);
      break;
    case 3: {
      In& in = input();
      if (in.values.empty()) break;
      in.values[static_cast<size_t>(random->below(static_cast<int>(in.values.size())))] =
          random->one_in(8) ? static_cast<int64_t>(random->bits()) : random->odd();
      break;
    }
    case 4:
      std::visit(Spoiler(random), made->params);
      break;
    case 5:
      input().constant ^= true;
      break;
    case 6:
      if (random->one_in(3)) {
        input().absent = true;
      } else if (random->one_in(2)) {
        made->inputs.pop_back();
      } else {
        made->inputs.push_back(input());
      }
      break;
    case 7:
      if (random->one_in(2) && !made->outputs.empty()) {
        made->outputs[0] = any_type(random);
      } else if (random->one_in(2)) {
        made->outputs.push_back(any_type(random));
      } else if (made->outputs.size() > 1) {
        made->outputs.pop_back();
      }
      break;
    default:
      input().axis = random->between(-1, 4);
  }
}

// What the importer lets through: finite positive scales, zero points that the type holds, as many of them as the
// dimension has.
Quantization random_quantization(Type type, const Shape& shape, int axis, Random* random) {
  Quantization q;
  const bool small = type == Type::kInt8 || type == Type::kUInt8 || type == Type::kInt16;
  if (random->one_in(small || axis >= 0 ? 12 : 3)) return q;
  const Range range = range_of(type);
  const bool channels = axis >= 0 && axis < shape.rank() && shape[axis] > 1 && shape[axis] < 100;
  const int count = channels ? shape[axis] : 1;
  for (int i = 0; i < count; ++i) {
    q.scales.push_back(random->scale());
    int32_t point = 0;
    if (small && type != Type::kInt16 && axis < 0) point = range.clamp(random->between(-140, 260));
    if (random->one_in(20)) point = range.clamp(random->odd());
    q.zero_points.push_back(point);
  }
  q.axis = channels ? axis : 0;
  return q;
}

void fill(void* memory, Type type, int64_t count, const std::vector<int64_t>& values, Random* random) {
  for (int64_t i = 0; i < count; ++i) {
    const bool given = i < static_cast<int64_t>(values.size());
    const int64_t integer = given ? values[static_cast<size_t>(i)] : static_cast<int64_t>(random->bits());
    switch (type) {
      case Type::kFloat32:
        static_cast<float*>(memory)[i] = random->odd_float();
        break;
      case Type::kBool:
        static_cast<uint8_t*>(memory)[i] = static_cast<uint8_t>(integer & 1);
        break;
      default: {
        const size_t size = size_of(type);
        const int64_t value = given || !random->one_in(3) ? integer : random->odd();
        std::memcpy(static_cast<char*>(memory) + static_cast<size_t>(i) * size, &value, size);
      }
    }
  }
}

struct Counts {
  int accepted = 0;
  int refused = 0;
  int prepared_again = 0;
};

constexpr int64_t kLargest = 1 << 18;
constexpr int64_t kMostWork = 1 << 20;

// Runs it if it is small enough to be run. `inputs` are those that are not constant.
void run(Executable* executable, const Region& region, const std::vector<Shape>& shapes,
         const std::vector<const In*>& operands, Random* random) {
  int64_t largest = 1;
  int64_t made = 1;
  for (const Tensor& tensor : region.tensors) {
    if (tensor.constant != nullptr) largest = std::max(largest, tensor.shape.elements());
  }
  for (const Shape& shape : shapes) largest = std::max(largest, shape.elements());
  for (size_t i = 0; i < region.outputs.size(); ++i) made += executable->output_shape(i).elements();
  if (largest > kLargest || made > kLargest || largest * made > kMostWork ||
      executable->scratch_bytes() > size_t{1} << 24) {
    return;
  }
  std::vector<Memory> memory;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Type type = region.tensors[static_cast<size_t>(region.inputs[i])].type;
    memory.push_back(reserve(static_cast<size_t>(shapes[i].elements()) * size_of(type)));
    fill(memory.back().get(), type, shapes[i].elements(), operands[i]->values, random);
    inputs.push_back(memory.back().get());
  }
  for (size_t i = 0; i < region.outputs.size(); ++i) {
    const Type type = region.tensors[static_cast<size_t>(region.outputs[i])].type;
    memory.push_back(reserve(static_cast<size_t>(executable->output_shape(i).elements()) * size_of(type)));
    outputs.push_back(memory.back().get());
  }
  const Memory scratch = reserve(executable->scratch_bytes());
  EXPECT_TRUE(executable->run(inputs, outputs, scratch.get(), nullptr).ok());
}

void try_case(const Case& made, Random* random, Counts* counts) {
  Region region;
  region.kind = "fuzz";
  Operator op;
  op.kind = made.kind;
  op.params = made.params;
  std::vector<Memory> constants;
  std::vector<const In*> operands;
  std::vector<Shape> shapes;
  for (const In& in : made.inputs) {
    if (in.absent) {
      op.inputs.push_back(-1);
      continue;
    }
    Tensor tensor;
    tensor.name = "t";
    tensor.type = in.type;
    if (!tensor.shape.assign(in.dims)) return;
    tensor.quantization = random_quantization(in.type, tensor.shape, in.axis, random);
    op.inputs.push_back(static_cast<int32_t>(region.tensors.size()));
    if (in.constant) {
      if (tensor.shape.elements() > kLargest) return;
      const int64_t count = in.sparsity != nullptr ? in.sparsity->values : tensor.shape.elements();
      constants.push_back(reserve(static_cast<size_t>(count) * size_of(in.type)));
      fill(constants.back().get(), in.type, count, in.values, random);
      tensor.sparsity = in.sparsity;
      tensor.constant = constants.back().get();
    } else {
      region.inputs.push_back(op.inputs.back());
      operands.push_back(&in);
      shapes.push_back(tensor.shape);
    }
    region.tensors.push_back(std::move(tensor));
  }
  for (Type type : made.outputs) {
    Tensor tensor;
    tensor.name = "y";
    tensor.type = type;
    tensor.quantization = random_quantization(type, tensor.shape, -1, random);
    // Kernels such as RESHAPE or MAXIMUM want the scale of their input on their output.
    if (random->one_in(2) && !region.tensors.empty()) tensor.quantization = region.tensors[0].quantization;
    if (tensor.quantization.per_channel()) tensor.quantization = {};
    for (int32_t& point : tensor.quantization.zero_points) point = range_of(type).clamp(point);
    op.outputs.push_back(static_cast<int32_t>(region.tensors.size()));
    region.outputs.push_back(op.outputs.back());
    region.tensors.push_back(std::move(tensor));
  }
  region.operators.push_back(op);
  std::unique_ptr<Executable> executable;
  const Status status = Executor::compile(region, CompileOptions(), nullptr, &executable);
  ++(status.ok() ? counts->accepted : counts->refused);
  if (!status.ok()) return;
  run(executable.get(), region, shapes, operands, random);
  // What the reference kernels take, the fast ones take, too, in the same shapes.
  static const std::shared_ptr<Threads> teams[] = {std::make_shared<Threads>(1), std::make_shared<Threads>(2)};
  std::unique_ptr<Executable> fast[2];
  for (int i = 0; i < 2; ++i) {
    const Status same = Executor::compile(region, CompileOptions(), teams[i], &fast[i]);
    ASSERT_TRUE(same.ok()) << same.reason();
    run(fast[i].get(), region, shapes, operands, random);
  }
  // The runtime resizes something.
  for (int again = 0; again < 2 && !shapes.empty(); ++again) {
    std::vector<Shape> others = shapes;
    Shape& shape = others[static_cast<size_t>(random->below(static_cast<int>(others.size())))];
    Dims dims(shape.data(), shape.data() + shape.rank());
    spoil_dims(&dims, random);
    if (!shape.assign(dims) || !executable->prepare(others).ok()) continue;
    ++counts->prepared_again;
    run(executable.get(), region, others, operands, random);
    for (const auto& other : fast) {
      ASSERT_TRUE(other->prepare(others).ok());
      run(other.get(), region, others, operands, random);
    }
  }
}

class KernelFuzz : public testing::TestWithParam<Kind> {};

TEST_P(KernelFuzz, WhatIsAcceptedStaysInItsMemory) {
  Counts counts;
  const uint64_t first = fake::first_seed();
  for (uint64_t seed = first; seed < first + 600; ++seed) {
    Random random(seed * 1000 + static_cast<uint64_t>(GetParam()));
    // To find a failure again, the seed is needed.
    ::testing::ScopedTrace trace(__FILE__, __LINE__, std::to_string(seed));
    Case made = plausible(GetParam(), &random);
    for (int i = 0, n = random.one_in(3) ? 0 : random.between(1, 3); i < n; ++i) spoil(&made, &random);
    try_case(made, &random, &counts);
  }
  EXPECT_GT(counts.accepted, 30) << "of 600, with " << counts.refused << " refused";
  EXPECT_GT(counts.refused, 30);
  if (GetParam() != Kind::kDensify) {  // which reads constants alone
    EXPECT_GT(counts.prepared_again, 5);
  }
}

constexpr Kind kAll[] = {
#define LITEFUSE_KERNEL(kind, name, make) Kind::kind,
#include "kernels/kernels.inc"
#undef LITEFUSE_KERNEL
};

INSTANTIATE_TEST_SUITE_P(All, KernelFuzz, testing::ValuesIn(kAll),
                         [](const testing::TestParamInfo<Kind>& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace litefuse
