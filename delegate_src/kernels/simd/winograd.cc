#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/winograd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/simd/lanes-inl.h"
#include "kernels/simd/winograd.h"

#ifndef LITEFUSE_KERNELS_SIMD_WINOGRAD_ONCE_
#define LITEFUSE_KERNELS_SIMD_WINOGRAD_ONCE_

namespace litefuse {
namespace {

float float_of_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                             : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  if (exponent == 31) size = fraction == 0 ? HUGE_VALF : NAN;
  return bits >> 15 != 0 ? -size : size;
}

}  // namespace
}  // namespace litefuse

#endif  // LITEFUSE_KERNELS_SIMD_WINOGRAD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {
namespace {

// The points of interpolation, see winograd.h, and what is made of them: all exact in float32.
constexpr float kA = 11.0f / 16.0f;
constexpr float kB = 3.0f / 2.0f;
constexpr float kA2 = kA * kA;
constexpr float kB2 = kB * kB;
constexpr float kA3 = kA2 * kA;
constexpr float kB3 = kB2 * kB;
constexpr float kProduct = kA2 * kB2;
constexpr float kSum = kA2 + kB2;

// The transforms work on a vector of channels of one tile at a time. The 36 vectors of a tile do not fit 16 registers;
// instead of a buffer between the two one-dimensional transforms, one or two rows of the result are made at a time from
// the rows that they depend on. That loads more than a buffer would, but stores nothing twice, and stores are what
// limits these loops.
//
// A pass that makes such rows runs over kTogether channels before the next pass does. Where the 36 matrices lie a
// multiple of 4 KB apart, their lines meet in few sets of the first cache: all 36 would not stay there until they are
// used up, those of one pass do.
constexpr size_t kTogether = 64;

template <class D>
struct InputTransform {
  using V = hn::Vec<D>;

  static HWY_INLINE V set(float x) { return hn::Set(D(), x); }
  static HWY_INLINE V load(const float* p) { return hn::LoadU(D(), p); }
  static HWY_INLINE void store(V v, float* p) { hn::StoreU(v, D(), p); }

  // The transform along a row; the results are `step` apart.
  static HWY_INLINE void row(const V (&x)[6], float* to, size_t step) {
    store(hn::MulAdd(set(kProduct), x[0], hn::NegMulAdd(set(kSum), x[2], x[4])), to);
    const V even_a = hn::NegMulAdd(set(kB2), x[2], x[4]);
    const V odd_a = hn::NegMulAdd(set(kB2), x[1], x[3]);
    store(hn::MulAdd(set(kA), odd_a, even_a), to + step);
    store(hn::NegMulAdd(set(kA), odd_a, even_a), to + 2 * step);
    const V even_b = hn::NegMulAdd(set(kA2), x[2], x[4]);
    const V odd_b = hn::NegMulAdd(set(kA2), x[1], x[3]);
    store(hn::MulAdd(set(kB), odd_b, even_b), to + 3 * step);
    store(hn::NegMulAdd(set(kB), odd_b, even_b), to + 4 * step);
    store(hn::MulAdd(set(kProduct), x[1], hn::NegMulAdd(set(kSum), x[3], x[5])), to + 5 * step);
  }

  // Row 0 or 5 of the result.
  static HWY_INLINE void outer(const float* x0, const float* x2, const float* x4, ptrdiff_t pixel, float* to,
                               size_t step) {
    V x[6];
    HWY_UNROLL(6)
    for (int k = 0; k < 6; ++k) {
      const ptrdiff_t at = k * pixel;
      x[k] = hn::MulAdd(set(kProduct), load(x0 + at), hn::NegMulAdd(set(kSum), load(x2 + at), load(x4 + at)));
    }
    row(x, to, step);
  }

  // The two rows of the points +-`point`; `other` is the square of the other point.
  static HWY_INLINE void pair(const float* const (&rows)[6], size_t c, ptrdiff_t pixel, float point, float other,
                              float* to, size_t step) {
    V plus[6];
    V minus[6];
    HWY_UNROLL(6)
    for (int k = 0; k < 6; ++k) {
      const ptrdiff_t at = k * pixel + static_cast<ptrdiff_t>(c);
      const V even = hn::NegMulAdd(set(other), load(rows[2] + at), load(rows[4] + at));
      const V odd = hn::NegMulAdd(set(other), load(rows[1] + at), load(rows[3] + at));
      plus[k] = hn::MulAdd(set(point), odd, even);
      minus[k] = hn::NegMulAdd(set(point), odd, even);
    }
    row(plus, to, step);
    row(minus, to + 6 * step, step);
  }

  // `count` channels, whole vectors of them.
  static HWY_INLINE void run(const WinogradRow& from, ptrdiff_t at, float* to, size_t step, size_t count) {
    constexpr size_t kWidth = hn::MaxLanes(D());
    const float* const rows[6] = {from.rows[0] + at, from.rows[1] + at, from.rows[2] + at,
                                  from.rows[3] + at, from.rows[4] + at, from.rows[5] + at};
    for (size_t c = 0; c < count; c += kWidth) {
      outer(rows[0] + c, rows[2] + c, rows[4] + c, from.pixel, to + c, step);
    }
    for (size_t c = 0; c < count; c += kWidth) pair(rows, c, from.pixel, kA, kB2, to + c + 6 * step, step);
    for (size_t c = 0; c < count; c += kWidth) pair(rows, c, from.pixel, kB, kA2, to + c + 18 * step, step);
    for (size_t c = 0; c < count; c += kWidth) {
      outer(rows[1] + c, rows[3] + c, rows[5] + c, from.pixel, to + c + 30 * step, step);
    }
  }
};

// The last channels, fewer than 2 * kWidth of them, by ever narrower vectors.
template <size_t kWidth>
HWY_NOINLINE void input_tail(const WinogradRow& from, ptrdiff_t at, float* to, size_t step, size_t channels) {
  if constexpr (kWidth > 0) {
    if (channels >= kWidth) {
      InputTransform<hn::CappedTag<float, kWidth>>::run(from, at, to, step, kWidth);
      at += static_cast<ptrdiff_t>(kWidth);
      to += kWidth;
      channels -= kWidth;
    }
    if (channels > 0) input_tail<kWidth / 2>(from, at, to, step, channels);
  } else {
    (void)from, (void)at, (void)to, (void)step, (void)channels;
  }
}

void input(const WinogradRow& row, int32_t tiles, float* transformed, int32_t stride, int32_t first) {
  const auto channels = static_cast<size_t>(row.layout->channels);
  const size_t whole = channels / kLanes * kLanes;
  const size_t step = static_cast<size_t>(stride) * channels;
  float* to = transformed + static_cast<size_t>(first) * channels;
  ptrdiff_t at = 0;
  for (int32_t tile = 0; tile < tiles; ++tile, to += channels, at += 4 * row.pixel) {
    for (size_t c = 0; c < whole; c += kTogether) {
      InputTransform<hn::ScalableTag<float>>::run(row, at + static_cast<ptrdiff_t>(c), to + c, step,
                                                  std::min(kTogether, whole - c));
    }
    if (whole < channels) {
      input_tail<kLanes / 2>(row, at + static_cast<ptrdiff_t>(whole), to + whole, step, channels - whole);
    }
  }
}

void multiply(const WinogradLayout& layout, const float* weights, const float* transformed, int32_t tiles,
              float* products, int32_t first_panel, int32_t last_panel) {
  constexpr int32_t kRows = 240;  // of one product
  const float* a[kRows];
  float* c[kRows];
  const auto channels = static_cast<ptrdiff_t>(layout.channels);
  const auto outputs = static_cast<ptrdiff_t>(layout.product.columns);
  for (int32_t i = 0; i < std::min(kRows, tiles); ++i) {
    a[i] = transformed + i * channels;
    c[i] = products + i * outputs;
  }
  const size_t matrix = layout.floats / kWinogradProducts;
  GemmCall call;
  call.a = a;
  call.c = c;
  call.segment_length = layout.channels;
  call.layout = &layout.product;
  call.first_panel = first_panel;
  call.last_panel = last_panel;
  const GemmKernels& gemm = gemm_kernels();
  const bool far = layout.floats * sizeof(float) > caches().l2 / 2;
  for (int32_t e = 0; e < kWinogradProducts; ++e) {
    call.weights = weights + static_cast<size_t>(e) * matrix;
    call.ahead = far && e + 1 < kWinogradProducts ? call.weights + matrix : nullptr;
    for (int32_t row = 0; row < tiles; row += kRows) {
      const ptrdiff_t at = static_cast<ptrdiff_t>(e) * tiles + row;
      call.rows = std::min(kRows, tiles - row);
      call.a_offset = at * channels;
      call.c_offset = at * outputs;
      gemm.run(call);
    }
  }
}

// What an output transform is compiled for. kGeneral looks at everything at run time and leaves out the pixels and rows
// that are not wanted.
enum Mode : int { kClamp = 0, kSlopes = 1, kResidual = 2, kGeneral = 4 };

template <class D, int kMode>
struct OutputTransform {
  using V = hn::Vec<D>;
  static constexpr bool kAny = (kMode & kGeneral) != 0;

  const WinogradOutput& out;
  ptrdiff_t at;     // of the tile's first pixel, first channel of the vector
  int32_t columns;  // of this tile
  V bias;
  V slopes;

  static HWY_INLINE V set(float x) { return hn::Set(D(), x); }
  static HWY_INLINE V load(const float* p) { return hn::LoadU(D(), p); }

  HWY_INLINE void put(V x, int row, int column) const {
    if (kAny && column >= columns) return;
    const GemmEpilogue& epilogue = out.epilogue;
    const ptrdiff_t pixel = at + column * out.pixel;
    if ((kMode & kSlopes) != 0 || (kAny && epilogue.slopes != nullptr)) {
      x = hn::IfThenElse(hn::Lt(x, hn::Zero(D())), hn::Mul(x, slopes), x);
    } else {
      x = clamp(x, set(epilogue.min), set(epilogue.max));
    }
    if ((kMode & kResidual) != 0 || (kAny && out.residual[row] != nullptr)) {
      x = hn::Add(x, load(out.residual[row] + pixel));
      x = clamp(x, set(epilogue.residual_min), set(epilogue.residual_max));
    }
    hn::StoreU(x, D(), out.rows[row] + pixel);
  }

  // The transform along a row. The bias joins where it costs nothing.
  HWY_INLINE void put_row(const V (&x)[6], int row) const {
    if (kAny && out.rows[row] == nullptr) return;
    const V even_a = hn::Add(x[1], x[2]);
    const V even_b = hn::Add(x[3], x[4]);
    put(hn::Add(hn::Add(x[0], bias), hn::Add(even_a, even_b)), row, 0);
    put(hn::MulAdd(set(kA2), even_a, hn::MulAdd(set(kB2), even_b, bias)), row, 2);
    const V odd_a = hn::Sub(x[1], x[2]);
    const V odd_b = hn::Sub(x[3], x[4]);
    put(hn::MulAdd(set(kA), odd_a, hn::MulAdd(set(kB), odd_b, bias)), row, 1);
    put(hn::MulAdd(set(kA3), odd_a, hn::MulAdd(set(kB3), odd_b, hn::Add(x[5], bias))), row, 3);
  }

  HWY_INLINE void even_rows(const float* m, size_t step) const {
    V first[6];
    V second[6];
    HWY_UNROLL(6)
    for (size_t k = 0; k < 6; ++k, m += step) {
      const V a = hn::Add(load(m + 6 * step), load(m + 12 * step));
      const V b = hn::Add(load(m + 18 * step), load(m + 24 * step));
      first[k] = hn::Add(load(m), hn::Add(a, b));
      second[k] = hn::MulAdd(set(kA2), a, hn::Mul(set(kB2), b));
    }
    put_row(first, 0);
    put_row(second, 2);
  }

  HWY_INLINE void odd_rows(const float* m, size_t step) const {
    V first[6];
    V second[6];
    HWY_UNROLL(6)
    for (size_t k = 0; k < 6; ++k, m += step) {
      const V a = hn::Sub(load(m + 6 * step), load(m + 12 * step));
      const V b = hn::Sub(load(m + 18 * step), load(m + 24 * step));
      first[k] = hn::MulAdd(set(kA), a, hn::Mul(set(kB), b));
      second[k] = hn::MulAdd(set(kA3), a, hn::MulAdd(set(kB3), b, load(m + 30 * step)));
    }
    put_row(first, 1);
    put_row(second, 3);
  }

  static HWY_INLINE OutputTransform make(const WinogradOutput& out, ptrdiff_t at, size_t c, int32_t columns) {
    const float* slopes = out.epilogue.slopes;
    return {out, at + static_cast<ptrdiff_t>(c), columns, out.bias != nullptr ? load(out.bias + c) : hn::Zero(D()),
            slopes != nullptr ? load(slopes + c) : hn::Zero(D())};
  }

  // The channels [begin, end), whole vectors of them, of the tile whose first pixel is at `at`.
  static HWY_INLINE void run(const float* m, size_t step, const WinogradOutput& out, ptrdiff_t at, size_t begin,
                             size_t end, int32_t columns) {
    constexpr size_t kWidth = hn::MaxLanes(D());
    for (size_t c = begin; c < end; c += kWidth) make(out, at, c, columns).even_rows(m + c, step);
    for (size_t c = begin; c < end; c += kWidth) make(out, at, c, columns).odd_rows(m + c, step);
  }
};

// The last channels, fewer than 2 * kWidth of them, by ever narrower vectors: none is computed twice, since the output
// may lie where the residual was.
template <size_t kWidth>
HWY_NOINLINE void output_tail(const float* m, size_t step, const WinogradOutput& out, ptrdiff_t at, size_t c,
                              size_t outputs, int32_t columns) {
  if constexpr (kWidth > 0) {
    const size_t end = c + (outputs - c) / kWidth * kWidth;
    OutputTransform<hn::CappedTag<float, kWidth>, kGeneral>::run(m, step, out, at, c, end, columns);
    if (end < outputs) output_tail<kWidth / 2>(m, step, out, at, end, outputs, columns);
  } else {
    (void)m, (void)step, (void)out, (void)at, (void)c, (void)outputs, (void)columns;
  }
}

template <int kMode>
void output_tiles(const float* m, size_t step, size_t outputs, int32_t tiles, const WinogradOutput& out) {
  const bool all_rows = std::find(out.rows, out.rows + 4, nullptr) == out.rows + 4;
  const size_t whole = outputs / kLanes * kLanes;
  ptrdiff_t at = 0;
  for (int32_t tile = 0; tile < tiles; ++tile, m += outputs, at += 4 * out.pixel) {
    const int32_t columns = std::min(4, out.columns - 4 * tile);
    if (columns <= 0) return;
    size_t c = 0;
    if (all_rows && columns == 4) {
      for (; c < whole; c += std::min(kTogether, whole - c)) {
        OutputTransform<hn::ScalableTag<float>, kMode>::run(m, step, out, at, c, std::min(c + kTogether, whole), 4);
      }
    }
    if (c < outputs) output_tail<kLanes>(m, step, out, at, c, outputs, columns);
  }
}

void output(const WinogradLayout& layout, const float* products, int32_t stride, int32_t first, int32_t tiles,
            const WinogradOutput& out) {
  const auto outputs = static_cast<size_t>(layout.product.columns);
  const size_t step = static_cast<size_t>(stride) * outputs;
  const float* m = products + static_cast<size_t>(first) * outputs;
  const bool residual = std::any_of(out.residual, out.residual + 4, [](const float* row) { return row != nullptr; });
  if (out.epilogue.slopes != nullptr) {
    (residual ? output_tiles<kSlopes | kResidual> : output_tiles<kSlopes>)(m, step, outputs, tiles, out);
  } else {
    (residual ? output_tiles<kResidual> : output_tiles<kClamp>)(m, step, outputs, tiles, out);
  }
}

WinogradLayout layout(int32_t channels, int32_t outputs) {
  WinogradLayout layout;
  layout.channels = channels;
  layout.product = gemm_kernels().layout(channels, outputs);
  constexpr size_t kAligned = kWeightAlignment / sizeof(float);
  layout.floats = kWinogradProducts * ((layout.product.floats + kAligned - 1) / kAligned * kAligned);
  return layout;
}

void pack(const WinogradLayout& layout, const void* filter, bool half, float* to) {
  const auto channels = static_cast<size_t>(layout.channels);
  const auto outputs = static_cast<size_t>(layout.product.columns);
  const auto* from = static_cast<const float*>(filter);
  std::vector<float> widened;
  if (half) {
    widened.resize(outputs * 9 * channels);
    std::transform(static_cast<const uint16_t*>(filter), static_cast<const uint16_t*>(filter) + widened.size(),
                   widened.begin(), float_of_half);
    from = widened.data();
  }
  // The values of a filter at each point, divided by the product of its distances to the other points.
  const double a = kA, b = kB, product = a * a * b * b;
  const double at_a = 2 * a * a * (a * a - b * b), at_b = 2 * b * b * (b * b - a * a);
  const double points[6][3] = {{1 / product, 0, 0},
                               {1 / at_a, a / at_a, a * a / at_a},
                               {1 / at_a, -a / at_a, a * a / at_a},
                               {1 / at_b, b / at_b, b * b / at_b},
                               {1 / at_b, -b / at_b, b * b / at_b},
                               {0, 0, 1}};
  const size_t size = outputs * channels;
  std::vector<float> matrices(6 * size);  // those of one row of points, each [outputs][channels]
  std::vector<double> columns(3 * channels);
  const GemmKernels& gemm = gemm_kernels();
  for (size_t i = 0; i < 6; ++i) {
    for (size_t n = 0; n < outputs; ++n) {
      const float* w = from + n * 9 * channels;
      for (size_t k = 0; k < 3 * channels; ++k) {
        columns[k] = points[i][0] * w[k] + points[i][1] * w[k + 3 * channels] + points[i][2] * w[k + 6 * channels];
      }
      for (size_t j = 0; j < 6; ++j) {
        float* u = matrices.data() + j * size + n * channels;
        for (size_t c = 0; c < channels; ++c) {
          u[c] = static_cast<float>(points[j][0] * columns[c] + points[j][1] * columns[c + channels] +
                                    points[j][2] * columns[c + 2 * channels]);
        }
      }
    }
    for (size_t j = 0; j < 6; ++j) {
      GemmWeights weights;
      weights.data = matrices.data() + j * size;
      weights.depth_stride = 1;
      weights.column_stride = static_cast<ptrdiff_t>(channels);
      gemm.pack(layout.product, weights, to + (i * 6 + j) * (layout.floats / kWinogradProducts));
    }
  }
}

const WinogradKernels* table() {
  static constexpr WinogradKernels kTable = {layout, pack, input, multiply, output};
  return &kTable;
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litefuse {

HWY_EXPORT(table);

const WinogradKernels& winograd_kernels() { return *HWY_DYNAMIC_DISPATCH(table)(); }

int32_t winograd_tiles(const WinogradLayout& layout, size_t l2_bytes) {
  const auto channels = static_cast<size_t>(layout.channels);
  const auto outputs = static_cast<size_t>(layout.product.columns);
  const size_t tile = kWinogradProducts * (channels + outputs) * sizeof(float);
  const size_t weights = layout.floats * sizeof(float);
  const size_t matrix = weights / kWinogradProducts;
  // Both buffers stay in the cache together with the matrix in use and the next one. Weights that do not are read once
  // for each product, which many tiles share; it takes so long that it does not matter where the buffers are.
  const size_t room = l2_bytes - std::min(l2_bytes, l2_bytes / 8 + 2 * matrix);
  const size_t least = weights > l2_bytes ? 57 : 21;
  const size_t tiles = std::clamp<size_t>(room / tile, least, 93);
  // 9, 21, 33, ...: odd, so that the 36 matrices do not lie a multiple of 4 KB apart, and 6 + ... + 6 + 5 + 4 rows or
  // the like, which keeps all register tiles of the product large.
  return static_cast<int32_t>((tiles - 9) / 12 * 12 + 9);
}

bool winograd_pays(int32_t channels, int32_t outputs, int32_t height, int32_t width) {
  if (channels < 16 || outputs < 16) return false;
  const double products = static_cast<double>(channels) * outputs;
  const double pixels = static_cast<double>(height) * width;
  const double tiles = static_cast<double>((height + 3) / 4) * ((width + 3) / 4);
  // Cycles; where the weights are many and the tiles few, both wait for the weights, of which 6 bytes come in a cycle.
  const auto cycles = [&](double work, double weights) { return std::max(work, weights * sizeof(float) / 6); };
  const double winograd =
      cycles(5000 + tiles * (36 * products / 11 + 14.0 * (channels + outputs)), kWinogradProducts * products);
  const double direct = cycles(9 * products * pixels / 14.5, 9 * products);
  // Whole convolutions take about 1.45 times as long as the formula says, compared with plain sums.
  return winograd < 0.62 * direct;
}

namespace {

// The transforms of the reference as matrices; filters are [points][taps], inputs [points][pixels], outputs
// [pixels][points].
struct Matrices {
  double filter[6][3] = {};
  double input[6][6] = {};
  double output[4][6] = {};

  // The Toom-Cook construction: with p_i the points, M = product of (x - p_j) and M_i = M / (x - p_i), filters and
  // outputs take the powers of p_i, the filter's divided by M_i(p_i), and inputs the coefficients of M_i. Infinity
  // takes the highest power, and the coefficients of M.
  Matrices() {
    const double points[5] = {0, 0.6875, -0.6875, 1.5, -1.5};
    for (int i = 0; i < 6; ++i) {
      double coefficients[6] = {1};
      double scale = 1;
      for (int j = 0, degree = 0; j < 5; ++j) {
        if (j == i) continue;
        if (i < 5) scale *= points[i] - points[j];
        ++degree;
        for (int k = degree; k > 0; --k) coefficients[k] = coefficients[k - 1] - points[j] * coefficients[k];
        coefficients[0] *= -points[j];
      }
      for (int k = 0; k < 6; ++k) input[i][k] = coefficients[k];
      for (int k = 0; k < 3; ++k) filter[i][k] = i < 5 ? std::pow(points[i], k) / scale : k == 2;
      for (int k = 0; k < 4; ++k) output[k][i] = i < 5 ? std::pow(points[i], k) : k == 3;
    }
  }
};

WinogradLayout reference_layout(int32_t channels, int32_t outputs) {
  WinogradLayout layout;
  layout.channels = channels;
  layout.product = gemm_reference().layout(channels, outputs);
  layout.floats = kWinogradProducts * layout.product.floats;
  return layout;
}

void reference_pack(const WinogradLayout& layout, const void* filter, bool half, float* to) {
  const Matrices matrices;
  const ptrdiff_t channels = layout.channels;
  const ptrdiff_t outputs = layout.product.columns;
  std::vector<float> matrix(static_cast<size_t>(channels * outputs));  // [channels][outputs]
  for (int e = 0; e < kWinogradProducts; ++e) {
    for (ptrdiff_t n = 0; n < outputs; ++n) {
      for (ptrdiff_t c = 0; c < channels; ++c) {
        double sum = 0;
        for (int y = 0; y < 3; ++y) {
          for (int x = 0; x < 3; ++x) {
            const ptrdiff_t at = (n * 9 + y * 3 + x) * channels + c;
            const double w =
                half ? float_of_half(static_cast<const uint16_t*>(filter)[at]) : static_cast<const float*>(filter)[at];
            sum += matrices.filter[e / 6][y] * matrices.filter[e % 6][x] * w;
          }
        }
        matrix[static_cast<size_t>(c * outputs + n)] = static_cast<float>(sum);
      }
    }
    GemmWeights weights;
    weights.data = matrix.data();
    weights.depth_stride = outputs;
    weights.column_stride = 1;
    gemm_reference().pack(layout.product, weights, to + static_cast<size_t>(e) * layout.product.floats);
  }
}

void reference_input(const WinogradRow& row, int32_t tiles, float* transformed, int32_t stride, int32_t first) {
  const Matrices matrices;
  const ptrdiff_t channels = row.layout->channels;
  for (ptrdiff_t tile = 0; tile < tiles; ++tile) {
    for (ptrdiff_t c = 0; c < channels; ++c) {
      for (int e = 0; e < kWinogradProducts; ++e) {
        double sum = 0;
        for (int y = 0; y < 6; ++y) {
          for (int x = 0; x < 6; ++x) {
            sum += matrices.input[e / 6][y] * matrices.input[e % 6][x] * row.rows[y][(4 * tile + x) * row.pixel + c];
          }
        }
        transformed[(static_cast<ptrdiff_t>(e) * stride + first + tile) * channels + c] = static_cast<float>(sum);
      }
    }
  }
}

void reference_multiply(const WinogradLayout& layout, const float* weights, const float* transformed, int32_t tiles,
                        float* products, int32_t first_panel, int32_t last_panel) {
  for (ptrdiff_t row = 0; row < static_cast<ptrdiff_t>(kWinogradProducts) * tiles; ++row) {
    const float* a = transformed + row * layout.channels;
    float* c = products + row * layout.product.columns;
    GemmCall call;
    call.a = &a;
    call.c = &c;
    call.rows = 1;
    call.segment_length = layout.channels;
    call.layout = &layout.product;
    call.weights = weights + static_cast<size_t>(row / tiles) * layout.product.floats;
    call.first_panel = first_panel;
    call.last_panel = last_panel;
    gemm_reference().run(call);
  }
}

double reference_clamp(double x, float min, float max) { return x < min ? min : x > max ? max : x; }

void reference_output(const WinogradLayout& layout, const float* products, int32_t stride, int32_t first, int32_t tiles,
                      const WinogradOutput& out) {
  const Matrices matrices;
  const ptrdiff_t outputs = layout.product.columns;
  const GemmEpilogue& epilogue = out.epilogue;
  for (int y = 0; y < 4; ++y) {
    for (ptrdiff_t x = 0; out.rows[y] != nullptr && x < std::min(4 * tiles, out.columns); ++x) {
      for (ptrdiff_t n = 0; n < outputs; ++n) {
        double sum = out.bias != nullptr ? out.bias[n] : 0;
        for (int e = 0; e < kWinogradProducts; ++e) {
          sum += matrices.output[y][e / 6] * matrices.output[x % 4][e % 6] *
                 products[(static_cast<ptrdiff_t>(e) * stride + first + x / 4) * outputs + n];
        }
        if (epilogue.slopes != nullptr) {
          sum = sum < 0 ? sum * epilogue.slopes[n] : sum;
        } else {
          sum = reference_clamp(sum, epilogue.min, epilogue.max);
        }
        if (out.residual[y] != nullptr) {
          sum = reference_clamp(sum + out.residual[y][x * out.pixel + n], epilogue.residual_min, epilogue.residual_max);
        }
        out.rows[y][x * out.pixel + n] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace

const WinogradKernels& winograd_reference() {
  static constexpr WinogradKernels kTable = {reference_layout, reference_pack, reference_input, reference_multiply,
                                             reference_output};
  return kTable;
}

}  // namespace litefuse
#endif  // HWY_ONCE
