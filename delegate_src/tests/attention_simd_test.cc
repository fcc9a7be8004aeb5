// Rows of scores of every instruction set against scalar code.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/simd/attention.h"
#include "kernels/simd/attention_cases.h"
#include "tests/simd_targets.h"

namespace litefuse {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kCanary = -12345.5f;

struct Result {
  std::vector<float> y, factors;
};

// Rows that end where nothing can be touched, `gap` floats apart from each other.
class Scores {
 public:
  Scores(int32_t rows, int32_t channels, bool masked, int32_t gap, float range, bool one_mask = false)
      : rows_(rows),
        channels_(channels),
        stride_(channels + gap),
        mask_stride_(one_mask ? 0 : stride_),
        masked_(masked),
        x_(size(stride_)),
        mask_(size(mask_stride_)),
        y_(size(stride_)),
        factors_(static_cast<size_t>(rows)) {
    Numbers numbers(static_cast<uint64_t>(rows * 1000 + channels));
    numbers.fill(x_, -range, range);
    numbers.fill(mask_, -range, range);
  }
  float& x(int32_t row, int32_t c) { return x_[static_cast<size_t>(row * stride_ + c)]; }
  float& mask(int32_t row, int32_t c) { return mask_[static_cast<size_t>(row * mask_stride_ + c)]; }

  ScoreRows call() {
    ScoreRows s;
    s.rows = rows_;
    s.channels = channels_;
    s.x = x_.data();
    s.x_stride = stride_;
    s.scale = scale;
    if (masked_) s.mask = mask_.data();
    s.mask_stride = mask_stride_;
    s.beta = beta;
    s.y = y_.data();
    s.y_stride = stride_;
    s.factors = factors_.data();
    return s;
  }
  Result run(const AttentionKernels& kernels) {
    std::fill(y_.begin(), y_.end(), kCanary);
    kernels.weights(call());
    return {std::vector<float>(y_.begin(), y_.end()), std::vector<float>(factors_.begin(), factors_.end())};
  }

  float scale = 1.0f, beta = 1.0f;

 private:
  size_t size(int32_t stride) const { return static_cast<size_t>((rows_ - 1) * stride + channels_); }

  int32_t rows_, channels_, stride_, mask_stride_;
  bool masked_;
  Guarded x_, mask_, y_, factors_;
};

// Weights are near to those of doubles, by their own size: exponents are off by a rounding of their size, or, where
// multiply-adds are rounded twice, of the scores' (`range`).
void compare(Scores* scores, int32_t channels, int32_t gap, float range) {
  const Result expected = scores->run(attention_reference()), found = scores->run(attention_kernels());
  const auto stride = static_cast<size_t>(channels + gap);
  for (size_t i = 0; i < expected.y.size(); ++i) {
    if (i % stride >= static_cast<size_t>(channels)) {
      ASSERT_EQ(found.y[i], kCanary) << i;
      continue;
    }
    const float e = expected.y[i];
    const float exponent = e > 0 ? std::fabs(std::log(e)) : 0.0f;
    ASSERT_NEAR(found.y[i], e, e * (4e-7f + 3e-7f * exponent + 1.2e-7f * range) + 2e-38f) << i;
  }
  for (size_t row = 0; row < expected.factors.size(); ++row) {
    ASSERT_NEAR(found.factors[row], expected.factors[row], expected.factors[row] * (2e-6f + 1.2e-7f * range)) << row;
  }
}

TEST(AttentionSimd, Weights) {
  for_each_target([] {
    for (const int32_t channels : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 196, 257}) {
      for (const bool masked : {false, true}) {
        for (const int32_t gap : {0, 3}) {
          for (const float range : {1.0f, 20.0f, 300.0f}) {
            SCOPED_TRACE(testing::Message() << channels << (masked ? " masked" : "") << " range " << range);
            Scores scores(5, channels, masked, gap, range, channels % 2 == 0);
            scores.scale = 0.17677669f;
            scores.beta = masked ? 0.75f : 1.0f;
            compare(&scores, channels, gap, range);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
    for (const AttentionCase& c : kAttentions) {
      Scores scores(c.rows, c.channels, c.masked, 0, 5.0f);
      compare(&scores, c.channels, 0, 5.0f);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(AttentionSimd, ARowIsTheSameAloneAndWithOthers) {
  for_each_target([] {
    for (const int32_t channels : {5, 49, 64, 131}) {
      Scores scores(7, channels, true, 2, 4.0f);
      const Result all = scores.run(attention_kernels());
      for (int32_t row = 0; row < 7; ++row) {
        ScoreRows one = scores.call();
        one.rows = 1;
        one.x += row * one.x_stride;
        one.mask += row * one.mask_stride;
        std::vector<float> y(static_cast<size_t>(channels));
        float factor = 0;
        one.y = y.data();
        one.factors = &factor;
        attention_kernels().weights(one);
        ASSERT_EQ(std::memcmp(y.data(), all.y.data() + row * one.x_stride, y.size() * sizeof(float)), 0);
        ASSERT_EQ(factor, all.factors[static_cast<size_t>(row)]);
      }
    }
  });
}

TEST(AttentionSimd, SpecialNumbers) {
  for_each_target([] {
    for (const int32_t channels : {3, 8, 13, 40}) {
      for (const bool masked : {false, true}) {
        for (int32_t place = 0; place < channels; ++place) {
          SCOPED_TRACE(testing::Message() << channels << " place " << place << (masked ? " masked" : ""));
          Scores scores(4, channels, masked, 0, 2.0f);
          const auto put = [&](int32_t row, int32_t c, float value) {
            (masked ? scores.mask(row, c) : scores.x(row, c)) = value;
          };
          put(0, place, kNaN);
          put(1, place, kInfinity);
          for (int32_t c = 0; c < channels; ++c) put(2, c, -kInfinity);
          for (int32_t c = 0; c < channels; ++c) {
            if (c != place) put(3, c, c % 2 == 0 ? -kInfinity : std::numeric_limits<float>::lowest());
          }
          const Result found = scores.run(attention_kernels());
          for (int32_t row = 0; row < 3; ++row) {
            float sum = 0;
            for (int32_t c = 0; c < channels; ++c) sum += found.y[static_cast<size_t>(row * channels + c)];
            ASSERT_TRUE(std::isnan(sum * found.factors[static_cast<size_t>(row)])) << row;
          }
          for (int32_t c = 0; c < channels; ++c) {
            ASSERT_EQ(found.y[static_cast<size_t>(3 * channels + c)], c == place ? 1.0f : 0.0f);
          }
          ASSERT_EQ(found.factors[3], 1.0f);
        }
      }
    }
  });
}

TEST(AttentionSimd, Scale) {
  for_each_target([] {
    for (int32_t channels = 1; channels < 70; ++channels) {
      Guarded y(static_cast<size_t>(3 * channels + 2));
      Numbers(3).fill(y);
      std::vector<float> expected(y.begin(), y.end());
      const float factors[] = {2.0f, -0.3f, 7.0f};
      float *rows[3], *wanted[3];
      for (int32_t i = 0; i < 3; ++i) {
        rows[i] = y.data() + i * channels;
        wanted[i] = expected.data() + i * channels;
      }
      attention_kernels().scale(rows, 3, 2, channels, factors);
      attention_reference().scale(wanted, 3, 2, channels, factors);
      ASSERT_EQ(std::memcmp(expected.data(), y.data(), y.size() * sizeof(float)), 0) << channels;
    }
  });
}

TEST(AttentionSimd, ReferenceIsASoftmax) {
  Scores scores(1, 3, false, 0, 1.0f);
  for (int32_t c = 0; c < 3; ++c) scores.x(0, c) = static_cast<float>(c);
  scores.scale = 2.0f;
  const Result found = scores.run(attention_reference());
  const double sum = 1 + std::exp(-2.0) + std::exp(-4.0);
  EXPECT_NEAR(found.y[0] * found.factors[0], std::exp(-4.0) / sum, 1e-7);
  EXPECT_NEAR(found.y[2] * found.factors[0], 1 / sum, 1e-7);
}

}  // namespace
}  // namespace litefuse
