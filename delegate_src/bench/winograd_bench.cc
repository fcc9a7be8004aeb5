// Winograd convolutions and their three stages, and the direct convolution by GemmKernels that they compete with.
// Counters: GFLOP/s of the plain sum of products (so that Winograd's may exceed the peak), and for the products alone
// those that are done, with their share of the peak.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kernels/simd/winograd_cases.h"

namespace litefuse {
namespace {

constexpr double kPeak = 101;  // GFLOP/s of multiply-adds: a Zen 3 core at 3.2 GHz, AVX2

struct Free {
  void operator()(float* p) const { ::operator delete[](p, std::align_val_t{kWeightAlignment}); }
};
using Floats = std::unique_ptr<float[], Free>;

Floats floats(size_t count) {
  Floats memory(static_cast<float*>(::operator new[](count * sizeof(float), std::align_val_t{kWeightAlignment})));
  for (size_t i = 0; i < count; ++i) memory[i] = static_cast<float>(i * 2654435761u >> 8 & 1023) / 1024 - 0.5f;
  return memory;
}

struct Setup {
  WinogradCase shape;
  const WinogradKernels& kernels = winograd_kernels();
  WinogradLayout layout;
  int32_t tiles = 0;
  int32_t batch = 0;
  Floats weights, padded, transformed, products, result, filter;
  WinogradOutput out;

  explicit Setup(const WinogradCase& of) : shape(of), layout(kernels.layout(of.channels, of.outputs)) {
    const int32_t across = (shape.width + 3) / 4;
    const int32_t down = (shape.height + 3) / 4;
    tiles = across * down;
    // As even a cut as possible.
    const int32_t parts = (tiles - 1) / winograd_tiles(layout, caches().l2) + 1;
    batch = (tiles + parts - 1) / parts;
    const auto channels = static_cast<size_t>(shape.channels);
    const auto outputs = static_cast<size_t>(shape.outputs);
    filter = floats(9 * channels * outputs);
    weights = floats(layout.floats);
    kernels.pack(layout, filter.get(), false, weights.get());
    padded = floats(static_cast<size_t>((4 * across + 2) * (4 * down + 2)) * channels);
    transformed = floats(static_cast<size_t>(36 * batch) * channels);
    products = floats(static_cast<size_t>(36 * batch) * outputs);
    result = floats(static_cast<size_t>(shape.height * shape.width) * outputs);
    out.pixel = shape.outputs;
    out.bias = filter.get();
    out.epilogue.min = 0;
  }

  void run(const WinogradKernels& with) {
    winograd_convolution(with, layout, weights.get(), shape, batch, padded.get(), transformed.get(), products.get(),
                         out, result.get(), nullptr);
  }

  // `flops` for one convolution.
  void report(benchmark::State& state, double flops) const {
    const double rate = flops * 1e-9;
    state.counters["GFLOP/s"] = benchmark::Counter(rate, benchmark::Counter::kIsIterationInvariantRate);
    state.counters["of_peak"] = benchmark::Counter(rate / kPeak, benchmark::Counter::kIsIterationInvariantRate);
    state.counters["tiles"] = batch;
    state.SetLabel(simd_name());
  }
  double plain_flops() const { return 18.0 * shape.channels * shape.outputs * shape.height * shape.width; }
};

void no_input(const WinogradRow&, int32_t, float*, int32_t, int32_t) {}
void no_multiply(const WinogradLayout&, const float*, const float*, int32_t, float*, int32_t, int32_t) {}
void no_output(const WinogradLayout&, const float*, int32_t, int32_t, int32_t, const WinogradOutput&) {}

void whole(benchmark::State& state, const WinogradCase& shape) {
  Setup setup(shape);
  for (auto _ : state) setup.run(setup.kernels);
  setup.report(state, setup.plain_flops());
}

void products(benchmark::State& state, const WinogradCase& shape) {
  Setup setup(shape);
  WinogradKernels kernels = setup.kernels;
  kernels.input = no_input;
  kernels.output = no_output;
  for (auto _ : state) setup.run(kernels);
  setup.report(state, 72.0 * setup.tiles * shape.channels * shape.outputs);
}

// GB/s of the buffer that is written or read, and nanoseconds for a channel of a tile.
void transform(benchmark::State& state, const WinogradCase& shape, bool input) {
  Setup setup(shape);
  WinogradKernels kernels = setup.kernels;
  kernels.multiply = no_multiply;
  if (input) {
    kernels.output = no_output;
  } else {
    kernels.input = no_input;
  }
  for (auto _ : state) setup.run(kernels);
  const double values = static_cast<double>(setup.tiles) * (input ? shape.channels : shape.outputs);
  state.counters["GB/s"] =
      benchmark::Counter(values * 36 * sizeof(float) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["s_per_channel"] =
      benchmark::Counter(values, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.SetLabel(simd_name());
}

void direct(benchmark::State& state, const WinogradCase& shape) {
  Setup setup(shape);
  const GemmKernels& gemm = gemm_kernels();
  const GemmLayout layout = gemm.layout(9 * shape.channels, shape.outputs);
  const Floats weights = floats(layout.floats);
  GemmWeights filter;
  filter.data = setup.filter.get();
  filter.depth_stride = 1;
  filter.column_stride = 9 * shape.channels;
  gemm.pack(layout, filter, weights.get());
  const int32_t rows = std::clamp(48 / shape.width, 1, shape.height);  // of the image in one product
  const ptrdiff_t padded_row = static_cast<ptrdiff_t>((shape.width + 3) / 4 * 4 + 2) * shape.channels;
  std::vector<const float*> a(static_cast<size_t>(3 * rows * shape.width));
  std::vector<float*> c(static_cast<size_t>(rows * shape.width));
  for (auto _ : state) {
    for (int32_t y = 0; y < shape.height; y += rows) {
      GemmCall call;
      call.rows = std::min(rows, shape.height - y) * shape.width;
      for (int32_t i = 0; i < call.rows; ++i) {
        const int32_t row = y + i / shape.width;
        const int32_t x = i % shape.width;
        for (int32_t s = 0; s < 3; ++s) {
          a[static_cast<size_t>(s * call.rows + i)] = setup.padded.get() + (row + s) * padded_row + x * shape.channels;
        }
        c[static_cast<size_t>(i)] = setup.result.get() + static_cast<ptrdiff_t>(row * shape.width + x) * shape.outputs;
      }
      call.a = a.data();
      call.segments = 3;
      call.segment_length = 3 * shape.channels;
      call.layout = &layout;
      call.weights = weights.get();
      call.last_panel = static_cast<int32_t>(layout.panels.size());
      call.c = c.data();
      call.epilogue.min = 0;
      gemm.run(call);
    }
  }
  setup.report(state, setup.plain_flops());
}

void pack(benchmark::State& state, const WinogradCase& shape) {
  Setup setup(shape);
  for (auto _ : state) setup.kernels.pack(setup.layout, setup.filter.get(), false, setup.weights.get());
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(setup.layout.floats) * sizeof(float) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  for (const WinogradCase& shape : kWinogradCases) {
    if (!shape.measured) continue;
    const std::string name = "/" + std::to_string(shape.channels) + "x" + std::to_string(shape.outputs) + "/" +
                             std::to_string(shape.height) + "x" + std::to_string(shape.width);
    const auto add = [&](const char* what, auto f) {
      benchmark::RegisterBenchmark((what + name).c_str(), f)->Unit(benchmark::kMicrosecond);
    };
    add("direct", [shape](benchmark::State& state) { direct(state, shape); });
    add("winograd", [shape](benchmark::State& state) { whole(state, shape); });
    add("products", [shape](benchmark::State& state) { products(state, shape); });
    add("input", [shape](benchmark::State& state) { transform(state, shape, true); });
    add("output", [shape](benchmark::State& state) { transform(state, shape, false); });
    add("pack", [shape](benchmark::State& state) { pack(state, shape); });
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
}  // namespace litefuse
