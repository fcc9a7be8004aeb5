// How fast the elementwise kernels are, in the first and second level caches. Elements are counted, as divisions and
// the polynomials of transcendental functions are not comparable with multiply-adds, and the roofline is that of
// bandwidth.
#include <benchmark/benchmark.h>

#include <string>

#include "bench/roofline.h"
#include "bench/support.h"
#include "kernels/simd/elementwise.h"
#include "kernels/simd/elementwise_cases.h"

namespace litefuse {
namespace {

// `operands` of which each has as many floats as the result, which is one of them.
Work work_of(size_t count, int operands) {
  Work work = Work::within(static_cast<double>(count) * operands * sizeof(float));
  work.elements = static_cast<double>(count);
  return work;
}

void run_unary(benchmark::State& state, const UnaryCase& c, size_t count) {
  Floats x(count), y(count, 1);
  measure(state, work_of(count, 2), [&] { elementwise_kernels().unary(c.f, c.a, c.b, x.data(), y.data(), count); });
}

void run_binary(benchmark::State& state, const BinaryCase& c, const Block& block, Stretch stretch) {
  const auto count = static_cast<size_t>(block.pixels) * static_cast<size_t>(block.channels);
  Floats x(count), z(count, 1), y(count, 2);
  const BlockOperand first = {x.data(), block.channels, Stretch::kNone};
  const BlockOperand second = {z.data(), stretch == Stretch::kNone ? block.channels : 1, stretch};
  measure(state, work_of(count, stretch == Stretch::kNone ? 3 : 2),
          [&] { elementwise_kernels().binary(c.f, block, first, second, y.data(), block.channels, -1e30f, 1e30f); });
}

void run_scale_shift(benchmark::State& state, const Block& block, bool with_slopes) {
  const auto count = static_cast<size_t>(block.pixels) * static_cast<size_t>(block.channels);
  Floats x(count), s(static_cast<size_t>(block.channels), 1), y(count, 2);
  const BlockOperand operand = {x.data(), block.channels, Stretch::kNone};
  const BlockOperand factors = {s.data(), 0, Stretch::kChannel};
  measure(state, work_of(count, 2), [&] {
    elementwise_kernels().scale_shift(block, operand, factors, factors, y.data(), block.channels, -1.0f, 1.0f,
                                      with_slopes ? s.data() : nullptr);
  });
}

void run_copy(benchmark::State& state, const Block& block, int32_t gap) {
  const auto pixels = static_cast<size_t>(block.pixels);
  const size_t count = pixels * static_cast<size_t>(block.channels);
  const size_t spread = pixels * static_cast<size_t>(block.channels + gap);
  Floats x(count), y(spread, 1);
  Work work;
  work.elements = static_cast<double>(count);
  work.add(level_of(static_cast<double>((count + spread) * sizeof(float))), work.elements * 2 * sizeof(float));
  measure(state, work,
          [&] { elementwise_kernels().copy(block, x.data(), block.channels, y.data(), block.channels + gap); });
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
