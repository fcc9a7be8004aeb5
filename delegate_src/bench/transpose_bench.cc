// Speed of turning matrices.
#include <benchmark/benchmark.h>

#include <string>

#include "bench/roofline.h"
#include "bench/support.h"
#include "kernels/simd/transpose.h"
#include "kernels/simd/transpose_cases.h"

namespace litefuse {
namespace {

void run_transpose(benchmark::State& state, const TransposeCase& t) {
  const auto size = static_cast<size_t>(t.rows * t.columns);
  const size_t count = size * static_cast<size_t>(t.batch);
  const Floats from(count);
  Floats to(count, 1);
  Work work = Work::within(2.0 * static_cast<double>(count) * sizeof(float));
  work.elements = static_cast<double>(count);
  measure(state, work, [&] {
    for (size_t i = 0; i < static_cast<size_t>(t.batch); ++i) {
      transpose_kernels().transpose(from.data() + i * size, t.rows, t.columns, t.columns, to.data() + i * size, t.rows);
    }
  });
}

void register_all() {
  for (const TransposeCase& t : kTransposes) {
    benchmark::RegisterBenchmark((std::string("transpose/") + t.name).c_str(), run_transpose, t);
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
}  // namespace litefuse
