// Stages of pooling and resizing.
#include <algorithm>

#include "region/stages/stages.h"

namespace litefuse {
namespace {

class PoolStage final : public Stage {
 public:
  explicit PoolStage(const PoolStageParams& params) : p_(params), kernels_(window_kernels()) {}

  Span needs(size_t, Span rows) const override {
    const auto end = static_cast<int32_t>(p_.y.origin(rows.end - 1) + p_.y.filter);
    return Span{static_cast<int32_t>(p_.y.origin(rows.begin)), end};
  }
  double work(const Image& output) const override {
    return static_cast<double>(output.row()) * p_.y.filter * p_.x.filter;
  }
  size_t scratch_bytes(int32_t) const override { return static_cast<size_t>(p_.y.filter) * sizeof(float*); }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void* scratch) const override {
    const Rows &in = inputs[0], &out = outputs[0];
    rows = share.of(rows);
    auto** const lines = static_cast<const float**>(scratch);
    PoolRow row;
    row.rows = lines;
    row.width = p_.x.filter;
    row.stride = p_.x.stride;
    row.left = p_.x.pad_before;
    row.columns = p_.x.in;
    row.channels = in.channels;
    row.pixel = in.pixel;
    row.outputs = p_.x.out;
    row.out_pixel = out.pixel;
    row.min = p_.min;
    row.max = p_.clamp_max;
    for (int32_t y = rows.begin; y < rows.end; ++y) {
      const int64_t top = p_.y.origin(y);
      const Taps taps = taps_inside(p_.y, top);
      for (int32_t i = taps.begin; i < taps.end; ++i) lines[i - taps.begin] = in.at(static_cast<int32_t>(top) + i);
      row.height = taps.end - taps.begin;
      row.out = out.at(y);
      (p_.max ? kernels_.max_pool : kernels_.average_pool)(row);
    }
  }

 private:
  PoolStageParams p_;
  const WindowKernels& kernels_;
};

class ResizeStage final : public Stage {
 public:
  ResizeStage(std::vector<Sample> rows, std::vector<Sample> columns, bool bilinear)
      : rows_(std::move(rows)), columns_(std::move(columns)), bilinear_(bilinear), kernels_(window_kernels()) {
    for (const Sample& row : rows_) {
      lowest_.push_back(std::min(row.first, row.second));
      highest_.push_back(std::max(row.first, row.second));
    }
    for (size_t y = rows_.size(); y-- > 1;) lowest_[y - 1] = std::min(lowest_[y - 1], lowest_[y]);
    for (size_t y = 1; y < rows_.size(); ++y) highest_[y] = std::max(highest_[y], highest_[y - 1]);
  }

  Span needs(size_t, Span rows) const override {
    return Span{lowest_[static_cast<size_t>(rows.begin)], highest_[static_cast<size_t>(rows.end - 1)] + 1};
  }
  double work(const Image& output) const override { return static_cast<double>(output.row()) * 8; }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    const Rows &in = inputs[0], &out = outputs[0];
    rows = share.of(rows);
    ResizeRow row;
    row.columns = columns_.data();
    row.channels = in.channels;
    row.pixel = in.pixel;
    row.outputs = out.width;
    row.out_pixel = out.pixel;
    for (int32_t y = rows.begin; y < rows.end; ++y) {
      const Sample& sample = rows_[static_cast<size_t>(y)];
      row.top = in.at(sample.first);
      row.bottom = in.at(sample.second);
      row.weight = sample.weight;
      row.out = out.at(y);
      (bilinear_ ? kernels_.bilinear : kernels_.nearest)(row);
    }
  }

 private:
  std::vector<Sample> rows_, columns_;
  // The lowest row that an output row or a later one needs, and the highest that it or an earlier one does: mirrored
  // rows go back and forth.
  std::vector<int32_t> lowest_, highest_;
  bool bilinear_;
  const WindowKernels& kernels_;
};

}  // namespace

std::unique_ptr<Stage> make_pool_stage(const PoolStageParams& params) { return std::make_unique<PoolStage>(params); }
std::unique_ptr<Stage> make_bilinear_stage(std::vector<Sample> rows, std::vector<Sample> columns) {
  return std::make_unique<ResizeStage>(std::move(rows), std::move(columns), true);
}
std::unique_ptr<Stage> make_nearest_stage(std::vector<Sample> rows, std::vector<Sample> columns) {
  return std::make_unique<ResizeStage>(std::move(rows), std::move(columns), false);
}

}  // namespace litefuse
