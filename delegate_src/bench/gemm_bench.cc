// Speed of the matrix products. Counters: FLOP/s; bytes of weights and of A and C per second, each counted once; and the
// FLOP/s as a share of the best that a product with all of its operands in the first cache reaches, measured at the
// start, in the same process. Products of one or two rows are bound by the memory that their weights come from.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "kernels/simd/gemm.h"
#include "kernels/simd/gemm_cases.h"

namespace litefuse {
namespace {

// Floats that begin at a multiple of kWeightAlignment.
class Buffer {
 public:
  explicit Buffer(size_t count) : memory_(count + kWeightAlignment / sizeof(float)) {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<float>(i * 7 % 31) / 31.0f - 0.5f;
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    data_ = memory_.data() + (kWeightAlignment - address % kWeightAlignment) % kWeightAlignment / sizeof(float);
  }
  float* data() { return data_; }

 private:
  std::vector<float> memory_;
  float* data_ = nullptr;
};

class Product {
 public:
  Product(const GemmCase& layer, bool with_residual)
      : depth_(layer.segments * layer.segment_length),
        // The windows of a KxK convolution overlap.
        pixel_(layer.segments > 1 ? layer.segment_length / layer.segments : layer.segment_length),
        row_(static_cast<size_t>(layer.rows) * static_cast<size_t>(pixel_) + static_cast<size_t>(layer.segment_length)),
        layout_(gemm_kernels().layout(depth_, layer.columns)),
        weights_(layout_.floats),
        a_(row_ * static_cast<size_t>(layer.segments)),
        c_(static_cast<size_t>(layer.rows) * static_cast<size_t>(layer.columns)),
        residual_(with_residual ? static_cast<size_t>(layer.rows) * static_cast<size_t>(layer.columns) : 0) {
    for (int32_t s = 0; s < layer.segments; ++s) {
      for (int32_t m = 0; m < layer.rows; ++m) {
        a_rows_.push_back(a_.data() + static_cast<size_t>(s) * row_ + static_cast<size_t>(m) * pixel_);
      }
    }
    for (int32_t m = 0; m < layer.rows; ++m) {
      c_rows_.push_back(c_.data() + static_cast<size_t>(m) * static_cast<size_t>(layer.columns));
      residual_rows_.push_back(residual_.data() + static_cast<size_t>(m) * static_cast<size_t>(layer.columns));
    }
    call_.a = a_rows_.data();
    call_.rows = layer.rows;
    call_.segments = layer.segments;
    call_.segment_length = layer.segment_length;
    call_.layout = &layout_;
    call_.weights = weights_.data();
    call_.last_panel = static_cast<int32_t>(layout_.panels.size());
    call_.c = c_rows_.data();
    call_.epilogue.min = 0;
    call_.epilogue.max = 6;
    if (with_residual) call_.epilogue.residual = residual_rows_.data();
    flops_ = 2.0 * layer.rows * depth_ * layer.columns;
    bytes_ = sizeof(float) *
             (static_cast<double>(layout_.floats) + static_cast<double>(layer.rows) * pixel_ * layer.segments +
              static_cast<double>(layer.rows) * layer.columns);
  }

  void run() const { gemm_kernels().run(call_); }
  double flops() const { return flops_; }
  double bytes() const { return bytes_; }

 private:
  int32_t depth_, pixel_;
  size_t row_;
  GemmLayout layout_;
  Buffer weights_, a_, c_, residual_;
  std::vector<const float*> a_rows_, residual_rows_;
  std::vector<float*> c_rows_;
  GemmCall call_;
  double flops_ = 0;
  double bytes_ = 0;
};

double measure_best() {
  const Product product({"best", 24, 1, 64, 48}, false);
  double best = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (int j = 0; j < 10; ++j) product.run();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 10 * product.flops() / time.count());
  }
  return best;
}

void run_product(benchmark::State& state, const GemmCase& layer, bool residual) {
  static const double best = measure_best();
  const Product product(layer, residual);
  const std::clock_t begin = std::clock();
  for (auto _ : state) product.run();
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["FLOP/s"] = benchmark::Counter(iterations * product.flops(), benchmark::Counter::kIsRate);
  state.counters["B/s"] = benchmark::Counter(iterations * product.bytes(), benchmark::Counter::kIsRate);
  if (seconds > 0) state.counters["of_best"] = iterations * product.flops() / seconds / best;
  state.SetLabel(simd_name());
}

void run_pack(benchmark::State& state, bool by_column, bool half) {
  const int32_t depth = 576, columns = 160;
  const GemmLayout layout = gemm_kernels().layout(depth, columns);
  Buffer source(static_cast<size_t>(depth) * columns), packed(layout.floats);
  GemmWeights weights;
  weights.data = source.data();
  weights.half = half;
  weights.depth_stride = by_column ? 1 : columns;
  weights.column_stride = by_column ? depth : 1;
  for (auto _ : state) gemm_kernels().pack(layout, weights, packed.data());
  state.counters["B/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(layout.floats * sizeof(float)),
                         benchmark::Counter::kIsRate);
  state.SetLabel(simd_name());
}

void register_all() {
  for (const GemmCase& layer : kGemmLayers) {
    benchmark::RegisterBenchmark((std::string("gemm/") + layer.name).c_str(), run_product, layer, false);
  }
  for (const GemmCase& layer : kGemmLayers) {
    if (layer.rows < 48 || layer.segments > 1 || layer.columns > layer.segment_length) continue;
    benchmark::RegisterBenchmark((std::string("gemm+residual/") + layer.name).c_str(), run_product, layer, true);
  }
  for (const bool by_column : {true, false}) {
    for (const bool half : {false, true}) {
      const std::string name = std::string("pack/") + (by_column ? "by_column" : "by_row") + (half ? "/half" : "");
      benchmark::RegisterBenchmark(name.c_str(), run_pack, by_column, half);
    }
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
}  // namespace litefuse
