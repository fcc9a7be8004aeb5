// Arithmetic of two operands that are broadcast to each other.
//
// Where TFLite's kernels stop with an error, as they do for integers divided by zero, there is no error to give here:
// constants with which that would happen are refused, and for values that come at run time the results are
// - x / 0 and FLOOR_DIV(x, 0): 0 for unquantised integers; what IEEE 754 says for floats; for quantised ones the end of
//   the range that has the sign of x, as if the result were infinite, and zero where x is zero;
// - FLOOR_MOD(x, 0): 0;
// - POW(x, n) of integers with n below 0: the integer part of the real result.
#include <cmath>
#include <limits>
#include <memory>

#include "kernels/broadcast.h"
#include "kernels/elementwise.h"
#include "kernels/fixed_functions.h"
#include "kernels/kernel.h"

namespace litefuse {
namespace {

Status check_activation(Activation activation) {
  float min, max;
  return activation_range(activation, &min, &max);
}

// The numbers that a fused activation lets pass. Infinite floats are among those that it does not, even when it is
// none.
template <typename T>
struct Limits {
  T min = std::numeric_limits<T>::lowest();
  T max = std::numeric_limits<T>::max();

  explicit Limits(Activation activation) {
    if (activation == Activation::kRelu || activation == Activation::kRelu6) min = 0;
    if (activation == Activation::kRelu6) max = 6;
    if (activation == Activation::kReluN1To1) {
      min = static_cast<T>(-1);
      max = 1;
    }
  }
  T clamp(T x) const { return clamp_to(x, min, max); }
};

class Binary : public Kernel {
 public:
  Status prepare(Call& call) final {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 2, 1));
    LITEFUSE_RETURN_IF_REFUSED(check_types(call.inputs[0].type(), call.inputs[1].type(), call.outputs[0].type()));
    Shape shape;
    LITEFUSE_RETURN_IF_REFUSED(broadcast_shape(call.inputs[0].shape, call.inputs[1].shape, &shape));
    broadcasts_ = call.inputs[0].shape != call.inputs[1].shape;
    LITEFUSE_RETURN_IF_REFUSED(prepare_type(call));
    call.outputs[0].shape = shape;
    call.scratch_bytes = 0;
    walk_.plan(shape, {call.inputs[0].shape, call.inputs[1].shape});
    return Status();
  }

 protected:
  virtual Status check_types(Type a, Type b, Type output) const {
    LITEFUSE_REQUIRE(a == b, "its inputs are %s and %s", name_of(a), name_of(b));
    LITEFUSE_REQUIRE(output == a, "its output is %s where its inputs are %s", name_of(output), name_of(a));
    return Status();
  }
  // Finds the parameters, with types and shapes already looked at.
  virtual Status prepare_type(const Call& call) = 0;

  template <typename T, typename F>
  void each(const Call& call, F f) const {
    broadcast(walk_, call.inputs[0].get<T>(), call.inputs[1].get<T>(), call.outputs[0].mutable_get<T>(), f);
  }
  // f takes and returns stored numbers, widened.
  template <typename T, typename F>
  void each_stored(const Call& call, F f) const {
    each<T>(call, [f](T a, T b) { return static_cast<T>(f(int32_t{a}, int32_t{b})); });
  }

  Broadcast<2> walk_;
  bool broadcasts_ = false;  // the shapes of the inputs differ
};

Status unsupported(Type type) { return refuse("%s is not supported", name_of(type)); }

Status check_quantized(const Call& call) {
  LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("first input", call.inputs[0]));
  LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("second input", call.inputs[1]));
  return require_per_tensor("output", call.outputs[0]);
}

Status check_no_zero_points(const Call& call) {
  LITEFUSE_RETURN_IF_REFUSED(check_no_zero_point(call.inputs[0], "first input"));
  LITEFUSE_RETURN_IF_REFUSED(check_no_zero_point(call.inputs[1], "second input"));
  return check_no_zero_point(call.outputs[0], "output");
}

// Quantised sums, differences and their squares: both operands are brought to a common scale, twice the larger one.
struct CommonScale {
  int32_t zero_a = 0, zero_b = 0, zero_output = 0;
  int left_shift = 0;
  Multiplier a, b, output;
  Range range;

  Status prepare(const Call& call, int shift, bool squared) {
    const float scale_a = call.inputs[0].quantization().scale();
    const float scale_b = call.inputs[1].quantization().scale();
    const float scale_output = call.outputs[0].quantization().scale();
    zero_a = call.inputs[0].quantization().zero_point();
    zero_b = call.inputs[1].quantization().zero_point();
    zero_output = call.outputs[0].quantization().zero_point();
    left_shift = shift;
    const double common = 2.0f * std::max(scale_a, scale_b);
    const float steps = static_cast<float>(1 << (squared ? 2 * shift : shift)) * scale_output;
    LITEFUSE_RETURN_IF_REFUSED(find_multiplier_below_one(scale_a / common, &a));
    LITEFUSE_RETURN_IF_REFUSED(find_multiplier_below_one(scale_b / common, &b));
    return find_multiplier_below_one((squared ? common * common : common) / steps, &output);
  }
  int32_t scaled_a(int32_t x) const { return multiply((x - zero_a) * (1 << left_shift), a); }
  int32_t scaled_b(int32_t x) const { return multiply((x - zero_b) * (1 << left_shift), b); }
  int32_t stored(int32_t x) const { return range.clamp(wrapping_add(multiply(x, output), zero_output)); }
};

// ADD and SUB.
template <bool kSubtract>
class Sum final : public Binary {
 public:
  void run(const Call& call) const override {
    switch (call.outputs[0].type()) {
      case Type::kFloat32:
        return run_plain<float>(call);
      case Type::kInt32:
        return run_plain<int32_t>(call);
      case Type::kInt64:
        return run_plain<int64_t>(call);
      case Type::kInt8:
        return each_stored<int8_t>(call, [this](int32_t a, int32_t b) { return sum(a, b); });
      case Type::kUInt8:
        return each_stored<uint8_t>(call, [this](int32_t a, int32_t b) { return sum(a, b); });
      default:
        if (form_ == Form::kPlain) return run_plain<int16_t>(call);
        if (form_ == Form::kScaled) {
          return each_stored<int16_t>(call, [this](int32_t a, int32_t b) { return sum(a, b); });
        }
        return each<int16_t>(call, [this](int16_t a, int16_t b) {
          const int32_t x = rounding_divide_by_pot(a, shift_a_);
          const int32_t y = rounding_divide_by_pot(b, shift_b_);
          const int32_t total = saturate(kSubtract ? x - y : x + y, range_of(Type::kInt16));
          return static_cast<int16_t>(scales_.range.clamp(total));
        });
    }
  }

 protected:
  Status prepare_type(const Call& call) override {
    const auto params = call.params<ActivationParams>();
    activation_ = params.activation;
    LITEFUSE_RETURN_IF_REFUSED(check_activation(activation_));
    const Type type = call.outputs[0].type();
    form_ = Form::kPlain;
    switch (type) {
      case Type::kFloat32:
      case Type::kInt32:
      case Type::kInt64:
        return Status();
      case Type::kInt16:
        if (!kSubtract && !call.inputs[0].quantization().quantized() && !call.outputs[0].quantization().quantized()) {
          return Status();
        }
        break;
      case Type::kInt8:
      case Type::kUInt8:
        break;
      default:
        return unsupported(type);
    }
    LITEFUSE_RETURN_IF_REFUSED(check_quantized(call));
    LITEFUSE_RETURN_IF_REFUSED(activation_range(activation_, *call.outputs[0].tensor, &scales_.range));
    if (type == Type::kInt16) {
      LITEFUSE_RETURN_IF_REFUSED(check_no_zero_points(call));
      int a = 0, b = 0, output = 0;
      if (params.pot_scale_int16 && is_power_of_two(call.inputs[0].quantization().scale(), &a) &&
          is_power_of_two(call.inputs[1].quantization().scale(), &b) &&
          is_power_of_two(call.outputs[0].quantization().scale(), &output)) {
        shift_a_ = output - a;
        shift_b_ = output - b;
        LITEFUSE_REQUIRE(
            (shift_a_ == 0 || shift_b_ == 0) && shift_a_ >= 0 && shift_b_ >= 0,
            "its scales are 2^%d, 2^%d and 2^%d, of which one input's must be the output's and none larger", a, b,
            output);
        LITEFUSE_REQUIRE(shift_a_ <= 31 && shift_b_ <= 31, "its scales differ by 2^%d", shift_a_ + shift_b_);
        // TFLite's ADD does not broadcast here, and reads past the end of its input.
        LITEFUSE_REQUIRE(kSubtract || !broadcasts_, "it broadcasts int16 with scales that are powers of two");
        form_ = Form::kPowersOfTwo;
        return Status();
      }
    }
    form_ = Form::kScaled;
    return scales_.prepare(call, type == Type::kInt16 ? 15 : 20, false);
  }

 private:
  enum class Form { kPlain, kScaled, kPowersOfTwo };

  template <typename T>
  void run_plain(const Call& call) const {
    const Limits<T> limits(activation_);
    each<T>(call, [limits](T a, T b) {
      return limits.clamp(kSubtract ? wrapping_subtract<T>(a, b) : wrapping_add<T>(a, b));
    });
  }
  int32_t sum(int32_t a, int32_t b) const {
    const int32_t x = scales_.scaled_a(a);
    const int32_t y = scales_.scaled_b(b);
    return scales_.stored(kSubtract ? wrapping_subtract(x, y) : wrapping_add(x, y));
  }

  Form form_ = Form::kPlain;
  Activation activation_ = Activation::kNone;
  CommonScale scales_;
  int shift_a_ = 0, shift_b_ = 0;
};

class Product final : public Binary {
 public:
  void run(const Call& call) const override {
    switch (call.inputs[0].type()) {
      case Type::kFloat32:
        return run_plain<float>(call);
      case Type::kInt32:
        return run_plain<int32_t>(call);
      case Type::kInt64:
        return run_plain<int64_t>(call);
      case Type::kInt8:
        return each_stored<int8_t>(call, [this](int32_t a, int32_t b) { return product(a, b); });
      case Type::kUInt8:
        return each_stored<uint8_t>(call, [this](int32_t a, int32_t b) { return product(a, b); });
      default:
        break;
    }
    const Operand& output = call.outputs[0];
    const int16_t* a = call.inputs[0].get<int16_t>();
    const int16_t* b = call.inputs[1].get<int16_t>();
    if (output.type() == Type::kInt8) {
      auto narrow = [this](int16_t x, int16_t y) { return static_cast<int8_t>(narrow_product(x, y)); };
      broadcast(walk_, a, b, output.mutable_get<int8_t>(), narrow);
    } else if (output.type() == Type::kUInt8) {
      auto narrow = [this](int16_t x, int16_t y) { return static_cast<uint8_t>(narrow_product(x, y)); };
      broadcast(walk_, a, b, output.mutable_get<uint8_t>(), narrow);
    } else if (output.quantization().quantized()) {
      each_stored<int16_t>(call, [this](int32_t x, int32_t y) { return product(x, y); });
    } else {
      run_plain<int16_t>(call);
    }
  }

 protected:
  Status check_types(Type a, Type b, Type output) const override {
    if (a == Type::kInt16 && b == a && (output == Type::kInt8 || output == Type::kUInt8)) return Status();
    return Binary::check_types(a, b, output);
  }
  Status prepare_type(const Call& call) override {
    activation_ = call.params<ActivationParams>().activation;
    LITEFUSE_RETURN_IF_REFUSED(check_activation(activation_));
    const Type type = call.inputs[0].type();
    const Operand& output = call.outputs[0];
    switch (type) {
      case Type::kFloat32:
      case Type::kInt32:
      case Type::kInt64:
        return Status();
      case Type::kInt16:
        if (output.type() == Type::kInt16 && !output.quantization().quantized()) return Status();
        break;
      case Type::kInt8:
      case Type::kUInt8:
        break;
      default:
        return unsupported(type);
    }
    if (type == Type::kInt16 && output.type() != type) {
      // A fixed-point format of its own, in which the inputs' scales do not count.
      LITEFUSE_REQUIRE(!broadcasts_, "it broadcasts int16 to 8 bits");
      LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("output", output));
      zero_output_ = output.quantization().zero_point();
      return activation_range(activation_, *output.tensor, &range_);
    }
    LITEFUSE_RETURN_IF_REFUSED(check_quantized(call));
    if (type == Type::kInt16) LITEFUSE_RETURN_IF_REFUSED(check_no_zero_points(call));
    LITEFUSE_RETURN_IF_REFUSED(activation_range(activation_, *output.tensor, &range_));
    zero_a_ = call.inputs[0].quantization().zero_point();
    zero_b_ = call.inputs[1].quantization().zero_point();
    zero_output_ = output.quantization().zero_point();
    const float scale = call.inputs[0].quantization().scale() * call.inputs[1].quantization().scale();
    return find_multiplier(scale / output.quantization().scale(), &multiplier_);
  }

 private:
  template <typename T>
  void run_plain(const Call& call) const {
    const Limits<T> limits(activation_);
    each<T>(call, [limits](T a, T b) { return limits.clamp(wrapping_multiply<T>(a, b)); });
  }
  int32_t product(int32_t a, int32_t b) const {
    return range_.clamp(wrapping_add(multiply((a - zero_a_) * (b - zero_b_), multiplier_), zero_output_));
  }
  int32_t narrow_product(int16_t a, int16_t b) const {
    const int32_t x = rounding_divide_by_pot(rounding_doubling_high_mul(a, b), 8);
    return zero_output_ + std::max(std::min(x, range_.max - zero_output_), range_.min - zero_output_);
  }

  Activation activation_ = Activation::kNone;
  int32_t zero_a_ = 0, zero_b_ = 0, zero_output_ = 0;
  Multiplier multiplier_;
  Range range_;
};

// Whether a constant holds `value`.
template <typename T>
bool holds(const Operand& operand, T value) {
  if (!operand.constant()) return false;
  const T* data = static_cast<const T*>(operand.tensor->constant);
  return std::find(data, data + operand.elements(), value) != data + operand.elements();
}

Status check_divisor(const Operand& divisor, int32_t zero) {
  bool found = false;
  switch (divisor.type()) {
    case Type::kFloat32:
      found = holds(divisor, static_cast<float>(zero));
      break;
    case Type::kInt64:
      found = holds(divisor, int64_t{zero});
      break;
    case Type::kInt32:
      found = holds(divisor, zero);
      break;
    case Type::kInt16:
      found = holds(divisor, static_cast<int16_t>(zero));
      break;
    case Type::kInt8:
      found = holds(divisor, static_cast<int8_t>(zero));
      break;
    case Type::kUInt8:
      found = holds(divisor, static_cast<uint8_t>(zero));
      break;
    default:
      break;
  }
  LITEFUSE_REQUIRE(!found, "it divides by a constant that has zeros");
  return Status();
}

// rounding_divide_by_pot() for any exponent, as processors do it: shifts count modulo the width. Beyond 31 that is not
// a division any more, and yet what TFLite's DIV gives, on x86 and Arm alike, for some quotients that are nearly zero.
int32_t shift_right_modulo(int32_t x, int exponent) {
  const auto mask = static_cast<int32_t>((uint64_t{1} << (exponent & 63)) - 1);
  const int32_t remainder = x & mask;
  const int32_t threshold = (mask >> 1) + (x < 0 ? 1 : 0);
  return wrapping_add(x >> (exponent & 31), remainder > threshold ? 1 : 0);
}

class Quotient final : public Binary {
 public:
  void run(const Call& call) const override {
    switch (call.outputs[0].type()) {
      case Type::kFloat32: {
        const Limits<float> limits(activation_);
        return each<float>(call, [limits](float a, float b) { return limits.clamp(a / b); });
      }
      case Type::kInt32: {
        const Limits<int32_t> limits(activation_);
        return each<int32_t>(call, [limits](int32_t a, int32_t b) {
          // -2^31 / -1 wraps.
          return limits.clamp(b == 0 ? 0 : static_cast<int32_t>(int64_t{a} / b));
        });
      }
      case Type::kInt8:
        return each_stored<int8_t>(call, [this](int32_t a, int32_t b) { return quotient(a, b); });
      case Type::kUInt8:
        return each_stored<uint8_t>(call, [this](int32_t a, int32_t b) { return quotient(a, b); });
      default:
        return each_stored<int16_t>(call, [this](int32_t a, int32_t b) { return quotient(a, b); });
    }
  }

 protected:
  Status prepare_type(const Call& call) override {
    activation_ = call.params<ActivationParams>().activation;
    LITEFUSE_RETURN_IF_REFUSED(check_activation(activation_));
    const Operand& output = call.outputs[0];
    switch (output.type()) {
      case Type::kFloat32:
        return Status();
      case Type::kInt32:
        return check_divisor(call.inputs[1], 0);
      case Type::kInt8:
      case Type::kUInt8:
      case Type::kInt16:
        break;
      default:
        return unsupported(output.type());
    }
    LITEFUSE_RETURN_IF_REFUSED(check_quantized(call));
    LITEFUSE_RETURN_IF_REFUSED(activation_range(activation_, *output.tensor, &range_));
    zero_a_ = call.inputs[0].quantization().zero_point();
    zero_b_ = call.inputs[1].quantization().zero_point();
    zero_output_ = output.quantization().zero_point();
    LITEFUSE_RETURN_IF_REFUSED(check_divisor(call.inputs[1], zero_b_));
    const float scale = call.inputs[1].quantization().scale() * output.quantization().scale();
    return find_multiplier(call.inputs[0].quantization().scale() / scale, &multiplier_);
  }

 private:
  int32_t quotient(int32_t a, int32_t b) const {
    int32_t dividend = a - zero_a_;
    int32_t divisor = b - zero_b_;
    if (divisor == 0) return dividend == 0 ? range_.clamp(zero_output_) : dividend > 0 ? range_.max : range_.min;
    if (divisor < 0) {
      dividend = -dividend;
      divisor = -divisor;
    }
    // The divisor as 1.x * 2^k, and the reciprocal of 1.x.
    const int zeros = leading_zeros(static_cast<uint32_t>(divisor));
    const auto fraction = static_cast<int32_t>((static_cast<uint32_t>(divisor) << zeros) - 0x80000000u);
    const int k = 31 - zeros;
    const int headroom =
        dividend == 0 ? 31 : leading_zeros(static_cast<uint32_t>(dividend < 0 ? ~dividend : dividend)) - 1;
    const int32_t ratio = rounding_doubling_high_mul(shift_left(dividend, headroom), fixed_one_over_one_plus(fraction));
    const int32_t scaled =
        shift_right_modulo(rounding_doubling_high_mul(ratio, multiplier_.fraction), k + headroom - multiplier_.shift);
    return range_.clamp(wrapping_add(scaled, zero_output_));
  }

  Activation activation_ = Activation::kNone;
  int32_t zero_a_ = 0, zero_b_ = 0, zero_output_ = 0;
  Multiplier multiplier_;
  Range range_;
};

// MAXIMUM and MINIMUM, of stored numbers as they are.
template <bool kMaximum>
class Extreme final : public Binary {
 public:
  void run(const Call& call) const override {
    switch (call.outputs[0].type()) {
      case Type::kFloat32:
        return extremes<float>(call);
      case Type::kInt8:
        return extremes<int8_t>(call);
      case Type::kUInt8:
        return extremes<uint8_t>(call);
      case Type::kInt16:
        return extremes<int16_t>(call);
      case Type::kInt32:
        return extremes<int32_t>(call);
      default:
        return extremes<int64_t>(call);
    }
  }

 protected:
  Status prepare_type(const Call& call) override {
    switch (call.outputs[0].type()) {
      case Type::kFloat32:
      case Type::kInt8:
      case Type::kUInt8:
      case Type::kInt16:
      case Type::kInt32:
      case Type::kInt64:
        return Status();
      default:
        return unsupported(call.outputs[0].type());
    }
  }

 private:
  template <typename T>
  void extremes(const Call& call) const {
    each<T>(call, [](T a, T b) { return (kMaximum ? a > b : a < b) ? a : b; });
  }
};

class SquaredDifference final : public Binary {
 public:
  void run(const Call& call) const override {
    switch (call.outputs[0].type()) {
      case Type::kFloat32:
        return run_plain<float>(call);
      case Type::kInt32:
        return run_plain<int32_t>(call);
      default:
        return each_stored<int8_t>(call, [this](int32_t a, int32_t b) {
          const int32_t difference = scales_.scaled_a(a) - scales_.scaled_b(b);
          return scales_.stored(difference * difference);
        });
    }
  }

 protected:
  Status prepare_type(const Call& call) override {
    switch (call.outputs[0].type()) {
      case Type::kFloat32:
      case Type::kInt32:
        return Status();
      case Type::kInt8:
        LITEFUSE_RETURN_IF_REFUSED(check_quantized(call));
        scales_.range = range_of(Type::kInt8);
        return scales_.prepare(call, 7, true);
      default:
        return unsupported(call.outputs[0].type());
    }
  }

 private:
  template <typename T>
  void run_plain(const Call& call) const {
    each<T>(call, [](T a, T b) {
      const T difference = wrapping_subtract<T>(a, b);
      return wrapping_multiply<T>(difference, difference);
    });
  }

  CommonScale scales_;
};

class Power final : public Binary {
 public:
  void run(const Call& call) const override {
    if (call.outputs[0].type() == Type::kFloat32) {
      if (const int n = common_exponent<float>(call)) return multiply_out<float>(call, n);
      return each<float>(call, [](float a, float b) { return std::pow(a, b); });
    }
    if (const int n = common_exponent<int32_t>(call)) return multiply_out<int32_t>(call, n);
    each<int32_t>(
        call, [](int32_t a, int32_t b) { return to_int32(std::pow(static_cast<double>(a), static_cast<double>(b))); });
  }

 protected:
  Status prepare_type(const Call& call) override {
    const Operand& exponent = call.inputs[1];
    switch (exponent.type()) {
      case Type::kFloat32:
        return Status();
      case Type::kInt32:
        if (exponent.constant()) {
          const auto* data = static_cast<const int32_t*>(exponent.tensor->constant);
          const auto* end = data + exponent.elements();
          LITEFUSE_REQUIRE(std::find_if(data, end, [](int32_t n) { return n < 0; }) == end,
                           "it has negative exponents for integers");
        }
        return Status();
      default:
        return unsupported(exponent.type());
    }
  }

 private:
  // Where there is one exponent for all, and it is nearly a whole number from 1 on, TFLite multiplies instead.
  template <typename T>
  int common_exponent(const Call& call) const {
    if (!broadcasts_ || call.inputs[1].elements() != 1) return 0;
    const T exponent = *call.inputs[1].get<T>();
    const int32_t n = to_int32(std::round(static_cast<double>(exponent)));
    if (n < 1) return 0;
    if constexpr (std::is_integral_v<T>) return n;
    return std::abs(static_cast<float>(exponent) - static_cast<float>(n)) < 1e-5f ? n : 0;
  }
  template <typename T>
  void multiply_out(const Call& call, int n) const {
    const Limits<T> limits(Activation::kNone);
    int top = 1;
    while (top <= n / 2) top *= 2;
    each<T>(call, [=](T x, T) {
      T result = x;
      for (int bit = top / 2; bit > 0; bit /= 2) {
        result = limits.clamp(wrapping_multiply<T>(result, result));
        if (n & bit) result = limits.clamp(wrapping_multiply<T>(x, result));
      }
      return result;
    });
  }
};

class FloorDivision final : public Binary {
 public:
  void run(const Call& call) const override {
    switch (call.outputs[0].type()) {
      case Type::kFloat32:
        return each<float>(call, [](float a, float b) { return static_cast<float>(divide(a, b)); });
      case Type::kInt8:
        return run_integers<int8_t>(call);
      case Type::kInt16:
        return run_integers<int16_t>(call);
      default:
        return run_integers<int32_t>(call);
    }
  }

 protected:
  Status prepare_type(const Call& call) override {
    switch (call.outputs[0].type()) {
      case Type::kFloat32:
      case Type::kInt8:
      case Type::kInt16:
      case Type::kInt32:
        return check_divisor(call.inputs[1], 0);
      default:
        return unsupported(call.outputs[0].type());
    }
  }

 private:
  static double divide(double a, double b) { return std::floor(a / b); }
  template <typename T>
  void run_integers(const Call& call) const {
    each<T>(call, [](T a, T b) { return b == 0 ? T{0} : static_cast<T>(to_int32(divide(a, b))); });
  }
};

class FloorModulo final : public Binary {
 public:
  void run(const Call& call) const override {
    switch (call.outputs[0].type()) {
      case Type::kFloat32:
        return each<float>(call, [](float a, float b) { return floored(std::fmod(a, b), b); });
      case Type::kInt8:
        return run_integers<int8_t>(call);
      case Type::kInt16:
        return run_integers<int16_t>(call);
      case Type::kInt32:
        return run_integers<int32_t>(call);
      default:
        return run_integers<int64_t>(call);
    }
  }

 protected:
  Status prepare_type(const Call& call) override {
    switch (call.outputs[0].type()) {
      case Type::kFloat32:
        return Status();
      case Type::kInt8:
      case Type::kInt16:
      case Type::kInt32:
      case Type::kInt64:
        return check_divisor(call.inputs[1], 0);
      default:
        return unsupported(call.outputs[0].type());
    }
  }

 private:
  template <typename T>
  static T floored(T remainder, T b) {
    return remainder != 0 && (b < 0) != (remainder < 0) ? static_cast<T>(remainder + b) : remainder;
  }
  template <typename T>
  void run_integers(const Call& call) const {
    each<T>(call, [](T a, T b) {
      // -1 divides everything, and the lowest number by it traps.
      return b == 0 || b == -1 ? T{0} : floored(static_cast<T>(a % b), b);
    });
  }
};

class Prelu final : public Binary {
 public:
  void run(const Call& call) const override {
    switch (call.outputs[0].type()) {
      case Type::kFloat32:
        return each<float>(call, [](float x, float alpha) { return x >= 0.0f ? x : x * alpha; });
      case Type::kInt8:
        return run_quantized<int8_t, int8_t>(call);
      case Type::kUInt8:
        return run_quantized<uint8_t, uint8_t>(call);
      default:
        return run_quantized<int16_t, int8_t>(call);
    }
  }

 protected:
  Status check_types(Type input, Type alpha, Type output) const override {
    if (input == Type::kInt16 && output == input) {
      LITEFUSE_REQUIRE(alpha == Type::kInt8, "its alpha is %s where int16 inputs need int8", name_of(alpha));
      return Status();
    }
    return Binary::check_types(input, alpha, output);
  }
  Status prepare_type(const Call& call) override {
    const Operand& input = call.inputs[0];
    const Operand& alpha = call.inputs[1];
    const Operand& output = call.outputs[0];
    Shape shape;
    LITEFUSE_RETURN_IF_REFUSED(broadcast_shape(input.shape, alpha.shape, &shape));
    LITEFUSE_REQUIRE(shape == input.shape, "its alpha, %s, does not broadcast to its input, %s",
                     alpha.shape.str().c_str(), input.shape.str().c_str());
    switch (input.type()) {
      case Type::kFloat32:
        return Status();
      case Type::kInt8:
      case Type::kUInt8:
      case Type::kInt16:
        break;
      default:
        return unsupported(input.type());
    }
    LITEFUSE_RETURN_IF_REFUSED(check_quantized(call));
    zero_input_ = input.quantization().zero_point();
    zero_alpha_ = alpha.quantization().zero_point();
    zero_output_ = output.quantization().zero_point();
    range_ = range_of(output.type());
    const float scale = input.quantization().scale();
    const float scale_output = output.quantization().scale();
    LITEFUSE_RETURN_IF_REFUSED(find_multiplier(scale / scale_output, &positive_));
    return find_multiplier(scale * alpha.quantization().scale() / scale_output, &negative_);
  }

 private:
  template <typename T, typename Alpha>
  void run_quantized(const Call& call) const {
    auto f = [this](T stored, Alpha stored_alpha) {
      const int32_t x = int32_t{stored} - zero_input_;
      const int32_t y =
          x >= 0 ? multiply(x, positive_) : multiply(x * (int32_t{stored_alpha} - zero_alpha_), negative_);
      return static_cast<T>(range_.clamp(wrapping_add(y, zero_output_)));
    };
    broadcast(walk_, call.inputs[0].get<T>(), call.inputs[1].get<Alpha>(), call.outputs[0].mutable_get<T>(), f);
  }

  int32_t zero_input_ = 0, zero_alpha_ = 0, zero_output_ = 0;
  Multiplier positive_, negative_;
  Range range_;
};

}  // namespace

std::unique_ptr<Kernel> make_add() { return std::make_unique<Sum<false>>(); }
std::unique_ptr<Kernel> make_sub() { return std::make_unique<Sum<true>>(); }
std::unique_ptr<Kernel> make_mul() { return std::make_unique<Product>(); }
std::unique_ptr<Kernel> make_div() { return std::make_unique<Quotient>(); }
std::unique_ptr<Kernel> make_maximum() { return std::make_unique<Extreme<true>>(); }
std::unique_ptr<Kernel> make_minimum() { return std::make_unique<Extreme<false>>(); }
std::unique_ptr<Kernel> make_squared_difference() { return std::make_unique<SquaredDifference>(); }
std::unique_ptr<Kernel> make_pow() { return std::make_unique<Power>(); }
std::unique_ptr<Kernel> make_floor_div() { return std::make_unique<FloorDivision>(); }
std::unique_ptr<Kernel> make_floor_mod() { return std::make_unique<FloorModulo>(); }
std::unique_ptr<Kernel> make_prelu() { return std::make_unique<Prelu>(); }

}  // namespace litefuse
