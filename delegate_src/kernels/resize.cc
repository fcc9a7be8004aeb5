// RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR of NHWC inputs.
#include "kernels/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/checks.h"

namespace litefuse {
namespace {

// Finds both sides and sets the output's shape.
Status find_sides(Call& call, Sides* height, Sides* width) {
  LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 2, 1));
  const Operand& input = call.inputs[0];
  const Operand& size = call.inputs[1];
  Operand& output = call.outputs[0];
  LITEFUSE_REQUIRE(output.type() == input.type(), "its input is %s and its output %s", name_of(input.type()),
                   name_of(output.type()));
  LITEFUSE_REQUIRE(input.shape.rank() == 4, "its input has rank %d, not 4", input.shape.rank());
  LITEFUSE_REQUIRE(size.constant(), "its size is computed at run time");
  LITEFUSE_REQUIRE(size.type() == Type::kInt32 && size.shape == Shape({2}), "its size is not two int32 numbers");
  *height = {input.shape[1], size.get<int32_t>()[0]};
  *width = {input.shape[2], size.get<int32_t>()[1]};
  for (const Sides& side : {*height, *width}) {
    LITEFUSE_REQUIRE(side.out > 0, "its size is %d x %d", height->out, width->out);
    LITEFUSE_REQUIRE(std::max(side.in, side.out) <= kMaxSide, "its sides are too large");
  }
  LITEFUSE_REQUIRE(output.shape.assign({input.shape[0], height->out, width->out, input.shape[3]}),
                   "its output would be too large");
  LITEFUSE_REQUIRE(output.elements() == 0 || input.elements() > 0, "its input is empty");
  call.scratch_bytes = 0;
  return Status();
}

// The same in 1/1024, as signed integers are interpolated.
Status find_positions(Sides side, const ResizeParams& params, std::vector<Between<int32_t>>* positions) {
  constexpr int64_t kOne = 1 << 10;
  int64_t scale = (kOne * side.in + side.out / 2) / side.out;
  if (params.align_corners && side.out > 1) scale = (kOne * (side.in - 1) + (side.out - 1) / 2) / (side.out - 1);
  positions->resize(static_cast<size_t>(side.out));
  for (int32_t i = 0; i < side.out; ++i) {
    const int64_t exact = params.half_pixel_centers ? i * scale + scale / 2 - kOne / 2 : i * scale;
    LITEFUSE_REQUIRE(std::max(exact, kOne * side.in) < std::numeric_limits<int32_t>::max() - kOne,
                     "its sides are too large");
    const int64_t lower = std::max<int64_t>(exact / kOne, 0);
    const int64_t upper = std::min<int64_t>((exact + kOne - 1) / kOne, side.in - 1);
    LITEFUSE_RETURN_IF_REFUSED(require_inside(lower, side));
    (*positions)[static_cast<size_t>(i)] = {static_cast<int32_t>(lower), static_cast<int32_t>(upper),
                                            static_cast<int32_t>(exact - kOne * lower)};
  }
  return Status();
}

class ResizeBilinear : public Kernel {
 public:
  Status prepare(Call& call) override {
    Sides height;
    Sides width;
    LITEFUSE_RETURN_IF_REFUSED(find_sides(call, &height, &width));
    const auto params = call.params<ResizeParams>();
    const Type type = call.inputs[0].type();
    LITEFUSE_REQUIRE(type == Type::kFloat32 || is_quantized_type(type), "inputs of type %s are not supported",
                     name_of(type));
    LITEFUSE_REQUIRE(!params.half_pixel_centers || !params.align_corners,
                     "it has both aligned corners and half-pixel centres");
    rows_.clear();
    columns_.clear();
    fixed_rows_.clear();
    fixed_columns_.clear();
    if (call.outputs[0].elements() == 0) return Status();
    if (type == Type::kInt8 || type == Type::kInt16) {
      LITEFUSE_RETURN_IF_REFUSED(find_positions(height, params, &fixed_rows_));
      return find_positions(width, params, &fixed_columns_);
    }
    LITEFUSE_RETURN_IF_REFUSED(find_positions(height, params, &rows_));
    return find_positions(width, params, &columns_);
  }

  void run(const Call& call) const override {
    const auto mix = [](auto... neighbours) { return interpolate(neighbours...); };
    const auto mix_fixed = [](auto... neighbours) { return interpolate_fixed(neighbours...); };
    switch (call.inputs[0].type()) {
      case Type::kFloat32:
        return resize<float>(call, rows_, columns_, mix);
      case Type::kUInt8:
        return resize<uint8_t>(call, rows_, columns_, mix);
      case Type::kInt8:
        return resize<int8_t>(call, fixed_rows_, fixed_columns_, mix_fixed);
      default:
        return resize<int16_t>(call, fixed_rows_, fixed_columns_, mix_fixed);
    }
  }

 private:
  // The four neighbours with their distances along the height and the width.
  template <typename T>
  static T interpolate(T upper_left, T lower_left, T upper_right, T lower_right, float dy, float dx) {
    const auto real = [](T x) { return static_cast<float>(x); };
    const float value = real(upper_left) * (1 - dy) * (1 - dx) + real(lower_left) * dy * (1 - dx) +
                        real(upper_right) * (1 - dy) * dx + real(lower_right) * dy * dx;
    if constexpr (std::numeric_limits<T>::is_integer)
      return static_cast<T>(static_cast<int32_t>(value + 0.5f));
    else
      return value + 0.0f;
  }

  template <typename T>
  static T interpolate_fixed(T upper_left, T lower_left, T upper_right, T lower_right, int32_t dy, int32_t dx) {
    constexpr int32_t kOne = 1 << 10;
    const int64_t value = int64_t{upper_left} * (kOne - dy) * (kOne - dx) + int64_t{lower_left} * dy * (kOne - dx) +
                          int64_t{upper_right} * (kOne - dy) * dx + int64_t{lower_right} * dy * dx;
    return static_cast<T>((value + (value > 0 ? 1 << 19 : -(1 << 19))) / (1 << 20));
  }

  template <typename T, typename Fraction, typename Mix>
  static void resize(const Call& call, const std::vector<Between<Fraction>>& rows,
                     const std::vector<Between<Fraction>>& columns, Mix mix) {
    const Shape& shape = call.inputs[0].shape;
    const int64_t depth = shape[3];
    const int64_t row_size = shape[2] * depth;
    const T* in = call.inputs[0].get<T>();
    T* out = call.outputs[0].mutable_get<T>();
    if (call.outputs[0].elements() == 0) return;
    for (int32_t batch = 0; batch < shape[0]; ++batch, in += shape[1] * row_size) {
      for (const Between<Fraction>& y : rows) {
        const T* above = in + y.lower * row_size;
        const T* below = in + y.upper * row_size;
        for (const Between<Fraction>& x : columns) {
          const int64_t left = x.lower * depth;
          const int64_t right = x.upper * depth;
          for (int64_t c = 0; c < depth; ++c) {
            *out++ = mix(above[left + c], below[left + c], above[right + c], below[right + c], y.fraction, x.fraction);
          }
        }
      }
    }
  }

  std::vector<Between<float>> rows_;
  std::vector<Between<float>> columns_;
  std::vector<Between<int32_t>> fixed_rows_;
  std::vector<Between<int32_t>> fixed_columns_;
};

class ResizeNearest : public Kernel {
 public:
  Status prepare(Call& call) override {
    Sides height;
    Sides width;
    LITEFUSE_RETURN_IF_REFUSED(find_sides(call, &height, &width));
    const Type type = call.inputs[0].type();
    LITEFUSE_REQUIRE(size_of(type) == 1 || size_of(type) == 2 || size_of(type) == 4,
                     "inputs of type %s are not supported", name_of(type));
    rows_.clear();
    columns_.clear();
    if (call.outputs[0].elements() == 0) return Status();
    const auto params = call.params<ResizeParams>();
    find_nearest(height, params, &rows_);
    find_nearest(width, params, &columns_);
    return Status();
  }

  void run(const Call& call) const override {
    if (call.outputs[0].elements() == 0) return;
    const Shape& shape = call.inputs[0].shape;
    const size_t pixel = static_cast<size_t>(shape[3]) * size_of(call.inputs[0].type());
    const size_t row_size = static_cast<size_t>(shape[2]) * pixel;
    const char* in = call.inputs[0].get<char>();
    char* out = call.outputs[0].mutable_get<char>();
    for (int32_t batch = 0; batch < shape[0]; ++batch, in += static_cast<size_t>(shape[1]) * row_size) {
      for (const int32_t y : rows_) {
        const char* row = in + static_cast<size_t>(y) * row_size;
        for (const int32_t x : columns_) {
          std::memcpy(out, row + static_cast<size_t>(x) * pixel, pixel);
          out += pixel;
        }
      }
    }
  }

 private:
  std::vector<int32_t> rows_;
  std::vector<int32_t> columns_;
};

}  // namespace

std::unique_ptr<Kernel> make_resize_bilinear() { return std::make_unique<ResizeBilinear>(); }
std::unique_ptr<Kernel> make_resize_nearest_neighbor() { return std::make_unique<ResizeNearest>(); }

}  // namespace litefuse
