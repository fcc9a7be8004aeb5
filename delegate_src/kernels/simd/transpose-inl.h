// How matrices of floats are turned, for one instruction set.
#if defined(LITEFUSE_KERNELS_SIMD_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LITEFUSE_KERNELS_SIMD_TRANSPOSE_INL_H_
#undef LITEFUSE_KERNELS_SIMD_TRANSPOSE_INL_H_
#else
#define LITEFUSE_KERNELS_SIMD_TRANSPOSE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR  // which has no blocks of four

// Four columns of as many rows as a vector has lanes: a vector holds four elements of every fourth row, beginning with
// `from`'s.
template <class D>
HWY_INLINE hn::Vec<D> load_quads(D d, const float* from, ptrdiff_t stride) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    (void)stride;
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    constexpr ptrdiff_t kRows = static_cast<ptrdiff_t>(hn::MaxLanes(D())) / 2;
    return hn::Combine(d, load_quads(half, from + kRows * stride, stride), load_quads(half, from, stride));
  }
}

// Turns as many rows as a vector has lanes, at least four.
template <class D>
HWY_INLINE void turn_rows(D d, const float* from, int64_t columns, ptrdiff_t from_stride, float* to,
                          ptrdiff_t to_stride) {
  int64_t c = 0;
  for (; c + 4 <= columns; c += 4, from += 4, to += 4 * to_stride) {
    const auto r0 = load_quads(d, from, from_stride);
    const auto r1 = load_quads(d, from + from_stride, from_stride);
    const auto r2 = load_quads(d, from + 2 * from_stride, from_stride);
    const auto r3 = load_quads(d, from + 3 * from_stride, from_stride);
    const auto even_low = hn::InterleaveLower(d, r0, r2), even_high = hn::InterleaveUpper(d, r0, r2);
    const auto odd_low = hn::InterleaveLower(d, r1, r3), odd_high = hn::InterleaveUpper(d, r1, r3);
    hn::StoreU(hn::InterleaveLower(d, even_low, odd_low), d, to);
    hn::StoreU(hn::InterleaveUpper(d, even_low, odd_low), d, to + to_stride);
    hn::StoreU(hn::InterleaveLower(d, even_high, odd_high), d, to + 2 * to_stride);
    hn::StoreU(hn::InterleaveUpper(d, even_high, odd_high), d, to + 3 * to_stride);
  }
  constexpr auto kRows = static_cast<int64_t>(hn::MaxLanes(D()));
  for (; c < columns; ++c, ++from, to += to_stride) {
    for (int64_t r = 0; r < kRows; ++r) std::memcpy(to + r, from + r * from_stride, sizeof(float));
  }
}

#endif

// to[c * to_stride + r] = from[r * from_stride + c]. The compiler may not take elements for floats anywhere: they could
// be anything else.
HWY_INLINE void turn(const float* from, int64_t rows, int64_t columns, ptrdiff_t from_stride, float* to,
                     ptrdiff_t to_stride) {
  int64_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr auto kRows = static_cast<int64_t>(kLanes);
  for (; r + kRows <= rows; r += kRows, from += kRows * from_stride) {
    turn_rows(hn::CappedTag<float, kLanes>(), from, columns, from_stride, to + r, to_stride);
  }
  for (; kRows > 4 && r + 4 <= rows; r += 4, from += 4 * from_stride) {
    turn_rows(hn::CappedTag<float, 4>(), from, columns, from_stride, to + r, to_stride);
  }
#endif
  for (; r < rows; ++r, from += from_stride) {
    for (int64_t c = 0; c < columns; ++c) std::memcpy(to + c * to_stride + r, from + c, sizeof(float));
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#endif  // LITEFUSE_KERNELS_SIMD_TRANSPOSE_INL_H_
