#include "kernels/simd/window.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/window.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {
namespace {

// What a pooling does with pixels. Those of a column of the window are combined first, then the columns from left to
// right: everywhere, so that an output does not depend on the path that computes it.
struct Largest {
  // What is not a number does not count, as in TensorFlow Lite's kernels. `a` never is NaN.
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || !(HWY_ARCH_X86 || HWY_ARCH_ARM_A64)
    return hn::IfThenElse(hn::Lt(a, b), b, a);
#else
    return hn::Max(b, a);  // x86's gives the second if any is NaN, Highway's on Arm the one that is a number
#endif
  }
  template <class V>
  static HWY_INLINE V first(V x) {
    return combine(hn::Set(hn::DFromV<V>(), std::numeric_limits<float>::lowest()), x);
  }
  template <class V>
  static HWY_INLINE V finish(V x, V /*scale*/) {
    return x;
  }
};

struct Mean {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Add(a, b);
  }
  template <class V>
  static HWY_INLINE V first(V x) {
    return x;
  }
  template <class V>
  static HWY_INLINE V finish(V x, V scale) {
    return hn::Mul(x, scale);
  }
};

float scale_for(int32_t height, int32_t width) {
  return 1.0f / (static_cast<float>(height) * static_cast<float>(width));
}

// Combines the pixels of a column that begin `at` floats into each row; some vectors of channels.
template <class D, class Op, int kVectors, class V = hn::Vec<D>>
HWY_INLINE void pool_column(const PoolRow& row, ptrdiff_t at, V* HWY_RESTRICT column) {
  const D d;
  constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) column[i] = Op::first(hn::LoadU(d, row.rows[0] + at + i * kStep));
  for (int32_t y = 1; y < row.height; ++y) {
    const float* HWY_RESTRICT in = row.rows[y] + at;
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) column[i] = Op::combine(column[i], hn::LoadU(d, in + i * kStep));
  }
}

// One output whose window has the pixels from `begin` to `end` of every row; some vectors of channels.
template <class D, class Op, int kVectors>
HWY_INLINE void pool_window(const PoolRow& row, ptrdiff_t begin, ptrdiff_t end, ptrdiff_t c, float scale,
                            float* HWY_RESTRICT out) {
  const D d;
  using V = hn::Vec<D>;
  constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
  V all[kVectors];
  pool_column<D, Op, kVectors>(row, begin * row.pixel + c, all);
  for (ptrdiff_t x = begin + 1; x < end; ++x) {
    V column[kVectors];
    pool_column<D, Op, kVectors>(row, x * row.pixel + c, column);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) all[i] = Op::combine(all[i], column[i]);
  }
  const V min = hn::Set(d, row.min);
  const V max = hn::Set(d, row.max);
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    hn::StoreU(clamp(Op::finish(all[i], hn::Set(d, scale)), min, max), d, out + c + i * kStep);
  }
}

// Outputs from `first` to `last`, with windows of any size and anywhere.
template <class D, class Op>
void pool_any(const PoolRow& row, int32_t first, int32_t last) {
  constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
  constexpr int kVectors = 4;
  const ptrdiff_t channels = row.channels;
  for (ptrdiff_t i = first; i < last; ++i) {
    const ptrdiff_t from = i * row.stride - row.left;
    const ptrdiff_t begin = std::max<ptrdiff_t>(from, 0);
    const ptrdiff_t end = std::min<ptrdiff_t>(from + row.width, row.columns);
    float* HWY_RESTRICT out = row.out + i * row.out_pixel;
    if (begin >= end) {
      std::fill(out, out + channels, std::min(row.max, std::max(row.min, 0.0f)));
      continue;
    }
    const float scale = scale_for(row.height, static_cast<int32_t>(end - begin));
    ptrdiff_t c = 0;
    for (; c + kVectors * kStep <= channels; c += kVectors * kStep) {
      pool_window<D, Op, kVectors>(row, begin, end, c, scale, out);
    }
    for (; c < channels; c += kStep) {
      pool_window<D, Op, 1>(row, begin, end, std::min(c, channels - kStep), scale, out);
    }
  }
}

// kCount outputs whose windows lie inside the image: each column is combined once for all of them.
template <class D, class Op, int kWidth, int kStride, int kCount>
void pool_block(const PoolRow& row, ptrdiff_t first) {
  const D d;
  using V = hn::Vec<D>;
  constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
  constexpr int kPixels = (kCount - 1) * kStride + kWidth;
  const ptrdiff_t pixel = row.pixel;
  const ptrdiff_t last = row.channels - kStep;
  const ptrdiff_t from = (first * kStride - row.left) * pixel;
  float* HWY_RESTRICT out = row.out + first * row.out_pixel;
  const V scale = hn::Set(d, scale_for(row.height, kWidth));
  const V min = hn::Set(d, row.min);
  const V max = hn::Set(d, row.max);
  for (ptrdiff_t next = 0; next < row.channels; next += kStep) {
    const ptrdiff_t c = std::min(next, last);
    V column[kPixels];
    const float* HWY_RESTRICT top = row.rows[0] + from + c;
#pragma GCC unroll 16
    for (int p = 0; p < kPixels; ++p) column[p] = Op::first(hn::LoadU(d, top + p * pixel));
    for (int32_t y = 1; y < row.height; ++y) {
      const float* HWY_RESTRICT in = row.rows[y] + from + c;
#pragma GCC unroll 16
      for (int p = 0; p < kPixels; ++p) column[p] = Op::combine(column[p], hn::LoadU(d, in + p * pixel));
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      V all = column[i * kStride];
#pragma GCC unroll 16
      for (int x = 1; x < kWidth; ++x) all = Op::combine(all, column[i * kStride + x]);
      hn::StoreU(clamp(Op::finish(all, scale), min, max), d, out + i * row.out_pixel + c);
    }
  }
}

template <class D, class Op, int kWidth, int kStride>
void pool_inside(const PoolRow& row, ptrdiff_t first, ptrdiff_t last) {
  constexpr int kCount = 4;
  for (; first + kCount <= last; first += kCount) pool_block<D, Op, kWidth, kStride, kCount>(row, first);
  for (; first < last; ++first) pool_block<D, Op, kWidth, kStride, 1>(row, first);
}

template <class Op>
void pool(const PoolRow& row) {
  with_lanes(row.channels, [&](auto d) {
    using D = decltype(d);
    // The outputs whose windows are not clipped.
    const int32_t stride = row.stride;
    const int64_t clipped = row.left > 0 ? (int64_t{row.left} + stride - 1) / stride : 0;
    const auto first = static_cast<int32_t>(std::min<int64_t>(clipped, row.outputs));
    const int64_t room = int64_t{row.columns} - row.width + row.left;
    const auto last =
        static_cast<int32_t>(room < 0 ? first : std::clamp<int64_t>(room / stride + 1, first, row.outputs));
    void (*inside)(const PoolRow&, ptrdiff_t, ptrdiff_t) = nullptr;
    if constexpr (hn::MaxLanes(D()) == kLanes) {
      if (row.width == 2 && stride == 2) inside = pool_inside<D, Op, 2, 2>;
      if (row.width == 3 && stride == 2) inside = pool_inside<D, Op, 3, 2>;
      if (row.width == 3 && stride == 1) inside = pool_inside<D, Op, 3, 1>;
      if (row.width == 5 && stride == 1) inside = pool_inside<D, Op, 5, 1>;
    }
    if (inside == nullptr) return pool_any<D, Op>(row, 0, row.outputs);
    pool_any<D, Op>(row, 0, first);
    inside(row, first, last);
    pool_any<D, Op>(row, last, row.outputs);
  });
}

// a + (b - a) t, as in XNNPACK: what is the same on both sides stays the same. Infinite values become NaN where TensorFlow
// Lite's own sum of four products would still be infinite.
template <class V>
HWY_INLINE V between(V a, V step, V t) {
  return hn::MulAdd(step, t, a);
}

// kCount outputs between the same columns of the input, each of which is interpolated between its rows once for all.
template <class D, int kCount>
HWY_INLINE void bilinear_block(const ResizeRow& row, ptrdiff_t i) {
  const D d;
  using V = hn::Vec<D>;
  constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(D()));
  const ptrdiff_t last = row.channels - kStep;
  const Sample* samples = row.columns + i;
  const ptrdiff_t left = samples->first * row.pixel;
  const ptrdiff_t right = samples->second * row.pixel;
  const float* HWY_RESTRICT top_left = row.top + left;
  const float* HWY_RESTRICT top_right = row.top + right;
  const float* HWY_RESTRICT bottom_left = row.bottom + left;
  const float* HWY_RESTRICT bottom_right = row.bottom + right;
  float* HWY_RESTRICT out = row.out + i * row.out_pixel;
  const V down = hn::Set(d, row.weight);
  V across[kCount];
#pragma GCC unroll 4
  for (int k = 0; k < kCount; ++k) across[k] = hn::Set(d, samples[k].weight);
  for (ptrdiff_t next = 0; next < row.channels; next += kStep) {
    const ptrdiff_t c = std::min(next, last);
    const V above = hn::LoadU(d, top_left + c), above_right = hn::LoadU(d, top_right + c);
    const V a = between(above, hn::Sub(hn::LoadU(d, bottom_left + c), above), down);
    const V b = between(above_right, hn::Sub(hn::LoadU(d, bottom_right + c), above_right), down);
    const V step = hn::Sub(b, a);
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) hn::StoreU(between(a, step, across[k]), d, out + k * row.out_pixel + c);
  }
}

void bilinear(const ResizeRow& row) {
  constexpr int32_t kMost = 4;
  with_lanes(row.channels, [&](auto d) {
    using D = decltype(d);
    for (int32_t i = 0; i < row.outputs;) {
      const Sample* sample = row.columns + i;
      const int32_t most = std::min(kMost, row.outputs - i);
      int32_t count = 1;
      while (count < most && sample[count].first == sample->first && sample[count].second == sample->second) ++count;
      switch (count) {
        case 4:
          bilinear_block<D, 4>(row, i);
          break;
        case 3:
          bilinear_block<D, 3>(row, i);
          break;
        case 2:
          bilinear_block<D, 2>(row, i);
          break;
        default:
          bilinear_block<D, 1>(row, i);
      }
      i += count;
    }
  });
}

void nearest(const ResizeRow& row) {
  with_lanes(row.channels, [&](auto d) {
    constexpr auto kStep = static_cast<ptrdiff_t>(hn::MaxLanes(d));
    const ptrdiff_t last = row.channels - kStep;
    for (ptrdiff_t i = 0; i < row.outputs; ++i) {
      const float* HWY_RESTRICT in = row.top + row.columns[i].first * row.pixel;
      float* HWY_RESTRICT out = row.out + i * row.out_pixel;
      for (ptrdiff_t c = 0; c < last; c += kStep) hn::StoreU(hn::LoadU(d, in + c), d, out + c);
      hn::StoreU(hn::LoadU(d, in + last), d, out + last);
    }
  });
}

}  // namespace

const WindowKernels* window_table() {
  static constexpr WindowKernels kTable = {pool<Largest>, pool<Mean>, bilinear, nearest};
  return &kTable;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litefuse {

HWY_EXPORT(window_table);

const WindowKernels& window_kernels() { return *HWY_DYNAMIC_DISPATCH(window_table)(); }

namespace {

void reference_pool(const PoolRow& row, bool largest) {
  for (int32_t i = 0; i < row.outputs; ++i) {
    for (int32_t c = 0; c < row.channels; ++c) {
      double sum = 0;
      float most = std::numeric_limits<float>::lowest();
      int32_t count = 0;
      for (int32_t y = 0; y < row.height; ++y) {
        for (int32_t kx = 0; kx < row.width; ++kx) {
          const int32_t x = i * row.stride - row.left + kx;
          if (x < 0 || x >= row.columns) continue;
          const float value = row.rows[y][x * row.pixel + c];
          if (value > most) most = value;
          sum += static_cast<double>(value);
          ++count;
        }
      }
      float result = 0;
      if (largest) {
        result = count > 0 ? most : 0.0f;
      } else if (count > 0) {
        result = static_cast<float>(sum / count);
      }
      if (result < row.min) result = row.min;
      if (result > row.max) result = row.max;
      row.out[i * row.out_pixel + c] = result;
    }
  }
}

void reference_max_pool(const PoolRow& row) { reference_pool(row, true); }

void reference_average_pool(const PoolRow& row) { reference_pool(row, false); }

void reference_bilinear(const ResizeRow& row) {
  for (int32_t i = 0; i < row.outputs; ++i) {
    const ptrdiff_t left = row.columns[i].first * row.pixel;
    const ptrdiff_t right = row.columns[i].second * row.pixel;
    const auto x = static_cast<double>(row.columns[i].weight);
    const auto y = static_cast<double>(row.weight);
    for (int32_t c = 0; c < row.channels; ++c) {
      const auto between = [](double a, double b, double t) { return a + (b - a) * t; };
      const double a = between(row.top[left + c], row.bottom[left + c], y);
      const double b = between(row.top[right + c], row.bottom[right + c], y);
      row.out[i * row.out_pixel + c] = static_cast<float>(between(a, b, x));
    }
  }
}

void reference_nearest(const ResizeRow& row) {
  for (int32_t i = 0; i < row.outputs; ++i) {
    const float* in = row.top + row.columns[i].first * row.pixel;
    std::copy(in, in + row.channels, row.out + i * row.out_pixel);
  }
}

}  // namespace

const WindowKernels& window_reference() {
  static constexpr WindowKernels kTable = {reference_max_pool, reference_average_pool, reference_bilinear,
                                           reference_nearest};
  return kTable;
}

}  // namespace litefuse
#endif  // HWY_ONCE
