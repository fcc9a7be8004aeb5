// Winograd convolutions and their three stages, and the direct convolution by GemmKernels that they compete with. The
// multiply-adds are those that are done; `plain` are GFLOP/s of the plain sum of products, and may exceed the peak.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/roofline.h"
#include "bench/support.h"
#include "kernels/simd/winograd_cases.h"

namespace litefuse {
namespace {

struct Setup {
  WinogradCase shape;
  const WinogradKernels& kernels = winograd_kernels();
  WinogradLayout layout;
  int32_t tiles = 0;
  int32_t batch = 0;
  size_t image = 0;  // floats of the input
  Floats filter{0}, weights{0}, padded{0}, transformed{0}, products{0}, result{0};
  WinogradOutput out;

  explicit Setup(const WinogradCase& of) : shape(of), layout(kernels.layout(of.channels, of.outputs)) {
    const int32_t across = (shape.width + 3) / 4;
    const int32_t down = (shape.height + 3) / 4;
    tiles = across * down;
    // As even a cut as possible.
    const int32_t parts = (tiles - 1) / winograd_tiles(layout, caches().l2) + 1;
    batch = (tiles + parts - 1) / parts;
    const auto channels = static_cast<size_t>(shape.channels);
    const auto outputs = static_cast<size_t>(shape.outputs);
    const auto pixels = static_cast<size_t>(shape.height * shape.width);
    image = pixels * channels;
    filter = Floats(9 * channels * outputs);
    weights = Floats(layout.floats, 1);
    kernels.pack(layout, filter.data(), false, weights.data());
    padded = Floats(static_cast<size_t>((4 * across + 2) * (4 * down + 2)) * channels, 2);
    transformed = Floats(static_cast<size_t>(36 * batch) * channels, 3);
    products = Floats(static_cast<size_t>(36 * batch) * outputs, 4);
    result = Floats(pixels * outputs, 5);
    out.pixel = shape.outputs;
    out.bias = filter.data();
    out.epilogue.min = 0;
  }

  void run(const WinogradKernels& with) {
    winograd_convolution(with, layout, weights.data(), shape, batch, padded.data(), transformed.data(), products.data(),
                         out, result.data(), nullptr);
  }

  // `floats` where they are, if `resident` of them are used again and again.
  static void add(Work* work, double floats, double resident) {
    work->add(level_of(resident * sizeof(float)), floats * sizeof(float));
  }
  void report_plain(benchmark::State& state) const {
    const double plain = 18.0 * shape.channels * shape.outputs * shape.height * shape.width;
    const auto done = state.counters.find("GFLOP/s");
    if (done != state.counters.end()) state.counters["plain"] = done->second.value * plain / product_flops();
    state.counters["tiles"] = batch;
  }
  double product_flops() const { return 72.0 * tiles * shape.channels * shape.outputs; }
};

void no_input(const WinogradRow&, int32_t, float*, int32_t, int32_t) {}
void no_multiply(const WinogradLayout&, const float*, const float*, int32_t, float*, int32_t, int32_t) {}
void no_output(const WinogradLayout&, const float*, int32_t, int32_t, int32_t, const WinogradOutput&) {}

void whole(benchmark::State& state, const WinogradCase& shape) {
  Setup setup(shape);
  // What is between the stages is no operand, but takes room.
  const auto operands = static_cast<double>(setup.image + setup.weights.size() + setup.result.size());
  Work work;
  work.flops = setup.product_flops();
  setup.add(&work, operands, operands + static_cast<double>(setup.transformed.size() + setup.products.size()));
  measure(state, work, [&] { setup.run(setup.kernels); });
  setup.report_plain(state);
}

void products(benchmark::State& state, const WinogradCase& shape) {
  Setup setup(shape);
  WinogradKernels kernels = setup.kernels;
  kernels.input = no_input;
  kernels.output = no_output;
  // Each batch comes from, and goes to, the same memory.
  const auto buffers = static_cast<double>(setup.transformed.size() + setup.products.size());
  const auto weights = static_cast<double>(setup.weights.size());
  Work work;
  work.flops = setup.product_flops();
  setup.add(&work, buffers / setup.batch * setup.tiles, buffers);
  setup.add(&work, weights, weights + buffers);
  measure(state, work, [&] { setup.run(kernels); });
}

void transform(benchmark::State& state, const WinogradCase& shape, bool input) {
  Setup setup(shape);
  WinogradKernels kernels = setup.kernels;
  kernels.multiply = no_multiply;
  if (input) {
    kernels.output = no_output;
  } else {
    kernels.input = no_input;
  }
  const auto buffer = static_cast<double>(input ? setup.transformed.size() : setup.products.size());
  const auto image = static_cast<double>(input ? setup.image : setup.result.size());
  Work work;
  work.elements = buffer / setup.batch * setup.tiles;
  setup.add(&work, work.elements, buffer);
  setup.add(&work, image, image + buffer);
  measure(state, work, [&] { setup.run(kernels); });
}

void direct(benchmark::State& state, const WinogradCase& shape) {
  Setup setup(shape);
  const GemmKernels& gemm = gemm_kernels();
  const GemmLayout layout = gemm.layout(9 * shape.channels, shape.outputs);
  Floats weights(layout.floats, 1);
  GemmWeights filter;
  filter.data = setup.filter.data();
  filter.depth_stride = 1;
  filter.column_stride = 9 * shape.channels;
  gemm.pack(layout, filter, weights.data());
  const int32_t rows = std::clamp(48 / shape.width, 1, shape.height);  // of the image in one product
  const ptrdiff_t padded_row = static_cast<ptrdiff_t>((shape.width + 3) / 4 * 4 + 2) * shape.channels;
  std::vector<const float*> a(static_cast<size_t>(3 * rows * shape.width));
  std::vector<float*> c(static_cast<size_t>(rows * shape.width));
  const auto operands = static_cast<double>(setup.image + weights.size() + setup.result.size());
  Work work;
  work.flops = 18.0 * shape.channels * shape.outputs * shape.height * shape.width;
  setup.add(&work, operands, operands);
  measure(state, work, [&] {
    for (int32_t y = 0; y < shape.height; y += rows) {
      GemmCall call;
      call.rows = std::min(rows, shape.height - y) * shape.width;
      for (int32_t i = 0; i < call.rows; ++i) {
        const int32_t row = y + i / shape.width;
        const int32_t x = i % shape.width;
        for (int32_t s = 0; s < 3; ++s) {
          a[static_cast<size_t>(s * call.rows + i)] = setup.padded.data() + (row + s) * padded_row + x * shape.channels;
        }
        c[static_cast<size_t>(i)] = setup.result.data() + static_cast<ptrdiff_t>(row * shape.width + x) * shape.outputs;
      }
      call.a = a.data();
      call.segments = 3;
      call.segment_length = 3 * shape.channels;
      call.layout = &layout;
      call.weights = weights.data();
      call.last_panel = static_cast<int32_t>(layout.panels.size());
      call.c = c.data();
      call.epilogue.min = 0;
      gemm.run(call);
    }
  });
}

void pack(benchmark::State& state, const WinogradCase& shape) {
  Setup setup(shape);
  const auto floats = static_cast<double>(setup.filter.size() + setup.weights.size());
  Work work;
  work.elements = static_cast<double>(setup.weights.size());
  setup.add(&work, floats, floats);
  measure(state, work, [&] { setup.kernels.pack(setup.layout, setup.filter.data(), false, setup.weights.data()); });
}

void register_all() {
  for (const WinogradCase& shape : kWinogradCases) {
    if (!shape.measured) continue;
    const std::string name = "/" + std::to_string(shape.channels) + "x" + std::to_string(shape.outputs) + "/" +
                             std::to_string(shape.height) + "x" + std::to_string(shape.width);
    const auto add = [&](const char* what, auto f) {
      benchmark::RegisterBenchmark((what + name).c_str(), f)->Unit(benchmark::kMicrosecond);
    };
    add("direct", [shape](benchmark::State& state) { direct(state, shape); });
    add("winograd", [shape](benchmark::State& state) { whole(state, shape); });
    add("products", [shape](benchmark::State& state) { products(state, shape); });
    add("input", [shape](benchmark::State& state) { transform(state, shape, true); });
    add("output", [shape](benchmark::State& state) { transform(state, shape, false); });
    add("pack", [shape](benchmark::State& state) { pack(state, shape); });
  }
}

[[maybe_unused]] const bool registered = (register_all(), true);

}  // namespace
}  // namespace litefuse
