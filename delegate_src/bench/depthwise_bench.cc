// Depthwise convolutions of strips of four rows, from the caches as behind another stage, or from
// memory.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/roofline.h"
#include "bench/support.h"
#include "kernels/simd/depthwise.h"
#include "kernels/simd/depthwise_cases.h"

namespace litefuse {
namespace {

// `cold` takes another image each time, of so many that no cache holds them.
void run(benchmark::State& state, const DepthwiseCase& c, const DepthwiseKernels& kernels, bool cold) {
  constexpr int32_t kRows = 4;  // of output: a strip
  const DepthwiseLayout layout = kernels.layout(c.channels, c.height, c.width, c.multiplier);
  const auto taps = static_cast<size_t>(c.height) * static_cast<size_t>(c.width);
  const Floats filter(taps * static_cast<size_t>(c.channels)), bias(static_cast<size_t>(c.channels));
  Floats weights(layout.floats);
  kernels.pack(layout, {filter.data(), false, bias.data()}, weights.data());
  const int32_t inputs = c.channels / c.multiplier;
  const int32_t columns = (c.outputs - 1) * c.stride + (c.width - 1) * c.dilation + 1;
  const int32_t lines = (kRows - 1) * c.stride + (c.height - 1) * c.dilation + 1;
  const ptrdiff_t line = static_cast<ptrdiff_t>(columns) * inputs;
  const auto image = static_cast<size_t>(line * lines);
  const size_t floats = beyond_caches() / sizeof(float);
  const size_t images = cold ? std::max<size_t>(floats / image, 2) : 1;
  // Made once: to fill it takes longer than to measure.
  static const Floats memory(floats);
  const Floats some(cold ? 0 : image, 1);
  const float* const in = cold && images * image <= floats ? memory.data() : some.data();
  const size_t outputs = static_cast<size_t>(c.outputs) * static_cast<size_t>(c.channels * kRows);
  Floats out(outputs, 2);
  // Two lines at a time where they share rows, as the stage does it.
  const bool pairs = c.dilation == 1;
  std::vector<const float*> rows(static_cast<size_t>(c.height + c.stride));
  size_t at = 0;
  // What the strides pass over is not read.
  const double columns_read = c.stride > c.width && c.dilation == 1 ? 1.0 * c.outputs * c.width : columns;
  const double in_bytes = columns_read * lines * inputs * sizeof(float);
  const double hot_bytes = static_cast<double>((outputs + layout.floats) * sizeof(float));
  Work work;
  work.flops = 2.0 * static_cast<double>(taps * outputs);
  work.add(cold ? kMemory : level_of(in_bytes + hot_bytes), in_bytes);
  work.add(level_of(cold ? hot_bytes : in_bytes + hot_bytes), hot_bytes);
  measure(state, work, [&] {
    const float* const first = in + at * image;
    at = at + 1 < images ? at + 1 : 0;
    DepthwiseRow row;
    for (int32_t y = 0; y < kRows; y += row.lines) {
      row.lines = pairs ? 2 : 1;
      for (int32_t ky = 0; ky < c.height + (row.lines - 1) * c.stride; ++ky) {
        rows[static_cast<size_t>(ky)] = first + line * (y * c.stride + ky * c.dilation);
      }
      row.layout = &layout;
      row.weights = weights.data();
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
  });
}

void register_all() {
  for (const DepthwiseCase& c : kDepthwiseCases) {
    if (!c.measured) continue;
    for (const bool cold : {false, true}) {
      const std::string name = "depthwise/" + std::to_string(c.height) + "x" + std::to_string(c.width) + "s" +
                               std::to_string(c.stride) + "d" + std::to_string(c.dilation) + "m" +
                               std::to_string(c.multiplier) + "/W:" + std::to_string(c.outputs) +
                               "/C:" + std::to_string(c.channels) + (cold ? "/cold" : "");
      benchmark::RegisterBenchmark(name.c_str(),
                                   [&c, cold](benchmark::State& state) { run(state, c, depthwise_kernels(), cold); });
    }
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
}  // namespace litefuse
