// The stage of DEPTHWISE_CONV_2D.
#include "kernels/simd/depthwise.h"

#include <algorithm>
#include <cstring>

#include "region/stages/stages.h"
#include "region/weights.h"

namespace litefuse {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

class Depthwise final : public Stage {
 public:
  explicit Depthwise(const DepthwiseStageParams& params) : p_(params), kernels_(depthwise_kernels()) {
    layout_ = kernels_.layout(p_.channels, p_.y.filter, p_.x.filter, p_.multiplier);
  }

  bool pack() {
    DepthwiseWeights weights;
    weights.data = p_.filter.data;
    weights.half = p_.filter.half;
    weights.bias = p_.filter.bias;
    const int64_t taps = int64_t{p_.y.filter} * p_.x.filter;
    std::vector<char> turned;
    if (p_.filter.by_channel) {
      const size_t size = weights.half ? 2 : 4;
      turned.resize(at(taps * p_.channels) * size);
      for (int64_t c = 0; c < p_.channels; ++c) {
        for (int64_t t = 0; t < taps; ++t) {
          std::memcpy(&turned[at(t * p_.channels + c) * size],
                      static_cast<const char*>(weights.data) + at(c * taps + t) * size, size);
        }
      }
      weights.data = turned.data();
    }
    WeightsKey key("depthwise");
    key.add(layout_.lanes).add(p_.channels).add(p_.multiplier).add(p_.y.filter).add(p_.x.filter).add(weights.half);
    key.add(weights.data, at(taps * p_.channels) * (weights.half ? 2 : 4));
    key.add(weights.bias, at(p_.channels) * sizeof(float));
    weights_ = packed_weights(key, layout_.floats, [&](float* to) { kernels_.pack(layout_, weights, to); });
    return weights_ != nullptr;
  }

  Span needs(size_t, Span rows) const override {
    return Span{static_cast<int32_t>(p_.y.origin(rows.begin)),
                static_cast<int32_t>(p_.y.origin(rows.end - 1) + int64_t{p_.y.filter - 1} * p_.y.dilation + 1)};
  }
  int32_t wants_left(size_t) const override { return p_.x.pad_before; }
  int32_t wants_right(size_t) const override {
    const int64_t last = p_.x.origin(p_.x.out - 1) + int64_t{p_.x.filter - 1} * p_.x.dilation;
    return static_cast<int32_t>(std::max<int64_t>(last + 1 - p_.x.in, 0));
  }
  // Pixels at the edge are computed one by one: with a large window they would take more time than a copy.
  bool needs_padding() const override { return p_.x.filter > 3 && p_.x.stride == 1; }
  bool reads_zeros() const override { return true; }
  size_t weight_bytes() const override { return layout_.floats * sizeof(float); }
  double work(const Image& output) const override {
    return static_cast<double>(output.row()) * p_.y.filter * p_.x.filter * 2;
  }
  size_t scratch_bytes(int32_t) const override {
    return (at(p_.y.filter) * at(2 + p_.x.filter) + at(p_.y.stride)) * sizeof(float*);
  }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void* scratch) const override {
    const Rows &in = inputs[0], &out = outputs[0];
    rows = share.of(rows);
    auto** const taps = static_cast<const float**>(scratch);
    auto** const lines = taps + at(p_.y.filter) * at(p_.x.filter);
    // Outputs all of whose taps can be read, in the image or in the zeros beside it.
    const int64_t before = std::max(p_.x.pad_before - in.left, 0);
    const auto begin = static_cast<int32_t>(std::min<int64_t>((before + p_.x.stride - 1) / p_.x.stride, p_.x.out));
    const int64_t reach = int64_t{p_.x.filter - 1} * p_.x.dilation;
    const int64_t room = int64_t{p_.x.in} + in.right - 1 - reach + p_.x.pad_before;
    const auto end = static_cast<int32_t>(
        std::max<int64_t>(begin, room < 0 ? 0 : std::min<int64_t>(room / p_.x.stride + 1, p_.x.out)));
    DepthwiseRow row;
    row.layout = &layout_;
    row.weights = weights_->data();
    row.rows = lines;
    row.pixel = in.pixel;
    row.far = in.far;
    row.stride = p_.x.stride;
    row.dilation = p_.x.dilation;
    row.outputs = end - begin;
    row.out_pixel = out.pixel;
    row.min = p_.epilogue.min;
    row.max = p_.epilogue.max;
    row.slopes = p_.epilogue.slopes;
    // Two rows of output share rows of the input where each has its taps in rows next to one another.
    const bool pairs = p_.y.dilation == 1 && p_.x.dilation == 1 && p_.y.stride == p_.x.stride;
    for (int32_t y = rows.begin; y < rows.end; y += row.lines) {
      const auto top = static_cast<int32_t>(p_.y.origin(y));
      row.lines = pairs && y + 1 < rows.end ? 2 : 1;
      if (end > begin) {
        const int32_t read = p_.y.filter + (row.lines - 1) * p_.y.stride;
        for (int32_t fy = 0; fy < read; ++fy) {
          lines[fy] = in.padded(top + fy * p_.y.dilation) + p_.x.origin(begin) * in.pixel;
        }
        row.out = out.at(y) + begin * out.pixel;
        if (row.lines == 2) row.out_line = out.at(y + 1) - out.at(y);
        run_phases(row, lines + read);
      }
      for (int32_t line = 0; line < row.lines; ++line) {
        const int32_t first = top + line * p_.y.stride;
        float* const to = out.at(y + line);
        for (int32_t x = 0; x < begin; ++x) edge(in, first, x, taps, to + x * out.pixel);
        for (int32_t x = end; x < p_.x.out; ++x) edge(in, first, x, taps, to + x * out.pixel);
      }
    }
  }

 private:
  // With dilation and no stride, outputs that lie a dilation apart are those of a plain convolution over pixels that do.
  void run_phases(const DepthwiseRow& all, const float** lines) const {
    if (all.dilation == 1 || all.stride != 1) return kernels_.row(all);
    for (int32_t phase = 0; phase < std::min(all.dilation, all.outputs); ++phase) {
      DepthwiseRow row = all;
      for (int32_t fy = 0; fy < p_.y.filter; ++fy) lines[fy] = all.rows[fy] + phase * all.pixel;
      row.rows = lines;
      row.pixel = all.pixel * all.dilation;
      row.dilation = 1;
      row.outputs = (all.outputs - phase + all.dilation - 1) / all.dilation;
      row.out = all.out + phase * all.out_pixel;
      row.out_pixel = all.out_pixel * all.dilation;
      kernels_.row(row);
    }
  }

  void edge(const Rows& in, int32_t top, int32_t x, const float** taps, float* to) const {
    size_t i = 0;
    for (int32_t fy = 0; fy < p_.y.filter; ++fy) {
      const int32_t row = top + fy * p_.y.dilation;
      const bool inside = row >= 0 && row < in.height;
      for (int32_t fx = 0; fx < p_.x.filter; ++fx) {
        const int64_t column = p_.x.origin(x) + int64_t{fx} * p_.x.dilation;
        taps[i++] = inside && column >= 0 && column < p_.x.in ? in.at(row) + column * in.pixel : nullptr;
      }
    }
    DepthwisePixel pixel;
    pixel.layout = &layout_;
    pixel.weights = weights_->data();
    pixel.taps = taps;
    pixel.out = to;
    pixel.min = p_.epilogue.min;
    pixel.max = p_.epilogue.max;
    pixel.slopes = p_.epilogue.slopes;
    kernels_.pixel(pixel);
  }

  DepthwiseStageParams p_;
  const DepthwiseKernels& kernels_;
  DepthwiseLayout layout_;
  std::shared_ptr<const Weights> weights_;
};

}  // namespace

std::unique_ptr<Stage> make_depthwise_stage(const DepthwiseStageParams& params) {
  auto stage = std::make_unique<Depthwise>(params);
  if (!stage->pack()) return nullptr;
  return stage;
}

}  // namespace litefuse
