// The depthwise kernels of every instruction set against scalar code with sums in double.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/simd/depthwise.h"
#include "kernels/simd/depthwise_cases.h"
#include "tests/simd_targets.h"

namespace litefuse {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kCanary = -12345.5f;

size_t size(ptrdiff_t n) { return static_cast<size_t>(n); }

class Packed {
 public:
  Packed(const DepthwiseKernels& kernels, const DepthwiseCase& c, const DepthwiseWeights& weights)
      : layout_(kernels.layout(c.channels, c.height, c.width, c.multiplier)) {
    const size_t bytes = layout_.floats * sizeof(float) + kWeightAlignment;
    data_ = static_cast<float*>(std::aligned_alloc(kWeightAlignment, bytes / kWeightAlignment * kWeightAlignment));
    kernels.pack(layout_, weights, data_);
  }
  ~Packed() { std::free(data_); }
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;
  const DepthwiseLayout& layout() const { return layout_; }
  const float* data() const { return data_; }

 private:
  DepthwiseLayout layout_;
  float* data_;
};

// An image with exactly the pixels that two rows of outputs read, and a filter.
struct Data {
  Data(const DepthwiseCase& shape, Numbers* numbers, ptrdiff_t gap = 0)
      : c(shape),
        inputs(c.channels / c.multiplier),
        pixel(inputs + gap),
        columns(c.outputs == 0 ? 0 : (c.outputs - 1) * c.stride + (c.width - 1) * c.dilation + 1),
        filter(size(c.channels * c.height * c.width)),
        bias(size(c.channels)),
        slopes(size(c.channels)) {
    numbers->fill(filter);
    numbers->fill(bias);
    numbers->fill(slopes, -0.5f, 0.5f);
    for (int32_t ky = 0; ky < c.height + c.stride; ++ky) {
      const ptrdiff_t floats = columns == 0 ? 0 : (columns - 1) * pixel + inputs;
      lines.push_back(std::make_unique<Guarded>(size(floats), ky % 2 == 1));
      numbers->fill(*lines.back());
      rows.push_back(lines.back()->data());
    }
  }

  DepthwiseRow row(const Packed& packed, float* out, ptrdiff_t out_pixel) const {
    DepthwiseRow row;
    row.layout = &packed.layout();
    row.weights = packed.data();
    row.rows = rows.data();
    row.pixel = pixel;
    row.stride = c.stride;
    row.dilation = c.dilation;
    row.outputs = c.outputs;
    row.out = out;
    row.out_pixel = out_pixel;
    row.min = -kInfinity;
    row.max = kInfinity;
    return row;
  }

  // Every tap of output x.
  std::vector<const float*> taps(int32_t x) const {
    std::vector<const float*> taps;
    for (int32_t ky = 0; ky < c.height; ++ky) {
      for (int32_t kx = 0; kx < c.width; ++kx) {
        taps.push_back(rows[size(ky)] + (x * c.stride + kx * c.dilation) * pixel);
      }
    }
    return taps;
  }

  DepthwiseCase c;
  ptrdiff_t inputs;  // channels of the image
  ptrdiff_t pixel;
  ptrdiff_t columns;
  Guarded filter;
  Guarded bias;
  Guarded slopes;
  std::vector<std::unique_ptr<Guarded>> lines;
  std::vector<const float*> rows;
};

std::string name(const DepthwiseCase& c) {
  return std::to_string(c.channels) + " channels, " + std::to_string(c.height) + "x" + std::to_string(c.width) +
         " stride " + std::to_string(c.stride) + " dilation " + std::to_string(c.dilation) + ", " +
         std::to_string(c.outputs) + " outputs, multiplier " + std::to_string(c.multiplier);
}

// Each of n fused or unfused steps rounds to half an ulp of a sum that is no larger than n + 1.
float tolerance(const DepthwiseCase& c) {
  const auto n = static_cast<float>(c.height * c.width + 1);
  return n * std::sqrt(n) * std::numeric_limits<float>::epsilon();
}

TEST(Depthwise, RowsAgreeWithTheReference) {
  for (const DepthwiseCase& c : kDepthwiseCases) {
    SCOPED_TRACE(name(c));
    Numbers numbers(static_cast<uint64_t>(c.channels * 31 + c.height * 7 + c.outputs));
    for (const ptrdiff_t gap : {0, 3}) {
      const Data data(c, &numbers, gap);
      const DepthwiseKernels& reference = depthwise_reference();
      const Packed plain(reference, c, {data.filter.data(), false, data.bias.data()});
      const ptrdiff_t out_pixel = c.channels + 2 * gap;
      const ptrdiff_t floats = c.outputs == 0 ? 0 : (c.outputs - 1) * out_pixel + c.channels;
      // Clamped, with slopes, in two lines of which the second may lie before the first, and fetched ahead.
      for (int variant = 0; variant < 6; ++variant) {
        SCOPED_TRACE(variant);
        const int epilogue = variant % 3;
        const int32_t line_count = variant < 3 ? 1 : 2;
        const ptrdiff_t out_line = floats + 3;
        const ptrdiff_t all = floats + (line_count - 1) * out_line;
        const auto run = [&](const DepthwiseKernels& kernels, const Packed& packed, Guarded* out) {
          std::fill(out->begin(), out->end(), kCanary);
          DepthwiseRow row = data.row(packed, out->data(), out_pixel);
          row.lines = line_count;
          row.out_line = out_line;
          row.far = variant == 4;
          if (variant == 5) row.out += out_line, row.out_line = -out_line;
          if (epilogue == 1) row.min = -0.25f, row.max = 0.75f;
          if (epilogue == 2) row.slopes = data.slopes.data();
          kernels.row(row);
        };
        Guarded want(size(all));
        run(reference, plain, &want);
        for_each_target([&] {
          const DepthwiseKernels& kernels = depthwise_kernels();
          const Packed packed(kernels, c, {data.filter.data(), false, data.bias.data()});
          for (const bool before : {false, true}) {
            Guarded got(size(all), before);
            run(kernels, packed, &got);
            for (size_t i = 0; i < got.size(); ++i) {
              const ptrdiff_t at = static_cast<ptrdiff_t>(i) % out_line;
              if (at >= floats || at % out_pixel >= c.channels) {
                ASSERT_EQ(got[i], kCanary) << i;
              } else {
                ASSERT_NEAR(got[i], want[i], tolerance(c)) << i;
              }
            }
          }
        });
      }
    }
  }
}

// A strip may be cut anywhere, and pixels at the edges are computed in another way.
TEST(Depthwise, CutsAndPixelsGiveTheSameBits) {
  for (const DepthwiseCase& c : kDepthwiseCases) {
    if (c.outputs == 0) continue;
    SCOPED_TRACE(name(c));
    Numbers numbers(static_cast<uint64_t>(c.channels + c.width));
    const Data data(c, &numbers);
    for_each_target([&] {
      const DepthwiseKernels& kernels = depthwise_kernels();
      const Packed packed(kernels, c, {data.filter.data(), false, data.bias.data()});
      Guarded whole(size(c.outputs * c.channels));
      DepthwiseRow row = data.row(packed, whole.data(), c.channels);
      row.min = -0.5f;
      row.max = 0.5f;
      kernels.row(row);

      Guarded cut(whole.size());
      const int32_t at = c.outputs / 3;
      row.out = cut.data();
      row.outputs = at;
      kernels.row(row);
      std::vector<const float*> rows = data.rows;
      for (const float*& line : rows) line += at * c.stride * data.pixel;
      row.rows = rows.data();
      row.out = cut.data() + at * c.channels;
      row.outputs = c.outputs - at;
      kernels.row(row);
      ASSERT_EQ(std::memcmp(cut.data(), whole.data(), whole.size() * sizeof(float)), 0);

      // Two lines are what each is alone.
      Guarded both(2 * whole.size());
      row.rows = data.rows.data();
      row.out = both.data();
      row.outputs = c.outputs;
      row.lines = 2;
      row.out_line = c.outputs * c.channels;
      kernels.row(row);
      ASSERT_EQ(std::memcmp(both.data(), whole.data(), whole.size() * sizeof(float)), 0);
      row.rows += c.stride;
      row.out = cut.data();
      row.lines = 1;
      kernels.row(row);
      ASSERT_EQ(std::memcmp(both.data() + row.out_line, cut.data(), cut.size() * sizeof(float)), 0);

      for (const int32_t x : {0, c.outputs / 2, c.outputs - 1}) {
        const std::vector<const float*> taps = data.taps(x);
        Guarded out(size(c.channels));
        DepthwisePixel pixel;
        pixel.layout = &packed.layout();
        pixel.weights = packed.data();
        pixel.taps = taps.data();
        pixel.out = out.data();
        pixel.min = -0.5f;
        pixel.max = 0.5f;
        kernels.pixel(pixel);
        ASSERT_EQ(std::memcmp(out.data(), whole.data() + x * c.channels, out.size() * sizeof(float)), 0) << x;
      }
    });
  }
}

TEST(Depthwise, TapsOutsideCountAsZeros) {
  for (const DepthwiseCase& c : kDepthwiseCases) {
    if (c.outputs == 0) continue;
    SCOPED_TRACE(name(c));
    Numbers numbers(static_cast<uint64_t>(c.channels));
    const Data data(c, &numbers);
    const std::vector<float> zeros(size(c.channels));
    for (int pattern = 0; pattern < 3; ++pattern) {
      std::vector<const float*> missing = data.taps(0);
      std::vector<const float*> zeroed = missing;
      for (size_t tap = 0; tap < missing.size(); ++tap) {
        if (pattern == 0 && numbers.between(0, 2) != 0) continue;
        if (pattern == 1 && tap % size(c.width) != 0) continue;  // pattern 2: all of them
        missing[tap] = nullptr;
        zeroed[tap] = zeros.data();
      }
      const auto run = [&](const DepthwiseKernels& kernels, const std::vector<const float*>& taps, bool slopes) {
        const Packed packed(kernels, c, {data.filter.data(), false, data.bias.data()});
        Guarded out(size(c.channels));
        DepthwisePixel pixel;
        pixel.layout = &packed.layout();
        pixel.weights = packed.data();
        pixel.taps = taps.data();
        pixel.out = out.data();
        pixel.min = -kInfinity;
        pixel.max = kInfinity;
        if (slopes) pixel.slopes = data.slopes.data();
        kernels.pixel(pixel);
        return std::vector<float>(out.begin(), out.end());
      };
      for (const bool slopes : {false, true}) {
        const std::vector<float> want = run(depthwise_reference(), missing, slopes);
        for_each_target([&] {
          const std::vector<float> got = run(depthwise_kernels(), missing, slopes);
          ASSERT_EQ(got, run(depthwise_kernels(), zeroed, slopes));
          for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance(c)) << i;
        });
      }
    }
  }
}

TEST(Depthwise, HalfWeightsAreWidened) {
  const DepthwiseCase c = {19, 3, 3, 1, 1, 4, false};
  // Bits of binary16 and what they stand for.
  const std::vector<std::pair<uint16_t, float>> table = {
      {0x0000, 0.0f},        {0x3c00, 1.0f},     {0xc000, -2.0f},      {0x3555, 0x1.554p-2f}, {0x7bff, 65504.0f},
      {0xfbff, -65504.0f},   {0x0400, 0x1p-14f}, {0x03ff, 0x3ffp-24f}, {0x0001, 0x1p-24f},    {0x8001, -0x1p-24f},
      {0x2e66, 0x1.998p-4f}, {0xb800, -0.5f},    {0x3bff, 0x1.ffcp-1f}};
  std::vector<uint16_t> half;
  std::vector<float> wide;
  for (size_t i = 0; i < size(c.channels) * 9; ++i) {
    half.push_back(table[i * 5 % table.size()].first);
    wide.push_back(table[i * 5 % table.size()].second);
  }
  for_each_target([&] {
    const DepthwiseKernels& kernels = depthwise_kernels();
    const Packed from_half(kernels, c, {half.data(), true, nullptr});
    const Packed from_wide(kernels, c, {wide.data(), false, nullptr});
    ASSERT_EQ(std::memcmp(from_half.data(), from_wide.data(), from_wide.layout().floats * sizeof(float)), 0);
  });
  const uint16_t special[] = {0x7c00, 0xfc00, 0x7e01};
  const DepthwiseCase one = {1, 1, 3, 1, 1, 1, false};
  for_each_target([&] {
    const Packed packed(depthwise_kernels(), one, {special, true, nullptr});
    EXPECT_EQ(packed.data()[0], 0.0f);
    EXPECT_EQ(packed.data()[1], kInfinity);
    EXPECT_EQ(packed.data()[2], -kInfinity);
    EXPECT_TRUE(std::isnan(packed.data()[3]));
  });
}

TEST(Depthwise, NanAndInfinityGoThrough) {
  for (const int32_t channels : {1, 2, 4, 7, 8, 16, 21}) {
    for (const int32_t kernel : {2, 3, 5, 7}) {
      const DepthwiseCase c = {channels, kernel, kernel, 1, 1, 9, false};
      SCOPED_TRACE(name(c));
      Numbers numbers(static_cast<uint64_t>(channels));
      Data data(c, &numbers);
      for (float& w : data.filter) w = 1.0f;
      const float specials[] = {kNan, kInfinity, -kInfinity, std::numeric_limits<float>::max(), 1e-42f, -0.0f};
      size_t at = 0;
      for (const float special : specials) (*data.lines[0])[at++] = special;
      const auto run = [&](const DepthwiseKernels& kernels, bool slopes, float min, float max) {
        const Packed packed(kernels, c, {data.filter.data(), false, data.bias.data()});
        std::vector<float> out(size(c.outputs * channels));
        DepthwiseRow row = data.row(packed, out.data(), channels);
        row.min = min;
        row.max = max;
        if (slopes) row.slopes = data.slopes.data();
        kernels.row(row);
        return out;
      };
      for (const bool slopes : {false, true}) {
        for (const auto& [min, max] : {std::pair(-kInfinity, kInfinity), std::pair(0.0f, 6.0f)}) {
          const std::vector<float> want = run(depthwise_reference(), slopes, min, max);
          bool nan = false;
          for (const float x : want) nan = nan || std::isnan(x);
          EXPECT_TRUE(nan);
          for_each_target([&, &min = min, &max = max] {
            const std::vector<float> got = run(depthwise_kernels(), slopes, min, max);
            for (size_t i = 0; i < got.size(); ++i) {
              if (std::isnan(want[i])) {
                ASSERT_TRUE(std::isnan(got[i])) << i;
              } else if (std::isinf(want[i]) || std::fabs(want[i]) > 1e30f) {
                ASSERT_EQ(got[i], want[i]) << i;
              } else {
                ASSERT_NEAR(got[i], want[i], 1e-4f) << i;
              }
            }
          });
        }
      }
    }
  }
}

// Pixels that lie a multiple of 512 or 1024 bytes apart are computed with another tile, which must not show.
TEST(Depthwise, DistancesOfPixelsDoNotMatter) {
  for (const DepthwiseCase& c : kDepthwiseCases) {
    if (c.outputs == 0 || c.channels / c.multiplier > 512) continue;
    SCOPED_TRACE(name(c));
    for (const ptrdiff_t distance : {128, 256, 512}) {
      const ptrdiff_t gap = distance - c.channels / c.multiplier;
      if (gap < 0) continue;
      Numbers numbers(3);
      const Data apart(c, &numbers, gap);
      Data close(c, &numbers, 0);
      for (size_t ky = 0; ky < close.lines.size(); ++ky) {
        for (ptrdiff_t x = 0; x < close.columns; ++x) {
          for (ptrdiff_t i = 0; i < close.inputs; ++i) {
            (*close.lines[ky])[size(x * close.pixel + i)] = apart.rows[ky][x * apart.pixel + i];
          }
        }
      }
      for_each_target([&] {
        const DepthwiseKernels& kernels = depthwise_kernels();
        const Packed packed(kernels, c, {apart.filter.data(), false, apart.bias.data()});
        for (const int32_t line_count : {1, 2}) {
          const auto run = [&](const Data& data) {
            std::vector<float> out(size(line_count * c.outputs * c.channels));
            DepthwiseRow row = data.row(packed, out.data(), c.channels);
            row.lines = line_count;
            row.out_line = c.outputs * c.channels;
            kernels.row(row);
            return out;
          };
          ASSERT_EQ(run(apart), run(close));
        }
      });
    }
  }
}

// A multiplier is the same as an image in which each channel is repeated.
TEST(Depthwise, MultipliersRepeatChannels) {
  for (const DepthwiseCase& c : kDepthwiseCases) {
    if (c.multiplier == 1) continue;
    SCOPED_TRACE(name(c));
    Numbers numbers(5);
    const Data data(c, &numbers);
    DepthwiseCase plain = c;
    plain.multiplier = 1;
    Data repeated(plain, &numbers);
    for (size_t ky = 0; ky < data.rows.size(); ++ky) {
      for (ptrdiff_t x = 0; x < data.columns; ++x) {
        for (ptrdiff_t i = 0; i < c.channels; ++i) {
          (*repeated.lines[ky])[size(x * c.channels + i)] = data.rows[ky][x * data.pixel + i / c.multiplier];
        }
      }
    }
    for_each_target([&] {
      const auto run = [&](const DepthwiseCase& shape, const Data& image) {
        const Packed packed(depthwise_kernels(), shape, {data.filter.data(), false, data.bias.data()});
        std::vector<float> out(size(c.outputs * c.channels));
        depthwise_kernels().row(image.row(packed, out.data(), c.channels));
        return out;
      };
      ASSERT_EQ(run(c, data), run(plain, repeated));
    });
  }
}

TEST(Depthwise, PackedWeightsHaveTheirLayout) {
  for (const int32_t channels : {1, 3, 4, 8, 9, 16, 23, 40}) {
    const DepthwiseCase c = {channels, 2, 3, 1, 1, 1, false};
    Numbers numbers(7);
    const Data data(c, &numbers);
    for_each_target([&] {
      const Packed packed(depthwise_kernels(), c, {data.filter.data(), false, data.bias.data()});
      const DepthwiseLayout& layout = packed.layout();
      ASSERT_LE(layout.lanes, channels);
      const int32_t vectors = (channels + layout.lanes - 1) / layout.lanes;
      ASSERT_EQ(layout.floats, size(vectors * 7 * layout.lanes));
      const float* at = packed.data();
      for (int32_t v = 0; v < vectors; ++v) {
        const int32_t first = std::min(v * layout.lanes, channels - layout.lanes);
        for (int32_t i = 0; i < layout.lanes; ++i) ASSERT_EQ(*at++, data.bias[size(first + i)]);
        for (int32_t tap = 0; tap < 6; ++tap) {
          for (int32_t i = 0; i < layout.lanes; ++i) ASSERT_EQ(*at++, data.filter[size(tap * channels + first + i)]);
        }
      }
    });
  }
}

}  // namespace
}  // namespace litefuse
