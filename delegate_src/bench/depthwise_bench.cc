// Depthwise convolutions of whole images by rows, from the second level cache as in a strip. Counters: GFLOP/s, and the
// share of the peak of fused multiplications given by LITEFUSE_PEAK_GFLOPS (101 is that of a Zen 3 core at 3.2 GHz).
#include <benchmark/benchmark.h>

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

void measure(benchmark::State& state, const DepthwiseCase& c, const DepthwiseKernels& kernels) {
  constexpr int32_t kRows = 4;  // of output: a strip
  const DepthwiseLayout layout = kernels.layout(c.channels, c.height, c.width);
  const auto taps = static_cast<size_t>(c.height) * static_cast<size_t>(c.width);
  const std::vector<float> filter(taps * static_cast<size_t>(c.channels), 0.01f);
  const std::vector<float> bias(static_cast<size_t>(c.channels), 0.5f);
  auto* weights = static_cast<float*>(std::aligned_alloc(
      kWeightAlignment, (layout.floats * sizeof(float) + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment));
  kernels.pack(layout, {filter.data(), false, bias.data()}, weights);
  const int32_t columns = (c.outputs - 1) * c.stride + (c.width - 1) * c.dilation + 1;
  const int32_t lines = (kRows - 1) * c.stride + (c.height - 1) * c.dilation + 1;
  const ptrdiff_t line = static_cast<ptrdiff_t>(columns) * c.channels;
  const std::vector<float> in(static_cast<size_t>(line * lines), 0.25f);
  std::vector<float> out(static_cast<size_t>(c.outputs) * static_cast<size_t>(c.channels * kRows));
  std::vector<const float*> rows(static_cast<size_t>(c.height));
  for (auto _ : state) {
    for (int32_t y = 0; y < kRows; ++y) {
      for (int32_t ky = 0; ky < c.height; ++ky) {
        rows[static_cast<size_t>(ky)] = in.data() + line * (y * c.stride + ky * c.dilation);
      }
      DepthwiseRow row;
      row.layout = &layout;
      row.weights = weights;
      row.rows = rows.data();
      row.pixel = c.channels;
      row.stride = c.stride;
      row.dilation = c.dilation;
      row.outputs = c.outputs;
      row.out = out.data() + static_cast<ptrdiff_t>(y) * c.outputs * c.channels;
      row.out_pixel = c.channels;
      row.min = 0;
      row.max = 6;
      kernels.row(row);
    }
    benchmark::ClobberMemory();
  }
  std::free(weights);
  const double flops = 2.0 * static_cast<double>(taps) * c.channels * c.outputs * kRows;
  using benchmark::Counter;
  state.counters["GFLOP/s"] = Counter(flops * 1e-9, Counter::kIsIterationInvariantRate);
  state.counters["peak"] = Counter(flops * 1e-9 / peak_gflops(), Counter::kIsIterationInvariantRate);
  state.SetLabel(simd_name());
}

void register_all() {
  for (const DepthwiseCase& c : kDepthwiseCases) {
    if (!c.measured) continue;
    const std::string name = "depthwise/" + std::to_string(c.height) + "x" + std::to_string(c.width) + "s" +
                             std::to_string(c.stride) + "d" + std::to_string(c.dilation) +
                             "/W:" + std::to_string(c.outputs) + "/C:" + std::to_string(c.channels);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [&c](benchmark::State& state) { measure(state, c, depthwise_kernels()); });
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
}  // namespace litefuse
