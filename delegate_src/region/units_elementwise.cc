// Finds the units of functions of each element, of one operand or two, and of the pairs of them that are one stage.
#include <algorithm>
#include <cmath>

#include "region/unit_finder.h"

namespace litefuse {

Stretch UnitFinder::stretch_of(int32_t t, int32_t whole) const {
  const Shape &small = shape(t), &large = shape(whole);
  const int64_t count = small.elements();
  if (count == 1) return Stretch::kScalar;
  const int32_t channels = large.last(0);
  if (count == channels && small.last(0) == channels) return Stretch::kChannel;
  return Stretch::kNone;
}

const float* UnitFinder::slopes_of(const Operator& prelu, int32_t x) const {
  const bool fits = prelu.kind == Kind::kPrelu && prelu.inputs[0] == x && is_constant(prelu.inputs[1]) &&
                    stretch_of(prelu.inputs[1], x) == Stretch::kChannel;
  return fits ? constant(prelu.inputs[1]) : nullptr;
}

// Sets `lead` to how many images like that of a tensor another one consists of, where it is the same for all of them:
// its first dimensions are one, and the others are those of the whole.
bool UnitFinder::is_repeated(int32_t t, int32_t whole, int64_t* lead) const {
  const Shape &large = shape(whole), small = shape(t).extended(std::max(shape(t).rank(), large.rank()));
  if (small.rank() != large.rank()) return false;
  int axis = large.rank();
  while (axis > 0 && small[axis - 1] == large[axis - 1]) --axis;
  *lead = 1;
  for (int i = 0; i < axis; ++i) {
    if (small[i] != 1) return false;
    *lead *= large[i];
  }
  return axis + 1 < large.rank();
}

// Sets inputs, stretches and wanted images of an operator with one or two operands of the size of its output.
bool UnitFinder::operands(const std::vector<int32_t>& tensors, Unit* unit) const {
  const int32_t output = unit->outputs[0];
  Image whole = image(output);
  bool has_whole = false;
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
        int64_t lead = 1;
        if (pixels || images) {
          stretch = pixels ? Stretch::kPixel : Stretch::kChannel;
          if (images) want = Image{small[0], 1, 1, small[3]};
        } else if (is_repeated(t, output, &lead)) {
          want = anything_shared();
          const auto batch = static_cast<int32_t>(lead);
          whole = Image{batch, static_cast<int32_t>(whole.pixels() / batch), 1, whole.channels};
        } else {
          return false;
        }
      } else {
        want = Image{1, 1, 1, stretch == Stretch::kScalar ? 1 : whole.channels};
      }
    } else {
      has_whole = true;
      if (shape(t) != shape(output) && elements(output) > 1) {
        // The same elements, but perhaps not in the same places.
        const Shape wide = shape(t).extended(std::max(shape(t).rank(), shape(output).rank()));
        if (wide != shape(output).extended(wide.rank())) return false;
      }
    }
    unit->add_input(t, want, stretch);
  }
  unit->result = whole;
  unit->local = true;
  unit->inherits = true;
  // The image is that of an operand which is neither stretched nor repeated.
  return has_whole;
}

bool UnitFinder::elementwise(int32_t i, Unit* unit) {
  const Operator& o = op(i);
  if (scaled_softmax(i, unit)) return true;
  if (unary_of(o, &unit->unary, &unit->a, &unit->b)) {
    unit->type = Unit::Type::kUnary;
    if (o.kind == Kind::kLogistic && gate(i, unit)) return true;
    return operands({o.inputs[0]}, unit);
  }
  if (!binary_of(o, &unit->binary, &unit->a, &unit->b)) return false;
  if (o.kind == Kind::kPow && !is_plain_power(o.inputs[1])) return false;
  unit->type = Unit::Type::kBinary;
  if (scale_shift(i, unit)) return true;
  absorb_clamp(unit);
  return operands({o.inputs[0], o.inputs[1]}, unit);
}

// An exponent for which TFLite has no rule of its own: it takes what is close to an integer for that.
bool UnitFinder::is_plain_power(int32_t exponent) const {
  if (!is_constant(exponent) || elements(exponent) != 1) return false;
  const float value = constant(exponent)[0];
  const float off = std::fabs(value - std::nearbyint(value));
  return off == 0.0f || off > 1e-4f;
}

// x sigmoid(x), and x sigmoid(z).
bool UnitFinder::gate(int32_t i, Unit* unit) {
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

// A multiplication by a moderate positive number, or a division by one.
bool UnitFinder::is_scale(int32_t i, int32_t* x, float* factor) const {
  const Operator& o = op(i);
  const bool divides = o.kind == Kind::kDiv;
  if ((o.kind != Kind::kMul && !divides) || !is_float(i)) return false;
  if (params_of<ActivationParams>(o).activation != Activation::kNone) return false;
  const bool turned = !divides && is_constant(o.inputs[0]);
  *x = o.inputs[turned ? 1 : 0];
  const int32_t by = o.inputs[turned ? 0 : 1];
  if (!is_constant(by) || is_constant(*x) || elements(by) != 1 || shape(*x) != shape(o.outputs[0])) return false;
  *factor = divides ? 1.0f / constant(by)[0] : constant(by)[0];
  return is_moderate(*factor);
}

// A softmax of what is multiplied or divided by a number.
bool UnitFinder::scaled_softmax(int32_t i, Unit* unit) const {
  int32_t x = -1;
  float factor = 1;
  if (!is_scale(i, &x, &factor)) return false;
  const int32_t next = only_reader(op(i).outputs[0]);
  if (next < 0 || op(next).kind != Kind::kSoftmax || !is_float(next) || shape(x).rank() == 0) return false;
  unit->a = factor * params_of<SoftmaxParams>(op(next)).beta;
  if (!is_moderate(unit->a)) return false;
  unit->type = Unit::Type::kNorm;
  unit->norm = RowNorm::kSoftmax;
  unit->operators = {i, next};
  unit->outputs = op(next).outputs;
  pixel_by_pixel(x, unit);
  return true;
}

// MUL and ADD by constants, then a clamp or PReLU: what batch normalisation is. What is added to a product may also be
// computed.
bool UnitFinder::scale_shift(int32_t i, Unit* unit) {
  const Operator& first = op(i);
  if (first.kind != Kind::kMul && first.kind != Kind::kAdd) return false;
  const auto constant_of = [&](const Operator& o, int32_t data) {
    const int32_t other = o.inputs[0] == data ? o.inputs[1] : o.inputs[0];
    if (other == data || !is_constant(other) || shape(o.outputs[0]) != shape(data)) return -1;
    return is_fixed(stretch_of(other, data)) ? other : -1;
  };
  // A tensor that stages know how to add to another one.
  const auto addend_of = [&](const Operator& o, int32_t data) {
    const int32_t other = o.inputs[0] == data ? o.inputs[1] : o.inputs[0];
    if (other == data || shape(o.outputs[0]) != shape(data)) return -1;
    Unit sum(region_, i);
    sum.outputs = o.outputs;
    return operands({data, other}, &sum) ? other : -1;
  };
  const int32_t x = is_constant(first.inputs[0]) ? first.inputs[1] : first.inputs[0];
  if (is_constant(x)) return false;
  ScaleShift& p = unit->scale_shift;
  std::vector<int32_t> taken = {i};
  int32_t out = first.outputs[0], scale = -1, shift = -1;
  float min = unit->a, max = unit->b;
  const auto take = [&](int32_t next) {
    out = op(next).outputs[0];
    taken.push_back(next);
  };
  if (first.kind == Kind::kMul) {
    scale = constant_of(first, x);
    if (scale < 0) return false;
    const int32_t next = is_clamped(min, max) ? -1 : only_reader(out);
    if (next >= 0 && op(next).kind == Kind::kAdd && is_float(next)) {
      const int32_t added = addend_of(op(next), out);
      if (added >= 0 && clamp_of(params_of<ActivationParams>(op(next)).activation, &min, &max)) {
        shift = added;
        take(next);
      }
    }
  } else {
    shift = constant_of(first, x);
    if (shift < 0) return false;
  }
  if (!is_clamped(min, max)) {
    const int32_t next = only_reader(out);
    if (next >= 0 && is_float(next)) {
      if (clamp_of(op(next).kind, &min, &max)) {
        take(next);
      } else if (const float* slopes = slopes_of(op(next), out)) {
        p.slopes = slopes;
        take(next);
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

void UnitFinder::absorb_clamp(Unit* unit) const {
  if (is_clamped(unit->a, unit->b)) return;
  const int32_t next = only_reader(unit->outputs[0]);
  if (next < 0 || !is_float(next) || !clamp_of(op(next).kind, &unit->a, &unit->b)) return;
  unit->operators.push_back(next);
  unit->outputs = op(next).outputs;
}

}  // namespace litefuse
