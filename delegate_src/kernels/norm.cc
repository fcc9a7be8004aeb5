// L2_NORMALIZATION: rows of the last dimension, divided by their length.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/checks.h"
#include "kernels/fixed_functions.h"

namespace litefuse {
namespace {

class L2Normalization : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 1, 1));
    const Operand& input = call.inputs[0];
    Operand& output = call.outputs[0];
    const Type type = input.type();
    LITEFUSE_REQUIRE(type == Type::kFloat32 || type == Type::kInt8 || type == Type::kUInt8,
                     "inputs of type %s are not supported", name_of(type));
    LITEFUSE_REQUIRE(output.type() == type, "its input is %s and its output %s", name_of(type), name_of(output.type()));
    LITEFUSE_REQUIRE(input.shape.rank() >= 1, "its input is a scalar");
    LITEFUSE_REQUIRE(call.params<ActivationParams>().activation == Activation::kNone, "it has a fused activation");
    output.shape = input.shape;
    call.scratch_bytes = 0;
    depth_ = input.shape.last(0);
    rows_ = depth_ > 0 ? input.elements() / depth_ : 0;
    if (type == Type::kFloat32) return Status();
    LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("input", input));
    LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("output", output));
    const Quantization& to = output.quantization();
    const int32_t zero = type == Type::kUInt8 ? 128 : 0;
    LITEFUSE_REQUIRE(to.scale() == 1.0f / 128 && to.zero_point() == zero,
                     "its output has the scale %g and the zero point %d, not 1/128 and %d",
                     static_cast<double>(to.scale()), to.zero_point(), zero);
    LITEFUSE_REQUIRE(depth_ <= 33025, "its rows of %lld elements are too long for 32-bit sums of squares",
                     static_cast<long long>(depth_));
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
    for (int64_t row = 0; row < rows_; ++row, in += depth_, out += depth_) {
      float squares = 0.0f;
      for (int64_t i = 0; i < depth_; ++i) squares += in[i] * in[i];
      const float length = std::max(std::sqrt(squares), 1e-6f);
      for (int64_t i = 0; i < depth_; ++i) out[i] = in[i] / length;
    }
  }

  template <typename T>
  void run_8_bits(const Call& call) const {
    const T* in = call.inputs[0].get<T>();
    T* out = call.outputs[0].mutable_get<T>();
    const int32_t input_zero = call.inputs[0].quantization().zero_point();
    const int32_t output_zero = call.outputs[0].quantization().zero_point();
    const Range range = range_of(call.outputs[0].type());
    for (int64_t row = 0; row < rows_; ++row, in += depth_, out += depth_) {
      int32_t squares = 0;
      for (int64_t i = 0; i < depth_; ++i) squares += (in[i] - input_zero) * (in[i] - input_zero);
      const Multiplier inverse = fixed_inverse_sqrt(squares);
      for (int64_t i = 0; i < depth_; ++i) {
        out[i] = static_cast<T>(range.clamp(output_zero + times_128<T>(in[i] - input_zero, inverse)));
      }
    }
  }

  // 128 x * factor. Both ways are those of the runtime; they round differently.
  template <typename T>
  static int32_t times_128(int32_t x, Multiplier factor) {
    if constexpr (std::is_same_v<T, int8_t>)
      return multiply(x, Multiplier{factor.fraction, factor.shift + 7});
    else
      return multiply(128 * x, factor);
  }

  int64_t rows_ = 0;
  int64_t depth_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_l2_normalization() { return std::make_unique<L2Normalization>(); }

}  // namespace litefuse
