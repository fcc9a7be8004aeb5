// Speed of the softmax of rows of scores: cycles are counted for eight floats, at the nominal 3.2 GHz of the machine that
// the project measures on; time is what counts elsewhere.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "kernels/simd/attention.h"
#include "kernels/simd/attention_cases.h"
#include "kernels/simd/norm.h"

namespace litefuse {
namespace {

constexpr double kGigahertz = 3.2;

std::vector<float> scores_of(const AttentionCase& c) {
  std::vector<float> x(static_cast<size_t>(c.rows) * static_cast<size_t>(c.channels));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 1000) / 200.0f;
  return x;
}

void report(benchmark::State& state, const AttentionCase& c) {
  const double floats = static_cast<double>(c.rows) * c.channels * static_cast<double>(state.iterations());
  state.counters["cycles/8"] =
      benchmark::Counter(floats / 8 / (kGigahertz * 1e9), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.SetLabel(simd_name());
}

void run_weights(benchmark::State& state, const AttentionCase& c) {
  const std::vector<float> x = scores_of(c), mask = scores_of(c);
  std::vector<float> y(x.size()), factors(static_cast<size_t>(c.rows));
  ScoreRows s;
  s.rows = c.rows;
  s.channels = c.channels;
  s.x = x.data();
  s.x_stride = s.mask_stride = s.y_stride = c.channels;
  s.scale = 0.125f;
  if (c.masked) s.mask = mask.data();
  s.y = y.data();
  s.factors = factors.data();
  for (auto _ : state) {
    attention_kernels().weights(s);
    benchmark::ClobberMemory();
  }
  report(state, c);
}

// The whole softmax, for comparison.
void run_softmax(benchmark::State& state, const AttentionCase& c) {
  const std::vector<float> x = scores_of(c);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    norm_kernels().softmax(x.data(), c.rows, c.channels, c.channels, 1.0f, y.data(), c.channels);
    benchmark::ClobberMemory();
  }
  report(state, c);
}

void register_all() {
  for (const AttentionCase& c : kAttentions) {
    benchmark::RegisterBenchmark((std::string("weights/") + c.name).c_str(), run_weights, c);
    if (!c.masked) benchmark::RegisterBenchmark((std::string("softmax/") + c.name).c_str(), run_softmax, c);
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
}  // namespace litefuse
