// Random regions through the fast pipelines: the same as in the reference kernels, and the same to the bit however they
// are cut into strips and by however many threads they are run.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "region/executor.h"
#include "tests/random.h"
#include "tests/simd_targets.h"

namespace litefuse {
namespace {

using fake::Random;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory reserve(size_t bytes) {
  void* memory = nullptr;
  return Memory(posix_memalign(&memory, kAlignment, bytes + 1) == 0 ? memory : nullptr);
}

// Makes a region operator by operator, each on a tensor that there is.
class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}

  Region make() {
    const int rank = random_.one_in(5) ? random_.between(1, 3) : 4;
    Shape shape;
    const std::vector<int32_t> channels = {1, 2, 3, 5, 7, 8, 12, 16, 19, 24, 33};
    const int32_t batch = random_.one_in(4) ? random_.between(2, 3) : 1;
    if (rank == 4) {
      const int32_t height = random_.one_in(8) ? 1 : random_.between(1, 19);
      const int32_t width = random_.one_in(6) ? 1 : random_.between(1, 19);
      EXPECT_TRUE(shape.assign({batch, height, width, random_.of(channels)}));
    } else {
      std::vector<int32_t> dims;
      for (int i = 0; i + 1 < rank; ++i) dims.push_back(random_.between(1, 9));
      dims.push_back(random_.of(channels));
      EXPECT_TRUE(shape.assign(dims));
    }
    const int inputs = random_.between(1, 2);
    for (int i = 0; i < inputs; ++i) region_.inputs.push_back(add(shape));
    alive_ = region_.inputs;
    const int operators = random_.between(1, 9);
    for (int i = 0; i < 4 * operators && static_cast<int>(region_.operators.size()) < operators; ++i) step();
    // What nobody reads leaves, and some of the rest.
    std::vector<bool> read(region_.tensors.size(), false);
    for (const Operator& op : region_.operators) {
      for (int32_t t : op.inputs) read[static_cast<size_t>(t)] = true;
    }
    for (const Operator& op : region_.operators) {
      for (int32_t t : op.outputs) {
        if (!read[static_cast<size_t>(t)] || random_.one_in(8)) region_.outputs.push_back(t);
      }
    }
    region_.kind = "random";
    return region_;
  }

  std::vector<std::unique_ptr<std::vector<float>>> floats;
  std::vector<std::unique_ptr<std::vector<int32_t>>> integers;
  std::vector<std::unique_ptr<std::vector<uint16_t>>> halves;

 private:
  int32_t add(const Shape& shape, const void* constant = nullptr, Type type = Type::kFloat32) {
    Tensor tensor;
    tensor.name = "t" + std::to_string(region_.tensors.size());
    tensor.type = type;
    tensor.shape = shape;
    tensor.constant = constant;
    region_.tensors.push_back(tensor);
    return static_cast<int32_t>(region_.tensors.size()) - 1;
  }

  int32_t weights(const Shape& shape, float scale) {
    floats.push_back(std::make_unique<std::vector<float>>(static_cast<size_t>(shape.elements())));
    for (float& x : *floats.back()) x = scale * (static_cast<float>(random_.below(2001)) / 1000.0f - 1.0f);
    return add(shape, floats.back()->data());
  }

  // Weights that may be stored as float16.
  int32_t filter(const Shape& shape, float scale) {
    // The largest that DEQUANTIZE is emitted for.
    if (shape.elements() > kMostElements || !random_.one_in(4)) return weights(shape, scale);
    halves.push_back(std::make_unique<std::vector<uint16_t>>(static_cast<size_t>(shape.elements())));
    for (uint16_t& x : *halves.back()) {
      x = static_cast<uint16_t>(random_.below(2) << 15 | random_.between(0, 13) << 10 | random_.below(1024));
    }
    const int32_t half = add(shape, halves.back()->data(), Type::kFloat16);
    EXPECT_TRUE(emit(Kind::kDequantize, {half}));
    const int32_t result = alive_.back();
    alive_.pop_back();
    return result;
  }

  int32_t numbers(const std::vector<int32_t>& values, const Shape& shape) {
    integers.push_back(std::make_unique<std::vector<int32_t>>(values));
    return add(shape, integers.back()->data(), Type::kInt32);
  }

  const Shape& shape(int32_t t) const { return region_.tensors[static_cast<size_t>(t)].shape; }

  // Adds the operator if the reference kernel takes it.
  bool emit(Kind kind, std::vector<int32_t> inputs, Params params = {}, int outputs = 1) {
    Operator op;
    op.kind = kind;
    op.inputs = std::move(inputs);
    op.params = std::move(params);
    op.index = static_cast<int32_t>(region_.operators.size());
    Call call;
    call.op = &op;
    for (int32_t t : op.inputs) {
      Operand operand;
      operand.tensor = &region_.tensors[static_cast<size_t>(t)];
      operand.shape = operand.tensor->shape;
      operand.data = const_cast<void*>(operand.tensor->constant);
      call.inputs.push_back(operand);
    }
    Tensor result;
    result.type = Type::kFloat32;
    for (int i = 0; i < outputs; ++i) {
      Operand operand;
      operand.tensor = &result;
      call.outputs.push_back(operand);
    }
    const auto kernel = reference_kernel(kind)();
    if (!kernel->prepare(call).ok()) return false;
    for (const Operand& output : call.outputs) {
      if (output.elements() == 0 || output.elements() > kMostElements) return false;
    }
    for (const Operand& output : call.outputs) op.outputs.push_back(add(output.shape));
    for (int32_t t : op.outputs) alive_.push_back(t);
    region_.operators.push_back(op);
    return true;
  }

  Activation activation() {
    return random_.of<Activation>(
        {Activation::kNone, Activation::kNone, Activation::kRelu, Activation::kRelu6, Activation::kReluN1To1});
  }

  void step() {
    // Mostly what was made last, so that chains come about.
    const int32_t x = random_.one_in(3) ? random_.of(alive_) : alive_.back();
    const Shape in = shape(x);
    const int rank = in.rank();
    if (rank == 0) {
      emit(Kind::kRelu, {x});
      return;
    }
    const int32_t depth = in.last(0);
    switch (random_.below(30)) {
      case 0:
      case 1:
        return convolution(x);
      case 29:
        return inverted_residual(x);
      case 2: {
        if (rank != 4) return;
        Conv2dParams p = conv_params();
        const int32_t k = random_.of<int32_t>({1, 2, 3, 3, 5, 7}), l = random_.one_in(4) ? random_.between(1, 4) : k;
        const int32_t multiplier = random_.one_in(5) ? random_.between(2, 9) : 1;
        p.depth_multiplier = multiplier;
        std::vector<int32_t> inputs = {x, filter({1, k, l, depth * multiplier}, 0.5f)};
        if (!random_.one_in(4)) inputs.push_back(weights({depth * multiplier}, 1.0f));
        emit(Kind::kDepthwiseConv2d, inputs, p);
        return;
      }
      case 3: {
        const int32_t units = random_.between(1, 20);
        FullyConnectedParams p;
        p.activation = activation();
        p.keep_num_dims = random_.one_in(2);
        std::vector<int32_t> inputs = {x, weights({units, depth}, 0.4f)};
        if (!random_.one_in(4)) inputs.push_back(weights({units}, 1.0f));
        emit(Kind::kFullyConnected, inputs, p);
        return;
      }
      case 4: {
        const Kind kind = random_.of<Kind>({Kind::kRelu, Kind::kRelu6, Kind::kReluN1To1, Kind::kLogistic, Kind::kTanh,
                                            Kind::kHardSwish, Kind::kElu, Kind::kAbs, Kind::kNeg, Kind::kSquare});
        emit(kind, {x});
        return;
      }
      case 5:
        if (random_.one_in(2)) {
          emit(Kind::kLeakyRelu, {x}, LeakyReluParams{0.1f});
        } else {
          emit(Kind::kGelu, {x}, GeluParams{random_.one_in(2)});
        }
        return;
      case 6: {  // with a constant
        Shape other = in;
        std::vector<int32_t> dims(in.data(), in.data() + rank);
        const int form = random_.below(4);
        for (int i = 0; i < rank; ++i) {
          if (form == 0 || (form == 1 && i + 1 < rank)) dims[static_cast<size_t>(i)] = 1;
        }
        if (form == 3) dims = {depth};
        EXPECT_TRUE(other.assign(dims));
        const int32_t c = weights(other, 1.0f);
        const Kind kind = random_.of<Kind>(
            {Kind::kAdd, Kind::kMul, Kind::kSub, Kind::kMaximum, Kind::kMinimum, Kind::kSquaredDifference});
        const bool first = random_.one_in(4);
        if (kind == Kind::kAdd || kind == Kind::kMul || kind == Kind::kSub) {
          emit(kind, first ? std::vector<int32_t>{c, x} : std::vector<int32_t>{x, c}, ActivationParams{activation()});
        } else {
          emit(kind, first ? std::vector<int32_t>{c, x} : std::vector<int32_t>{x, c});
        }
        return;
      }
      case 7:
      case 8: {  // with another
        const int32_t other = random_.of(alive_);
        const Kind kind = random_.of<Kind>({Kind::kAdd, Kind::kAdd, Kind::kMul, Kind::kSub});
        emit(kind, {x, other}, ActivationParams{activation()});
        return;
      }
      case 9: {
        const Shape alpha = rank == 4 ? Shape({1, 1, depth}) : Shape({depth});
        emit(Kind::kPrelu, {x, weights(alpha, 0.5f)});
        return;
      }
      case 10: {
        if (rank != 4) return;
        PoolParams p;
        p.padding = random_.one_in(2) ? Padding::kSame : Padding::kValid;
        p.filter_height = random_.between(1, 4);
        p.filter_width = random_.between(1, 4);
        if (random_.one_in(4)) p.filter_height = in[1], p.filter_width = in[2], p.padding = Padding::kValid;
        p.stride_h = random_.between(1, 3);
        p.stride_w = random_.between(1, 3);
        p.activation = activation();
        emit(random_.one_in(2) ? Kind::kMaxPool2d : Kind::kAveragePool2d, {x}, p);
        return;
      }
      case 11: {
        if (rank != 4) return;
        ResizeParams p;
        p.half_pixel_centers = random_.one_in(2);
        p.align_corners = !p.half_pixel_centers && random_.one_in(2);
        const int32_t size = numbers({random_.between(1, 24), random_.between(1, 24)}, {2});
        emit(random_.one_in(2) ? Kind::kResizeBilinear : Kind::kResizeNearestNeighbor, {x, size}, p);
        return;
      }
      case 12: {
        if (rank != 4) return;
        std::vector<int32_t> amounts(8, 0);
        for (size_t i = 2; i < 6; ++i) amounts[i] = random_.between(0, 3);
        if (random_.one_in(3)) amounts[7] = random_.between(0, 5);
        if (random_.one_in(6)) amounts[6] = random_.between(0, 5);
        if (random_.one_in(3)) {
          amounts[6] = amounts[7] = 0;
          emit(Kind::kMirrorPad, {x, numbers(amounts, {4, 2})}, MirrorPadParams{random_.one_in(2)});
          return;
        }
        if (emit(Kind::kPad, {x, numbers(amounts, {4, 2})}) && random_.one_in(2)) convolution(alive_.back());
        return;
      }
      case 13: {
        std::vector<int32_t> parts = {x};
        for (int i = random_.between(1, 3); i > 0; --i) parts.push_back(random_.of(alive_));
        emit(Kind::kConcatenation, parts, ConcatenationParams{random_.one_in(5) ? 0 : rank - 1, Activation::kNone});
        return;
      }
      case 14: {
        if (depth % 2 != 0) return;
        emit(Kind::kSplit, {numbers({random_.one_in(5) ? 0 : rank - 1}, {}), x}, SplitParams{2}, 2);
        return;
      }
      case 15: {
        std::vector<int32_t> axes = {rank - 1};
        if (rank == 4 && random_.one_in(2)) axes = {1, 2};
        if (random_.one_in(2)) {
          axes = {random_.below(rank)};
          if (axes[0] + 1 < rank && random_.one_in(2)) axes.push_back(axes[0] + 1);
        }
        const auto count = static_cast<int32_t>(axes.size());
        const Kind kind = random_.of<Kind>({Kind::kMean, Kind::kSum, Kind::kReduceMax});
        emit(kind, {x, numbers(axes, {count})}, ReducerParams{!random_.one_in(3)});
        return;
      }
      case 16:
        return layer_norm(x);
      case 17:  // gates
        if (random_.one_in(2)) {
          if (emit(Kind::kLogistic, {x})) emit_either(Kind::kMul, x, alive_.back(), ActivationParams{activation()});
        } else if (const int32_t gate = random_.of(alive_); emit(Kind::kLogistic, {gate})) {
          emit_either(Kind::kMul, x, alive_.back(), ActivationParams());
        }
        return;
      case 18: {  // scale and shift
        const Shape each = random_.one_in(3) ? Shape({1}) : Shape({depth});
        if (!emit_either(Kind::kMul, x, weights(each, 1.0f), ActivationParams())) return;
        const bool less = random_.one_in(4);
        emit(less ? Kind::kSub : Kind::kAdd, {alive_.back(), weights({depth}, 1.0f)}, ActivationParams{activation()});
        if (random_.one_in(4)) emit(Kind::kPrelu, {alive_.back(), weights({depth}, 0.5f)});
        return;
      }
      case 19: {  // a convolution with a stride, padded as other frameworks do
        if (rank != 4) return;
        const int32_t k = random_.of<int32_t>({3, 3, 5, 7});
        const int32_t before = k / 2, after = random_.one_in(3) ? k / 2 - 1 : k / 2;
        if (!emit(Kind::kPad, {x, numbers({0, 0, before, after, before, after, 0, 0}, {4, 2})})) return;
        Conv2dParams p;
        p.padding = Padding::kValid;
        p.stride_h = p.stride_w = random_.of<int32_t>({1, 2, 2, 3});
        p.activation = activation();
        if (random_.one_in(2)) {
          emit(Kind::kDepthwiseConv2d, {alive_.back(), weights({1, k, k, depth}, 0.3f), weights({depth}, 1.0f)}, p);
        } else {
          const int32_t outputs = random_.between(1, 24);
          emit(Kind::kConv2d, {alive_.back(), weights({outputs, k, k, depth}, 0.2f), weights({outputs}, 1.0f)}, p);
        }
        return;
      }
      case 20: {  // a depthwise convolution, as one of groups
        if (rank != 4) return;
        const int32_t k = random_.of<int32_t>({1, 3, 3, 5, 7}), outputs = depth * (random_.one_in(4) ? 2 : 1);
        emit(Kind::kConv2d, {x, weights({outputs, k, k, 1}, 0.4f), weights({outputs}, 1.0f)}, conv_params());
        return;
      }
      case 21:
        return squeeze_and_excite(x);
      case 23:
      case 24:
        return attention(x);
      case 25:
        return product(x);
      case 26:
        turned(x);
        return;
      case 27:
        return moved(x);
      case 22: {
        if (rank != 4) return;
        const int32_t k = random_.between(1, 4), l = random_.one_in(4) ? random_.between(1, 4) : k;
        const int32_t outputs = random_.between(1, 20);
        Conv2dParams p;
        p.padding = Padding::kValid;
        p.stride_h = random_.between(1, 3);
        p.stride_w = random_.between(1, 3);
        const int32_t height = (in[1] - 1) * p.stride_h + k, width = (in[2] - 1) * p.stride_w + l;
        std::vector<int32_t> inputs = {numbers({in[0], height, width, outputs}, {4}),
                                       weights({outputs, k, l, depth}, 0.3f), x};
        if (random_.one_in(2)) inputs.push_back(weights({outputs}, 1.0f));
        emit(Kind::kTransposeConv, inputs, p);
        return;
      }
      default: {
        if (random_.one_in(3)) {
          emit(random_.one_in(2) ? Kind::kSoftmax : Kind::kLogSoftmax, {x}, SoftmaxParams{1.0f});
        } else if (rank == 4) {
          const int32_t pixels = in[1] * in[2];
          emit(Kind::kReshape, {x, numbers({in[0], pixels, depth}, {3})});
        } else if (rank == 3) {
          emit(Kind::kReshape, {x, numbers({in[0], 1, in[1], depth}, {4})});
        }
      }
    }
  }

  // The dimensions in another order, at random or as given.
  bool turned(int32_t x, std::vector<int32_t> order = {}) {
    if (order.empty()) {
      for (int i = 0; i < shape(x).rank(); ++i) order.insert(order.begin() + random_.below(i + 1), i);
    }
    const auto count = static_cast<int32_t>(order.size());
    return emit(Kind::kTranspose, {x, numbers(order, {count})});
  }

  // The same elements with other leading dimensions, or none at all.
  bool flattened(int32_t x) {
    const Shape in = shape(x);
    if (in.rank() < 3) return true;
    const auto rows = static_cast<int32_t>(in.elements() / in.last(0) / in.last(1));
    return emit(Kind::kReshape, {x, numbers({rows, in.last(1), in.last(0)}, {3})});
  }

  // Elements of a tensor in other places.
  void moved(int32_t x) {
    const Shape in = shape(x);
    const int rank = in.rank();
    std::vector<int32_t> begin, size;
    for (int i = 0; i < rank; ++i) {
      begin.push_back(random_.one_in(2) ? 0 : random_.below(in[i]));
      size.push_back(random_.one_in(2) ? -1 : random_.between(1, in[i] - begin.back()));
    }
    const Shape list{rank};
    if (random_.one_in(2)) {
      emit(Kind::kSlice, {x, numbers(begin, list), numbers(size, list)});
    } else if (random_.one_in(2)) {
      emit(Kind::kPack, {x, random_.one_in(2) ? x : random_.of(alive_)}, AxisParams{random_.below(rank + 1), 0});
    } else {
      emit(Kind::kReshape, {x, numbers({static_cast<int32_t>(in.elements())}, {1})});
    }
  }

  void product(int32_t x) {
    const Shape in = shape(x);
    if (in.rank() < 2) return;
    BatchMatmulParams p;
    p.adj_x = random_.one_in(4);
    p.adj_y = random_.one_in(2);
    const int32_t depth = in.last(p.adj_x ? 1 : 0), columns = random_.between(1, 30);
    if (random_.one_in(2)) {  // with weights, for all or for each
      std::vector<int32_t> dims = {p.adj_y ? columns : depth, p.adj_y ? depth : columns};
      if (random_.one_in(3)) dims.insert(dims.begin(), in.data(), in.data() + in.rank() - 2);
      Shape second;
      EXPECT_TRUE(second.assign(dims));
      if (!emit(Kind::kBatchMatmul, {x, weights(second, 0.4f)}, p)) return;
      if (random_.one_in(2))
        emit(Kind::kAdd, {alive_.back(), weights({columns}, 1.0f)}, ActivationParams{activation()});
      return;
    }
    int32_t other = random_.of(alive_);
    if (random_.one_in(3) && shape(other).rank() > 2 && turned(other)) other = alive_.back();
    if (emit(Kind::kBatchMatmul, {x, other}, p)) return;
    p.adj_x = false;
    p.adj_y = true;
    emit(Kind::kBatchMatmul, {x, x}, p);
  }

  // Products of queries and keys, scaled and masked, and those of their softmax and values; with the heads before the
  // tokens, or behind them.
  void attention(int32_t x) {
    const int rank = shape(x).rank();
    if (rank < 2 || (rank > 2 && shape(x).last(1) > 40) || shape(x).last(0) > 40) return;
    const bool heads = rank == 4 && !random_.one_in(3);
    const auto part = [&](bool by_column) {
      if (heads) return turned(x, by_column ? std::vector<int32_t>{0, 2, 3, 1} : std::vector<int32_t>{0, 2, 1, 3});
      if (random_.one_in(2)) return emit(Kind::kTanh, {x});
      alive_.push_back(x);
      return true;
    };
    const bool by_column = heads && random_.one_in(2), flat = heads && random_.one_in(3);
    const auto tensor = [&](bool columns) {
      return part(columns) && (!flat || flattened(alive_.back())) ? alive_.back() : -1;
    };
    const int32_t queries = tensor(false), keys = tensor(by_column), values = tensor(false);
    if (queries < 0 || keys < 0 || values < 0) return;
    BatchMatmulParams p;
    p.adj_y = !by_column;
    if (!emit(Kind::kBatchMatmul, {queries, keys}, p)) return;
    if (!random_.one_in(4)) {
      if (random_.one_in(3)) {
        emit(Kind::kDiv, {alive_.back(), scalar(3.0f)}, ActivationParams());
      } else {
        emit_either(Kind::kMul, alive_.back(), scalar(random_.one_in(4) ? -0.3f : 0.3f), ActivationParams());
      }
    }
    if (random_.one_in(2)) {
      const Shape scores = shape(alive_.back());
      std::vector<int32_t> dims(scores.data(), scores.data() + scores.rank());
      for (size_t i = 0; i + 2 < dims.size(); ++i) dims[i] = random_.one_in(6) ? dims[i] : 1;
      if (random_.one_in(3)) dims[dims.size() - 2] = 1;
      Shape mask;
      EXPECT_TRUE(mask.assign(dims));
      const int32_t added = weights(mask, 1.0f);
      // Not by -inf, of which the reference kernels make a finite number.
      for (float& value : *floats.back()) {
        if (random_.one_in(5)) value = -1e9f;
      }
      emit_either(Kind::kAdd, alive_.back(), added, ActivationParams());
    }
    if (!emit(Kind::kSoftmax, {alive_.back()}, SoftmaxParams{1.0f})) return;
    if (!emit(Kind::kBatchMatmul, {alive_.back(), values}, BatchMatmulParams())) return;
    if (!heads || random_.one_in(4)) return;
    const int32_t out = alive_.back();
    const Shape in = shape(x);
    if (flat && !emit(Kind::kReshape, {out, numbers({in[0], in[2], in[1], in[3]}, {4})})) return;
    if (!turned(alive_.back(), {0, 2, 1, 3})) return;
    if (random_.one_in(2)) emit(Kind::kReshape, {alive_.back(), numbers({in[0], in[1], in[2] * in[3]}, {3})});
  }

  bool emit_either(Kind kind, int32_t x, int32_t y, Params params) {
    return emit(kind, random_.one_in(3) ? std::vector<int32_t>{y, x} : std::vector<int32_t>{x, y}, std::move(params));
  }

  int32_t scalar(float value) {
    floats.push_back(std::make_unique<std::vector<float>>(1, value));
    return add(random_.one_in(2) ? Shape({}) : Shape({1}), floats.back()->data());
  }

  // (x - mean) / sqrt(variance + epsilon), in the ways in which converters spell it.
  void layer_norm(int32_t x) {
    const int rank = shape(x).rank();
    const int32_t depth = shape(x).last(0);
    const bool instance = rank == 4 && random_.one_in(4);
    const auto mean_of = [&](int32_t t) {
      std::vector<int32_t> axes = {random_.one_in(2) ? -1 : rank - 1};
      if (instance) axes = {1, 2};
      const auto count = static_cast<int32_t>(axes.size());
      return emit(Kind::kMean, {t, numbers(axes, {count})}, ReducerParams{true});
    };
    if (!mean_of(x)) return;
    const int32_t mean = alive_.back();
    int32_t centred = -1;
    if (random_.one_in(2)) {
      if (!emit(Kind::kSub, {x, mean}, ActivationParams())) return;
      centred = alive_.back();
    }
    if (centred < 0 || random_.one_in(3)) {
      if (!emit(Kind::kSquaredDifference, {x, mean})) return;
    } else if (random_.one_in(2)) {
      if (!emit(Kind::kSquare, {centred})) return;
    } else {
      if (!emit(Kind::kMul, {centred, centred}, ActivationParams())) return;
    }
    if (!mean_of(alive_.back())) return;
    if (!emit_either(Kind::kAdd, alive_.back(), scalar(random_.one_in(2) ? 1e-2f : 1e-1f), ActivationParams())) return;
    const bool divides = random_.one_in(2);
    if (!emit(divides ? Kind::kSqrt : Kind::kRsqrt, {alive_.back()})) return;
    int32_t deviation = alive_.back();
    if (!divides && random_.one_in(4)) {  // gamma first, and x g - mean g + beta
      if (!emit_either(Kind::kMul, deviation, weights({depth}, 1.0f), ActivationParams())) return;
      const int32_t factor = alive_.back();
      if (!emit_either(Kind::kMul, x, factor, ActivationParams())) return;
      const int32_t scaled = alive_.back();
      if (!emit_either(Kind::kMul, mean, factor, ActivationParams())) return;
      if (!emit(Kind::kSub, {weights({depth}, 1.0f), alive_.back()}, ActivationParams())) return;
      emit_either(Kind::kAdd, scaled, alive_.back(), ActivationParams{activation()});
      return;
    }
    if (centred < 0) {
      if (!emit(Kind::kSub, {x, mean}, ActivationParams())) return;
      centred = alive_.back();
    }
    if (divides ? !emit(Kind::kDiv, {centred, deviation}, ActivationParams())
                : !emit_either(Kind::kMul, centred, deviation, ActivationParams())) {
      return;
    }
    if (!random_.one_in(4)) {
      if (!emit_either(Kind::kMul, alive_.back(), weights({depth}, 1.0f), ActivationParams())) return;
    }
    if (!random_.one_in(4)) {
      emit_either(Kind::kAdd, alive_.back(), weights({depth}, 1.0f), ActivationParams{activation()});
    }
  }

  // x times a gate for each channel, which comes from the means of the channels.
  void squeeze_and_excite(int32_t x) {
    const Shape in = shape(x);
    if (in.rank() != 4) return;
    const int32_t depth = in[3], few = random_.between(1, 9);
    const bool kept = random_.one_in(2);
    if (random_.one_in(4)) {
      PoolParams p;
      p.padding = Padding::kValid;
      p.filter_height = in[1];
      p.filter_width = in[2];
      p.stride_h = p.stride_w = 1;
      if (!emit(Kind::kAveragePool2d, {x}, p)) return;
    } else if (!emit(Kind::kMean, {x, numbers({1, 2}, {2})}, ReducerParams{kept})) {
      return;
    }
    const auto dense = [&](int32_t outputs, Activation activation) {
      const int32_t from = alive_.back();
      const int32_t channels = shape(from).last(0);
      if (shape(from).rank() == 4 && random_.one_in(2)) {
        Conv2dParams p;
        p.padding = Padding::kSame;
        p.stride_h = p.stride_w = 1;
        p.activation = activation;
        return emit(Kind::kConv2d, {from, weights({outputs, 1, 1, channels}, 0.5f), weights({outputs}, 1.0f)}, p);
      }
      FullyConnectedParams p;
      p.activation = activation;
      p.keep_num_dims = shape(from).rank() == 4;
      return emit(Kind::kFullyConnected, {from, weights({outputs, channels}, 0.5f), weights({outputs}, 1.0f)}, p);
    };
    if (!dense(few, Activation::kRelu) || !dense(depth, Activation::kNone)) return;
    if (!emit(random_.one_in(3) ? Kind::kHardSwish : Kind::kLogistic, {alive_.back()})) return;
    if (shape(alive_.back()).rank() == 2 &&
        !emit(Kind::kReshape, {alive_.back(), numbers({in[0], 1, 1, depth}, {4})})) {
      return;
    }
    emit_either(Kind::kMul, x, alive_.back(), ActivationParams{activation()});
  }

  Conv2dParams conv_params() {
    Conv2dParams p;
    p.padding = random_.one_in(3) ? Padding::kValid : Padding::kSame;
    p.stride_h = random_.one_in(3) ? 2 : 1;
    p.stride_w = random_.one_in(5) ? random_.between(1, 3) : p.stride_h;
    p.dilation_h_factor = random_.one_in(8) ? 2 : 1;
    p.dilation_w_factor = random_.one_in(8) ? 2 : p.dilation_h_factor;
    p.activation = activation();
    return p;
  }

  void convolution(int32_t x) {
    const Shape in = shape(x);
    if (in.rank() != 4) return;
    const int32_t depth = in[3];
    const int32_t k = random_.of<int32_t>({1, 1, 1, 2, 3, 3, 3, 5}), l = random_.one_in(5) ? random_.between(1, 4) : k;
    if (random_.one_in(8)) {
      const int32_t outputs = random_.between(1, 20);
      Conv2dParams p = conv_params();
      p.dilation_h_factor = p.dilation_w_factor = 1;
      const int32_t height = in[1] * p.stride_h, width = in[2] * p.stride_w;
      const int32_t size = numbers({in[0], height, width, outputs}, {4});
      p.padding = Padding::kSame;
      emit(Kind::kTransposeConv, {size, filter({outputs, k, l, depth}, 0.3f), x, weights({outputs}, 1.0f)}, p);
      return;
    }
    const int32_t groups = depth % 2 == 0 && random_.one_in(6) ? 2 : 1;
    const int32_t outputs = random_.of<int32_t>({1, 3, 8, 16, 17, 24, 40}) * groups;
    std::vector<int32_t> inputs = {x, filter({outputs, k, l, depth / groups}, 0.3f), weights({outputs}, 1.0f)};
    const Conv2dParams p = conv_params();
    if (!emit(Kind::kConv2d, inputs, p) || !random_.one_in(2)) return;
    // What goes with it in registers.
    const int32_t y = alive_.back();
    if (random_.one_in(2)) {
      if (shape(y) == in) emit(Kind::kAdd, {y, x}, ActivationParams{activation()});
    } else {
      emit(Kind::kPrelu, {y, weights({1, 1, outputs}, 0.5f)});
    }
  }

  // With so many channels inside that they are computed slab by slab.
  void inverted_residual(int32_t x) {
    const Shape in = shape(x);
    if (in.rank() != 4) return;
    const int32_t depth = in[3], outputs = random_.one_in(2) ? depth : random_.between(8, 40);
    const int32_t wide = 24 * 1024 / (depth + outputs) + random_.between(1, 40), k = random_.of<int32_t>({3, 3, 5});
    if (wide > 2000) return;
    Conv2dParams p;
    p.padding = Padding::kSame;
    p.activation = activation();
    if (!emit(Kind::kConv2d, {x, filter({wide, 1, 1, depth}, 0.2f), weights({wide}, 1.0f)}, p)) return;
    if (random_.one_in(4)) emit(Kind::kPrelu, {alive_.back(), weights({1, 1, wide}, 0.5f)});
    Conv2dParams between = conv_params();
    between.depth_multiplier = 1;
    if (!emit(Kind::kDepthwiseConv2d, {alive_.back(), filter({1, k, k, wide}, 0.2f), weights({wide}, 1.0f)}, between)) {
      return;
    }
    p.activation = random_.one_in(2) ? activation() : Activation::kNone;
    if (!emit(Kind::kConv2d, {alive_.back(), filter({outputs, 1, 1, wide}, 0.1f), weights({outputs}, 1.0f)}, p)) return;
    if (shape(alive_.back()) == in && random_.one_in(2)) {
      emit(Kind::kAdd, {alive_.back(), x}, ActivationParams{activation()});
    }
  }

  static constexpr int64_t kMostElements = 60000;  // of a tensor

  Random random_;
  Region region_;
  std::vector<int32_t> alive_;
};

using Values = std::vector<std::vector<float>>;

Values run(Executable* executable, const Values& inputs, size_t outputs) {
  std::vector<const void*> given;
  std::vector<Memory> memory;
  std::vector<void*> made;
  for (const auto& input : inputs) given.push_back(input.data());
  for (size_t i = 0; i < outputs; ++i) {
    memory.push_back(reserve(static_cast<size_t>(executable->output_shape(i).elements()) * sizeof(float)));
    made.push_back(memory.back().get());
  }
  const Memory scratch = reserve(executable->scratch_bytes());
  // What was there before must not matter, not even as a NaN.
  std::memset(scratch.get(), 0xff, executable->scratch_bytes());
  EXPECT_TRUE(executable->run(given, made, scratch.get(), nullptr).ok());
  Values results;
  for (size_t i = 0; i < outputs; ++i) {
    const auto* data = static_cast<const float*>(made[i]);
    results.emplace_back(data, data + executable->output_shape(i).elements());
  }
  return results;
}

std::string text_of(const Region& region) {
  std::string text;
  for (const Operator& op : region.operators) {
    text += std::string(name_of(op.kind)) + "(";
    for (int32_t t : op.inputs) {
      const Tensor& tensor = region.tensors[static_cast<size_t>(t)];
      text += (tensor.constant != nullptr ? " const" : " " + std::to_string(t)) + tensor.shape.str();
    }
    text += ") ->";
    for (int32_t t : op.outputs) {
      text += " " + std::to_string(t) + region.tensors[static_cast<size_t>(t)].shape.str();
    }
    text += "\n";
  }
  return text;
}

void expect_near(const Values& found, const Values& wanted, double bound, const std::string& what) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(found[i].size(), wanted[i].size());
    double largest = 1, worst = 0;  // inputs are about one: what is far below is all rounding
    size_t where = 0;
    for (size_t j = 0; j < wanted[i].size(); ++j) {
      if (std::isfinite(wanted[i][j])) largest = std::max(largest, std::fabs(static_cast<double>(wanted[i][j])));
    }
    for (size_t j = 0; j < wanted[i].size(); ++j) {
      if (!std::isfinite(wanted[i][j])) continue;
      const double error = std::fabs(static_cast<double>(found[i][j]) - static_cast<double>(wanted[i][j]));
      if (!(error <= worst)) worst = error, where = j;
    }
    ASSERT_LE(worst / largest, bound) << what << " output " << i << " element " << where;
  }
}

void try_seed(uint64_t seed) {
  Maker maker(seed);
  const Region region = maker.make();
  if (region.operators.empty()) return;
  const std::string what = "seed " + std::to_string(seed) + "\n" + text_of(region);
  Random random(seed + 77);
  Values inputs;
  for (int32_t t : region.inputs) {
    inputs.emplace_back(static_cast<size_t>(region.tensors[static_cast<size_t>(t)].shape.elements()));
    for (float& x : inputs.back()) x = static_cast<float>(random.below(4001)) / 1000.0f - 2.0f;
  }
  std::unique_ptr<Executable> reference;
  const Status status = Executor::compile(region, CompileOptions(), nullptr, &reference);
  ASSERT_TRUE(status.ok()) << status.reason() << what;
  const Values wanted = run(reference.get(), inputs, region.outputs.size());
  Values first;
  for (const bool winograd : {false, true}) {
    // Products of products get large, and a softmax of what is large magnifies the last digits.
    const auto products = std::count_if(region.operators.begin(), region.operators.end(),
                                        [](const Operator& op) { return op.kind == Kind::kBatchMatmul; });
    Values same;
    for (const int strip : {0, 1, 2, 5}) {
      for (const int threads : {1, 3}) {
        CompileOptions options;
        options.strip = strip;
        options.advice.winograd = winograd;
        std::unique_ptr<Executable> fast;
        const Status made = Executor::compile(region, options, std::make_shared<Threads>(threads), &fast);
        ASSERT_TRUE(made.ok()) << made.reason() << what;
        const Values found = run(fast.get(), inputs, region.outputs.size());
        if (same.empty()) {
          same = found;
          expect_near(found, wanted, products > 1 ? 5e-4 : 5e-5, what);
          if (testing::Test::HasFatalFailure()) return;
        }
        for (size_t i = 0; i < found.size(); ++i) {
          ASSERT_EQ(std::memcmp(found[i].data(), same[i].data(), found[i].size() * sizeof(float)), 0)
              << what << "strip " << strip << " threads " << threads << " output " << i;
        }
      }
    }
  }
}

// NaN comes out where it does in the reference kernels. (Infinities need not: those clamp them to the largest number,
// also where there is no activation.)
void try_nan(uint64_t seed) {
  Maker maker(seed);
  const Region region = maker.make();
  for (const Operator& op : region.operators) {
    // Which of some numbers is the largest is not defined if one of them is NaN: it comes out or is skipped.
    if (op.kind == Kind::kMaxPool2d || op.kind == Kind::kReduceMax) return;
  }
  if (region.operators.empty()) return;
  const std::string what = "seed " + std::to_string(seed) + "\n" + text_of(region);
  Random random(seed + 78);
  Values inputs;
  for (int32_t t : region.inputs) {
    inputs.emplace_back(static_cast<size_t>(region.tensors[static_cast<size_t>(t)].shape.elements()));
    for (float& x : inputs.back()) x = static_cast<float>(random.below(4001)) / 1000.0f - 2.0f;
    for (int i = random.between(0, 2); i > 0; --i) {
      const auto where = static_cast<size_t>(random.below(static_cast<int>(inputs.back().size())));
      inputs.back()[where] = NAN;
    }
  }
  std::unique_ptr<Executable> reference, fast;
  CompileOptions options;
  options.advice.winograd = false;
  ASSERT_TRUE(Executor::compile(region, options, nullptr, &reference).ok()) << what;
  ASSERT_TRUE(Executor::compile(region, options, std::make_shared<Threads>(1), &fast).ok()) << what;
  const Values wanted = run(reference.get(), inputs, region.outputs.size());
  const Values found = run(fast.get(), inputs, region.outputs.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    for (size_t j = 0; j < wanted[i].size(); ++j) {
      ASSERT_EQ(std::isnan(found[i][j]), std::isnan(wanted[i][j]))
          << what << "output " << i << " element " << j << ": " << found[i][j] << " for " << wanted[i][j];
    }
  }
}

TEST(Lowering, NaNComesThrough) {
  for_each_target([] {
    const uint64_t first = fake::first_seed();
    for (uint64_t seed = first; seed < first + fake::seed_count(300); ++seed) {
      try_nan(seed);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(Lowering, RandomRegions) {
  for_each_target([] {
    const uint64_t first = fake::first_seed();
    for (uint64_t seed = first; seed < first + fake::seed_count(400); ++seed) {
      try_seed(seed);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

}  // namespace
}  // namespace litefuse
