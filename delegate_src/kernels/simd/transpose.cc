#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/transpose.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "kernels/simd/transpose-inl.h"
#include "kernels/simd/transpose.h"

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {
namespace {

// The longest part of a row, and the most rows, that are turned together: both fill a line of the cache.
constexpr int64_t kTile = 16;

#if HWY_TARGET != HWY_SCALAR

// Two or three planes, `plane` elements apart, and the same elements side by side: what turns the channels of images.
template <int kCount>
void join(const float* from, int64_t length, ptrdiff_t plane, float* to) {
  const hn::CappedTag<float, kLanes> d;
  constexpr auto kStep = static_cast<int64_t>(kLanes);
  int64_t i = 0;
  for (; i + kStep <= length; i += kStep) {
    const auto x = hn::LoadU(d, from + i), y = hn::LoadU(d, from + plane + i);
    if constexpr (kCount == 2) {
      hn::StoreInterleaved2(x, y, d, to + 2 * i);
    } else {
      hn::StoreInterleaved3(x, y, hn::LoadU(d, from + 2 * plane + i), d, to + 3 * i);
    }
  }
  turn(from + i, kCount, length - i, plane, to + kCount * i, kCount);
}

template <int kCount>
void part(const float* from, int64_t length, float* to, ptrdiff_t plane) {
  const hn::CappedTag<float, kLanes> d;
  constexpr auto kStep = static_cast<int64_t>(kLanes);
  int64_t i = 0;
  for (; i + kStep <= length; i += kStep) {
    auto x = hn::Zero(d), y = x, z = x;
    if constexpr (kCount == 2) {
      hn::LoadInterleaved2(d, from + 2 * i, x, y);
    } else {
      hn::LoadInterleaved3(d, from + 3 * i, x, y, z);
      hn::StoreU(z, d, to + 2 * plane + i);
    }
    hn::StoreU(x, d, to + i);
    hn::StoreU(y, d, to + plane + i);
  }
  turn(from + kCount * i, length - i, kCount, kCount, to + i, plane);
}

#endif

void transpose(const float* from, int64_t rows, int64_t columns, ptrdiff_t from_stride, float* to,
               ptrdiff_t to_stride) {
#if HWY_TARGET != HWY_SCALAR
  if (rows == 2 && to_stride == 2) return join<2>(from, columns, from_stride, to);
  if (rows == 3 && to_stride == 3) return join<3>(from, columns, from_stride, to);
  if (columns == 2 && from_stride == 2) return part<2>(from, rows, to, to_stride);
  if (columns == 3 && from_stride == 3) return part<3>(from, rows, to, to_stride);
#endif
  for (int64_t c = 0; c < columns; c += kTile) {
    const int64_t width = std::min(kTile, columns - c);
    for (int64_t r = 0; r < rows; r += kTile) {
      turn(from + r * from_stride + c, std::min(kTile, rows - r), width, from_stride, to + c * to_stride + r,
           to_stride);
    }
  }
}

}  // namespace

const TransposeKernels* transpose_table() {
  static constexpr TransposeKernels kTable = {transpose};
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace litefuse {

HWY_EXPORT(transpose_table);

const TransposeKernels& transpose_kernels() { return *HWY_DYNAMIC_DISPATCH(transpose_table)(); }

namespace {

// Elements go as the numbers that their bits are: assigning floats may change those of a NaN.
void reference_transpose(const float* from, int64_t rows, int64_t columns, ptrdiff_t from_stride, float* to,
                         ptrdiff_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) std::memcpy(to + c * to_stride + r, from + r * from_stride + c, sizeof(*to));
  }
}

}  // namespace

const TransposeKernels& transpose_reference() {
  static constexpr TransposeKernels kTable = {reference_transpose};
  return kTable;
}

}  // namespace litefuse
#endif  // HWY_ONCE
