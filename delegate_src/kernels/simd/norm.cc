// Normalisations, softmax and reductions.
//
// How the elements of a row are added up, in all functions of rows, with L lanes: element c goes to partial sum c % 2L,
// each in the order of the elements. The sums l and L + l are added, then those of the upper and the lower half of the
// vector until four are left, which are added as (0 + 1) + (2 + 3). Rows are taken four at a time where there are that
// many, so that their sums run side by side and what is done once for a row is done for four in one vector; each has
// the same sum as if it were alone.
#include "kernels/simd/norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/simd/math-inl.h"

#ifndef LITEFUSE_KERNELS_SIMD_NORM_ONCE
#define LITEFUSE_KERNELS_SIMD_NORM_ONCE
namespace litefuse {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// TFLite's REDUCE_MAX and REDUCE_MIN go on with the new element unless the old one beats it: what comes after a NaN
// replaces it.
struct MaxRule {
  static constexpr float kWorst = -kInfinity;
  static constexpr float kNothing = kLowest;
  static float next(float old, float x) { return old > x ? old : x; }
};
struct MinRule {
  static constexpr float kWorst = kInfinity;
  static constexpr float kNothing = std::numeric_limits<float>::max();
  static float next(float old, float x) { return old < x ? old : x; }
};

// The largest or smallest of `count` elements that are `step` floats apart.
template <class Rule>
float extreme(const float* x, ptrdiff_t count, ptrdiff_t step) {
  if (count <= 0) return Rule::kNothing;
  float result = x[0];
  for (ptrdiff_t i = 1; i < count; ++i) result = Rule::next(result, x[i * step]);
  return result;
}

// Whether x can be multiplied by 1 / divisor instead of being divided: the reciprocal is a normal number.
bool has_normal_reciprocal(float divisor) {
  return divisor >= 2 * std::numeric_limits<float>::min() && divisor <= 0x1p126f;
}

}  // namespace
}  // namespace litefuse
#endif  // LITEFUSE_KERNELS_SIMD_NORM_ONCE

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Full = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Full>;
using FullMask = hn::Mask<Full>;
constexpr size_t kWidth = hn::MaxLanes(Full());
constexpr ptrdiff_t kStep = static_cast<ptrdiff_t>(kWidth);
// Holds a number of each of four rows.
using Four = hn::CappedTag<float, 4>;
constexpr size_t kFourWidth = hn::MaxLanes(Four());

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && HWY_TARGET != HWY_SCALAR
constexpr bool kLoadsMasked = true;
#else
constexpr bool kLoadsMasked = false;
#endif
// AVX2 has masked stores too, but those of Zen 3 take 12 cycles.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3 && HWY_TARGET != HWY_SCALAR
constexpr bool kStoresMasked = true;
#else
constexpr bool kStoresMasked = false;
#endif

// The first `count` floats (fewer than a vector) and zeros.
template <class D>
HWY_INLINE hn::Vec<D> load_first(D d, const float* p, size_t count) {
  (void)p;
  (void)count;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1) {
    constexpr size_t kHalf = hn::MaxLanes(D()) / 2;
    const hn::Half<D> half;
    if ((count & kHalf) == 0) return hn::Combine(d, hn::Zero(half), load_first(half, p, count));
    return hn::Combine(d, load_first(half, p + kHalf, count - kHalf), hn::LoadU(half, p));
  }
#endif
  return hn::Zero(d);
}

template <class D>
HWY_INLINE void store_first(hn::Vec<D> v, D, float* p, size_t count) {
  (void)v;
  (void)p;
  (void)count;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1) {
    constexpr size_t kHalf = hn::MaxLanes(D()) / 2;
    const hn::Half<D> half;
    if ((count & kHalf) == 0) return store_first(hn::LowerHalf(half, v), half, p, count);
    hn::StoreU(hn::LowerHalf(half, v), half, p);
    store_first(hn::UpperHalf(half, v), half, p + kHalf, count - kHalf);
  }
#endif
}

// What is left of a row behind its whole vectors.
struct Tail {
  HWY_INLINE explicit Tail(ptrdiff_t channels)
      : count(static_cast<size_t>(channels % kStep)), mask(hn::FirstN(Full(), count)) {}
  HWY_INLINE Vector load(const float* p) const {
    if constexpr (kLoadsMasked) return hn::MaskedLoad(mask, Full(), p);
    return load_first(Full(), p, count);
  }
  HWY_INLINE void store(Vector v, float* p) const {
    if constexpr (kStoresMasked) return hn::BlendedStore(v, mask, Full(), p);
    store_first(v, Full(), p, count);
  }
  size_t count;
  FullMask mask;
};

struct Plus {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct Larger {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};
struct Smaller {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Min(a, b);
  }
};

#if HWY_TARGET != HWY_SCALAR
// Joins the halves until four lanes are left.
template <class D, class Join>
HWY_INLINE auto fold(D d, hn::Vec<D> v, Join join) {
  (void)d;
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return fold(half, join(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), join);
  } else {
    return v;
  }
}

template <class Join>
HWY_INLINE hn::Vec<Four> join_pairs(hn::Vec<Four> a, hn::Vec<Four> b, Join join) {
  return join(hn::ConcatEven(Four(), b, a), hn::ConcatOdd(Four(), b, a));
}
#endif

// result[r] = all lanes of v[r] joined, for R of four rows.
template <int R, class Join>
HWY_INLINE void join_lanes(const Vector* v, float* result, Join join) {
#if HWY_TARGET == HWY_SCALAR
  (void)join;
  for (int r = 0; r < R; ++r) result[r] = hn::GetLane(v[r]);
#else
  static_assert(kFourWidth == 4 && (R == 1 || R == 4), "");
  const auto a = fold(Full(), v[0], join);
  if constexpr (R == 1) {
    const auto pairs = join_pairs(a, a, join);
    hn::Store(join_pairs(pairs, pairs, join), Four(), result);
  } else {
    const auto b = fold(Full(), v[R - 3], join), c = fold(Full(), v[R - 2], join), e = fold(Full(), v[R - 1], join);
    hn::Store(join_pairs(join_pairs(a, b, join), join_pairs(c, e, join), join), Four(), result);
  }
#endif
}

// Goes over R rows with two accumulators each. Step(accumulator, elements, row) takes a vector, Step.part(accumulator,
// elements, mask, row) the last elements of a row, with zeros behind them.
template <int R, class Step, class Join>
HWY_INLINE void over_rows_inline(const float* x, ptrdiff_t stride, ptrdiff_t channels, const Tail& tail, Vector start,
                                 float* result, Step& step, Join join) {
  const Full d;
  Vector a[R], b[R];
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) a[r] = b[r] = start;
  ptrdiff_t c = 0;
  for (; c + 2 * kStep <= channels; c += 2 * kStep) {
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      a[r] = step(a[r], hn::LoadU(d, x + r * stride + c), r);
      b[r] = step(b[r], hn::LoadU(d, x + r * stride + c + kStep), r);
    }
  }
  if (c + kStep <= channels) {
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) a[r] = step(a[r], hn::LoadU(d, x + r * stride + c), r);
    c += kStep;
    if (tail.count > 0) {
      HWY_UNROLL(8)
      for (int r = 0; r < R; ++r) b[r] = step.part(b[r], tail.load(x + r * stride + c), tail.mask, r);
    }
  } else if (tail.count > 0) {
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) a[r] = step.part(a[r], tail.load(x + r * stride + c), tail.mask, r);
  }
  HWY_UNROLL(8)
  for (int r = 0; r < R; ++r) a[r] = join(a[r], b[r]);
  join_lanes<R>(a, result, join);
}

// The same as a function of its own, which is shared by those that need it.
template <int R, class Step, class Join>
HWY_NOINLINE void over_rows(const float* x, ptrdiff_t stride, ptrdiff_t channels, const Tail& tail, float start,
                            float* result, const Step& step, Join join) {
  const Step copy = step;
  over_rows_inline<R>(x, stride, channels, tail, hn::Set(Full(), start), result, copy, join);
}

// y = map(x, c, row) for R rows, where map.at(c) or map.at_tail(c, tail) has come before it once for all rows.
template <int R, class Map>
HWY_INLINE void map_rows(const float* x, ptrdiff_t x_stride, ptrdiff_t channels, const Tail& tail, float* y,
                         ptrdiff_t y_stride, Map map) {
  const Full d;
  ptrdiff_t c = 0;
  for (; c + kStep <= channels; c += kStep) {
    map.at(c);
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) hn::StoreU(map(hn::LoadU(d, x + r * x_stride + c), r), d, y + r * y_stride + c);
  }
  if (tail.count > 0) {
    map.at_tail(c, tail);
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) tail.store(map(tail.load(x + r * x_stride + c), r), y + r * y_stride + c);
  }
}

// Calls f.rows<4> and then f.rows<1> for what is left.
template <class F>
HWY_INLINE void by_four(int32_t rows, const F& f) {
  int32_t row = 0;
  for (; row + 4 <= rows; row += 4) f.template run<4>(row);
  for (; row < rows; ++row) f.template run<1>(row);
}

// A number for each of four rows. Lanes of rows that are not there are numbers too.
struct alignas(16) Numbers4 {
  float at[4] = {1.0f, 1.0f, 1.0f, 1.0f};
};

// Applies f(vector) to the four numbers.
template <class F>
HWY_INLINE void each_of_four(Numbers4& numbers, const F& f) {
  for (size_t i = 0; i < 4; i += kFourWidth) hn::Store(f(hn::Load(Four(), numbers.at + i)), Four(), numbers.at + i);
}

struct SumStep {
  HWY_INLINE Vector operator()(Vector sum, Vector x, int) const { return hn::Add(sum, x); }
  HWY_INLINE Vector part(Vector sum, Vector x, FullMask, int) const { return hn::Add(sum, x); }
};

struct SquareStep {
  HWY_INLINE Vector operator()(Vector sum, Vector x, int) const { return hn::MulAdd(x, x, sum); }
  HWY_INLINE Vector part(Vector sum, Vector x, FullMask, int) const { return hn::MulAdd(x, x, sum); }
};

template <int R>
struct DeviationStep {
  HWY_INLINE explicit DeviationStep(const Numbers4& means) {
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) mean[r] = hn::Set(Full(), means.at[r]);
  }
  HWY_INLINE Vector operator()(Vector sum, Vector x, int r) const {
    const Vector difference = hn::Sub(x, mean[r]);
    return hn::MulAdd(difference, difference, sum);
  }
  HWY_INLINE Vector part(Vector sum, Vector x, FullMask mask, int r) const {
    const Vector difference = hn::IfThenElseZero(mask, hn::Sub(x, mean[r]));
    return hn::MulAdd(difference, difference, sum);
  }
  Vector mean[R];
};

// (x - mean) factor gamma + beta
template <int R>
struct LayerNormMap {
  HWY_INLINE LayerNormMap(const Numbers4& means, const Numbers4& factors, const float* gammas, const float* betas)
      : gamma(gammas), beta(betas) {
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      mean[r] = hn::Set(Full(), means.at[r]);
      factor[r] = hn::Set(Full(), factors.at[r]);
    }
    g = hn::Set(Full(), 1.0f);
    b = hn::Zero(Full());
  }
  HWY_INLINE void at(ptrdiff_t c) {
    if (gamma != nullptr) g = hn::LoadU(Full(), gamma + c);
    if (beta != nullptr) b = hn::LoadU(Full(), beta + c);
  }
  HWY_INLINE void at_tail(ptrdiff_t c, const Tail& tail) {
    if (gamma != nullptr) g = tail.load(gamma + c);
    if (beta != nullptr) b = tail.load(beta + c);
  }
  HWY_INLINE Vector operator()(Vector x, int r) const {
    return hn::MulAdd(hn::Mul(hn::Sub(x, mean[r]), factor[r]), g, b);
  }
  Vector mean[R], factor[R], g, b;
  const float *gamma, *beta;
};

// x factor, times gamma if there is one
template <int R, bool kGamma>
struct ScaleMap {
  HWY_INLINE ScaleMap(const Numbers4& factors, const float* gammas) : gamma(gammas) {
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) factor[r] = hn::Set(Full(), factors.at[r]);
    g = hn::Set(Full(), 1.0f);
  }
  HWY_INLINE void at(ptrdiff_t c) {
    if constexpr (kGamma) g = hn::LoadU(Full(), gamma + c);
  }
  HWY_INLINE void at_tail(ptrdiff_t c, const Tail& tail) {
    if constexpr (kGamma) g = tail.load(gamma + c);
  }
  HWY_INLINE Vector operator()(Vector x, int r) const {
    const Vector scaled = hn::Mul(x, factor[r]);
    return kGamma ? hn::Mul(scaled, g) : scaled;
  }
  Vector factor[R], g;
  const float* gamma;
};

struct DivideMap {
  HWY_INLINE explicit DivideMap(float by) : divisor(hn::Set(Full(), by)) {}
  HWY_INLINE void at(ptrdiff_t) {}
  HWY_INLINE void at_tail(ptrdiff_t, const Tail&) {}
  HWY_INLINE Vector operator()(Vector x, int) const { return hn::Div(x, divisor); }
  Vector divisor;
};

// x - max - log_sum
template <int R>
struct LogMap {
  HWY_INLINE LogMap(const Numbers4& maxima, const Numbers4& logs) {
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      max[r] = hn::Set(Full(), maxima.at[r]);
      log[r] = hn::Set(Full(), logs.at[r]);
    }
  }
  HWY_INLINE void at(ptrdiff_t) {}
  HWY_INLINE void at_tail(ptrdiff_t, const Tail&) {}
  HWY_INLINE Vector operator()(Vector x, int r) const { return hn::Sub(hn::Sub(x, max[r]), log[r]); }
  Vector max[R], log[R];
};

// 1 / sqrt(sum / channels + epsilon)
struct InverseRoot {
  HWY_INLINE InverseRoot(ptrdiff_t channels, float epsilon_)
      : share(hn::Set(Four(), 1.0f / static_cast<float>(channels))), epsilon(hn::Set(Four(), epsilon_)) {}
  HWY_INLINE hn::Vec<Four> operator()(hn::Vec<Four> sum) const {
    return hn::Div(hn::Set(Four(), 1.0f), hn::Sqrt(hn::MulAdd(sum, share, epsilon)));
  }
  hn::Vec<Four> share, epsilon;
};

struct Mean {
  HWY_INLINE explicit Mean(ptrdiff_t channels) : share(hn::Set(Four(), 1.0f / static_cast<float>(channels))) {}
  HWY_INLINE hn::Vec<Four> operator()(hn::Vec<Four> sum) const { return hn::Mul(sum, share); }
  hn::Vec<Four> share;
};

struct Reciprocal {
  HWY_INLINE hn::Vec<Four> operator()(hn::Vec<Four> x) const { return hn::Div(hn::Set(Four(), 1.0f), x); }
};

struct Logarithm {
  HWY_INLINE hn::Vec<Four> operator()(hn::Vec<Four> x) const { return vec_log(Four(), x); }
};

// max(sqrt(sum), epsilon); NaN stays.
struct Length {
  HWY_INLINE explicit Length(float epsilon_) : epsilon(hn::Set(Four(), epsilon_)) {}
  HWY_INLINE hn::Vec<Four> operator()(hn::Vec<Four> sum) const {
    const auto root = hn::Sqrt(sum);
    return hn::IfThenElse(hn::Lt(root, epsilon), epsilon, root);
  }
  hn::Vec<Four> epsilon;
};

struct LayerNorm {
  template <int R>
  HWY_INLINE void run(int32_t row) const {
    const float* from = x + row * x_stride;
    Numbers4 means, factors;
    over_rows<R>(from, x_stride, channels, tail, 0.0f, means.at, SumStep(), Plus());
    each_of_four(means, Mean(channels));
    over_rows<R>(from, x_stride, channels, tail, 0.0f, factors.at, DeviationStep<R>(means), Plus());
    each_of_four(factors, InverseRoot(channels, epsilon));
    map_rows<R>(from, x_stride, channels, tail, y + row * y_stride, y_stride,
                LayerNormMap<R>(means, factors, gamma, beta));
  }
  const float* x;
  ptrdiff_t x_stride, channels;
  const float *gamma, *beta;
  float epsilon;
  float* y;
  ptrdiff_t y_stride;
  Tail tail;
};

void layer_norm(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, const float* gamma,
                const float* beta, float epsilon, float* y, ptrdiff_t y_stride) {
  by_four(rows, LayerNorm{x, x_stride, channels, gamma, beta, epsilon, y, y_stride, Tail(channels)});
}

struct RmsNorm {
  template <int R>
  HWY_INLINE void run(int32_t row) const {
    const float* from = x + row * x_stride;
    float* to = y + row * y_stride;
    Numbers4 factors;
    over_rows<R>(from, x_stride, channels, tail, 0.0f, factors.at, SquareStep(), Plus());
    each_of_four(factors, InverseRoot(channels, epsilon));
    if (gamma != nullptr)
      map_rows<R>(from, x_stride, channels, tail, to, y_stride, ScaleMap<R, true>(factors, gamma));
    else
      map_rows<R>(from, x_stride, channels, tail, to, y_stride, ScaleMap<R, false>(factors, nullptr));
  }
  const float* x;
  ptrdiff_t x_stride, channels;
  const float* gamma;
  float epsilon;
  float* y;
  ptrdiff_t y_stride;
  Tail tail;
};

void rms_norm(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, const float* gamma, float epsilon,
              float* y, ptrdiff_t y_stride) {
  by_four(rows, RmsNorm{x, x_stride, channels, gamma, epsilon, y, y_stride, Tail(channels)});
}

// y = x / divisor for R rows, each by its reciprocal where that is exact enough.
template <int R>
HWY_INLINE void divide_rows(const float* x, ptrdiff_t x_stride, ptrdiff_t channels, const Tail& tail, float* y,
                            ptrdiff_t y_stride, Numbers4& divisors) {
  bool normal = true;
  for (int r = 0; r < R; ++r) normal = normal && has_normal_reciprocal(divisors.at[r]);
  if (HWY_LIKELY(normal)) {
    each_of_four(divisors, Reciprocal());
    map_rows<R>(x, x_stride, channels, tail, y, y_stride, ScaleMap<R, false>(divisors, nullptr));
    return;
  }
  for (int r = 0; r < R; ++r) {
    const float divisor = divisors.at[r];
    if (has_normal_reciprocal(divisor)) {
      Numbers4 factor;
      factor.at[0] = 1.0f / divisor;
      map_rows<1>(x + r * x_stride, 0, channels, tail, y + r * y_stride, 0, ScaleMap<1, false>(factor, nullptr));
    } else {
      map_rows<1>(x + r * x_stride, 0, channels, tail, y + r * y_stride, 0, DivideMap(divisor));
    }
  }
}

struct L2Norm {
  template <int R>
  HWY_INLINE void run(int32_t row) const {
    const float* from = x + row * x_stride;
    Numbers4 lengths;
    over_rows<R>(from, x_stride, channels, tail, 0.0f, lengths.at, SquareStep(), Plus());
    each_of_four(lengths, Length(epsilon));
    divide_rows<R>(from, x_stride, channels, tail, y + row * y_stride, y_stride, lengths);
  }
  const float* x;
  ptrdiff_t x_stride, channels;
  float epsilon;
  float* y;
  ptrdiff_t y_stride;
  Tail tail;
};

void l2_norm(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, float epsilon, float* y,
             ptrdiff_t y_stride) {
  by_four(rows, L2Norm{x, x_stride, channels, epsilon, y, y_stride, Tail(channels)});
}

// ---- Softmax. The largest element of a row is looked for from the lowest finite float on, as in TFLite, which makes a
// row of -inf NaN. A NaN need not come through the maximum: it makes the sum NaN.

struct MaxStep {
  HWY_INLINE Vector operator()(Vector max, Vector x, int) const { return hn::Max(x, max); }
  HWY_INLINE Vector part(Vector max, Vector x, FullMask mask, int) const {
    return hn::Max(hn::IfThenElse(mask, x, hn::Set(Full(), kLowest)), max);
  }
};

// e^x, where x <= 0 or NaN unless kAny.
template <bool kAny, class D>
HWY_INLINE hn::Vec<D> exponential(D d, hn::Vec<D> x) {
  if constexpr (kAny) return vec_exp(d, x);
  return vec_exp_bounded(d, x);
}

// e^(beta (x - max)) of one row, and in *sum their sum before its lanes are joined. Those of whole vectors are kept in y
// if kKeep, those of the tail in *last: what is stored in pieces would be slow to load again.
template <bool kAny, bool kKeep>
HWY_NOINLINE void exponentials(const float* x, ptrdiff_t channels, const Tail& tail, float max_, float beta_, float* y,
                               Vector* sum, Vector* last) {
  const Full d;
  const Vector max = hn::Set(d, max_), beta = hn::Set(d, beta_);
  Vector a = hn::Zero(d), b = hn::Zero(d);
  ptrdiff_t c = 0;
  for (; c + 2 * kStep <= channels; c += 2 * kStep) {
    const Vector e = exponential<kAny>(d, hn::Mul(hn::Sub(hn::LoadU(d, x + c), max), beta));
    const Vector f = exponential<kAny>(d, hn::Mul(hn::Sub(hn::LoadU(d, x + c + kStep), max), beta));
    a = hn::Add(a, e);
    b = hn::Add(b, f);
    if constexpr (kKeep) {
      hn::StoreU(e, d, y + c);
      hn::StoreU(f, d, y + c + kStep);
    }
  }
  const bool one_more = c + kStep <= channels;
  if (one_more) {
    const Vector e = exponential<kAny>(d, hn::Mul(hn::Sub(hn::LoadU(d, x + c), max), beta));
    a = hn::Add(a, e);
    if constexpr (kKeep) hn::StoreU(e, d, y + c);
    c += kStep;
  }
  if (tail.count > 0) {
    const Vector e = exponential<kAny>(d, hn::Mul(hn::Sub(tail.load(x + c), max), beta));
    const Vector part = hn::IfThenElseZero(tail.mask, e);
    if (one_more)
      b = hn::Add(b, part);
    else
      a = hn::Add(a, part);
    if constexpr (kKeep) *last = part;
  }
  *sum = hn::Add(a, b);
}

// Multiplies a row, of which the tail is in `last`, by a factor, or divides it.
template <bool kDivide>
HWY_INLINE void scale_row(float* y, ptrdiff_t channels, const Tail& tail, const Vector* last, float factor_) {
  const Full d;
  const Vector factor = hn::Set(d, factor_);
  ptrdiff_t c = 0;
  for (; c + kStep <= channels; c += kStep) {
    const Vector v = hn::LoadU(d, y + c);
    hn::StoreU(kDivide ? hn::Div(v, factor) : hn::Mul(v, factor), d, y + c);
  }
  if (tail.count > 0) tail.store(kDivide ? hn::Div(*last, factor) : hn::Mul(*last, factor), y + c);
}

// With any beta if kAny, else with one that is finite and not negative.
template <bool kAny>
struct Softmax {
  template <int R>
  HWY_INLINE void run(int32_t row) const {
    const float* from = x + row * x_stride;
    float* to = y + row * y_stride;
    Numbers4 maxima, sums;
    over_rows<R>(from, x_stride, channels, tail, kLowest, maxima.at, MaxStep(), Larger());
    Vector partial[R], last[R];
    for (int r = 0; r < R; ++r) {
      last[r] = hn::Zero(Full());
      exponentials<kAny, true>(from + r * x_stride, channels, tail, maxima.at[r], beta, to + r * y_stride, partial + r,
                               last + r);
    }
    join_lanes<R>(partial, sums.at, Plus());
    if constexpr (kAny) {
      for (int r = 0; r < R; ++r) {
        if (has_normal_reciprocal(sums.at[r]))
          scale_row<false>(to + r * y_stride, channels, tail, last + r, 1.0f / sums.at[r]);
        else
          scale_row<true>(to + r * y_stride, channels, tail, last + r, sums.at[r]);
      }
    } else {
      // Sums are between 1 and the number of channels, or 0 or NaN, which both make NaN of the row.
      each_of_four(sums, Reciprocal());
      for (int r = 0; r < R; ++r) scale_row<false>(to + r * y_stride, channels, tail, last + r, sums.at[r]);
    }
  }
  const float* x;
  ptrdiff_t x_stride, channels;
  float beta;
  float* y;
  ptrdiff_t y_stride;
  Tail tail;
};

// The same for rows of less than a vector, which stay in registers, where beta is finite and not negative.
struct ShortSoftmax {
  template <int R>
  HWY_INLINE void run(int32_t row) const {
    const Full d;
    const float* from = x + row * x_stride;
    float* to = y + row * y_stride;
    const Vector lowest = hn::Set(d, kLowest), factor = hn::Set(d, beta);
    Vector v[R], m[R];
    Numbers4 maxima, sums;
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      v[r] = tail.load(from + r * x_stride);
      m[r] = hn::Max(hn::IfThenElse(tail.mask, v[r], lowest), lowest);
    }
    join_lanes<R>(m, maxima.at, Larger());
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      v[r] = vec_exp_bounded(d, hn::Mul(hn::Sub(v[r], hn::Set(d, maxima.at[r])), factor));
      m[r] = hn::IfThenElseZero(tail.mask, v[r]);
    }
    join_lanes<R>(m, sums.at, Plus());
    each_of_four(sums, Reciprocal());
    HWY_UNROLL(8)
    for (int r = 0; r < R; ++r) tail.store(hn::Mul(v[r], hn::Set(d, sums.at[r])), to + r * y_stride);
  }
  const float* x;
  ptrdiff_t x_stride, channels;
  float beta;
  float* y;
  ptrdiff_t y_stride;
  Tail tail;
};

// As many rows as a vector has lanes, of two to four elements without gaps between rows: element by element.
template <int C>
struct Columns {
  HWY_INLINE void load(const float* x) {
    const Full d;
    if constexpr (C == 2) hn::LoadInterleaved2(d, x, v[0], v[1]);
    if constexpr (C == 3) hn::LoadInterleaved3(d, x, v[0], v[1], v[C - 1]);
    if constexpr (C == 4) hn::LoadInterleaved4(d, x, v[0], v[1], v[C / 2], v[C - 1]);
  }
  HWY_INLINE void store(float* y) const {
    const Full d;
    if constexpr (C == 2) hn::StoreInterleaved2(v[0], v[1], d, y);
    if constexpr (C == 3) hn::StoreInterleaved3(v[0], v[1], v[C - 1], d, y);
    if constexpr (C == 4) hn::StoreInterleaved4(v[0], v[1], v[C / 2], v[C - 1], d, y);
  }
  HWY_INLINE Vector max() const {
    Vector result = hn::Max(v[0], hn::Set(Full(), kLowest));
    HWY_UNROLL(8)
    for (int c = 1; c < C; ++c) result = hn::Max(v[c], result);
    return result;
  }
  // In the order that rows have elsewhere.
  HWY_INLINE Vector sum() const {
    const Vector first = hn::Add(v[0], v[1]);
    if constexpr (C == 2) return first;
    if constexpr (C == 3) return hn::Add(first, v[C - 1]);
    return hn::Add(first, hn::Add(v[C / 2], v[C - 1]));
  }
  Vector v[C];
};

// Beta is finite and not negative. Gives the number of rows that are done.
template <int C>
HWY_INLINE int32_t softmax_columns(const float* x, int32_t rows, float beta_, float* y) {
  const Full d;
  const Vector beta = hn::Set(d, beta_), one = hn::Set(d, 1.0f);
  int32_t row = 0;
  Columns<C> columns;
  for (; row + static_cast<int32_t>(kStep) <= rows; row += static_cast<int32_t>(kStep)) {
    columns.load(x + ptrdiff_t{row} * C);
    const Vector max = columns.max();
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) columns.v[c] = hn::Sub(columns.v[c], max);
    if constexpr (C == 2) {
      // One of the two differences is zero, and its exponential one, unless a NaN or an infinity is in the row.
      const Vector other = vec_exp_bounded(d, hn::Mul(hn::Add(columns.v[0], columns.v[1]), beta));
      HWY_UNROLL(8)
      for (int c = 0; c < C; ++c) columns.v[c] = hn::IfThenElse(hn::Eq(columns.v[c], hn::Zero(d)), one, other);
    } else {
      HWY_UNROLL(8)
      for (int c = 0; c < C; ++c) columns.v[c] = vec_exp_bounded(d, hn::Mul(columns.v[c], beta));
    }
    // Sums are between 1 and C, or 0 or NaN, which both make NaN of the row.
    const Vector factor = hn::Div(one, columns.sum());
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) columns.v[c] = hn::Mul(columns.v[c], factor);
    columns.store(y + ptrdiff_t{row} * C);
  }
  return row;
}

void softmax(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, float beta, float* y,
             ptrdiff_t y_stride) {
  const Tail tail(channels);
  if (!(beta >= 0.0f && beta < kInfinity)) {
    const Softmax<true> any{x, x_stride, channels, beta, y, y_stride, tail};
    for (int32_t row = 0; row < rows; ++row) any.run<1>(row);
    return;
  }
  int32_t done = 0;
  if (x_stride == channels && y_stride == channels) {
    if (channels == 2) done = softmax_columns<2>(x, rows, beta, y);
    if (channels == 3) done = softmax_columns<3>(x, rows, beta, y);
    if (channels == 4) done = softmax_columns<4>(x, rows, beta, y);
  }
  x += done * x_stride;
  y += done * y_stride;
  if (channels < kStep)
    by_four(rows - done, ShortSoftmax{x, x_stride, channels, beta, y, y_stride, tail});
  else
    by_four(rows - done, Softmax<false>{x, x_stride, channels, beta, y, y_stride, tail});
}

template <int C>
HWY_INLINE int32_t log_softmax_columns(const float* x, int32_t rows, float* y) {
  const Full d;
  int32_t row = 0;
  Columns<C> columns, powers;
  for (; row + static_cast<int32_t>(kStep) <= rows; row += static_cast<int32_t>(kStep)) {
    columns.load(x + ptrdiff_t{row} * C);
    const Vector max = columns.max();
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) {
      columns.v[c] = hn::Sub(columns.v[c], max);
      powers.v[c] = vec_exp_bounded(d, columns.v[c]);
    }
    const Vector log = vec_log(d, powers.sum());
    HWY_UNROLL(8)
    for (int c = 0; c < C; ++c) columns.v[c] = hn::Sub(columns.v[c], log);
    columns.store(y + ptrdiff_t{row} * C);
  }
  return row;
}

struct LogSoftmax {
  template <int R>
  HWY_INLINE void run(int32_t row) const {
    const float* from = x + row * x_stride;
    Numbers4 maxima, sums;
    over_rows<R>(from, x_stride, channels, tail, kLowest, maxima.at, MaxStep(), Larger());
    Vector partial[R];
    for (int r = 0; r < R; ++r)
      exponentials<false, false>(from + r * x_stride, channels, tail, maxima.at[r], 1.0f, nullptr, partial + r,
                                 nullptr);
    join_lanes<R>(partial, sums.at, Plus());
    each_of_four(sums, Logarithm());
    map_rows<R>(from, x_stride, channels, tail, y + row * y_stride, y_stride, LogMap<R>(maxima, sums));
  }
  const float* x;
  ptrdiff_t x_stride, channels;
  float* y;
  ptrdiff_t y_stride;
  Tail tail;
};

void log_softmax(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, float* y, ptrdiff_t y_stride) {
  int32_t done = 0;
  if (x_stride == channels && y_stride == channels) {
    if (channels == 2) done = log_softmax_columns<2>(x, rows, y);
    if (channels == 3) done = log_softmax_columns<3>(x, rows, y);
    if (channels == 4) done = log_softmax_columns<4>(x, rows, y);
  }
  by_four(rows - done,
          LogSoftmax{x + done * x_stride, x_stride, channels, y + done * y_stride, y_stride, Tail(channels)});
}

// ---- Reductions of rows.

struct SumRows {
  template <int R>
  HWY_INLINE void run(int32_t row) const {
    Numbers4 sums;
    over_rows<R>(x + row * stride, stride, channels, tail, 0.0f, sums.at, SumStep(), Plus());
    for (int r = 0; r < R; ++r) result[row + r] = sums.at[r];
  }
  const float* x;
  ptrdiff_t stride, channels;
  float* result;
  Tail tail;
};

void sum_rows(const float* x, int32_t rows, ptrdiff_t stride, int32_t channels, float* result) {
  by_four(rows, SumRows{x, stride, channels, result, Tail(channels)});
}

// The larger or the smaller of `old` and x; `old` if x is NaN. `old` is not.
template <class Rule, class V>
HWY_INLINE V better(V old, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  // maxps and minps give their second operand if the first one is NaN.
  if constexpr (Rule::kWorst < 0) return hn::Max(x, old);
  return hn::Min(x, old);
#else
  if constexpr (Rule::kWorst < 0) return hn::IfThenElse(hn::Gt(x, old), x, old);
  return hn::IfThenElse(hn::Lt(x, old), x, old);
#endif
}

// NaN is passed over and noticed.
template <class Rule>
struct BestStep {
  HWY_INLINE Vector operator()(Vector best, Vector x, int) const {
    *nan = hn::Or(*nan, hn::IsNaN(x));
    return better<Rule>(best, x);
  }
  HWY_INLINE Vector part(Vector best, Vector x, FullMask mask, int) const {
    *nan = hn::Or(*nan, hn::IsNaN(x));
    return better<Rule>(best, hn::IfThenElse(mask, x, hn::Set(Full(), Rule::kWorst)));
  }
  FullMask* nan;
};

template <class Rule>
struct BetterOfTwo {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return better<Rule>(a, b);
  }
};

template <class Rule>
struct BestRows {
  template <int R>
  HWY_INLINE void run(int32_t row) const {
    const float* from = x + row * stride;
    Numbers4 best;
    FullMask nan = hn::FirstN(Full(), 0);
    const BestStep<Rule> step{&nan};
    over_rows_inline<R>(from, stride, channels, tail, hn::Set(Full(), Rule::kWorst), best.at, step,
                        BetterOfTwo<Rule>());
    if (HWY_UNLIKELY(!hn::AllFalse(Full(), nan))) {
      if constexpr (R == 1) {
        best.at[0] = extreme<Rule>(from, channels, 1);
      } else {
        for (int r = 0; r < R; ++r) run<1>(row + r);
        return;
      }
    }
    for (int r = 0; r < R; ++r) result[row + r] = best.at[r];
  }
  const float* x;
  ptrdiff_t stride, channels;
  float* result;
  Tail tail;
};

template <class Rule>
HWY_INLINE void best_rows(const float* x, int32_t rows, ptrdiff_t stride, int32_t channels, float* result) {
  if (channels <= 0) {
    std::fill(result, result + std::max(rows, 0), Rule::kNothing);
    return;
  }
  by_four(rows, BestRows<Rule>{x, stride, channels, result, Tail(channels)});
}

void max_rows(const float* x, int32_t rows, ptrdiff_t stride, int32_t channels, float* result) {
  best_rows<MaxRule>(x, rows, stride, channels, result);
}

void min_rows(const float* x, int32_t rows, ptrdiff_t stride, int32_t channels, float* result) {
  best_rows<MinRule>(x, rows, stride, channels, result);
}

// ---- Reductions of pixels: four partial results for each channel. An operation says how one starts, how it goes on
// (with the shift of the channel) and how two are joined.

struct PixelSum {
  static constexpr float kStart = 0.0f;
  static constexpr bool kShifts = false;
  static constexpr bool kWatchesNan = false;
  template <class V>
  HWY_INLINE V next(V sum, V x, V) const {
    return hn::Add(sum, x);
  }
  template <class V>
  HWY_INLINE V join(V a, V b) const {
    return hn::Add(a, b);
  }
  HWY_INLINE float exact(const float*, ptrdiff_t, ptrdiff_t) const { return 0.0f; }
};

struct PixelSquares : PixelSum {
  static constexpr bool kShifts = true;
  template <class V>
  HWY_INLINE V next(V sum, V x, V shift) const {
    const V difference = hn::Sub(x, shift);
    return hn::MulAdd(difference, difference, sum);
  }
};

template <class Rule>
struct PixelBest {
  static constexpr float kStart = Rule::kWorst;
  static constexpr bool kShifts = false;
  static constexpr bool kWatchesNan = true;
  template <class V>
  HWY_INLINE V next(V best, V x, V) const {
    return better<Rule>(best, x);
  }
  template <class V>
  HWY_INLINE V join(V a, V b) const {
    return better<Rule>(a, b);
  }
  HWY_INLINE float exact(const float* x, ptrdiff_t pixels, ptrdiff_t pixel) const {
    return extreme<Rule>(x, pixels, pixel);
  }
};

// A vector of channels.
template <class D, class Operation>
HWY_INLINE void reduce_vector(D d, const float* x, ptrdiff_t pixels, ptrdiff_t pixel, const float* shift, float* result,
                              Operation operation) {
  using V = hn::Vec<D>;
  const V shifts = Operation::kShifts ? hn::LoadU(d, shift) : hn::Zero(d);
  V partial[4];
  HWY_UNROLL(8)
  for (int p = 0; p < 4; ++p) partial[p] = hn::Set(d, Operation::kStart);
  auto nan = hn::FirstN(d, 0);
  const float* at = x;
  ptrdiff_t i = 0;
  for (; i + 4 <= pixels; i += 4, at += 4 * pixel) {
    HWY_UNROLL(8)
    for (int p = 0; p < 4; ++p) {
      const V v = hn::LoadU(d, at + p * pixel);
      if constexpr (Operation::kWatchesNan) nan = hn::Or(nan, hn::IsNaN(v));
      partial[p] = operation.next(partial[p], v, shifts);
    }
  }
  HWY_UNROLL(8)
  for (int p = 0; p < 3; ++p) {
    if (i + p >= pixels) break;
    const V v = hn::LoadU(d, at + p * pixel);
    if constexpr (Operation::kWatchesNan) nan = hn::Or(nan, hn::IsNaN(v));
    partial[p] = operation.next(partial[p], v, shifts);
  }
  hn::StoreU(operation.join(operation.join(partial[0], partial[1]), operation.join(partial[2], partial[3])), d, result);
  if constexpr (Operation::kWatchesNan) {
    if (HWY_UNLIKELY(!hn::AllFalse(d, nan))) {
      const auto lanes = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
      for (ptrdiff_t c = 0; c < lanes; ++c) result[c] = operation.exact(x + c, pixels, pixel);
    }
  }
}

// Vector after vector, for few channels, but as many as a vector has lanes; the last two vectors may overlap.
template <class D, class Operation>
HWY_INLINE void reduce_few(D d, const float* x, ptrdiff_t pixels, ptrdiff_t pixel, ptrdiff_t channels,
                           const float* shift, float* result, Operation operation) {
  constexpr ptrdiff_t kLanes = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
  for (ptrdiff_t c = 0; c < channels; c += kLanes) {
    c = std::min(c, channels - kLanes);
    reduce_vector(d, x + c, pixels, pixel, Operation::kShifts ? shift + c : nullptr, result + c, operation);
  }
}

// The last R pixels of a chunk, and what all of them come to. Where there were none before these, nothing is loaded:
// rows of up to seven pixels, as the last layers of networks have, stay in registers.
template <int R, class Operation, class Partial>
HWY_INLINE FullMask reduce_last(const float* at, ptrdiff_t pixel, ptrdiff_t channels, const Partial& partial, bool only,
                                const float* shift, float* result, Operation operation) {
  const Full d;
  FullMask nan = hn::FirstN(d, 0);
  for (ptrdiff_t c = 0; c < channels; c += kStep) {
    const Vector shifts = Operation::kShifts ? hn::LoadU(d, shift + c) : hn::Zero(d);
    Vector sums[4];
    HWY_UNROLL(8)
    for (int p = 0; p < 4; ++p) sums[p] = only ? hn::Set(d, Operation::kStart) : hn::Load(d, partial[p] + c);
    HWY_UNROLL(8)
    for (int p = 0; p < R; ++p) {
      const Vector v = hn::LoadU(d, at + p * pixel + c);
      if constexpr (Operation::kWatchesNan) nan = hn::Or(nan, hn::IsNaN(v));
      sums[p % 4] = operation.next(sums[p % 4], v, shifts);
    }
    hn::StoreU(operation.join(operation.join(sums[0], sums[1]), operation.join(sums[2], sums[3])), d, result + c);
  }
  return nan;
}

// Up to kChunk channels, eight pixels side by side, so that memory is read in its order; the partial results are kept
// in the L1 cache. (Columns of vectors that go through all pixels reach a fifth of this speed where the distance of
// pixels is a multiple of 4 KB.)
constexpr ptrdiff_t kChunk = 512;
template <class Operation>
HWY_INLINE void reduce_chunk(const float* x, ptrdiff_t pixels, ptrdiff_t pixel, ptrdiff_t channels, const float* shift,
                             float* result, Operation operation) {
  const Full d;
  alignas(64) float partial[4][kChunk];
  const ptrdiff_t whole = channels / kStep * kStep;
  FullMask nan = hn::FirstN(d, 0);
  const float* at = x;
  ptrdiff_t i = 0;
  for (; i + 8 <= pixels; i += 8, at += 8 * pixel) {
    for (ptrdiff_t c = 0; c < whole; c += kStep) {
      const Vector shifts = Operation::kShifts ? hn::LoadU(d, shift + c) : hn::Zero(d);
      HWY_UNROLL(8)
      for (int p = 0; p < 4; ++p) {
        const Vector v = hn::LoadU(d, at + p * pixel + c), w = hn::LoadU(d, at + (p + 4) * pixel + c);
        if constexpr (Operation::kWatchesNan) nan = hn::Or(nan, hn::Or(hn::IsNaN(v), hn::IsNaN(w)));
        const Vector before = i == 0 ? hn::Set(d, Operation::kStart) : hn::Load(d, partial[p] + c);
        hn::Store(operation.next(operation.next(before, v, shifts), w, shifts), d, partial[p] + c);
      }
    }
  }
  const auto last = [&](auto count) HWY_ATTR {
    const auto found = reduce_last<decltype(count)::value>(at, pixel, whole, partial, i == 0, shift, result, operation);
    nan = hn::Or(nan, found);
  };
  switch (pixels - i) {
    case 0:
      last(std::integral_constant<int, 0>());
      break;
    case 1:
      last(std::integral_constant<int, 1>());
      break;
    case 2:
      last(std::integral_constant<int, 2>());
      break;
    case 3:
      last(std::integral_constant<int, 3>());
      break;
    case 4:
      last(std::integral_constant<int, 4>());
      break;
    case 5:
      last(std::integral_constant<int, 5>());
      break;
    case 6:
      last(std::integral_constant<int, 6>());
      break;
    default:
      last(std::integral_constant<int, 7>());
      break;
  }
  if constexpr (Operation::kWatchesNan) {
    if (HWY_UNLIKELY(!hn::AllFalse(d, nan)))
      for (ptrdiff_t c = 0; c < whole; ++c) result[c] = operation.exact(x + c, pixels, pixel);
  }
  if (whole < channels) {
    const ptrdiff_t c = channels - kStep;
    reduce_vector(d, x + c, pixels, pixel, Operation::kShifts ? shift + c : nullptr, result + c, operation);
  }
}

// C channels without gaps between pixels: C vectors of four lanes are four pixels.
template <int C, class Operation>
HWY_INLINE void reduce_narrow(const float* x, ptrdiff_t pixels, const float* shift, float* result,
                              Operation operation) {
  const Four d;
  using V = hn::Vec<Four>;
  // With arrays of one vector GCC 12 would keep the partial sums in memory.
  constexpr int kKept = C > 1 ? C : 2;
  alignas(16) float lanes[4 * kKept];
  V partial[kKept], shifts[kKept];
  HWY_UNROLL(8)
  for (int b = 0; b < C; ++b) {
    partial[b] = hn::Set(d, Operation::kStart);
    shifts[b] = hn::Zero(d);
  }
  if constexpr (Operation::kShifts) {
    for (int i = 0; i < 4 * C; ++i) lanes[i] = shift[i % C];
    HWY_UNROLL(8)
    for (int b = 0; b < C; ++b) shifts[b] = hn::Load(d, lanes + 4 * b);
  }
  auto nan = hn::FirstN(d, 0);
  const float* at = x;
  ptrdiff_t i = 0;
  for (; i + 4 <= pixels; i += 4) {
    HWY_UNROLL(8)
    for (int b = 0; b < C; ++b) {
      const V v = hn::LoadU(d, at + 4 * b);
      if constexpr (Operation::kWatchesNan) nan = hn::Or(nan, hn::IsNaN(v));
      partial[b] = operation.next(partial[b], v, shifts[b]);
    }
    at += 4 * C;
  }
  HWY_UNROLL(8)
  for (int b = 0; b < C; ++b) hn::Store(partial[b], d, lanes + 4 * b);
  const hn::CappedTag<float, 1> one;
  bool any_nan = Operation::kWatchesNan && !hn::AllFalse(d, nan);
  for (int p = 0; p < 3 && i < pixels; ++p, ++i) {
    for (int c = 0; c < C; ++c, ++at) {
      float& sum = lanes[p * C + c];
      if constexpr (Operation::kWatchesNan) any_nan = any_nan || *at != *at;
      sum = hn::GetLane(
          operation.next(hn::Set(one, sum), hn::Set(one, *at), hn::Set(one, Operation::kShifts ? shift[c] : 0.0f)));
    }
  }
  for (int c = 0; c < C; ++c) {
    const auto first = operation.join(hn::Set(one, lanes[c]), hn::Set(one, lanes[C + c]));
    const auto second = operation.join(hn::Set(one, lanes[2 * C + c]), hn::Set(one, lanes[3 * C + c]));
    result[c] = any_nan ? operation.exact(x + c, pixels, C) : hn::GetLane(operation.join(first, second));
  }
}

template <class Operation>
HWY_INLINE void reduce_pixels(const float* x, ptrdiff_t pixels, ptrdiff_t pixel, ptrdiff_t channels, const float* shift,
                              float* result, Operation operation) {
  if constexpr (kFourWidth == 4) {
    if (pixel == channels) {
      if (channels == 1) return reduce_narrow<1>(x, pixels, shift, result, operation);
      if (channels == 2) return reduce_narrow<2>(x, pixels, shift, result, operation);
      if (channels == 3) return reduce_narrow<3>(x, pixels, shift, result, operation);
    }
  }
  if (channels >= 2 * kStep) {
    for (ptrdiff_t c = 0; c < channels; c += kChunk) {
      // Nothing narrower than a vector may be left.
      const ptrdiff_t count = std::min(channels - c, kChunk), first = count < kStep ? channels - kStep : c;
      reduce_chunk(x + first, pixels, pixel, std::max(count, kStep), Operation::kShifts ? shift + first : nullptr,
                   result + first, operation);
    }
    return;
  }
  if (channels >= kStep) return reduce_few(Full(), x, pixels, pixel, channels, shift, result, operation);
  if constexpr (kWidth > 8) {
    const hn::CappedTag<float, 8> d;
    if (channels >= 8) return reduce_few(d, x, pixels, pixel, channels, shift, result, operation);
  }
  if constexpr (kWidth > 4) {
    if (channels >= 4) return reduce_few(Four(), x, pixels, pixel, channels, shift, result, operation);
  }
  reduce_few(hn::CappedTag<float, 1>(), x, pixels, pixel, channels, shift, result, operation);
}

void sum_pixels(const float* x, int32_t pixels, ptrdiff_t pixel, int32_t channels, float* sums) {
  reduce_pixels(x, pixels, pixel, channels, nullptr, sums, PixelSum());
}

void sum_squares(const float* x, int32_t pixels, ptrdiff_t pixel, int32_t channels, const float* shift, float* sums) {
  reduce_pixels(x, pixels, pixel, channels, shift, sums, PixelSquares());
}

template <class Rule>
HWY_INLINE void best_pixels(const float* x, int32_t pixels, ptrdiff_t pixel, int32_t channels, float* result) {
  if (pixels <= 0) {
    std::fill(result, result + channels, Rule::kNothing);
    return;
  }
  reduce_pixels(x, pixels, pixel, channels, nullptr, result, PixelBest<Rule>());
}

void max_pixels(const float* x, int32_t pixels, ptrdiff_t pixel, int32_t channels, float* result) {
  best_pixels<MaxRule>(x, pixels, pixel, channels, result);
}

void min_pixels(const float* x, int32_t pixels, ptrdiff_t pixel, int32_t channels, float* result) {
  best_pixels<MinRule>(x, pixels, pixel, channels, result);
}

}  // namespace

const NormKernels* norm_table() {
  static constexpr NormKernels kTable = {layer_norm, rms_norm,   l2_norm,     softmax,  log_softmax, sum_pixels,
                                         max_pixels, min_pixels, sum_squares, sum_rows, max_rows,    min_rows};
  return &kTable;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litefuse {
namespace {

// The reference: in float64, one row and one channel after the other.

void reference_layer_norm(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, const float* gamma,
                          const float* beta, float epsilon, float* y, ptrdiff_t y_stride) {
  for (int32_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    double sum = 0, squares = 0;
    for (int32_t c = 0; c < channels; ++c) sum += double{x[c]};
    const double mean = sum / channels;
    for (int32_t c = 0; c < channels; ++c) squares += (double{x[c]} - mean) * (double{x[c]} - mean);
    const double deviation = std::sqrt(squares / channels + double{epsilon});
    for (int32_t c = 0; c < channels; ++c) {
      const double factor = gamma != nullptr ? double{gamma[c]} : 1.0;
      const double offset = beta != nullptr ? double{beta[c]} : 0.0;
      y[c] = static_cast<float>((double{x[c]} - mean) / deviation * factor + offset);
    }
  }
}

void reference_rms_norm(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, const float* gamma,
                        float epsilon, float* y, ptrdiff_t y_stride) {
  for (int32_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    double squares = 0;
    for (int32_t c = 0; c < channels; ++c) squares += double{x[c]} * double{x[c]};
    const double root = std::sqrt(squares / channels + double{epsilon});
    for (int32_t c = 0; c < channels; ++c)
      y[c] = static_cast<float>(double{x[c]} / root * (gamma != nullptr ? double{gamma[c]} : 1.0));
  }
}

void reference_l2_norm(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, float epsilon, float* y,
                       ptrdiff_t y_stride) {
  for (int32_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    double squares = 0;
    for (int32_t c = 0; c < channels; ++c) squares += double{x[c]} * double{x[c]};
    // Overflow to infinity is that of floats.
    const double length = std::max(std::sqrt(double{static_cast<float>(squares)}), double{epsilon});
    for (int32_t c = 0; c < channels; ++c) y[c] = static_cast<float>(double{x[c]} / length);
  }
}

// The largest element as TFLite looks for it.
float reference_row_max(const float* x, int32_t channels) {
  float max = kLowest;
  for (int32_t c = 0; c < channels; ++c) max = std::max(max, x[c]);
  return max;
}

void reference_softmax(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, float beta, float* y,
                       ptrdiff_t y_stride) {
  for (int32_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    const float max = reference_row_max(x, channels);
    // The exponent is rounded as in TFLite; what follows is not.
    double sum = 0;
    for (int32_t c = 0; c < channels; ++c) sum += std::exp(double{(x[c] - max) * beta});
    for (int32_t c = 0; c < channels; ++c) y[c] = static_cast<float>(std::exp(double{(x[c] - max) * beta}) / sum);
  }
}

void reference_log_softmax(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, float* y,
                           ptrdiff_t y_stride) {
  for (int32_t row = 0; row < rows; ++row, x += x_stride, y += y_stride) {
    const float max = reference_row_max(x, channels);
    double sum = 0;
    for (int32_t c = 0; c < channels; ++c) sum += std::exp(double{x[c] - max});
    const double log = std::log(sum);
    for (int32_t c = 0; c < channels; ++c) y[c] = static_cast<float>(double{x[c] - max} - log);
  }
}

void reference_sum_squares(const float* x, int32_t pixels, ptrdiff_t pixel, int32_t channels, const float* shift,
                           float* sums) {
  for (int32_t c = 0; c < channels; ++c) {
    double sum = 0;
    for (ptrdiff_t i = 0; i < pixels; ++i) {
      const double difference = double{x[i * pixel + c]} - double{shift[c]};
      sum += difference * difference;
    }
    sums[c] = static_cast<float>(sum);
  }
}

void reference_sum_pixels(const float* x, int32_t pixels, ptrdiff_t pixel, int32_t channels, float* sums) {
  for (int32_t c = 0; c < channels; ++c) {
    double sum = 0;
    for (ptrdiff_t i = 0; i < pixels; ++i) sum += double{x[i * pixel + c]};
    sums[c] = static_cast<float>(sum);
  }
}

template <class Rule>
void reference_best_pixels(const float* x, int32_t pixels, ptrdiff_t pixel, int32_t channels, float* result) {
  for (int32_t c = 0; c < channels; ++c) result[c] = extreme<Rule>(x + c, pixels, pixel);
}

void reference_sum_rows(const float* x, int32_t rows, ptrdiff_t stride, int32_t channels, float* result) {
  for (int32_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int32_t c = 0; c < channels; ++c) sum += double{x[row * stride + c]};
    result[row] = static_cast<float>(sum);
  }
}

template <class Rule>
void reference_best_rows(const float* x, int32_t rows, ptrdiff_t stride, int32_t channels, float* result) {
  for (int32_t row = 0; row < rows; ++row) result[row] = extreme<Rule>(x + row * stride, channels, 1);
}

}  // namespace

HWY_EXPORT(norm_table);

const NormKernels& norm_kernels() { return *HWY_DYNAMIC_DISPATCH(norm_table)(); }

const NormKernels& norm_reference() {
  static constexpr NormKernels kTable = {reference_layer_norm,
                                         reference_rms_norm,
                                         reference_l2_norm,
                                         reference_softmax,
                                         reference_log_softmax,
                                         reference_sum_pixels,
                                         reference_best_pixels<MaxRule>,
                                         reference_best_pixels<MinRule>,
                                         reference_sum_squares,
                                         reference_sum_rows,
                                         reference_best_rows<MaxRule>,
                                         reference_best_rows<MinRule>};
  return kTable;
}

}  // namespace litefuse
#endif  // HWY_ONCE
