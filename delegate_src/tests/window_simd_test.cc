// Pooling and resizing by every instruction set against scalar code in double.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/simd/window.h"
#include "kernels/simd/window_cases.h"
#include "tests/simd_targets.h"

namespace litefuse {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kEpsilon = std::numeric_limits<float>::epsilon();
constexpr float kCanary = -12345.5f;

size_t size(ptrdiff_t n) { return static_cast<size_t>(n); }

size_t floats(ptrdiff_t pixels, ptrdiff_t stride, ptrdiff_t channels) {
  return pixels == 0 ? 0 : size((pixels - 1) * stride + channels);
}

using Pool = void (*WindowKernels::*)(const PoolRow& row);
constexpr Pool kPools[] = {&WindowKernels::max_pool, &WindowKernels::average_pool};

std::string name(const PoolCase& c) {
  return std::to_string(c.channels) + " channels, " + std::to_string(c.height) + "x" + std::to_string(c.width) +
         " stride " + std::to_string(c.stride) + " left " + std::to_string(c.left) + ", " + std::to_string(c.columns) +
         " -> " + std::to_string(c.outputs);
}

struct PoolData {
  PoolData(const PoolCase& shape, Numbers* numbers, ptrdiff_t gap = 0) : c(shape), pixel(c.channels + gap) {
    for (int32_t y = 0; y < c.height; ++y) {
      lines.push_back(std::make_unique<Guarded>(floats(c.columns, pixel, c.channels), y % 2 == 1));
      numbers->fill(*lines.back());
      rows.push_back(lines.back()->data());
    }
  }

  PoolRow row(float* out, ptrdiff_t out_pixel) const {
    PoolRow row;
    row.rows = rows.data();
    row.height = c.height;
    row.width = c.width;
    row.stride = c.stride;
    row.left = c.left;
    row.columns = c.columns;
    row.channels = c.channels;
    row.pixel = pixel;
    row.outputs = c.outputs;
    row.out = out;
    row.out_pixel = out_pixel;
    row.min = -kInfinity;
    row.max = kInfinity;
    return row;
  }

  std::vector<float> run(const WindowKernels& kernels, Pool pool, float min = -kInfinity, float max = kInfinity) const {
    std::vector<float> out(size(c.outputs * c.channels));
    PoolRow r = row(out.data(), c.channels);
    r.min = min;
    r.max = max;
    (kernels.*pool)(r);
    return out;
  }

  PoolCase c;
  ptrdiff_t pixel;
  std::vector<std::unique_ptr<Guarded>> lines;
  std::vector<const float*> rows;
};

TEST(Window, PoolsAgreeWithTheReference) {
  for (const PoolCase& c : kPoolCases) {
    SCOPED_TRACE(name(c));
    Numbers numbers(static_cast<uint64_t>(c.channels + c.width * 100));
    for (const ptrdiff_t gap : {0, 3}) {
      const PoolData data(c, &numbers, gap);
      const ptrdiff_t out_pixel = c.channels + 2 * gap;
      for (const Pool pool : kPools) {
        for (const float bound : {kInfinity, 0.25f}) {
          const auto run = [&](const WindowKernels& kernels, Guarded* out) {
            std::fill(out->begin(), out->end(), kCanary);
            PoolRow row = data.row(out->data(), out_pixel);
            row.min = -bound;
            row.max = bound;
            (kernels.*pool)(row);
          };
          Guarded want(floats(c.outputs, out_pixel, c.channels));
          run(window_reference(), &want);
          const float tolerance =
              pool == &WindowKernels::max_pool ? 0 : static_cast<float>(c.height + c.width) * kEpsilon;
          for_each_target([&] {
            for (const bool before : {false, true}) {
              Guarded got(want.size(), before);
              run(window_kernels(), &got);
              for (size_t i = 0; i < got.size(); ++i) {
                if (static_cast<ptrdiff_t>(i) % out_pixel >= c.channels) {
                  ASSERT_EQ(got[i], kCanary) << i;
                } else {
                  ASSERT_NEAR(got[i], want[i], tolerance) << i;
                }
              }
            }
          });
        }
      }
    }
  }
}

// Whether a window is computed in a block, alone or as one that might be clipped.
TEST(Window, EveryPathGivesTheSameBits) {
  for (const PoolCase& c : kPoolCases) {
    if (c.outputs == 0) continue;
    SCOPED_TRACE(name(c));
    Numbers numbers(static_cast<uint64_t>(c.channels));
    const PoolData data(c, &numbers);
    for (const Pool pool : kPools) {
      for_each_target([&] {
        const WindowKernels& kernels = window_kernels();
        const std::vector<float> whole = data.run(kernels, pool);
        Guarded alone(size(c.channels));
        for (int32_t i = 0; i < c.outputs; ++i) {
          PoolRow row = data.row(alone.data(), c.channels);
          row.left -= i * c.stride;
          row.outputs = 1;
          (kernels.*pool)(row);
          ASSERT_EQ(std::memcmp(alone.data(), whole.data() + i * c.channels, alone.size() * sizeof(float)), 0) << i;
          // The same window, cut to what lies in the image, as the whole of an image.
          const int32_t begin = std::max(i * c.stride - c.left, 0);
          const int32_t end = std::min(i * c.stride - c.left + c.width, c.columns);
          if (begin >= end) continue;
          std::vector<const float*> rows = data.rows;
          for (const float*& line : rows) line += begin * data.pixel;
          row.rows = rows.data();
          row.left = 7;
          row.width = end - begin + 11;
          row.columns = end - begin;
          (kernels.*pool)(row);
          ASSERT_EQ(std::memcmp(alone.data(), whole.data() + i * c.channels, alone.size() * sizeof(float)), 0) << i;
        }
      });
    }
  }
}

TEST(Window, MeansLetNanThroughAndMaximaSkipIt) {
  for (const int32_t channels : {1, 2, 4, 8, 11, 16, 37}) {
    for (const auto& [width, stride] : {std::pair(2, 2), std::pair(3, 2), std::pair(3, 1), std::pair(4, 1)}) {
      const PoolCase c = {channels, width, width, stride, 1, 19, 9, false};
      SCOPED_TRACE(name(c));
      const float specials[] = {kNan, kInfinity, -kInfinity, std::numeric_limits<float>::max(), 1e-42f, -0.0f};
      for (int32_t line = 0; line < c.height; ++line) {
        Numbers numbers(static_cast<uint64_t>(channels + line));
        PoolData data(c, &numbers);
        for (size_t i = 0; i < 6; ++i)
          (*data.lines[size(line)])[size(3 * channels) + i * size(channels + 1)] = specials[i];
        for (const Pool pool : kPools) {
          for (const auto& [min, max] : {std::pair(-kInfinity, kInfinity), std::pair(0.0f, 6.0f)}) {
            const std::vector<float> want = data.run(window_reference(), pool, min, max);
            const bool nan = std::any_of(want.begin(), want.end(), [](float x) { return std::isnan(x); });
            EXPECT_EQ(nan, pool == &WindowKernels::average_pool);
            for_each_target([&, &min = min, &max = max] {
              const std::vector<float> got = data.run(window_kernels(), pool, min, max);
              for (size_t i = 0; i < got.size(); ++i) {
                if (std::isnan(want[i])) {
                  ASSERT_TRUE(std::isnan(got[i])) << i;
                } else if (std::isinf(want[i])) {
                  ASSERT_EQ(got[i], want[i]) << i;
                } else if (std::fabs(want[i]) > 1e30f) {
                  ASSERT_NEAR(got[i] / want[i], 1.0f, 4 * kEpsilon) << i;
                } else {
                  ASSERT_NEAR(got[i], want[i], 4 * kEpsilon) << i;
                }
              }
            });
          }
        }
      }
    }
  }
}

// Where an output of a resize comes from, as TensorFlow Lite says.
std::vector<Sample> samples(const ResizeCase& c) {
  float scale = static_cast<float>(c.columns) / static_cast<float>(c.outputs);
  if (c.align_corners && c.outputs > 1) scale = static_cast<float>(c.columns - 1) / static_cast<float>(c.outputs - 1);
  std::vector<Sample> samples;
  for (int32_t i = 0; i < c.outputs; ++i) {
    const auto at = static_cast<float>(i);
    const float position = c.half_pixel ? (at + 0.5f) * scale - 0.5f : at * scale;
    Sample sample;
    sample.first = std::max(static_cast<int32_t>(std::floor(position)), 0);
    sample.second = std::min(static_cast<int32_t>(std::ceil(position)), c.columns - 1);
    sample.weight = position - static_cast<float>(sample.first);
    samples.push_back(sample);
  }
  return samples;
}

struct ResizeData {
  ResizeData(const ResizeCase& shape, Numbers* numbers, ptrdiff_t gap = 0)
      : c(shape),
        pixel(c.channels + gap),
        columns(samples(c)),
        top(floats(c.columns, pixel, c.channels)),
        bottom(top.size(), true) {
    numbers->fill(top);
    numbers->fill(bottom);
  }

  ResizeRow row(float weight, float* out, ptrdiff_t out_pixel) const {
    ResizeRow row;
    row.top = top.data();
    row.bottom = bottom.data();
    row.weight = weight;
    row.columns = columns.data();
    row.channels = c.channels;
    row.pixel = pixel;
    row.outputs = c.outputs;
    row.out = out;
    row.out_pixel = out_pixel;
    return row;
  }

  ResizeCase c;
  ptrdiff_t pixel;
  std::vector<Sample> columns;
  Guarded top;
  Guarded bottom;
};

std::string name(const ResizeCase& c) {
  return std::to_string(c.channels) + " channels, " + std::to_string(c.columns) + " -> " + std::to_string(c.outputs);
}

TEST(Window, BilinearIsWithinRoundings) {
  for (const ResizeCase& c : kResizeCases) {
    SCOPED_TRACE(name(c));
    Numbers numbers(static_cast<uint64_t>(c.channels));
    for (const ptrdiff_t gap : {0, 5}) {
      const ResizeData data(c, &numbers, gap);
      const ptrdiff_t out_pixel = c.channels + gap;
      for (const float weight : {0.0f, 0.25f, 1.0f / 3, 0.9f, 1.0f, -0.25f}) {
        Guarded exact(floats(c.outputs, out_pixel, c.channels));
        window_reference().bilinear(data.row(weight, exact.data(), out_pixel));
        for_each_target([&] {
          for (const bool before : {false, true}) {
            Guarded got(exact.size(), before);
            std::fill(got.begin(), got.end(), kCanary);
            window_kernels().bilinear(data.row(weight, got.data(), out_pixel));
            for (int32_t i = 0; i < c.outputs; ++i) {
              const Sample& s = data.columns[size(i)];
              for (int32_t k = 0; k < c.channels; ++k) {
                float largest = 0;
                for (const ptrdiff_t at : {s.first * data.pixel + k, s.second * data.pixel + k}) {
                  largest = std::max({largest, std::fabs(data.top[size(at)]), std::fabs(data.bottom[size(at)])});
                }
                const float ulp = std::nextafter(largest, kInfinity) - largest;
                const size_t at = size(i * out_pixel + k);
                ASSERT_NEAR(got[at], exact[at], 4 * ulp) << i << " " << k;
              }
              if (i + 1 == c.outputs) continue;
              for (ptrdiff_t k = c.channels; k < out_pixel; ++k) ASSERT_EQ(got[size(i * out_pixel + k)], kCanary);
            }
          }
        });
      }
    }
  }
}

TEST(Window, BilinearOfNanAndInfinity) {
  const ResizeCase c = {11, 4, 8, true, false, false};
  Numbers numbers(1);
  ResizeData data(c, &numbers);
  data.top[13] = kNan;
  data.top[14] = kInfinity;
  data.bottom[26] = -kInfinity;
  data.bottom[0] = 1e-42f;
  for (const float weight : {0.0f, 0.5f, 1.0f}) {
    std::vector<float> want(size(c.outputs * c.channels));
    window_reference().bilinear(data.row(weight, want.data(), c.channels));
    for_each_target([&] {
      std::vector<float> got(want.size());
      window_kernels().bilinear(data.row(weight, got.data(), c.channels));
      for (size_t i = 0; i < got.size(); ++i) {
        if (std::isnan(want[i])) {
          ASSERT_TRUE(std::isnan(got[i])) << i;
        } else if (std::isinf(want[i])) {
          ASSERT_EQ(got[i], want[i]) << i;
        } else {
          ASSERT_NEAR(got[i], want[i], 4 * kEpsilon) << i;
        }
      }
    });
  }
}

TEST(Window, NearestCopiesBits) {
  for (const ResizeCase& c : kResizeCases) {
    SCOPED_TRACE(name(c));
    Numbers numbers(static_cast<uint64_t>(c.channels));
    ResizeData data(c, &numbers, 2);
    const uint32_t signalling = 0x7f800001;
    std::memcpy(&data.top[0], &signalling, sizeof(float));
    const ptrdiff_t out_pixel = c.channels + 1;
    std::vector<float> want(floats(c.outputs, out_pixel, c.channels), kCanary);
    window_reference().nearest(data.row(0, want.data(), out_pixel));
    for_each_target([&] {
      for (const bool before : {false, true}) {
        Guarded got(want.size(), before);
        std::fill(got.begin(), got.end(), kCanary);
        window_kernels().nearest(data.row(0, got.data(), out_pixel));
        ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
      }
    });
  }
}

}  // namespace
}  // namespace litefuse
