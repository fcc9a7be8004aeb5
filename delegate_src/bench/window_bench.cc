// Pooling and resizing of a row of output, again and again: inputs come from the first or second level cache, as those
// of a strip do. Elements are those of pixels read once and written once.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/roofline.h"
#include "bench/support.h"
#include "kernels/simd/window.h"
#include "kernels/simd/window_cases.h"

namespace litefuse {
namespace {

Work work_of(size_t floats) {
  Work work = Work::within(static_cast<double>(floats * sizeof(float)));
  work.elements = static_cast<double>(floats);
  return work;
}

using Pool = void (*WindowKernels::*)(const PoolRow& row);

void measure_pool(benchmark::State& state, const PoolCase& c, Pool pool) {
  const auto line = static_cast<size_t>(c.columns) * static_cast<size_t>(c.channels);
  const size_t inputs = line * static_cast<size_t>(c.height);
  const size_t outputs = static_cast<size_t>(c.outputs) * static_cast<size_t>(c.channels);
  const Floats in(inputs);
  Floats out(outputs, 1);
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
  measure(state, work_of(inputs + outputs), [&] { (kernels.*pool)(row); });
}

void measure_resize(benchmark::State& state, const ResizeCase& c, bool bilinear) {
  const size_t line = static_cast<size_t>(c.columns) * static_cast<size_t>(c.channels);
  const size_t outputs = static_cast<size_t>(c.outputs) * static_cast<size_t>(c.channels);
  const Floats in(2 * line);
  Floats out(outputs, 1);
  std::vector<Sample> columns;
  for (int32_t i = 0; i < c.outputs; ++i) {
    const int32_t first = i * c.columns / c.outputs;
    columns.push_back({first, std::min(first + 1, c.columns - 1), i % 2 == 0 ? 0.25f : 0.75f});
  }
  ResizeRow row;
  row.top = in.data();
  row.bottom = in.data() + line;
  row.weight = 0.25f;
  row.columns = columns.data();
  row.channels = c.channels;
  row.pixel = c.channels;
  row.outputs = c.outputs;
  row.out = out.data();
  row.out_pixel = c.channels;
  const WindowKernels& kernels = window_kernels();
  measure(state, work_of((bilinear ? 2 : 1) * line + outputs),
          [&] { (bilinear ? kernels.bilinear : kernels.nearest)(row); });
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
