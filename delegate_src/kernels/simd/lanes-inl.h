// What kernels that work on the channels of a pixel have in common, for one instruction set.
#if defined(LITEFUSE_KERNELS_SIMD_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LITEFUSE_KERNELS_SIMD_LANES_INL_H_
#undef LITEFUSE_KERNELS_SIMD_LANES_INL_H_
#else
#define LITEFUSE_KERNELS_SIMD_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());

// Calls f(tag) with the widest tag that has no more lanes than there are channels. The channels are then covered by
// whole vectors, of which the last one ends at the last channel and may overlap the one before it: nothing has to be
// masked, and what the overlap computes twice is the same twice.
template <typename F>
HWY_INLINE void with_lanes(int32_t channels, const F& f) {
  if constexpr (kLanes >= 16) {
    if (channels >= 16) return f(hn::CappedTag<float, 16>());
  }
  if constexpr (kLanes >= 8) {
    if (channels >= 8) return f(hn::CappedTag<float, 8>());
  }
  if constexpr (kLanes >= 4) {
    if (channels >= 4) return f(hn::CappedTag<float, 4>());
  }
  if constexpr (kLanes >= 2) {
    if (channels >= 2) return f(hn::CappedTag<float, 2>());
  }
  return f(hn::CappedTag<float, 1>());
}

// Max and min that give x if it is NaN, and NaN or x if `other` is. x86's give their second operand if any is NaN. NEON
// has instructions that give NaN if any is; Highway's Max is another one, which gives the operand that is a number, as
// its emulation does.
#if HWY_ARCH_ARM_A64 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_INLINE float32x4_t raw_max(float32x4_t a, float32x4_t b) { return vmaxq_f32(a, b); }
HWY_INLINE float32x2_t raw_max(float32x2_t a, float32x2_t b) { return vmax_f32(a, b); }
HWY_INLINE float32x4_t raw_min(float32x4_t a, float32x4_t b) { return vminq_f32(a, b); }
HWY_INLINE float32x2_t raw_min(float32x2_t a, float32x2_t b) { return vmin_f32(a, b); }
#endif

template <class V>
HWY_INLINE V max_or_nan(V x, V other) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || !(HWY_ARCH_X86 || HWY_ARCH_ARM_A64)
  return hn::IfThenElse(hn::Lt(x, other), other, x);
#elif HWY_ARCH_ARM_A64
  return V(raw_max(other.raw, x.raw));
#else
  return hn::Max(other, x);
#endif
}

template <class V>
HWY_INLINE V min_or_nan(V x, V other) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || !(HWY_ARCH_X86 || HWY_ARCH_ARM_A64)
  return hn::IfThenElse(hn::Gt(x, other), other, x);
#elif HWY_ARCH_ARM_A64
  return V(raw_min(other.raw, x.raw));
#else
  return hn::Min(other, x);
#endif
}

// NaN stays NaN.
template <class V>
HWY_INLINE V clamp(V x, V min, V max) {
  return min_or_nan(max_or_nan(x, min), max);
}

// Stores the first `count` lanes, less than all, by halves.
template <class D>
HWY_INLINE void store_part(hn::Vec<D> x, D d, ptrdiff_t count, float* to) {
#if HWY_TARGET != HWY_SCALAR  // where a part of one lane is nothing
  constexpr auto kHalf = static_cast<ptrdiff_t>(hn::MaxLanes(D())) / 2;
  if constexpr (kHalf > 0) {
    const hn::Half<D> half;
    if (count >= kHalf) {
      hn::StoreU(hn::LowerHalf(half, x), half, to);
      store_part(hn::UpperHalf(half, x), half, count - kHalf, to + kHalf);
    } else {
      store_part(hn::LowerHalf(half, x), half, count, to);
    }
  }
#endif
  (void)x, (void)d, (void)count, (void)to;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#endif  // LITEFUSE_KERNELS_SIMD_LANES_INL_H_
