// CONV_2D, DEPTHWISE_CONV_2D and TRANSPOSE_CONV. Tensors are NHWC; filters OHWI, of depthwise convolutions 1HWO.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/kernel.h"
#include "kernels/linear.h"
#include "kernels/window.h"

namespace litefuse {
namespace {

// What the three operators have in common: the arithmetic, but not which inputs meet which weights.
class Convolution : public Kernel {
 protected:
  // Sets arithmetic_ and what it needs. `channels` are those of the output; all shapes are known to fit.
  Status prepare_arithmetic(const Operand& input, const Operand& weights, const Operand& bias, const Operand& output,
                            int32_t channels, Activation activation) {
    LITEFUSE_RETURN_IF_REFUSED(find_arithmetic(input, weights, bias, output, channels, &arithmetic_));
    if (arithmetic_ == Arithmetic::kFloat || arithmetic_ == Arithmetic::kHybrid) {
      return activation_range(activation, &min_, &max_);
    }
    return find_requantization(input, weights, bias, output, channels, activation, &requantization_);
  }

  // Bytes of the quantised input; 0 unless hybrid.
  size_t scratch_bytes(const Shape& input) const {
    if (arithmetic_ != Arithmetic::kHybrid || input.elements() == 0) return 0;
    return HybridRows::bytes(input[0], input.elements() / input[0]);
  }

  // Calls sums.run<Sum>(input, weights, input zero points per batch, weights' zero point, finish) for the types of
  // arithmetic_, where finish(sum, batch, channel, index) stores an output.
  template <typename Sums>
  void run_with(const Sums& sums, const Operand& input, const Operand& weights, const Operand& bias,
                const Operand& output, void* scratch) const {
    switch (arithmetic_) {
      case Arithmetic::kFloat: {
        const float* b = bias.get<float>();
        float* out = output.mutable_get<float>();
        const float min = min_, max = max_;
        sums.template run<float>(
            input.get<float>(), weights.get<float>(), [](int32_t) { return 0; }, 0,
            [b, out, min, max](float sum, int32_t, int32_t c, int64_t i) {
              out[i] = clamp_to(sum + (b ? b[c] : 0.0f), min, max);
            });
        return;
      }
      case Arithmetic::kUInt8:
        return run_integers<uint32_t, uint8_t, uint8_t, int32_t>(sums, input, weights, bias, output);
      case Arithmetic::kInt8:
        return run_integers<uint32_t, int8_t, int8_t, int32_t>(sums, input, weights, bias, output);
      case Arithmetic::kInt16Narrow:
        return run_integers<uint32_t, int16_t, int8_t, int32_t>(sums, input, weights, bias, output);
      case Arithmetic::kInt16:
        return run_integers<uint64_t, int16_t, int8_t, int64_t>(sums, input, weights, bias, output);
      case Arithmetic::kHybrid:
        return run_hybrid(sums, input, weights, bias, output, scratch);
    }
  }

  Arithmetic arithmetic_ = Arithmetic::kFloat;
  // Of hybrid arithmetic: whether the input gets a zero point.
  bool asymmetric_ = true;
  // Whether TFLite takes the two scales of hybrid operators in one product before they meet the sum.
  bool scales_first_ = false;

 private:
  template <typename Sum, typename X, typename W, typename Bias, typename Sums>
  void run_integers(const Sums& sums, const Operand& input, const Operand& weights, const Operand& bias,
                    const Operand& output) const {
    const Requantization& r = requantization_;
    const Bias* b = bias.get<Bias>();
    X* out = output.mutable_get<X>();
    sums.template run<Sum>(
        input.get<X>(), weights.get<W>(), [&r](int32_t) { return r.input_zero; }, r.weights_zero,
        [&r, b, out](Sum sum, int32_t, int32_t c, int64_t i) {
          if (b) sum += static_cast<Sum>(b[c]);
          out[i] = stored_as<X>(multiply(as_signed(sum), r.multiplier(c)), r.output_zero, r.range);
        });
  }

  template <typename Sums>
  void run_hybrid(const Sums& sums, const Operand& input, const Operand& weights, const Operand& bias,
                  const Operand& output, void* scratch) const {
    if (output.elements() == 0) return;
    const int32_t batches = input.shape[0];
    const int64_t depth = input.elements() / batches;
    const HybridRows rows(scratch, batches);
    for (int32_t n = 0; n < batches; ++n) {
      rows.quantize(input.get<float>() + n * depth, n, depth, asymmetric_);
    }
    const std::vector<float>& scales = weights.quantization().scales;
    const bool per_channel = scales.size() > 1;
    const float* b = bias.get<float>();
    float* out = output.mutable_get<float>();
    const float min = min_, max = max_;
    const bool scales_first = scales_first_ || !asymmetric_;
    sums.template run<uint32_t>(
        rows.stored, weights.get<int8_t>(), [&rows](int32_t n) { return rows.zero_points[n]; }, 0,
        [&, b, out, min, max](uint32_t sum, int32_t n, int32_t c, int64_t i) {
          const auto exact = static_cast<float>(as_signed(sum));
          const float of_weights = scales[per_channel ? static_cast<size_t>(c) : 0];
          float value = scales_first ? exact * (of_weights * rows.scales[n]) : exact * of_weights * rows.scales[n];
          if (b) value += b[c];
          out[i] = clamp_to(value, min, max);
        });
  }

 protected:
  Requantization requantization_;
  float min_ = 0.0f, max_ = 0.0f;
};

Status check_counts(const Call& call, size_t required) {
  const size_t n = call.inputs.size();
  LITEFUSE_REQUIRE(n == required || n == required + 1, "it has %zu inputs", n);
  LITEFUSE_REQUIRE(call.outputs.size() == 1 && call.outputs[0].present(), "it has %zu outputs", call.outputs.size());
  for (size_t i = 0; i < required; ++i) LITEFUSE_REQUIRE(call.has(i), "its input %zu is absent", i);
  return Status();
}

Operand optional_input(const Call& call, size_t i) { return call.has(i) ? call.inputs[i] : Operand(); }

// Neither may be empty, the batch apart.
Status check_images(const Operand& input, const Operand& weights) {
  LITEFUSE_REQUIRE(input.shape.rank() == 4, "its input has %d dimensions where it needs 4", input.shape.rank());
  LITEFUSE_REQUIRE(weights.shape.rank() == 4, "its weights have %d dimensions where they need 4", weights.shape.rank());
  for (int i = 1; i < 4; ++i) LITEFUSE_REQUIRE(input.shape[i] > 0, "its input is empty");
  for (int i = 0; i < 4; ++i) LITEFUSE_REQUIRE(weights.shape[i] > 0, "its weights are empty");
  return Status();
}

constexpr int32_t kMaxStep = std::numeric_limits<int16_t>::max();

class Conv2d : public Convolution {
 public:
  Status prepare(Call& call) override {
    const auto params = call.params<Conv2dParams>();
    LITEFUSE_RETURN_IF_REFUSED(check_counts(call, 2));
    const Operand &input = call.inputs[0], &weights = call.inputs[1];
    const Operand bias = optional_input(call, 2);
    LITEFUSE_RETURN_IF_REFUSED(check_images(input, weights));
    const int32_t depth = weights.shape[3], channels = weights.shape[0];
    LITEFUSE_REQUIRE(input.shape[3] % depth == 0, "its filter has %d channels where the input has %d", depth,
                     input.shape[3]);
    const int32_t groups = input.shape[3] / depth;
    LITEFUSE_REQUIRE(channels % groups == 0, "it has %d output channels for %d groups", channels, groups);
    LITEFUSE_RETURN_IF_REFUSED(find_window("height", params.padding, input.shape[1], weights.shape[1], params.stride_h,
                                           params.dilation_h_factor, &sums_.y));
    LITEFUSE_RETURN_IF_REFUSED(find_window("width", params.padding, input.shape[2], weights.shape[2], params.stride_w,
                                           params.dilation_w_factor, &sums_.x));
    LITEFUSE_RETURN_IF_REFUSED(prepare_arithmetic(input, weights, bias, call.outputs[0], channels, params.activation));
    if (arithmetic_ == Arithmetic::kHybrid) {
      // TFLite tells the two hybrid kinds apart by whether the scales differ, not by how many there are.
      const std::vector<float>& scales = weights.quantization().scales;
      asymmetric_ = std::any_of(scales.begin(), scales.end(), [&](float s) { return s != scales[0]; });
      LITEFUSE_REQUIRE(asymmetric_ || groups == 1,
                       "it is grouped, its input is float and its int8 weights have one scale");
    }
    sums_.batches = input.shape[0];
    sums_.channels = channels;
    sums_.depth = depth;
    sums_.per_group = channels / groups;
    sums_.input_depth = input.shape[3];
    LITEFUSE_REQUIRE(call.outputs[0].shape.assign({input.shape[0], sums_.y.out, sums_.x.out, channels}),
                     "its output is too large");
    call.scratch_bytes = scratch_bytes(input.shape);
    return Status();
  }

  void run(const Call& call) const override {
    run_with(sums_, call.inputs[0], call.inputs[1], optional_input(call, 2), call.outputs[0], call.scratch);
  }

 private:
  struct Sums {
    Window y, x;
    int32_t batches = 0, channels = 0, depth = 0, per_group = 1, input_depth = 0;

    template <typename Sum, typename X, typename W, typename Zero, typename Finish>
    void run(const X* input, const W* weights, Zero zero, int32_t w_zero, Finish finish) const {
      const int64_t pixel = input_depth, row = x.in * pixel, image = y.in * row;
      const int64_t filter_row = int64_t{x.filter} * depth, filter = y.filter * filter_row;
      int64_t i = 0;
      for (int32_t n = 0; n < batches; ++n) {
        const int32_t x_zero = zero(n);
        for (int32_t oy = 0; oy < y.out; ++oy) {
          const int64_t top = y.origin(oy);
          const Taps rows = taps_inside(y, top);
          for (int32_t ox = 0; ox < x.out; ++ox) {
            const int64_t left = x.origin(ox);
            const Taps columns = taps_inside(x, left);
            for (int32_t c = 0; c < channels; ++c) {
              const int64_t first = n * image + int64_t{c / per_group} * depth;
              Sum sum = 0;
              for (int32_t fy = rows.begin; fy < rows.end; ++fy) {
                const int64_t in_row = first + (top + int64_t{fy} * y.dilation) * row;
                const int64_t of_row = c * filter + fy * filter_row;
                for (int32_t fx = columns.begin; fx < columns.end; ++fx) {
                  sum = dot(sum, input + in_row + (left + int64_t{fx} * x.dilation) * pixel,
                            weights + of_row + int64_t{fx} * depth, depth, x_zero, w_zero);
                }
              }
              finish(sum, n, c, i++);
            }
          }
        }
      }
    }
  };
  Sums sums_;
};

class DepthwiseConv2d : public Convolution {
 public:
  DepthwiseConv2d() { scales_first_ = true; }

  Status prepare(Call& call) override {
    const auto params = call.params<Conv2dParams>();
    LITEFUSE_RETURN_IF_REFUSED(check_counts(call, 2));
    const Operand &input = call.inputs[0], &weights = call.inputs[1];
    const Operand bias = optional_input(call, 2);
    LITEFUSE_RETURN_IF_REFUSED(check_images(input, weights));
    const int32_t depth = input.shape[3], channels = weights.shape[3];
    LITEFUSE_REQUIRE(weights.shape[0] == 1, "its filter has %d as its first dimension, not 1", weights.shape[0]);
    LITEFUSE_REQUIRE(channels % depth == 0, "its filter has %d channels where the input has %d", channels, depth);
    LITEFUSE_REQUIRE(params.stride_h <= kMaxStep && params.stride_w <= kMaxStep &&
                         params.dilation_h_factor <= kMaxStep && params.dilation_w_factor <= kMaxStep,
                     "its strides or dilations pass 32767");
    LITEFUSE_RETURN_IF_REFUSED(find_window("height", params.padding, input.shape[1], weights.shape[1], params.stride_h,
                                           params.dilation_h_factor, &sums_.y));
    LITEFUSE_RETURN_IF_REFUSED(find_window("width", params.padding, input.shape[2], weights.shape[2], params.stride_w,
                                           params.dilation_w_factor, &sums_.x));
    LITEFUSE_REQUIRE(!bias.present() || bias.shape.rank() == 1, "its bias has %d dimensions where it needs 1",
                     bias.shape.rank());
    LITEFUSE_RETURN_IF_REFUSED(prepare_arithmetic(input, weights, bias, call.outputs[0], channels, params.activation));
    LITEFUSE_REQUIRE(arithmetic_ != Arithmetic::kInt16Narrow, "its bias is int32 where int64 is needed");
    const bool hybrid = arithmetic_ == Arithmetic::kHybrid;
    LITEFUSE_REQUIRE(!hybrid || static_cast<int64_t>(weights.quantization().scales.size()) == channels,
                     "its input is float and its int8 weights have one scale for all channels");
    // These two of TFLite's kernels believe the attribute; the others derive it from the shapes.
    const int32_t multiplier = channels / depth;
    LITEFUSE_REQUIRE((arithmetic_ != Arithmetic::kInt16 && !hybrid) || params.depth_multiplier == multiplier,
                     "its depth multiplier says %d where the shapes say %d", params.depth_multiplier, multiplier);
    sums_.batches = input.shape[0];
    sums_.depth = depth;
    sums_.multiplier = multiplier;
    LITEFUSE_REQUIRE(call.outputs[0].shape.assign({input.shape[0], sums_.y.out, sums_.x.out, channels}),
                     "its output is too large");
    call.scratch_bytes = scratch_bytes(input.shape);
    return Status();
  }

  void run(const Call& call) const override {
    run_with(sums_, call.inputs[0], call.inputs[1], optional_input(call, 2), call.outputs[0], call.scratch);
  }

 private:
  struct Sums {
    Window y, x;
    int32_t batches = 0, depth = 0, multiplier = 1;

    template <typename Sum, typename X, typename W, typename Zero, typename Finish>
    void run(const X* input, const W* weights, Zero zero, int32_t w_zero, Finish finish) const {
      const int64_t pixel = depth, row = x.in * pixel, image = y.in * row;
      const int64_t tap = int64_t{depth} * multiplier, filter_row = x.filter * tap;
      int64_t i = 0;
      for (int32_t n = 0; n < batches; ++n) {
        const int32_t x_zero = zero(n);
        for (int32_t oy = 0; oy < y.out; ++oy) {
          const int64_t top = y.origin(oy);
          const Taps rows = taps_inside(y, top);
          for (int32_t ox = 0; ox < x.out; ++ox) {
            const int64_t left = x.origin(ox);
            const Taps columns = taps_inside(x, left);
            int32_t c = 0;
            for (int32_t in = 0; in < depth; ++in) {
              for (int32_t m = 0; m < multiplier; ++m, ++c) {
                Sum sum = 0;
                for (int32_t fy = rows.begin; fy < rows.end; ++fy) {
                  const int64_t in_row = n * image + (top + int64_t{fy} * y.dilation) * row + in;
                  const int64_t of_row = fy * filter_row + c;
                  for (int32_t fx = columns.begin; fx < columns.end; ++fx) {
                    sum = add_product(sum, input[in_row + (left + int64_t{fx} * x.dilation) * pixel],
                                      weights[of_row + fx * tap], x_zero, w_zero);
                  }
                }
                finish(sum, n, c, i++);
              }
            }
          }
        }
      }
    }
  };
  Sums sums_;
};

// The inputs [begin, end) of one axis that reach an output of a transposed convolution.
struct Reach {
  int32_t begin = 0;
  int32_t end = 0;
};

class TransposeConv : public Convolution {
 public:
  Status prepare(Call& call) override {
    const auto params = call.params<Conv2dParams>();
    LITEFUSE_RETURN_IF_REFUSED(check_counts(call, 3));
    const Operand &size = call.inputs[0], &weights = call.inputs[1], &input = call.inputs[2];
    const Operand bias = optional_input(call, 3);
    LITEFUSE_RETURN_IF_REFUSED(check_images(input, weights));
    LITEFUSE_REQUIRE(size.constant(), "its output shape is computed at run time");
    LITEFUSE_REQUIRE(size.type() == Type::kInt32 && size.shape == Shape({4}),
                     "its output shape is not 4 int32 numbers");
    const auto* dims = static_cast<const int32_t*>(size.tensor->constant);
    const int32_t channels = weights.shape[0];
    LITEFUSE_REQUIRE(input.shape[3] == weights.shape[3], "its filter has %d channels where the input has %d",
                     weights.shape[3], input.shape[3]);
    LITEFUSE_REQUIRE(dims[0] == input.shape[0], "its output has %d batches where the input has %d", dims[0],
                     input.shape[0]);
    LITEFUSE_REQUIRE(dims[1] > 0 && dims[2] > 0, "its output is empty");
    LITEFUSE_REQUIRE(dims[3] == channels, "its output has %d channels where the filter makes %d", dims[3], channels);
    LITEFUSE_REQUIRE(params.stride_h <= kMaxStep && params.stride_w <= kMaxStep, "its strides pass 32767");
    // The windows are those of the convolution that would lead back from the output to the input.
    LITEFUSE_RETURN_IF_REFUSED(
        find_window("height", params.padding, dims[1], weights.shape[1], params.stride_h, 1, &sums_.y));
    LITEFUSE_RETURN_IF_REFUSED(
        find_window("width", params.padding, dims[2], weights.shape[2], params.stride_w, 1, &sums_.x));
    LITEFUSE_REQUIRE(sums_.y.out == input.shape[1] && sums_.x.out == input.shape[2],
                     "its output of %d x %d does not come from an input of %d x %d", dims[1], dims[2], input.shape[1],
                     input.shape[2]);
    LITEFUSE_RETURN_IF_REFUSED(prepare_arithmetic(input, weights, bias, call.outputs[0], channels, params.activation));
    sums_.batches = input.shape[0];
    sums_.depth = input.shape[3];
    sums_.channels = channels;
    LITEFUSE_REQUIRE(call.outputs[0].shape.assign(dims, 4), "its output is too large");
    call.scratch_bytes = scratch_bytes(input.shape);
    return Status();
  }

  void run(const Call& call) const override {
    const Operand &weights = call.inputs[1], &input = call.inputs[2], &output = call.outputs[0];
    const Operand bias = optional_input(call, 3);
    if (arithmetic_ == Arithmetic::kHybrid) return run_hybrid(input, weights, bias, output, call.scratch);
    run_with(sums_, input, weights, bias, output, call.scratch);
  }

 private:
  struct Sums {
    Window y, x;
    int32_t batches = 0, depth = 0, channels = 0;

    static Reach reach(const Window& w, int32_t out) {
      const int64_t padded = int64_t{out} + w.pad_before;
      const int64_t before = padded - w.filter;  // the last input whose window ends too early starts here, or earlier
      const int64_t begin = before < 0 ? 0 : before / w.stride + 1;
      const int64_t end = std::min<int64_t>(padded / w.stride + 1, w.out);
      return {static_cast<int32_t>(std::min(begin, end)), static_cast<int32_t>(end)};
    }

    // Calls each(input offset, weights offset) for all inputs that meet output (n, oy, ox, c), in TFLite's order.
    template <typename Each>
    void visit(int32_t n, int32_t oy, int32_t ox, int32_t c, Reach rows, Reach columns, Each each) const {
      for (int32_t iy = rows.begin; iy < rows.end; ++iy) {
        const int64_t fy = int64_t{oy} + y.pad_before - int64_t{iy} * y.stride;
        const int64_t in_row = (int64_t{n} * y.out + iy) * x.out;
        const int64_t of_row = (int64_t{c} * y.filter + fy) * x.filter;
        for (int32_t ix = columns.begin; ix < columns.end; ++ix) {
          const int64_t fx = int64_t{ox} + x.pad_before - int64_t{ix} * x.stride;
          each((in_row + ix) * depth, (of_row + fx) * depth);
        }
      }
    }

    template <typename Each>
    void visit_outputs(Each each) const {
      for (int32_t n = 0; n < batches; ++n) {
        for (int32_t oy = 0; oy < y.in; ++oy) {
          const Reach rows = reach(y, oy);
          for (int32_t ox = 0; ox < x.in; ++ox) {
            const Reach columns = reach(x, ox);
            for (int32_t c = 0; c < channels; ++c) each(n, oy, ox, c, rows, columns);
          }
        }
      }
    }

    template <typename Sum, typename X, typename W, typename Zero, typename Finish>
    void run(const X* input, const W* weights, Zero zero, int32_t w_zero, Finish finish) const {
      int64_t i = 0;
      visit_outputs([&](int32_t n, int32_t oy, int32_t ox, int32_t c, Reach rows, Reach columns) {
        const int32_t x_zero = zero(n);
        Sum sum = 0;
        visit(n, oy, ox, c, rows, columns, [&](int64_t of_input, int64_t of_weights) {
          sum = dot(sum, input + of_input, weights + of_weights, depth, x_zero, w_zero);
        });
        finish(sum, n, c, i++);
      });
    }
  };

  // TFLite scales each product before it adds it up, in float.
  void run_hybrid(const Operand& input, const Operand& weights, const Operand& bias, const Operand& output,
                  void* scratch) const {
    if (output.elements() == 0) return;
    const int64_t size = input.elements() / input.shape[0];
    const HybridRows rows(scratch, input.shape[0]);
    for (int32_t n = 0; n < input.shape[0]; ++n) rows.quantize(input.get<float>() + n * size, n, size, true);
    const std::vector<float>& scales = weights.quantization().scales;
    const float* b = bias.get<float>();
    float* out = output.mutable_get<float>();
    sums_.visit_outputs([&](int32_t n, int32_t oy, int32_t ox, int32_t c, Reach reached_rows, Reach columns) {
      const float of_weights = scales[scales.size() > 1 ? static_cast<size_t>(c) : 0];
      const int32_t zero = rows.zero_points[n];
      float sum = 0.0f;
      sums_.visit(n, oy, ox, c, reached_rows, columns, [&](int64_t of_input, int64_t of_filter) {
        const int8_t* x = rows.stored + of_input;
        const int8_t* w = weights.get<int8_t>() + of_filter;
        for (int32_t k = 0; k < sums_.depth; ++k) {
          sum += static_cast<float>((x[k] - zero) * w[k]) * of_weights * rows.scales[n];
        }
      });
      *out++ = clamp_to(sum + (b ? b[c] : 0.0f), min_, max_);
    });
  }

  Sums sums_;
};

}  // namespace

std::unique_ptr<Kernel> make_conv_2d() { return std::make_unique<Conv2d>(); }
std::unique_ptr<Kernel> make_depthwise_conv_2d() { return std::make_unique<DepthwiseConv2d>(); }
std::unique_ptr<Kernel> make_transpose_conv() { return std::make_unique<TransposeConv>(); }

}  // namespace litefuse
