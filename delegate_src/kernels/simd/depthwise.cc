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

// Floats of a channel in a packed filter.
inline ptrdiff_t channel_floats(const DepthwiseLayout& layout) {
  return layout.header + 1 + static_cast<ptrdiff_t>(layout.height) * layout.width;
}

inline DepthwiseLayout layout_for(int32_t channels, int32_t height, int32_t width, int32_t multiplier, int32_t lanes,
                                  int32_t header) {
  DepthwiseLayout layout;
  layout.channels = channels;
  layout.multiplier = multiplier;
  layout.height = height;
  layout.width = width;
  layout.lanes = lanes;
  layout.header = header;
  const auto vectors = static_cast<size_t>((channels + lanes - 1) / lanes);
  layout.floats = vectors * static_cast<size_t>(channel_floats(layout)) * static_cast<size_t>(lanes);
  return layout;
}

// Whether all lanes of each vector come from one channel of the input.
inline bool is_broadcast(const DepthwiseLayout& layout) {
  return layout.multiplier % layout.lanes == 0 || layout.channels == layout.multiplier;
}

// Integers in the place of floats: the first channel of the input that is read for a vector of the output (in a vector of
// its own), and for each lane how many channels further on its own one lies. As many channels as there are lanes can be
// read from the first one on, unless all lanes come from that.
inline void pack_header(const DepthwiseLayout& layout, int32_t c, float* to) {
  const int32_t lanes = layout.lanes;
  const int32_t inputs = layout.channels / layout.multiplier;
  const bool one = is_broadcast(layout);
  const int32_t first = one ? c / layout.multiplier : std::min(c / layout.multiplier, inputs - lanes);
  for (int32_t i = 0; i < lanes; ++i) {
    const int32_t further = one ? 0 : (c + i) / layout.multiplier - first;
    std::memcpy(to + i, &first, sizeof(float));
    std::memcpy(to + lanes + i, &further, sizeof(float));
  }
}

// The last vector of channels ends at the last channel: see with_lanes().
inline void pack_weights(const DepthwiseLayout& layout, const DepthwiseWeights& weights, float* to) {
  const int32_t channels = layout.channels;
  const int32_t lanes = layout.lanes;
  const int32_t taps = layout.height * layout.width;
  for (int32_t begin = 0; begin < channels; begin += lanes) {
    const int32_t c = std::min(begin, channels - lanes);
    if (layout.header != 0) pack_header(layout, c, to);
    to += static_cast<ptrdiff_t>(layout.header) * lanes;
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

// Compilers for x86 like to read a value again for each multiplication that it is part of, and to keep a pointer to each
// pixel, for which there are not enough registers: both cost more loads than there is room for beside the multiplications.
// So the origin of values and pointers is hidden from them. Other machines have more registers and no operands in memory.
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128 && defined(__GNUC__)
template <class V>
HWY_INLINE void hide_value(V& value) {
#if HWY_TARGET <= HWY_AVX3
  asm("" : "+v"(value.raw));
#else
  asm("" : "+x"(value.raw));
#endif
}
template <class T>
HWY_INLINE void hide(T& x) {
  asm("" : "+r"(x));
}

// Walks over pixels that lie `step` floats apart. Every fifth one gets a pointer, and those between are an offset of
// bytes away that the processor adds by itself.
class Walk {
 public:
  explicit HWY_INLINE Walk(ptrdiff_t step) : one_(step * static_cast<ptrdiff_t>(sizeof(float))) {}
  HWY_INLINE void hide_steps() {
    hide(one_);
    hide(three_);
    hide(five_);
  }
  HWY_INLINE void start(const float* at) {
    at_ = reinterpret_cast<const char*>(at);
    hide(at_);
  }
  // Pixel p, for which p must be constant, and which must be asked for in order.
  HWY_INLINE const float* pixel(int p) {
    if (p != 0 && p % 5 == 0) {
      at_ += five_;
      hide(at_);
    }
    const int further = p % 5;
    return reinterpret_cast<const float*>(further == 3 ? at_ + three_ : at_ + further * one_);
  }

 private:
  ptrdiff_t one_;
  ptrdiff_t three_ = 3 * one_;
  ptrdiff_t five_ = 5 * one_;
  const char* at_ = nullptr;
};
#else
template <class V>
HWY_INLINE void hide_value(V&) {}
template <class T>
HWY_INLINE void hide(T&) {}

class Walk {
 public:
  explicit HWY_INLINE Walk(ptrdiff_t step) : step_(step) {}
  HWY_INLINE void hide_steps() {}
  HWY_INLINE void start(const float* at) { at_ = at; }
  HWY_INLINE const float* pixel(int p) const { return at_ + p * step_; }

 private:
  ptrdiff_t step_;
  const float* at_ = nullptr;
};
#endif

// Where the lanes of a vector come from, with packed weights `w` of channel `c` on: the same channels of the input, a
// single one, or some near one another. `at` is the first of them.
template <class D>
struct SameChannels {
  static constexpr int kHeader = 0;
  SameChannels(D, const float*, ptrdiff_t c) : at(c) {}
  HWY_INLINE hn::Vec<D> load(D d, const float* HWY_RESTRICT from) const { return hn::LoadU(d, from); }
  ptrdiff_t at;
};

template <class D>
struct OneChannel {
  static constexpr int kHeader = 2;
  OneChannel(D, const float* w, ptrdiff_t) {
    int32_t first = 0;
    std::memcpy(&first, w, sizeof(first));
    at = first;
  }
  HWY_INLINE hn::Vec<D> load(D d, const float* HWY_RESTRICT from) const { return hn::Set(d, *from); }
  ptrdiff_t at;
};

template <class D>
struct NearChannels {
  static constexpr int kHeader = 2;
  NearChannels(D d, const float* w, ptrdiff_t c)
      : at(OneChannel<D>(d, w, c).at),
        lanes(hn::IndicesFromVec(d, hn::BitCast(hn::RebindToSigned<D>(), hn::Load(d, w + hn::MaxLanes(d))))) {}
  HWY_INLINE hn::Vec<D> load(D d, const float* HWY_RESTRICT from) const {
    return hn::TableLookupLanes(hn::LoadU(d, from), lanes);
  }
  ptrdiff_t at;
  decltype(hn::IndicesFromVec(D(), hn::Zero(hn::RebindToSigned<D>()))) lanes;
};

// Blocks of columns of a square filter without dilation, in one or two lines, and one or more vectors of channels at a
// time. `x` is the first column, `begin` and `end` are channels; with several vectors they are a multiple of them apart.
template <template <class> class Source, int kSize, int kStride, int kLines, int kCount, int kVectors>
void fast_block(const DepthwiseRow& row, ptrdiff_t x, int32_t blocks, ptrdiff_t begin, ptrdiff_t end) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr auto kStep = static_cast<ptrdiff_t>(kLanes);
  constexpr int kPixels = (kCount - 1) * kStride + kSize;
  constexpr int kRows = (kLines - 1) * kStride + kSize;
  constexpr int kHeader = Source<hn::ScalableTag<float>>::kHeader;
  constexpr ptrdiff_t kChannel = kHeader + 1 + kSize * kSize;  // floats of weights
  constexpr ptrdiff_t kVector = kChannel * kStep;
  static_assert(kHeader == 0 || kVectors == 1, "a source is of one vector");
  const ptrdiff_t pixel = row.pixel;
  ptrdiff_t out_pixel = row.out_pixel;
  const ptrdiff_t last = row.layout->channels - kVectors * kStep;
  const float* rows[kRows];
  for (int y = 0; y < kRows; ++y) rows[y] = row.rows[y] + x * kStride * pixel;
  float* out = row.out + x * out_pixel;
  const Epilogue epilogue{row.min, row.max, row.slopes};
  // The pixels of the next block of columns are fetched meanwhile, a few lines of the cache with each vector of channels:
  // blocks jump from pixel to pixel in a way that processors do not foresee. Rows that the last output row had, too, are
  // near.
  constexpr ptrdiff_t kLine = 64 / sizeof(float);
  constexpr int kFirstNew = std::max(kRows - kLines * kStride, 0);
  constexpr int kFetched =
      std::max<int>(kCount * kStride * kVectors * static_cast<int>(kStep) / static_cast<int>(kLine), 1);
  Walk walk(pixel);
  for (; blocks > 0; --blocks) {
    const float* HWY_RESTRICT w = row.weights + begin * kChannel;
    ptrdiff_t ahead = kCount * kStride * pixel + begin;
    for (ptrdiff_t next = begin; next < end; next += kVectors * kStep) {
      const ptrdiff_t c = std::min(next, last);
      if (kHeader == 0 && row.far) {
#pragma GCC unroll 16
        for (int y = kFirstNew; y < kRows; ++y) {
#pragma GCC unroll 16
          for (int i = 0; i < kFetched; ++i) hwy::Prefetch(rows[y] + ahead + i * kLine);
        }
        ahead += kFetched * kLine;
      }
      const Source<hn::ScalableTag<float>> source(d, w, c);
      walk.hide_steps();
      V sum[kLines][kCount][kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const V bias = hn::Load(d, w + v * kVector + kHeader * kStep);
#pragma GCC unroll 4
        for (int line = 0; line < kLines; ++line) {
#pragma GCC unroll 16
          for (int i = 0; i < kCount; ++i) sum[line][i][v] = bias;
        }
      }
#pragma GCC unroll 16
      for (int y = 0; y < kRows; ++y) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          walk.start(rows[y] + source.at + v * kStep);
#pragma GCC unroll 32
          for (int p = 0; p < kPixels; ++p) {
            V value = source.load(d, walk.pixel(p));
            hide_value(value);
#pragma GCC unroll 4
            for (int line = 0; line < kLines; ++line) {
              const int ky = y - line * kStride;
              if (ky < 0 || ky >= kSize) continue;
#pragma GCC unroll 16
              for (int i = 0; i < kCount; ++i) {
                const int kx = p - i * kStride;
                if (kx < 0 || kx >= kSize) continue;
                const V tap = hn::Load(d, w + v * kVector + (kHeader + 1 + ky * kSize + kx) * kStep);
                sum[line][i][v] = hn::MulAdd(value, tap, sum[line][i][v]);
              }
            }
          }
        }
      }
      w += kVectors * kVector;
      hide(out_pixel);
#pragma GCC unroll 4
      for (int line = 0; line < kLines; ++line) {
        float* to = out + line * row.out_line + c;
#pragma GCC unroll 16
        for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            hn::StoreU(finish(d, sum[line][i][v], epilogue, c + v * kStep), d, to + v * kStep);
          }
          to += out_pixel;
          hide(to);
        }
      }
    }
    for (const float*& in : rows) in += kCount * kStride * pixel;
    out += kCount * out_pixel;
  }
}

// Blocks of columns of any filter.
template <class D, template <class> class Source, int kCount>
void general_block(const DepthwiseRow& row, ptrdiff_t x, int32_t blocks, ptrdiff_t begin, ptrdiff_t end) {
  const D d;
  using V = hn::Vec<D>;
  constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
  const int32_t height = row.layout->height;
  const int32_t width = row.layout->width;
  const ptrdiff_t header = row.layout->header * kStep;
  const ptrdiff_t step = row.stride * row.pixel;
  const ptrdiff_t tap_step = row.dilation * row.pixel;
  const ptrdiff_t out_pixel = row.out_pixel;
  const ptrdiff_t last = row.layout->channels - kStep;
  const Epilogue epilogue{row.min, row.max, row.slopes};
  for (; blocks > 0; --blocks, x += kCount) {
    float* HWY_RESTRICT out = row.out + x * out_pixel;
    const float* HWY_RESTRICT w = row.weights + begin * channel_floats(*row.layout);
    for (ptrdiff_t next = begin; next < end; next += kStep) {
      const ptrdiff_t c = std::min(next, last);
      const Source<D> source(d, w, c);
      w += header;
      V sum[kCount];
      const V bias = hn::Load(d, w);
      w += kStep;
#pragma GCC unroll 16
      for (int i = 0; i < kCount; ++i) sum[i] = bias;
      for (int32_t ky = 0; ky < height; ++ky) {
        const float* HWY_RESTRICT in = row.rows[ky] + x * step + source.at;
        for (int32_t kx = 0; kx < width; ++kx) {
          const V tap = hn::Load(d, w);
          w += kStep;
#pragma GCC unroll 16
          for (int i = 0; i < kCount; ++i) sum[i] = hn::MulAdd(source.load(d, in + i * step), tap, sum[i]);
          in += tap_step;
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < kCount; ++i) hn::StoreU(finish(d, sum[i], epilogue, c), d, out + i * out_pixel + c);
    }
  }
}

using Block = void (*)(const DepthwiseRow& row, ptrdiff_t x, int32_t blocks, ptrdiff_t begin, ptrdiff_t end);

// Blocks of 1, 2, ... columns.
template <template <class> class Source, int kSize, int kStride, int kLines, int kVectors, int... kCounts>
const Block* fast_blocks(std::integer_sequence<int, kCounts...>) {
  static constexpr Block kBlocks[] = {fast_block<Source, kSize, kStride, kLines, kCounts + 1, kVectors>...};
  return kBlocks;
}

template <class D, template <class> class Source, int... kCounts>
const Block* general_blocks(std::integer_sequence<int, kCounts...>) {
  static constexpr Block kBlocks[] = {general_block<D, Source, kCounts + 1>...};
  return kBlocks;
}

// Blocks of up to `most` columns. Those in `wide` take `vectors` vectors of channels at a time; what is left of the
// channels, or all of them where there is no `wide`, is for `blocks`.
struct Blocks {
  const Block* blocks = nullptr;
  const Block* wide = nullptr;
  int32_t vectors = 1;
  int32_t most = 1;
};

// Columns are cut into blocks of nearly equal size, since small blocks wait for their sums.
void run_blocks(const DepthwiseRow& row, const Blocks& blocks) {
  const DepthwiseLayout& layout = *row.layout;
  const int32_t count = (row.outputs + blocks.most - 1) / blocks.most;
  if (count == 0) return;
  const int32_t size = row.outputs / count;
  const int32_t larger = row.outputs % count;  // blocks of size + 1
  const size_t channel = static_cast<size_t>(channel_floats(layout)) * sizeof(float);
  const auto step = static_cast<size_t>(layout.lanes * blocks.vectors);
  const auto channels = static_cast<ptrdiff_t>(layout.channels);
  size_t chunk = static_cast<size_t>(layout.channels);
  if (chunk * channel > kWeightChunk * 3 / 2) chunk = std::max<size_t>(kWeightChunk / (channel * step), 1) * step;
  for (ptrdiff_t begin = 0; begin < channels; begin += static_cast<ptrdiff_t>(chunk)) {
    const ptrdiff_t end = std::min<ptrdiff_t>(begin + static_cast<ptrdiff_t>(chunk), channels);
    const ptrdiff_t middle = blocks.wide == nullptr ? begin : end - (end - begin) % (static_cast<ptrdiff_t>(step));
    const auto run = [&](ptrdiff_t x, int32_t columns, int32_t times) {
      if (times == 0) return;
      if (middle > begin) blocks.wide[columns - 1](row, x, times, begin, middle);
      if (end > middle) blocks.blocks[columns - 1](row, x, times, middle, end);
    };
    run(0, size + 1, larger);
    run(static_cast<ptrdiff_t>(larger) * (size + 1), size, count - larger);
  }
}

// Calls f(row) for each line.
template <class F>
void each_line(const DepthwiseRow& row, const F& f) {
  DepthwiseRow one = row;
  one.lines = 1;
  for (int32_t line = 0; line < row.lines; ++line) {
    f(one);
    one.rows += row.stride;
    one.out += row.out_line;
  }
}

template <int kSize, int kStride>
void fast_rows(const DepthwiseRow& row) {
  const auto counts = std::make_integer_sequence<int, kColumns>();
  Blocks blocks;
  blocks.blocks = fast_blocks<SameChannels, kSize, kStride, 1, 1>(counts);
  blocks.most = kColumns;
  if constexpr (kColumns >= 4) {
    // Registers do not hold two lines' taps of larger filters.
    constexpr int kLargestPaired = kStride == 1 ? 5 : 3;
    const auto half = std::make_integer_sequence<int, kColumns / 2>();
    // Where pixels lie such a part of a way of a first level cache apart, all of those of a block share a few of its sets,
    // and lines of the cache are lost before their second half is used: then both halves are used at once. Blocks with
    // fewer pixels stand more of it. On Zen 3 this takes half the time at 1 KiB and stride 2; it is slower from memory,
    // where the smaller blocks of large filters read more.
    constexpr int kWay = HWY_ARCH_X86 ? 4096 : 16384;
    const int bytes = kStride == 2 || kSize > 5 ? kWay / 8 : row.lines == 1 ? kWay / 4 : kWay;
    const bool shares_sets = row.pixel % (bytes / static_cast<int>(sizeof(float))) == 0;
    if (shares_sets && (kSize == 3 || !row.far)) {
      blocks.wide = fast_blocks<SameChannels, kSize, kStride, 1, 2>(half);
      blocks.vectors = 2;
      blocks.most = kColumns / 2;
    } else if (row.lines == 2 && kSize <= kLargestPaired) {
      constexpr int kLines = kSize <= kLargestPaired ? 2 : 1;
      blocks.blocks = fast_blocks<SameChannels, kSize, kStride, kLines, 1>(half);
      blocks.most = kColumns / 2;
      return run_blocks(row, blocks);
    }
  }
  each_line(row, [&](const DepthwiseRow& line) { run_blocks(line, blocks); });
}

template <int kSize>
bool fast_row(const DepthwiseRow& row) {
  if (row.layout->height != kSize || row.layout->width != kSize) return false;
  row.stride == 1 ? fast_rows<kSize, 1>(row) : fast_rows<kSize, 2>(row);
  return true;
}

// 3x3 with a multiplier.
template <template <class> class Source>
void fast_multiplied(const DepthwiseRow& row) {
  const auto counts = std::make_integer_sequence<int, kColumns>();
  Blocks blocks;
  blocks.blocks = row.stride == 1 ? fast_blocks<Source, 3, 1, 1, 1>(counts) : fast_blocks<Source, 3, 2, 1, 1>(counts);
  blocks.most = kColumns;
  each_line(row, [&](const DepthwiseRow& line) { run_blocks(line, blocks); });
}

// Calls f(d) for the tag of a layout's vectors.
template <class F>
HWY_INLINE void with_layout(const DepthwiseLayout& layout, const F& f) {
  with_lanes(layout.lanes, f);
}

void depthwise_row(const DepthwiseRow& row) {
  const DepthwiseLayout& layout = *row.layout;
  if (row.dilation == 1 && (row.stride == 1 || row.stride == 2) && layout.lanes == static_cast<int32_t>(kLanes)) {
    if (layout.header == 0) {
      if (fast_row<3>(row) || fast_row<5>(row) || fast_row<7>(row)) return;
    } else if (layout.height == 3 && layout.width == 3) {
      return is_broadcast(layout) ? fast_multiplied<OneChannel>(row) : fast_multiplied<NearChannels>(row);
    }
  }
  with_layout(layout, [&](auto d) {
    using D = decltype(d);
    const auto counts = std::make_integer_sequence<int, kColumns>();
    Blocks blocks;
    blocks.most = kColumns;
    blocks.blocks = layout.header == 0     ? general_blocks<D, SameChannels>(counts)
                    : is_broadcast(layout) ? general_blocks<D, OneChannel>(counts)
                                           : general_blocks<D, NearChannels>(counts);
    each_line(row, [&](const DepthwiseRow& line) { run_blocks(line, blocks); });
  });
}

// Some vectors of channels of a single pixel.
template <class D, template <class> class Source, int kVectors>
HWY_INLINE void pixel_block(const DepthwisePixel& pixel, const float* HWY_RESTRICT w, ptrdiff_t c) {
  const D d;
  using V = hn::Vec<D>;
  constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
  const ptrdiff_t taps = static_cast<ptrdiff_t>(pixel.layout->height) * pixel.layout->width;
  const ptrdiff_t vector = channel_floats(*pixel.layout) * kStep;
  const Epilogue epilogue{pixel.min, pixel.max, pixel.slopes};
  if constexpr (kVectors > 1) {
    // Only where the channels are the same ones.
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
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      hn::StoreU(finish(d, sum[i], epilogue, c + i * kStep), d, pixel.out + c + i * kStep);
    }
  } else {
    const Source<D> source(d, w, c);
    w += pixel.layout->header * kStep;
    V sum = hn::Load(d, w);
    for (ptrdiff_t tap = 0; tap < taps; ++tap) {
      w += kStep;
      const float* in = pixel.taps[tap];
      if (in != nullptr) sum = hn::MulAdd(source.load(d, in + source.at), hn::Load(d, w), sum);
    }
    hn::StoreU(finish(d, sum, epilogue, c), d, pixel.out + c);
  }
}

template <class D, template <class> class Source>
void pixel_from(const DepthwisePixel& pixel, D d, ptrdiff_t c) {
  constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(d));
  const ptrdiff_t channels = pixel.layout->channels;
  const ptrdiff_t channel = channel_floats(*pixel.layout);
  for (; c < channels; c += kStep) {
    pixel_block<D, Source, 1>(pixel, pixel.weights + c * channel, std::min(c, channels - kStep));
  }
}

void depthwise_pixel(const DepthwisePixel& pixel) {
  const DepthwiseLayout& layout = *pixel.layout;
  with_layout(layout, [&](auto d) {
    using D = decltype(d);
    if (layout.header != 0) {
      return is_broadcast(layout) ? pixel_from<D, OneChannel>(pixel, d, 0) : pixel_from<D, NearChannels>(pixel, d, 0);
    }
    constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
    constexpr ptrdiff_t kVectors = 4;
    ptrdiff_t c = 0;
    for (; c + kVectors * kStep <= layout.channels; c += kVectors * kStep) {
      pixel_block<D, SameChannels, kVectors>(pixel, pixel.weights + c * channel_floats(layout), c);
    }
    pixel_from<D, SameChannels>(pixel, d, c);
  });
}

DepthwiseLayout depthwise_layout(int32_t channels, int32_t height, int32_t width, int32_t multiplier) {
  DepthwiseLayout layout;
  with_lanes(channels, [&](auto d) {
    auto lanes = static_cast<int32_t>(hn::MaxLanes(d));
    layout = layout_for(channels, height, width, multiplier, lanes, multiplier == 1 ? 0 : 2);
    // Otherwise a vector has its channels from as many of the input, which must be there.
    while (lanes > channels / multiplier && !is_broadcast(layout)) {
      lanes /= 2;
      layout = layout_for(channels, height, width, multiplier, lanes, 2);
    }
  });
  return layout;
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

DepthwiseLayout reference_layout(int32_t channels, int32_t height, int32_t width, int32_t multiplier) {
  return layout_for(channels, height, width, multiplier, 1, 0);
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
      if (pixel.taps[tap] == nullptr) continue;
      sum += static_cast<double>(pixel.taps[tap][c / pixel.layout->multiplier]) * static_cast<double>(w[1 + tap]);
    }
    pixel.out[c] = reference_finish(sum, pixel.min, pixel.max, pixel.slopes, c);
  }
}

void reference_row(const DepthwiseRow& row) {
  const DepthwiseLayout& layout = *row.layout;
  for (int32_t line = 0; line < row.lines; ++line) {
    for (int32_t x = 0; x < row.outputs; ++x) {
      for (int32_t c = 0; c < layout.channels; ++c) {
        const float* w = row.weights + static_cast<ptrdiff_t>(c) * (1 + layout.height * layout.width);
        double sum = *w++;
        for (int32_t ky = 0; ky < layout.height; ++ky) {
          const float* in = row.rows[line * row.stride + ky];
          for (int32_t kx = 0; kx < layout.width; ++kx) {
            const ptrdiff_t at = (x * row.stride + kx * row.dilation) * row.pixel + c / layout.multiplier;
            sum += static_cast<double>(in[at]) * static_cast<double>(*w++);
          }
        }
        row.out[line * row.out_line + x * row.out_pixel + c] = reference_finish(sum, row.min, row.max, row.slopes, c);
      }
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
