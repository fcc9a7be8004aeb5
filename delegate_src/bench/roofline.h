// What this machine can do at most, measured once at the start, and how near to that a kernel comes.
//
// Time at the roofline is the longest of what the multiply-adds take at their peak, and of what each cache takes to
// hand over the bytes that come from it or from beyond it. It is a bound: what is loaded twice, and all arithmetic but
// multiply-adds, is not in it. Others use the third level cache and memory at the same time, so that what comes from
// there may be faster later than it was at the start.
#pragma once

#include <benchmark/benchmark.h>

#include <ctime>

namespace litefuse {

// Where data lie before a kernel reads them, and after it has written them.
enum Level { kL1, kL2, kL3, kMemory };
constexpr int kLevels = 4;

struct Roofline {
  double flops = 0;            // per second: fused multiply-adds of registers, each counted as two
  double bytes[kLevels] = {};  // per second: the better of reading, and of adding two vectors and writing a third one
};
const Roofline& roofline();

// The first cache that is as large as what is used again and again.
Level level_of(double bytes);

// More bytes than any cache holds.
size_t beyond_caches();

// What a call of a kernel has to do. Each operand counts once, however often it is loaded.
struct Work {
  double flops = 0;     // of multiply-adds; of nothing else, as others run at other speeds
  double elements = 0;  // where multiply-adds are not what is done
  double bytes[kLevels] = {};

  // All of `bytes` stay in the first cache that has room for them.
  static Work within(double bytes) { return Work().add(level_of(bytes), bytes); }
  Work& add(Level level, double count) {
    bytes[level] += count;
    return *this;
  }
};

// Sets the counters, for a call that took `seconds`.
void report(benchmark::State& state, const Work& work, double seconds);

// The processor's time, so that others on this machine count less.
inline double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Measures `f`, which does `work`.
template <typename F>
void measure(benchmark::State& state, const Work& work, F f) {
  const double begin = processor_seconds();
  for (auto _ : state) {
    f();
    benchmark::ClobberMemory();
  }
  const double seconds = processor_seconds() - begin;
  report(state, work, seconds / static_cast<double>(state.iterations()));
}

}  // namespace litefuse
