// Speed of turning matrices: bytes read and written per second, and the time as a multiple of that of a plain copy.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/simd/transpose.h"
#include "kernels/simd/transpose_cases.h"

namespace litefuse {
namespace {

double best_copy(const std::vector<float>& from, std::vector<float>* to) {
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < 100; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    std::memcpy(to->data(), from.data(), from.size() * sizeof(float));
    benchmark::DoNotOptimize(to->data());
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count());
  }
  return best;
}

void run_transpose(benchmark::State& state, const TransposeCase& t) {
  const auto size = static_cast<size_t>(t.rows * t.columns);
  std::vector<float> from(size * static_cast<size_t>(t.batch), 1.0f), to(from.size());
  const double copy = best_copy(from, &to);
  const auto begin = std::chrono::steady_clock::now();
  for (auto _ : state) {
    for (size_t i = 0; i < static_cast<size_t>(t.batch); ++i) {
      transpose_kernels().transpose(from.data() + i * size, t.rows, t.columns, t.columns, to.data() + i * size, t.rows);
    }
    benchmark::ClobberMemory();
  }
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["B/s"] = benchmark::Counter(iterations * 2 * sizeof(float) * static_cast<double>(from.size()),
                                             benchmark::Counter::kIsRate);
  state.counters["copies"] = time.count() / iterations / copy;
  state.SetLabel(simd_name());
}

void register_all() {
  for (const TransposeCase& t : kTransposes) {
    benchmark::RegisterBenchmark((std::string("transpose/") + t.name).c_str(), run_transpose, t);
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
}  // namespace litefuse
