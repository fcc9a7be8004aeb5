// The vector kernels of normalisations, softmax and reductions against their scalar reference.
#include <cmath>
#include <limits>
#include <memory>

#include "kernels/simd/norm.h"
#include "kernels/simd/norm_cases.h"
#include "tests/simd_targets.h"

namespace litefuse {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kDenormal = 1e-40f;
constexpr float kCanary = 12345.0f;

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }
// Equal numbers, or both NaN.
bool equal(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// The distance in units of the last place of `expected`, of which there are none below the smallest normal number.
double ulps(float actual, float expected) {
  if (equal(actual, expected)) return 0;
  if (!std::isfinite(actual) || !std::isfinite(expected)) return HUGE_VAL;
  const double size = std::max(std::fabs(double{expected}), double{std::numeric_limits<float>::min()});
  return std::fabs(double{actual} - double{expected}) / std::ldexp(1.0, std::ilogb(size) - 23);
}

// Rows with gaps between them, of which the last one ends where memory ends, or the first one begins where it begins.
struct Matrix {
  Matrix(int32_t rows_, int32_t channels_, int32_t gap, bool before = false)
      : rows(rows_),
        channels(channels_),
        stride(ptrdiff_t{channels_} + gap),
        memory(static_cast<size_t>((rows_ - 1) * stride + channels_), before) {}
  float* row(int32_t r) { return memory.data() + r * stride; }
  void fill(float value) { std::fill(memory.begin(), memory.end(), value); }
  // Whether the gaps hold what fill() put there.
  bool gaps_hold(float value) {
    for (int32_t r = 0; r + 1 < rows; ++r)
      for (ptrdiff_t c = channels; c < stride; ++c)
        if (!same(row(r)[c], value)) return false;
    return true;
  }
  int32_t rows, channels;
  ptrdiff_t stride;
  Guarded memory;
};

// The functions that write rows, with the same arguments.
enum class Function {
  kLayerNorm,
  kLayerNormPlain,
  kRmsNorm,
  kRmsNormPlain,
  kL2Norm,
  kSoftmax,
  kSoftmaxHot,
  kLogSoftmax
};
constexpr Function kFunctions[] = {Function::kLayerNorm,    Function::kLayerNormPlain, Function::kRmsNorm,
                                   Function::kRmsNormPlain, Function::kL2Norm,         Function::kSoftmax,
                                   Function::kSoftmaxHot,   Function::kLogSoftmax};
const char* name_of(Function f) {
  static constexpr const char* kNames[] = {"layer_norm",    "layer_norm without gamma and beta",
                                           "rms_norm",      "rms_norm without gamma",
                                           "l2_norm",       "softmax",
                                           "softmax (2.5)", "log_softmax"};
  return kNames[static_cast<int>(f)];
}

struct Weights {
  explicit Weights(int32_t channels) : gamma(static_cast<size_t>(channels)), beta(static_cast<size_t>(channels)) {
    Numbers numbers(77);
    numbers.fill(gamma, 0.5f, 1.5f);
    numbers.fill(beta, -0.5f, 0.5f);
  }
  Guarded gamma, beta;
};

void call(const NormKernels& kernels, Function f, const Weights& w, const float* x, int32_t rows, ptrdiff_t x_stride,
          int32_t channels, float* y, ptrdiff_t y_stride) {
  switch (f) {
    case Function::kLayerNorm:
      return kernels.layer_norm(x, rows, x_stride, channels, w.gamma.data(), w.beta.data(), 1e-3f, y, y_stride);
    case Function::kLayerNormPlain:
      return kernels.layer_norm(x, rows, x_stride, channels, nullptr, nullptr, 1e-5f, y, y_stride);
    case Function::kRmsNorm:
      return kernels.rms_norm(x, rows, x_stride, channels, w.gamma.data(), 1e-6f, y, y_stride);
    case Function::kRmsNormPlain:
      return kernels.rms_norm(x, rows, x_stride, channels, nullptr, 0.0f, y, y_stride);
    case Function::kL2Norm:
      return kernels.l2_norm(x, rows, x_stride, channels, 1e-6f, y, y_stride);
    case Function::kSoftmax:
      return kernels.softmax(x, rows, x_stride, channels, 1.0f, y, y_stride);
    case Function::kSoftmaxHot:
      return kernels.softmax(x, rows, x_stride, channels, 2.5f, y, y_stride);
    case Function::kLogSoftmax:
      return kernels.log_softmax(x, rows, x_stride, channels, y, y_stride);
  }
}

// What the rounding of the mean and of the differences from it may change in the result of a layer_norm.
float layer_norm_slack(const float* x, int32_t channels, float epsilon) {
  double sum = 0, squares = 0, largest = 0;
  for (int32_t c = 0; c < channels; ++c) {
    sum += double{x[c]};
    largest = std::max(largest, std::fabs(double{x[c]}));
  }
  for (int32_t c = 0; c < channels; ++c) squares += (double{x[c]} - sum / channels) * (double{x[c]} - sum / channels);
  return static_cast<float>(3e-7 * largest / std::sqrt(squares / channels + double{epsilon}));
}

// Whether the kernels that are tested use vectors.
bool vectors() { return (static_cast<int64_t>(hwy::SupportedTargets()) & static_cast<int64_t>(HWY_SCALAR)) == 0; }

// What a float32 computation may differ from the reference by; `slack` counts for layer_norm.
void expect_close(Function f, int32_t channels, float actual, float expected, float slack = 0) {
  switch (f) {
    case Function::kLayerNorm:
    case Function::kLayerNormPlain:
      EXPECT_NEAR(actual, expected, 1e-6f * std::max(1.0f, std::fabs(expected)) + slack);
      break;
    case Function::kRmsNorm:
    case Function::kRmsNormPlain:
    case Function::kL2Norm:
      EXPECT_LE(ulps(actual, expected), 6.0) << actual << " instead of " << expected;
      break;
    case Function::kSoftmax:
    case Function::kSoftmaxHot:
      // Denormal results may be zero.
      if (std::fabs(actual - expected) <= std::numeric_limits<float>::min()) break;
      // The additions of each partial sum, of which there are eight at least (two without vectors).
      EXPECT_LE(ulps(actual, expected), 4.0 + 0.5 * std::sqrt(channels / (vectors() ? 8.0 : 2.0)))
          << actual << " instead of " << expected;
      break;
    case Function::kLogSoftmax:
      EXPECT_NEAR(actual, expected, 4e-7f * std::max(1.0f, std::fabs(expected)));
      break;
  }
}

// Benchmark cases are cut to this many rows here.
constexpr int32_t kMostRows = 200;

TEST(NormSimd, RowsMatchTheReference) {
  for_each_target([] {
    const NormKernels& kernels = norm_kernels();
    for (const RowsCase& shape : kRowsCases) {
      const int32_t rows = std::min(shape.rows, kMostRows);
      Numbers numbers(static_cast<uint64_t>(shape.channels));
      Matrix x(rows, shape.channels, shape.gap);
      const Weights weights(shape.channels);
      for (const float scale : {1.0f, 30.0f}) {
        numbers.fill(x.memory, -scale, 0.7f * scale);
        for (const Function f : kFunctions) {
          SCOPED_TRACE(testing::Message() << shape.name << ", " << name_of(f) << ", scale " << scale);
          Matrix expected(rows, shape.channels, 0);
          call(norm_reference(), f, weights, x.row(0), rows, x.stride, shape.channels, expected.row(0),
               expected.stride);
          for (const bool before : {false, true}) {
            Matrix y(rows, shape.channels, before ? 3 : shape.gap, before);
            y.fill(kCanary);
            call(kernels, f, weights, x.row(0), rows, x.stride, shape.channels, y.row(0), y.stride);
            EXPECT_TRUE(y.gaps_hold(kCanary));
            for (int32_t r = 0; r < rows; ++r) {
              const float slack = layer_norm_slack(x.row(r), shape.channels, f == Function::kLayerNorm ? 1e-3f : 1e-5f);
              for (int32_t c = 0; c < shape.channels; ++c)
                expect_close(f, shape.channels, y.row(r)[c], expected.row(r)[c], slack);
            }
          }
          if (HasFailure()) return;
        }
      }
    }
  });
}

// A row gives the same whether it is alone, with others, in place, or elsewhere in memory.
TEST(NormSimd, RowsDoNotDependOnTheCall) {
  for_each_target([] {
    const NormKernels& kernels = norm_kernels();
    for (const RowsCase& shape : kRowsCases) {
      const int32_t rows = std::min(shape.rows, kMostRows);
      Numbers numbers(static_cast<uint64_t>(shape.rows));
      Matrix x(rows, shape.channels, shape.gap);
      numbers.fill(x.memory, -4.0f, 4.0f);
      // Rows that are not numbers must not touch their neighbours.
      if (rows > 5) x.row(5)[shape.channels / 2] = kNan;
      if (rows > 2) x.row(2)[shape.channels / 2] = kInfinity;
      if (rows > 3) std::fill(x.row(3), x.row(3) + shape.channels, -kInfinity);
      if (rows > 6) std::fill(x.row(6), x.row(6) + shape.channels, 0.0f);
      const Weights weights(shape.channels);
      for (const Function f : kFunctions) {
        SCOPED_TRACE(testing::Message() << shape.name << ", " << name_of(f));
        Matrix together(rows, shape.channels, shape.gap), alone(rows, shape.channels, 0);
        call(kernels, f, weights, x.row(0), rows, x.stride, shape.channels, together.row(0), together.stride);
        for (int32_t r = 0; r < rows; ++r)
          call(kernels, f, weights, x.row(r), 1, x.stride, shape.channels, alone.row(r), alone.stride);
        Matrix in_place(rows, shape.channels, shape.gap, true);
        std::copy(x.memory.begin(), x.memory.end(), in_place.memory.begin());
        call(kernels, f, weights, in_place.row(0), rows, in_place.stride, shape.channels, in_place.row(0),
             in_place.stride);
        for (int32_t r = 0; r < rows; ++r) {
          for (int32_t c = 0; c < shape.channels; ++c) {
            const float value = together.row(r)[c];
            ASSERT_TRUE(equal(value, alone.row(r)[c])) << value << " and alone " << alone.row(r)[c] << ", row " << r;
            ASSERT_TRUE(equal(value, in_place.row(r)[c])) << value << ", in place " << in_place.row(r)[c];
          }
        }
        if (HasFailure()) return;
      }
    }
  });
}

// Rows that hold what is not an ordinary number, as the reference has it.
TEST(NormSimd, UnusualNumbersInRows) {
  const float kUnusual[] = {kNan, kInfinity, -kInfinity, kLargest, -kLargest, kDenormal, -kDenormal, 0.0f, -0.0f};
  for_each_target([&] {
    const NormKernels& kernels = norm_kernels();
    for (const int32_t channels : {1, 2, 3, 4, 5, 8, 10, 16, 17, 33, 100}) {
      const Weights weights(channels);
      const int32_t rows = 40;
      Matrix x(rows, channels, 0), y(rows, channels, 0), expected(rows, channels, 0);
      for (uint64_t seed = 0; seed < 6; ++seed) {
        Numbers numbers(seed);
        numbers.fill(x.memory, -2.0f, 2.0f);
        for (int32_t r = 0; r < rows; ++r) {
          const float value = kUnusual[numbers.between(0, 8)];
          if (numbers.between(0, 3) == 0)
            std::fill(x.row(r), x.row(r) + channels, value);
          else
            x.row(r)[numbers.between(0, channels - 1)] = value;
        }
        for (const Function f : {Function::kSoftmax, Function::kSoftmaxHot, Function::kLogSoftmax, Function::kL2Norm}) {
          SCOPED_TRACE(testing::Message() << channels << " channels, " << name_of(f));
          call(kernels, f, weights, x.row(0), rows, x.stride, channels, y.row(0), y.stride);
          call(norm_reference(), f, weights, x.row(0), rows, x.stride, channels, expected.row(0), expected.stride);
          for (int32_t r = 0; r < rows; ++r) {
            for (int32_t c = 0; c < channels; ++c) {
              if (std::isfinite(expected.row(r)[c]) && std::isfinite(y.row(r)[c]))
                expect_close(f, channels, y.row(r)[c], expected.row(r)[c]);
              else
                EXPECT_TRUE(equal(y.row(r)[c], expected.row(r)[c]))
                    << y.row(r)[c] << " instead of " << expected.row(r)[c] << " for " << x.row(r)[c];
            }
          }
          if (HasFailure()) return;
        }
        // A NaN or an infinity makes NaN of all of a row whose mean or mean of squares it enters.
        call(kernels, Function::kLayerNorm, weights, x.row(0), rows, x.stride, channels, y.row(0), y.stride);
        for (int32_t r = 0; r < rows; ++r) {
          bool finite = true;
          for (int32_t c = 0; c < channels; ++c) finite = finite && std::isfinite(x.row(r)[c]);
          for (int32_t c = 0; c < channels && !finite; ++c) EXPECT_TRUE(std::isnan(y.row(r)[c]));
        }
      }
    }
  });
}

// TFLite's kernel divides a row of -inf by a sum of zero, and looks for the maximum from the lowest finite float on.
TEST(NormSimd, SoftmaxOfSpecialRows) {
  for_each_target([] {
    const NormKernels& kernels = norm_kernels();
    for (const int32_t channels : {2, 3, 4, 5, 8, 20, 49}) {
      SCOPED_TRACE(channels);
      const int32_t rows = 17;
      Matrix x(rows, channels, 0), y(rows, channels, 0);
      x.fill(-kInfinity);
      kernels.softmax(x.row(0), rows, channels, channels, 1.0f, y.row(0), channels);
      for (const float value : y.memory) EXPECT_TRUE(std::isnan(value));
      for (int32_t r = 0; r < rows; ++r) x.row(r)[r % channels] = -3.0f;
      kernels.softmax(x.row(0), rows, channels, channels, 1.0f, y.row(0), channels);
      for (int32_t r = 0; r < rows; ++r)
        for (int32_t c = 0; c < channels; ++c) EXPECT_EQ(y.row(r)[c], c == r % channels ? 1.0f : 0.0f);
      x.fill(kLargest);
      kernels.softmax(x.row(0), rows, channels, channels, 1.0f, y.row(0), channels);
      for (const float value : y.memory) EXPECT_LE(ulps(value, 1.0f / static_cast<float>(channels)), 1.0);
      // Unusual factors: none, one that turns the order round until it overflows, an infinite one.
      Matrix expected(rows, channels, 0);
      Numbers(5).fill(x.memory, -60.0f, 60.0f);
      for (const float beta : {0.0f, -0.25f, -1.0f, -3.0f, kInfinity, kNan}) {
        kernels.softmax(x.row(0), rows, channels, channels, beta, y.row(0), channels);
        norm_reference().softmax(x.row(0), rows, channels, channels, beta, expected.row(0), channels);
        for (int32_t r = 0; r < rows; ++r) {
          // Floats overflow where float64 does not: a sum of infinity makes zeros, and NaN of infinities.
          for (int32_t c = 0; c < channels; ++c) {
            if (beta < -0.25f) {
              EXPECT_TRUE(std::isnan(y.row(r)[c]) || (y.row(r)[c] >= 0.0f && y.row(r)[c] <= 1.0f));
            } else {
              EXPECT_LE(ulps(y.row(r)[c], expected.row(r)[c]), 5.0)
                  << beta << ": " << y.row(r)[c] << " instead of " << expected.row(r)[c];
            }
          }
        }
      }
    }
  });
}

TEST(NormSimd, L2NormOfVeryShortAndVeryLongRows) {
  for_each_target([] {
    const NormKernels& kernels = norm_kernels();
    const int32_t channels = 11, rows = 5;
    Matrix x(rows, channels, 0), y(rows, channels, 0);
    const float sizes[] = {0.0f, 1e-41f, 1.0f, 1e18f, 1e30f};
    for (int32_t r = 0; r < rows; ++r) std::fill(x.row(r), x.row(r) + channels, sizes[r]);
    // An epsilon whose reciprocal overflows: the zeros of the first row stay zeros.
    kernels.l2_norm(x.row(0), rows, channels, channels, 1e-41f, y.row(0), channels);
    EXPECT_EQ(y.row(0)[10], 0.0f);
    EXPECT_NEAR(y.row(1)[3], 1.0f, 1e-6f);
    EXPECT_NEAR(y.row(2)[3], 1.0f / std::sqrt(11.0f), 1e-6f);
    EXPECT_NEAR(y.row(3)[3], 1.0f / std::sqrt(11.0f), 1e-6f);
    EXPECT_EQ(y.row(4)[10], 0.0f);  // the sum of squares overflows
    kernels.l2_norm(x.row(0), 1, channels, channels, 0.0f, y.row(0), channels);
    EXPECT_TRUE(std::isnan(y.row(0)[0]));
  });
}

// The mean is taken before the variance, so that a large mean does not matter.
TEST(NormSimd, LayerNormOfALargeMean) {
  for_each_target([] {
    const int32_t channels = 250, rows = 6;
    Matrix x(rows, channels, 0), y(rows, channels, 0), expected(rows, channels, 0);
    Numbers numbers(3);
    for (float& value : x.memory) value = 1000.0f + static_cast<float>(numbers.between(-64, 64)) / 64.0f;
    norm_kernels().layer_norm(x.row(0), rows, channels, channels, nullptr, nullptr, 1e-6f, y.row(0), channels);
    norm_reference().layer_norm(x.row(0), rows, channels, channels, nullptr, nullptr, 1e-6f, expected.row(0), channels);
    for (int32_t r = 0; r < rows; ++r)
      for (int32_t c = 0; c < channels; ++c) EXPECT_NEAR(y.row(r)[c], expected.row(r)[c], 1e-3f);
  });
}

TEST(NormSimd, ReductionsOfRows) {
  for_each_target([] {
    const NormKernels& kernels = norm_kernels();
    const NormKernels& reference = norm_reference();
    for (const RowsCase& shape : kRowsCases) {
      SCOPED_TRACE(shape.name);
      const int32_t rows = std::min(shape.rows, kMostRows);
      const auto count = static_cast<size_t>(rows);
      for (const bool before : {false, true}) {
        Matrix x(rows, shape.channels, shape.gap, before);
        Numbers(static_cast<uint64_t>(shape.channels)).fill(x.memory, -1.0f, 2.0f);
        Guarded actual(count, before), expected(count);
        kernels.sum_rows(x.row(0), rows, x.stride, shape.channels, actual.data());
        reference.sum_rows(x.row(0), rows, x.stride, shape.channels, expected.data());
        const float bound = 5e-7f * static_cast<float>(shape.channels);
        for (size_t r = 0; r < count; ++r) EXPECT_NEAR(actual[r], expected[r], bound);
        for (int32_t r = 0; r < rows; ++r) {
          float alone = 0;
          kernels.sum_rows(x.row(r), 1, x.stride, shape.channels, &alone);
          EXPECT_TRUE(same(alone, actual[static_cast<size_t>(r)]));
        }
        // With NaN and infinities here and there, which also shows what comes behind a NaN.
        for (int round = 0; round < 3; ++round) {
          Numbers numbers(static_cast<uint64_t>(round));
          for (int i = 0; i < round * rows / 2; ++i) {
            float* at = x.row(numbers.between(0, rows - 1)) + numbers.between(0, shape.channels - 1);
            *at = numbers.between(0, 1) == 0 ? kNan : numbers.between(0, 1) == 0 ? kInfinity : -kInfinity;
          }
          kernels.max_rows(x.row(0), rows, x.stride, shape.channels, actual.data());
          reference.max_rows(x.row(0), rows, x.stride, shape.channels, expected.data());
          for (size_t r = 0; r < count; ++r) EXPECT_TRUE(equal(actual[r], expected[r]));
          kernels.min_rows(x.row(0), rows, x.stride, shape.channels, actual.data());
          reference.min_rows(x.row(0), rows, x.stride, shape.channels, expected.data());
          for (size_t r = 0; r < count; ++r) EXPECT_TRUE(equal(actual[r], expected[r]));
        }
      }
      if (HasFailure()) return;
    }
  });
}

// The sum of a channel in the documented order.
float ordered_sum(const float* x, int32_t pixels, ptrdiff_t pixel) {
  float partial[4] = {};
  for (int32_t i = 0; i < pixels; ++i) partial[i % 4] += x[i * pixel];
  return (partial[0] + partial[1]) + (partial[2] + partial[3]);
}

TEST(NormSimd, ReductionsOfPixels) {
  for_each_target([] {
    const NormKernels& kernels = norm_kernels();
    const NormKernels& reference = norm_reference();
    for (const PixelsCase& shape : kPixelsCases) {
      SCOPED_TRACE(shape.name);
      const auto channels = static_cast<size_t>(shape.channels);
      for (const bool before : {false, true}) {
        Matrix x(shape.pixels, shape.channels, shape.gap, before);
        Numbers numbers(static_cast<uint64_t>(shape.channels));
        numbers.fill(x.memory, -1.0f, 2.0f);
        Guarded actual(channels, before), expected(channels), shift(channels);
        numbers.fill(shift);
        kernels.sum_pixels(x.row(0), shape.pixels, x.stride, shape.channels, actual.data());
        for (size_t c = 0; c < channels; ++c)
          EXPECT_TRUE(same(actual[c], ordered_sum(x.row(0) + c, shape.pixels, x.stride))) << c;
        reference.sum_pixels(x.row(0), shape.pixels, x.stride, shape.channels, expected.data());
        const float bound = 1e-6f * static_cast<float>(shape.pixels);
        for (size_t c = 0; c < channels; ++c) EXPECT_NEAR(actual[c], expected[c], bound);
        kernels.sum_squares(x.row(0), shape.pixels, x.stride, shape.channels, shift.data(), actual.data());
        reference.sum_squares(x.row(0), shape.pixels, x.stride, shape.channels, shift.data(), expected.data());
        for (size_t c = 0; c < channels; ++c) EXPECT_NEAR(actual[c], expected[c], 2e-5f * expected[c]);
        for (int round = 0; round < 3; ++round) {
          for (int i = 0; i < round * 3; ++i) {
            float* at = x.row(numbers.between(0, shape.pixels - 1)) + numbers.between(0, shape.channels - 1);
            *at = numbers.between(0, 1) == 0 ? kNan : numbers.between(0, 1) == 0 ? kInfinity : -kInfinity;
          }
          kernels.max_pixels(x.row(0), shape.pixels, x.stride, shape.channels, actual.data());
          reference.max_pixels(x.row(0), shape.pixels, x.stride, shape.channels, expected.data());
          for (size_t c = 0; c < channels; ++c) EXPECT_TRUE(equal(actual[c], expected[c]));
          kernels.min_pixels(x.row(0), shape.pixels, x.stride, shape.channels, actual.data());
          reference.min_pixels(x.row(0), shape.pixels, x.stride, shape.channels, expected.data());
          for (size_t c = 0; c < channels; ++c) EXPECT_TRUE(equal(actual[c], expected[c]));
        }
      }
      if (HasFailure()) return;
    }
  });
}

TEST(NormSimd, NothingToReduce) {
  for_each_target([] {
    const NormKernels& kernels = norm_kernels();
    float result[2] = {1.0f, 1.0f};
    kernels.sum_rows(nullptr, 2, 0, 0, result);
    EXPECT_EQ(result[0], 0.0f);
    EXPECT_EQ(result[1], 0.0f);
    kernels.max_rows(nullptr, 2, 0, 0, result);
    EXPECT_EQ(result[1], -kLargest);
    kernels.min_rows(nullptr, 2, 0, 0, result);
    EXPECT_EQ(result[1], kLargest);
    kernels.max_pixels(nullptr, 0, 2, 2, result);
    EXPECT_EQ(result[1], -kLargest);
    kernels.sum_pixels(nullptr, 0, 2, 2, result);
    EXPECT_EQ(result[1], 0.0f);
    kernels.layer_norm(nullptr, 0, 4, 4, nullptr, nullptr, 0.0f, nullptr, 4);
    kernels.softmax(nullptr, 0, 4, 4, 1.0f, nullptr, 4);
  });
}

}  // namespace
}  // namespace litefuse
