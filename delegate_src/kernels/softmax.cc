// SOFTMAX and LOG_SOFTMAX along the last dimension.
#include <array>
#include <cmath>
#include <limits>

#include "kernels/checks.h"
#include "kernels/fixed_functions.h"

namespace litefuse {
namespace {

// The input as rows of the last dimension.
struct Rows {
  int64_t count = 0;
  int64_t depth = 0;
};

Status find_rows(Call& call, Rows* rows) {
  LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 1, 1));
  const Shape& shape = call.inputs[0].shape;
  LITEFUSE_REQUIRE(shape.rank() >= 1, "its input is a scalar");
  call.outputs[0].shape = shape;
  call.scratch_bytes = 0;
  rows->depth = shape.last(0);
  rows->count = rows->depth > 0 ? shape.elements() / rows->depth : 0;
  return Status();
}

bool near(float value, double wanted) { return std::abs(static_cast<double>(value) - wanted) <= 0.001 * wanted; }

// Differences of 8-bit inputs to their maximum, scaled to Q5.26.
class Differences {
 public:
  // Refuses factors that TFLite's runtime would stop the process for.
  Status assign(double beta, double scale) {
    const double factor = std::min(beta * scale * (1 << 26), 2147483647.0);
    LITEFUSE_REQUIRE(factor > 1.0, "its scale %g is too small for the fixed-point exponential", scale);
    // Unlike multiplier_of() this keeps powers up to 2^31; no difference but 0 counts then.
    factor_ = multiplier_of(factor);
    if (factor_.shift == 30 && std::frexp(factor, &factor_.shift) * 2147483648.0 >= 2147483647.5) ++factor_.shift;
    min_ = -static_cast<int32_t>(std::floor(31.0 * (1 << 26) / static_cast<double>(int64_t{1} << factor_.shift)));
    return Status();
  }

  Multiplier factor() const { return factor_; }
  // Differences below this are too small to count.
  int32_t min() const { return min_; }
  int32_t scaled(int32_t difference) const { return multiply(difference, factor_); }
  // e^difference in Q0.31.
  int32_t exp(int32_t difference) const { return fixed_exp(scaled(difference)); }

 private:
  Multiplier factor_;
  int32_t min_ = 0;
};

template <typename In>
int32_t max_of(const In* in, int64_t depth) {
  int32_t max = in[0];
  for (int64_t i = 1; i < depth; ++i) max = std::max<int32_t>(max, in[i]);
  return max;
}

// The sum of the exponentials of a row in Q12.19; as an unsigned number it has room for 8191 of them.
template <typename In>
uint32_t sum_of_exps(const Differences& differences, const In* in, int64_t depth, int32_t max) {
  uint32_t sum = 0;
  for (int64_t i = 0; i < depth; ++i) {
    const int32_t difference = in[i] - max;
    if (difference < differences.min()) continue;
    sum += static_cast<uint32_t>(rounding_divide_by_pot(differences.exp(difference), 12));
  }
  return sum;
}

// A function on [-32768, 32767] as 512 straight pieces.
class Table {
 public:
  // `f` over [low, high], in steps of 2/65535.
  template <typename F>
  void assign(double low, double high, F f) {
    constexpr double kStep = 2.0 / 65535;
    constexpr double kOne = 65536.0 / (kStep * 32767 - kStep * -32768);
    const double step = (high - low) / kPieces;
    const auto clamped = [](double x) { return static_cast<int16_t>(std::min(std::max(x, -32768.0), 32767.0)); };
    for (int i = 0; i < kPieces; ++i) {
      const double here = std::round(f(low + i * step) * kOne);
      const double middle = std::round(f(low + i * step + step / 2) * kOne);
      const double chord = std::round((f(low + (i + 1) * step) * kOne + here) / 2);
      // Half of what the straight piece is off by in its middle is taken from both of its ends.
      values_[static_cast<size_t>(i)] = clamped(here - std::round((chord - middle) / 2));
    }
    values_[kPieces] = clamped(std::round(f(high) * kOne));
  }

  int16_t operator()(int32_t x) const {
    const auto piece = static_cast<size_t>(256 + (x >> 7));
    const auto slope = static_cast<int16_t>(values_[piece + 1] - values_[piece]);
    return static_cast<int16_t>(values_[piece] + ((slope * (x & 0x7F) + 64) >> 7));
  }

 private:
  static constexpr int kPieces = 512;
  std::array<int16_t, kPieces + 1> values_{};
};

class Softmax : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(find_rows(call, &rows_));
    beta_ = call.params<SoftmaxParams>().beta;
    const Operand& input = call.inputs[0];
    const Operand& output = call.outputs[0];
    const Type from = input.type();
    const Type to = output.type();
    LITEFUSE_REQUIRE(from == Type::kFloat32 || is_quantized_type(from), "inputs of type %s are not supported",
                     name_of(from));
    LITEFUSE_REQUIRE(to == from || (to == Type::kInt16 && (from == Type::kInt8 || from == Type::kUInt8)),
                     "its input is %s and its output %s", name_of(from), name_of(to));
    if (from == Type::kFloat32) return Status();
    LITEFUSE_REQUIRE(std::isfinite(beta_) && beta_ > 0.0f, "its beta is %g", static_cast<double>(beta_));
    LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("input", input));
    LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("output", output));
    return from == Type::kInt16 ? prepare_int16(input, output) : prepare_8_bits(input, output);
  }

  void run(const Call& call) const override {
    const Operand& input = call.inputs[0];
    const bool wide = call.outputs[0].type() == Type::kInt16;
    switch (input.type()) {
      case Type::kFloat32:
        return run_float(call);
      case Type::kInt8:
        return wide ? run_8_bits<int8_t, int16_t>(call) : run_8_bits<int8_t, int8_t>(call);
      case Type::kUInt8:
        return wide ? run_8_bits<uint8_t, int16_t>(call) : run_8_bits<uint8_t, uint8_t>(call);
      default:
        return run_int16(call);
    }
  }

 private:
  Status prepare_8_bits(const Operand& input, const Operand& output) {
    const Quantization& to = output.quantization();
    const double scale = output.type() == Type::kInt16 ? 1.0 / 65536 : 1.0 / 256;
    const int32_t zero = range_of(output.type()).min;
    LITEFUSE_REQUIRE(near(to.scale(), scale) && to.zero_point() == zero,
                     "its output has the scale %g and the zero point %d, not %g and %d",
                     static_cast<double>(to.scale()), to.zero_point(), scale, zero);
    LITEFUSE_REQUIRE(rows_.depth <= 8191, "its rows of %lld elements are too long for fixed-point sums",
                     static_cast<long long>(rows_.depth));
    return differences_.assign(beta_, input.quantization().scale());
  }

  Status prepare_int16(const Operand& input, const Operand& output) {
    const Quantization& to = output.quantization();
    LITEFUSE_REQUIRE(input.quantization().zero_point() == 0 && to.zero_point() == 0,
                     "it has int16 numbers with a zero point other than 0");
    LITEFUSE_REQUIRE(near(to.scale(), 1.0 / 32768), "its output has the scale %g, not 1/32768",
                     static_cast<double>(to.scale()));
    LITEFUSE_REQUIRE(rows_.depth <= 65536, "its rows of %lld elements are too long for fixed-point sums",
                     static_cast<long long>(rows_.depth));
    // -65535 is to be -10. The product is a float one.
    factor_ = multiplier_of(static_cast<double>(input.quantization().scale() * beta_) / (10.0 / 65535.0));
    LITEFUSE_REQUIRE(factor_.shift <= 15, "its input's scale %g is too large",
                     static_cast<double>(input.quantization().scale()));
    constexpr double kExpStep = 10.0 / 65535;
    exp_.assign(kExpStep * -65535, kExpStep * 0, [](double x) { return std::exp(x); });
    constexpr double kReciprocalStep = 1.0 / 65535;
    reciprocal_.assign(kReciprocalStep * 0, kReciprocalStep * 65535, [](double x) { return 1.0 / (1.0 + x); });
    return Status();
  }

  void run_float(const Call& call) const {
    const float* in = call.inputs[0].get<float>();
    float* out = call.outputs[0].mutable_get<float>();
    for (int64_t row = 0; row < rows_.count; ++row, in += rows_.depth, out += rows_.depth) {
      float max = std::numeric_limits<float>::lowest();
      for (int64_t i = 0; i < rows_.depth; ++i) max = std::max(max, in[i]);
      float sum = 0.0f;
      for (int64_t i = 0; i < rows_.depth; ++i) {
        out[i] = std::exp((in[i] - max) * beta_);
        sum += out[i];
      }
      for (int64_t i = 0; i < rows_.depth; ++i) out[i] = out[i] / sum;
    }
  }

  template <typename In, typename Out>
  void run_8_bits(const Call& call) const {
    const In* in = call.inputs[0].get<In>();
    Out* out = call.outputs[0].mutable_get<Out>();
    constexpr int32_t kMin = std::numeric_limits<Out>::min();
    constexpr int32_t kMax = std::numeric_limits<Out>::max();
    constexpr int kOutBits = 8 * static_cast<int>(sizeof(Out));
    for (int64_t row = 0; row < rows_.count; ++row, in += rows_.depth, out += rows_.depth) {
      const int32_t max = max_of(in, rows_.depth);
      const Reciprocal scale = fixed_reciprocal(sum_of_exps(differences_, in, rows_.depth, max));
      const int exponent = scale.shift + 31 - kOutBits;
      for (int64_t i = 0; i < rows_.depth; ++i) {
        const int32_t difference = in[i] - max;
        int32_t stored = kMin;
        // Of a sum of 512 and more, nothing is left in 8 bits.
        if (difference >= differences_.min() && exponent <= 31) {
          const int32_t share = rounding_doubling_high_mul(scale.fraction, differences_.exp(difference));
          stored = std::min(kMin + rounding_divide_by_pot(share, exponent), kMax);
        }
        out[i] = static_cast<Out>(stored);
      }
    }
  }

  void run_int16(const Call& call) const {
    const int16_t* in = call.inputs[0].get<int16_t>();
    int16_t* out = call.outputs[0].mutable_get<int16_t>();
    for (int64_t row = 0; row < rows_.count; ++row, in += rows_.depth, out += rows_.depth) {
      const int32_t max = max_of(in, rows_.depth);
      int32_t sum = 0;  // Q16.15
      for (int64_t i = 0; i < rows_.depth; ++i) {
        const int32_t scaled = multiply(in[i] - max, factor_) + 32767;
        out[i] = exp_(std::min(std::max(scaled, -32768), 32767));
        sum += out[i];
      }
      // The sum as (1 + x) * 2^n, for which there is a table of 1 / (1 + x).
      const int zeros = leading_zeros(static_cast<uint32_t>(sum));
      const auto normal = static_cast<int32_t>(((int64_t{sum} << (zeros - 1)) + (1 << 13)) >> 14);
      const int32_t x = normal - (1 << 15) - (1 << 16);
      const int16_t reciprocal = reciprocal_(std::min(std::max(x, -32768), 32767));
      const int shift = 31 - zeros;
      for (int64_t i = 0; i < rows_.depth; ++i) {
        const auto share = static_cast<int32_t>((int64_t{out[i]} * reciprocal + (int64_t{1} << (shift - 1))) >> shift);
        out[i] = static_cast<int16_t>(std::min(std::max(share, 0), 32767));
      }
    }
  }

  Rows rows_;
  float beta_ = 1.0f;
  Differences differences_;  // 8 bits
  Multiplier factor_;        // 16 bits: from the input's steps to those of exp_
  Table exp_;                // over [-10, 0]
  Table reciprocal_;         // 1 / (1 + x) over [0, 1]
};

class LogSoftmax : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(find_rows(call, &rows_));
    const Operand& input = call.inputs[0];
    const Operand& output = call.outputs[0];
    const Type type = input.type();
    LITEFUSE_REQUIRE(type == Type::kFloat32 || type == Type::kInt8 || type == Type::kUInt8,
                     "inputs of type %s are not supported", name_of(type));
    LITEFUSE_REQUIRE(output.type() == type, "its input is %s and its output %s", name_of(type), name_of(output.type()));
    if (type == Type::kFloat32) return Status();
    LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("input", input));
    LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("output", output));
    const Quantization& to = output.quantization();
    const int32_t zero = range_of(type).max;
    LITEFUSE_REQUIRE(to.scale() == 1.0f / 16 && to.zero_point() == zero,
                     "its output has the scale %g and the zero point %d, not 0.0625 and %d",
                     static_cast<double>(to.scale()), to.zero_point(), zero);
    LITEFUSE_REQUIRE(rows_.depth <= 4095, "its rows of %lld elements are too long for fixed-point sums",
                     static_cast<long long>(rows_.depth));
    LITEFUSE_RETURN_IF_REFUSED(differences_.assign(1.0, input.quantization().scale()));
    // From Q5.26 back to the input's steps.
    const Multiplier factor = differences_.factor();
    const double reverse =
        factor.shift > 0 ? static_cast<double>(int64_t{1} << (31 - factor.shift)) / factor.fraction : 1.0;
    reverse_ = multiplier_of(reverse);
    LITEFUSE_REQUIRE(reverse < 1.0 && reverse_.shift <= 0, "its scale %g is too small for the fixed-point exponential",
                     static_cast<double>(input.quantization().scale()));
    return Status();
  }

  void run(const Call& call) const override {
    switch (call.inputs[0].type()) {
      case Type::kFloat32:
        return run_float(call);
      case Type::kInt8:
        return run_8_bits<int8_t>(call);
      default:
        return run_8_bits<uint8_t>(call);
    }
  }

 private:
  void run_float(const Call& call) const {
    const float* in = call.inputs[0].get<float>();
    float* out = call.outputs[0].mutable_get<float>();
    for (int64_t row = 0; row < rows_.count; ++row, in += rows_.depth, out += rows_.depth) {
      float max = std::numeric_limits<float>::lowest();
      for (int64_t i = 0; i < rows_.depth; ++i) max = std::max(max, in[i]);
      float sum = 0.0f;
      for (int64_t i = 0; i < rows_.depth; ++i) sum += std::exp(in[i] - max);
      const float log = std::log(sum);
      for (int64_t i = 0; i < rows_.depth; ++i) out[i] = in[i] - max - log;
    }
  }

  template <typename T>
  void run_8_bits(const Call& call) const {
    const T* in = call.inputs[0].get<T>();
    T* out = call.outputs[0].mutable_get<T>();
    constexpr int32_t kMin = std::numeric_limits<T>::min();
    constexpr int32_t kMax = std::numeric_limits<T>::max();
    for (int64_t row = 0; row < rows_.count; ++row, in += rows_.depth, out += rows_.depth) {
      const int32_t max = max_of(in, rows_.depth);
      const int32_t log = fixed_log(static_cast<int32_t>(sum_of_exps(differences_, in, rows_.depth, max)));
      // What lies below would not fit into Q5.26 any more.
      const int32_t lowest = multiply(wrapping_add(log, std::numeric_limits<int32_t>::min()), reverse_);
      const int32_t min = std::max(differences_.min() - 1, lowest);
      for (int64_t i = 0; i < rows_.depth; ++i) {
        const int32_t difference = in[i] - max;
        int32_t stored = kMin;
        if (difference > min) {
          const int32_t value = wrapping_add(differences_.scaled(difference), -log);
          stored = std::min(std::max(rounding_divide_by_pot(value, 22) + kMax, kMin), kMax);
        }
        out[i] = static_cast<T>(stored);
      }
    }
  }

  Rows rows_;
  Differences differences_;
  Multiplier reverse_;
};

}  // namespace

std::unique_ptr<Kernel> make_softmax() { return std::make_unique<Softmax>(); }
std::unique_ptr<Kernel> make_log_softmax() { return std::make_unique<LogSoftmax>(); }

}  // namespace litefuse
