// How fast the elementwise kernels are: bytes read and written per second, and cycles that a core at 3.2 GHz would take
// for 8 floats. The share is that of 80 GB/s, what the L2 cache of one Zen 3 core gives.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "kernels/simd/elementwise.h"
#include "kernels/simd/elementwise_cases.h"

namespace litefuse {
namespace {

constexpr double kBandwidth = 80e9;
constexpr double kClock = 3.2e9;

// Floats of which those of one vector do not have the same place in a page as those of another: loads would wait for
// stores to what only looks like the same address.
class Floats {
 public:
  explicit Floats(size_t count, int number) : offset_(static_cast<size_t>(number) * 336), memory_(count + 2048) {
    for (size_t i = 0; i < memory_.size(); ++i) {
      memory_[i] = static_cast<float>(static_cast<int32_t>(i * 7919 % 2048) - 1024) / 170.0f + 0.003f;
    }
  }
  float* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + ((4096 - address % 4096) % 4096) / sizeof(float) + offset_;
  }

 private:
  size_t offset_;
  std::vector<float> memory_;
};

void report(benchmark::State& state, size_t floats, size_t per_result) {
  const auto count = static_cast<double>(floats) * static_cast<double>(state.iterations());
  const double bytes = count * static_cast<double>(per_result) * sizeof(float);
  state.counters["bytes"] = benchmark::Counter(bytes, benchmark::Counter::kIsRate);
  state.counters["share"] = benchmark::Counter(bytes / kBandwidth, benchmark::Counter::kIsRate);
  state.counters["cycles_8"] =
      benchmark::Counter(count / kClock / 8.0, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.SetLabel(simd_name());
}

void run_unary(benchmark::State& state, const UnaryCase& c, size_t count) {
  Floats x(count, 0), y(count, 1);
  for (auto _ : state) {
    elementwise_kernels().unary(c.f, c.a, c.b, x.data(), y.data(), count);
    benchmark::ClobberMemory();
  }
  report(state, count, 2);
}

void run_binary(benchmark::State& state, const BinaryCase& c, const Block& block, Stretch stretch) {
  const auto count = static_cast<size_t>(block.pixels) * static_cast<size_t>(block.channels);
  Floats x(count, 0), z(count, 1), y(count, 2);
  const BlockOperand first = {x.data(), block.channels, Stretch::kNone};
  const BlockOperand second = {z.data(), stretch == Stretch::kNone ? block.channels : 1, stretch};
  for (auto _ : state) {
    elementwise_kernels().binary(c.f, block, first, second, y.data(), block.channels, -1e30f, 1e30f);
    benchmark::ClobberMemory();
  }
  report(state, count, stretch == Stretch::kNone ? 3 : 2);
}

void run_scale_shift(benchmark::State& state, const Block& block, bool with_slopes) {
  const auto count = static_cast<size_t>(block.pixels) * static_cast<size_t>(block.channels);
  Floats x(count, 0), s(static_cast<size_t>(block.channels), 1), y(count, 2);
  const BlockOperand operand = {x.data(), block.channels, Stretch::kNone};
  const BlockOperand factors = {s.data(), 0, Stretch::kChannel};
  for (auto _ : state) {
    elementwise_kernels().scale_shift(block, operand, factors, factors, y.data(), block.channels, -1.0f, 1.0f,
                                      with_slopes ? s.data() : nullptr);
    benchmark::ClobberMemory();
  }
  report(state, count, 2);
}

void run_copy(benchmark::State& state, const Block& block, int32_t gap) {
  const auto pixels = static_cast<size_t>(block.pixels);
  Floats x(pixels * static_cast<size_t>(block.channels), 0), y(pixels * static_cast<size_t>(block.channels + gap), 1);
  for (auto _ : state) {
    elementwise_kernels().copy(block, x.data(), block.channels, y.data(), block.channels + gap);
    benchmark::ClobberMemory();
  }
  report(state, pixels * static_cast<size_t>(block.channels), 2);
}

std::string name_of(const Block& block) { return std::to_string(block.pixels) + "x" + std::to_string(block.channels); }

void register_all() {
  // In L1 and in L2.
  for (const size_t count : {size_t{2048}, size_t{32768}}) {
    for (const UnaryCase& c : kUnaryCases) {
      benchmark::RegisterBenchmark(("unary/" + std::string(c.name) + "/" + std::to_string(count)).c_str(),
                                   [&c, count](benchmark::State& state) { run_unary(state, c, count); });
    }
  }
  constexpr const char* kNames[] = {"none", "channel", "pixel", "scalar"};
  for (const BinaryCase& c : kBinaryCases) {
    for (const Stretch stretch : kStretches) {
      const Block block = {112, 96};
      const std::string name =
          "binary/" + std::string(c.name) + "/" + kNames[static_cast<int>(stretch)] + "/" + name_of(block);
      benchmark::RegisterBenchmark(
          name.c_str(), [&c, block, stretch](benchmark::State& state) { run_binary(state, c, block, stretch); });
    }
  }
  for (const Block& block : kBlocks) {
    if (block.pixels * block.channels < 512) continue;
    for (const Stretch stretch : {Stretch::kChannel, Stretch::kPixel}) {
      const std::string name = "binary/mul/" + std::string(kNames[static_cast<int>(stretch)]) + "/" + name_of(block);
      benchmark::RegisterBenchmark(name.c_str(), [&block, stretch](benchmark::State& state) {
        run_binary(state, kBinaryCases[2], block, stretch);
      });
    }
  }
  for (const Block block : {Block{112, 16}, Block{112, 96}, Block{4000, 3}, Block{14, 576}}) {
    for (const bool with_slopes : {false, true}) {
      const std::string name = std::string("scale_shift/") + (with_slopes ? "prelu/" : "clamp/") + name_of(block);
      benchmark::RegisterBenchmark(
          name.c_str(), [block, with_slopes](benchmark::State& state) { run_scale_shift(state, block, with_slopes); });
    }
    for (const int32_t gap : {0, 24}) {
      const std::string name = std::string("copy/") + (gap == 0 ? "dense/" : "gaps/") + name_of(block);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [block, gap](benchmark::State& state) { run_copy(state, block, gap); });
    }
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
}  // namespace litefuse
