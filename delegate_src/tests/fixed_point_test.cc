// The integer arithmetic against what it stands for, worked out in wider integers.
#include "kernels/fixed_point.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace litefuse {
namespace {

__extension__ using Wide = __int128;

constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
constexpr int kRandomCases = 200000;

// Numbers of every size, with those around powers of two more often than chance would have it.
class Numbers {
 public:
  int32_t next() {
    const auto bits = static_cast<uint32_t>(engine_());
    switch (engine_() % 3) {
      case 0:
        return static_cast<int32_t>(bits);
      case 1:
        return static_cast<int32_t>(bits) >> (engine_() % 32);
      default: {
        const uint32_t near = (uint32_t{1} << (engine_() % 32)) + bits % 5 - 2;
        return static_cast<int32_t>(engine_() % 2 ? near : ~near);
      }
    }
  }
  uint32_t below(uint32_t end) { return static_cast<uint32_t>(engine_() % end); }

 private:
  std::mt19937_64 engine_{7};
};

std::vector<int32_t> edges() {
  std::vector<int32_t> numbers = {kMin, kMin + 1, kMax, kMax - 1, 0};
  for (int i = 0; i < 31; ++i) {
    for (int d = -1; d <= 1; ++d) {
      numbers.push_back((1 << i) + d);
      numbers.push_back(-(1 << i) + d);
    }
  }
  return numbers;
}

// a / b, rounded to nearest, halves away from zero; b > 0.
Wide nearest(Wide a, Wide b) { return a >= 0 ? (2 * a + b) / (2 * b) : -((-2 * a + b) / (2 * b)); }

// The same with halves upwards.
Wide nearest_up(Wide a, Wide b) {
  const Wide doubled = 2 * a + b;
  const Wide quotient = doubled / (2 * b);
  return quotient - (doubled % (2 * b) < 0 ? 1 : 0);
}

// (a * b * 2) / 2^32 with TFLite's nudge, which takes halves of negative products upwards.
int32_t high_mul(int32_t a, int32_t b) {
  if (a == kMin && b == kMin) return kMax;
  return static_cast<int32_t>(nearest_up(Wide{a} * b, Wide{1} << 31));
}

TEST(FixedPoint, HighMulIsTheNearestOfTheProduct) {
  for (const int32_t a : edges()) {
    for (const int32_t b : edges()) ASSERT_EQ(rounding_doubling_high_mul(a, b), high_mul(a, b)) << a << " " << b;
  }
  Numbers numbers;
  for (int i = 0; i < kRandomCases; ++i) {
    const int32_t a = numbers.next(), b = numbers.next();
    ASSERT_EQ(rounding_doubling_high_mul(a, b), high_mul(a, b)) << a << " " << b;
  }
}

TEST(FixedPoint, HighMulSaturatesInOnePlaceOnly) {
  EXPECT_EQ(rounding_doubling_high_mul(kMin, kMin), kMax);
  EXPECT_EQ(rounding_doubling_high_mul(kMin, kMax), -kMax);
  EXPECT_EQ(rounding_doubling_high_mul(kMin, kMin + 1), kMax);
}

TEST(FixedPoint, DividingByPowersOfTwoRoundsHalvesAwayFromZero) {
  for (int exponent = 0; exponent <= 31; ++exponent) {
    for (const int32_t x : edges()) {
      ASSERT_EQ(rounding_divide_by_pot(x, exponent), nearest(x, Wide{1} << exponent)) << x << " " << exponent;
    }
  }
  // Everything that small numbers can do.
  for (int exponent = 0; exponent <= 12; ++exponent) {
    for (int32_t x = -9000; x <= 9000; ++x) {
      ASSERT_EQ(rounding_divide_by_pot(x, exponent), nearest(x, Wide{1} << exponent)) << x << " " << exponent;
    }
  }
  Numbers numbers;
  for (int i = 0; i < kRandomCases; ++i) {
    const int32_t x = numbers.next();
    const auto exponent = static_cast<int>(numbers.below(32));
    ASSERT_EQ(rounding_divide_by_pot(x, exponent), nearest(x, Wide{1} << exponent)) << x << " " << exponent;
  }
}

TEST(FixedPoint, ShiftsKeepTheLowBits) {
  for (int shift = 0; shift <= 31; ++shift) {
    for (const int32_t x : edges()) {
      const auto kept = static_cast<uint32_t>(Wide{x} * (Wide{1} << shift) & 0xFFFFFFFF);
      ASSERT_EQ(static_cast<uint32_t>(shift_left(x, shift)), kept) << x << " " << shift;
    }
  }
}

TEST(FixedPoint, MultiplyRoundsTwice) {
  Numbers numbers;
  for (int i = 0; i < kRandomCases; ++i) {
    const int32_t x = numbers.next();
    const Multiplier m{static_cast<int32_t>((1u << 30) + numbers.below(1u << 30)),
                       static_cast<int32_t>(numbers.below(62)) - 31};
    const auto shifted =
        static_cast<int32_t>(static_cast<uint32_t>(Wide{x} * (Wide{1} << std::max(m.shift, 0)) & 0xFFFFFFFF));
    const int32_t expected =
        static_cast<int32_t>(nearest(high_mul(shifted, m.fraction), Wide{1} << std::max(-m.shift, 0)));
    ASSERT_EQ(multiply(x, m), expected) << x << " " << m.fraction << " " << m.shift;
  }
}

TEST(FixedPoint, MultiplyIsNearTheRealProduct) {
  Numbers numbers;
  for (int i = 0; i < kRandomCases; ++i) {
    const int32_t x = numbers.next() >> 8;
    const double factor = std::exp2(static_cast<double>(numbers.below(3200)) / 100 - 31);
    const double real = x * factor;
    // Half a unit for either rounding, and what the fraction is away from the factor.
    ASSERT_NEAR(multiply(x, multiplier_of(factor)), real, 1.0 + std::abs(real) * 1e-9) << x << " " << factor;
  }
}

TEST(FixedPoint, WideMultiplyRoundsOnceWithAShortFactor) {
  Numbers numbers;
  for (int i = 0; i < kRandomCases; ++i) {
    const Multiplier m{static_cast<int32_t>((1u << 30) + numbers.below(1u << 30)),
                       static_cast<int32_t>(numbers.below(39)) - 31};
    const int64_t half = int64_t{1} << (numbers.below(46) + 1);
    int64_t x = (int64_t{numbers.next()} * (1 << 16) + numbers.next()) % half;
    // The result has to fit, which kernels see to.
    while (std::abs(static_cast<double>(x)) * std::exp2(m.shift) >= 2147483647.0) x /= 2;
    const auto reduced = static_cast<int32_t>(std::min<Wide>(0x7FFF, nearest_up(m.fraction, 1 << 16)));
    const auto expected = static_cast<int32_t>(nearest_up(Wide{x} * reduced, Wide{1} << (15 - m.shift)));
    ASSERT_EQ(multiply(x, m), expected) << x << " " << m.fraction << " " << m.shift;
  }
}

TEST(FixedPoint, MultipliersAreTheNearestFractions) {
  Numbers numbers;
  for (int i = 0; i < kRandomCases; ++i) {
    const int exponent = static_cast<int>(numbers.below(61)) - 30;
    const double mantissa = 0.5 + static_cast<double>(numbers.below(1u << 31)) / 4294967296.0 + numbers.below(8) / 1e11;
    const double factor = std::ldexp(mantissa, exponent);
    const Multiplier m = multiplier_of(factor);
    ASSERT_GE(m.fraction, 1 << 30);
    ASSERT_NEAR(std::ldexp(m.fraction, m.shift - 31), factor, std::ldexp(0.5001, exponent - 31)) << factor;
  }
}

TEST(FixedPoint, MultipliersOfPowersOfTwoAreExact) {
  for (int exponent = -31; exponent <= 30; ++exponent) {
    const Multiplier m = multiplier_of(std::ldexp(0.5, exponent));
    EXPECT_EQ(m.fraction, 1 << 30);
    EXPECT_EQ(m.shift, exponent);
  }
}

TEST(FixedPoint, AFractionThatRoundsUpToOneMovesTheShift) {
  const Multiplier m = multiplier_of(std::nextafter(1.0, 0.0));
  EXPECT_EQ(m.fraction, 1 << 30);
  EXPECT_EQ(m.shift, 1);
}

TEST(FixedPoint, MultipliersEndSomewhere) {
  EXPECT_EQ(multiplier_of(0.0).fraction, 0);
  EXPECT_EQ(multiplier_of(-1.0).fraction, 0);
  EXPECT_EQ(multiplier_of(std::nan("")).fraction, 0);
  EXPECT_EQ(multiplier_of(HUGE_VAL).fraction, 0);
  EXPECT_EQ(multiplier_of(std::ldexp(0.5, -32)).fraction, 0);
  EXPECT_EQ(multiplier_of(DBL_MIN).fraction, 0);
  const Multiplier largest = multiplier_of(DBL_MAX);
  EXPECT_EQ(largest.fraction, kMax);
  EXPECT_EQ(largest.shift, 30);
}

TEST(FixedPoint, RangesAreThoseOfTheTypes) {
  EXPECT_EQ(range_of(Type::kUInt8).min, 0);
  EXPECT_EQ(range_of(Type::kUInt8).max, 255);
  EXPECT_EQ(range_of(Type::kInt8).min, -128);
  EXPECT_EQ(range_of(Type::kInt8).max, 127);
  EXPECT_EQ(range_of(Type::kInt16).min, -32768);
  EXPECT_EQ(range_of(Type::kInt16).max, 32767);
  EXPECT_EQ(range_of(Type::kInt32).min, kMin);
  EXPECT_EQ(range_of(Type::kInt8).clamp(-129), -128);
  EXPECT_EQ(range_of(Type::kInt8).clamp(128), 127);
  EXPECT_EQ(range_of(Type::kInt8).clamp(5), 5);
}

Range stored_range(Activation activation, Type type, float scale, int32_t zero_point) {
  Tensor output;
  output.type = type;
  output.quantization = {{scale}, {zero_point}, 0};
  Range range;
  const Status status = activation_range(activation, output, &range);
  EXPECT_TRUE(status.ok()) << status.reason();
  return range;
}

TEST(FixedPoint, ActivationsCutTheStoredRange) {
  EXPECT_EQ(stored_range(Activation::kNone, Type::kInt8, 0.1f, 3).min, -128);
  EXPECT_EQ(stored_range(Activation::kRelu, Type::kInt8, 0.1f, 3).min, 3);
  EXPECT_EQ(stored_range(Activation::kRelu, Type::kInt8, 0.1f, 3).max, 127);
  EXPECT_EQ(stored_range(Activation::kRelu6, Type::kInt8, 0.1f, -20).min, -20);
  EXPECT_EQ(stored_range(Activation::kRelu6, Type::kInt8, 0.1f, -20).max, 40);
  EXPECT_EQ(stored_range(Activation::kReluN1To1, Type::kUInt8, 0.01f, 120).min, 20);
  EXPECT_EQ(stored_range(Activation::kReluN1To1, Type::kUInt8, 0.01f, 120).max, 220);
  // Bounds beyond what the type holds change nothing; the smallest scales must not overflow.
  EXPECT_EQ(stored_range(Activation::kRelu6, Type::kUInt8, 0.01f, 0).max, 255);
  EXPECT_EQ(stored_range(Activation::kReluN1To1, Type::kInt16, FLT_MIN, 0).max, 32767);
  EXPECT_EQ(stored_range(Activation::kReluN1To1, Type::kInt16, FLT_MIN, 0).min, -32768);
}

TEST(FixedPoint, ActivationsThatNeedMoreAreRefused) {
  Tensor output;
  output.type = Type::kInt8;
  Range range;
  EXPECT_TRUE(activation_range(Activation::kNone, output, &range).ok());
  EXPECT_NE(activation_range(Activation::kRelu, output, &range).reason().find("no quantisation"), std::string::npos);
  output.quantization = {{0.5f}, {0}, 0};
  EXPECT_NE(activation_range(Activation::kTanh, output, &range).reason().find("not supported"), std::string::npos);
  float min = 0, max = 0;
  EXPECT_NE(activation_range(Activation::kSignBit, &min, &max).reason().find("not supported"), std::string::npos);
}

TEST(FixedPoint, FloatActivationsHaveTheirBounds) {
  float min = 0, max = 0;
  ASSERT_TRUE(activation_range(Activation::kNone, &min, &max).ok());
  EXPECT_EQ(min, std::numeric_limits<float>::lowest());
  EXPECT_EQ(max, std::numeric_limits<float>::max());
  ASSERT_TRUE(activation_range(Activation::kRelu, &min, &max).ok());
  EXPECT_EQ(min, 0.0f);
  EXPECT_EQ(max, std::numeric_limits<float>::max());
  ASSERT_TRUE(activation_range(Activation::kRelu6, &min, &max).ok());
  EXPECT_EQ(max, 6.0f);
  ASSERT_TRUE(activation_range(Activation::kReluN1To1, &min, &max).ok());
  EXPECT_EQ(min, -1.0f);
  EXPECT_EQ(max, 1.0f);
}

TEST(FixedPoint, ClampingLetsNaNPass) {
  EXPECT_TRUE(std::isnan(clamp_to(std::nanf(""), 0.0f, 6.0f)));
  EXPECT_EQ(clamp_to(7.0f, 0.0f, 6.0f), 6.0f);
  EXPECT_EQ(clamp_to(-7.0f, 0.0f, 6.0f), 0.0f);
}

}  // namespace
}  // namespace litefuse
