// What convolutions and matrix products share: sums of products, the way from an accumulator to the output, the demands
// on the quantisation of their operands, and the quantisation of float inputs for int8 weights ("hybrid").
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/checks.h"
#include "kernels/fixed_point.h"
#include "kernels/kernel.h"

namespace litefuse {

// ---- Sums. Integers wrap, as they do in TFLite in practice: nothing bounds the depth of a file's products.

inline float add_product(float sum, float x, float w, int32_t, int32_t) { return sum + x * w; }
inline uint32_t add_product(uint32_t sum, int32_t x, int32_t w, int32_t x_zero, int32_t w_zero) {
  return sum + static_cast<uint32_t>((x - x_zero) * (w - w_zero));
}
inline uint64_t add_product(uint64_t sum, int32_t x, int32_t w, int32_t x_zero, int32_t w_zero) {
  return sum + static_cast<uint64_t>(int64_t{x - x_zero} * int64_t{w - w_zero});
}

// sum + the products of n neighbours, in their order.
template <typename Sum, typename X, typename W>
inline Sum dot(Sum sum, const X* x, const W* w, int64_t n, int32_t x_zero = 0, int32_t w_zero = 0) {
  for (int64_t i = 0; i < n; ++i) sum = add_product(sum, x[i], w[i], x_zero, w_zero);
  return sum;
}

inline int32_t as_signed(uint32_t sum) { return static_cast<int32_t>(sum); }
inline int64_t as_signed(uint64_t sum) { return static_cast<int64_t>(sum); }

// The value moved by the output's zero point, clamped and cut to the output's type.
template <typename Out>
inline Out stored_as(int32_t value, int32_t zero_point, Range range) {
  return static_cast<Out>(range.clamp(wrapping_add(value, zero_point)));
}

// ---- Demands on quantisation.

inline bool usable_scale(float scale) { return std::isfinite(scale) && scale > 0.0f; }

// One scale, and a zero point that the type can hold; of int16 that is 0.
inline Status check_one_scale(const Operand& operand, const char* what) {
  LITEFUSE_RETURN_IF_REFUSED(require_per_tensor(what, operand));
  const int32_t zero_point = operand.quantization().zero_point();
  LITEFUSE_REQUIRE(operand.type() != Type::kInt16 || zero_point == 0, "its %s is int16 with the zero point %d, not 0",
                   what, zero_point);
  return Status();
}

// int8 weights: one scale or one for each of `channels` slices of some axis that is so long, and no zero point.
inline Status check_symmetric_weights(const Operand& weights, int64_t channels) {
  const Quantization& q = weights.quantization();
  LITEFUSE_REQUIRE(q.quantized(), "its weights have no quantisation");
  if (q.per_channel()) {
    LITEFUSE_REQUIRE(static_cast<int64_t>(q.scales.size()) == channels,
                     "its weights have %lld scales for %lld output channels", static_cast<long long>(q.scales.size()),
                     static_cast<long long>(channels));
    LITEFUSE_REQUIRE(q.axis >= 0 && q.axis < weights.shape.rank() && weights.shape[q.axis] == channels,
                     "its weights are quantised along axis %d, which is not that of the output channels", q.axis);
  }
  for (float scale : q.scales) {
    LITEFUSE_REQUIRE(usable_scale(scale), "its weights have a scale that is not a positive number");
  }
  for (int32_t zero_point : q.zero_points) {
    LITEFUSE_REQUIRE(zero_point == 0, "its int8 weights have the zero point %d, not 0", zero_point);
  }
  return Status();
}

inline Status check_bias(const Operand& bias, Type type, int64_t channels) {
  if (!bias.present()) return Status();
  LITEFUSE_REQUIRE(bias.type() == type, "its bias is %s where %s is needed", name_of(bias.type()), name_of(type));
  LITEFUSE_REQUIRE(bias.elements() == channels, "its bias has %lld values for %lld output channels",
                   static_cast<long long>(bias.elements()), static_cast<long long>(channels));
  for (int32_t zero_point : bias.quantization().zero_points) {
    LITEFUSE_REQUIRE(zero_point == 0, "its bias has the zero point %d, not 0", zero_point);
  }
  return Status();
}

// Where one scale serves input * weights, the bias must be close to that scale; TFLite asks for it with uint8, and in
// fully connected layers always.
inline Status check_bias_scale(const Operand& input, const Operand& weights, const Operand& bias,
                               const Operand& output) {
  if (!bias.present()) return Status();
  const Quantization& q = bias.quantization();
  const double scale = q.scales.size() == 1 ? static_cast<double>(q.scale()) : 0.0;
  const double product =
      static_cast<double>(input.quantization().scale()) * static_cast<double>(weights.quantization().scale());
  LITEFUSE_REQUIRE(std::abs(product - scale) / static_cast<double>(output.quantization().scale()) <= 0.02,
                   "its bias has the scale %g where input and weights make %g", scale, product);
  return Status();
}

// What is multiplied, and what sums are made of.
enum class Arithmetic {
  kFloat,
  kUInt8,
  kInt8,
  kInt16Narrow,  // int16 activations and int8 weights with 32-bit accumulators, which an int32 bias asks for
  kInt16,        // the same with 64-bit accumulators
  kHybrid,       // float activations, quantised on the way in, and int8 weights
};

// The arithmetic that the types of the operands ask for; the bias may be absent.
inline Status find_arithmetic(const Operand& input, const Operand& weights, const Operand& bias, const Operand& output,
                              int64_t channels, Arithmetic* result) {
  LITEFUSE_REQUIRE(output.type() == input.type(), "its output is %s where the input is %s", name_of(output.type()),
                   name_of(input.type()));
  Type needed = Type::kInt8;
  Type bias_type = Type::kInt32;
  switch (input.type()) {
    case Type::kFloat32:
      *result = weights.type() == Type::kInt8 ? Arithmetic::kHybrid : Arithmetic::kFloat;
      if (*result == Arithmetic::kFloat) needed = Type::kFloat32;
      bias_type = Type::kFloat32;
      break;
    case Type::kUInt8:
      *result = Arithmetic::kUInt8;
      needed = Type::kUInt8;
      break;
    case Type::kInt8:
      *result = Arithmetic::kInt8;
      break;
    case Type::kInt16:
      *result = bias.type() == Type::kInt32 ? Arithmetic::kInt16Narrow : Arithmetic::kInt16;
      if (*result == Arithmetic::kInt16) bias_type = Type::kInt64;
      break;
    default:
      return refuse("its input is %s", name_of(input.type()));
  }
  LITEFUSE_REQUIRE(weights.type() == needed, "its weights are %s where the input is %s", name_of(weights.type()),
                   name_of(input.type()));
  LITEFUSE_RETURN_IF_REFUSED(check_bias(bias, bias_type, channels));
  return *result == Arithmetic::kHybrid ? check_symmetric_weights(weights, channels) : Status();
}

// ---- From an accumulator to the stored output.

struct Requantization {
  std::vector<Multiplier> multipliers;  // one, or one per output channel
  int32_t input_zero = 0;
  int32_t weights_zero = 0;
  int32_t output_zero = 0;
  Range range;

  Multiplier multiplier(int64_t channel) const {
    return multipliers[multipliers.size() == 1 ? 0 : static_cast<size_t>(channel)];
  }

  // Appends a factor, unless the shift that it needs is one that TFLite's arithmetic does not define. `wide` is of
  // 64-bit accumulators.
  Status add(double factor, bool wide) {
    LITEFUSE_REQUIRE(std::isfinite(factor) && factor < (wide ? 8192.0 : 1073741824.0),
                     "its scales multiply accumulators by %g, which is too much", factor);
    multipliers.push_back(multiplier_of(factor));
    return Status();
  }
};

// Of the convolutions: uint8 with one scale of weights, whose product with the input's is rounded to float; int8 and
// int16 with int8 weights per tensor or per channel, in double.
inline Status find_requantization(const Operand& input, const Operand& weights, const Operand& bias,
                                  const Operand& output, int32_t channels, Activation activation,
                                  Requantization* result) {
  *result = Requantization();
  LITEFUSE_RETURN_IF_REFUSED(check_one_scale(input, "input"));
  LITEFUSE_RETURN_IF_REFUSED(check_one_scale(output, "output"));
  const float input_scale = input.quantization().scale();
  const auto output_scale = static_cast<double>(output.quantization().scale());
  if (input.type() == Type::kUInt8) {
    LITEFUSE_RETURN_IF_REFUSED(check_one_scale(weights, "filter"));
    LITEFUSE_RETURN_IF_REFUSED(check_bias_scale(input, weights, bias, output));
    const float product = input_scale * weights.quantization().scale();
    LITEFUSE_RETURN_IF_REFUSED(result->add(static_cast<double>(product) / output_scale, false));
    result->weights_zero = weights.quantization().zero_point();
  } else {
    LITEFUSE_RETURN_IF_REFUSED(check_symmetric_weights(weights, channels));
    const bool wide = input.type() == Type::kInt16 && !(bias.present() && bias.type() == Type::kInt32);
    for (float scale : weights.quantization().scales) {
      const double factor = static_cast<double>(input_scale) * static_cast<double>(scale) / output_scale;
      LITEFUSE_RETURN_IF_REFUSED(result->add(factor, wide));
    }
  }
  result->input_zero = input.quantization().zero_point();
  result->output_zero = output.quantization().zero_point();
  return activation_range(activation, *output.tensor, &result->range);
}

// ---- Hybrid: float inputs are quantised to int8 on the way in, a row (or a batch) at a time. (TFLite is wrong on x86
// where a weight is -128, which symmetric quantisation does not make; what follows is not.)

// Nearest integer, halves away from zero; what int8 cannot hold, and NaN, goes to the nearest bound or the lower one.
inline int8_t rounded_to_int8(float value, int32_t min, int32_t max) {
  const float rounded = std::round(value);
  if (rounded >= static_cast<float>(max)) return static_cast<int8_t>(max);
  return rounded > static_cast<float>(min) ? static_cast<int8_t>(rounded) : static_cast<int8_t>(min);
}

// Quantises n values to [-127, 127] without a zero point and returns the scale.
inline float quantize_symmetric(const float* values, int64_t n, int8_t* stored) {
  if (n == 0) return 1.0f;
  const auto bounds = std::minmax_element(values, values + n);
  const float range = std::max(std::abs(*bounds.first), std::abs(*bounds.second));
  if (range == 0.0f) {
    std::fill(stored, stored + n, int8_t{0});
    return 1.0f;
  }
  const float inverse = 127.0f / range;
  for (int64_t i = 0; i < n; ++i) stored[i] = rounded_to_int8(values[i] * inverse, -127, 127);
  return range / 127.0f;
}

// Quantises n values to [-128, 127] with a zero point and returns the scale. TFLite has two versions of this, which can
// differ by a step; this is the one that its SIMD builds use.
inline float quantize_asymmetric(const float* values, int64_t n, int8_t* stored, int32_t* zero_point) {
  *zero_point = 0;
  if (n == 0) return 1.0f;
  const auto bounds = std::minmax_element(values, values + n);
  const float min = std::min(0.0f, *bounds.first);
  const float max = std::max(0.0f, *bounds.second);
  if (min == max) {
    std::fill(stored, stored + n, int8_t{0});
    return 1.0f;
  }
  const double step = static_cast<double>(max - min) / 255.0;
  // Of the two ways to place zero the one with the smaller rounding error.
  const double below = static_cast<double>(min) / step, above = static_cast<double>(max) / step;
  const double exact = 128.0 + std::abs(below) < 127.0 + std::abs(above) ? -128.0 - below : 127.0 - above;
  if (!std::isnan(exact)) *zero_point = static_cast<int32_t>(std::round(std::min(std::max(exact, -128.0), 127.0)));
  const auto scale = static_cast<float>(step);
  const float inverse = scale == 0.0f ? 0.0f : static_cast<float>(1.0 / static_cast<double>(scale));
  const auto zero = static_cast<float>(*zero_point);
  for (int64_t i = 0; i < n; ++i) stored[i] = rounded_to_int8(zero + std::round(values[i] * inverse), -128, 127);
  return scale;
}

// The quantised rows of an input in a kernel's scratch: a scale and a zero point per row, then rows * depth int8.
struct HybridRows {
  float* scales = nullptr;
  int32_t* zero_points = nullptr;
  int8_t* stored = nullptr;

  static size_t bytes(int64_t rows, int64_t depth) {
    return static_cast<size_t>(rows) * (sizeof(float) + sizeof(int32_t)) + static_cast<size_t>(rows * depth);
  }
  HybridRows(void* scratch, int64_t rows)
      : scales(static_cast<float*>(scratch)),
        zero_points(reinterpret_cast<int32_t*>(scales + rows)),
        stored(reinterpret_cast<int8_t*>(zero_points + rows)) {}

  void quantize(const float* values, int64_t row, int64_t depth, bool asymmetric) const {
    int8_t* to = stored + row * depth;
    zero_points[row] = 0;
    scales[row] =
        asymmetric ? quantize_asymmetric(values, depth, to, &zero_points[row]) : quantize_symmetric(values, depth, to);
  }
};

}  // namespace litefuse
