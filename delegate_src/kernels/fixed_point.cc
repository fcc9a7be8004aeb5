#include "kernels/fixed_point.h"

namespace litefuse {
namespace {

int32_t stored(float real, const Quantization& q) {
  const float steps = std::round(real / q.scale());
  const double value = static_cast<double>(steps) + q.zero_point();
  return static_cast<int32_t>(std::min(std::max(value, -2147483648.0), 2147483647.0));
}

}  // namespace

Status activation_range(Activation activation, const Tensor& output, Range* range) {
  *range = range_of(output.type);
  const Quantization& q = output.quantization;
  if (activation == Activation::kNone) return Status();
  LITEFUSE_REQUIRE(q.scale() > 0.0f, "its output has no quantisation, which a fused activation needs");
  switch (activation) {
    case Activation::kRelu:
      range->min = std::max(range->min, stored(0.0f, q));
      return Status();
    case Activation::kRelu6:
      range->min = std::max(range->min, stored(0.0f, q));
      range->max = std::min(range->max, stored(6.0f, q));
      return Status();
    case Activation::kReluN1To1:
      range->min = std::max(range->min, stored(-1.0f, q));
      range->max = std::min(range->max, stored(1.0f, q));
      return Status();
    default:
      return refuse("fused activation %d is not supported", static_cast<int>(activation));
  }
}

Status activation_range(Activation activation, float* min, float* max) {
  *min = std::numeric_limits<float>::lowest();
  *max = std::numeric_limits<float>::max();
  switch (activation) {
    case Activation::kNone:
      return Status();
    case Activation::kRelu:
      *min = 0.0f;
      return Status();
    case Activation::kRelu6:
      *min = 0.0f;
      *max = 6.0f;
      return Status();
    case Activation::kReluN1To1:
      *min = -1.0f;
      *max = 1.0f;
      return Status();
    default:
      return refuse("fused activation %d is not supported", static_cast<int>(activation));
  }
}

}  // namespace litefuse
