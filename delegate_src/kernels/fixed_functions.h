// Elementary functions on fixed-point numbers in 32 bits, step for step as TFLite's reference kernels compute them.
// Qm.n is a sign, m integer and n fractional bits, m + n = 31. The product of Qa and Qb is Q(a + b).
#pragma once

#include <cstdint>

#include "kernels/fixed_point.h"

namespace litefuse {

// A fraction in Q0.31 with a power of two: value * 2^-shift.
struct Reciprocal {
  int32_t fraction = 0;
  int shift = 0;
};

// Zero bits before the first one; 32 for 0.
int leading_zeros(uint32_t x);

// e^x in Q0.31 for x <= 0 in Q5.26.
int32_t fixed_exp(int32_t x);

// 1 / (1 + x) in Q0.31 for 0 <= x < 1 in Q0.31.
int32_t fixed_one_over_one_plus(int32_t x);

// 1 / x for x in Q12.19, read without a sign and not 0. The fraction is in [1/2, 1).
Reciprocal fixed_reciprocal(uint32_t x);

// ln x in Q5.26 for x >= 1 in Q12.19.
int32_t fixed_log(int32_t x);

// 1 / sqrt(x) of an integer; 0 counts as 1.
Multiplier fixed_inverse_sqrt(int32_t x);

}  // namespace litefuse
