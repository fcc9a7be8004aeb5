// Which functions of the kernels single operators are: activations as clamps, functions of one operand and of two.
#pragma once

#include <variant>

#include "kernels/simd/elementwise.h"
#include "kernels/simd/gemm.h"
#include "region/region.h"

namespace litefuse {

constexpr float kInfinity = GemmEpilogue::kInfinity;

// The parameters of an operator, or what they are where a file has none.
template <typename P>
P params_of(const Operator& op) {
  const P* found = std::get_if<P>(&op.params);
  return found != nullptr ? *found : P();
}

// Narrows a clamp to what an activation, or an operator such as RELU, is; false where it is no clamp.
bool clamp_of(Activation activation, float* min, float* max);
bool clamp_of(Kind kind, float* min, float* max);
// Whether a factor is positive, and neither it nor what it is multiplied by gets out of hand.
inline bool is_moderate(float factor) { return factor >= 0x1p-60f && factor <= 0x1p60f; }
inline bool is_clamped(float min, float max) { return min != -kInfinity || max != kInfinity; }

// An operator as a function of one operand with its parameters; false where it is none.
bool unary_of(const Operator& op, Unary* function, float* a, float* b);
// An operator as a function of two operands with the clamp of its activation; false where it is none.
bool binary_of(const Operator& op, Binary* function, float* min, float* max);

}  // namespace litefuse
