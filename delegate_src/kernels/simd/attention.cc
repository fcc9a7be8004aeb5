#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/attention.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again.
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "kernels/simd/attention.h"
#include "kernels/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {
namespace {

using D = hn::CappedTag<float, kLanes>;
using V = hn::Vec<D>;
constexpr auto kStep = static_cast<ptrdiff_t>(kLanes);
constexpr float kLowest = std::numeric_limits<float>::lowest();

// Fewer floats than a vector, with others of `fill` behind them.
HWY_INLINE V load_part(const float* from, ptrdiff_t count, V fill) {
  const D d;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && HWY_TARGET != HWY_SCALAR
  const auto mask = hn::FirstN(d, static_cast<size_t>(count));
  return hn::IfThenElse(mask, hn::MaskedLoad(mask, d, from), fill);
#else
  HWY_ALIGN float buffer[kLanes];
  hn::Store(fill, d, buffer);
  for (ptrdiff_t i = 0; i < count; ++i) buffer[i] = from[i];
  return hn::Load(d, buffer);
#endif
}

// e^(beta x) for x <= 0 or NaN, as a power of two: beta log2(e), in two parts whose product with x is rounded once, and
// 2^r of |r| <= 1/2 by a polynomial.
struct Power {
  explicit Power(float beta) {
    const double whole = static_cast<double>(beta) * 1.4426950408889634;
    const auto main = static_cast<float>(whole);
    factor = hn::Set(D(), main);
    rest = hn::Set(D(), static_cast<float>(whole - static_cast<double>(main)));
    // Where the result is no normal number any more, the exponent is that of zero.
    lowest = hn::Set(D(), static_cast<float>(-127.0 / whole));
  }

  HWY_INLINE V operator()(V x) const {
    const D d;
    // 1.5 2^23 + 127: what is added to it is rounded to an integer, and that is in the low bits, as the exponent of a
    // float is if they are shifted.
    const V magic = hn::Set(d, 12583039.0f);
    x = max_or_nan(x, lowest);
    const V exponent = hn::MulAdd(x, factor, magic);
    const V r = hn::MulAdd(x, rest, hn::MulSub(x, factor, hn::Sub(exponent, magic)));
    // The coefficients of e^x in math-inl.h (a minimax fit of our own for |x| <= 0.3468, relative error 9.2e-8), times
    // powers of ln 2.
    V p = hn::MulAdd(r, hn::Set(d, 1.32627354e-3f), hn::Set(d, 9.67156529e-3f));
    p = hn::MulAdd(p, r, hn::Set(d, 5.55074004e-2f));
    p = hn::MulAdd(p, r, hn::Set(d, 2.40222412e-1f));
    p = hn::MulAdd(p, r, hn::Set(d, 6.93146974e-1f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
    const hn::RebindToSigned<D> di;
    return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, exponent))));
  }

  V factor, rest, lowest;
};

// The largest element of a row, after mask and scale, which then are in y.
template <bool kMasked>
HWY_INLINE float largest(const ScoreRows& s, const float* x, const float* mask, float* y) {
  const D d;
  const V scale = hn::Set(d, s.scale), lowest = hn::Set(d, kLowest);
  const ptrdiff_t channels = s.channels;
  V best[4] = {lowest, lowest, lowest, lowest};
  const auto element = [&](ptrdiff_t c) {
    const V v = hn::LoadU(d, x + c);
    if constexpr (!kMasked) return v;
    const V z = hn::MulAdd(v, scale, hn::LoadU(d, mask + c));
    hn::StoreU(z, d, y + c);
    return z;
  };
  ptrdiff_t c = 0;
  for (; c + 4 * kStep <= channels; c += 4 * kStep) {
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) best[i] = hn::Max(element(c + i * kStep), best[i]);
  }
  for (; c + kStep <= channels; c += kStep) best[0] = hn::Max(element(c), best[0]);
  if (c < channels) {
    V z = load_part(x + c, channels - c, lowest);
    if constexpr (kMasked) {
      z = hn::MulAdd(z, scale, load_part(mask + c, channels - c, lowest));
      store_part(z, d, channels - c, y + c);
      z = hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(channels - c)), z, lowest);
    }
    best[1] = hn::Max(z, best[1]);
  }
  const V all = hn::Max(hn::Max(best[0], best[1]), hn::Max(best[2], best[3]));
  return hn::GetLane(hn::MaxOfLanes(d, all));
}

// y = e^(beta (z - max)); the sums of its lanes.
HWY_INLINE V weigh(const Power& power, const float* z, ptrdiff_t channels, float largest, float* y) {
  const D d;
  const V max = hn::Set(d, largest);
  V sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  ptrdiff_t c = 0;
  for (; c + 4 * kStep <= channels; c += 4 * kStep) {
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      const V e = power(hn::Sub(hn::LoadU(d, z + c + i * kStep), max));
      hn::StoreU(e, d, y + c + i * kStep);
      sums[i] = hn::Add(sums[i], e);
    }
  }
  for (; c + kStep <= channels; c += kStep) {
    const V e = power(hn::Sub(hn::LoadU(d, z + c), max));
    hn::StoreU(e, d, y + c);
    sums[0] = hn::Add(sums[0], e);
  }
  if (c < channels) {
    const ptrdiff_t count = channels - c;
    const V e = power(hn::Sub(load_part(z + c, count, max), max));
    store_part(e, d, count, y + c);
    sums[1] = hn::Add(sums[1], hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(count)), e));
  }
  return hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
}

// Four rows step by step, so that what joins the lanes of one overlaps with the next.
template <bool kMasked, int kRows>
HWY_INLINE void weigh_rows(const ScoreRows& s, const Power& power, int32_t row) {
  const D d;
  const float* const x = s.x + row * s.x_stride;
  const float* const mask = kMasked ? s.mask + row * s.mask_stride : nullptr;
  float* const y = s.y + row * s.y_stride;
  const float* const z = kMasked ? y : x;
  const ptrdiff_t z_stride = kMasked ? s.y_stride : s.x_stride;
  float max[kRows];
  for (int i = 0; i < kRows; ++i) {
    max[i] = largest<kMasked>(s, x + i * s.x_stride, kMasked ? mask + i * s.mask_stride : nullptr, y + i * s.y_stride);
  }
  HWY_ALIGN float sums[kRows * kLanes];
  for (int i = 0; i < kRows; ++i) {
    hn::Store(weigh(power, z + i * z_stride, s.channels, max[i], y + i * s.y_stride), d, sums + i * kStep);
  }
  for (int i = 0; i < kRows; ++i) {
    s.factors[row + i] = 1.0f / hn::GetLane(hn::SumOfLanes(d, hn::Load(d, sums + i * kStep)));
  }
}

template <bool kMasked>
HWY_INLINE void weigh_all(const ScoreRows& s, const Power& power) {
  int32_t row = 0;
  for (; row + 4 <= s.rows; row += 4) weigh_rows<kMasked, 4>(s, power, row);
  for (; row < s.rows; ++row) weigh_rows<kMasked, 1>(s, power, row);
}

void weights(const ScoreRows& s) {
  const bool masked = s.mask != nullptr;
  const Power power(masked ? s.beta : s.beta * s.scale);
  if (masked) {
    weigh_all<true>(s, power);
  } else {
    weigh_all<false>(s, power);
  }
}

void scale(float* const* rows, int32_t count, ptrdiff_t first, int32_t channels, const float* factors) {
  const D d;
  for (int32_t row = 0; row < count; ++row) {
    float* const y = rows[row] + first;
    const V factor = hn::Set(d, factors[row]);
    ptrdiff_t c = 0;
    for (; c + kStep <= channels; c += kStep) hn::StoreU(hn::Mul(hn::LoadU(d, y + c), factor), d, y + c);
    if (c < channels) store_part(hn::Mul(load_part(y + c, channels - c, factor), factor), d, channels - c, y + c);
  }
}

}  // namespace

const AttentionKernels* attention_table() {
  static constexpr AttentionKernels kTable = {weights, scale};
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

namespace litefuse {

HWY_EXPORT(attention_table);

const AttentionKernels& attention_kernels() { return *HWY_DYNAMIC_DISPATCH(attention_table)(); }

namespace {

void reference_weights(const ScoreRows& s) {
  for (int32_t row = 0; row < s.rows; ++row) {
    const float* x = s.x + row * s.x_stride;
    float* y = s.y + row * s.y_stride;
    const auto z = [&](int32_t c) {
      const double product = static_cast<double>(x[c]) * static_cast<double>(s.scale);
      return s.mask == nullptr ? product
                               : static_cast<double>(static_cast<float>(
                                     product + static_cast<double>(s.mask[row * s.mask_stride + c])));
    };
    double max = std::numeric_limits<float>::lowest(), sum = 0;
    for (int32_t c = 0; c < s.channels; ++c) max = std::max(max, z(c));
    for (int32_t c = 0; c < s.channels; ++c) {
      const double e = std::exp(static_cast<double>(s.beta) * (z(c) - max));
      sum += e;
      y[c] = static_cast<float>(e);
    }
    s.factors[row] = static_cast<float>(1.0 / sum);
  }
}

void reference_scale(float* const* rows, int32_t count, ptrdiff_t first, int32_t channels, const float* factors) {
  for (int32_t row = 0; row < count; ++row) {
    for (int32_t c = 0; c < channels; ++c) rows[row][first + c] *= factors[row];
  }
}

}  // namespace

const AttentionKernels& attention_reference() {
  static constexpr AttentionKernels kTable = {reference_weights, reference_scale};
  return kTable;
}

}  // namespace litefuse
#endif  // HWY_ONCE
