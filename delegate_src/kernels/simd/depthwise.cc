#include "kernels/simd/depthwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/depthwise.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/simd/lanes-inl.h"

#ifndef LITEFUSE_KERNELS_SIMD_DEPTHWISE_ONCE_
#define LITEFUSE_KERNELS_SIMD_DEPTHWISE_ONCE_

namespace litefuse {
namespace {

// IEEE 754 binary16.
inline float half_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  float x = 0;
  if (exponent == 31) {
    x = fraction == 0 ? HUGE_VALF : std::nanf("");
  } else if (exponent == 0) {
    x = static_cast<float>(fraction) * 0x1p-24f;
  } else {
    x = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  }
  return std::copysign(x, (bits & 0x8000) != 0 ? -1.0f : 1.0f);
}

inline float weight_at(const DepthwiseWeights& weights, size_t i) {
  return weights.half ? half_to_float(static_cast<const uint16_t*>(weights.data)[i])
                      : static_cast<const float*>(weights.data)[i];
}

inline DepthwiseLayout layout_for(int32_t channels, int32_t height, int32_t width, int32_t lanes) {
  DepthwiseLayout layout;
  layout.channels = channels;
  layout.height = height;
  layout.width = width;
  layout.lanes = lanes;
  const auto vectors = static_cast<size_t>((channels + lanes - 1) / lanes);
  layout.floats = vectors * (1 + static_cast<size_t>(height) * static_cast<size_t>(width)) * static_cast<size_t>(lanes);
  return layout;
}

// The last vector of channels ends at the last channel: see with_lanes().
inline void pack_weights(const DepthwiseLayout& layout, const DepthwiseWeights& weights, float* to) {
  const int32_t channels = layout.channels;
  const int32_t lanes = layout.lanes;
  const int32_t taps = layout.height * layout.width;
  for (int32_t begin = 0; begin < channels; begin += lanes) {
    const int32_t c = std::min(begin, channels - lanes);
    for (int32_t i = 0; i < lanes; ++i) *to++ = weights.bias != nullptr ? weights.bias[c + i] : 0.0f;
    for (int32_t tap = 0; tap < taps; ++tap) {
      const size_t at = static_cast<size_t>(tap) * static_cast<size_t>(channels) + static_cast<size_t>(c);
      if (weights.half) {
        for (int32_t i = 0; i < lanes; ++i) *to++ = weight_at(weights, at + static_cast<size_t>(i));
      } else {
        std::memcpy(to, static_cast<const float*>(weights.data) + at, static_cast<size_t>(lanes) * sizeof(float));
        to += lanes;
      }
    }
  }
}

}  // namespace
}  // namespace litefuse

#endif  // LITEFUSE_KERNELS_SIMD_DEPTHWISE_ONCE_

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {
namespace {

// Columns of output that are computed together. Eight sums hide the latency of two fused multiplications a cycle, and
// sixteen registers hold them beside the seven taps of a row and a value; without fused ones a product needs a register
// of its own.
#if HWY_TARGET == HWY_SCALAR
constexpr int kColumns = 1;
#elif HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
constexpr int kColumns = 4;
#else
constexpr int kColumns = 8;
#endif

// Weights of about this many bytes are used for the whole row before the next ones are: they should stay in the first
// level cache.
constexpr size_t kWeightChunk = 16 * 1024;

struct Epilogue {
  float min;
  float max;
  const float* slopes;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE V finish(D d, V x, const Epilogue& epilogue, ptrdiff_t c) {
  if (epilogue.slopes != nullptr) {
    const V scaled = hn::Mul(x, hn::LoadU(d, epilogue.slopes + c));
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), scaled, x);
  }
  return clamp(x, hn::Set(d, epilogue.min), hn::Set(d, epilogue.max));
}

// A block of columns of a square filter without dilation. `x` is the first column, `begin` and `end` are channels.
template <int kSize, int kStride, int kCount>
void fast_block(const DepthwiseRow& row, ptrdiff_t x, ptrdiff_t begin, ptrdiff_t end) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr auto kStep = static_cast<ptrdiff_t>(kLanes);
  constexpr int kPixels = (kCount - 1) * kStride + kSize;
  const ptrdiff_t pixel = row.pixel;
  const ptrdiff_t out_pixel = row.out_pixel;
  const ptrdiff_t last = row.layout->channels - kStep;
  const float* rows[kSize];
  for (int ky = 0; ky < kSize; ++ky) rows[ky] = row.rows[ky] + x * kStride * pixel;
  float* HWY_RESTRICT out = row.out + x * out_pixel;
  const float* HWY_RESTRICT w = row.weights + begin * (1 + kSize * kSize);
  const Epilogue epilogue{row.min, row.max, row.slopes};
  // The pixels of the next block of columns are fetched meanwhile, a few lines of the cache with each vector of channels:
  // blocks jump from pixel to pixel in a way that processors do not foresee. Rows that the last output row had, too, are
  // near.
  constexpr ptrdiff_t kLine = 64 / sizeof(float);
  constexpr int kFirstNew = std::max(kSize - kStride, 0);
  constexpr int kFetched = std::max<int>(kCount * kStride * static_cast<int>(kStep) / static_cast<int>(kLine), 1);
  const float* fetched[kSize - kFirstNew];
  for (int ky = kFirstNew; ky < kSize; ++ky) fetched[ky - kFirstNew] = rows[ky] + kCount * kStride * pixel + begin;
  for (ptrdiff_t next = begin; next < end; next += kStep) {
    const ptrdiff_t c = std::min(next, last);
    if (row.far) {
      for (int ky = kFirstNew; ky < kSize; ++ky) {
#pragma GCC unroll 8
        for (int i = 0; i < kFetched; ++i) hwy::Prefetch(fetched[ky - kFirstNew] + i * kLine);
        fetched[ky - kFirstNew] += kFetched * kLine;
      }
    }
    V sum[kCount];
    const V bias = hn::Load(d, w);
    w += kStep;
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) sum[i] = bias;
#pragma GCC unroll 16
    for (int ky = 0; ky < kSize; ++ky) {
      const float* HWY_RESTRICT in = rows[ky] + c;
      V tap[kSize];
#pragma GCC unroll 16
      for (int kx = 0; kx < kSize; ++kx) tap[kx] = hn::Load(d, w + kx * kStep);
      w += kSize * kStep;
#pragma GCC unroll 32
      for (int p = 0; p < kPixels; ++p) {
        const V value = hn::LoadU(d, in + p * pixel);
#pragma GCC unroll 16
        for (int i = 0; i < kCount; ++i) {
          const int kx = p - i * kStride;
          if (kx >= 0 && kx < kSize) sum[i] = hn::MulAdd(value, tap[kx], sum[i]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) hn::StoreU(finish(d, sum[i], epilogue, c), d, out + i * out_pixel + c);
  }
}

// A block of columns of any filter.
template <class D, int kCount>
void general_block(const DepthwiseRow& row, ptrdiff_t x, ptrdiff_t begin, ptrdiff_t end) {
  const D d;
  using V = hn::Vec<D>;
  constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
  const int32_t height = row.layout->height;
  const int32_t width = row.layout->width;
  const ptrdiff_t step = row.stride * row.pixel;
  const ptrdiff_t tap_step = row.dilation * row.pixel;
  const ptrdiff_t out_pixel = row.out_pixel;
  const ptrdiff_t last = row.layout->channels - kStep;
  float* HWY_RESTRICT out = row.out + x * out_pixel;
  const float* HWY_RESTRICT w = row.weights + begin * (1 + static_cast<ptrdiff_t>(height) * width);
  const Epilogue epilogue{row.min, row.max, row.slopes};
  for (ptrdiff_t next = begin; next < end; next += kStep) {
    const ptrdiff_t c = std::min(next, last);
    V sum[kCount];
    const V bias = hn::Load(d, w);
    w += kStep;
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) sum[i] = bias;
    for (int32_t ky = 0; ky < height; ++ky) {
      const float* HWY_RESTRICT in = row.rows[ky] + x * step + c;
      for (int32_t kx = 0; kx < width; ++kx) {
        const V tap = hn::Load(d, w);
        w += kStep;
#pragma GCC unroll 16
        for (int i = 0; i < kCount; ++i) sum[i] = hn::MulAdd(hn::LoadU(d, in + i * step), tap, sum[i]);
        in += tap_step;
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) hn::StoreU(finish(d, sum[i], epilogue, c), d, out + i * out_pixel + c);
  }
}

using Block = void (*)(const DepthwiseRow& row, ptrdiff_t x, ptrdiff_t begin, ptrdiff_t end);

// Blocks of 1, 2, ... columns.
template <int kSize, int kStride, int... kCounts>
const Block* fast_blocks(std::integer_sequence<int, kCounts...>) {
  static constexpr Block kBlocks[] = {fast_block<kSize, kStride, kCounts + 1>...};
  return kBlocks;
}

template <class D, int... kCounts>
const Block* general_blocks(std::integer_sequence<int, kCounts...>) {
  static constexpr Block kBlocks[] = {general_block<D, kCounts + 1>...};
  return kBlocks;
}

// Columns are cut into blocks of nearly equal size, since small blocks wait for their sums.
void run_blocks(const DepthwiseRow& row, const Block* blocks, int32_t most) {
  const DepthwiseLayout& layout = *row.layout;
  const int32_t count = (row.outputs + most - 1) / most;
  if (count == 0) return;
  const int32_t size = row.outputs / count;
  const int32_t larger = row.outputs % count;  // blocks of size + 1
  const size_t channel = (1 + static_cast<size_t>(layout.height) * static_cast<size_t>(layout.width)) * sizeof(float);
  const auto lanes = static_cast<size_t>(layout.lanes);
  size_t chunk = static_cast<size_t>(layout.channels);
  if (chunk * channel > kWeightChunk * 3 / 2) chunk = std::max<size_t>(kWeightChunk / (channel * lanes), 1) * lanes;
  for (ptrdiff_t begin = 0; begin < layout.channels; begin += static_cast<ptrdiff_t>(chunk)) {
    const ptrdiff_t end = std::min<ptrdiff_t>(begin + static_cast<ptrdiff_t>(chunk), layout.channels);
    ptrdiff_t x = 0;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t columns = i < larger ? size + 1 : size;
      blocks[columns - 1](row, x, begin, end);
      x += columns;
    }
  }
}

// Where pixels lie a multiple of half the way size of a first level cache apart, all of those of a block share two of its
// sets, and a small block has to do.
int32_t most_columns(const DepthwiseRow& row, int size) {
  constexpr ptrdiff_t kAliasing = 2048 / sizeof(float);
  return size == 3 && row.pixel % kAliasing == 0 ? std::min(kColumns, 4) : kColumns;
}

template <int kSize>
bool fast_row(const DepthwiseRow& row) {
  if (row.layout->height != kSize || row.layout->width != kSize) return false;
  const auto counts = std::make_integer_sequence<int, kColumns>();
  const Block* blocks = row.stride == 1 ? fast_blocks<kSize, 1>(counts) : fast_blocks<kSize, 2>(counts);
  run_blocks(row, blocks, most_columns(row, kSize));
  return true;
}

void depthwise_row(const DepthwiseRow& row) {
  if (row.dilation == 1 && (row.stride == 1 || row.stride == 2) && row.layout->lanes == static_cast<int32_t>(kLanes)) {
    if (fast_row<3>(row) || fast_row<5>(row) || fast_row<7>(row)) return;
  }
  with_lanes(row.layout->channels, [&](auto d) {
    run_blocks(row, general_blocks<decltype(d)>(std::make_integer_sequence<int, kColumns>()), kColumns);
  });
}

// Some vectors of channels of a single pixel.
template <class D, int kVectors>
HWY_INLINE void pixel_block(const DepthwisePixel& pixel, const float* HWY_RESTRICT w, ptrdiff_t c) {
  const D d;
  using V = hn::Vec<D>;
  constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
  const ptrdiff_t taps = static_cast<ptrdiff_t>(pixel.layout->height) * pixel.layout->width;
  const ptrdiff_t vector = (1 + taps) * kStep;
  V sum[kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) sum[i] = hn::Load(d, w + i * vector);
  for (ptrdiff_t tap = 0; tap < taps; ++tap) {
    w += kStep;
    const float* in = pixel.taps[tap];
    if (in == nullptr) continue;
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      sum[i] = hn::MulAdd(hn::LoadU(d, in + c + i * kStep), hn::Load(d, w + i * vector), sum[i]);
    }
  }
  const Epilogue epilogue{pixel.min, pixel.max, pixel.slopes};
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    hn::StoreU(finish(d, sum[i], epilogue, c + i * kStep), d, pixel.out + c + i * kStep);
  }
}

void depthwise_pixel(const DepthwisePixel& pixel) {
  with_lanes(pixel.layout->channels, [&](auto d) {
    using D = decltype(d);
    constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
    constexpr ptrdiff_t kVectors = 4;
    const ptrdiff_t channels = pixel.layout->channels;
    const ptrdiff_t channel = 1 + static_cast<ptrdiff_t>(pixel.layout->height) * pixel.layout->width;
    ptrdiff_t c = 0;
    for (; c + kVectors * kStep <= channels; c += kVectors * kStep) {
      pixel_block<D, kVectors>(pixel, pixel.weights + c * channel, c);
    }
    for (; c < channels; c += kStep) {
      pixel_block<D, 1>(pixel, pixel.weights + c * channel, std::min(c, channels - kStep));
    }
  });
}

DepthwiseLayout depthwise_layout(int32_t channels, int32_t height, int32_t width) {
  int32_t lanes = 1;
  with_lanes(channels, [&](auto d) { lanes = static_cast<int32_t>(hn::MaxLanes(d)); });
  return layout_for(channels, height, width, lanes);
}

}  // namespace

const DepthwiseKernels* depthwise_table() {
  static constexpr DepthwiseKernels kTable = {depthwise_layout, pack_weights, depthwise_row, depthwise_pixel};
  return &kTable;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litefuse {

HWY_EXPORT(depthwise_table);

const DepthwiseKernels& depthwise_kernels() { return *HWY_DYNAMIC_DISPATCH(depthwise_table)(); }

namespace {

DepthwiseLayout reference_layout(int32_t channels, int32_t height, int32_t width) {
  return layout_for(channels, height, width, 1);
}

void reference_pack(const DepthwiseLayout& layout, const DepthwiseWeights& weights, float* to) {
  const int32_t taps = layout.height * layout.width;
  for (int32_t c = 0; c < layout.channels; ++c) {
    *to++ = weights.bias != nullptr ? weights.bias[c] : 0.0f;
    for (int32_t tap = 0; tap < taps; ++tap) *to++ = weight_at(weights, static_cast<size_t>(tap * layout.channels + c));
  }
}

float reference_finish(double sum, float min, float max, const float* slopes, int32_t c) {
  const auto x = static_cast<float>(sum);
  if (slopes != nullptr) return x < 0 ? x * slopes[c] : x;
  if (x < min) return min;
  return x > max ? max : x;
}

void reference_pixel(const DepthwisePixel& pixel) {
  const int32_t taps = pixel.layout->height * pixel.layout->width;
  for (int32_t c = 0; c < pixel.layout->channels; ++c) {
    const float* w = pixel.weights + static_cast<ptrdiff_t>(c) * (1 + taps);
    double sum = w[0];
    for (int32_t tap = 0; tap < taps; ++tap) {
      if (pixel.taps[tap] != nullptr) sum += static_cast<double>(pixel.taps[tap][c]) * static_cast<double>(w[1 + tap]);
    }
    pixel.out[c] = reference_finish(sum, pixel.min, pixel.max, pixel.slopes, c);
  }
}

void reference_row(const DepthwiseRow& row) {
  const DepthwiseLayout& layout = *row.layout;
  for (int32_t x = 0; x < row.outputs; ++x) {
    for (int32_t c = 0; c < layout.channels; ++c) {
      const float* w = row.weights + static_cast<ptrdiff_t>(c) * (1 + layout.height * layout.width);
      double sum = *w++;
      for (int32_t ky = 0; ky < layout.height; ++ky) {
        for (int32_t kx = 0; kx < layout.width; ++kx) {
          const ptrdiff_t at = (x * row.stride + kx * row.dilation) * row.pixel + c;
          sum += static_cast<double>(row.rows[ky][at]) * static_cast<double>(*w++);
        }
      }
      row.out[x * row.out_pixel + c] = reference_finish(sum, row.min, row.max, row.slopes, c);
    }
  }
}

}  // namespace

const DepthwiseKernels& depthwise_reference() {
  static constexpr DepthwiseKernels kTable = {reference_layout, reference_pack, reference_row, reference_pixel};
  return kTable;
}

}  // namespace litefuse
#endif  // HWY_ONCE
