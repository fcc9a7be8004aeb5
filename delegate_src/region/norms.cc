#include "region/norms.h"

#include <algorithm>

namespace litefuse {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

bool is_plain(const Operator& op) {
  const auto* params = std::get_if<ActivationParams>(&op.params);
  return params == nullptr || params->activation == Activation::kNone;
}

}  // namespace

// One for each channel of the input.
bool NormFinder::is_channels(int32_t t) const {
  const Shape& shape = shapes_[at(t)];
  const int32_t channels = shapes_[at(input_)].last(0);
  return is_constant(t) && region_.tensors[at(t)].type == Type::kFloat32 && shape.rank() > 0 &&
         shape.last(0) == channels && shape.elements() == channels && channels > 1;
}

bool NormFinder::is_number(int32_t t, float* value) const {
  if (!is_constant(t) || region_.tensors[at(t)].type != Type::kFloat32 || shapes_[at(t)].elements() != 1) return false;
  *value = *static_cast<const float*>(region_.tensors[at(t)].constant);
  return true;
}

// Over the last dimension, or height and width, which stay as ones.
bool NormFinder::is_mean(const Operator& op) const {
  if (op.kind != Kind::kMean || op.inputs.size() != 2 || !is_constant(op.inputs[1])) return false;
  const Shape &in = shapes_[at(op.inputs[0])], &out = shapes_[at(op.outputs[0])];
  const Tensor& axes = region_.tensors[at(op.inputs[1])];
  const int64_t count = shapes_[at(op.inputs[1])].elements();
  if (axes.type != Type::kInt32 || in.rank() == 0 || out.rank() != in.rank()) return false;
  const auto* axis = static_cast<const int32_t*>(axes.constant);
  const auto from_front = [&](int64_t i) { return axis[i] < 0 ? axis[i] + in.rank() : axis[i]; };
  if (!pixels_) return count == 1 && from_front(0) == in.rank() - 1 && out.last(0) == 1;
  if (count != 2 || in.rank() != 4) return false;
  return std::min(from_front(0), from_front(1)) == 1 && std::max(from_front(0), from_front(1)) == 2;
}

NormFinder::Form NormFinder::product(const Form& a, const Form& b) const {
  const auto pair = [&](Part x, Part y) { return (a.part == x && b.part == y) || (a.part == y && b.part == x); };
  const int32_t gamma = std::max(a.gamma, b.gamma);
  if (a.part == Part::kCentred && b.part == Part::kCentred) return {Part::kSquares};
  if (!centred_ && a.part == Part::kInput && b.part == Part::kInput) return {Part::kSquares};
  if (pair(Part::kCentred, Part::kReciprocal)) return {Part::kResult, gamma};
  if (pair(Part::kInput, Part::kReciprocal)) {
    return {centred_ ? Part::kScaledInput : Part::kResult, gamma};
  }
  if (pair(Part::kMean, Part::kReciprocal)) return {Part::kScaledMean, gamma};
  return {};
}

NormFinder::Form NormFinder::form_of(const Operator& op) {
  if (!is_plain(op) || op.outputs.size() != 1 || op.inputs.empty()) return {};
  const int32_t x = op.inputs[0], z = op.inputs.size() > 1 ? op.inputs[1] : -1;
  const auto form = [&](int32_t t) { return t >= 0 ? forms_[at(t)] : Form(); };
  const Form a = form(x), b = form(z);
  float number = 0.0f;
  switch (op.kind) {
    case Kind::kMean:
      if (!is_mean(op)) return {};
      if (a.part == Part::kInput && centred_) return {Part::kMean};
      if (a.part == Part::kSquares) return {Part::kVariance};
      return {};
    case Kind::kSquaredDifference:
      if ((a.part == Part::kInput && b.part == Part::kMean) || (a.part == Part::kMean && b.part == Part::kInput)) {
        return {Part::kSquares};
      }
      return {};
    case Kind::kSquare:
      if (a.part == Part::kCentred || (a.part == Part::kInput && !centred_)) return {Part::kSquares};
      return {};
    case Kind::kSub:
      if (a.part == Part::kInput && b.part == Part::kMean) return {Part::kCentred};
      if (a.part == Part::kScaledInput && b.part == Part::kScaledMean && a.gamma == b.gamma) {
        return {Part::kResult, a.gamma};
      }
      if (b.part == Part::kScaledMean && x >= 0 && is_channels(x)) return {Part::kOffset, b.gamma, x};
      return {};
    case Kind::kAdd: {
      if (a.part == Part::kVariance && is_number(z, &number)) {
        epsilon_ = number;
        return {Part::kShifted};
      }
      if (b.part == Part::kVariance && is_number(x, &number)) {
        epsilon_ = number;
        return {Part::kShifted};
      }
      const bool turned = b.part == Part::kScaledInput || b.part == Part::kResult;
      const Form &main = turned ? b : a, &other = turned ? a : b;
      if (main.part == Part::kScaledInput && other.part == Part::kOffset && main.gamma == other.gamma) {
        return {Part::kResult, main.gamma, other.beta};
      }
      const int32_t constant = turned ? x : z;
      if (main.part == Part::kResult && main.beta < 0 && centred_ && is_channels(constant)) {
        return {Part::kResult, main.gamma, constant};
      }
      return {};
    }
    case Kind::kSqrt:
      return a.part == Part::kShifted ? Form{Part::kDeviation} : Form();
    case Kind::kRsqrt:
      return a.part == Part::kShifted ? Form{Part::kReciprocal} : Form();
    case Kind::kDiv:
      if (b.part != Part::kDeviation) return {};
      if (a.part == Part::kCentred || (a.part == Part::kInput && !centred_)) return {Part::kResult};
      if (is_number(x, &number) && number == 1.0f) return {Part::kReciprocal};
      return {};
    case Kind::kMul: {
      if (a.part != Part::kNone && b.part != Part::kNone) return product(a, b);
      const bool turned = b.part != Part::kNone;
      const Form& main = turned ? b : a;
      const int32_t constant = turned ? x : z;
      if (main.gamma >= 0 || main.beta >= 0 || !is_channels(constant)) return {};
      if (main.part == Part::kReciprocal || main.part == Part::kResult) return {main.part, constant};
      return {};
    }
    default:
      return {};
  }
}

// Whether nothing but the output is read by others.
bool NormFinder::is_closed(const std::vector<int32_t>& operators, int32_t output) const {
  for (int32_t i : operators) {
    for (int32_t t : region_.operators[at(i)].outputs) {
      if (t == output) continue;
      if (leaves_[at(t)]) return false;
      for (int32_t reader : readers_[at(t)]) {
        if (std::find(operators.begin(), operators.end(), reader) == operators.end()) return false;
      }
    }
  }
  return true;
}

bool NormFinder::find(int32_t first) {
  constexpr size_t kMost = 16;  // operators that a normalisation is made of, at most
  const Operator& op = region_.operators[at(first)];
  input_ = op.inputs[0];
  if (is_constant(input_) || shapes_[at(input_)].rank() == 0) return false;
  centred_ = op.kind == Kind::kMean;
  if (pixels_ && (!centred_ || shapes_[at(input_)].rank() != 4)) return false;
  if (!centred_ && op.kind != Kind::kSquare && (op.kind != Kind::kMul || op.inputs[1] != input_)) return false;
  forms_.assign(region_.tensors.size(), Form());
  forms_[at(input_)] = {Part::kInput};
  std::vector<int32_t> taken;
  for (size_t i = at(first); i < region_.operators.size() && taken.size() < kMost; ++i) {
    const Operator& next = region_.operators[i];
    if (next.outputs.size() != 1) continue;
    const Form form = form_of(next);
    if (form.part == Part::kNone) {
      if (static_cast<int32_t>(i) == first) return false;
      continue;
    }
    forms_[at(next.outputs[0])] = form;
    taken.push_back(static_cast<int32_t>(i));
    if (form.part != Part::kResult || shapes_[at(next.outputs[0])] != shapes_[at(input_)]) continue;
    if (!is_closed(taken, next.outputs[0])) continue;
    operators_ = taken;
    output_ = next.outputs[0];
    gamma_ = form.gamma;
    beta_ = form.beta;
  }
  return !operators_.empty();
}

}  // namespace litefuse
