// Finds the units of convolutions, with the padding or concatenation before them and what can be done behind them in
// registers.
#include <numeric>
#include <utility>

#include "region/unit_finder.h"

namespace litefuse {
namespace {

// Windows that no real model has go to the reference kernels, so that nothing here has to mind overflow.
bool is_sane(const Window& w) {
  constexpr int32_t kMost = 1 << 12;
  return w.filter <= kMost && w.stride <= kMost && w.dilation <= kMost;
}

bool is_identity(const Window& w) { return w.filter == 1 && w.stride == 1 && w.pad_before == 0 && w.out == w.in; }

}  // namespace

// The filter, which is the second input of all of them, the bias and the activation.
bool UnitFinder::constants_of(int32_t i, size_t bias, Activation activation, Filter* filter, Epilogue* epilogue) const {
  const std::vector<int32_t>& inputs = op(i).inputs;
  const Tensor& weights = tensor(inputs[1]);
  if (weights.constant == nullptr && weights.half == nullptr) return false;
  filter->half = weights.constant == nullptr;
  filter->data = filter->half ? weights.half : weights.constant;
  if (bias < inputs.size() && inputs[bias] >= 0) {
    if (!is_constant(inputs[bias])) return false;
    filter->bias = constant(inputs[bias]);
  }
  return clamp_of(activation, &epilogue->min, &epilogue->max);
}

bool UnitFinder::windows(const Shape& in, int32_t height, int32_t width, const Conv2dParams& p, Window* y,
                         Window* x) const {
  if (!find_window("height", p.padding, in[1], height, p.stride_h, p.dilation_h_factor, y).ok() ||
      !find_window("width", p.padding, in[2], width, p.stride_w, p.dilation_w_factor, x).ok()) {
    return false;
  }
  if (sideways_) std::swap(*y, *x);
  return is_sane(*y) && is_sane(*x);
}

bool UnitFinder::is_pointwise(int32_t conv) const {
  const auto params = params_of<Conv2dParams>(op(conv));
  const Shape& weights = shape(op(conv).inputs[1]);
  return weights[1] == 1 && weights[2] == 1 && params.stride_h == 1 && params.stride_w == 1;
}

bool UnitFinder::is_for_conv(int32_t i, int32_t* reader) const {
  *reader = only_reader(op(i).outputs[0]);
  if (*reader < 0 || !is_float(*reader) || op(i).inputs.size() != 2) return false;
  const Kind kind = op(*reader).kind;
  if ((kind != Kind::kConv2d && kind != Kind::kDepthwiseConv2d) || op(*reader).inputs[0] != op(i).outputs[0]) {
    return false;
  }
  const int32_t* amounts = amounts_of(i);
  return amounts != nullptr && amounts[0] == 0 && amounts[1] == 0 && amounts[6] == 0 && amounts[7] == 0;
}

// The convolution that reads what `front` computes is tried at once: such operators come shortly before it.
bool UnitFinder::conv_with(int32_t front, int32_t reader, Unit* unit) {
  Unit with(region_, reader);
  taken_[at(front)] = true;
  const bool covers = op(reader).kind == Kind::kConv2d ? conv(reader, front, &with) : depthwise(reader, front, &with);
  if (covers && with.operators[0] == front) {
    *unit = std::move(with);
    return true;
  }
  taken_[at(front)] = false;
  for (int32_t i : with.operators) taken_[at(i)] = false;
  return false;
}

// Padding before a convolution becomes a part of its own. Returns what the convolution reads then.
int32_t UnitFinder::absorb_pad(int32_t front, int32_t input, Unit* unit, Window* y, Window* x) const {
  if (front < 0 || op(front).kind == Kind::kConcatenation) return input;
  const int32_t* amounts = amounts_of(front);
  const int32_t source = op(front).inputs[0];
  if (sideways_) std::swap(y, x);
  y->pad_before += amounts[2];
  x->pad_before += amounts[4];
  y->in = shape(source)[1];
  x->in = shape(source)[2];
  unit->operators.insert(unit->operators.begin(), front);
  return source;
}

// A pointwise convolution can read tensors side by side as they are, in pieces of as many channels as divide them all.
void UnitFinder::absorb_concat(int32_t front, Unit* unit) const {
  constexpr int32_t kShortest = 8;  // shorter pieces cost more than a copy
  if (front < 0 || op(front).kind != Kind::kConcatenation || unit->conv.groups != 1) return;
  int32_t piece = 0;
  for (int32_t t : op(front).inputs) piece = std::gcd(piece, shape(t).last(0));
  if (piece < kShortest) return;
  unit->conv.piece = piece;
  unit->inputs.clear();
  unit->wants.clear();
  unit->stretches.clear();
  for (int32_t t : op(front).inputs) unit->add_input(t, anything());
  unit->operators.insert(unit->operators.begin(), front);
}

bool UnitFinder::conv(int32_t i, int32_t front, Unit* unit) {
  const auto params = params_of<Conv2dParams>(op(i));
  const int32_t input = op(i).inputs[0];
  const Shape& weights = shape(op(i).inputs[1]);
  ConvStageParams& conv = unit->conv;
  if (!constants_of(i, 2, params.activation, &conv.filter, &conv.epilogue)) return false;
  if (!windows(shape(input), weights[1], weights[2], params, &conv.y, &conv.x)) return false;
  conv.depth = weights[3];
  conv.outputs = weights[0];
  conv.groups = shape(input)[3] / conv.depth;
  if (conv.groups > 1 && conv.depth == 1 && conv.outputs % conv.groups == 0) return grouped_depthwise(i, front, unit);
  const int32_t source = absorb_pad(front, input, unit, &conv.y, &conv.x);
  unit->type = Unit::Type::kConv;
  if (is_identity(conv.y) && is_identity(conv.x)) {
    pixel_by_pixel(source, unit);
    absorb_concat(front, unit);
  } else {
    one_image(source, unit);
  }
  absorb_epilogue(i, unit, &conv.epilogue, true);
  return true;
}

// A convolution with as many groups as channels is a depthwise one with another layout of the filter.
bool UnitFinder::grouped_depthwise(int32_t i, int32_t front, Unit* unit) {
  DepthwiseStageParams& p = unit->depthwise;
  p.filter = unit->conv.filter;
  p.filter.by_channel = true;
  p.multiplier = unit->conv.outputs / unit->conv.groups;
  p.channels = unit->conv.outputs;
  p.y = unit->conv.y;
  p.x = unit->conv.x;
  p.epilogue = unit->conv.epilogue;
  return finish_depthwise(i, front, unit);
}

bool UnitFinder::fully_connected(int32_t i, Unit* unit) {
  const auto params = params_of<FullyConnectedParams>(op(i));
  const int32_t input = op(i).inputs[0];
  const Shape& weights = shape(op(i).inputs[1]);
  ConvStageParams& conv = unit->conv;
  if (!constants_of(i, 2, params.activation, &conv.filter, &conv.epilogue)) return false;
  conv.depth = weights[1];
  conv.outputs = weights[0];
  const auto rows = static_cast<int32_t>(elements(input) / conv.depth);
  conv.y = pointwise(rows);
  conv.x = pointwise(1);
  unit->type = Unit::Type::kConv;
  unit->local = true;
  unit->inherits = shape(input).rank() > 0 && shape(input).last(0) == conv.depth;
  unit->add_input(input, unit->inherits ? anything() : Image{1, rows, 1, conv.depth});
  unit->result = Image{1, rows, 1, conv.outputs};
  absorb_epilogue(i, unit, &conv.epilogue, true);
  return true;
}

bool UnitFinder::depthwise(int32_t i, int32_t front, Unit* unit) {
  const auto params = params_of<Conv2dParams>(op(i));
  const int32_t input = op(i).inputs[0];
  const Shape& weights = shape(op(i).inputs[1]);
  DepthwiseStageParams& p = unit->depthwise;
  if (weights[3] % shape(input)[3] != 0) return false;
  p.multiplier = weights[3] / shape(input)[3];
  if (!constants_of(i, 2, params.activation, &p.filter, &p.epilogue)) return false;
  if (!windows(shape(input), weights[1], weights[2], params, &p.y, &p.x)) return false;
  p.channels = weights[3];
  return finish_depthwise(i, front, unit);
}

bool UnitFinder::finish_depthwise(int32_t i, int32_t front, Unit* unit) {
  DepthwiseStageParams& p = unit->depthwise;
  unit->type = Unit::Type::kDepthwise;
  one_image(absorb_pad(front, op(i).inputs[0], unit, &p.y, &p.x), unit);
  absorb_epilogue(i, unit, &p.epilogue, false);
  return true;
}

bool UnitFinder::transpose_conv(int32_t i, Unit* unit) {
  const auto params = params_of<Conv2dParams>(op(i));
  const Shape& weights = shape(op(i).inputs[1]);
  ConvStageParams& conv = unit->conv;
  if (!constants_of(i, 3, params.activation, &conv.filter, &conv.epilogue)) return false;
  Conv2dParams back = params;
  back.dilation_h_factor = back.dilation_w_factor = 1;
  if (!windows(shape(op(i).outputs[0]), weights[1], weights[2], back, &conv.y, &conv.x)) return false;
  constexpr int32_t kMostPhases = 64;
  if (conv.y.stride * conv.x.stride > kMostPhases) return false;
  conv.depth = weights[3];
  conv.outputs = weights[0];
  unit->type = Unit::Type::kTransposeConv;
  one_image(op(i).inputs[2], unit);
  absorb_epilogue(i, unit, &conv.epilogue, true);
  return true;
}

// Takes what follows a convolution as long as it can be done in registers.
void UnitFinder::absorb_epilogue(int32_t root, Unit* unit, Epilogue* epilogue, bool residual) {
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
    } else if (const float* slopes = slopes_of(follower, out);
               slopes != nullptr && plain && !is_clamped(epilogue->min, epilogue->max)) {
      epilogue->slopes = slopes;
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
      unit->add_input(other, anything());
    } else {
      return;
    }
    unit->operators.push_back(next);
    unit->outputs = follower.outputs;
    taken_[at(next)] = true;
  }
}

}  // namespace litefuse
