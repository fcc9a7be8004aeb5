// QUANTIZE, DEQUANTIZE and CAST: from one type of numbers to another.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

#include "kernels/elementwise.h"
#include "kernels/kernel.h"

namespace litefuse {
namespace {

// A 16-bit float, by its bits.
struct Half {
  uint16_t bits = 0;
};

float to_float(Half half) {
  const uint32_t sign = uint32_t{half.bits & 0x8000u} << 16;
  const uint32_t exponent = (half.bits >> 10) & 31u;
  const uint32_t mantissa = half.bits & 1023u;
  if (exponent == 0) {  // zeros and subnormal numbers, in steps of 2^-24
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t bits = sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | mantissa << 13;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// To the nearest, halves to the even one.
Half to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7FFFFFFFu;
  uint32_t result;
  if (bits > 0x7F800000u) {
    result = 0x7E00u;
  } else if (bits >= 0x477FF000u) {  // 65520 and more
    result = 0x7C00u;
  } else if (bits < 0x38800000u) {  // below 2^-14: subnormal there, in steps of 2^-24
    const float steps = std::abs(x) * 16777216.0f;
    const float below = std::floor(steps);
    const float rest = steps - below;
    result = static_cast<uint32_t>(below);
    if (rest > 0.5f || (rest == 0.5f && (result & 1u))) ++result;
  } else {
    result = (bits - (112u << 23) + 0xFFFu + ((bits >> 13) & 1u)) >> 13;
  }
  return {static_cast<uint16_t>(sign | result)};
}

// Along the axis of quantisation a tensor is outer x channels x inner.
struct Channels {
  int64_t outer = 1, channels = 1, inner = 1;

  Status prepare(const Operand& operand, const char* what) {
    const Quantization& q = operand.quantization();
    const Range range = range_of(operand.type());
    LITEFUSE_REQUIRE(q.axis >= 0 && q.axis < operand.shape.rank(), "its %s is quantised along axis %d of %d", what,
                     q.axis, operand.shape.rank());
    const auto n = static_cast<size_t>(operand.shape[q.axis]);
    LITEFUSE_REQUIRE(q.scales.size() == n && q.zero_points.size() == n,
                     "its %s has %zu scales and %zu zero points for %zu channels", what, q.scales.size(),
                     q.zero_points.size(), n);
    for (size_t i = 0; i < n; ++i) {
      LITEFUSE_REQUIRE(std::isfinite(q.scales[i]) && q.scales[i] > 0.0f, "scale %zu of its %s is %g", i, what,
                       static_cast<double>(q.scales[i]));
      LITEFUSE_REQUIRE(q.zero_points[i] >= range.min && q.zero_points[i] <= range.max, "zero point %zu of its %s is %d",
                       i, what, q.zero_points[i]);
    }
    outer = inner = 1;
    for (int i = 0; i < q.axis; ++i) outer *= operand.shape[i];
    for (int i = q.axis + 1; i < operand.shape.rank(); ++i) inner *= operand.shape[i];
    channels = operand.shape[q.axis];
    return Status();
  }
  void one(int64_t elements) {
    outer = channels = 1;
    inner = elements;
  }
  // Calls body(offset, channel) for each run of `inner` elements.
  template <typename Body>
  void each_run(Body body) const {
    int64_t offset = 0;
    for (int64_t i = 0; i < outer; ++i) {
      for (int64_t c = 0; c < channels; ++c, offset += inner) body(offset, static_cast<size_t>(c));
    }
  }
};

class Quantize final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 1, 1));
    const Operand& input = call.inputs[0];
    const Operand& output = call.outputs[0];
    const Type from = input.type();
    const Type to = output.type();
    LITEFUSE_REQUIRE(converts(from, to), "from %s to %s is not supported", name_of(from), name_of(to));
    channels_.one(input.elements());
    if (from == Type::kFloat32 && output.quantization().per_channel()) {
      Operand resized = output;
      resized.shape = input.shape;
      LITEFUSE_RETURN_IF_REFUSED(channels_.prepare(resized, "output"));
    } else {
      LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("output", output));
    }
    if (from != Type::kFloat32) {
      LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("input", input));
      if (from == Type::kInt16 && to == from) {
        LITEFUSE_RETURN_IF_REFUSED(check_no_zero_point(input, "input"));
        LITEFUSE_RETURN_IF_REFUSED(check_no_zero_point(output, "output"));
      }
      const double factor =
          static_cast<double>(input.quantization().scale()) / static_cast<double>(output.quantization().scale());
      LITEFUSE_RETURN_IF_REFUSED(find_multiplier(factor, &multiplier_));
    }
    call.outputs[0].shape = input.shape;
    call.scratch_bytes = 0;
    return Status();
  }

  void run(const Call& call) const override {
    switch (call.outputs[0].type()) {
      case Type::kInt8:
        return to<int8_t>(call);
      case Type::kUInt8:
        return to<uint8_t>(call);
      case Type::kInt16:
        return to<int16_t>(call);
      default:
        return requantize<int16_t, int32_t>(call);
    }
  }

 private:
  static bool converts(Type from, Type to) {
    const bool byte = to == Type::kInt8 || to == Type::kUInt8;
    switch (from) {
      case Type::kFloat32:
      case Type::kInt8:
      case Type::kUInt8:
        return byte || to == Type::kInt16;
      case Type::kInt16:
        return to == Type::kInt8 || to == Type::kInt16 || to == Type::kInt32;
      case Type::kInt32:
        return to == Type::kInt8 || to == Type::kInt16;
      default:
        return false;
    }
  }
  template <typename To>
  void to(const Call& call) const {
    switch (call.inputs[0].type()) {
      case Type::kFloat32:
        return quantize<To>(call);
      case Type::kInt8:
        return requantize<int8_t, To>(call);
      case Type::kUInt8:
        return requantize<uint8_t, To>(call);
      case Type::kInt16:
        return requantize<int16_t, To>(call);
      default:
        return requantize<int32_t, To>(call);
    }
  }
  template <typename To>
  void quantize(const Call& call) const {
    const Quantization& q = call.outputs[0].quantization();
    const Range range = range_of(call.outputs[0].type());
    channels_.each_run([&](int64_t offset, size_t channel) {
      const float* x = call.inputs[0].get<float>() + offset;
      To* y = call.outputs[0].mutable_get<To>() + offset;
      const float scale = q.scales[channel];
      const int32_t zero = q.zero_points.empty() ? 0 : q.zero_points[channel];
      for (int64_t i = 0; i < channels_.inner; ++i) {
        y[i] = static_cast<To>(range.clamp(wrapping_add(to_int32(std::round(x[i] / scale)), zero)));
      }
    });
  }
  template <typename From, typename To>
  void requantize(const Call& call) const {
    const int32_t zero_input = call.inputs[0].quantization().zero_point();
    const int32_t zero_output = call.outputs[0].quantization().zero_point();
    const Range range = range_of(call.outputs[0].type());
    const From* x = call.inputs[0].get<From>();
    To* y = call.outputs[0].mutable_get<To>();
    for (int64_t i = 0; i < channels_.inner; ++i) {
      const int32_t steps = multiply(wrapping_subtract(int32_t{x[i]}, zero_input), multiplier_);
      y[i] = static_cast<To>(range.clamp(wrapping_add(steps, zero_output)));
    }
  }

  Channels channels_;
  Multiplier multiplier_;
};

class Dequantize final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 1, 1));
    const Operand& input = call.inputs[0];
    const Type from = input.type();
    LITEFUSE_REQUIRE(from == Type::kInt8 || from == Type::kUInt8 || from == Type::kInt16 || from == Type::kFloat16,
                     "from %s is not supported", name_of(from));
    LITEFUSE_REQUIRE(call.outputs[0].type() == Type::kFloat32, "its output is %s instead of float32",
                     name_of(call.outputs[0].type()));
    channels_.one(input.elements());
    if (input.quantization().per_channel()) {
      LITEFUSE_REQUIRE(from == Type::kInt8 || from == Type::kUInt8, "%s per channel is not supported", name_of(from));
      LITEFUSE_RETURN_IF_REFUSED(channels_.prepare(input, "input"));
    } else if (from != Type::kFloat16) {
      LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("input", input));
      if (from == Type::kInt16) LITEFUSE_RETURN_IF_REFUSED(check_no_zero_point(input, "input"));
    }
    call.outputs[0].shape = input.shape;
    call.scratch_bytes = 0;
    return Status();
  }

  void run(const Call& call) const override {
    switch (call.inputs[0].type()) {
      case Type::kInt8:
        return from<int8_t>(call);
      case Type::kUInt8:
        return from<uint8_t>(call);
      case Type::kInt16:
        return from<int16_t>(call);
      default:
        break;
    }
    const Half* x = call.inputs[0].get<Half>();
    float* y = call.outputs[0].mutable_get<float>();
    for (int64_t i = 0; i < channels_.inner; ++i) y[i] = to_float(x[i]);
  }

 private:
  template <typename From>
  void from(const Call& call) const {
    const Quantization& q = call.inputs[0].quantization();
    channels_.each_run([&](int64_t offset, size_t channel) {
      const From* x = call.inputs[0].get<From>() + offset;
      float* y = call.outputs[0].mutable_get<float>() + offset;
      const float scale = q.scales[channel];
      const int32_t zero = q.zero_points.empty() ? 0 : q.zero_points[channel];
      for (int64_t i = 0; i < channels_.inner; ++i) y[i] = scale * static_cast<float>(x[i] - zero);
    });
  }

  Channels channels_;
};

// Any byte but 0 is true.
struct Bool {
  uint8_t byte = 0;
};

template <typename To, typename From>
To converted(From x) {
  if constexpr (std::is_same_v<From, Half>) {
    return converted<To>(to_float(x));
  } else if constexpr (std::is_same_v<From, Bool>) {
    return converted<To>(static_cast<uint8_t>(x.byte != 0));
  } else if constexpr (std::is_same_v<To, Half>) {
    return to_half(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, Bool>) {
    return Bool{static_cast<uint8_t>(x != 0)};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // What does not fit becomes the nearest number that does, and NaN the largest.
    constexpr To kLowest = std::numeric_limits<To>::min();
    constexpr To kHighest = std::numeric_limits<To>::max();
    if (x < static_cast<From>(kLowest)) return kLowest;
    if (x < static_cast<From>(kHighest / 2 + 1) * From{2}) return static_cast<To>(x);
    return kHighest;
  } else {
    return static_cast<To>(x);
  }
}

class Cast final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 1, 1));
    for (const Type type : {call.inputs[0].type(), call.outputs[0].type()}) {
      LITEFUSE_REQUIRE(size_of(type) > 0, "%s is not supported", name_of(type));
    }
    call.outputs[0].shape = call.inputs[0].shape;
    call.scratch_bytes = 0;
    return Status();
  }

  void run(const Call& call) const override {
    switch (call.inputs[0].type()) {
      case Type::kFloat32:
        return from<float>(call);
      case Type::kFloat16:
        return from<Half>(call);
      case Type::kInt8:
        return from<int8_t>(call);
      case Type::kUInt8:
        return from<uint8_t>(call);
      case Type::kInt16:
        return from<int16_t>(call);
      case Type::kInt32:
        return from<int32_t>(call);
      case Type::kInt64:
        return from<int64_t>(call);
      default:
        return from<Bool>(call);
    }
  }

 private:
  template <typename From>
  static void from(const Call& call) {
    switch (call.outputs[0].type()) {
      case Type::kFloat32:
        return cast<From, float>(call);
      case Type::kFloat16:
        return cast<From, Half>(call);
      case Type::kInt8:
        return cast<From, int8_t>(call);
      case Type::kUInt8:
        return cast<From, uint8_t>(call);
      case Type::kInt16:
        return cast<From, int16_t>(call);
      case Type::kInt32:
        return cast<From, int32_t>(call);
      case Type::kInt64:
        return cast<From, int64_t>(call);
      default:
        return cast<From, Bool>(call);
    }
  }
  template <typename From, typename To>
  static void cast(const Call& call) {
    const From* x = call.inputs[0].get<From>();
    To* y = call.outputs[0].mutable_get<To>();
    const int64_t n = call.inputs[0].elements();
    for (int64_t i = 0; i < n; ++i) y[i] = converted<To>(x[i]);
  }
};

}  // namespace

std::unique_ptr<Kernel> make_quantize() { return std::make_unique<Quantize>(); }
std::unique_ptr<Kernel> make_dequantize() { return std::make_unique<Dequantize>(); }
std::unique_ptr<Kernel> make_cast() { return std::make_unique<Cast>(); }

}  // namespace litefuse
