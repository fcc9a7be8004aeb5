// Pooling and resizing of a row of output, again and again: inputs come from the first or second level cache, as those
// of a strip do. Counters: GB/s of pixels read once and written once, and their share of the bandwidth of the second
// level cache given by LITEFUSE_L2_GBPS (80 is that of a Zen 3 core at 3.2 GHz).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/simd/simd.h"
#include "kernels/simd/window.h"
#include "kernels/simd/window_cases.h"

namespace litefuse {
namespace {

double l2_bandwidth() {
  const char* text = std::getenv("LITEFUSE_L2_GBPS");
  return text != nullptr ? std::atof(text) : 80.0;
}

void report(benchmark::State& state, int64_t floats) {
  using benchmark::Counter;
  const double gigabytes = static_cast<double>(floats) * sizeof(float) * 1e-9;
  state.counters["GB/s"] = Counter(gigabytes, Counter::kIsIterationInvariantRate);
  state.counters["L2"] = Counter(gigabytes / l2_bandwidth(), Counter::kIsIterationInvariantRate);
  state.SetLabel(simd_name());
}

using Pool = void (*WindowKernels::*)(const PoolRow& row);

void measure_pool(benchmark::State& state, const PoolCase& c, Pool pool) {
  const auto line = static_cast<size_t>(c.columns) * static_cast<size_t>(c.channels);
  const std::vector<float> in(line * static_cast<size_t>(c.height), 0.25f);
  std::vector<float> out(static_cast<size_t>(c.outputs) * static_cast<size_t>(c.channels));
  std::vector<const float*> rows;
  for (int32_t y = 0; y < c.height; ++y) rows.push_back(in.data() + line * static_cast<size_t>(y));
  PoolRow row;
  row.rows = rows.data();
  row.height = c.height;
  row.width = c.width;
  row.stride = c.stride;
  row.left = c.left;
  row.columns = c.columns;
  row.channels = c.channels;
  row.pixel = c.channels;
  row.outputs = c.outputs;
  row.out = out.data();
  row.out_pixel = c.channels;
  row.min = -1;
  row.max = 1;
  const WindowKernels& kernels = window_kernels();
  for (auto _ : state) {
    (kernels.*pool)(row);
    benchmark::ClobberMemory();
  }
  report(state, static_cast<int64_t>(in.size() + out.size()));
}

void measure_resize(benchmark::State& state, const ResizeCase& c, bool bilinear) {
  const std::vector<float> in(2 * static_cast<size_t>(c.columns) * static_cast<size_t>(c.channels), 0.25f);
  std::vector<float> out(static_cast<size_t>(c.outputs) * static_cast<size_t>(c.channels));
  std::vector<Sample> columns;
  for (int32_t i = 0; i < c.outputs; ++i) {
    const int32_t first = i * c.columns / c.outputs;
    columns.push_back({first, std::min(first + 1, c.columns - 1), i % 2 == 0 ? 0.25f : 0.75f});
  }
  ResizeRow row;
  row.top = in.data();
  row.bottom = in.data() + static_cast<ptrdiff_t>(in.size() / 2);
  row.weight = 0.25f;
  row.columns = columns.data();
  row.channels = c.channels;
  row.pixel = c.channels;
  row.outputs = c.outputs;
  row.out = out.data();
  row.out_pixel = c.channels;
  const WindowKernels& kernels = window_kernels();
  for (auto _ : state) {
    (bilinear ? kernels.bilinear : kernels.nearest)(row);
    benchmark::ClobberMemory();
  }
  report(state, static_cast<int64_t>((bilinear ? in.size() : in.size() / 2) + out.size()));
}

void register_all() {
  for (const PoolCase& c : kPoolCases) {
    if (!c.measured) continue;
    for (const bool largest : {true, false}) {
      const std::string name = std::string(largest ? "max_pool/" : "average_pool/") + std::to_string(c.height) + "x" +
                               std::to_string(c.width) + "s" + std::to_string(c.stride) +
                               "/W:" + std::to_string(c.outputs) + "/C:" + std::to_string(c.channels);
      const Pool pool = largest ? &WindowKernels::max_pool : &WindowKernels::average_pool;
      benchmark::RegisterBenchmark(name.c_str(), [&c, pool](benchmark::State& state) { measure_pool(state, c, pool); });
    }
  }
  for (const ResizeCase& c : kResizeCases) {
    if (!c.measured) continue;
    for (const bool bilinear : {true, false}) {
      const std::string name = std::string(bilinear ? "bilinear/" : "nearest/") + std::to_string(c.columns) + "to" +
                               std::to_string(c.outputs) + "/C:" + std::to_string(c.channels);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [&c, bilinear](benchmark::State& state) { measure_resize(state, c, bilinear); });
    }
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
}  // namespace litefuse
