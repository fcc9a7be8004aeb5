// What elementwise kernels share: arithmetic for which C++ has no rules (overflow,
// numbers that an integer cannot hold) and TFLite's kernels rely on what processors do.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/checks.h"
#include "kernels/fixed_point.h"
#include "kernels/kernel.h"

namespace litefuse {

inline Status check_no_zero_point(const Operand& operand, const char* what) {
  LITEFUSE_REQUIRE(operand.quantization().zero_point() == 0, "the zero point of its %s is %d instead of 0", what,
                   operand.quantization().zero_point());
  return Status();
}

// The Multiplier of a positive factor, unless it is one with which kernels cannot shift.
inline Status find_multiplier(double factor, Multiplier* result) {
  LITEFUSE_REQUIRE(factor >= 0.0 && factor < 1073741824.0, "its scales differ by a factor of %g", factor);
  *result = multiplier_of(factor);
  LITEFUSE_REQUIRE(result->shift <= 30, "its scales differ by a factor of %g", factor);
  return Status();
}

// The same for factors that have to stay below one, because kernels only shift to the right with them.
inline Status find_multiplier_below_one(double factor, Multiplier* result) {
  LITEFUSE_REQUIRE(factor > 0.0 && factor < 1.0, "its scales differ by a factor of %g, beyond what kernels allow",
                   factor);
  *result = multiplier_of(factor);
  LITEFUSE_REQUIRE(result->shift <= 0, "its scales differ by a factor of %g, beyond what kernels allow", factor);
  return Status();
}

// Whether a scale is a power of two, or nearly so, and which.
inline bool is_power_of_two(float scale, int* exponent) {
  const float log = std::log(scale) * (1.0f / std::log(2.0f));
  const float rounded = std::round(log);
  if (!(std::abs(rounded) < 1024.0f)) return false;
  *exponent = static_cast<int>(rounded);
  return std::abs(log - rounded) < 1e-3f;
}

// Sums and products of integers modulo their width; those of floats are the usual ones.
template <typename T>
T wrapping_add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}
template <typename T>
T wrapping_subtract(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  } else {
    return a - b;
  }
}
template <typename T>
T wrapping_multiply(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

// The integer part. What does not fit becomes what the processor's own instruction makes of it, as in TFLite's kernels:
// the lowest number on x86, the nearest (and 0 for NaN) elsewhere.
template <typename Float>
int32_t to_int32(Float x) {
  if (x >= static_cast<Float>(-2147483648.0) && x < static_cast<Float>(2147483648.0)) return static_cast<int32_t>(x);
#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64) || defined(_M_IX86)
  return std::numeric_limits<int32_t>::min();
#else
  if (std::isnan(x)) return 0;
  return x < 0 ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int32_t>::max();
#endif
}

// The 16-bit forms of rounding_doubling_high_mul() and rounding_divide_by_pot(), with exponents up to 31.
inline int16_t rounding_doubling_high_mul(int16_t a, int16_t b) {
  if (a == b && a == std::numeric_limits<int16_t>::min()) return std::numeric_limits<int16_t>::max();
  const int32_t product = int32_t{a} * int32_t{b};
  const int32_t nudge = product >= 0 ? 1 << 14 : 1 - (1 << 14);
  return static_cast<int16_t>((product + nudge) / (1 << 15));
}
inline int16_t rounding_divide_by_pot(int16_t x, int exponent) {
  const auto mask = static_cast<int16_t>((int64_t{1} << exponent) - 1);
  const int remainder = x & mask;
  const int threshold = (mask >> 1) + (x < 0 ? 1 : 0);
  return static_cast<int16_t>((x >> exponent) + (remainder > threshold ? 1 : 0));
}

inline int32_t saturate(int64_t x, Range range) {
  return static_cast<int32_t>(std::min<int64_t>(std::max<int64_t>(x, range.min), range.max));
}

}  // namespace litefuse
