// Speed of the matrix products: weights, A, C and a residual are each counted once. Products of one or two rows are
// bound by the memory that their weights come from.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/roofline.h"
#include "bench/support.h"
#include "kernels/simd/gemm.h"
#include "kernels/simd/gemm_cases.h"

namespace litefuse {
namespace {

class Product {
 public:
  Product(const GemmCase& layer, bool with_residual)
      : depth_(layer.segments * layer.segment_length),
        // The windows of a KxK convolution overlap.
        pixel_(layer.segments > 1 ? layer.segment_length / layer.segments : layer.segment_length),
        row_(static_cast<size_t>(layer.rows) * static_cast<size_t>(pixel_) + static_cast<size_t>(layer.segment_length)),
        layout_(gemm_kernels().layout(depth_, layer.columns)),
        weights_(layout_.floats),
        a_(row_ * static_cast<size_t>(layer.segments), 1),
        c_(static_cast<size_t>(layer.rows) * static_cast<size_t>(layer.columns), 2),
        residual_(with_residual ? static_cast<size_t>(layer.rows) * static_cast<size_t>(layer.columns) : 0, 3) {
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
    const double results = static_cast<double>(layer.rows) * layer.columns;
    work_ = Work::within(sizeof(float) * (static_cast<double>(layout_.floats) +
                                          static_cast<double>(layer.rows) * pixel_ * layer.segments +
                                          results * (with_residual ? 2 : 1)));
    work_.flops = 2 * results * depth_;
  }

  void run() const { gemm_kernels().run(call_); }
  const Work& work() const { return work_; }

 private:
  int32_t depth_, pixel_;
  size_t row_;
  GemmLayout layout_;
  Floats weights_, a_, c_, residual_;
  std::vector<const float*> a_rows_, residual_rows_;
  std::vector<float*> c_rows_;
  GemmCall call_;
  Work work_;
};

void run_product(benchmark::State& state, const GemmCase& layer, bool residual) {
  const Product product(layer, residual);
  measure(state, product.work(), [&] { product.run(); });
}

void run_pack(benchmark::State& state, bool by_column, bool half) {
  const int32_t depth = 576, columns = 160;
  const GemmLayout layout = gemm_kernels().layout(depth, columns);
  const size_t count = static_cast<size_t>(depth) * columns;
  Floats source(count), packed(layout.floats, 1);
  GemmWeights weights;
  weights.data = source.data();
  weights.half = half;
  weights.depth_stride = by_column ? 1 : columns;
  weights.column_stride = by_column ? depth : 1;
  Work work = Work::within(static_cast<double>(count * (half ? 2 : 4) + layout.floats * sizeof(float)));
  work.elements = static_cast<double>(layout.floats);
  measure(state, work, [&] { gemm_kernels().pack(layout, weights, packed.data()); });
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
