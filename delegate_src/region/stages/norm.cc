// Stages of reductions, and of normalisations over the channels of a pixel.
#include "kernels/simd/norm.h"

#include <algorithm>
#include <cmath>

#include "region/stages/stages.h"

namespace litefuse {
namespace {

class ReduceRow final : public Stage {
 public:
  explicit ReduceRow(Reduction reduction) : reduction_(reduction), kernels_(norm_kernels()) {}

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    const Rows& in = inputs[0];
    rows = share.of(rows);
    for (int32_t y = rows.begin; y < rows.end; ++y) {
      const auto f = reduction_ == Reduction::kMax   ? kernels_.max_pixels
                     : reduction_ == Reduction::kMin ? kernels_.min_pixels
                                                     : kernels_.sum_pixels;
      f(in.at(y), in.width, in.pixel, in.channels, outputs[0].at(y));
    }
  }

 private:
  Reduction reduction_;
  const NormKernels& kernels_;
};

class SumSquaresRow final : public Stage {
 public:
  SumSquaresRow() : kernels_(norm_kernels()) {}

  Span needs(size_t input, Span rows) const override { return input == 0 ? rows : Span{0, 1}; }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    const Rows& in = inputs[0];
    rows = share.of(rows);
    for (int32_t y = rows.begin; y < rows.end; ++y) {
      kernels_.sum_squares(in.at(y), in.width, in.pixel, in.channels, inputs[1].at(0), outputs[0].at(y));
    }
  }

 private:
  const NormKernels& kernels_;
};

class NormScale final : public Stage {
 public:
  NormScale(const float* gamma, const float* beta, float epsilon) : gamma_(gamma), beta_(beta), epsilon_(epsilon) {}

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    if (share.part != 0 || rows.size() == 0) return;
    const float* variance = inputs[0].at(0);
    float *scale = outputs[0].at(0), *shift = outputs[1].at(0);
    for (int32_t c = 0; c < inputs[0].channels; ++c) {
      const float reciprocal = 1.0f / std::sqrt(variance[c] + epsilon_);
      scale[c] = gamma_ != nullptr ? reciprocal * gamma_[c] : reciprocal;
      shift[c] = beta_ != nullptr ? beta_[c] : 0.0f;
    }
  }

 private:
  const float *gamma_, *beta_;
  float epsilon_;
};

class ReduceRows final : public Stage {
 public:
  ReduceRows(Reduction reduction, int64_t count)
      : reduction_(reduction), count_(static_cast<float>(count)), kernels_(norm_kernels()) {}

  // All rows, however many there are.
  Span needs(size_t, Span) const override { return Span{0, std::numeric_limits<int32_t>::max()}; }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    if (share.part != 0 || rows.size() == 0) return;
    const Rows& in = inputs[0];
    float* const to = outputs[0].at(0);
    const auto f = reduction_ == Reduction::kMax   ? kernels_.max_pixels
                   : reduction_ == Reduction::kMin ? kernels_.min_pixels
                                                   : kernels_.sum_pixels;
    f(in.at(0), in.height, in.row, in.channels, to);
    if (reduction_ != Reduction::kMean) return;
    for (int32_t c = 0; c < in.channels; ++c) to[c] /= count_;
  }

 private:
  Reduction reduction_;
  float count_;
  const NormKernels& kernels_;
};

class ReduceChannels final : public Stage {
 public:
  explicit ReduceChannels(Reduction reduction)
      : reduction_(reduction), kernels_(norm_kernels()), elementwise_(elementwise_kernels()) {}

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    const Rows &in = inputs[0], &out = outputs[0];
    const Rows* const all[] = {&in, &out};
    each_run(all, 2, share.of(rows), [&](int32_t y, int32_t together) {
      const int32_t pixels = together * in.width;
      const auto f = reduction_ == Reduction::kMax   ? kernels_.max_rows
                     : reduction_ == Reduction::kMin ? kernels_.min_rows
                                                     : kernels_.sum_rows;
      float* const to = out.at(y);
      if (out.pixel != 1) {  // a part of wider pixels
        const float factor = reduction_ == Reduction::kMean ? 1.0f / static_cast<float>(in.channels) : 1.0f;
        for (int32_t i = 0; i < pixels; ++i) {
          f(in.at(y) + i * in.pixel, 1, in.pixel, in.channels, to + i * out.pixel);
          to[i * out.pixel] *= factor;
        }
        return;
      }
      f(in.at(y), pixels, in.pixel, in.channels, to);
      if (reduction_ == Reduction::kMean) {
        elementwise_.unary(Unary::kAffine, 1.0f / static_cast<float>(in.channels), 0.0f, to, to,
                           static_cast<size_t>(pixels));
      }
    });
  }

 private:
  Reduction reduction_;
  const NormKernels& kernels_;
  const ElementwiseKernels& elementwise_;
};

class NormStage final : public Stage {
 public:
  NormStage(RowNorm norm, const float* gamma, const float* beta, float parameter)
      : norm_(norm), gamma_(gamma), beta_(beta), parameter_(parameter), kernels_(norm_kernels()) {}

  double work(const Image& output) const override { return static_cast<double>(output.row()) * 8; }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    const Rows &in = inputs[0], &out = outputs[0];
    const Rows* const all[] = {&in, &out};
    each_run(all, 2, share.of(rows), [&](int32_t y, int32_t together) {
      const int32_t pixels = together * in.width, channels = in.channels;
      const float* const x = in.at(y);
      float* const to = out.at(y);
      switch (norm_) {
        case RowNorm::kLayerNorm:
          return kernels_.layer_norm(x, pixels, in.pixel, channels, gamma_, beta_, parameter_, to, out.pixel);
        case RowNorm::kRmsNorm:
          return kernels_.rms_norm(x, pixels, in.pixel, channels, gamma_, parameter_, to, out.pixel);
        case RowNorm::kL2Norm:
          return kernels_.l2_norm(x, pixels, in.pixel, channels, parameter_, to, out.pixel);
        case RowNorm::kSoftmax:
          return kernels_.softmax(x, pixels, in.pixel, channels, parameter_, to, out.pixel);
        case RowNorm::kLogSoftmax:
          return kernels_.log_softmax(x, pixels, in.pixel, channels, to, out.pixel);
      }
    });
  }

 private:
  RowNorm norm_;
  const float *gamma_, *beta_;
  float parameter_;
  const NormKernels& kernels_;
};

}  // namespace

std::unique_ptr<Stage> make_reduce_row_stage(Reduction reduction) { return std::make_unique<ReduceRow>(reduction); }
std::unique_ptr<Stage> make_sum_squares_row_stage() { return std::make_unique<SumSquaresRow>(); }
std::unique_ptr<Stage> make_norm_scale_stage(const float* gamma, const float* beta, float epsilon) {
  return std::make_unique<NormScale>(gamma, beta, epsilon);
}
std::unique_ptr<Stage> make_reduce_rows_stage(Reduction reduction, int64_t count) {
  return std::make_unique<ReduceRows>(reduction, count);
}
std::unique_ptr<Stage> make_reduce_channels_stage(Reduction reduction) {
  return std::make_unique<ReduceChannels>(reduction);
}
std::unique_ptr<Stage> make_norm_stage(RowNorm norm, const float* gamma, const float* beta, float parameter) {
  return std::make_unique<NormStage>(norm, gamma, beta, parameter);
}

}  // namespace litefuse
