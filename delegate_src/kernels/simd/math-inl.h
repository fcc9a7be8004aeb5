// Functions of a vector of floats, for the instruction set that is being compiled for.
//
// Errors were measured against float64 functions, over floats of all exponents (see elementwise_simd_test.cc, which
// repeats it). An ulp is that of the exact result; "flushes" says that a result which is a denormal number may become
// zero. "+inf", "-inf" are what those arguments give; a NaN gives NaN everywhere.
//
//   function             error               -inf   +inf   remarks
//   vec_exp              2.2 ulp             0      inf    denormal results are right to their last place
//   vec_exp_bounded      1.3 ulp             0      -      for x <= 88, flushes
//   vec_log              0.9 ulp             NaN    inf    0 -> -inf, negative -> NaN, denormals are right
//   vec_log1p_unit       1.7 ulp             -      -      log(1 + x) of 0 <= x <= 1
//   vec_sigmoid          3.1 ulp             0      1      for x >= -16; 4.0 to -40, 6.0 below; flushes
//   vec_sigmoid2         3.3 ulp             -      -      flushes
//   vec_tanh             4.7 ulp             -1     1      2.8e-7 absolute; 5.8 and 3.5e-7 without fused operations
//   vec_normal_cdf       2.2e-7 absolute     0      1      0 below -5.3
//   vec_softplus         2.8 ulp             0      inf    flushes
//   vec_elu              0.9 ulp             -1     inf    e^x - 1 of negative x
//   vec_sin, vec_cos     1.2e-7 absolute     NaN    NaN    and 2.3 ulp; beyond kTrigonometricLimit libm's, lane by lane
//   vec_pow              libm's                            lane by lane
//
// Polynomials are minimax fits of this project's own (Lawson's iteration in float64 on Chebyshev nodes with the weight
// that the table's kind of error asks for), rounded to float one coefficient after the other, those that follow being
// fitted again. Rational functions likewise: the error linearised, and weighted anew by each denominator. The highest
// coefficient of a denominator is 1, which saves a multiplication.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(LITEFUSE_KERNELS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LITEFUSE_KERNELS_SIMD_MATH_INL_H_
#undef LITEFUSE_KERNELS_SIMD_MATH_INL_H_
#else
#define LITEFUSE_KERNELS_SIMD_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whether the compiler sees vectors of a real processor, and whether MulAdd rounds once.
constexpr bool kEmulated = HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128;
constexpr bool kFused = !kEmulated && !(HWY_ARCH_X86 && HWY_TARGET >= HWY_SSE4);

// Operations of Highway for vectors, and for several vectors side by side: loops over arrays are limited by how long a
// result takes, so that a few independent ones have to be in flight, instruction by instruction. Operands that are not
// Wide are the same for all.
template <class V, size_t kCount>
struct Wide {
  V v[kCount];
};

namespace op {

template <class T>
struct CountOf {
  static constexpr size_t value = 0;
};
template <class V, size_t kCount>
struct CountOf<Wide<V, kCount>> {
  static constexpr size_t value = kCount;
};

template <size_t kIndex, class T>
HWY_INLINE T part(const T& x) {
  return x;
}
template <size_t kIndex, class V, size_t kCount>
HWY_INLINE V part(const Wide<V, kCount>& x) {
  return x.v[kIndex];
}

template <class... A>
constexpr size_t count_of() {
  size_t most = 0;
  for (const size_t count : {CountOf<A>::value...}) most = count > most ? count : most;
  return most;
}

// NAME(a...) of the parts of the operands.
#define LITEFUSE_LIFT(NAME)                                                                         \
  template <size_t kIndex, class... A>                                                              \
  HWY_INLINE auto NAME##_part(const A&... a) {                                                      \
    return hn::NAME(part<kIndex>(a)...);                                                            \
  }                                                                                                 \
  template <size_t... kIndex, class... A>                                                           \
  HWY_INLINE auto NAME##_parts(std::index_sequence<kIndex...>, const A&... a) {                     \
    return Wide<decltype(NAME##_part<0>(a...)), sizeof...(kIndex)>{{NAME##_part<kIndex>(a...)...}}; \
  }                                                                                                 \
  template <class... A>                                                                             \
  HWY_INLINE auto NAME(const A&... a) {                                                             \
    if constexpr (count_of<A...>() == 0) {                                                          \
      return hn::NAME(a...);                                                                        \
    } else {                                                                                        \
      return NAME##_parts(std::make_index_sequence<count_of<A...>()>(), a...);                      \
    }                                                                                               \
  }
LITEFUSE_LIFT(MulAdd)
LITEFUSE_LIFT(NegMulAdd)
LITEFUSE_LIFT(Mul)
LITEFUSE_LIFT(Add)
LITEFUSE_LIFT(Sub)
LITEFUSE_LIFT(Div)
LITEFUSE_LIFT(Min)
LITEFUSE_LIFT(Max)
LITEFUSE_LIFT(Neg)
LITEFUSE_LIFT(Abs)
LITEFUSE_LIFT(Lt)
LITEFUSE_LIFT(Gt)
LITEFUSE_LIFT(Ge)
LITEFUSE_LIFT(Le)
LITEFUSE_LIFT(Eq)
LITEFUSE_LIFT(IfThenElse)
LITEFUSE_LIFT(IfNegativeThenElse)
LITEFUSE_LIFT(BitCast)
LITEFUSE_LIFT(ConvertTo)
LITEFUSE_LIFT(ApproximateReciprocal)
LITEFUSE_LIFT(ApproximateReciprocalSqrt)
LITEFUSE_LIFT(And)
LITEFUSE_LIFT(Xor)
LITEFUSE_LIFT(Sqrt)
LITEFUSE_LIFT(Floor)
LITEFUSE_LIFT(Ceil)
LITEFUSE_LIFT(Round)
LITEFUSE_LIFT(CopySign)
#undef LITEFUSE_LIFT

template <int kBits, class V>
HWY_INLINE V ShiftLeft(const V& x) {
  return hn::ShiftLeft<kBits>(x);
}
template <int kBits, class V, size_t kCount>
HWY_INLINE Wide<V, kCount> ShiftLeft(const Wide<V, kCount>& x) {
  Wide<V, kCount> y;
  HWY_UNROLL(4)
  for (size_t i = 0; i < kCount; ++i) y.v[i] = hn::ShiftLeft<kBits>(x.v[i]);
  return y;
}
template <int kBits, class V>
HWY_INLINE V ShiftRight(const V& x) {
  return hn::ShiftRight<kBits>(x);
}
template <int kBits, class V, size_t kCount>
HWY_INLINE Wide<V, kCount> ShiftRight(const Wide<V, kCount>& x) {
  Wide<V, kCount> y;
  HWY_UNROLL(4)
  for (size_t i = 0; i < kCount; ++i) y.v[i] = hn::ShiftRight<kBits>(x.v[i]);
  return y;
}

// The larger ones of the lanes that lie side by side.
template <class V>
HWY_INLINE V largest(const V& x) {
  return x;
}
template <class V, size_t kCount>
HWY_INLINE V largest(const Wide<V, kCount>& x) {
  V y = x.v[0];
  HWY_UNROLL(4)
  for (size_t i = 1; i < kCount; ++i) y = hn::Max(y, x.v[i]);
  return y;
}

}  // namespace op

// max_or_nan() and min_or_nan() of lanes-inl.h, for several vectors, too.
template <class D, class V>
HWY_INLINE V max_keeping_nan(D, hn::Vec<D> limit, V x) {
  if constexpr (op::count_of<V>() == 0) {
    return max_or_nan(x, limit);
  } else {
    V y;
    constexpr size_t kCount = op::count_of<V>();
    HWY_UNROLL(4)
    for (size_t i = 0; i < kCount; ++i) y.v[i] = max_or_nan(x.v[i], limit);
    return y;
  }
}

template <class D, class V>
HWY_INLINE V min_keeping_nan(D, hn::Vec<D> limit, V x) {
  if constexpr (op::count_of<V>() == 0) {
    return min_or_nan(x, limit);
  } else {
    V y;
    constexpr size_t kCount = op::count_of<V>();
    HWY_UNROLL(4)
    for (size_t i = 0; i < kCount; ++i) y.v[i] = min_or_nan(x.v[i], limit);
    return y;
  }
}

template <class D, class V>
HWY_INLINE V clamp_keeping_nan(D d, hn::Vec<D> min, hn::Vec<D> max, V x) {
  return min_keeping_nan(d, max, max_keeping_nan(d, min, x));
}

// x / y for y between 2^-100 and 2^100, to 1.3 ulp. Faster than a division where that is slow.
template <class D, class X, class V>
HWY_INLINE V vec_quotient(D d, X x, V y) {
#if HWY_ARCH_ARM
  // The estimate has 8 bits, 16 after a step of Newton's; the remainder gives the rest.
  V r = op::ApproximateReciprocal(y);
  r = op::MulAdd(r, op::NegMulAdd(r, y, hn::Set(d, 1.0f)), r);
  const V q = op::Mul(x, r);
  return op::MulAdd(op::NegMulAdd(q, y, x), r, q);
#else
  (void)d;
  return op::Div(x, y);
#endif
}

// f() of each lane.
template <class D, class V = hn::Vec<D>, class F>
HWY_INLINE V each_lane(D d, V x, F f) {
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(x, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = f(lanes[i]);
  return hn::Load(d, lanes);
}

// For x = n ln 2 + r with |r| <= 0.3468 and |x| < 2^16: a float that has kOffset + n in its low bits (shifted by 23 they
// are the float 2^n if kOffset is 127), and r.
template <int kOffset, class D>
HWY_INLINE hn::Vec<D> exponent_magic(D d) {
  return hn::Set(d, 12582912.0f + static_cast<float>(kOffset));  // 1.5 2^23
}

template <int kOffset, class D, class V>
HWY_INLINE V exponent_of(D d, V x) {
  return op::MulAdd(x, hn::Set(d, 1.44269504f), exponent_magic<kOffset>(d));
}

template <int kOffset, class D, class V>
HWY_INLINE V remainder_of(D d, V x, V exponent) {
  const V n = op::Sub(exponent, exponent_magic<kOffset>(d));
  // ln 2 in two parts, of which the first has 10 bits: its products with n are exact.
  return op::MulAdd(n, hn::Set(d, 2.12194440e-4f), op::NegMulAdd(n, hn::Set(d, 0.693359375f), x));
}

// The same, but for an error of 1.9e-9 n, where that is faster.
template <int kOffset, class D, class V>
HWY_INLINE V rough_remainder_of(D d, V x, V exponent) {
  if constexpr (!kFused) return remainder_of<kOffset>(d, x, exponent);
  return op::NegMulAdd(op::Sub(exponent, exponent_magic<kOffset>(d)), hn::Set(d, 0.693147182f), x);
}

// 2^n of exponent_of<127>.
template <class D, class V>
HWY_INLINE V power_of(D d, V exponent) {
  return op::BitCast(d, op::ShiftLeft<23>(op::BitCast(hn::RebindToSigned<D>(), exponent)));
}

// c0 + c1 x + c2 x^2 + ..., with x2 = x^2. Estrin's order: the chain of operations, which is what limits loops over
// arrays, is shorter than Horner's.
template <class D, class V>
HWY_INLINE V polynomial(D d, V x, V x2, float c0, float c1, float c2, float c3, float c4) {
  const V low = op::MulAdd(x, hn::Set(d, c1), hn::Set(d, c0));
  const V middle = op::MulAdd(x, hn::Set(d, c3), hn::Set(d, c2));
  return op::MulAdd(op::MulAdd(x2, hn::Set(d, c4), middle), x2, low);
}

template <class D, class V>
HWY_INLINE V polynomial(D d, V x, V x2, float c0, float c1, float c2, float c3, float c4, float c5, float c6,
                        float c7) {
  const V c01 = op::MulAdd(x, hn::Set(d, c1), hn::Set(d, c0));
  const V c23 = op::MulAdd(x, hn::Set(d, c3), hn::Set(d, c2));
  const V c45 = op::MulAdd(x, hn::Set(d, c5), hn::Set(d, c4));
  const V c67 = op::MulAdd(x, hn::Set(d, c7), hn::Set(d, c6));
  return op::MulAdd(op::MulAdd(c67, x2, c45), op::Mul(x2, x2), op::MulAdd(c23, x2, c01));
}

// 1 + c1 x + ... + c5 x^5 in Horner's order: with four vectors in flight it is the number of operations, and of
// registers, that counts.
template <class D, class V>
HWY_INLINE V one_plus(D d, V x, float c1, float c2, float c3, float c4, float c5) {
  V p = op::MulAdd(x, hn::Set(d, c5), hn::Set(d, c4));
  p = op::MulAdd(p, x, hn::Set(d, c3));
  p = op::MulAdd(p, x, hn::Set(d, c2));
  p = op::MulAdd(p, x, hn::Set(d, c1));
  return op::MulAdd(p, x, hn::Set(d, 1.0f));
}

// e^r of |r| <= 0.3468.
template <class D, class V>
HWY_INLINE V exp_of_remainder(D d, V r) {
  const V r2 = op::Mul(r, r);
  const V p = polynomial(d, r, r2, 0.49999994f, 0.166665211f, 0.0416682921f, 0.00836871564f, 0.00138186966f);
  return op::MulAdd(p, r2, op::Add(r, hn::Set(d, 1.0f)));
}

// The same with an error of 9.2e-8 of the result before rounding.
template <class D, class V>
HWY_INLINE V rough_exp_of_remainder(D d, V r) {
  return one_plus(d, r, 0.999999702f, 0.499991477f, 0.166676551f, 0.0418981574f, 0.00828906987f);
}

template <class D, class V>
HWY_INLINE V vec_exp_of_any(D d, V x) {
  const hn::RebindToSigned<D> di;
  // e^-104 rounds to zero, e^89 to infinity.
  x = clamp_keeping_nan(d, hn::Set(d, -104.0f), hn::Set(d, 89.0f), x);
  // 2^n in two factors, 2^(n + 64) 2^-64 or 2^(n - 64) 2^64, since it need not be a normal number. The difference of two
  // powers' exponents is the first one's, with the bias twice in what it is taken from.
  const V exponent = exponent_of<254>(d, x);
  const V p = rough_exp_of_remainder(d, remainder_of<254>(d, x, exponent));
  const auto second = op::IfNegativeThenElse(x, hn::Set(d, 0x1p-64f), hn::Set(d, 0x1p64f));
  const auto first = op::BitCast(d, op::Sub(op::ShiftLeft<23>(op::BitCast(di, exponent)), op::BitCast(di, second)));
  return op::Mul(op::Mul(p, first), second);
}

template <class D, class V>
HWY_INLINE V vec_exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  // For |x| < 87 all results are normal numbers: n is added to the exponent of p, and the result is the same as above.
  // The bits of a NaN are larger than those of 87, too.
  const auto magnitude = op::largest(op::And(op::BitCast(di, x), hn::Set(di, 0x7fffffff)));
  if (HWY_UNLIKELY(!hn::AllTrue(di, hn::Lt(magnitude, hn::Set(di, 0x42ae0000))))) return vec_exp_of_any(d, x);
  const V exponent = exponent_of<0>(d, x);
  const V p = rough_exp_of_remainder(d, remainder_of<0>(d, x, exponent));
  return op::BitCast(d, op::Add(op::BitCast(di, p), op::ShiftLeft<23>(op::BitCast(di, exponent))));
}

// e^x for x <= 88 (or NaN). Results below 2^-126.5 become zero.
template <class D, class V>
HWY_INLINE V vec_exp_bounded(D d, V x) {
  x = max_keeping_nan(d, hn::Set(d, -88.0f), x);
  const V exponent = exponent_of<127>(d, x);
  return op::Mul(exp_of_remainder(d, remainder_of<127>(d, x, exponent)), power_of(d, exponent));
}

template <class D, class V>
HWY_INLINE V vec_log(D d, V x) {
  const hn::RebindToSigned<D> di;
  const auto one = hn::Set(d, 1.0f);
  const auto tiny = op::Lt(x, hn::Set(d, 1.17549435e-38f));
  const V scaled = op::IfThenElse(tiny, op::Mul(x, hn::Set(d, 33554432.0f)), x);
  // scaled = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2)
  const auto bits = op::BitCast(di, scaled);
  const auto exponent = op::ShiftRight<23>(op::Sub(bits, hn::Set(di, 0x3f3504f3)));
  V e = op::ConvertTo(d, exponent);
  e = op::IfThenElse(tiny, op::Sub(e, hn::Set(d, 25.0f)), e);
  const V f = op::Sub(op::BitCast(d, op::Sub(bits, op::ShiftLeft<23>(exponent))), one);
  const V f2 = op::Mul(f, f);
  // log(1 + f) = f - f^2 / 2 + f^3 p(f)
  const V p = polynomial(d, f, f2, 0.333333313f, -0.250008196f, 0.200012416f, -0.166234091f, 0.142015815f,
                         -0.131596133f, 0.127621993f, -0.0763639957f);
  V y = op::Mul(op::Mul(p, f), f2);
  y = op::MulAdd(e, hn::Set(d, -2.12194440e-4f), y);
  y = op::NegMulAdd(f2, hn::Set(d, 0.5f), y);
  y = op::Add(f, y);
  y = op::MulAdd(e, hn::Set(d, 0.693359375f), y);
  // 0, negative numbers, infinity and NaN.
  const auto infinity = hn::Set(d, HUGE_VALF);
  y = op::IfThenElse(op::Lt(x, infinity), y, x);
  y = op::IfThenElse(op::Eq(x, hn::Zero(d)), op::Neg(infinity), y);
  return op::IfThenElse(op::Lt(x, hn::Zero(d)), hn::Set(d, NAN), y);
}

// log(1 + x) for 0 <= x <= 1.
template <class D, class V>
HWY_INLINE V vec_log1p_unit(D d, V x) {
  const V x2 = op::Mul(x, x);
  const V p = polynomial(d, x, x2, -0.499996483f, 0.3332133f, -0.248572171f, 0.191538483f, -0.137541875f, 0.0792088285f,
                         -0.0300683007f, 0.00536542246f);
  return op::MulAdd(p, x2, x);
}

// 1 / (1 + e^-x) = s / (s + e^-r) with x = n ln 2 + r and s = 2^n: nothing overflows, and s is zero for n = -127.
template <class D, class V>
HWY_INLINE V vec_sigmoid(D d, V x) {
  x = clamp_keeping_nan(d, hn::Set(d, -88.0f), hn::Set(d, 30.0f), x);
  const V exponent = exponent_of<127>(d, x);
  const V r = rough_remainder_of<127>(d, x, exponent);
  const V p = one_plus(d, r, -0.999999702f, 0.499991477f, -0.166676551f, 0.0418981574f, -0.00828906987f);
  const V s = power_of(d, exponent);
  return vec_quotient(d, s, op::Add(s, p));
}

// 1 / (1 + 2^-(x factor)) for products between -127.4 and 127.4 (or NaN), without the error of rounding the product.
template <class D, class V, class F>
HWY_INLINE V vec_sigmoid2(D d, V x, F factor) {
  const auto magic = exponent_magic<127>(d);
  const V exponent = op::MulAdd(x, factor, magic);
  // n - x factor
  const V f = op::NegMulAdd(x, factor, op::Sub(exponent, magic));
  const V p = one_plus(d, f, 0.693147004f, 0.240222469f, 0.0555071197f, 0.00967130717f, 0.00132691395f);
  const V s = power_of(d, exponent);
  return vec_quotient(d, s, op::Add(s, p));
}

// e^r - 1 of |r| <= 0.3468.
template <class D, class V>
HWY_INLINE V expm1_of_remainder(D d, V r) {
  const V r2 = op::Mul(r, r);
  const V p = polynomial(d, r, r2, 0.49999997f, 0.16666545f, 0.0416674465f, 0.00836644694f, 0.00138698414f);
  return op::MulAdd(p, r2, r);
}

// x for x >= 0, else e^x - 1.
template <class D, class V>
HWY_INLINE V vec_elu(D d, V x) {
  // 2^n q + (2^n - 1) with q = e^r - 1. e^-25 does not change 1.
  const V clamped = clamp_keeping_nan(d, hn::Set(d, -25.0f), hn::Zero(d), x);
  const V exponent = exponent_of<127>(d, clamped);
  const V r = rough_remainder_of<127>(d, clamped, exponent);
  const V s = power_of(d, exponent);
  const V y = op::MulAdd(s, expm1_of_remainder(d, r), op::Sub(s, hn::Set(d, 1.0f)));
  // The larger of both, as y >= x for x <= 0, also when rounded: y = r + r^2 p with p > 0 for n = 0, and much larger
  // for n < 0. Of two zeros, and if any is a NaN, x86 gives the second.
  if constexpr (HWY_ARCH_X86 && !kEmulated) {
    return op::Max(y, x);
  } else {
    return op::IfThenElse(op::Lt(x, y), y, x);
  }
}

// x P(x^2) / Q(x^2), fitted to |x| <= 8. Beyond, where x^2 is held, the quotient grows with x until it is held at 1.
template <class D, class V>
HWY_INLINE V vec_tanh(D d, V x) {
#if HWY_ARCH_ARM
  // vec_quotient() takes no infinity.
  x = clamp_keeping_nan(d, hn::Set(d, -10.0f), hn::Set(d, 10.0f), x);
#endif
  const V z = min_keeping_nan(d, hn::Set(d, 64.0f), op::Mul(x, x));
  V p = op::MulAdd(z, hn::Set(d, 0.0178709738f), hn::Set(d, 25.6905479f));
  V q = op::Add(z, hn::Set(d, 400.270508f));
  p = op::MulAdd(p, z, hn::Set(d, 4190.80078f));
  q = op::MulAdd(q, z, hn::Set(d, 30700.5215f));
  p = op::MulAdd(p, z, hn::Set(d, 157753.375f));
  q = op::MulAdd(q, z, hn::Set(d, 548875.625f));
  p = op::MulAdd(p, z, hn::Set(d, 1173367.0f));
  q = op::MulAdd(q, z, hn::Set(d, 1173367.0f));
  V y = vec_quotient(d, op::Mul(x, p), q);
#if HWY_ARCH_ARM
  y = op::CopySign(y, x);  // nor does it keep the sign of a zero
#endif
  return clamp_keeping_nan(d, hn::Set(d, -1.0f), hn::Set(d, 1.0f), y);
}

// (1 + erf(x / sqrt(2))) / 2, the integral of the normal distribution: 1/2 + x P(x^2) / Q(x^2), fitted to |x| <= 5.2.
// Beyond, where x^2 is held, the quotient grows with x until it is held at 1/2.
template <class D, class V>
HWY_INLINE V vec_normal_cdf(D d, V x) {
#if HWY_ARCH_ARM
  // vec_quotient() takes no infinity.
  x = clamp_keeping_nan(d, hn::Set(d, -10.0f), hn::Set(d, 10.0f), x);
#endif
  const V z = min_keeping_nan(d, hn::Set(d, 27.04f), op::Mul(x, x));
  V p = op::MulAdd(z, hn::Set(d, 11.6370678f), hn::Set(d, 626.150574f));
  V q = op::Add(z, hn::Set(d, 224.629242f));
  p = op::MulAdd(p, z, hn::Set(d, 10995.6094f));
  q = op::MulAdd(q, z, hn::Set(d, 5387.01904f));
  p = op::MulAdd(p, z, hn::Set(d, 98811.1719f));
  q = op::MulAdd(q, z, hn::Set(d, 74396.5859f));
  p = op::MulAdd(p, z, hn::Set(d, 794852.812f));
  q = op::MulAdd(q, z, hn::Set(d, 579738.188f));
  q = op::MulAdd(q, z, hn::Set(d, 1992402.38f));
  const V y = vec_quotient(d, op::Mul(x, p), q);
  return op::Add(clamp_keeping_nan(d, hn::Set(d, -0.5f), hn::Set(d, 0.5f), y), hn::Set(d, 0.5f));
}

// log(1 + e^x)
template <class D, class V>
HWY_INLINE V vec_softplus(D d, V x) {
  const V e = vec_exp_bounded(d, op::Neg(op::Abs(x)));
  return op::Add(max_keeping_nan(d, hn::Zero(d), x), vec_log1p_unit(d, e));
}

constexpr float kTrigonometricLimit = 25000.0f;

// sin(r) for |r| <= pi / 2, with the sign of bit 0 of `odd`.
template <class D, class V, class VI>
HWY_INLINE V sin_of_remainder(D d, V r, VI odd) {
  const V z = op::Mul(r, r);
  V p = op::MulAdd(z, hn::Set(d, 2.60607476e-06f), hn::Set(d, -0.000198097725f));
  p = op::MulAdd(p, z, hn::Set(d, 0.00833306927f));
  p = op::MulAdd(p, z, hn::Set(d, -0.166666597f));
  p = op::MulAdd(p, op::Mul(z, r), r);
  p = op::Max(hn::Set(d, -1.0f), op::Min(hn::Set(d, 1.0f), p));
  return op::Xor(p, op::BitCast(d, op::ShiftLeft<31>(odd)));
}

// x - n pi, with pi in four parts of 10, 10, 10 and 24 bits: products with n of at most 14 bits are exact.
template <class D, class V>
HWY_INLINE V subtract_multiple_of_pi(D d, V x, V n) {
  x = op::NegMulAdd(n, hn::Set(d, 3.140625f), x);
  x = op::NegMulAdd(n, hn::Set(d, 9.670257568359375e-4f), x);
  x = op::NegMulAdd(n, hn::Set(d, 6.277114152908325e-7f), x);
  return op::NegMulAdd(n, hn::Set(d, 1.215420125655342e-10f), x);
}

template <class D, class V>
HWY_INLINE V vec_sin(D d, V x) {
  const hn::RebindToSigned<D> di;
  const auto magic = hn::Set(d, 12582912.0f);
  const V shifted = op::MulAdd(x, hn::Set(d, 0.318309886f), magic);
  V y = sin_of_remainder(d, subtract_multiple_of_pi(d, x, op::Sub(shifted, magic)), op::BitCast(di, shifted));
  const auto small = op::Le(op::Abs(x), hn::Set(d, kTrigonometricLimit));
  if (HWY_UNLIKELY(!hn::AllTrue(d, small))) {
    y = op::IfThenElse(small, y, each_lane(d, x, [](float v) { return std::sin(v); }));
  }
  return y;
}

// cos(x) = sin(x + pi / 2) = (-1)^n sin(r) with x = (n - 1/2) pi + r.
template <class D, class V>
HWY_INLINE V vec_cos(D d, V x) {
  const hn::RebindToSigned<D> di;
  const auto half = hn::Set(d, 0.5f);
  const auto magic = hn::Set(d, 12582912.0f);
  const V shifted = op::Add(op::MulAdd(x, hn::Set(d, 0.318309886f), half), magic);
  const V n = op::Sub(op::Sub(shifted, magic), half);
  V y = sin_of_remainder(d, subtract_multiple_of_pi(d, x, n), op::BitCast(di, shifted));
  const auto small = op::Le(op::Abs(x), hn::Set(d, kTrigonometricLimit));
  if (HWY_UNLIKELY(!hn::AllTrue(d, small))) {
    y = op::IfThenElse(small, y, each_lane(d, x, [](float v) { return std::cos(v); }));
  }
  return y;
}

template <class D, class V>
HWY_INLINE V vec_pow(D d, V x, V y) {
  HWY_ALIGN float bases[hn::MaxLanes(d)];
  HWY_ALIGN float exponents[hn::MaxLanes(d)];
  hn::Store(x, d, bases);
  hn::Store(y, d, exponents);
  for (size_t i = 0; i < hn::Lanes(d); ++i) bases[i] = std::pow(bases[i], exponents[i]);
  return hn::Load(d, bases);
}

// 1 / sqrt(x) to two ulps. An estimate y has the residue r = 1 - x y^2; 1 / sqrt(x) is y (1 - r)^(-1/2), a binomial series
// in r. Estimates have 11 bits on x86 and 8 on Arm, which need another term.
template <class D, class V>
HWY_INLINE V vec_rsqrt(D d, V x) {
  constexpr bool kFine = HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128;
  const hn::RebindToSigned<D> di;
  const auto one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f);
  const V y = op::ApproximateReciprocalSqrt(x);
  const V r = op::NegMulAdd(op::Mul(x, y), y, one);
  V factor;
  if constexpr (kFine) {
    factor = op::MulAdd(r, hn::Set(d, 0.375f), half);
  } else {
    factor = op::MulAdd(r, op::MulAdd(r, hn::Set(d, 0.3125f), hn::Set(d, 0.375f)), half);
  }
  const V z = op::MulAdd(op::Mul(y, r), factor, y);
  // Positive normal numbers have bits from 0x00800000 to 0x7f7fffff. Others are seldom: 0, denormals, inf, below 0, NaN.
  const auto shifted = op::Add(op::BitCast(di, x), hn::Set(di, 0x7f800000));
  if (HWY_LIKELY(hn::AllTrue(di, hn::Lt(op::largest(shifted), hn::Set(di, -0x01000000))))) return z;
  const V nearest =
      op::Min(op::Max(x, hn::Set(d, std::numeric_limits<float>::min())), hn::Set(d, std::numeric_limits<float>::max()));
  return op::IfThenElse(op::Eq(nearest, x), z, op::Div(one, op::Sqrt(x)));
}

}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#endif
