#include "region/lowering.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/resize.h"
#include "region/norms.h"
#include "region/stages/stages.h"

namespace litefuse {
namespace {

constexpr float kInfinity = GemmEpilogue::kInfinity;

size_t at(int64_t i) { return static_cast<size_t>(i); }

// A tensor as rows of pixels, where the last dimension is the channels.
Image image_of(const Shape& shape) {
  Image image;
  const int rank = shape.rank();
  if (rank == 0) return image;
  image.channels = shape.last(0);
  if (rank == 4) {
    image.batch = shape[0];
    image.height = shape[1];
    image.width = shape[2];
    return image;
  }
  int64_t rows = 1;
  for (int i = 0; i + 1 < rank; ++i) rows *= shape[i];
  image.height = static_cast<int32_t>(std::min<int64_t>(rows, std::numeric_limits<int32_t>::max()));
  return image;
}

// Whether elements are many enough to be computed, and few enough to be counted in 32 bits for an image.
bool is_usable(const Shape& shape) {
  const int64_t elements = shape.elements();
  // Sums of two rows or heights stay below 2^31.
  return elements > 0 && elements <= int64_t{1} << 30;
}

bool clamp_of(Activation activation, float* min, float* max) {
  switch (activation) {
    case Activation::kNone:
      return true;
    case Activation::kRelu:
      *min = 0.0f;
      return true;
    case Activation::kRelu6:
      *min = 0.0f;
      *max = 6.0f;
      return true;
    case Activation::kReluN1To1:
      *min = -1.0f;
      *max = 1.0f;
      return true;
    default:
      return false;
  }
}

bool clamp_of(Kind kind, float* min, float* max) {
  switch (kind) {
    case Kind::kRelu:
      return clamp_of(Activation::kRelu, min, max);
    case Kind::kRelu6:
      return clamp_of(Activation::kRelu6, min, max);
    case Kind::kReluN1To1:
      return clamp_of(Activation::kReluN1To1, min, max);
    case Kind::kRelu0To1:
      *min = 0.0f;
      *max = 1.0f;
      return true;
    default:
      return false;
  }
}

bool is_clamped(float min, float max) { return min != -kInfinity || max != kInfinity; }

template <typename P>
P params_of(const Operator& op) {
  const P* found = std::get_if<P>(&op.params);
  return found != nullptr ? *found : P();
}

bool unary_of(const Operator& op, Unary* function, float* a, float* b) {
  *a = *b = 0.0f;
  switch (op.kind) {
    case Kind::kLeakyRelu:
      *function = Unary::kLeakyRelu;
      *a = params_of<LeakyReluParams>(op).alpha;
      return true;
    case Kind::kElu:
      *function = Unary::kElu;
      return true;
    case Kind::kLogistic:
      *function = Unary::kSigmoid;
      return true;
    case Kind::kTanh:
      *function = Unary::kTanh;
      return true;
    case Kind::kGelu:
      *function = params_of<GeluParams>(op).approximate ? Unary::kGeluTanh : Unary::kGelu;
      return true;
    case Kind::kHardSwish:
      *function = Unary::kHardSwish;
      return true;
    case Kind::kExp:
      *function = Unary::kExp;
      return true;
    case Kind::kLog:
      *function = Unary::kLog;
      return true;
    case Kind::kSqrt:
      *function = Unary::kSqrt;
      return true;
    case Kind::kRsqrt:
      *function = Unary::kRsqrt;
      return true;
    case Kind::kSquare:
      *function = Unary::kSquare;
      return true;
    case Kind::kAbs:
      *function = Unary::kAbs;
      return true;
    case Kind::kNeg:
      *function = Unary::kNeg;
      return true;
    case Kind::kSign:
      *function = Unary::kSign;
      return true;
    case Kind::kFloor:
      *function = Unary::kFloor;
      return true;
    case Kind::kCeil:
      *function = Unary::kCeil;
      return true;
    case Kind::kRound:
      *function = Unary::kRound;
      return true;
    case Kind::kSin:
      *function = Unary::kSin;
      return true;
    case Kind::kCos:
      *function = Unary::kCos;
      return true;
    default:
      *function = Unary::kClamp;
      *a = -kInfinity;
      *b = kInfinity;
      return clamp_of(op.kind, a, b);
  }
}

bool binary_of(const Operator& op, Binary* function, float* min, float* max) {
  *min = -kInfinity;
  *max = kInfinity;
  if (!clamp_of(params_of<ActivationParams>(op).activation, min, max)) return false;
  switch (op.kind) {
    case Kind::kAdd:
      *function = Binary::kAdd;
      return true;
    case Kind::kSub:
      *function = Binary::kSub;
      return true;
    case Kind::kMul:
      *function = Binary::kMul;
      return true;
    case Kind::kDiv:
      *function = Binary::kDiv;
      return true;
    case Kind::kMaximum:
      *function = Binary::kMaximum;
      return true;
    case Kind::kMinimum:
      *function = Binary::kMinimum;
      return true;
    case Kind::kSquaredDifference:
      *function = Binary::kSquaredDifference;
      return true;
    case Kind::kPow:
      *function = Binary::kPow;
      return true;
    case Kind::kPrelu:
      *function = Binary::kPrelu;
      return true;
    default:
      return false;
  }
}

// Windows that no real model has go to the reference kernels, so that nothing here has to mind overflow.
bool is_sane(const Window& w) {
  constexpr int32_t kMost = 1 << 12;
  return w.filter <= kMost && w.stride <= kMost && w.dilation <= kMost;
}

// -- units ---------------------------------------------------------------------------------------------------------

// What one stage, or a view, does: one operator with those that go with it.
struct Unit {
  enum class Type {
    kConv,
    kTransposeConv,
    kDepthwise,
    kUnary,
    kBinary,
    kScaleShift,
    kPool,
    kBilinear,
    kNearest,
    kPad,
    kConcat,
    kSplit,
    kView,
    kReducePixels,
    kReduceChannels,
    kNorm,
    kInstanceNorm,
    kOther  // the reference kernel of a single operator
  };
  Type type = Type::kOther;
  int32_t root = -1;  // the operator that gets the time in profiles
  std::vector<int32_t> operators;
  std::vector<int32_t> inputs, outputs;  // tensors
  std::vector<Image> wants;              // for each input the image that it must be, or one with batch 0 if any will do
  std::vector<Stretch> stretches;        // of the inputs
  Image result;                          // of the outputs (of a split: all together)
  bool local = false;     // each pixel depends on the same pixel of the inputs only, so that any image will do
  bool inherits = false;  // the result is an image like that of the first input, with other channels

  ConvStageParams conv;
  DepthwiseStageParams depthwise;
  Unary unary = Unary::kClamp;
  Binary binary = Binary::kAdd;
  float a = 0, b = 0;  // parameters; the clamp of binary functions
  ScaleShift scale_shift;
  PoolStageParams pool;
  std::vector<Sample> rows, columns;
  int32_t top = 0, left = 0, front = 0;
  Reduction reduction = Reduction::kSum;
  RowNorm norm = RowNorm::kSoftmax;
  const float *gamma = nullptr, *beta = nullptr;
  float epsilon = 0;
};

bool any_image(const Image& image) { return image.batch == 0; }

Image anything() {
  Image image;
  image.batch = 0;
  return image;
}

// What the reference kernel of one operator does.
Unit single(const Region& region, int32_t i) {
  Unit unit;
  const Operator& op = region.operators[at(i)];
  unit.root = i;
  unit.operators = {i};
  for (int32_t t : op.inputs) {
    if (t >= 0 && region.tensors[at(t)].constant == nullptr) unit.inputs.push_back(t);
  }
  unit.outputs = op.outputs;
  return unit;
}

class Units {
 public:
  Units(const Region& region, const std::vector<Shape>& shapes, const std::vector<bool>& done)
      : region_(region), shapes_(shapes), taken_(done) {
    readers_.resize(region.tensors.size());
    producer_.assign(region.tensors.size(), -1);
    leaves_.assign(region.tensors.size(), false);
    for (size_t i = 0; i < region.operators.size(); ++i) {
      if (done[i]) continue;
      for (int32_t t : region.operators[i].inputs) {
        if (t >= 0) readers_[at(t)].push_back(static_cast<int32_t>(i));
      }
      for (int32_t t : region.operators[i].outputs) producer_[at(t)] = static_cast<int32_t>(i);
    }
    for (int32_t t : region.outputs) leaves_[at(t)] = true;
  }

  std::vector<Unit> find() {
    std::vector<Unit> units;
    for (size_t i = 0; i < region_.operators.size(); ++i) {
      if (taken_[i]) continue;
      Unit unit;
      const auto index = static_cast<int32_t>(i);
      if (!is_float(index) || !cover(index, &unit)) {
        unit = single(region_, index);
      }
      for (int32_t taken : unit.operators) taken_[at(taken)] = true;
      units.push_back(std::move(unit));
    }
    return order(std::move(units));
  }

 private:
  const Operator& op(int32_t i) const { return region_.operators[at(i)]; }
  const Tensor& tensor(int32_t t) const { return region_.tensors[at(t)]; }
  const Shape& shape(int32_t t) const { return shapes_[at(t)]; }
  bool is_constant(int32_t t) const { return tensor(t).constant != nullptr; }
  const float* constant(int32_t t) const { return static_cast<const float*>(tensor(t).constant); }
  int64_t elements(int32_t t) const { return shape(t).elements(); }

  // Whether an operator works on floats that there are, besides constants that say where or what shape.
  bool is_float(int32_t i) const {
    for (int32_t t : op(i).outputs) {
      if (tensor(t).type != Type::kFloat32 || !is_usable(shape(t))) return false;
    }
    for (int32_t t : op(i).inputs) {
      if (t < 0) continue;
      const bool says_where = is_constant(t) && tensor(t).type == Type::kInt32;
      if (!says_where && (tensor(t).type != Type::kFloat32 || !is_usable(shape(t)))) return false;
    }
    return true;
  }

  // The only operator that reads a tensor; -1 when there are others, or it leaves the region.
  int32_t only_reader(int32_t t) const {
    if (leaves_[at(t)] || readers_[at(t)].size() != 1) return -1;
    return taken_[at(readers_[at(t)][0])] ? -1 : readers_[at(t)][0];
  }

  bool cover(int32_t i, Unit* unit) {
    unit->root = i;
    unit->operators = {i};
    unit->outputs = op(i).outputs;
    switch (op(i).kind) {
      case Kind::kConv2d:
        return conv(i, unit);
      case Kind::kDepthwiseConv2d:
        return depthwise(i, unit);
      case Kind::kFullyConnected:
        return fully_connected(i, unit);
      case Kind::kTransposeConv:
        return transpose_conv(i, unit);
      case Kind::kAveragePool2d:
      case Kind::kMaxPool2d:
        return pool(i, unit);
      case Kind::kResizeBilinear:
      case Kind::kResizeNearestNeighbor:
        return resize(i, unit);
      case Kind::kPad:
      case Kind::kPadV2:
        return pad(i, unit);
      case Kind::kMirrorPad:
        return mirror_pad(i, unit);
      case Kind::kConcatenation:
        return concat(i, unit);
      case Kind::kSplit:
        return split(i, unit);
      case Kind::kReshape:
      case Kind::kSqueeze:
      case Kind::kExpandDims:
        return view(i, unit);
      case Kind::kMean:
      case Kind::kSum:
      case Kind::kReduceMax:
      case Kind::kReduceMin:
        return row_norm(i, unit) || instance_norm(i, unit) || reduce(i, unit);
      case Kind::kSoftmax:
      case Kind::kLogSoftmax:
      case Kind::kL2Normalization:
        return norm(i, unit);
      case Kind::kSquare:
      case Kind::kMul:
        return row_norm(i, unit) || elementwise(i, unit);
      default:
        return elementwise(i, unit);
    }
  }

  // Layer and RMS normalisation over the channels, which files spell out in many ways.
  bool row_norm(int32_t i, Unit* unit) const {
    NormFinder finder(region_, shapes_, readers_, leaves_);
    if (!finder.find(i)) return false;
    for (int32_t taken : finder.operators()) {
      if (taken_[at(taken)] || !is_float(taken)) return false;
    }
    unit->type = Unit::Type::kNorm;
    unit->norm = finder.centred() ? RowNorm::kLayerNorm : RowNorm::kRmsNorm;
    unit->gamma = finder.gamma() >= 0 ? constant(finder.gamma()) : nullptr;
    unit->beta = finder.beta() >= 0 ? constant(finder.beta()) : nullptr;
    unit->a = finder.epsilon();
    unit->operators = finder.operators();
    unit->inputs = {finder.input()};
    unit->outputs = {finder.output()};
    unit->wants = {anything()};
    unit->stretches = {Stretch::kNone};
    unit->local = unit->inherits = true;
    unit->result = image_of(shape(finder.output()));
    return true;
  }

  // Normalisation over the pixels of each channel, with a clamp behind.
  bool instance_norm(int32_t i, Unit* unit) const {
    NormFinder finder(region_, shapes_, readers_, leaves_);
    finder.over_pixels();
    if (!finder.find(i)) return false;
    for (int32_t taken : finder.operators()) {
      if (taken_[at(taken)] || !is_float(taken)) return false;
    }
    unit->type = Unit::Type::kInstanceNorm;
    unit->gamma = finder.gamma() >= 0 ? constant(finder.gamma()) : nullptr;
    unit->beta = finder.beta() >= 0 ? constant(finder.beta()) : nullptr;
    unit->epsilon = finder.epsilon();
    unit->operators = finder.operators();
    unit->inputs = {finder.input()};
    unit->outputs = {finder.output()};
    unit->wants = {image_of(shape(finder.input()))};
    unit->stretches = {Stretch::kNone};
    unit->result = image_of(shape(finder.output()));
    unit->a = -kInfinity;
    unit->b = kInfinity;
    absorb_clamp(unit);
    return true;
  }

  // -- convolutions

  bool read_filter(const Operator& op, size_t weights, size_t bias, Filter* filter) const {
    const int32_t w = op.inputs[weights];
    if (!is_constant(w)) return false;
    filter->data = tensor(w).constant;
    if (bias < op.inputs.size() && op.inputs[bias] >= 0) {
      if (!is_constant(op.inputs[bias])) return false;
      filter->bias = constant(op.inputs[bias]);
    }
    return true;
  }

  // Padding before a convolution becomes a part of its own.
  void absorb_pad(int32_t input, Unit* unit, Window* y, Window* x, int32_t* source) const {
    const int32_t p = producer_[at(input)];
    *source = input;
    if (p < 0 || pending_pad_ != p) return;
    const auto* amounts = static_cast<const int32_t*>(tensor(op(p).inputs[1]).constant);
    y->pad_before += amounts[2];
    x->pad_before += amounts[4];
    *source = op(p).inputs[0];
    y->in = shape(*source)[1];
    x->in = shape(*source)[2];
    unit->operators.insert(unit->operators.begin(), p);
  }

  // Whether a PAD puts zeros around the pixels only, for the one convolution that reads it.
  bool is_for_conv(int32_t i, int32_t* reader) const {
    *reader = only_reader(op(i).outputs[0]);
    if (*reader < 0 || !is_float(*reader) || op(i).inputs.size() != 2) return false;
    const Kind kind = op(*reader).kind;
    if ((kind != Kind::kConv2d && kind != Kind::kDepthwiseConv2d) || op(*reader).inputs[0] != op(i).outputs[0]) {
      return false;
    }
    if (shape(op(i).inputs[0]).rank() != 4 || tensor(op(i).inputs[1]).type != Type::kInt32) return false;
    const auto* amounts = static_cast<const int32_t*>(tensor(op(i).inputs[1]).constant);
    return amounts[0] == 0 && amounts[1] == 0 && amounts[6] == 0 && amounts[7] == 0;
  }

  bool windows(const Shape& in, int32_t height, int32_t width, const Conv2dParams& p, Window* y, Window* x) const {
    return find_window("height", p.padding, in[1], height, p.stride_h, p.dilation_h_factor, y).ok() &&
           find_window("width", p.padding, in[2], width, p.stride_w, p.dilation_w_factor, x).ok() && is_sane(*y) &&
           is_sane(*x);
  }

  bool conv(int32_t i, Unit* unit) {
    const auto params = params_of<Conv2dParams>(op(i));
    const int32_t input = op(i).inputs[0], weights = op(i).inputs[1];
    ConvStageParams& conv = unit->conv;
    if (!read_filter(op(i), 1, 2, &conv.filter)) return false;
    if (!clamp_of(params.activation, &conv.epilogue.min, &conv.epilogue.max)) return false;
    if (!windows(shape(input), shape(weights)[1], shape(weights)[2], params, &conv.y, &conv.x)) return false;
    conv.depth = shape(weights)[3];
    conv.outputs = shape(weights)[0];
    conv.groups = shape(input)[3] / conv.depth;
    if (conv.groups > 1 && conv.depth == 1 && conv.outputs == conv.groups) return grouped_depthwise(i, unit);
    int32_t source = input;
    absorb_pad(input, unit, &conv.y, &conv.x, &source);
    unit->type = Unit::Type::kConv;
    unit->inputs = {source};
    unit->wants = {image_of(shape(source))};
    unit->stretches = {Stretch::kNone};
    unit->local = conv.y.filter == 1 && conv.x.filter == 1 && conv.y.stride == 1 && conv.x.stride == 1 &&
                  conv.y.pad_before == 0 && conv.x.pad_before == 0 && conv.y.out == conv.y.in &&
                  conv.x.out == conv.x.in;
    if (unit->local) {
      unit->inherits = true;
      unit->wants[0] = anything();
    }
    unit->result = image_of(shape(op(i).outputs[0]));
    if (unit->local) absorb_concat(unit);
    absorb_epilogue(i, unit, &conv.epilogue, true);
    return true;
  }

  // A pointwise convolution can read tensors side by side as they are, in pieces of as many channels as divide them all.
  void absorb_concat(Unit* unit) const {
    constexpr int32_t kShortest = 8;  // shorter pieces cost more than a copy
    if (pending_concat_ < 0 || unit->conv.groups != 1) return;
    const Operator& concat = op(pending_concat_);
    int32_t piece = 0;
    for (int32_t t : concat.inputs) piece = std::gcd(piece, shape(t).last(0));
    if (piece < kShortest) return;
    unit->conv.piece = piece;
    unit->inputs = concat.inputs;
    unit->wants.assign(concat.inputs.size(), anything());
    unit->stretches.assign(concat.inputs.size(), Stretch::kNone);
    unit->operators.insert(unit->operators.begin(), pending_concat_);
  }

  // A convolution with as many groups as channels: depthwise with another layout of the filter.
  bool grouped_depthwise(int32_t i, Unit* unit) {
    DepthwiseStageParams& p = unit->depthwise;
    p.filter = unit->conv.filter;
    p.filter.by_channel = true;
    p.channels = unit->conv.outputs;
    p.y = unit->conv.y;
    p.x = unit->conv.x;
    p.epilogue = unit->conv.epilogue;
    return finish_depthwise(i, unit);
  }

  bool fully_connected(int32_t i, Unit* unit) {
    const auto params = params_of<FullyConnectedParams>(op(i));
    const int32_t input = op(i).inputs[0], weights = op(i).inputs[1];
    ConvStageParams& conv = unit->conv;
    if (!read_filter(op(i), 1, 2, &conv.filter)) return false;
    if (!clamp_of(params.activation, &conv.epilogue.min, &conv.epilogue.max)) return false;
    conv.depth = shape(weights)[1];
    conv.outputs = shape(weights)[0];
    const int64_t rows = elements(input) / conv.depth;
    unit->type = Unit::Type::kConv;
    unit->inputs = {input};
    unit->stretches = {Stretch::kNone};
    unit->local = true;
    unit->result = Image{1, static_cast<int32_t>(rows), 1, conv.outputs};
    conv.y = {unit->result.height, 1, 1, 1, unit->result.height, 0};
    conv.x = {1, 1, 1, 1, 1, 0};
    unit->inherits = shape(input).rank() > 0 && shape(input).last(0) == conv.depth;
    unit->wants = {unit->inherits ? anything() : Image{1, static_cast<int32_t>(rows), 1, conv.depth}};
    absorb_epilogue(i, unit, &conv.epilogue, true);
    return true;
  }

  bool depthwise(int32_t i, Unit* unit) {
    const auto params = params_of<Conv2dParams>(op(i));
    const int32_t input = op(i).inputs[0], weights = op(i).inputs[1];
    const int32_t channels = shape(weights)[3];
    DepthwiseStageParams& p = unit->depthwise;
    // With a multiplier each channel of the input has several outputs: seldom, and left to the reference.
    if (channels != shape(input)[3]) return false;
    if (!read_filter(op(i), 1, 2, &p.filter)) return false;
    if (!clamp_of(params.activation, &p.epilogue.min, &p.epilogue.max)) return false;
    if (!windows(shape(input), shape(weights)[1], shape(weights)[2], params, &p.y, &p.x)) return false;
    p.channels = channels;
    return finish_depthwise(i, unit);
  }

  bool finish_depthwise(int32_t i, Unit* unit) {
    DepthwiseStageParams& p = unit->depthwise;
    int32_t source = op(i).inputs[0];
    absorb_pad(source, unit, &p.y, &p.x, &source);
    unit->type = Unit::Type::kDepthwise;
    unit->inputs = {source};
    unit->wants = {image_of(shape(source))};
    unit->stretches = {Stretch::kNone};
    unit->result = image_of(shape(op(i).outputs[0]));
    absorb_epilogue(i, unit, &p.epilogue, false);
    return true;
  }

  bool transpose_conv(int32_t i, Unit* unit) {
    const auto params = params_of<Conv2dParams>(op(i));
    const int32_t weights = op(i).inputs[1], input = op(i).inputs[2], output = op(i).outputs[0];
    ConvStageParams& conv = unit->conv;
    if (!read_filter(op(i), 1, 3, &conv.filter)) return false;
    if (!clamp_of(params.activation, &conv.epilogue.min, &conv.epilogue.max)) return false;
    Conv2dParams back = params;
    back.dilation_h_factor = back.dilation_w_factor = 1;
    if (!windows(shape(output), shape(weights)[1], shape(weights)[2], back, &conv.y, &conv.x)) return false;
    constexpr int32_t kMostPhases = 64;
    if (conv.y.stride * conv.x.stride > kMostPhases) return false;
    conv.depth = shape(weights)[3];
    conv.outputs = shape(weights)[0];
    unit->type = Unit::Type::kTransposeConv;
    unit->inputs = {input};
    unit->wants = {image_of(shape(input))};
    unit->stretches = {Stretch::kNone};
    unit->result = image_of(shape(output));
    absorb_epilogue(i, unit, &conv.epilogue, true);
    return true;
  }

  // Takes what follows a convolution as long as it can be done in registers.
  void absorb_epilogue(int32_t root, Unit* unit, Epilogue* epilogue, bool residual) {
    for (;;) {
      const int32_t out = unit->outputs[0];
      const int32_t next = only_reader(out);
      if (next < 0 || !is_float(next)) return;
      const Operator& follower = op(next);
      const bool plain = !epilogue->residual && epilogue->slopes == nullptr;
      float min = -kInfinity, max = kInfinity;
      if (clamp_of(follower.kind, &min, &max)) {
        if (epilogue->residual) {
          if (is_clamped(epilogue->residual_min, epilogue->residual_max)) return;
          epilogue->residual_min = min;
          epilogue->residual_max = max;
        } else {
          if (!plain || is_clamped(epilogue->min, epilogue->max)) return;
          epilogue->min = min;
          epilogue->max = max;
        }
      } else if (follower.kind == Kind::kPrelu && plain && !is_clamped(epilogue->min, epilogue->max) &&
                 follower.inputs[0] == out && is_constant(follower.inputs[1]) &&
                 stretch_of(follower.inputs[1], out) == Stretch::kChannel) {
        epilogue->slopes = constant(follower.inputs[1]);
      } else if (residual && follower.kind == Kind::kAdd && !epilogue->residual &&
                 follower.inputs[0] != follower.inputs[1] &&
                 clamp_of(params_of<ActivationParams>(follower).activation, &min, &max)) {
        const int32_t other = follower.inputs[0] == out ? follower.inputs[1] : follower.inputs[0];
        if (shape(other) != shape(follower.outputs[0]) || shape(out) != shape(other)) return;
        // What is added must have been computed before.
        if (producer_[at(other)] > root) return;
        epilogue->residual = true;
        epilogue->residual_min = min;
        epilogue->residual_max = max;
        unit->inputs.push_back(other);
        unit->wants.push_back(anything());
        unit->stretches.push_back(Stretch::kNone);
      } else {
        return;
      }
      unit->operators.push_back(next);
      unit->outputs = follower.outputs;
      taken_[at(next)] = true;
    }
  }

  // -- the rest

  // How a tensor meets one of another shape; kNone also when it does not.
  Stretch stretch_of(int32_t t, int32_t whole) const {
    const Shape &small = shape(t), &large = shape(whole);
    const int64_t count = small.elements();
    if (count == 1) return Stretch::kScalar;
    const int32_t channels = large.last(0);
    if (count == channels && small.last(0) == channels) return Stretch::kChannel;
    return Stretch::kNone;
  }

  // Sets inputs, stretches and wanted images of an operator with one or two operands of the size of its output.
  bool operands(const std::vector<int32_t>& tensors, Unit* unit) const {
    const int32_t output = unit->outputs[0];
    const Image whole = image_of(shape(output));
    for (int32_t t : tensors) {
      Image want = anything();
      Stretch stretch = Stretch::kNone;
      if (elements(t) != elements(output)) {
        stretch = stretch_of(t, output);
        const Shape &small = shape(t), &large = shape(output);
        if (stretch == Stretch::kNone) {
          // One for each pixel: as the output, but for the last dimension.
          const bool pixels = small.rank() == large.rank() && small.last(0) == 1 &&
                              std::equal(small.data(), small.data() + small.rank() - 1, large.data());
          // One vector of channels for each image of a batch.
          const bool images = small.rank() == 4 && large.rank() == 4 && small[0] == large[0] && small[1] == 1 &&
                              small[2] == 1 && small[3] == large[3];
          if (!pixels && !images) return false;
          stretch = pixels ? Stretch::kPixel : Stretch::kChannel;
          if (images) want = Image{small[0], 1, 1, small[3]};
        } else {
          want = Image{1, 1, 1, stretch == Stretch::kScalar ? 1 : whole.channels};
        }
      } else if (shape(t) != shape(output) && elements(output) > 1) {
        // The same elements, but perhaps not in the same places.
        const Shape wide = shape(t).extended(std::max(shape(t).rank(), shape(output).rank()));
        if (wide != shape(output).extended(wide.rank())) return false;
      }
      unit->inputs.push_back(t);
      unit->wants.push_back(want);
      unit->stretches.push_back(stretch);
    }
    unit->result = whole;
    unit->local = true;
    unit->inherits = true;
    // The image is that of an operand which is not stretched.
    return std::find(unit->stretches.begin(), unit->stretches.end(), Stretch::kNone) != unit->stretches.end();
  }

  bool elementwise(int32_t i, Unit* unit) {
    const Operator& o = op(i);
    if (unary_of(o, &unit->unary, &unit->a, &unit->b)) {
      unit->type = Unit::Type::kUnary;
      const int32_t input = o.inputs[0];
      if (o.kind == Kind::kLogistic && gate(i, unit)) return true;
      return operands({input}, unit);
    }
    if (!binary_of(o, &unit->binary, &unit->a, &unit->b)) return false;
    if (o.kind == Kind::kPow && !is_plain_power(o.inputs[1])) return false;
    unit->type = Unit::Type::kBinary;
    if (scale_shift(i, unit)) return true;
    absorb_clamp(unit);
    return operands({o.inputs[0], o.inputs[1]}, unit);
  }

  // An exponent for which TFLite has no rule of its own: it takes what is close to an integer for that.
  bool is_plain_power(int32_t exponent) const {
    if (!is_constant(exponent) || elements(exponent) != 1) return false;
    const float value = constant(exponent)[0];
    const float off = std::fabs(value - std::nearbyint(value));
    return off == 0.0f || off > 1e-4f;
  }

  // x sigmoid(x), and x sigmoid(z).
  bool gate(int32_t i, Unit* unit) {
    const int32_t z = op(i).inputs[0], sigmoid = op(i).outputs[0];
    const int32_t next = only_reader(sigmoid);
    if (next < 0 || op(next).kind != Kind::kMul || !is_float(next)) return false;
    const int32_t x = op(next).inputs[0] == sigmoid ? op(next).inputs[1] : op(next).inputs[0];
    if (x == sigmoid || shape(x) != shape(sigmoid) || shape(op(next).outputs[0]) != shape(x)) return false;
    if (params_of<ActivationParams>(op(next)).activation != Activation::kNone) return false;
    if (x != z && producer_[at(x)] > i) return false;
    unit->operators = {i, next};
    unit->outputs = op(next).outputs;
    if (x == z) {
      unit->unary = Unary::kSilu;
      return operands({x}, unit);
    }
    unit->type = Unit::Type::kBinary;
    unit->binary = Binary::kMulSigmoid;
    unit->a = -kInfinity;
    unit->b = kInfinity;
    return operands({x, z}, unit);
  }

  // MUL and ADD by constants, then a clamp or PReLU: what batch normalisation is.
  bool scale_shift(int32_t i, Unit* unit) {
    const Operator& first = op(i);
    if (first.kind != Kind::kMul && first.kind != Kind::kAdd) return false;
    const auto constant_of = [&](const Operator& o, int32_t data) {
      const int32_t other = o.inputs[0] == data ? o.inputs[1] : o.inputs[0];
      if (other == data || !is_constant(other) || shape(o.outputs[0]) != shape(data)) return -1;
      const Stretch stretch = stretch_of(other, data);
      return stretch == Stretch::kChannel || stretch == Stretch::kScalar ? other : -1;
    };
    const int32_t x = is_constant(first.inputs[0]) ? first.inputs[1] : first.inputs[0];
    if (is_constant(x)) return false;
    ScaleShift& p = unit->scale_shift;
    std::vector<int32_t> taken = {i};
    int32_t out = first.outputs[0], scale = -1, shift = -1;
    float min = unit->a, max = unit->b;
    if (first.kind == Kind::kMul) {
      scale = constant_of(first, x);
      if (scale < 0) return false;
      const int32_t next = is_clamped(min, max) ? -1 : only_reader(out);
      if (next >= 0 && op(next).kind == Kind::kAdd && is_float(next)) {
        shift = constant_of(op(next), out);
        float low = -kInfinity, high = kInfinity;
        if (shift >= 0 && clamp_of(params_of<ActivationParams>(op(next)).activation, &low, &high)) {
          min = low;
          max = high;
          out = op(next).outputs[0];
          taken.push_back(next);
        } else {
          shift = -1;
        }
      }
    } else {
      shift = constant_of(first, x);
      if (shift < 0) return false;
    }
    if (!is_clamped(min, max)) {
      const int32_t next = only_reader(out);
      if (next >= 0 && is_float(next)) {
        float low = -kInfinity, high = kInfinity;
        if (clamp_of(op(next).kind, &low, &high)) {
          min = low;
          max = high;
          out = op(next).outputs[0];
          taken.push_back(next);
        } else if (op(next).kind == Kind::kPrelu && op(next).inputs[0] == out && is_constant(op(next).inputs[1]) &&
                   stretch_of(op(next).inputs[1], out) == Stretch::kChannel) {
          p.slopes = constant(op(next).inputs[1]);
          out = op(next).outputs[0];
          taken.push_back(next);
        }
      }
    }
    if (taken.size() < 2) return false;
    unit->type = Unit::Type::kScaleShift;
    unit->operators = taken;
    unit->outputs = {out};
    p.min = min;
    p.max = max;
    std::vector<int32_t> tensors = {x};
    p.scaled = scale >= 0;
    p.shifted = shift >= 0;
    if (p.scaled) tensors.push_back(scale);
    if (p.shifted) tensors.push_back(shift);
    if (!operands(tensors, unit)) return false;
    if (p.scaled) p.scale = unit->stretches[1];
    if (p.shifted) p.shift = unit->stretches.back();
    return true;
  }

  void absorb_clamp(Unit* unit) const {
    if (is_clamped(unit->a, unit->b)) return;
    const int32_t next = only_reader(unit->outputs[0]);
    if (next < 0 || !is_float(next) || !clamp_of(op(next).kind, &unit->a, &unit->b)) return;
    unit->operators.push_back(next);
    unit->outputs = op(next).outputs;
  }

  bool pool(int32_t i, Unit* unit) {
    const auto params = params_of<PoolParams>(op(i));
    const int32_t input = op(i).inputs[0];
    const Shape& in = shape(input);
    PoolStageParams& p = unit->pool;
    p.max = op(i).kind == Kind::kMaxPool2d;
    p.min = -kInfinity;
    p.clamp_max = kInfinity;
    if (!clamp_of(params.activation, &p.min, &p.clamp_max)) return false;
    if (!find_window("height", params.padding, in[1], params.filter_height, params.stride_h, 1, &p.y).ok() ||
        !find_window("width", params.padding, in[2], params.filter_width, params.stride_w, 1, &p.x).ok() ||
        !is_sane(p.y) || !is_sane(p.x)) {
      return false;
    }
    unit->inputs = {input};
    unit->stretches = {Stretch::kNone};
    // The mean of an image is better taken row by row.
    if (!p.max && p.y.out == 1 && p.x.out == 1 && p.y.filter >= in[1] && p.x.filter >= in[2] &&
        !is_clamped(p.min, p.clamp_max) && p.y.pad_before == 0 && p.x.pad_before == 0) {
      return reduce_pixels(input, Reduction::kMean, unit);
    }
    unit->type = Unit::Type::kPool;
    unit->wants = {image_of(in)};
    unit->result = image_of(shape(op(i).outputs[0]));
    return true;
  }

  bool resize(int32_t i, Unit* unit) {
    const auto params = params_of<ResizeParams>(op(i));
    const int32_t input = op(i).inputs[0], output = op(i).outputs[0];
    const Sides height{shape(input)[1], shape(output)[1]}, width{shape(input)[2], shape(output)[2]};
    if (op(i).kind == Kind::kResizeBilinear) {
      unit->type = Unit::Type::kBilinear;
      const auto find = [&](Sides side, std::vector<Sample>* samples) {
        std::vector<Between<float>> positions;
        if (!find_positions(side, params, &positions).ok()) return false;
        for (const Between<float>& p : positions) samples->push_back(Sample{p.lower, p.upper, p.fraction});
        return true;
      };
      if (!find(height, &unit->rows) || !find(width, &unit->columns)) return false;
    } else {
      unit->type = Unit::Type::kNearest;
      const auto find = [&](Sides side, std::vector<Sample>* samples) {
        std::vector<int32_t> nearest;
        find_nearest(side, params, &nearest);
        for (int32_t position : nearest) samples->push_back(Sample{position, position, 0.0f});
      };
      find(height, &unit->rows);
      find(width, &unit->columns);
    }
    unit->inputs = {input};
    unit->stretches = {Stretch::kNone};
    unit->wants = {image_of(shape(input))};
    unit->result = image_of(shape(output));
    return true;
  }

  bool pad(int32_t i, Unit* unit) {
    int32_t reader = -1;
    if (is_for_conv(i, &reader)) {
      // It is tried at once, with what it goes to: a PAD comes shortly before its convolution.
      pending_pad_ = i;
      Unit with;
      with.root = reader;
      with.operators = {reader};
      with.outputs = op(reader).outputs;
      taken_[at(i)] = true;
      const bool fits = op(reader).kind == Kind::kConv2d ? conv(reader, &with) : depthwise(reader, &with);
      pending_pad_ = -1;
      if (fits) {
        *unit = std::move(with);
        return true;
      }
      taken_[at(i)] = false;
    }
    const int32_t input = op(i).inputs[0];
    const Shape& in = shape(input);
    if (in.rank() != 4 || tensor(op(i).inputs[1]).type != Type::kInt32) return false;
    const auto* amounts = static_cast<const int32_t*>(tensor(op(i).inputs[1]).constant);
    if (amounts[0] != 0 || amounts[1] != 0) return false;
    if (op(i).inputs.size() > 2 && op(i).inputs[2] >= 0) {
      if (!is_constant(op(i).inputs[2])) return false;
      unit->a = constant(op(i).inputs[2])[0];
    }
    unit->type = Unit::Type::kPad;
    unit->top = amounts[2];
    unit->left = amounts[4];
    unit->front = amounts[6];
    unit->inputs = {input};
    unit->stretches = {Stretch::kNone};
    unit->wants = {image_of(in)};
    unit->result = image_of(shape(op(i).outputs[0]));
    return true;
  }

  // Of height and width only.
  bool mirror_pad(int32_t i, Unit* unit) const {
    const int32_t input = op(i).inputs[0], output = op(i).outputs[0];
    const Shape& in = shape(input);
    if (in.rank() != 4 || tensor(op(i).inputs[1]).type != Type::kInt32) return false;
    const auto* amounts = static_cast<const int32_t*>(tensor(op(i).inputs[1]).constant);
    if (amounts[0] != 0 || amounts[1] != 0 || amounts[6] != 0 || amounts[7] != 0) return false;
    const bool reflect = params_of<MirrorPadParams>(op(i)).reflect;
    // Where each position comes from; the reference kernel has made sure that it is inside.
    const auto find = [&](int32_t size, int32_t before, int32_t total, std::vector<Sample>* samples) {
      for (int32_t o = 0; o < total; ++o) {
        int32_t from = o - before;
        if (from < 0) from = -from - (reflect ? 0 : 1);
        if (from >= size) from = 2 * size - from - (reflect ? 2 : 1);
        samples->push_back(Sample{from, from, 0.0f});
      }
    };
    find(in[1], amounts[2], shape(output)[1], &unit->rows);
    find(in[2], amounts[4], shape(output)[2], &unit->columns);
    unit->type = Unit::Type::kNearest;
    unit->inputs = {input};
    unit->stretches = {Stretch::kNone};
    unit->wants = {image_of(in)};
    unit->result = image_of(shape(output));
    return true;
  }

  bool concat(int32_t i, Unit* unit) {
    const auto params = params_of<ConcatenationParams>(op(i));
    const int32_t output = op(i).outputs[0];
    const int rank = shape(output).rank();
    if (params.axis != rank - 1 && params.axis != -1) return false;
    const int32_t reader = only_reader(output);
    if (reader >= 0 && op(reader).kind == Kind::kConv2d && is_float(reader) && op(reader).inputs[0] == output &&
        op(i).inputs.size() <= 8) {
      pending_concat_ = i;
      Unit with;
      with.root = reader;
      with.operators = {reader};
      with.outputs = op(reader).outputs;
      taken_[at(i)] = true;
      const bool fits = is_pointwise(reader) && conv(reader, &with) && with.conv.piece > 0;
      pending_concat_ = -1;
      if (fits) {
        *unit = std::move(with);
        return true;
      }
      taken_[at(i)] = false;
      for (int32_t t : with.operators) taken_[at(t)] = false;
    }
    unit->type = Unit::Type::kConcat;
    for (int32_t t : op(i).inputs) {
      if (is_constant(t) && image_of(shape(t)).batch != image_of(shape(output)).batch) return false;
      unit->inputs.push_back(t);
      unit->wants.push_back(anything());
      unit->stretches.push_back(Stretch::kNone);
    }
    unit->local = unit->inherits = true;
    unit->result = image_of(shape(output));
    return unit->inputs.size() <= 16;
  }

  bool is_pointwise(int32_t conv) const {
    const auto params = params_of<Conv2dParams>(op(conv));
    const Shape& weights = shape(op(conv).inputs[1]);
    return weights[1] == 1 && weights[2] == 1 && params.stride_h == 1 && params.stride_w == 1;
  }

  bool split(int32_t i, Unit* unit) {
    const int32_t input = op(i).inputs[1], axis = op(i).inputs[0];
    const int rank = shape(input).rank();
    if (!is_constant(axis) || rank == 0) return false;
    const int32_t along = static_cast<const int32_t*>(tensor(axis).constant)[0];
    if (along != rank - 1 && along != -1) return false;
    unit->type = Unit::Type::kSplit;
    unit->inputs = {input};
    unit->wants = {anything()};
    unit->stretches = {Stretch::kNone};
    unit->local = unit->inherits = true;
    unit->result = image_of(shape(unit->outputs[0]));
    return unit->outputs.size() <= 16;
  }

  bool view(int32_t i, Unit* unit) const {
    const int32_t input = op(i).inputs[0], output = op(i).outputs[0];
    if (shape(input).rank() == 0 || shape(output).rank() == 0 || is_constant(input)) return false;
    if (shape(input).last(0) != shape(output).last(0)) return false;
    unit->type = Unit::Type::kView;
    unit->inputs = {input};
    unit->wants = {anything()};
    unit->stretches = {Stretch::kNone};
    unit->local = unit->inherits = true;
    unit->result = image_of(shape(output));
    return true;
  }

  bool reduce_pixels(int32_t input, Reduction reduction, Unit* unit) const {
    unit->type = Unit::Type::kReducePixels;
    unit->reduction = reduction;
    unit->wants = {image_of(shape(input))};
    unit->result = Image{unit->wants[0].batch, 1, 1, unit->wants[0].channels};
    return true;
  }

  bool reduce(int32_t i, Unit* unit) const {
    const int32_t input = op(i).inputs[0], axes = op(i).inputs[1];
    const Shape& in = shape(input);
    if (in.rank() == 0 || tensor(axes).type != Type::kInt32 || is_constant(input)) return false;
    std::vector<bool> gone(at(in.rank()), false);
    for (int64_t k = 0; k < elements(axes); ++k) {
      const int32_t axis = static_cast<const int32_t*>(tensor(axes).constant)[k];
      gone[at(axis < 0 ? axis + in.rank() : axis)] = true;
    }
    Reduction reduction = Reduction::kSum;
    if (op(i).kind == Kind::kMean) reduction = Reduction::kMean;
    if (op(i).kind == Kind::kReduceMax) reduction = Reduction::kMax;
    if (op(i).kind == Kind::kReduceMin) reduction = Reduction::kMin;
    unit->inputs = {input};
    unit->stretches = {Stretch::kNone};
    const auto count = std::count(gone.begin(), gone.end(), true);
    if (count == 1 && gone.back()) {
      unit->type = Unit::Type::kReduceChannels;
      unit->reduction = reduction;
      unit->wants = {anything()};
      unit->local = unit->inherits = true;
      unit->result = image_of(in);
      unit->result.channels = 1;
      return true;
    }
    if (in.rank() == 4 && count == 2 && gone[1] && gone[2]) return reduce_pixels(input, reduction, unit);
    // All rows of a matrix.
    if (in.rank() > 1 && in.rank() < 4 && !gone.back() && image_of(in).height == in[in.rank() - 2] && count == 1 &&
        gone[at(in.rank() - 2)]) {
      return reduce_pixels(input, reduction, unit);
    }
    return false;
  }

  bool norm(int32_t i, Unit* unit) const {
    const int32_t input = op(i).inputs[0];
    if (shape(input).rank() == 0) return false;
    unit->type = Unit::Type::kNorm;
    switch (op(i).kind) {
      case Kind::kSoftmax:
        unit->norm = RowNorm::kSoftmax;
        unit->a = params_of<SoftmaxParams>(op(i)).beta;
        break;
      case Kind::kLogSoftmax:
        unit->norm = RowNorm::kLogSoftmax;
        break;
      default:
        unit->norm = RowNorm::kL2Norm;
        unit->a = 1e-6f;  // as TFLite has it
        if (params_of<ActivationParams>(op(i)).activation != Activation::kNone) return false;
    }
    unit->inputs = {input};
    unit->wants = {anything()};
    unit->stretches = {Stretch::kNone};
    unit->local = unit->inherits = true;
    unit->result = image_of(shape(input));
    return true;
  }

  // Units in an order in which they can run: one that took operators far behind its root may have to wait.
  std::vector<Unit> order(std::vector<Unit> units) const {
    std::vector<int32_t> maker(region_.tensors.size(), -1);
    for (size_t u = 0; u < units.size(); ++u) {
      for (int32_t t : units[u].outputs) maker[at(t)] = static_cast<int32_t>(u);
    }
    std::vector<Unit> result;
    std::vector<char> state(units.size(), 0);
    std::function<void(size_t)> visit = [&](size_t u) {
      if (state[u] != 0) return;
      state[u] = 1;
      for (int32_t t : units[u].inputs) {
        if (maker[at(t)] >= 0) visit(at(maker[at(t)]));
      }
      result.push_back(std::move(units[u]));
    };
    for (size_t u = 0; u < units.size(); ++u) visit(u);
    return result;
  }

  const Region& region_;
  const std::vector<Shape>& shapes_;
  std::vector<bool> taken_;
  std::vector<std::vector<int32_t>> readers_;
  std::vector<int32_t> producer_;
  std::vector<bool> leaves_;
  int32_t pending_pad_ = -1;     // the PAD that the convolution in work may take
  int32_t pending_concat_ = -1;  // the same of a CONCATENATION
};

// -- phases --------------------------------------------------------------------------------------------------------

// Units that become one pipeline.
struct Phase {
  std::vector<size_t> units;
  bool other = false;  // a single one that no stage covers
};

bool same_pixels(const Image& a, const Image& b) {
  return a.batch == b.batch && a.height == b.height && a.width == b.width;
}

bool is_fixed(Stretch stretch) { return stretch == Stretch::kChannel || stretch == Stretch::kScalar; }

class Lowering {
 public:
  Lowering(const Region& region, const std::vector<Shape>& shapes, const LoweringOptions& options,
           std::vector<Unit> units)
      : region_(region), shapes_(shapes), options_(options), units_(std::move(units)) {
    phase_of_.assign(region.tensors.size(), -1);
    images_.resize(region.tensors.size());
    escapes_.assign(region.tensors.size(), false);
  }

  Status run(std::vector<Section>* sections) {
    divide();
    for (int32_t t : region_.outputs) escapes_[at(t)] = true;
    for (size_t p = 0; p < phases_.size(); ++p) {
      for (size_t u : phases_[p].units) {
        for (int32_t t : units_[u].inputs) {
          if (phase_of_[at(t)] >= 0 && phase_of_[at(t)] != static_cast<int32_t>(p)) escapes_[at(t)] = true;
        }
      }
    }
    for (const Phase& phase : phases_) {
      Section section;
      if (phase.other) {
        const Unit& unit = units_[phase.units[0]];
        section.operators = unit.operators;
        section.inputs = unit.inputs;
        section.outputs = unit.outputs;
      } else {
        LITEFUSE_RETURN_IF_REFUSED(build(phase, &section));
      }
      sections->push_back(std::move(section));
    }
    return Status();
  }

 private:
  // Puts units into phases one after the other: each as long as what it needs fits to what is there.
  void divide() {
    for (size_t u = 0; u < units_.size(); ++u) {
      Unit& unit = units_[u];
      Image result;
      bool joins = !phases_.empty() && !phases_.back().other && unit.type != Unit::Type::kOther &&
                   fits(unit, static_cast<int32_t>(phases_.size()) - 1, &result);
      if (!joins) {
        phases_.emplace_back();
        const bool other = unit.type == Unit::Type::kOther;
        phases_.back().other = other || !fits(unit, static_cast<int32_t>(phases_.size()) - 1, &result);
        if (phases_.back().other && !other) {
          phases_.pop_back();
          take_apart(u--);
          continue;
        }
      }
      phases_.back().units.push_back(u);
      for (int32_t t : unit.outputs) {
        phase_of_[at(t)] = static_cast<int32_t>(phases_.size()) - 1;
        images_[at(t)] = result;
        if (unit.type == Unit::Type::kSplit) images_[at(t)].channels = shapes_[at(t)].last(0);
      }
    }
  }

  // Puts the single operators of a unit in its place, to be run by their reference kernels.
  void take_apart(size_t u) {
    std::vector<Unit> parts;
    for (int32_t i : units_[u].operators) {
      parts.push_back(single(region_, i));
    }
    units_.erase(units_.begin() + static_cast<std::ptrdiff_t>(u));
    units_.insert(units_.begin() + static_cast<std::ptrdiff_t>(u), parts.begin(), parts.end());
  }

  // Whether a unit can be a part of a phase; the image of its result.
  bool fits(const Unit& unit, int32_t phase, Image* result) const {
    *result = unit.result;
    if (unit.inherits) {
      for (size_t i = 0; i < unit.inputs.size(); ++i) {
        if (phase_of_[at(unit.inputs[i])] != phase || is_fixed(unit.stretches[i])) continue;
        *result = images_[at(unit.inputs[i])];
        result->channels = unit.result.channels;
        break;
      }
      if (result->elements() != unit.result.elements()) return false;
    }
    // All outputs of a pipeline are of the same batch.
    if (!phases_[at(phase)].units.empty()) {
      const int32_t first = units_[phases_[at(phase)].units[0]].outputs[0];
      if (images_[at(first)].batch != result->batch) return false;
    }
    for (size_t i = 0; i < unit.inputs.size(); ++i) {
      const int32_t t = unit.inputs[i];
      const bool inside = phase_of_[at(t)] == phase;
      Image want = unit.wants[i];
      if (is_fixed(unit.stretches[i])) {
        if (inside && (images_[at(t)].height != 1 || images_[at(t)].width != 1)) return false;
        if (!inside && want.batch > 1 && want.batch != result->batch) return false;
        continue;
      }
      if (any_image(want)) want = *result;
      if (inside && !same_pixels(images_[at(t)], want)) return false;
      if (inside && !any_image(unit.wants[i]) && images_[at(t)] != want) return false;
      if (!inside && want.pixels() * channels_of(unit, i, t) != shapes_[at(t)].elements()) return false;
      if (want.batch != result->batch && !any_image(unit.wants[i])) return false;
    }
    return true;
  }

  int64_t channels_of(const Unit& unit, size_t input, int32_t t) const {
    if (unit.stretches[input] == Stretch::kPixel) return 1;
    if (unit.type == Unit::Type::kConv && input == 0 && unit.conv.piece == 0) {
      return int64_t{unit.conv.depth} * unit.conv.groups;
    }
    if (!any_image(unit.wants[input])) return unit.wants[input].channels;
    return shapes_[at(t)].rank() > 0 ? shapes_[at(t)].last(0) : 1;
  }

  // -- building one pipeline

  struct Builder {
    Section* section = nullptr;
    Pipeline* pipeline = nullptr;
    int32_t phase = 0;
    bool flat = false;         // all images are columns of single pixels
    bool flat_batch = false;   // the images of a batch one behind the other
    std::vector<int> streams;  // of tensors; -1
    std::vector<int> uses;     // of tensors that are computed here, views counted as what they show
    struct External {
      int32_t tensor;
      Image image;
      int stream;
    };
    std::vector<External> externals;
  };

  Image flattened(const Builder& b, Image image) const {
    if (!b.flat) return image;
    image.height = image.height * image.width;
    image.width = 1;
    if (b.flat_batch) {
      image.height *= image.batch;
      image.batch = 1;
    }
    return image;
  }

  static int number_of(std::vector<int32_t>* list, int32_t tensor) {
    const auto found = std::find(list->begin(), list->end(), tensor);
    if (found != list->end()) return static_cast<int>(found - list->begin());
    list->push_back(tensor);
    return static_cast<int>(list->size()) - 1;
  }

  int external(Builder& b, int32_t t, const Image& image) const {
    for (const Builder::External& e : b.externals) {
      if (e.tensor == t && e.image == image) return e.stream;
    }
    const int stream = b.pipeline->add_input(image, number_of(&b.section->inputs, t));
    b.externals.push_back({t, image, stream});
    return stream;
  }

  int input(Builder& b, const Unit& unit, size_t i, const Image& result) const {
    const int32_t t = unit.inputs[i];
    if (b.streams[at(t)] >= 0) return b.streams[at(t)];
    Image image = unit.wants[i];
    if (is_fixed(unit.stretches[i])) return external(b, t, image);
    const auto channels = static_cast<int32_t>(channels_of(unit, i, t));
    if (any_image(image)) image = result;
    image.channels = channels;
    return external(b, t, flattened(b, image));
  }

  int output(Builder& b, int32_t t) const {
    const Image image = flattened(b, images_[at(t)]);
    const int stream = escapes_[at(t)] ? b.pipeline->add_output(image, number_of(&b.section->outputs, t))
                                       : b.pipeline->add_ring(image);
    b.streams[at(t)] = stream;
    return stream;
  }

  // Whether a stage may write over a stream: nothing else reads it.
  bool is_spent(const Builder& b, int32_t t, int stream) const {
    return b.pipeline->is_own_ring(stream) && b.uses[at(t)] == 1;
  }

  // Computes in place where that can be.
  void in_place(Builder& b, const Unit& unit, const std::vector<int>& inputs, int out) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool fits = unit.stretches[i] == Stretch::kNone && is_spent(b, unit.inputs[i], inputs[i]) &&
                        b.pipeline->image(inputs[i]) == b.pipeline->image(out);
      if (!fits) continue;
      b.pipeline->make_view(inputs[i], out, 0);
      return;
    }
  }

  int copied(Builder& b, int stream, int to, int op) const {
    b.pipeline->add_stage(make_pad_stage(0, 0, 0, b.pipeline->image(stream), 0.0f), {stream}, {to}, op);
    return to;
  }

  // A stage that wants zeros beside its rows gets a copy of what is not kept in a ring.
  int padded(Builder& b, const Stage& stage, int stream, int op) const {
    const bool wanted = stage.wants_left(0) + stage.wants_right(0) > 0;
    if (!wanted || !stage.needs_padding() || b.pipeline->is_ring(stream)) return stream;
    return copied(b, stream, b.pipeline->add_ring(b.pipeline->image(stream)), op);
  }

  Status build(const Phase& phase, Section* section) {
    auto pipeline = std::make_unique<Pipeline>();
    Builder b;
    b.section = section;
    b.pipeline = pipeline.get();
    b.phase = phase_of_[at(units_[phase.units[0]].outputs[0])];
    b.streams.assign(region_.tensors.size(), -1);
    b.uses.assign(region_.tensors.size(), 0);
    b.flat = b.flat_batch = true;
    for (size_t u : phase.units) {
      const Unit& unit = units_[u];
      b.flat = b.flat && unit.local;
      for (const Image& want : unit.wants) b.flat_batch = b.flat_batch && want.batch <= 1;
      section->operators.insert(section->operators.end(), unit.operators.begin(), unit.operators.end());
      for (int32_t t : unit.inputs) ++b.uses[at(t)];
    }
    b.flat_batch = b.flat_batch && b.flat;
    // What is read through a view counts for what the view shows, and the other way round.
    const auto is_view = [&](const Unit& unit) {
      return unit.type == Unit::Type::kView && !escapes_[at(unit.outputs[0])];
    };
    for (size_t i = phase.units.size(); i-- > 0;) {
      const Unit& unit = units_[phase.units[i]];
      if (is_view(unit)) b.uses[at(unit.inputs[0])] += b.uses[at(unit.outputs[0])] - 1;
    }
    for (size_t u : phase.units) {
      const Unit& unit = units_[u];
      if (is_view(unit)) b.uses[at(unit.outputs[0])] = b.uses[at(unit.inputs[0])];
    }
    std::sort(section->operators.begin(), section->operators.end());
    for (size_t u : phase.units) LITEFUSE_RETURN_IF_REFUSED(emit(b, units_[u]));
    if (options_.strip > 0) pipeline->set_strip(options_.strip);
    LITEFUSE_RETURN_IF_REFUSED(pipeline->plan(options_.threads));
    section->pipeline = std::move(pipeline);
    return Status();
  }

  Status emit(Builder& b, const Unit& unit) const {
    const Image result = images_[at(unit.outputs[0])];
    if (unit.type == Unit::Type::kView) return emit_view(b, unit, result);
    std::vector<int> ins;
    for (size_t i = 0; i < unit.inputs.size(); ++i) ins.push_back(input(b, unit, i, result));
    if (unit.type == Unit::Type::kConcat) return emit_concat(b, unit, ins);
    if (unit.type == Unit::Type::kSplit) return emit_split(b, unit, ins[0]);
    std::unique_ptr<Stage> stage;
    const Image in = b.pipeline->image(ins[0]);
    switch (unit.type) {
      case Unit::Type::kConv: {
        ConvStageParams params = unit.conv;
        if (unit.inherits) {
          params.y = {in.height, 1, 1, 1, in.height, 0};
          params.x = {in.width, 1, 1, 1, in.width, 0};
        }
        params.sliced = b.pipeline->is_sliced(ins[0]);
        if (options_.winograd) stage = make_winograd_stage(params);
        if (stage == nullptr) stage = make_conv_stage(params);
        break;
      }
      case Unit::Type::kTransposeConv:
        stage = make_transpose_conv_stage(unit.conv);
        break;
      case Unit::Type::kDepthwise:
        stage = make_depthwise_stage(unit.depthwise);
        break;
      case Unit::Type::kUnary:
        stage = make_unary_stage(unit.unary, unit.a, unit.b);
        break;
      case Unit::Type::kBinary:
        stage = make_binary_stage(unit.binary, unit.stretches[0], unit.stretches[1], unit.a, unit.b);
        break;
      case Unit::Type::kScaleShift:
        stage = make_scale_shift_stage(unit.scale_shift);
        break;
      case Unit::Type::kPool:
        stage = make_pool_stage(unit.pool);
        break;
      case Unit::Type::kBilinear:
        stage = make_bilinear_stage(unit.rows, unit.columns);
        break;
      case Unit::Type::kNearest:
        stage = make_nearest_stage(unit.rows, unit.columns);
        break;
      case Unit::Type::kPad:
        stage = make_pad_stage(unit.top, unit.left, unit.front, in, unit.a);
        break;
      case Unit::Type::kReduceChannels:
        stage = make_reduce_channels_stage(unit.reduction);
        break;
      case Unit::Type::kReducePixels:
        return emit_reduce_pixels(b, unit, ins[0]);
      case Unit::Type::kInstanceNorm:
        return emit_instance_norm(b, unit, ins[0]);
      case Unit::Type::kNorm:
        stage = make_norm_stage(unit.norm, unit.gamma, unit.beta, unit.a);
        break;
      default:
        return refuse("it has no stage");
    }
    LITEFUSE_REQUIRE(stage != nullptr, "there is no memory for its weights");
    ins[0] = padded(b, *stage, ins[0], unit.root);
    const int out = output(b, unit.outputs[0]);
    const bool writes_over =
        unit.type == Unit::Type::kUnary || unit.type == Unit::Type::kBinary || unit.type == Unit::Type::kScaleShift;
    if (writes_over) in_place(b, unit, ins, out);
    b.pipeline->add_stage(std::move(stage), std::move(ins), {out}, unit.root);
    return Status();
  }

  Status emit_view(Builder& b, const Unit& unit, const Image& result) const {
    const int32_t t = unit.outputs[0];
    const int from = input(b, unit, 0, result);
    if (!escapes_[at(t)]) {
      b.streams[at(t)] = from;
      return Status();
    }
    const int out = output(b, t);
    if (is_spent(b, unit.inputs[0], from) && b.pipeline->image(from) == b.pipeline->image(out)) {
      b.pipeline->make_view(from, out, 0);  // computed in place
      b.pipeline->add_stage(nullptr, {from}, {out}, unit.root);
    } else {
      copied(b, from, out, unit.root);
    }
    return Status();
  }

  Status emit_concat(Builder& b, const Unit& unit, const std::vector<int>& ins) const {
    const int out = output(b, unit.outputs[0]);
    std::vector<int> parts;
    int32_t first = 0;
    for (size_t i = 0; i < ins.size(); ++i) {
      const int32_t channels = b.pipeline->image(ins[i]).channels;
      if (is_spent(b, unit.inputs[i], ins[i]) && std::find(parts.begin(), parts.end(), ins[i]) == parts.end()) {
        b.pipeline->make_view(ins[i], out, first);
        parts.push_back(ins[i]);
      } else {
        parts.push_back(copied(b, ins[i], b.pipeline->add_view(out, first, channels), unit.root));
      }
      first += channels;
    }
    b.pipeline->add_stage(nullptr, std::move(parts), {out}, unit.root);
    return Status();
  }

  Status emit_split(Builder& b, const Unit& unit, int in) const {
    std::vector<int> parts;
    int32_t first = 0;
    for (int32_t t : unit.outputs) {
      const int32_t channels = images_[at(t)].channels;
      const int part = b.pipeline->add_view(in, first, channels);
      parts.push_back(part);
      first += channels;
    }
    b.pipeline->add_stage(nullptr, {in}, parts, unit.root);
    for (size_t i = 0; i < parts.size(); ++i) {
      const int32_t t = unit.outputs[i];
      if (escapes_[at(t)]) {
        copied(b, parts[i], output(b, t), unit.root);
      } else {
        b.streams[at(t)] = parts[i];
      }
    }
    return Status();
  }

  // Means of all pixels, from one for each row.
  void emit_mean(Builder& b, std::unique_ptr<Stage> each_row, std::vector<int> inputs, int mean, int op) const {
    Image rows = b.pipeline->image(inputs[0]);
    const int64_t count = int64_t{rows.height} * rows.width;
    rows.width = 1;
    const int each = b.pipeline->add_ring(rows);
    b.pipeline->add_stage(std::move(each_row), std::move(inputs), {each}, op);
    b.pipeline->add_stage(make_reduce_rows_stage(Reduction::kMean, count), {each}, {mean}, op);
  }

  Status emit_instance_norm(Builder& b, const Unit& unit, int in) const {
    const Image one{b.pipeline->image(in).batch, 1, 1, b.pipeline->image(in).channels};
    const int mean = b.pipeline->add_ring(one), variance = b.pipeline->add_ring(one);
    const int scale = b.pipeline->add_ring(one), shift = b.pipeline->add_ring(one);
    emit_mean(b, make_reduce_row_stage(Reduction::kSum), {in}, mean, unit.root);
    emit_mean(b, make_sum_squares_row_stage(), {in, mean}, variance, unit.root);
    b.pipeline->add_stage(make_norm_scale_stage(unit.gamma, unit.beta, unit.epsilon), {variance}, {scale, shift},
                          unit.root);
    // The difference first: a large mean would cost the product its last digits.
    const int out = output(b, unit.outputs[0]);
    const int centred = b.pipeline->add_view(out, 0, b.pipeline->image(out).channels);
    b.pipeline->add_stage(make_binary_stage(Binary::kSub, Stretch::kNone, Stretch::kChannel, -kInfinity, kInfinity),
                          {in, mean}, {centred}, unit.root);
    ScaleShift params;
    params.scaled = params.shifted = true;
    params.min = unit.a;
    params.max = unit.b;
    b.pipeline->add_stage(make_scale_shift_stage(params), {centred, scale, shift}, {out}, unit.root);
    return Status();
  }

  Status emit_reduce_pixels(Builder& b, const Unit& unit, int in) const {
    Image rows = b.pipeline->image(in);
    const int64_t count = int64_t{rows.height} * rows.width;
    rows.width = 1;
    int each = in;
    if (b.pipeline->image(in).width > 1) {
      each = b.pipeline->add_ring(rows);
      b.pipeline->add_stage(make_reduce_row_stage(unit.reduction), {in}, {each}, unit.root);
    }
    const int out = output(b, unit.outputs[0]);
    b.pipeline->add_stage(make_reduce_rows_stage(unit.reduction, count), {each}, {out}, unit.root);
    return Status();
  }

  const Region& region_;
  const std::vector<Shape>& shapes_;
  const LoweringOptions& options_;
  std::vector<Unit> units_;
  std::vector<Phase> phases_;
  std::vector<int32_t> phase_of_;  // of tensors
  std::vector<Image> images_;      // of tensors that units compute
  std::vector<bool> escapes_;      // tensors that are read outside of the phase that computes them
};

}  // namespace

Status lower(const Region& region, const std::vector<Shape>& shapes, const std::vector<bool>& done,
             const LoweringOptions& options, std::vector<Section>* sections) {
  sections->clear();
  return Lowering(region, shapes, options, Units(region, shapes, done).find()).run(sections);
}

}  // namespace litefuse
