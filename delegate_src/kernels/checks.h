// What the prepare() of many kernels asks.
#pragma once

#include <cmath>

#include "kernels/fixed_point.h"
#include "kernels/kernel.h"

namespace litefuse {

// As many operands as the operator must have, all of them present.
inline Status require_operands(const Call& call, size_t inputs, size_t outputs) {
  LITEFUSE_REQUIRE(call.inputs.size() == inputs, "it has %zu inputs, not %zu", call.inputs.size(), inputs);
  LITEFUSE_REQUIRE(call.outputs.size() == outputs, "it has %zu outputs, not %zu", call.outputs.size(), outputs);
  for (const Operand& input : call.inputs) LITEFUSE_REQUIRE(input.present(), "an input is missing");
  for (const Operand& output : call.outputs) LITEFUSE_REQUIRE(output.present(), "an output is missing");
  return Status();
}

// One usable scale and a zero point that the type can hold; `which` is "input" or "output".
inline Status require_per_tensor(const char* which, const Operand& operand) {
  const Quantization& q = operand.quantization();
  LITEFUSE_REQUIRE(q.quantized(), "its %s has no quantisation", which);
  LITEFUSE_REQUIRE(q.scales.size() == 1 && q.zero_points.size() == 1, "its %s is quantised per channel", which);
  LITEFUSE_REQUIRE(std::isfinite(q.scale()) && q.scale() > 0.0f, "its %s has the scale %g", which,
                   static_cast<double>(q.scale()));
  const Range range = range_of(operand.type());
  LITEFUSE_REQUIRE(q.zero_point() >= range.min && q.zero_point() <= range.max,
                   "its %s has the zero point %d, which %s cannot hold", which, q.zero_point(),
                   name_of(operand.type()));
  return Status();
}

inline bool is_quantized_type(Type type) { return type == Type::kInt8 || type == Type::kUInt8 || type == Type::kInt16; }

// a + b in 32 bits, with what does not fit cut off.
inline int32_t wrapping_add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

}  // namespace litefuse
