// Elementwise operators of one input.
//
// Each operator is a struct of its functions: of floats, of plain integers, of stored (quantised) numbers. Those of 8
// bits are turned into tables of their 256 results. TFLite does that with float functions too, for 16 bits with
// interpolation.
//
// TFLite's kernels of SQRT and RSQRT stop with an error where a quantised number is below zero. Here such numbers count
// as zero.
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "kernels/elementwise.h"
#include "kernels/fixed_functions.h"
#include "kernels/kernel.h"

namespace litefuse {
namespace {

constexpr uint32_t bit(Type type) { return uint32_t{1} << static_cast<int32_t>(type); }
constexpr uint32_t kFloat = bit(Type::kFloat32);
constexpr uint32_t kBytes = bit(Type::kInt8) | bit(Type::kUInt8);
constexpr uint32_t kShorts = bit(Type::kInt16);
// Types of which numbers are stored().
constexpr uint32_t kStored = kBytes | kShorts;

template <typename Op>
class Unary final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 1, 1));
    const Operand& input = call.inputs[0];
    const Operand& output = call.outputs[0];
    const Type type = input.type();
    LITEFUSE_REQUIRE(output.type() == type, "its output is %s where its input is %s", name_of(output.type()),
                     name_of(type));
    LITEFUSE_REQUIRE(size_of(type) > 0 && (Op::kTypes & bit(type)), "%s is not supported", name_of(type));
    if constexpr ((Op::kTypes & kStored) != 0) {
      LITEFUSE_RETURN_IF_REFUSED(op_.prepare(call));
      const Range range = range_of(type);
      if (bit(type) & kBytes) {
        for (int32_t x = range.min; x <= range.max; ++x) {
          table_[static_cast<uint8_t>(x)] = static_cast<uint8_t>(op_.stored(x));
        }
      }
    }
    call.outputs[0].shape = input.shape;
    call.scratch_bytes = 0;
    return Status();
  }

  void run(const Call& call) const override {
    switch (call.inputs[0].type()) {
      case Type::kFloat32:
        if constexpr ((Op::kTypes & kFloat) != 0) {
          each<float>(call, [this](float x) { return op_.real(x); });
        }
        return;
      case Type::kInt32:
        if constexpr ((Op::kTypes & bit(Type::kInt32)) != 0) {
          each<int32_t>(call, [this](int32_t x) { return op_.plain(x); });
        }
        return;
      case Type::kInt64:
        if constexpr ((Op::kTypes & bit(Type::kInt64)) != 0) {
          each<int64_t>(call, [this](int64_t x) { return op_.plain(x); });
        }
        return;
      case Type::kInt16:
        if constexpr ((Op::kTypes & kShorts) != 0) {
          each<int16_t>(call, [this](int16_t x) { return static_cast<int16_t>(op_.stored(x)); });
        }
        return;
      default:
        return each<uint8_t>(call, [this](uint8_t x) { return table_[x]; });
    }
  }

 private:
  template <typename T, typename F>
  void each(const Call& call, F f) const {
    const T* x = call.inputs[0].get<T>();
    T* y = call.outputs[0].mutable_get<T>();
    const int64_t n = call.inputs[0].elements();
    for (int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
  }

  Op op_;
  std::array<uint8_t, 256> table_{};
};

Status check_quantized(const Call& call) {
  LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("input", call.inputs[0]));
  return require_per_tensor("output", call.outputs[0]);
}

Status check_quantized_symmetric(const Call& call) {
  LITEFUSE_RETURN_IF_REFUSED(check_quantized(call));
  LITEFUSE_RETURN_IF_REFUSED(check_no_zero_point(call.inputs[0], "input"));
  return check_no_zero_point(call.outputs[0], "output");
}

// Quantisation of both sides.
struct Scales {
  float input = 1.0f, output = 1.0f;
  int32_t zero_input = 0, zero_output = 0;
  Range range;

  // Refuses 16-bit numbers with zero points.
  Status read(const Call& call) {
    const bool bytes = call.inputs[0].type() != Type::kInt16;
    LITEFUSE_RETURN_IF_REFUSED(bytes ? check_quantized(call) : check_quantized_symmetric(call));
    input = call.inputs[0].quantization().scale();
    output = call.outputs[0].quantization().scale();
    zero_input = call.inputs[0].quantization().zero_point();
    zero_output = call.outputs[0].quantization().zero_point();
    range = range_of(call.outputs[0].type());
    return Status();
  }
  int32_t stored(int32_t steps) const { return range.clamp(wrapping_add(steps, zero_output)); }
};

// A float function of stored numbers: directly for 8 bits; for 16 bits by a table of its values at every 128th number,
// between which it is interpolated. The values are shifted by half the error that this makes in the middle.
class Tabulated {
 public:
  Status read(const Call& call) {
    wide_ = call.inputs[0].type() == Type::kInt16;
    return scales_.read(call);
  }
  const Scales& scales() const { return scales_; }

  // To be called after read() where the type is int16; does nothing for others.
  template <typename F>
  void fill(F f) {
    if (!wide_) return;
    const float low = scales_.input * static_cast<float>(-32768);
    const float high = scales_.input * static_cast<float>(32767);
    const float step = (high - low) / static_cast<float>(kSteps);
    const float half_step = step / 2;
    const float per_unit =
        65536.0f / (scales_.output * static_cast<float>(32767) - scales_.output * static_cast<float>(-32768));
    for (int i = 0; i < kSteps; ++i) {
      const float x = low + static_cast<float>(i) * step;
      const float here = std::round(f(x) * per_unit);
      const float next = f(low + static_cast<float>(i + 1) * step) * per_unit;
      const float middle = std::round(f(x + half_step) * per_unit);
      const float error = std::round((next + here) / 2) - middle;
      values_[static_cast<size_t>(i)] = limited(here - std::round(error / 2));
    }
    values_[kSteps] = limited(std::round(f(high) * per_unit));
  }

  template <typename F>
  int32_t stored(int32_t x, F f) const {
    if (wide_) {
      const auto i = static_cast<size_t>((x >> 7) + kSteps / 2);
      const int32_t slope = static_cast<int16_t>(values_[i + 1] - values_[i]);
      return static_cast<int16_t>(values_[i] + ((slope * (x & 127) + 64) >> 7));
    }
    const float y = f(scales_.input * static_cast<float>(x - scales_.zero_input));
    const float result = std::round(y * (1.0f / scales_.output)) + static_cast<float>(scales_.zero_output);
    // TFLite's conversion to int8 saturates, with 0 for NaN, as it was compiled; that to uint8 is the processor's own.
    if (scales_.range.min == 0) return scales_.range.clamp(to_int32(result));
    return std::isnan(result) ? 0 : static_cast<int32_t>(clamp_to(result, -128.0f, 127.0f));
  }

 private:
  static constexpr int kSteps = 512;
  static int16_t limited(float x) { return static_cast<int16_t>(to_int32(clamp_to(x, -32768.0f, 32767.0f))); }

  Scales scales_;
  bool wide_ = false;
  std::array<int16_t, kSteps + 1> values_{};
};

// RELU and its like: between two whole numbers, the upper of which may be missing.
constexpr int kUnlimited = std::numeric_limits<int>::max();
template <int kLow, int kHigh, uint32_t kAllowed>
struct Clamped {
  static constexpr uint32_t kTypes = kAllowed;
  float real(float x) const {
    if (kHigh != kUnlimited && x > static_cast<float>(kHigh)) return static_cast<float>(kHigh);
    return x < static_cast<float>(kLow) ? static_cast<float>(kLow) : x;
  }
  Status prepare(const Call& call) {
    if (call.inputs[0].type() == Type::kFloat32) return Status();
    LITEFUSE_RETURN_IF_REFUSED(scales.read(call));
    LITEFUSE_RETURN_IF_REFUSED(find_multiplier(scales.input / scales.output, &multiplier));
    allowed = scales.range;
    LITEFUSE_RETURN_IF_REFUSED(limit(kLow, &allowed.min));
    if (kHigh != kUnlimited) LITEFUSE_RETURN_IF_REFUSED(limit(kHigh, &allowed.max));
    allowed.min = std::max(allowed.min, scales.range.min);
    allowed.max = std::min(allowed.max, scales.range.max);
    return Status();
  }
  int32_t stored(int32_t x) const {
    return allowed.clamp(wrapping_add(multiply(x - scales.zero_input, multiplier), scales.zero_output));
  }

  Status limit(int value, int32_t* result) const {
    const float steps = std::round(static_cast<float>(value) / scales.output);
    LITEFUSE_REQUIRE(std::abs(steps) < 1073741824.0f, "the scale of its output, %g, is too small for a limit of %d",
                     static_cast<double>(scales.output), value);
    *result = static_cast<int32_t>(steps) + scales.zero_output;
    return Status();
  }

  Scales scales;
  Multiplier multiplier;
  Range allowed;
};

struct LeakyRelu {
  static constexpr uint32_t kTypes = kFloat | kStored;
  float real(float x) const { return x > 0.0f ? x : x * alpha; }
  Status prepare(const Call& call) {
    alpha = call.params<LeakyReluParams>().alpha;
    if (call.inputs[0].type() == Type::kFloat32) return Status();
    LITEFUSE_RETURN_IF_REFUSED(scales.read(call));
    LITEFUSE_RETURN_IF_REFUSED(find_multiplier(scales.input / scales.output, &positive));
    return find_multiplier(std::abs(scales.input * alpha / scales.output), &negative);
  }
  int32_t stored(int32_t stored_x) const {
    const int32_t x = stored_x - scales.zero_input;
    if (x >= 0) return scales.stored(multiply(x, positive));
    const int32_t y = multiply(x, negative);
    return scales.stored(alpha < 0.0f ? wrapping_subtract(0, y) : y);
  }

  float alpha = 0.0f;
  Scales scales;
  Multiplier positive, negative;
};

struct Elu {
  static constexpr uint32_t kTypes = kFloat | bit(Type::kInt8);
  static float function(float x) { return x < 0.0f ? std::expm1(x) : x; }
  float real(float x) const { return function(x); }
  Status prepare(const Call& call) { return call.inputs[0].type() == Type::kFloat32 ? Status() : table.read(call); }
  int32_t stored(int32_t x) const { return table.stored(x, function); }

  Tabulated table;
};

struct Gelu {
  static constexpr uint32_t kTypes = kFloat | kStored;
  static constexpr float kSqrtHalf = 0.70710678118654752440f;
  static constexpr float kSqrtTwoOverPi = 0.79788456080286535588f;

  static float exact(float x) { return 0.5f * x * std::erfc(x * -kSqrtHalf); }
  static float by_tanh(float x, float cubic) { return 0.5f * x * (1.0f + std::tanh(kSqrtTwoOverPi * (x + cubic))); }
  // The order of the factors differs between TFLite's kernel for floats and its tables.
  static float approximate_stored(float x) { return by_tanh(x, 0.044715f * x * x * x); }
  static float approximate_real(float x) { return by_tanh(x, 0.044715f * (x * x * x)); }

  float real(float x) const { return approximate ? approximate_real(x) : exact(x); }
  Status prepare(const Call& call) {
    approximate = call.params<GeluParams>().approximate;
    if (call.inputs[0].type() == Type::kFloat32) return Status();
    LITEFUSE_RETURN_IF_REFUSED(table.read(call));
    table.fill(approximate ? approximate_stored : exact);
    return Status();
  }
  int32_t stored(int32_t x) const { return table.stored(x, approximate ? approximate_stored : exact); }

  bool approximate = false;
  Tabulated table;
};

struct HardSwish {
  static constexpr uint32_t kTypes = kFloat | kBytes;
  float real(float x) const { return x * std::min(6.0f, std::max(0.0f, x + 3.0f)) / 6.0f; }
  Status prepare(const Call& call) {
    if (call.inputs[0].type() == Type::kFloat32) return Status();
    LITEFUSE_RETURN_IF_REFUSED(scales.read(call));
    const float input = (1.0f / 128.0f) * scales.input;
    LITEFUSE_RETURN_IF_REFUSED(find(input / scales.output, &output_factor, &output_shift));
    LITEFUSE_REQUIRE(output_shift <= 0, "the scale of its output, %g, is too small for that of its input, %g",
                     static_cast<double>(scales.output), static_cast<double>(scales.input));
    return find(input / (3.0f / 32768.0f), &gate_factor, &gate_shift);
  }
  int32_t stored(int32_t stored_x) const {
    // As many bits as fit.
    const auto x = static_cast<int16_t>((stored_x - scales.zero_input) * 128);
    // The gate, (x + 3) / 6, with 15 bits behind the point: first x / 3, limited to [-1, 1).
    int16_t gate = x;
    if (gate_shift > 0) gate = shifted_left(gate, gate_shift - 1);
    gate = rounding_doubling_high_mul(gate, gate_factor);
    if (gate_shift > 0) gate = shifted_left(gate, 1);
    if (gate_shift < 0) gate = rounding_divide_by_pot(gate, -gate_shift);
    gate = static_cast<int16_t>((gate + 32768) >> 1);
    // This product is cut off towards zero, which makes up for the rounding of the others.
    const int32_t product = gate * rounding_doubling_high_mul(x, output_factor) / 32768;
    const int16_t y = rounding_divide_by_pot(static_cast<int16_t>(product), -output_shift);
    return scales.range.clamp(static_cast<int16_t>(y + scales.zero_output));
  }

  static Status find(float factor, int16_t* fraction, int* shift) {
    Multiplier m;
    LITEFUSE_RETURN_IF_REFUSED(find_multiplier(factor, &m));
    *fraction = m.fraction >= std::numeric_limits<int32_t>::max() - 32768
                    ? std::numeric_limits<int16_t>::max()
                    : static_cast<int16_t>((m.fraction + 32768) >> 16);
    *shift = m.shift;
    return Status();
  }
  static int16_t shifted_left(int16_t x, int shift) {
    return static_cast<int16_t>(saturate(int64_t{x} * (int64_t{1} << shift), range_of(Type::kInt16)));
  }

  Scales scales;
  int16_t output_factor = 0, gate_factor = 0;
  int output_shift = 0, gate_shift = 0;
};

// LOGISTIC and TANH of 16 bits: by 256 values of the logistic function, 24 to the unit, with 16 bits behind the point.
class Sigmoid16 {
 public:
  // Scales that are the power of two for which the table is made, or up to 2^extra times it, are taken as they are.
  Status prepare(const Call& call, int extra) {
    LITEFUSE_RETURN_IF_REFUSED(check_quantized_symmetric(call));
    int exponent = 0;
    const float output = call.outputs[0].quantization().scale();
    LITEFUSE_REQUIRE(is_power_of_two(output, &exponent) && exponent == -15,
                     "the scale of its output is %g instead of 1/32768", static_cast<double>(output));
    const float input = call.inputs[0].quantization().scale();
    if (is_power_of_two(input, &exponent) && exponent + 12 >= 0 && exponent + 12 <= extra) {
      multiplier_ = 3 << (exponent + 12);
      shift_ = 0;
    } else {
      double multiplier = input * 4096.0 * 3.0;
      for (shift_ = 0; multiplier <= 32767.0 / 2.0 && shift_ <= 30; ++shift_) multiplier *= 2.0;
      LITEFUSE_REQUIRE(multiplier >= 1.0 && multiplier < 2147483648.0, "the scale of its input is %g",
                       static_cast<double>(input));
      multiplier_ = static_cast<int32_t>(multiplier);
    }
    // TFLite's table is not the nearest integers everywhere; where it is not, it is one larger.
    constexpr uint64_t kLarger[] = {0xC0467BAEFA7BD110ull, 0x0011009020440005ull, 0x0000000000000080ull,
                                    0x8000000000000000ull};
    for (size_t i = 0; i < values_.size(); ++i) {
      const double value = std::round(65536.0 / (1.0 + std::exp(-static_cast<double>(i) / 24.0)));
      values_[i] = static_cast<uint16_t>(value + static_cast<double>((kLarger[i / 64] >> (i % 64)) & 1));
    }
    return Status();
  }

  int32_t logistic(int32_t stored) const {
    const int32_t x = scaled(stored);
    const uint32_t y = interpolated(magnitude(x), 9, 0x7FFFu << 10) + (1u << 9);
    // What is below zero is one minus what is above.
    const uint32_t signed_y = x >= 0 ? y : (1u << 25) - (y - (1u << 9)) + (1u << 9) - 1;
    return static_cast<int16_t>(signed_y >> 10);
  }
  int32_t tanh(int32_t stored) const {
    const int32_t x = scaled(stored);
    const auto y = static_cast<int32_t>(interpolated(magnitude(x), 8, 0xFFFFu << 8)) - (1 << 23);
    return static_cast<int16_t>(((x >= 0 ? y : -y - 1) + (1 << 7)) >> 8);
  }

 private:
  int32_t scaled(int32_t stored) const {
    const int32_t round = shift_ > 0 ? static_cast<int32_t>(1u << (shift_ - 1)) : 0;
    return wrapping_add(wrapping_multiply(stored, multiplier_), round) >> shift_;
  }
  static uint32_t magnitude(int32_t x) { return x < 0 ? 0u - static_cast<uint32_t>(x) : static_cast<uint32_t>(x); }
  // The table at x / 2^bits, with `bits` more of them behind the point; `most` from the table's last value on.
  uint32_t interpolated(uint32_t x, int bits, uint32_t most) const {
    const uint32_t i = x >> bits;
    if (i >= values_.size() - 1) return most;
    const uint32_t part = x & ((1u << bits) - 1);
    return (uint32_t{values_[i]} << bits) + part * (uint32_t{values_[i + 1]} - values_[i]);
  }

  int32_t multiplier_ = 0;
  int shift_ = 0;
  std::array<uint16_t, 256> values_{};
};

struct Logistic {
  static constexpr uint32_t kTypes = kFloat | kStored;
  static float function(float x) { return 1.0f / (1.0f + std::exp(-x)); }
  float real(float x) const {
    if (x > 16.619047164916992188f) return 1.0f;
    return x < -9.0f ? std::exp(x) : function(x);
  }
  Status prepare(const Call& call) {
    const Type type = call.inputs[0].type();
    if (type == Type::kFloat32) return Status();
    const float scale = call.outputs[0].quantization().scale();
    wide = type == Type::kInt16;
    LITEFUSE_REQUIRE(scale == (wide ? 1.0f / 32768.0f : 1.0f / 256.0f), "the scale of its output is %g instead of 1/%d",
                     static_cast<double>(scale), wide ? 32768 : 256);
    return wide ? sigmoid.prepare(call, 0) : table.read(call);
  }
  int32_t stored(int32_t x) const { return wide ? sigmoid.logistic(x) : table.stored(x, function); }

  bool wide = false;
  Sigmoid16 sigmoid;
  Tabulated table;
};

struct Tanh {
  static constexpr uint32_t kTypes = kFloat | kStored;
  static float function(float x) { return std::tanh(x); }
  float real(float x) const { return function(x); }
  Status prepare(const Call& call) {
    const Type type = call.inputs[0].type();
    if (type == Type::kFloat32) return Status();
    wide = type == Type::kInt16;
    return wide ? sigmoid.prepare(call, 1) : table.read(call);
  }
  int32_t stored(int32_t x) const { return wide ? sigmoid.tanh(x) : table.stored(x, function); }

  bool wide = false;
  Sigmoid16 sigmoid;
  Tabulated table;
};

struct Exp {
  static constexpr uint32_t kTypes = kFloat | bit(Type::kInt8) | kShorts;
  static float function(float x) { return std::exp(x); }
  float real(float x) const { return function(x); }
  Status prepare(const Call& call) {
    if (call.inputs[0].type() == Type::kFloat32) return Status();
    LITEFUSE_RETURN_IF_REFUSED(table.read(call));
    table.fill(function);
    return Status();
  }
  int32_t stored(int32_t x) const { return table.stored(x, function); }

  Tabulated table;
};

struct Log {
  static constexpr uint32_t kTypes = kFloat | bit(Type::kInt8) | kShorts;
  float real(float x) const { return std::log(x); }
  Status prepare(const Call& call) {
    if (call.inputs[0].type() == Type::kFloat32) return Status();
    LITEFUSE_RETURN_IF_REFUSED(table.read(call));
    const Scales& scales = table.scales();
    lowest = static_cast<float>(scales.range.min - scales.zero_output) * scales.output;
    table.fill([this](float x) { return function(x); });
    return Status();
  }
  int32_t stored(int32_t x) const {
    return table.stored(x, [this](float real_x) { return function(real_x); });
  }
  float function(float x) const { return x <= 0.0f ? lowest : std::log(x); }

  float lowest = 0.0f;  // that the output can be
  Tabulated table;
};

struct Sqrt {
  static constexpr uint32_t kTypes = kFloat | bit(Type::kInt8) | kShorts;
  float real(float x) const { return std::sqrt(x); }
  Status prepare(const Call& call) { return call.inputs[0].type() == Type::kFloat32 ? Status() : scales.read(call); }
  int32_t stored(int32_t x) const {
    const float root = std::sqrt(scales.input * static_cast<float>(std::max(x - scales.zero_input, 0)));
    return scales.stored(to_int32(root / scales.output));
  }

  Scales scales;
};

struct Rsqrt {
  static constexpr uint32_t kTypes = kFloat | bit(Type::kInt8) | kShorts;
  static constexpr int kExtraBits = 20;
  float real(float x) const { return 1.0f / std::sqrt(x); }
  Status prepare(const Call& call) {
    const Type type = call.inputs[0].type();
    if (type == Type::kFloat32) return Status();
    wide = type == Type::kInt16;
    LITEFUSE_RETURN_IF_REFUSED(table.read(call));
    const Scales& scales = table.scales();
    if (wide) {
      largest = 32767.0f * scales.output;
      table.fill([this](float x) { return function(x); });
      return Status();
    }
    LITEFUSE_RETURN_IF_REFUSED(find_multiplier(1.0 / (std::sqrt(scales.input) * scales.output), &multiplier));
    multiplier.shift -= kExtraBits;
    LITEFUSE_REQUIRE(multiplier.shift >= -31, "the scale of its output, %g, is too large",
                     static_cast<double>(scales.output));
    return Status();
  }
  int32_t stored(int32_t stored_x) const {
    const Scales& scales = table.scales();
    const int32_t x = std::max(stored_x, scales.zero_input);
    if (wide) return table.stored(x, [this](float real_x) { return function(real_x); });
    if (x == scales.zero_input) return scales.range.max;
    Multiplier inverse = fixed_inverse_sqrt(x - scales.zero_input);
    inverse.shift += kExtraBits;
    return scales.stored(multiply(multiply(1, inverse), multiplier));
  }
  float function(float x) const { return x <= 0.0f ? largest : 1.0f / std::sqrt(x); }

  bool wide = false;
  float largest = 0.0f;
  Multiplier multiplier;
  Tabulated table;
};

struct Square {
  static constexpr uint32_t kTypes = kFloat;
  float real(float x) const { return x * x; }
};

struct Abs {
  static constexpr uint32_t kTypes = kFloat | bit(Type::kInt8) | kShorts | bit(Type::kInt32);
  float real(float x) const { return std::abs(x); }
  int32_t plain(int32_t x) const { return x < 0 ? wrapping_subtract(0, x) : x; }
  Status prepare(const Call& call) {
    const Type type = call.inputs[0].type();
    quantized = type == Type::kInt8 || (type == Type::kInt16 && call.inputs[0].quantization().quantized());
    if (!quantized) return Status();
    LITEFUSE_RETURN_IF_REFUSED(scales.read(call));
    rescales = scales.input != scales.output;
    return find_multiplier(scales.input / scales.output, &multiplier);
  }
  int32_t stored(int32_t x) const {
    if (!quantized) return plain(x);
    const int32_t distance = plain(x - scales.zero_input);
    return scales.stored(rescales ? multiply(distance, multiplier) : distance);
  }

  bool quantized = false, rescales = false;
  Scales scales;
  Multiplier multiplier;
};

// Of stored numbers as they are, whatever their quantisation.
struct Neg {
  static constexpr uint32_t kTypes = kFloat | bit(Type::kInt8) | kShorts | bit(Type::kInt32) | bit(Type::kInt64);
  float real(float x) const { return -x; }
  template <typename T>
  T plain(T x) const {
    return wrapping_subtract(T{0}, x);
  }
  Status prepare(const Call&) { return Status(); }
  int32_t stored(int32_t x) const { return -x; }
};

struct Sign {
  static constexpr uint32_t kTypes = kFloat | bit(Type::kInt32);
  float real(float x) const { return std::isnan(x) ? x : x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f; }
  int32_t plain(int32_t x) const { return x > 0 ? 1 : x < 0 ? -1 : 0; }
};

struct Sin {
  static constexpr uint32_t kTypes = kFloat;
  float real(float x) const { return std::sin(x); }
};

struct Cos {
  static constexpr uint32_t kTypes = kFloat;
  float real(float x) const { return std::cos(x); }
};

struct Floor {
  static constexpr uint32_t kTypes = kFloat;
  float real(float x) const { return std::floor(x); }
};

struct Ceil {
  static constexpr uint32_t kTypes = kFloat;
  float real(float x) const { return std::ceil(x); }
};

// Halves go to the even number. Numbers in [-0.5, 0) become +0, unlike those of std::nearbyint().
struct Round {
  static constexpr uint32_t kTypes = kFloat;
  float real(float x) const {
    const float below = std::floor(x);
    const float rest = x - below;
    if (rest < 0.5f || (rest == 0.5f && std::fmod(below, 2.0f) == 0.0f)) return below;
    return below + 1.0f;
  }
};

}  // namespace

std::unique_ptr<Kernel> make_relu() { return std::make_unique<Unary<Clamped<0, kUnlimited, kFloat | kStored>>>(); }
std::unique_ptr<Kernel> make_relu_6() { return std::make_unique<Unary<Clamped<0, 6, kFloat | kStored>>>(); }
std::unique_ptr<Kernel> make_relu_n1_to_1() { return std::make_unique<Unary<Clamped<-1, 1, kFloat | kBytes>>>(); }
std::unique_ptr<Kernel> make_relu_0_to_1() { return std::make_unique<Unary<Clamped<0, 1, kFloat | kBytes>>>(); }
std::unique_ptr<Kernel> make_leaky_relu() { return std::make_unique<Unary<LeakyRelu>>(); }
std::unique_ptr<Kernel> make_elu() { return std::make_unique<Unary<Elu>>(); }
std::unique_ptr<Kernel> make_gelu() { return std::make_unique<Unary<Gelu>>(); }
std::unique_ptr<Kernel> make_hard_swish() { return std::make_unique<Unary<HardSwish>>(); }
std::unique_ptr<Kernel> make_logistic() { return std::make_unique<Unary<Logistic>>(); }
std::unique_ptr<Kernel> make_tanh() { return std::make_unique<Unary<Tanh>>(); }
std::unique_ptr<Kernel> make_exp() { return std::make_unique<Unary<Exp>>(); }
std::unique_ptr<Kernel> make_log() { return std::make_unique<Unary<Log>>(); }
std::unique_ptr<Kernel> make_sqrt() { return std::make_unique<Unary<Sqrt>>(); }
std::unique_ptr<Kernel> make_rsqrt() { return std::make_unique<Unary<Rsqrt>>(); }
std::unique_ptr<Kernel> make_square() { return std::make_unique<Unary<Square>>(); }
std::unique_ptr<Kernel> make_abs() { return std::make_unique<Unary<Abs>>(); }
std::unique_ptr<Kernel> make_neg() { return std::make_unique<Unary<Neg>>(); }
std::unique_ptr<Kernel> make_sign() { return std::make_unique<Unary<Sign>>(); }
std::unique_ptr<Kernel> make_sin() { return std::make_unique<Unary<Sin>>(); }
std::unique_ptr<Kernel> make_cos() { return std::make_unique<Unary<Cos>>(); }
std::unique_ptr<Kernel> make_floor() { return std::make_unique<Unary<Floor>>(); }
std::unique_ptr<Kernel> make_ceil() { return std::make_unique<Unary<Ceil>>(); }
std::unique_ptr<Kernel> make_round() { return std::make_unique<Unary<Round>>(); }

}  // namespace litefuse
