// Speed of the normalisations, softmax and reductions, over the shapes of norm_cases.h.
//
// What limits most of them is memory, so that the share of the roofline is that of the bandwidth of the L2 cache, for
// what is read and written once; the exponentials of softmax are counted as elements per second besides.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "kernels/simd/norm.h"
#include "kernels/simd/norm_cases.h"

namespace litefuse {
namespace {

// Of a Zen 3 core at 3.2 GHz.
constexpr double kL2BytesPerSecond = 80e9;

struct Data {
  Data(size_t count, size_t channels) : x(count), y(count), gamma(channels, 1.25f), beta(channels, 0.25f) {
    uint32_t state = 1;
    for (float& value : x) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(state >> 8) * (8.0f / 16777216.0f) - 4.0f;
    }
  }
  std::vector<float> x, y, gamma, beta;
};

void finish(benchmark::State& state, double elements, double bytes) {
  const auto iterations = static_cast<double>(state.iterations());
  state.SetLabel(simd_name());
  state.counters["elements"] = benchmark::Counter(elements * iterations, benchmark::Counter::kIsRate);
  state.counters["bytes"] = benchmark::Counter(bytes * iterations, benchmark::Counter::kIsRate);
  state.counters["share_of_L2"] =
      benchmark::Counter(bytes * iterations / kL2BytesPerSecond, benchmark::Counter::kIsRate);
}

template <typename F>
void add_rows(const char* function, const RowsCase& shape, bool writes, F f) {
  const std::string name = std::string(function) + "/" + shape.name;
  benchmark::RegisterBenchmark(name.c_str(), [shape, writes, f](benchmark::State& state) {
    const ptrdiff_t stride = ptrdiff_t{shape.channels} + shape.gap;
    Data data(static_cast<size_t>(shape.rows * stride), static_cast<size_t>(shape.channels));
    for (auto _ : state) {
      f(norm_kernels(), shape, stride, data);
      benchmark::ClobberMemory();
    }
    const double elements = static_cast<double>(shape.rows) * shape.channels;
    finish(state, elements, elements * (writes ? 8 : 4));
  });
}

template <typename F>
void add_pixels(const char* function, const PixelsCase& shape, F f) {
  const std::string name = std::string(function) + "/" + shape.name;
  benchmark::RegisterBenchmark(name.c_str(), [shape, f](benchmark::State& state) {
    const ptrdiff_t pixel = ptrdiff_t{shape.channels} + shape.gap;
    Data data(static_cast<size_t>(shape.pixels * pixel), static_cast<size_t>(shape.channels));
    for (auto _ : state) {
      f(norm_kernels(), shape, pixel, data);
      benchmark::ClobberMemory();
    }
    const double elements = static_cast<double>(shape.pixels) * shape.channels;
    finish(state, elements, elements * 4);
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
