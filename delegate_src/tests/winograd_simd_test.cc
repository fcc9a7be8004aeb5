#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/simd/winograd_cases.h"
#include "tests/simd_targets.h"

namespace litefuse {
namespace {

constexpr float kInfinity = GemmEpilogue::kInfinity;

// Memory that starts at a multiple of kWeightAlignment.
class Aligned {
 public:
  explicit Aligned(size_t count) : memory_(count + kWeightAlignment / sizeof(float)) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    data_ = memory_.data() + (kWeightAlignment - address % kWeightAlignment) % kWeightAlignment / sizeof(float);
  }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  float* data() { return data_; }

 private:
  std::vector<float> memory_;
  float* data_ = nullptr;
};

float normal(Numbers* numbers) {  // the sum of twelve uniform ones has variance 1
  float sum = 0;
  for (int i = 0; i < 12; ++i) sum += numbers->uniform(-0.5f, 0.5f);
  return sum;
}

int32_t across(const WinogradCase& shape) { return (shape.width + 3) / 4; }
int32_t tiles_of(const WinogradCase& shape) { return across(shape) * ((shape.height + 3) / 4); }
size_t padded_floats(const WinogradCase& shape) {
  return static_cast<size_t>(4 * across(shape) + 2) * static_cast<size_t>((shape.height + 3) / 4 * 4 + 2) *
         static_cast<size_t>(shape.channels);
}

enum Input { kNormal, kOffset, kRelu };

// An image with a border of zeros, a filter and a bias.
struct Problem {
  WinogradCase shape;
  Guarded padded;
  std::vector<float> filter;
  Guarded bias;

  Problem(const WinogradCase& of, Input kind, uint64_t seed)
      : shape(of),
        padded(padded_floats(of)),
        filter(static_cast<size_t>(9 * of.channels) * static_cast<size_t>(of.outputs)),
        bias(static_cast<size_t>(of.outputs)) {
    Numbers numbers(seed);
    const int32_t width = 4 * across(shape) + 2;
    std::fill(padded.begin(), padded.end(), 0.0f);
    for (int32_t y = 0; y < shape.height; ++y) {
      for (int32_t i = 0; i < shape.width * shape.channels; ++i) {
        float x = normal(&numbers);
        if (kind == kOffset) x += 10;
        if (kind == kRelu) x = std::max(x, 0.0f);
        padded[static_cast<size_t>(((y + 1) * width + 1) * shape.channels + i)] = x;
      }
    }
    const float scale = 1 / std::sqrt(9.0f * static_cast<float>(shape.channels));
    for (float& w : filter) w = scale * normal(&numbers);
    numbers.fill(bias);
  }

  // The sum of products at one place, in double.
  double direct(int32_t y, int32_t x, int32_t n) const {
    const int32_t width = 4 * across(shape) + 2;
    double sum = 0;
    for (int32_t i = 0; i < 3; ++i) {
      const float* pixels = padded.data() + static_cast<ptrdiff_t>((y + i) * width + x) * shape.channels;
      const float* w = filter.data() + static_cast<ptrdiff_t>(n * 3 + i) * 3 * shape.channels;
      for (int32_t k = 0; k < 3 * shape.channels; ++k) sum += static_cast<double>(pixels[k]) * w[k];
    }
    return sum;
  }
};

// The kernels of one instruction set with packed weights and buffers of exactly the size that they need.
struct Runner {
  const WinogradKernels& kernels;
  WinogradLayout layout;
  Aligned weights;

  Runner(const WinogradKernels& with, const Problem& problem)
      : kernels(with), layout(with.layout(problem.shape.channels, problem.shape.outputs)), weights(layout.floats) {
    kernels.pack(layout, problem.filter.data(), false, weights.data());
  }

  void run(const Problem& problem, int32_t batch, const WinogradOutput& out, float* to, const float* residual) {
    const auto tiles = static_cast<size_t>(std::min(batch, tiles_of(problem.shape)));
    Guarded transformed(36 * tiles * static_cast<size_t>(problem.shape.channels));
    Guarded products(36 * tiles * static_cast<size_t>(problem.shape.outputs));
    winograd_convolution(kernels, layout, weights.data(), problem.shape, batch, problem.padded.data(),
                         transformed.data(), products.data(), out, to, residual);
  }
};

// The largest error relative to the largest output.
double error_of(const Problem& problem, const float* result, ptrdiff_t pixel, int32_t outputs_step) {
  double error = 0;
  double largest = 0;
  const WinogradCase& shape = problem.shape;
  for (int32_t y = 0; y < shape.height; ++y) {
    for (int32_t x = 0; x < shape.width; ++x) {
      for (int32_t n = (y + x) % outputs_step; n < shape.outputs; n += outputs_step) {
        const double expected = problem.direct(y, x, n);
        error = std::max(error, std::abs(result[(y * shape.width + x) * pixel + n] - expected));
        largest = std::max(largest, std::abs(expected));
      }
    }
  }
  return error / largest;
}

// Every shape against the sum of products, in guarded memory, with pixels of the output apart from each other.
TEST(WinogradSimdTest, ConvolvesAllShapes) {
  for_each_target([] {
    for (const WinogradCase& shape : kWinogradCases) {
      if (static_cast<int64_t>(shape.channels) * shape.outputs * shape.height * shape.width > 4'000'000) continue;
      SCOPED_TRACE(testing::Message() << shape.channels << " to " << shape.outputs << ", " << shape.height << " x "
                                      << shape.width);
      const Problem problem(shape, kNormal, 1);
      Runner runner(winograd_kernels(), problem);
      for (const ptrdiff_t gap : {0, 3}) {
        WinogradOutput out;
        out.pixel = shape.outputs + gap;
        Guarded result(static_cast<size_t>(shape.height * shape.width * out.pixel - gap));
        std::fill(result.begin(), result.end(), 12345.0f);
        runner.run(problem, 7, out, result.data(), nullptr);
        EXPECT_LE(error_of(problem, result.data(), out.pixel, shape.channels * shape.outputs > 4096 ? 7 : 1),
                  kWinogradError);
        for (size_t i = 0; i < result.size(); ++i) {
          const bool between = static_cast<ptrdiff_t>(i) % out.pixel >= shape.outputs;
          ASSERT_TRUE(!between || result[i] == 12345.0f) << i;
        }
      }
    }
  });
}

TEST(WinogradSimdTest, ErrorIsBounded) {
  for_each_target([] {
    double worst = 0;
    for (const int32_t channels : {16, 40, 64, 128, 256, 512}) {
      for (const Input kind : {kNormal, kOffset, kRelu}) {
        for (uint64_t seed = 0; seed < (channels <= 128 ? 3 : 1); ++seed) {
          const Problem problem({channels, 24, 12, 20, false}, kind, seed + static_cast<uint64_t>(channels));
          Runner runner(winograd_kernels(), problem);
          WinogradOutput out;
          out.pixel = 24;
          std::vector<float> result(12 * 20 * 24);
          runner.run(problem, 15, out, result.data(), nullptr);
          const double error = error_of(problem, result.data(), 24, channels > 128 ? 3 : 1);
          EXPECT_LE(error, kWinogradError) << channels << " channels, input " << kind;
          worst = std::max(worst, error);
        }
      }
    }
    EXPECT_GT(worst, 1e-8);  // it is no exact algorithm: the measure itself works
    std::printf("largest error %.2e\n", worst);
  });
}

// Stage by stage against the reference.
TEST(WinogradSimdTest, StagesAgreeWithReference) {
  for_each_target([] {
    for (const auto& [channels, outputs] : {std::pair{1, 1}, {3, 2}, {7, 9}, {8, 8}, {21, 13}, {33, 40}, {80, 72}}) {
      SCOPED_TRACE(testing::Message() << channels << " to " << outputs);
      const int32_t tiles = 3, stride = 5, first = 1;
      Numbers numbers(static_cast<uint64_t>(channels));
      const WinogradKernels* sets[2] = {&winograd_kernels(), &winograd_reference()};
      std::vector<float> filter(static_cast<size_t>(9 * channels * outputs));
      numbers.fill(filter);
      const ptrdiff_t pixel = channels + 2;
      const auto row_floats = static_cast<ptrdiff_t>((4 * tiles + 1) * pixel + channels);
      Guarded rows(static_cast<size_t>(6 * row_floats));
      numbers.fill(rows);
      const size_t in = static_cast<size_t>(36 * stride * channels), mid = static_cast<size_t>(36 * stride * outputs);
      std::vector<float> transformed[2], products[2];
      for (int i = 0; i < 2; ++i) {
        WinogradRow row;
        const WinogradLayout layout = sets[i]->layout(channels, outputs);
        row.layout = &layout;
        row.pixel = pixel;
        for (int k = 0; k < 6; ++k) row.rows[k] = rows.data() + k * row_floats;
        transformed[i].assign(in, 7.0f);
        sets[i]->input(row, tiles, transformed[i].data(), stride, first);
        Aligned weights(layout.floats);
        sets[i]->pack(layout, filter.data(), false, weights.data());
        products[i].assign(mid, 7.0f);
        const auto panels = static_cast<int32_t>(layout.product.panels.size());
        // The same transformed values for both; the panels in two parts.
        sets[i]->multiply(layout, weights.data(), transformed[0].data(), stride, products[i].data(), 0, panels / 2);
        sets[i]->multiply(layout, weights.data(), transformed[0].data(), stride, products[i].data(), panels / 2,
                          panels);
      }
      for (size_t i = 0; i < in; ++i) {
        const auto tile = static_cast<int32_t>(i / static_cast<size_t>(channels)) % stride;
        if (tile < first || tile >= first + tiles) {
          ASSERT_EQ(transformed[0][i], 7.0f);
        } else {
          ASSERT_NEAR(transformed[0][i], transformed[1][i], 4e-6) << i;
        }
      }
      for (size_t i = 0; i < mid; ++i) ASSERT_NEAR(products[0][i], products[1][i], 1e-4) << i;
    }
  });
}

struct Epilogue {
  bool bias, slopes, clamp, residual, residual_clamp;
};

// Bias, activation and residual, rows and columns that are not wanted; the output may be where the residual is.
TEST(WinogradSimdTest, OutputEpilogues) {
  for_each_target([] {
    for (const int32_t outputs : {1, 5, 8, 16, 19, 24, 72}) {
      for (const Epilogue& e : {Epilogue{false, false, false, false, false},
                                {true, false, true, false, false},
                                {true, true, false, false, false},
                                {true, false, true, true, false},
                                {false, true, false, true, true},
                                {true, false, false, true, true}}) {
        for (const int32_t columns : {1, 2, 3, 4, 7, 8, 11, 12, 99}) {
          for (const int missing : {0, 1, 3, 8, 14}) {  // bits of the rows
            SCOPED_TRACE(testing::Message() << outputs << " outputs, " << columns << " columns, missing " << missing);
            const int32_t tiles = 3, stride = 4, first = 1;
            Numbers numbers(static_cast<uint64_t>(outputs));
            Guarded products(static_cast<size_t>(36 * stride * outputs));
            Guarded bias(static_cast<size_t>(outputs)), slopes(static_cast<size_t>(outputs));
            numbers.fill(products);
            numbers.fill(bias);
            numbers.fill(slopes);
            WinogradOutput out;
            out.pixel = outputs + 1;
            out.columns = columns;
            if (e.bias) out.bias = bias.data();
            if (e.slopes) out.epilogue.slopes = slopes.data();
            if (e.clamp) out.epilogue.min = -2, out.epilogue.max = 3;
            if (e.residual_clamp) out.epilogue.residual_min = 0, out.epilogue.residual_max = 4;
            const int32_t stored = std::min(columns, 4 * tiles);
            const auto floats = static_cast<size_t>((stored - 1) * out.pixel + outputs);
            std::vector<float> start(4 * floats);
            numbers.fill(start);
            std::vector<float> result[2];
            for (int i = 0; i < 2; ++i) {
              const WinogradKernels& kernels = i == 0 ? winograd_kernels() : winograd_reference();
              const WinogradLayout layout = kernels.layout(4, outputs);
              Guarded row0(floats), row1(floats), row2(floats), row3(floats);
              Guarded* rows[4] = {&row0, &row1, &row2, &row3};
              for (int y = 0; y < 4; ++y) {
                std::copy_n(start.begin() + y * static_cast<ptrdiff_t>(floats), floats, rows[y]->begin());
                const bool wanted = (missing >> y & 1) == 0;
                out.rows[y] = wanted ? rows[y]->data() : nullptr;
                out.residual[y] = wanted && e.residual ? rows[y]->data() : nullptr;
              }
              kernels.output(layout, products.data(), stride, first, tiles, out);
              for (Guarded* row : rows) result[i].insert(result[i].end(), row->begin(), row->end());
            }
            for (size_t i = 0; i < result[0].size(); ++i) {
              const auto within = static_cast<ptrdiff_t>(i % floats);
              const bool kept = within % out.pixel >= outputs || (missing >> (i / floats) & 1) != 0;
              if (kept) {
                ASSERT_EQ(result[0][i], start[i]);
              } else {
                ASSERT_NEAR(result[0][i], result[1][i], 1e-4) << i;
              }
            }
          }
        }
      }
    }
  });
}

TEST(WinogradSimdTest, DoesNotDependOnTheCut) {
  for_each_target([] {
    for (const WinogradCase& shape : {WinogradCase{24, 40, 13, 22, false},
                                      {64, 64, 12, 12, false},
                                      {17, 19, 9, 30, false},
                                      {5, 70, 40, 100, false}}) {
      const Problem problem(shape, kNormal, 3);
      Runner runner(winograd_kernels(), problem);
      const auto floats = static_cast<size_t>(shape.height * shape.width * shape.outputs);
      std::vector<float> expected(floats);
      WinogradOutput out;
      out.pixel = shape.outputs;
      out.bias = problem.bias.data();
      out.epilogue.min = 0;
      runner.run(problem, 1000, out, expected.data(), nullptr);
      for (const int32_t batch : {1, 2, 3, 4, 5, 6, 8, 13, 24, 241}) {
        std::vector<float> result(floats);
        runner.run(problem, batch, out, result.data(), nullptr);
        ASSERT_EQ(std::memcmp(result.data(), expected.data(), floats * sizeof(float)), 0) << batch;
      }
    }
  });
}

// The input is read nowhere but in the pixels of the tiles, wherever it starts.
TEST(WinogradSimdTest, ReadsOnlyTheTiles) {
  for_each_target([] {
    for (const int32_t channels : {1, 2, 3, 6, 9, 15, 31, 64, 70}) {
      const WinogradLayout layout = winograd_kernels().layout(channels, 8);
      for (const bool before : {false, true}) {
        const int32_t tiles = 2;
        const auto floats = static_cast<size_t>((4 * tiles + 2) * channels);
        Guarded row0(floats, before), row1(floats, before), row2(floats, before), row3(floats, before);
        Guarded row4(floats, before), row5(floats, before);
        Guarded transformed(static_cast<size_t>(36 * tiles * channels), before);
        WinogradRow row;
        row.layout = &layout;
        row.pixel = channels;
        int i = 0;
        for (Guarded* one : {&row0, &row1, &row2, &row3, &row4, &row5}) {
          std::fill(one->begin(), one->end(), 1.0f);
          row.rows[i++] = one->data();
        }
        winograd_kernels().input(row, tiles, transformed.data(), tiles, 0);
        // The first of the 36 values of a constant image is the square of (a^2 - 1) (b^2 - 1).
        const double value = (121.0 / 256 - 1) * (9.0 / 4 - 1);
        for (int32_t t = 0; t < tiles * channels; ++t) {
          ASSERT_NEAR(transformed[static_cast<size_t>(t)], value * value, 1e-6);
        }
      }
    }
  });
}

TEST(WinogradSimdTest, HalfFilters) {
  // 1, -2, 0.5, the smallest normal, two denormals, the largest, zeros.
  const uint16_t halves[9] = {0x3c00, 0xc000, 0x3800, 0x0400, 0x0001, 0x83ff, 0x7bff, 0x0000, 0x8000};
  const float floats[9] = {1, -2, 0.5f, 0x1p-14f, 0x1p-24f, -1023 * 0x1p-24f, 65504, 0, -0.0f};
  for_each_target([&] {
    for (const WinogradKernels* kernels : {&winograd_kernels(), &winograd_reference()}) {
      const int32_t channels = 5, outputs = 11;
      std::vector<uint16_t> half(static_cast<size_t>(9 * channels * outputs));
      std::vector<float> single(half.size());
      for (size_t i = 0; i < half.size(); ++i) {
        half[i] = halves[i * 5 % 9];
        single[i] = floats[i * 5 % 9];
      }
      const WinogradLayout layout = kernels->layout(channels, outputs);
      Aligned a(layout.floats), b(layout.floats);
      kernels->pack(layout, half.data(), true, a.data());
      kernels->pack(layout, single.data(), false, b.data());
      EXPECT_EQ(layout.channels, channels);
      for (int e = 0; e < 36; ++e) {
        EXPECT_EQ(
            std::memcmp(a.data() + static_cast<size_t>(e) * layout.floats / 36,
                        b.data() + static_cast<size_t>(e) * layout.floats / 36, layout.product.floats * sizeof(float)),
            0);
      }
    }
  });
}

// What is not finite makes NaN of the outputs of its tiles and leaves all others alone.
TEST(WinogradSimdTest, NotFinite) {
  for_each_target([] {
    const WinogradCase shape = {20, 24, 12, 12, false};
    const Problem clean(shape, kNormal, 5);
    WinogradOutput out;
    out.pixel = 24;
    out.bias = clean.bias.data();
    out.epilogue.min = -1;
    out.epilogue.max = 1;
    std::vector<float> expected(12 * 12 * 24);
    Runner runner(winograd_kernels(), clean);
    runner.run(clean, 9, out, expected.data(), nullptr);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
      Problem problem(shape, kNormal, 5);
      problem.padded[static_cast<size_t>((7 * 14 + 7) * 20 + 3)] = bad;  // in the tile in the middle only
      std::vector<float> result(expected.size());
      runner.run(problem, 9, out, result.data(), nullptr);
      for (int y = 0; y < 12; ++y) {
        for (int i = 0; i < 12 * 24; ++i) {
          const bool inside = y / 4 == 1 && i / 24 / 4 == 1;
          const float value = result[static_cast<size_t>(y * 12 * 24 + i)];
          if (inside) {
            ASSERT_TRUE(std::isnan(value)) << y << " " << i;
          } else {
            ASSERT_EQ(value, expected[static_cast<size_t>(y * 12 * 24 + i)]);
          }
        }
      }
    }
    // In the border of three other tiles: of those it reaches one row, one column or one output.
    Problem problem(shape, kNormal, 5);
    problem.padded[static_cast<size_t>((8 * 14 + 8) * 20 + 3)] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> result(expected.size());
    runner.run(problem, 9, out, result.data(), nullptr);
    for (int y = 0; y < 12; ++y) {
      for (int i = 0; i < 12 * 24; ++i) {
        const bool met = y >= 4 && y <= 8 && i / 24 >= 4 && i / 24 <= 8;
        const auto at = static_cast<size_t>(y * 12 * 24 + i);
        ASSERT_TRUE(met ? std::isnan(result[at]) : result[at] == expected[at]) << y << " " << i;
      }
    }
    // Denormals and zeros stay finite, and large values that do not overflow do, too.
    for (const float scale : {1e-42f, 0.0f, 1e35f}) {
      Problem scaled(shape, kNormal, 5);
      for (float& x : scaled.padded) x *= scale;
      runner.run(scaled, 9, out, result.data(), nullptr);
      for (const float x : result) ASSERT_TRUE(x >= -1 && x <= 1);
    }
  });
}

TEST(WinogradSimdTest, RecommendsTiles) {
  for (const auto& [channels, outputs] : {std::pair{16, 16}, {64, 64}, {128, 32}, {512, 512}, {2048, 2048}}) {
    for (const size_t l2 : {0u, 128u * 1024, 512u * 1024, 4096u * 1024}) {
      const WinogradLayout layout = winograd_kernels().layout(channels, outputs);
      const int32_t tiles = winograd_tiles(layout, l2);
      EXPECT_GE(tiles, 21);
      EXPECT_LE(tiles, 93);
      EXPECT_EQ(tiles % 12, 9);
    }
  }
  const WinogradLayout small = winograd_kernels().layout(16, 16);
  EXPECT_LE(static_cast<size_t>(winograd_tiles(small, 512 * 1024)) * 36 * 32 * sizeof(float), 512u * 1024);
  EXPECT_TRUE(winograd_pays(64, 64, 56, 56));
  EXPECT_TRUE(winograd_pays(128, 128, 28, 28));
  EXPECT_FALSE(winograd_pays(3, 32, 112, 112));
  EXPECT_FALSE(winograd_pays(64, 3, 112, 112));
  EXPECT_FALSE(winograd_pays(64, 64, 1, 200));
  EXPECT_FALSE(winograd_pays(512, 512, 1, 1));
}

}  // namespace
}  // namespace litefuse
