// Stages of elementwise operators.
#include <algorithm>

#include "region/stages/stages.h"

namespace litefuse {
namespace {

Span stretched_rows(Stretch stretch, Span rows) {
  return stretch == Stretch::kChannel || stretch == Stretch::kScalar ? Span{0, 1} : rows;
}

BlockOperand operand(const Rows& rows, int32_t y, Stretch stretch) {
  const bool fixed = stretch == Stretch::kChannel || stretch == Stretch::kScalar;
  return BlockOperand{fixed ? rows.at(0) : rows.at(y), rows.pixel, stretch};
}

class UnaryStage final : public Stage {
 public:
  UnaryStage(Unary function, float a, float b) : function_(function), a_(a), b_(b), kernels_(elementwise_kernels()) {}

  double work(const Image& output) const override { return static_cast<double>(output.row()) * 8; }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    const Rows &in = inputs[0], &out = outputs[0];
    const Rows* const all[] = {&in, &out};
    const auto channels = static_cast<size_t>(out.channels);
    each_run(all, 2, share.of(rows), [&](int32_t y, int32_t together) {
      const float* from = in.at(y);
      float* to = out.at(y);
      const auto pixels = static_cast<size_t>(together) * static_cast<size_t>(out.width);
      if (in.pixel == out.channels && out.pixel == out.channels) {
        kernels_.unary(function_, a_, b_, from, to, pixels * channels);
        return;
      }
      for (size_t i = 0; i < pixels; ++i, from += in.pixel, to += out.pixel) {
        kernels_.unary(function_, a_, b_, from, to, channels);
      }
    });
  }

 private:
  Unary function_;
  float a_, b_;
  const ElementwiseKernels& kernels_;
};

class BinaryStage final : public Stage {
 public:
  BinaryStage(Binary function, Stretch x, Stretch z, float min, float max)
      : function_(function), x_(x), z_(z), min_(min), max_(max), kernels_(elementwise_kernels()) {}

  Span needs(size_t input, Span rows) const override { return stretched_rows(input == 0 ? x_ : z_, rows); }
  double work(const Image& output) const override { return static_cast<double>(output.row()) * 4; }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    const Rows* all[3] = {&outputs[0]};
    size_t count = 1;
    if (x_ == Stretch::kNone || x_ == Stretch::kPixel) all[count++] = &inputs[0];
    if (z_ == Stretch::kNone || z_ == Stretch::kPixel) all[count++] = &inputs[1];
    const Rows& out = outputs[0];
    each_run(all, count, share.of(rows), [&](int32_t y, int32_t together) {
      const Block block{together * out.width, out.channels};
      kernels_.binary(function_, block, operand(inputs[0], y, x_), operand(inputs[1], y, z_), out.at(y), out.pixel,
                      min_, max_);
    });
  }

 private:
  Binary function_;
  Stretch x_, z_;
  float min_, max_;
  const ElementwiseKernels& kernels_;
};

class ScaleShiftStage final : public Stage {
 public:
  explicit ScaleShiftStage(const ScaleShift& params) : p_(params), kernels_(elementwise_kernels()) {}

  Span needs(size_t input, Span rows) const override {
    if (input == 0) return rows;
    return stretched_rows(input == 1 && p_.scaled ? p_.scale : p_.shift, rows);
  }
  double work(const Image& output) const override { return static_cast<double>(output.row()) * 4; }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    const Rows& out = outputs[0];
    const Rows* const scale = p_.scaled ? &inputs[1] : nullptr;
    const Rows* const shift = p_.shifted ? &inputs[p_.scaled ? 2 : 1] : nullptr;
    const Rows* all[4] = {&out, &inputs[0]};
    size_t count = 2;
    if (scale != nullptr && (p_.scale == Stretch::kNone || p_.scale == Stretch::kPixel)) all[count++] = scale;
    if (shift != nullptr && (p_.shift == Stretch::kNone || p_.shift == Stretch::kPixel)) all[count++] = shift;
    each_run(all, count, share.of(rows), [&](int32_t y, int32_t together) {
      const Block block{together * out.width, out.channels};
      const BlockOperand s = scale != nullptr ? operand(*scale, y, p_.scale) : BlockOperand();
      const BlockOperand t = shift != nullptr ? operand(*shift, y, p_.shift) : BlockOperand();
      kernels_.scale_shift(block, operand(inputs[0], y, Stretch::kNone), s, t, out.at(y), out.pixel, p_.min, p_.max,
                           p_.slopes);
    });
  }

 private:
  ScaleShift p_;
  const ElementwiseKernels& kernels_;
};

class PadStage final : public Stage {
 public:
  PadStage(int32_t top, int32_t left, int32_t front, const Image& input, float value)
      : top_(top), left_(left), front_(front), input_(input), value_(value), kernels_(elementwise_kernels()) {}

  Span needs(size_t, Span rows) const override {
    // Rows of nothing but padding need none.
    const int32_t begin = std::clamp(rows.begin - top_, 0, input_.height);
    return Span{begin, std::clamp(rows.end - top_, begin, input_.height)};
  }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    const Rows &in = inputs[0], &out = outputs[0];
    rows = share.of(rows);
    const bool whole = front_ == 0 && in.channels == out.channels;
    if (whole && in.width == out.width && in.height == out.height) {
      const Rows* const all[] = {&in, &out};
      each_run(all, 2, rows, [&](int32_t y, int32_t together) {
        kernels_.copy(Block{together * out.width, out.channels}, in.at(y), in.pixel, out.at(y), out.pixel);
      });
      return;
    }
    for (int32_t y = rows.begin; y < rows.end; ++y) {
      float* to = out.at(y);
      const int32_t from = y - top_;
      if (from < 0 || from >= input_.height) {
        fill(to, out, 0, out.width, 0, out.channels);
        continue;
      }
      fill(to, out, 0, left_, 0, out.channels);
      fill(to, out, left_ + in.width, out.width, 0, out.channels);
      if (!whole) {
        fill(to, out, left_, left_ + in.width, 0, front_);
        fill(to, out, left_, left_ + in.width, front_ + in.channels, out.channels);
      }
      kernels_.copy(Block{in.width, in.channels}, in.at(from), in.pixel, to + left_ * out.pixel + front_, out.pixel);
    }
  }

 private:
  void fill(float* row, const Rows& out, int32_t begin, int32_t end, int32_t first, int32_t last) const {
    if (out.pixel == last - first) {
      std::fill(row + begin * out.pixel, row + end * out.pixel, value_);
      return;
    }
    for (int32_t x = begin; x < end && first < last; ++x) {
      std::fill(row + x * out.pixel + first, row + x * out.pixel + last, value_);
    }
  }

  int32_t top_, left_, front_;
  Image input_;
  float value_;
  const ElementwiseKernels& kernels_;
};

}  // namespace

std::unique_ptr<Stage> make_unary_stage(Unary function, float a, float b) {
  return std::make_unique<UnaryStage>(function, a, b);
}
std::unique_ptr<Stage> make_binary_stage(Binary function, Stretch x, Stretch z, float min, float max) {
  return std::make_unique<BinaryStage>(function, x, z, min, max);
}
std::unique_ptr<Stage> make_scale_shift_stage(const ScaleShift& params) {
  return std::make_unique<ScaleShiftStage>(params);
}
std::unique_ptr<Stage> make_pad_stage(int32_t top, int32_t left, int32_t front, const Image& input, float value) {
  return std::make_unique<PadStage>(top, left, front, input, value);
}

}  // namespace litefuse
