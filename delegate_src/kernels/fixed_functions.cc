#include "kernels/fixed_functions.h"

namespace litefuse {
namespace {

constexpr int32_t kMax = std::numeric_limits<int32_t>::max();

int32_t mul(int32_t a, int32_t b) { return rounding_doubling_high_mul(a, b); }

int32_t saturate(int64_t x) {
  return static_cast<int32_t>(std::min<int64_t>(std::max<int64_t>(x, std::numeric_limits<int32_t>::min()), kMax));
}

// x * 2^n, 0 <= n <= 31. It also turns Qm into Q(m - n).
int32_t saturating_shift_left(int32_t x, int n) { return saturate(int64_t{x} * (int64_t{1} << n)); }

// (a + b) / 2, halves away from zero.
int32_t rounding_half_sum(int32_t a, int32_t b) {
  const int64_t sum = int64_t{a} + b;
  return static_cast<int32_t>((sum + (sum >= 0 ? 1 : -1)) / 2);
}

// e^x in Q0.31 for -1/4 <= x < 0 in Q0.31: Taylor's series around -1/8.
int32_t exp_near_zero(int32_t x) {
  constexpr int32_t kExpOfMinusEighth = 1895147668;
  constexpr int32_t kThird = 715827883;
  const int32_t d = x + (1 << 28);
  const int32_t d2 = mul(d, d);
  const int32_t d3 = mul(d2, d);
  const int32_t d4 = mul(d2, d2);
  const int32_t tail = rounding_divide_by_pot(mul(rounding_divide_by_pot(d4, 2) + d3, kThird) + d2, 1);
  return kExpOfMinusEighth + mul(kExpOfMinusEighth, d + tail);
}

}  // namespace

int leading_zeros(uint32_t x) {
  int zeros = 0;
  for (uint32_t bit = 1u << 31; bit != 0 && (x & bit) == 0; bit >>= 1) ++zeros;
  return zeros;
}

int32_t fixed_exp(int32_t x) {
  if (x == 0) return kMax;
  // x is a part in [-1/4, 0) less a sum of powers of two from 1/4 to 16, and these are the powers of e for them.
  constexpr int32_t kFactors[] = {1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242};
  constexpr int32_t kQuarter = 1 << 24;
  const int32_t part = (x & (kQuarter - 1)) - kQuarter;
  const auto rest = static_cast<uint32_t>(part) - static_cast<uint32_t>(x);
  int32_t result = exp_near_zero(saturating_shift_left(part, 5));
  uint32_t bit = kQuarter;
  for (const int32_t factor : kFactors) {
    if (rest & bit) result = mul(result, factor);
    bit <<= 1;
  }
  return result;
}

int32_t fixed_one_over_one_plus(int32_t x) {
  // Newton's iteration for the reciprocal of (1 + x) / 2, in Q2.29, from the best linear guess 48/17 - 32/17 d.
  const int32_t half_denominator = rounding_half_sum(x, kMax);
  int32_t guess = 1515870810 + mul(half_denominator, -1010580540);
  for (int i = 0; i < 3; ++i) {
    const int32_t error = (1 << 29) - mul(half_denominator, guess);
    guess += saturating_shift_left(mul(guess, error), 2);
  }
  return saturating_shift_left(guess, 1);
}

Reciprocal fixed_reciprocal(uint32_t x) {
  const int zeros = leading_zeros(x);
  const uint32_t normal = x << static_cast<uint32_t>(zeros);  // in [1, 2) with 31 fractional bits
  return {fixed_one_over_one_plus(static_cast<int32_t>(normal - (1u << 31))), 12 - zeros};
}

int32_t fixed_log(int32_t x) {
  constexpr int32_t kLn2 = 1488522236;
  constexpr int32_t kHalfToTheQuarter = 1805811301;  // sqrt(sqrt(1/2))
  constexpr int32_t kSqrtHalf = 1518500250;
  // Coefficients of the rational approximation, multiples of sqrt(sqrt(2)).
  constexpr int32_t kNum = 117049297;
  constexpr int32_t kDenomSquare = 127690142;
  constexpr int32_t kDenomConstant = 1057819769;
  constexpr int32_t kDenomLinear = 638450708;
  constexpr int32_t kQuarter = 1 << 23;  // in Q6.25

  // x = r * 2^power by two ways of choosing r, of which the one with the smaller r is taken.
  const int zeros_a = leading_zeros(static_cast<uint32_t>(x));
  const int32_t r_a = saturating_shift_left(mul(saturating_shift_left(x, std::max(zeros_a - 1, 0)), kSqrtHalf), 1);
  const int32_t power_a = saturate(int64_t{saturating_shift_left(12 - zeros_a, 25)} + kQuarter);
  const int zeros_b = std::max(leading_zeros(static_cast<uint32_t>(mul(x, kSqrtHalf))) - 1, 0);
  const int32_t r_b = saturating_shift_left(x, zeros_b);
  const int32_t power_b = saturate(int64_t{saturating_shift_left(12 - zeros_b, 25)} - kQuarter);
  const int32_t r = std::min(r_a, r_b);
  const int32_t power = std::max(power_a, power_b);

  const int32_t p = rounding_half_sum(r, kHalfToTheQuarter);
  const int32_t q = saturate(2 * (int64_t{r} - kHalfToTheQuarter));
  const int32_t square = mul(q, q);
  const int32_t numerator = mul(q, r) + mul(mul(q, square), kNum);
  const int32_t denominator = mul(p, kDenomConstant + q + mul(kDenomSquare, square)) + mul(kDenomLinear, q);
  const int32_t quotient = mul(rounding_divide_by_pot(numerator, 6), fixed_one_over_one_plus(denominator));
  return saturating_shift_left(mul(power, kLn2) + quotient, 1);
}

Multiplier fixed_inverse_sqrt(int32_t x) {
  if (x <= 1) return {kMax, 0};
  int shift = 11;
  while (x >= (1 << 29)) {
    x /= 4;
    ++shift;
  }
  const int pairs = (leading_zeros(static_cast<uint32_t>(x)) - 1) / 2 - 1;
  shift -= pairs;
  x <<= 2 * pairs;
  // Newton's iteration y = y (3 - x y^2) / 2 from 1, in Q3.28, for x in [1/4, 1).
  const int32_t input = x >> 1;
  const int32_t half_input = rounding_divide_by_pot(input, 1);
  constexpr int32_t kHalfThree = (1 << 28) + (1 << 27);
  int32_t y = 1 << 28;
  for (int i = 0; i < 5; ++i) {
    const int32_t cube = saturating_shift_left(mul(mul(y, y), y), 6);
    y = saturating_shift_left(mul(kHalfThree, y) - mul(half_input, cube), 3);
  }
  int32_t fraction = mul(y, 1518500250);  // sqrt(1/2)
  if (shift < 0) {
    fraction = shift_left(fraction, -shift);
    shift = 0;
  }
  return {fraction, -shift};
}

}  // namespace litefuse
