// Measures the roofline, with the instruction set that the kernels use.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/roofline_bench.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again.
#include <hwy/highway.h>

#include <utility>

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using U = hn::ScalableTag<uint32_t>;

// Independent sums enough to hide the latency of a multiply-add: 4 cycles on two pipes, on four of some Arm cores; and
// so few that the registers hold them.
constexpr size_t kSums = HWY_ARCH_ARM_A64 || HWY_TARGET == HWY_AVX3 ? 24 : 12;

template <size_t... I>
HWY_INLINE float multiply_adds(size_t rounds, const float* from, std::index_sequence<I...>) {
  const D d;
  V sums[] = {hn::Set(d, from[I])...};
  // Tends to 2, and so neither overflows nor gets denormal.
  const V half = hn::Set(d, from[kSums]), one = hn::Set(d, from[kSums + 1]);
  for (size_t i = 0; i < rounds; ++i) ((sums[I] = hn::MulAdd(sums[I], half, one)), ...);
  V sum = hn::Zero(d);
  ((sum = hn::Add(sum, sums[I])), ...);
  return hn::GetLane(sum);
}

}  // namespace

// Returns how many operations were done; `*sink` keeps the compiler from leaving them out.
double run_multiply_adds(size_t rounds, float* sink) {
  float from[kSums + 2];
  for (size_t i = 0; i < kSums; ++i) from[i] = *sink + static_cast<float>(i);
  from[kSums] = 0.5f;
  from[kSums + 1] = 1;
  *sink = multiply_adds(rounds, from, std::make_index_sequence<kSums>());
  return 2.0 * static_cast<double>(rounds * kSums * hn::Lanes(D()));
}

// Reads four parts of `count` floats side by side, which keeps more lines on their way than one would. `count` is a
// multiple of two vectors. Exclusive or is what takes the fewest cycles on the most pipes.
void run_read(const float* from, size_t count, float* sink) {
  const U u;
  const size_t lanes = hn::Lanes(u);
  const auto* x = reinterpret_cast<const uint32_t*>(from);
  auto s0 = hn::Zero(u), s1 = s0, s2 = s0, s3 = s0;
  for (size_t i = 0; i < count; i += 2 * lanes, x += 2 * lanes) {
    s0 = hn::Xor(s0, hn::Load(u, x));
    s0 = hn::Xor(s0, hn::Load(u, x + lanes));
    s1 = hn::Xor(s1, hn::Load(u, x + count));
    s1 = hn::Xor(s1, hn::Load(u, x + count + lanes));
    s2 = hn::Xor(s2, hn::Load(u, x + 2 * count));
    s2 = hn::Xor(s2, hn::Load(u, x + 2 * count + lanes));
    s3 = hn::Xor(s3, hn::Load(u, x + 3 * count));
    s3 = hn::Xor(s3, hn::Load(u, x + 3 * count + lanes));
  }
  const auto sum = hn::Xor(hn::Xor(s0, s1), hn::Xor(s2, s3));
  *sink = static_cast<float>(hn::GetLane(sum));
}

// Of multiples of four vectors.
void run_add(const float* x, const float* z, size_t count, float* y) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < count; i += 4 * lanes, x += 4 * lanes, z += 4 * lanes, y += 4 * lanes) {
    hn::Store(hn::Add(hn::Load(d, x), hn::Load(d, z)), d, y);
    hn::Store(hn::Add(hn::Load(d, x + lanes), hn::Load(d, z + lanes)), d, y + lanes);
    hn::Store(hn::Add(hn::Load(d, x + 2 * lanes), hn::Load(d, z + 2 * lanes)), d, y + 2 * lanes);
    hn::Store(hn::Add(hn::Load(d, x + 3 * lanes), hn::Load(d, z + 3 * lanes)), d, y + 3 * lanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cstdio>
#include <string>

#include "bench/roofline.h"
#include "bench/support.h"
#include "kernels/simd/simd.h"

namespace litefuse {
HWY_EXPORT(run_multiply_adds);
HWY_EXPORT(run_read);
HWY_EXPORT(run_add);

size_t beyond_caches() { return std::clamp<size_t>(3 * caches().l3, size_t{64} << 20, size_t{512} << 20); }

Level level_of(double bytes) {
  if (bytes <= static_cast<double>(caches().l1)) return kL1;
  if (bytes <= static_cast<double>(caches().l2)) return kL2;
  return bytes <= static_cast<double>(caches().l3) ? kL3 : kMemory;
}

namespace {

// Operations per second of `f`, which returns how many it has done, if that is more than `*best`.
template <typename F>
void take_best(int repetitions, F f, double* best) {
  for (int i = 0; i < repetitions; ++i) {
    const double begin = processor_seconds();
    const double operations = f();
    const double seconds = processor_seconds() - begin;
    if (seconds > 0) *best = std::max(*best, operations / seconds);
  }
}

// What is well within a cache, and too large for the one before.
size_t bytes_within(Level level) {
  const Caches& c = caches();
  if (level == kL1) return c.l1 / 2;
  if (level == kL2) return std::max(c.l2 / 2, std::min(2 * c.l1, c.l2 / 4 * 3));
  if (level == kL3) return std::min(2 * c.l2, c.l3 / 4 * 3);  // others may want most of it
  return beyond_caches();
}

void measure_level(Level level, float* memory, double* best) {
  constexpr size_t kUnit = 4 * 16;  // floats: whole rounds of the widest vectors
  const size_t floats = bytes_within(level) / sizeof(float);
  const size_t quarter = floats / 4 / kUnit * kUnit;
  // Thirds of a cache are no multiples of a page, which would make loads wait for stores.
  const size_t third = floats / 3 / kUnit * kUnit;
  // Long enough for the clock.
  const size_t times = (size_t{1} << 23) / bytes_within(level) + 1;
  const int repetitions = level == kMemory ? 1 : 10;
  float sink = 0;
  const auto read = [&] {
    for (size_t i = 0; i < times; ++i) {
      HWY_DYNAMIC_DISPATCH(run_read)(memory, quarter, &sink);
      benchmark::DoNotOptimize(sink);
    }
    return static_cast<double>(times * 4 * quarter * sizeof(float));
  };
  const auto add = [&] {
    for (size_t i = 0; i < times; ++i) {
      HWY_DYNAMIC_DISPATCH(run_add)(memory, memory + third, third, memory + 2 * third);
    }
    return static_cast<double>(times * 3 * third * sizeof(float));
  };
  take_best(repetitions, read, best);
  // What is written to memory is mostly read before.
  if (level != kMemory) take_best(repetitions, add, best);
}

Roofline measure_roofline() {
  Roofline result;
  float sink = 0;
  Floats memory(beyond_caches() / sizeof(float));
  // By turns, as the clock has to come up, and others may want the third level cache and memory for some time.
  for (int round = 0; round < 6; ++round) {
    const auto multiply_adds = [&] { return HWY_DYNAMIC_DISPATCH(run_multiply_adds)(250000, &sink); };
    take_best(5, multiply_adds, &result.flops);
    for (const Level level : {kMemory, kL3, kL2, kL1}) {
      if (level == kL3 && caches().l3 == 0) continue;
      measure_level(level, memory.data(), &result.bytes[level]);
    }
  }
  benchmark::DoNotOptimize(sink);
  return result;
}

// As part of what is printed before the results.
void describe() {
  const Roofline& r = roofline();
  char text[160];
  int at = std::snprintf(text, sizeof(text), "%.1f GFLOP/s; GB/s:", r.flops * 1e-9);
  constexpr const char* kNames[] = {"L1", "L2", "L3", "memory"};
  for (int level = 0; level < kLevels; ++level) {
    if (r.bytes[level] == 0) continue;
    at += std::snprintf(text + at, sizeof(text) - static_cast<size_t>(at), " %s %.1f", kNames[level],
                        r.bytes[level] * 1e-9);
  }
  benchmark::AddCustomContext("instruction set", simd_name());
  benchmark::AddCustomContext("roofline", text);
}

[[maybe_unused]] const bool described = (describe(), true);

}  // namespace

const Roofline& roofline() {
  static const Roofline measured = measure_roofline();
  return measured;
}

void report(benchmark::State& state, const Work& work, double seconds) {
  if (seconds <= 0) return;
  const Roofline& limit = roofline();
  double least = work.flops / limit.flops;
  double bytes = 0;
  // What comes from beyond a cache goes through it.
  for (int level = kMemory; level >= kL1; --level) {
    bytes += work.bytes[level];
    if (limit.bytes[level] > 0) least = std::max(least, bytes / limit.bytes[level]);
  }
  if (work.flops > 0) state.counters["GFLOP/s"] = work.flops / seconds * 1e-9;
  if (work.elements > 0) state.counters["Gelements/s"] = work.elements / seconds * 1e-9;
  state.counters["GB/s"] = bytes / seconds * 1e-9;
  state.counters["roofline"] = least / seconds;
}

}  // namespace litefuse
#endif  // HWY_ONCE
