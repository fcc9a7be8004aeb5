// Element types, shapes and quantisation as regions have them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace litefuse {

// The numbers are those of TFLite's C interface.
enum class Type : int32_t {
  kNone = 0,
  kFloat32 = 1,
  kInt32 = 2,
  kUInt8 = 3,
  kInt64 = 4,
  kBool = 6,
  kInt16 = 7,
  kInt8 = 9,
  kFloat16 = 10,
};

// Bytes of an element; 0 for types that regions do not know.
size_t size_of(Type type);
const char* name_of(Type type);

constexpr int kMaxRank = 8;
// Elements that a tensor may have. No product of an index with the size of an element overflows then.
constexpr int64_t kMaxElements = int64_t{1} << 40;

// The dimensions of a tensor, outermost first. Rank 0 is a scalar.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int32_t> dims);

  // False, and nothing is changed, when the rank is too high, a dimension is negative or the number of elements passes
  // kMaxElements.
  bool assign(const int32_t* dims, int rank);
  bool assign(const std::vector<int32_t>& dims) { return assign(dims.data(), static_cast<int>(dims.size())); }

  int rank() const { return rank_; }
  int32_t operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  // From the end: last(0) is the innermost dimension.
  int32_t last(int i) const { return dims_[static_cast<size_t>(rank_ - 1 - i)]; }
  const int32_t* data() const { return dims_.data(); }
  int64_t elements() const;
  // The same shape with leading ones up to `rank`, which may not be lower than rank().
  Shape extended(int rank) const;
  std::string str() const;

  bool operator==(const Shape& other) const;
  bool operator!=(const Shape& other) const { return !(*this == other); }

 private:
  std::array<int32_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// real = scale * (stored - zero_point); no scale means that the numbers stand for themselves.
struct Quantization {
  std::vector<float> scales;         // one, or one per slice along `axis`
  std::vector<int32_t> zero_points;  // as many as scales
  int axis = 0;

  bool quantized() const { return !scales.empty(); }
  bool per_channel() const { return scales.size() > 1; }
  float scale() const { return scales.empty() ? 0.0f : scales[0]; }
  int32_t zero_point() const { return zero_points.empty() ? 0 : zero_points[0]; }
};

}  // namespace litefuse
