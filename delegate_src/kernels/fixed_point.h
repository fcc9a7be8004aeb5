// Integer arithmetic as TFLite's kernels do it, so that results are equal to the bit. Their rounding is "double": once
// in the high half of a 32 x 32 bit product, and again in the shift that follows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "region/region.h"

namespace litefuse {

// A real factor as a fraction with 31 bits and a power of two: fraction * 2^(shift - 31).
struct Multiplier {
  int32_t fraction = 0;
  int32_t shift = 0;
};

// The nearest Multiplier; factors too small to matter become 0 and those too large the largest there is.
inline Multiplier multiplier_of(double factor) {
  Multiplier result;
  if (!(factor > 0.0) || !std::isfinite(factor)) return result;
  int exponent = 0;
  auto fraction = static_cast<int64_t>(std::round(std::frexp(factor, &exponent) * 2147483648.0));
  if (fraction == int64_t{1} << 31) {
    fraction /= 2;
    ++exponent;
  }
  if (exponent < -31) return result;
  if (exponent > 30) {
    exponent = 30;
    fraction = std::numeric_limits<int32_t>::max();
  }
  result.fraction = static_cast<int32_t>(fraction);
  result.shift = exponent;
  return result;
}

// The high half of twice the product, rounded to nearest, halves upwards; only -2^31 squared would not fit.
inline int32_t rounding_doubling_high_mul(int32_t a, int32_t b) {
  if (a == b && a == std::numeric_limits<int32_t>::min()) return std::numeric_limits<int32_t>::max();
  const int64_t product = int64_t{a} * int64_t{b};
  const int64_t nudge = product >= 0 ? (int64_t{1} << 30) : 1 - (int64_t{1} << 30);
  return static_cast<int32_t>((product + nudge) / (int64_t{1} << 31));
}

// x / 2^exponent, rounded to nearest, halves away from zero; 0 <= exponent <= 31.
inline int32_t rounding_divide_by_pot(int32_t x, int exponent) {
  const auto mask = static_cast<int32_t>((int64_t{1} << exponent) - 1);
  const int32_t remainder = x & mask;
  const int32_t threshold = (mask >> 1) + (x < 0 ? 1 : 0);
  return (x >> exponent) + (remainder > threshold ? 1 : 0);
}

// x * 2^shift in 32 bits, with what does not fit cut off.
inline int32_t shift_left(int32_t x, int shift) {
  return static_cast<int32_t>(static_cast<uint32_t>(x) << static_cast<uint32_t>(shift));
}

// x times the factor, with double rounding.
inline int32_t multiply(int32_t x, Multiplier m) {
  const int left = m.shift > 0 ? m.shift : 0;
  const int right = m.shift > 0 ? 0 : -m.shift;
  return rounding_divide_by_pot(rounding_doubling_high_mul(shift_left(x, left), m.fraction), right);
}

// The same for 48-bit accumulators (int16 activations): the factor has 15 bits then, and rounding happens once.
inline int32_t multiply(int64_t x, Multiplier m) {
  const int32_t reduced = m.fraction < 0x7FFF0000 ? (m.fraction + (1 << 15)) >> 16 : 0x7FFF;
  const int total = 15 - m.shift;
  const int64_t product = static_cast<int64_t>(static_cast<uint64_t>(x) * static_cast<uint64_t>(int64_t{reduced}) +
                                               (uint64_t{1} << (total - 1)));
  return static_cast<int32_t>(product >> total);
}

// The numbers that a quantised type can hold.
struct Range {
  int32_t min = 0;
  int32_t max = 0;
  int32_t clamp(int32_t x) const { return std::min(std::max(x, min), max); }
};

inline Range range_of(Type type) {
  switch (type) {
    case Type::kUInt8:
      return {0, 255};
    case Type::kInt8:
      return {-128, 127};
    case Type::kInt16:
      return {-32768, 32767};
    default:
      return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
  }
}

// The stored numbers that a fused activation lets pass. Refuses activations that clamp nothing (TANH and the like).
Status activation_range(Activation activation, const Tensor& output, Range* range);

// The same for floats; the largest finite number where there is no bound, so that infinities become finite.
Status activation_range(Activation activation, float* min, float* max);

// clamp(value) as TFLite's float kernels do it: NaN passes (min(max(NaN, lo), hi) in their order of arguments).
template <typename T>
inline T clamp_to(T value, T min, T max) {
  return std::min<T>(std::max<T>(value, min), max);
}

}  // namespace litefuse
