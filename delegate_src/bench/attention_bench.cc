// Speed of the softmax of rows of scores. Exponentials are not comparable with multiply-adds, so that elements are
// counted and the roofline is that of bandwidth.
#include <benchmark/benchmark.h>

#include <string>

#include "bench/roofline.h"
#include "bench/support.h"
#include "kernels/simd/attention.h"
#include "kernels/simd/attention_cases.h"
#include "kernels/simd/norm.h"

namespace litefuse {
namespace {

size_t count_of(const AttentionCase& c) { return static_cast<size_t>(c.rows) * static_cast<size_t>(c.channels); }

// Scores, what to add to them if anything, and results.
Work work_of(const AttentionCase& c) {
  const auto count = static_cast<double>(count_of(c));
  Work work = Work::within(count * (c.masked ? 3 : 2) * sizeof(float));
  work.elements = count;
  return work;
}

void run_weights(benchmark::State& state, const AttentionCase& c) {
  const Floats x(count_of(c)), mask(count_of(c), 1);
  Floats y(count_of(c), 2), factors(static_cast<size_t>(c.rows), 3);
  ScoreRows s;
  s.rows = c.rows;
  s.channels = c.channels;
  s.x = x.data();
  s.x_stride = s.mask_stride = s.y_stride = c.channels;
  s.scale = 0.125f;
  if (c.masked) s.mask = mask.data();
  s.y = y.data();
  s.factors = factors.data();
  measure(state, work_of(c), [&] { attention_kernels().weights(s); });
}

// The whole softmax, for comparison.
void run_softmax(benchmark::State& state, const AttentionCase& c) {
  const Floats x(count_of(c));
  Floats y(count_of(c), 1);
  measure(state, work_of(c),
          [&] { norm_kernels().softmax(x.data(), c.rows, c.channels, c.channels, 1.0f, y.data(), c.channels); });
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
