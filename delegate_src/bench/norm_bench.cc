// Speed of the normalisations, softmax and reductions, over the shapes of norm_cases.h. What limits most of them is
// memory; elements are counted, as exponentials and roots are not comparable with multiply-adds.
#include <benchmark/benchmark.h>

#include <string>

#include "bench/roofline.h"
#include "bench/support.h"
#include "kernels/simd/norm.h"
#include "kernels/simd/norm_cases.h"

namespace litefuse {
namespace {

struct Data {
  Data(size_t count, size_t channels) : x(count), y(count, 1), gamma(channels, 2), beta(channels, 3) {}
  Floats x, y, gamma, beta;
};

// `touched` bytes include what lies in the same lines of the caches as the elements.
Work work_of(double elements, double bytes, double touched) {
  Work work;
  work.elements = elements;
  return work.add(level_of(touched), bytes);
}

template <typename F>
void add_rows(const char* function, const RowsCase& shape, bool writes, F f) {
  const std::string name = std::string(function) + "/" + shape.name;
  benchmark::RegisterBenchmark(name.c_str(), [shape, writes, f](benchmark::State& state) {
    const ptrdiff_t stride = ptrdiff_t{shape.channels} + shape.gap;
    Data data(static_cast<size_t>(shape.rows * stride), static_cast<size_t>(shape.channels));
    const double elements = static_cast<double>(shape.rows) * shape.channels;
    const double per_element = writes ? 8 : 4;
    const double touched = static_cast<double>(shape.rows * stride) * per_element;
    measure(state, work_of(elements, elements * per_element, touched), [&] { f(norm_kernels(), shape, stride, data); });
  });
}

template <typename F>
void add_pixels(const char* function, const PixelsCase& shape, F f) {
  const std::string name = std::string(function) + "/" + shape.name;
  benchmark::RegisterBenchmark(name.c_str(), [shape, f](benchmark::State& state) {
    const ptrdiff_t pixel = ptrdiff_t{shape.channels} + shape.gap;
    Data data(static_cast<size_t>(shape.pixels * pixel), static_cast<size_t>(shape.channels));
    const double elements = static_cast<double>(shape.pixels) * shape.channels;
    const double touched = static_cast<double>(shape.pixels * pixel) * 4;
    measure(state, work_of(elements, elements * 4, touched), [&] { f(norm_kernels(), shape, pixel, data); });
  });
}

void register_all() {
  for (const RowsCase& shape : kRowsCases) {
    if (!shape.benchmark) continue;
    add_rows("layer_norm", shape, true, [](const NormKernels& k, const RowsCase& s, ptrdiff_t stride, Data& d) {
      k.layer_norm(d.x.data(), s.rows, stride, s.channels, d.gamma.data(), d.beta.data(), 1e-6f, d.y.data(), stride);
    });
    add_rows("rms_norm", shape, true, [](const NormKernels& k, const RowsCase& s, ptrdiff_t stride, Data& d) {
      k.rms_norm(d.x.data(), s.rows, stride, s.channels, d.gamma.data(), 1e-6f, d.y.data(), stride);
    });
    add_rows("l2_norm", shape, true, [](const NormKernels& k, const RowsCase& s, ptrdiff_t stride, Data& d) {
      k.l2_norm(d.x.data(), s.rows, stride, s.channels, 1e-6f, d.y.data(), stride);
    });
    add_rows("softmax", shape, true, [](const NormKernels& k, const RowsCase& s, ptrdiff_t stride, Data& d) {
      k.softmax(d.x.data(), s.rows, stride, s.channels, 1.0f, d.y.data(), stride);
    });
    add_rows("log_softmax", shape, true, [](const NormKernels& k, const RowsCase& s, ptrdiff_t stride, Data& d) {
      k.log_softmax(d.x.data(), s.rows, stride, s.channels, d.y.data(), stride);
    });
    add_rows("sum_rows", shape, false, [](const NormKernels& k, const RowsCase& s, ptrdiff_t stride, Data& d) {
      k.sum_rows(d.x.data(), s.rows, stride, s.channels, d.y.data());
    });
    add_rows("max_rows", shape, false, [](const NormKernels& k, const RowsCase& s, ptrdiff_t stride, Data& d) {
      k.max_rows(d.x.data(), s.rows, stride, s.channels, d.y.data());
    });
  }
  for (const PixelsCase& shape : kPixelsCases) {
    if (!shape.benchmark) continue;
    add_pixels("sum_pixels", shape, [](const NormKernels& k, const PixelsCase& s, ptrdiff_t pixel, Data& d) {
      k.sum_pixels(d.x.data(), s.pixels, pixel, s.channels, d.y.data());
    });
    add_pixels("max_pixels", shape, [](const NormKernels& k, const PixelsCase& s, ptrdiff_t pixel, Data& d) {
      k.max_pixels(d.x.data(), s.pixels, pixel, s.channels, d.y.data());
    });
    add_pixels("sum_squares", shape, [](const NormKernels& k, const PixelsCase& s, ptrdiff_t pixel, Data& d) {
      k.sum_squares(d.x.data(), s.pixels, pixel, s.channels, d.beta.data(), d.y.data());
    });
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
}  // namespace litefuse
