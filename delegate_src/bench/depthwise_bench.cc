// Depthwise convolutions of strips of four rows, from the second level cache as behind another stage, or from memory.
// Counters: GFLOP/s, the share of the peak of fused multiplications given by LITEFUSE_PEAK_GFLOPS (101 is that of a Zen 3
// core at 3.2 GHz), and the time for each vector of outputs.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/simd/depthwise.h"
#include "kernels/simd/depthwise_cases.h"
#include "kernels/simd/simd.h"

namespace litefuse {
namespace {

double peak_gflops() {
  const char* text = std::getenv("LITEFUSE_PEAK_GFLOPS");
  return text != nullptr ? std::atof(text) : 101.0;
}

// `cold` takes another image each time, of so many that no cache holds them.
void measure(benchmark::State& state, const DepthwiseCase& c, const DepthwiseKernels& kernels, bool cold) {
  constexpr int32_t kRows = 4;  // of output: a strip
  constexpr size_t kColdFloats = size_t{24} << 20;
  const DepthwiseLayout layout = kernels.layout(c.channels, c.height, c.width, c.multiplier);
  const auto taps = static_cast<size_t>(c.height) * static_cast<size_t>(c.width);
  const std::vector<float> filter(taps * static_cast<size_t>(c.channels), 0.01f);
  const std::vector<float> bias(static_cast<size_t>(c.channels), 0.5f);
  auto* weights = static_cast<float*>(std::aligned_alloc(
      kWeightAlignment, (layout.floats * sizeof(float) + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment));
  kernels.pack(layout, {filter.data(), false, bias.data()}, weights);
  const int32_t inputs = c.channels / c.multiplier;
  const int32_t columns = (c.outputs - 1) * c.stride + (c.width - 1) * c.dilation + 1;
  const int32_t lines = (kRows - 1) * c.stride + (c.height - 1) * c.dilation + 1;
  const ptrdiff_t line = static_cast<ptrdiff_t>(columns) * inputs;
  const auto image = static_cast<size_t>(line * lines);
  const size_t images = cold ? std::max<size_t>(kColdFloats / image, 2) : 1;
  const std::vector<float> in(image * images, 0.25f);
  std::vector<float> out(static_cast<size_t>(c.outputs) * static_cast<size_t>(c.channels * kRows));
  // Two lines at a time where they share rows, as the stage does it.
  const bool pairs = c.dilation == 1;
  std::vector<const float*> rows(static_cast<size_t>(c.height + c.stride));
  size_t at = 0;
  for (auto _ : state) {
    const float* const first = in.data() + at * image;
    at = at + 1 < images ? at + 1 : 0;
    DepthwiseRow row;
    for (int32_t y = 0; y < kRows; y += row.lines) {
      row.lines = pairs ? 2 : 1;
      for (int32_t ky = 0; ky < c.height + (row.lines - 1) * c.stride; ++ky) {
        rows[static_cast<size_t>(ky)] = first + line * (y * c.stride + ky * c.dilation);
      }
      row.layout = &layout;
      row.weights = weights;
      row.rows = rows.data();
      row.pixel = inputs;
      row.far = cold;
      row.stride = c.stride;
      row.dilation = c.dilation;
      row.outputs = c.outputs;
      row.out = out.data() + static_cast<ptrdiff_t>(y) * c.outputs * c.channels;
      row.out_pixel = c.channels;
      row.out_line = static_cast<ptrdiff_t>(c.outputs) * c.channels;
      row.min = 0;
      row.max = 6;
      kernels.row(row);
    }
    benchmark::ClobberMemory();
  }
  std::free(weights);
  const double outputs = 1.0 * c.channels * c.outputs * kRows;
  const double flops = 2.0 * static_cast<double>(taps) * outputs;
  using benchmark::Counter;
  state.counters["GFLOP/s"] = Counter(flops * 1e-9, Counter::kIsIterationInvariantRate);
  state.counters["peak"] = Counter(flops * 1e-9 / peak_gflops(), Counter::kIsIterationInvariantRate);
  // Seconds for each vector of outputs.
  state.counters["vector"] = Counter(outputs / layout.lanes, Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.SetLabel(simd_name());
}

void register_all() {
  for (const DepthwiseCase& c : kDepthwiseCases) {
    if (!c.measured) continue;
    for (const bool cold : {false, true}) {
      const std::string name = "depthwise/" + std::to_string(c.height) + "x" + std::to_string(c.width) + "s" +
                               std::to_string(c.stride) + "d" + std::to_string(c.dilation) + "m" +
                               std::to_string(c.multiplier) + "/W:" + std::to_string(c.outputs) +
                               "/C:" + std::to_string(c.channels) + (cold ? "/cold" : "");
      benchmark::RegisterBenchmark(
          name.c_str(), [&c, cold](benchmark::State& state) { measure(state, c, depthwise_kernels(), cold); });
    }
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
}  // namespace litefuse
