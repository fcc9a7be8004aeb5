// The elementwise vector kernels against float64, on every instruction set of this processor.
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "kernels/simd/elementwise.h"
#include "kernels/simd/elementwise_cases.h"
#include "tests/simd_targets.h"

namespace litefuse {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kSmallest = 1.1754943508222875e-38;  // normal number
constexpr float kCanary = -123.25f;

double ulp(float x) {
  if (std::fabs(x) < 2.0f * static_cast<float>(kSmallest)) return std::ldexp(1.0, -149);
  int exponent;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, exponent - 24);
}

float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

bool same(float x, float y) { return bits_of(x) == bits_of(y) || (std::isnan(x) && std::isnan(y)); }

// Whether y is what was expected, but for an error of so much.
bool close(float y, float expected, double error) {
  if (std::isnan(expected)) return std::isnan(y);
  if (y == expected) return true;
  if (std::isinf(expected) || std::isinf(y)) {
    // The largest number may be rounded to infinity if it may have an error.
    return error > 0 && std::fabs(y) >= 3.4028e38f && std::fabs(expected) >= 3.4028e38f && (y > 0) == (expected > 0);
  }
  return std::fabs(static_cast<double>(y) - expected) <= error;
}

double error_of(const UnaryCase& c, float x, float expected) {
  double error = c.ulps * ulp(expected);
  if (std::isinf(x)) return error;
  const double magnitude = std::fabs(static_cast<double>(x));
  error = std::max(error, c.per_x * magnitude);
  error = std::max(error, c.per_product * magnitude * std::fabs(c.a));
  if (c.flushes) error = std::max(error, kSmallest * std::max(1.0, magnitude));
  return error;
}

void compare_unary(const UnaryCase& c, const std::vector<float>& x) {
  SCOPED_TRACE(c.name);
  std::vector<float> y(x.size()), expected(x.size());
  elementwise_kernels().unary(c.f, c.a, c.b, x.data(), y.data(), x.size());
  elementwise_reference().unary(c.f, c.a, c.b, x.data(), expected.data(), x.size());
  int wrong = 0;
  for (size_t i = 0; i < x.size() && wrong < 5; ++i) {
    if (close(y[i], expected[i], error_of(c, x[i], expected[i]))) continue;
    ++wrong;
    ADD_FAILURE() << x[i] << " gave " << y[i] << " instead of " << expected[i]
                  << ", ulps: " << (static_cast<double>(y[i]) - expected[i]) / ulp(expected[i]);
  }
}

// Floats of all exponents and both signs, among them denormals and NaN.
TEST(Elementwise, UnaryOverAllExponents) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 40961)
    x.push_back(from_bits(static_cast<uint32_t>(bits)));
  for_each_target([&] {
    for (const UnaryCase& c : kUnaryCases) compare_unary(c, x);
  });
}

// Where activations have their arguments.
TEST(Elementwise, UnaryOverUsualNumbers) {
  std::vector<float> x;
  for (int i = -100000; i <= 100000; ++i) x.push_back(static_cast<float>(i) * 0.00105f);
  for (int i = -20000; i <= 20000; ++i) x.push_back(static_cast<float>(i) * 1.03f);
  for_each_target([&] {
    for (const UnaryCase& c : kUnaryCases) compare_unary(c, x);
  });
}

TEST(Elementwise, UnarySpecialNumbers) {
  const std::vector<float> x = {
      0.0f,           -0.0f,    1.0f,       -1.0f,          kInfinity,       -kInfinity,   kNaN,       3.4028234e38f,
      -3.4028234e38f, 1e-45f,   -1e-45f,    1.1754944e-38f, -1.1754944e-38f, 0.5f,         -0.5f,      1.5f,
      2.5f,           -2.5f,    8388607.5f, -8388607.5f,    8388609.0f,      4194304.5f,   1e10f,      -1e10f,
      88.0f,          -88.0f,   88.72283f,  88.72284f,      89.0f,           -87.33654f,   -103.9f,    -104.1f,
      127.0f,         20.0f,    30.0f,      9.02f,          -9.02f,          3.0f,         -3.0f,      6.0f,
      25000.0f,       25001.0f, 1e30f,      -1e30f,         0.99999994f,     -0.49999997f, 0.49999997f};
  for_each_target([&] {
    for (const UnaryCase& c : kUnaryCases) compare_unary(c, x);
  });
}

float one(Unary f, float x, float a = 0.0f, float b = 0.0f) {
  float y;
  elementwise_kernels().unary(f, a, b, &x, &y, 1);
  return y;
}

// What is promised beyond the comparison with the reference, which takes zeros of both signs as equal.
TEST(Elementwise, UnaryPromises) {
  for_each_target([] {
    EXPECT_EQ(one(Unary::kExp, kInfinity), kInfinity);
    EXPECT_TRUE(same(one(Unary::kExp, -kInfinity), 0.0f));
    EXPECT_EQ(one(Unary::kExp, 0.0f), 1.0f);
    EXPECT_NEAR(one(Unary::kExp, -100.0f), 3.783506e-44f, 1.5e-45f);  // a denormal number
    EXPECT_EQ(one(Unary::kLog, 0.0f), -kInfinity);
    EXPECT_EQ(one(Unary::kLog, -0.0f), -kInfinity);
    EXPECT_TRUE(std::isnan(one(Unary::kLog, -1.0f)));
    EXPECT_TRUE(std::isnan(one(Unary::kLog, -kInfinity)));
    EXPECT_EQ(one(Unary::kLog, kInfinity), kInfinity);
    EXPECT_TRUE(same(one(Unary::kLog, 1.0f), 0.0f));
    EXPECT_EQ(one(Unary::kSigmoid, kInfinity), 1.0f);
    EXPECT_TRUE(same(one(Unary::kSigmoid, -kInfinity), 0.0f));
    EXPECT_EQ(one(Unary::kSigmoid, 0.0f), 0.5f);
    EXPECT_NEAR(one(Unary::kSigmoid, -80.0f) / 1.8048513878454153e-35f, 1.0f, 5e-7f);
    EXPECT_NEAR(one(Unary::kSilu, -20.0f) / -4.1223072e-08f, 1.0f, 5e-7f);
    EXPECT_EQ(one(Unary::kTanh, kInfinity), 1.0f);
    EXPECT_EQ(one(Unary::kTanh, -kInfinity), -1.0f);
    EXPECT_TRUE(same(one(Unary::kTanh, 0.0f), 0.0f));
    EXPECT_EQ(one(Unary::kGelu, kInfinity), kInfinity);
    EXPECT_EQ(one(Unary::kGeluTanh, kInfinity), kInfinity);
    EXPECT_NEAR(one(Unary::kGeluTanh, -4.0f) / -7.0245948e-05f, 1.0f, 1e-5f);  // the tail does not cancel
    EXPECT_TRUE(same(one(Unary::kGelu, -100.0f), -0.0f));
    EXPECT_EQ(one(Unary::kGelu, 100.0f), 100.0f);
    EXPECT_TRUE(same(one(Unary::kElu, -0.0f), -0.0f));
    EXPECT_TRUE(same(one(Unary::kTanh, -0.0f), -0.0f));
    EXPECT_TRUE(std::isnan(one(Unary::kHardSwish, -kInfinity)));
    EXPECT_TRUE(same(one(Unary::kSign, -0.0f), 0.0f));
    EXPECT_TRUE(std::isnan(one(Unary::kSign, kNaN)));
    EXPECT_TRUE(same(one(Unary::kRound, -0.5f), -0.0f));
    EXPECT_EQ(one(Unary::kRound, 0.5f), 0.0f);
    EXPECT_EQ(one(Unary::kRound, 2.5f), 2.0f);
    EXPECT_EQ(one(Unary::kRound, 3.5f), 4.0f);
    EXPECT_TRUE(same(one(Unary::kNeg, 0.0f), -0.0f));
    EXPECT_TRUE(same(one(Unary::kAbs, -0.0f), 0.0f));
    EXPECT_EQ(one(Unary::kRsqrt, 0.0f), kInfinity);
    EXPECT_EQ(one(Unary::kReciprocal, -0.0f, 2.0f), -kInfinity);
    EXPECT_TRUE(std::isnan(one(Unary::kClamp, kNaN, -1.0f, 1.0f)));
    EXPECT_EQ(one(Unary::kPower, -2.0f, 3.0f), -8.0f);
    EXPECT_TRUE(std::isnan(one(Unary::kPower, -2.0f, 0.5f)));
    EXPECT_EQ(one(Unary::kPower, kNaN, 0.0f), 1.0f);
    EXPECT_EQ(one(Unary::kPower, 0.0f, -1.0f), kInfinity);
    EXPECT_NEAR(one(Unary::kSin, 1e30f), std::sin(1e30f), 1e-7f);
    for (int i = 0; i < 20000; ++i) {
      const float x = static_cast<float>(i) * 0.01f - 100.0f;
      ASSERT_LE(std::fabs(one(Unary::kTanh, x)), 1.0f) << x;
      ASSERT_LE(std::fabs(one(Unary::kSin, x)), 1.0f) << x;
      ASSERT_LE(std::fabs(one(Unary::kCos, x)), 1.0f) << x;
      ASSERT_LE(one(Unary::kSigmoid, x), 1.0f) << x;
    }
  });
}

// All floats where tanh comes near 1 and the normal distribution near 0: neither oversteps it, as rounding might make
// them.
TEST(Elementwise, UnaryKeepsItsBounds) {
  constexpr uint32_t kSeven = 0x40e00000, kTen = 0x41200000, kFour = 0x40800000, kSix = 0x40c00000, kPart = 1024;
  std::vector<float> x(kPart), y(kPart);
  for_each_target([&] {
    for (uint32_t first = kSeven; first < kTen; first += kPart) {
      for (uint32_t i = 0; i < kPart; ++i) x[i] = from_bits(first + i);
      elementwise_kernels().unary(Unary::kTanh, 0, 0, x.data(), y.data(), kPart);
      for (uint32_t i = 0; i < kPart; ++i) ASSERT_TRUE(y[i] <= 1.0f && y[i] >= 0.999997f) << x[i] << " " << y[i];
    }
    for (uint32_t first = kFour; first < kSix; first += kPart) {
      for (uint32_t i = 0; i < kPart; ++i) x[i] = -from_bits(first + i);
      elementwise_kernels().unary(Unary::kGelu, 0, 0, x.data(), y.data(), kPart);
      for (uint32_t i = 0; i < kPart; ++i) ASSERT_TRUE(y[i] <= 0.0f && y[i] >= -1.3e-4f) << x[i] << " " << y[i];
    }
  });
}

// The fast path of exp is chosen for several vectors at once: large arguments among others, at every place.
TEST(Elementwise, ExpOfMixedNumbers) {
  const float large[] = {88.5f, -87.2f, -95.0f, kInfinity, -kInfinity, kNaN, -3e38f};
  for_each_target([&] {
    for (const float value : large) {
      for (size_t at = 0; at < 70; ++at) {
        std::vector<float> x(70), y(70);
        for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 2.5f - 86.9f;
        x[at] = value;
        elementwise_kernels().unary(Unary::kExp, 0, 0, x.data(), y.data(), x.size());
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_TRUE(same(y[i], one(Unary::kExp, x[i]))) << x[i] << " beside " << value << " at " << at;
        }
      }
    }
  });
}

// Results do not depend on where a call begins and ends, and nothing beyond is touched.
TEST(Elementwise, UnaryLengths) {
  constexpr size_t kMost = 150;
  Numbers numbers(1);
  std::vector<float> x(kMost);
  numbers.fill(x, -9.0f, 9.0f);
  x[3] = kNaN;
  for_each_target([&] {
    for (const UnaryCase& c : kUnaryCases) {
      SCOPED_TRACE(c.name);
      std::vector<float> all(kMost);
      elementwise_kernels().unary(c.f, c.a, c.b, x.data(), all.data(), kMost);
      for (size_t count = 0; count <= kMost; count += count < 70 ? 1 : 13) {
        for (const bool before : {false, true}) {
          Guarded from(count, before), to(count, before);
          std::copy(x.begin(), x.begin() + static_cast<ptrdiff_t>(count), from.begin());
          elementwise_kernels().unary(c.f, c.a, c.b, from.data(), to.data(), count);
          elementwise_kernels().unary(c.f, c.a, c.b, from.data(), from.data(), count);
          for (size_t i = 0; i < count; ++i) {
            ASSERT_TRUE(same(to[i], all[i])) << count << " " << i;
            ASSERT_TRUE(same(from[i], all[i])) << "in place, " << count << " " << i;
          }
        }
      }
    }
  });
}

// An operand of a block in guarded memory.
class Operand {
 public:
  Operand(Stretch stretch, const Block& block, int32_t gap, Numbers* numbers, float low, float high) {
    const auto pixels = static_cast<size_t>(block.pixels), channels = static_cast<size_t>(block.channels);
    const size_t unit = stretch == Stretch::kNone ? channels : 1;
    const size_t step = unit + static_cast<size_t>(gap);
    size_t count = 1;
    if (stretch == Stretch::kChannel) count = channels;
    if (stretch == Stretch::kNone || stretch == Stretch::kPixel) count = pixels == 0 ? 0 : (pixels - 1) * step + unit;
    memory_ = std::make_unique<Guarded>(count);
    numbers->fill(*memory_, low, high);
    operand_ = {memory_->data(), static_cast<ptrdiff_t>(step), stretch};
  }
  const BlockOperand& get() const { return operand_; }
  Guarded& memory() { return *memory_; }

 private:
  std::unique_ptr<Guarded> memory_;
  BlockOperand operand_;
};

size_t length_of(const Block& block, size_t step) {
  if (block.pixels == 0) return 0;
  return (static_cast<size_t>(block.pixels) - 1) * step + static_cast<size_t>(block.channels);
}

// Compares two outputs between the pixels of which nothing was written.
template <typename Error>
void compare_blocks(const Block& block, size_t step, const Guarded& y, const Guarded& expected, Error error) {
  for (size_t i = 0; i < y.size(); ++i) {
    if (i % step >= static_cast<size_t>(block.channels)) {
      ASSERT_EQ(y[i], kCanary) << i;
    } else {
      ASSERT_TRUE(close(y[i], expected[i], error(i, expected[i])))
          << "element " << i << ": " << y[i] << " instead of " << expected[i];
    }
  }
}

TEST(Elementwise, BinaryBlocks) {
  for_each_target([] {
    Numbers numbers(2);
    for (const BinaryCase& c : kBinaryCases) {
      SCOPED_TRACE(c.name);
      int turn = 0;
      for (const Block& block : kBlocks) {
        for (const Stretch sx : kStretches) {
          for (const Stretch sz : kStretches) {
            const int32_t gaps = ++turn % 3;  // none, those of inputs, those of all
            SCOPED_TRACE(testing::Message() << block.pixels << "x" << block.channels << " stretches "
                                            << static_cast<int>(sx) << " " << static_cast<int>(sz) << " gaps " << gaps);
            const Operand x(sx, block, gaps == 0 ? 0 : 3, &numbers, c.f == Binary::kPow ? 0.1f : -3.0f, 3.0f);
            const Operand z(sz, block, gaps == 0 ? 0 : turn % 2, &numbers, -3.0f, 3.0f);
            const size_t step = static_cast<size_t>(block.channels) + (gaps == 2 ? 5 : 0);
            Guarded y(length_of(block, step)), expected(y.size());
            std::fill(y.begin(), y.end(), kCanary);
            const float min = turn % 4 == 0 ? -1.0f : -kInfinity, max = turn % 4 < 2 ? 2.0f : kInfinity;
            elementwise_kernels().binary(c.f, block, x.get(), z.get(), y.data(), static_cast<ptrdiff_t>(step), min,
                                         max);
            elementwise_reference().binary(c.f, block, x.get(), z.get(), expected.data(), static_cast<ptrdiff_t>(step),
                                           min, max);
            compare_blocks(block, step, y, expected, [&](size_t, float e) { return c.ulps * ulp(e); });
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

TEST(Elementwise, BinaryInPlace) {
  for_each_target([] {
    Numbers numbers(3);
    for (const BinaryCase& c : kBinaryCases) {
      SCOPED_TRACE(c.name);
      for (const Block& block : kBlocks) {
        for (const Stretch other : kStretches) {
          for (const bool first : {true, false}) {
            for (const int32_t gap : {0, 2}) {
              Operand own(Stretch::kNone, block, gap, &numbers, 0.1f, 2.0f);
              const Operand given(other, block, 0, &numbers, 0.1f, 2.0f);
              const BlockOperand& x = first ? own.get() : given.get();
              const BlockOperand& z = first ? given.get() : own.get();
              Guarded expected(own.memory().size());
              const ptrdiff_t step = own.get().pixel;
              elementwise_reference().binary(c.f, block, x, z, expected.data(), step, 0.25f, 1.75f);
              elementwise_kernels().binary(c.f, block, x, z, own.memory().data(), step, 0.25f, 1.75f);
              for (size_t i = 0; i < expected.size(); ++i) {
                if (i % static_cast<size_t>(step) >= static_cast<size_t>(block.channels)) continue;
                ASSERT_TRUE(close(own.memory()[i], expected[i], c.ulps * ulp(expected[i]))) << i;
              }
            }
          }
        }
      }
    }
  });
}

TEST(Elementwise, BinarySpecialNumbers) {
  const float numbers[] = {0.0f,  -0.0f,     1.0f,       -1.0f, 2.0f,          0.5f,
                           -3.0f, kInfinity, -kInfinity, kNaN,  3.4028234e38f, 1e-45f};
  constexpr size_t kCount = sizeof(numbers) / sizeof(numbers[0]);
  std::vector<float> x, z;
  for (const float a : numbers) {
    for (const float b : numbers) {
      x.push_back(a);
      z.push_back(b);
    }
  }
  const Block block = {1, static_cast<int32_t>(kCount * kCount)};
  for_each_target([&] {
    for (const BinaryCase& c : kBinaryCases) {
      SCOPED_TRACE(c.name);
      std::vector<float> y(x.size()), expected(x.size());
      for (const float limit : {kInfinity, 0.75f}) {
        elementwise_kernels().binary(c.f, block, {x.data(), 0, Stretch::kNone}, {z.data(), 0, Stretch::kNone}, y.data(),
                                     0, -limit, limit);
        elementwise_reference().binary(c.f, block, {x.data(), 0, Stretch::kNone}, {z.data(), 0, Stretch::kNone},
                                       expected.data(), 0, -limit, limit);
        for (size_t i = 0; i < x.size(); ++i) {
          EXPECT_TRUE(close(y[i], expected[i], std::isinf(expected[i]) ? 0.0 : c.ulps * ulp(expected[i])))
              << x[i] << " " << z[i] << ": " << y[i] << " instead of " << expected[i];
          // Of which zero, too, and of a NaN the other operand or the NaN.
          if (std::isinf(limit) && (c.f == Binary::kMaximum || c.f == Binary::kMinimum)) {
            const bool first = c.f == Binary::kMaximum ? x[i] > z[i] : x[i] < z[i];
            EXPECT_TRUE(same(y[i], first ? x[i] : z[i])) << x[i] << " " << z[i];
          }
        }
      }
      // The exponent as one number, of which some are taken apart.
      for (const float b : numbers) {
        elementwise_kernels().binary(c.f, block, {x.data(), 0, Stretch::kNone}, {&b, 0, Stretch::kScalar}, y.data(), 0,
                                     -kInfinity, kInfinity);
        elementwise_reference().binary(c.f, block, {x.data(), 0, Stretch::kNone}, {&b, 0, Stretch::kScalar},
                                       expected.data(), 0, -kInfinity, kInfinity);
        for (size_t i = 0; i < x.size(); ++i) {
          EXPECT_TRUE(close(y[i], expected[i], std::isinf(expected[i]) ? 0.0 : c.ulps * ulp(expected[i])))
              << x[i] << " " << b << ": " << y[i] << " instead of " << expected[i];
        }
      }
    }
  });
}

TEST(Elementwise, ScaleShift) {
  for_each_target([] {
    Numbers numbers(4);
    int turn = 0;
    for (const Block& block : kBlocks) {
      for (const Stretch sx : {Stretch::kNone, Stretch::kPixel, Stretch::kChannel}) {
        for (const Stretch ss : kStretches) {
          for (const Stretch st : kStretches) {
            for (const bool with_slopes : {false, true}) {
              const int32_t gap = ++turn % 3;
              SCOPED_TRACE(testing::Message() << block.pixels << "x" << block.channels << " stretches "
                                              << static_cast<int>(sx) << static_cast<int>(ss) << static_cast<int>(st)
                                              << " slopes " << with_slopes << " gap " << gap);
              const Operand x(sx, block, gap, &numbers, -3.0f, 3.0f);
              const Operand s(ss, block, 0, &numbers, -3.0f, 3.0f);
              const Operand t(st, block, 0, &numbers, -3.0f, 3.0f);
              const Operand slopes(Stretch::kChannel, block, 0, &numbers, -1.0f, 1.0f);
              const BlockOperand scale = turn % 5 == 0 ? BlockOperand() : s.get();
              const BlockOperand shift = turn % 7 == 0 ? BlockOperand() : t.get();
              const size_t step = static_cast<size_t>(block.channels + gap);
              Guarded y(length_of(block, step)), expected(y.size());
              std::fill(y.begin(), y.end(), kCanary);
              const float max = turn % 2 == 0 ? 2.0f : kInfinity;
              const float* p = with_slopes ? slopes.get().data : nullptr;
              elementwise_kernels().scale_shift(block, x.get(), scale, shift, y.data(), static_cast<ptrdiff_t>(step),
                                                -2.5f, max, p);
              elementwise_reference().scale_shift(block, x.get(), scale, shift, expected.data(),
                                                  static_cast<ptrdiff_t>(step), -2.5f, max, p);
              // |x s| < 9 is rounded on its own where there is no fused operation.
              compare_blocks(block, step, y, expected, [](size_t, float e) { return 1.5 * ulp(e) + 5e-7; });
              if (testing::Test::HasFatalFailure()) return;
            }
          }
        }
      }
    }
  });
}

// One rounding, a NaN that stays, and zeros that keep their sign without a shift.
TEST(Elementwise, ScaleShiftNumbers) {
  const std::vector<float> x = {1.0f + 1.1920929e-7f, -0.0f, kNaN, kInfinity, -kInfinity, 1e-45f, 4.0f, -4.0f, 3e38f};
  const auto count = static_cast<int32_t>(x.size());
  for_each_target([&] {
    std::vector<float> y(x.size());
    const float scale = 1.0f + 1.1920929e-7f, shift = -1.0f;
    const BlockOperand of_x = {x.data(), 0, Stretch::kNone};
    elementwise_kernels().scale_shift({1, count}, of_x, {&scale, 0, Stretch::kScalar}, {&shift, 0, Stretch::kScalar},
                                      y.data(), count, -2.0f, 2.0f, nullptr);
    EXPECT_NEAR(y[0], 2.3841858e-7f, 3e-14f);
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(y[3], 2.0f);
    EXPECT_EQ(y[4], -2.0f);
    EXPECT_EQ(y[6], 2.0f);
    elementwise_kernels().scale_shift({1, count}, of_x, {}, {}, y.data(), count, -kInfinity, kInfinity, nullptr);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(same(y[i], x[i])) << x[i];
  });
}

TEST(Elementwise, ScaleShiftInPlace) {
  for_each_target([] {
    Numbers numbers(5);
    for (const Block& block : kBlocks) {
      Operand x(Stretch::kNone, block, 0, &numbers, -3.0f, 3.0f);
      const Operand s(Stretch::kChannel, block, 0, &numbers, -3.0f, 3.0f);
      const Operand t(Stretch::kChannel, block, 0, &numbers, -3.0f, 3.0f);
      Guarded expected(x.memory().size());
      elementwise_reference().scale_shift(block, x.get(), s.get(), t.get(), expected.data(), block.channels, -2.0f,
                                          2.0f, t.get().data);
      elementwise_kernels().scale_shift(block, x.get(), s.get(), t.get(), x.memory().data(), block.channels, -2.0f,
                                        2.0f, t.get().data);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(x.memory()[i], expected[i], 3e-6) << block.pixels << "x" << block.channels << " " << i;
      }
    }
  });
}

TEST(Elementwise, Copy) {
  for_each_target([] {
    Numbers numbers(6);
    for (const Block& block : kBlocks) {
      for (const int32_t x_gap : {0, 1, 9}) {
        for (const int32_t y_gap : {0, 3}) {
          const Operand x(Stretch::kNone, block, x_gap, &numbers, -3.0f, 3.0f);
          const size_t step = static_cast<size_t>(block.channels + y_gap);
          Guarded y(length_of(block, step)), expected(y.size());
          std::fill(y.begin(), y.end(), kCanary);
          elementwise_kernels().copy(block, x.get().data, x.get().pixel, y.data(), static_cast<ptrdiff_t>(step));
          elementwise_reference().copy(block, x.get().data, x.get().pixel, expected.data(),
                                       static_cast<ptrdiff_t>(step));
          compare_blocks(block, step, y, expected, [](size_t, float) { return 0.0; });
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

}  // namespace
}  // namespace litefuse
