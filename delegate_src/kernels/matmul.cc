// FULLY_CONNECTED and BATCH_MATMUL.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/elementwise.h"
#include "kernels/kernel.h"
#include "kernels/linear.h"

namespace litefuse {
namespace {

class FullyConnected : public Kernel {
 public:
  Status prepare(Call& call) override {
    const auto params = call.params<FullyConnectedParams>();
    LITEFUSE_REQUIRE(call.inputs.size() == 2 || call.inputs.size() == 3, "it has %zu inputs", call.inputs.size());
    LITEFUSE_REQUIRE(!params.shuffled_weights, "its weights are shuffled");
    LITEFUSE_REQUIRE(call.outputs.size() == 1 && call.outputs[0].present(), "it has %zu outputs", call.outputs.size());
    LITEFUSE_REQUIRE(call.has(0) && call.has(1), "its input or its weights are absent");
    const Operand &input = call.inputs[0], &weights = call.inputs[1], &output = call.outputs[0];
    const Operand bias = call.has(2) ? call.inputs[2] : Operand();
    LITEFUSE_REQUIRE(weights.shape.rank() == 2, "its weights have %d dimensions where they need 2",
                     weights.shape.rank());
    units_ = weights.shape[0];
    depth_ = weights.shape[1];
    LITEFUSE_REQUIRE(depth_ > 0, "its weights have no columns");
    LITEFUSE_REQUIRE(input.elements() % depth_ == 0, "its input of %lld elements does not divide into rows of %d",
                     static_cast<long long>(input.elements()), depth_);
    rows_ = input.elements() / depth_;
    LITEFUSE_RETURN_IF_REFUSED(prepare_arithmetic(params, input, weights, bias, output));

    std::vector<int32_t> shape(input.shape.data(), input.shape.data() + input.shape.rank());
    if (params.keep_num_dims) {
      LITEFUSE_REQUIRE(input.shape.rank() > 0 && input.shape.last(0) == depth_,
                       "its input %s does not end in the weights' %d columns", input.shape.str().c_str(), depth_);
      shape.back() = units_;
    } else {
      LITEFUSE_REQUIRE(rows_ <= std::numeric_limits<int32_t>::max(), "its output is too large");
      shape = {static_cast<int32_t>(rows_), units_};
    }
    LITEFUSE_REQUIRE(call.outputs[0].shape.assign(shape), "its output is too large");
    call.scratch_bytes = arithmetic_ == Arithmetic::kHybrid ? HybridRows::bytes(rows_, depth_) : 0;
    return Status();
  }

  void run(const Call& call) const override {
    const Operand &input = call.inputs[0], &weights = call.inputs[1], &output = call.outputs[0];
    const Operand bias = call.has(2) ? call.inputs[2] : Operand();
    switch (arithmetic_) {
      case Arithmetic::kFloat: {
        const float* b = bias.get<float>();
        float* out = output.mutable_get<float>();
        const float *x = input.get<float>(), *w = weights.get<float>();
        each_output([&](int64_t row, int32_t unit, int64_t i) {
          const float sum = dot(0.0f, x + row * depth_, w + unit * int64_t{depth_}, depth_);
          out[i] = clamp_to(sum + (b ? b[unit] : 0.0f), min_, max_);
        });
        return;
      }
      case Arithmetic::kUInt8:
        return run_integers<uint32_t, uint8_t, uint8_t, int32_t>(input, weights, bias, output);
      case Arithmetic::kInt8:
        return run_integers<uint32_t, int8_t, int8_t, int32_t>(input, weights, bias, output);
      case Arithmetic::kInt16Narrow:
        return run_integers<uint32_t, int16_t, int8_t, int32_t>(input, weights, bias, output);
      case Arithmetic::kInt16:
        return run_integers<uint64_t, int16_t, int8_t, int64_t>(input, weights, bias, output);
      case Arithmetic::kHybrid:
        return run_hybrid(input, weights, bias, output, call.scratch);
    }
  }

 private:
  Status prepare_arithmetic(const FullyConnectedParams& params, const Operand& input, const Operand& weights,
                            const Operand& bias, const Operand& output) {
    LITEFUSE_RETURN_IF_REFUSED(find_arithmetic(input, weights, bias, output, units_, &arithmetic_));
    if (arithmetic_ == Arithmetic::kFloat) return activation_range(params.activation, &min_, &max_);
    if (arithmetic_ == Arithmetic::kHybrid) {
      asymmetric_ = params.asymmetric_quantize_inputs;
      // TFLite adds up rows of weights for this once and never again.
      LITEFUSE_REQUIRE(!asymmetric_ || weights.constant(),
                       "its weights are computed at run time and its input is quantised with a zero point");
      LITEFUSE_RETURN_IF_REFUSED(activation_range(params.activation, &min_, &max_));
      // Unlike the other kernels this one lets infinity pass when nothing clamps.
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      if (params.activation == Activation::kNone) min_ = -kInfinity;
      if (params.activation == Activation::kNone || params.activation == Activation::kRelu) max_ = kInfinity;
      return Status();
    }
    return prepare_factors(params, input, weights, bias, output);
  }

  Status prepare_factors(const FullyConnectedParams& params, const Operand& input, const Operand& weights,
                         const Operand& bias, const Operand& output) {
    LITEFUSE_RETURN_IF_REFUSED(check_one_scale(input, "input"));
    LITEFUSE_RETURN_IF_REFUSED(check_one_scale(output, "output"));
    const bool per_channel = weights.quantization().per_channel();
    if (per_channel) {
      LITEFUSE_REQUIRE(arithmetic_ != Arithmetic::kUInt8, "its uint8 weights are quantised per channel");
      LITEFUSE_REQUIRE(weights.quantization().axis == 0, "its weights are quantised along axis %d, not 0",
                       weights.quantization().axis);
      LITEFUSE_RETURN_IF_REFUSED(check_symmetric_weights(weights, units_));
    } else {
      LITEFUSE_RETURN_IF_REFUSED(check_one_scale(weights, "filter"));
      LITEFUSE_RETURN_IF_REFUSED(check_bias_scale(input, weights, bias, output));
    }
    factors_.clear();
    for (float scale : weights.quantization().scales) {
      const double factor = static_cast<double>(input.quantization().scale()) * static_cast<double>(scale) /
                            static_cast<double>(output.quantization().scale());
      LITEFUSE_REQUIRE(std::isfinite(factor), "its scales multiply accumulators by %g, which is too much", factor);
      factors_.push_back(factor);
    }
    input_zero_ = input.quantization().zero_point();
    weights_zero_ = per_channel ? 0 : weights.quantization().zero_point();
    output_zero_ = output.quantization().zero_point();
    return activation_range(params.activation, *output.tensor, &range_);
  }

  template <typename Each>
  void each_output(Each each) const {
    int64_t i = 0;
    for (int64_t row = 0; row < rows_; ++row) {
      for (int32_t unit = 0; unit < units_; ++unit) each(row, unit, i++);
    }
  }

  template <typename Sum, typename X, typename W, typename Bias>
  void run_integers(const Operand& input, const Operand& weights, const Operand& bias, const Operand& output) const {
    const X* x = input.get<X>();
    const W* w = weights.get<W>();
    const Bias* b = bias.get<Bias>();
    X* out = output.mutable_get<X>();
    each_output([&](int64_t row, int32_t unit, int64_t i) {
      Sum sum = dot(Sum{0}, x + row * depth_, w + unit * int64_t{depth_}, depth_, input_zero_, weights_zero_);
      if (b) sum += static_cast<Sum>(b[unit]);
      // TFLite's reference kernel rounds in double here, not in fixed point.
      const double factor = factors_[factors_.size() > 1 ? static_cast<size_t>(unit) : 0];
      const int32_t scaled = to_int32(std::round(static_cast<double>(as_signed(sum)) * factor));
      out[i] = stored_as<X>(scaled, output_zero_, range_);
    });
  }

  void run_hybrid(const Operand& input, const Operand& weights, const Operand& bias, const Operand& output,
                  void* scratch) const {
    const HybridRows rows(scratch, rows_);
    for (int64_t row = 0; row < rows_; ++row) {
      rows.quantize(input.get<float>() + row * depth_, row, depth_, asymmetric_);
    }
    const std::vector<float>& scales = weights.quantization().scales;
    const bool per_channel = scales.size() > 1;
    const int8_t* w = weights.get<int8_t>();
    const float* b = bias.get<float>();
    float* out = output.mutable_get<float>();
    each_output([&](int64_t row, int32_t unit, int64_t i) {
      const uint32_t sum =
          dot(uint32_t{0}, rows.stored + row * depth_, w + unit * int64_t{depth_}, depth_, rows.zero_points[row]);
      const float scale = scales[per_channel ? static_cast<size_t>(unit) : 0] * rows.scales[row];
      const float value = (b ? b[unit] : 0.0f) + static_cast<float>(as_signed(sum)) * scale;
      out[i] = clamp_to(value, min_, max_);
    });
  }

  Arithmetic arithmetic_ = Arithmetic::kFloat;
  int64_t rows_ = 0;
  int32_t units_ = 0, depth_ = 0;
  float min_ = 0.0f, max_ = 0.0f;
  bool asymmetric_ = false;
  std::vector<double> factors_;
  int32_t input_zero_ = 0, weights_zero_ = 0, output_zero_ = 0;
  Range range_;
};

constexpr int kMatmulRank = 5;  // the most that TFLite takes
constexpr int kBatchDims = kMatmulRank - 2;

class BatchMatmul : public Kernel {
 public:
  Status prepare(Call& call) override {
    const auto params = call.params<BatchMatmulParams>();
    LITEFUSE_REQUIRE(call.inputs.size() == 2 && call.has(0) && call.has(1), "it does not have two inputs");
    LITEFUSE_REQUIRE(call.outputs.size() == 1 && call.outputs[0].present(), "it has %zu outputs", call.outputs.size());
    const Operand &x = call.inputs[0], &y = call.inputs[1], &output = call.outputs[0];
    for (const Operand* operand : {&x, &y}) {
      LITEFUSE_REQUIRE(operand->shape.rank() >= 2 && operand->shape.rank() <= kMatmulRank,
                       "an input has %d dimensions, not 2 to 5", operand->shape.rank());
    }
    adj_x_ = params.adj_x;
    adj_y_ = params.adj_y;
    rows_ = x.shape.last(adj_x_ ? 0 : 1);
    depth_ = x.shape.last(adj_x_ ? 1 : 0);
    columns_ = y.shape.last(adj_y_ ? 1 : 0);
    const int32_t depth_of_y = y.shape.last(adj_y_ ? 0 : 1);
    LITEFUSE_REQUIRE(depth_ == depth_of_y, "its inputs %s and %s do not fit together", x.shape.str().c_str(),
                     y.shape.str().c_str());

    const Shape xs = x.shape.extended(kMatmulRank), ys = y.shape.extended(kMatmulRank);
    std::vector<int32_t> shape(kMatmulRank);
    for (int i = 0; i < kBatchDims; ++i) {
      LITEFUSE_REQUIRE(xs[i] == ys[i] || xs[i] == 1 || ys[i] == 1, "the batches of its inputs %s and %s do not fit",
                       x.shape.str().c_str(), y.shape.str().c_str());
      shape[static_cast<size_t>(i)] = batches_[i] = xs[i] == 1 ? ys[i] : xs[i];
    }
    shape[kBatchDims] = rows_;
    shape[kBatchDims + 1] = columns_;
    shape.erase(shape.begin(), shape.end() - std::max(x.shape.rank(), y.shape.rank()));
    LITEFUSE_REQUIRE(call.outputs[0].shape.assign(shape), "its output is too large");
    int64_t x_step = 1, y_step = 1;  // matrices to the next along a dimension
    for (int i = kBatchDims - 1; i >= 0; --i) {
      x_steps_[i] = xs[i] == 1 ? 0 : x_step;
      y_steps_[i] = ys[i] == 1 ? 0 : y_step;
      x_step *= xs[i];
      y_step *= ys[i];
    }
    x_matrices_ = x_step;

    LITEFUSE_RETURN_IF_REFUSED(prepare_arithmetic(params, x, y, output));
    // A row of sums, and for hybrid a column of the input and all of it quantised.
    call.scratch_bytes = sums_bytes();
    if (mode_ == Mode::kHybrid) {
      call.scratch_bytes +=
          HybridRows::bytes(x_matrices_ * rows_, depth_) + sizeof(float) * static_cast<size_t>(depth_);
    }
    return Status();
  }

  void run(const Call& call) const override {
    const Operand &x = call.inputs[0], &y = call.inputs[1], &output = call.outputs[0];
    if (output.elements() == 0) return;
    switch (mode_) {
      case Mode::kFloat: {
        float* out = output.mutable_get<float>();
        return run_as<float>(x.get<float>(), y.get<float>(), call.scratch,
                             [out](float sum, int64_t i) { out[i] = sum; });
      }
      case Mode::kInt8:
        return run_integers<uint32_t, int8_t, int8_t>(x, y, output, call.scratch);
      case Mode::kInt8To32: {
        int32_t* out = output.mutable_get<int32_t>();
        return run_as<uint32_t>(x.get<int8_t>(), y.get<int8_t>(), call.scratch,
                                [out](uint32_t sum, int64_t i) { out[i] = as_signed(sum); });
      }
      case Mode::kInt16x8:
        return run_integers<uint64_t, int16_t, int8_t>(x, y, output, call.scratch);
      case Mode::kInt16:
        return run_integers<uint64_t, int16_t, int16_t>(x, y, output, call.scratch);
      case Mode::kHybrid:
        return run_hybrid(x, y, output, call.scratch);
    }
  }

 private:
  enum class Mode { kFloat, kInt8, kInt8To32, kInt16x8, kInt16, kHybrid };

  Status prepare_arithmetic(const BatchMatmulParams& params, const Operand& x, const Operand& y,
                            const Operand& output) {
    const Type a = x.type(), b = y.type();
    Type needed = a;
    if (a == Type::kFloat32 && b == Type::kFloat32) {
      mode_ = Mode::kFloat;
    } else if (a == Type::kFloat32 && b == Type::kInt8) {
      mode_ = Mode::kHybrid;
    } else if (a == Type::kInt8 && b == Type::kInt8) {
      mode_ = output.type() == Type::kInt32 ? Mode::kInt8To32 : Mode::kInt8;
      needed = output.type() == Type::kInt32 ? Type::kInt32 : Type::kInt8;
    } else if (a == Type::kInt16 && (b == Type::kInt8 || b == Type::kInt16)) {
      mode_ = b == Type::kInt8 ? Mode::kInt16x8 : Mode::kInt16;
    } else {
      return refuse("its inputs are %s and %s", name_of(a), name_of(b));
    }
    LITEFUSE_REQUIRE(output.type() == needed, "its output is %s where its inputs are %s and %s", name_of(output.type()),
                     name_of(a), name_of(b));
    requantization_ = Requantization();
    if (mode_ == Mode::kFloat || mode_ == Mode::kInt8To32) return Status();
    if (mode_ == Mode::kHybrid) return prepare_hybrid(params, x, y);
    LITEFUSE_RETURN_IF_REFUSED(check_one_scale(x, "first input"));
    LITEFUSE_RETURN_IF_REFUSED(check_one_scale(y, "second input"));
    LITEFUSE_RETURN_IF_REFUSED(check_one_scale(output, "output"));
    LITEFUSE_REQUIRE(a != Type::kInt16 || y.quantization().zero_point() == 0,
                     "its second input has the zero point %d, not 0", y.quantization().zero_point());
    const float product = x.quantization().scale() * y.quantization().scale();
    LITEFUSE_RETURN_IF_REFUSED(requantization_.add(
        static_cast<double>(product) / static_cast<double>(output.quantization().scale()), a == Type::kInt16));
    requantization_.input_zero = x.quantization().zero_point();
    requantization_.weights_zero = y.quantization().zero_point();
    requantization_.output_zero = output.quantization().zero_point();
    requantization_.range = range_of(output.type());
    return Status();
  }

  Status prepare_hybrid(const BatchMatmulParams& params, const Operand& x, const Operand& y) {
    LITEFUSE_RETURN_IF_REFUSED(check_symmetric_weights(y, columns_));
    LITEFUSE_REQUIRE(!y.quantization().per_channel() || y.quantization().axis == y.shape.rank() - (adj_y_ ? 2 : 1),
                     "its second input is quantised along axis %d, which is not that of the output's columns",
                     y.quantization().axis);
    asymmetric_ = params.asymmetric_quantize_inputs;
    // TFLite sees batches in more than one dimension as one where it can, and mixes up the scales and the sums of
    // different matrices where more than one remains.
    Shape xs = x.shape, ys = y.shape;
    if (!adj_x_ && xs.rank() > 2 && ys.rank() > 2 && ys.last(2) == 1) {
      xs = without_third_last(xs);
      ys = without_third_last(ys);
    }
    LITEFUSE_REQUIRE(batch_dims(xs) <= 1, "its input is float, its int8 weights are not, and %s has several batches",
                     x.shape.str().c_str());
    if (!asymmetric_) return Status();
    LITEFUSE_REQUIRE(y.constant(), "its weights are computed at run time and its input is quantised with a zero point");
    LITEFUSE_REQUIRE(batch_dims(ys) <= 1 && (ys.rank() < kMatmulRank || ys[0] == 1),
                     "its input is quantised with a zero point and %s has several batches", y.shape.str().c_str());
    return Status();
  }

  static Shape without_third_last(const Shape& shape) {
    std::vector<int32_t> dims(shape.data(), shape.data() + shape.rank());
    dims.erase(dims.end() - 3);
    Shape result;
    result.assign(dims);  // no more elements than before, so it succeeds
    return result;
  }

  static int batch_dims(const Shape& shape) {
    int count = 0;
    for (int i = 0; i < shape.rank() - 2; ++i) count += shape[i] != 1;
    return count;
  }

  // One accumulator of up to 64 bits per column; or, with zero points, one of 32 bits and the sum of the weights.
  size_t sums_bytes() const { return sizeof(uint64_t) * static_cast<size_t>(columns_); }

  // Calls each(matrix of x, matrix of y, index of the first output) for every batch of the output.
  template <typename Each>
  void each_batch(Each each) const {
    int64_t i = 0;
    for (int32_t b0 = 0; b0 < batches_[0]; ++b0) {
      for (int32_t b1 = 0; b1 < batches_[1]; ++b1) {
        for (int32_t b2 = 0; b2 < batches_[2]; ++b2) {
          each(b0 * x_steps_[0] + b1 * x_steps_[1] + b2 * x_steps_[2],
               b0 * y_steps_[0] + b1 * y_steps_[1] + b2 * y_steps_[2], i);
          i += int64_t{rows_} * columns_;
        }
      }
    }
  }

  // The sums of one row of the output. x runs along it with a step; y is read in the order that memory has.
  template <typename Sum, typename X, typename Y>
  void row_sums(Sum* sums, const X* x, int64_t x_step, const Y* y, int32_t x_zero, int32_t y_zero) const {
    for (int32_t j = 0; j < columns_; ++j) sums[j] = 0;
    if (adj_y_) {
      for (int32_t j = 0; j < columns_; ++j) {
        const Y* row = y + j * int64_t{depth_};
        Sum sum = 0;
        for (int32_t k = 0; k < depth_; ++k) sum = add_product(sum, x[k * x_step], row[k], x_zero, y_zero);
        sums[j] = sum;
      }
      return;
    }
    for (int32_t k = 0; k < depth_; ++k) {
      const X value = x[k * x_step];
      const Y* row = y + k * int64_t{columns_};
      for (int32_t j = 0; j < columns_; ++j) sums[j] = add_product(sums[j], value, row[j], x_zero, y_zero);
    }
  }

  template <typename Sum, typename X, typename Y, typename Finish>
  void run_as(const X* x, const Y* y, void* scratch, Finish finish) const {
    Sum* sums = static_cast<Sum*>(scratch);
    const int64_t x_size = int64_t{rows_} * depth_, y_size = int64_t{depth_} * columns_;
    each_batch([&](int64_t of_x, int64_t of_y, int64_t i) {
      for (int32_t row = 0; row < rows_; ++row) {
        const X* from = x + of_x * x_size + (adj_x_ ? int64_t{row} : int64_t{row} * depth_);
        row_sums(sums, from, adj_x_ ? rows_ : 1, y + of_y * y_size, requantization_.input_zero,
                 requantization_.weights_zero);
        for (int32_t j = 0; j < columns_; ++j) finish(sums[j], i++);
      }
    });
  }

  template <typename Sum, typename X, typename Y>
  void run_integers(const Operand& x, const Operand& y, const Operand& output, void* scratch) const {
    const Requantization& r = requantization_;
    const Multiplier m = r.multipliers[0];
    X* out = output.mutable_get<X>();
    run_as<Sum>(x.get<X>(), y.get<Y>(), scratch, [&r, m, out](Sum sum, int64_t i) {
      out[i] = stored_as<X>(multiply(as_signed(sum), m), r.output_zero, r.range);
    });
  }

  void run_hybrid(const Operand& x, const Operand& y, const Operand& output, void* scratch) const {
    auto* sums = static_cast<uint32_t*>(scratch);
    auto* column_sums = reinterpret_cast<int32_t*>(sums + columns_);  // of the weights
    auto* column = reinterpret_cast<float*>(static_cast<char*>(scratch) + sums_bytes());
    const HybridRows rows(column + depth_, x_matrices_ * rows_);
    const int64_t x_size = int64_t{rows_} * depth_, y_size = int64_t{depth_} * columns_;
    for (int64_t row = 0; row < x_matrices_ * rows_; ++row) {
      const float* from = x.get<float>() + row * depth_;
      if (adj_x_) {
        from = x.get<float>() + row / rows_ * x_size + row % rows_;
        for (int32_t k = 0; k < depth_; ++k) column[k] = from[k * int64_t{rows_}];
        from = column;
      }
      rows.quantize(from, row, depth_, asymmetric_);
    }
    const std::vector<float>& scales = y.quantization().scales;
    const bool per_channel = scales.size() > 1;
    float* out = output.mutable_get<float>();
    each_batch([&](int64_t of_x, int64_t of_y, int64_t i) {
      const int8_t* weights = y.get<int8_t>() + of_y * y_size;
      for (int32_t j = 0; asymmetric_ && j < columns_; ++j) column_sums[j] = column_sum(weights, j);
      for (int64_t row = of_x * rows_; row < (of_x + 1) * rows_; ++row) {
        row_sums(sums, rows.stored + row * depth_, 1, weights, 0, 0);
        const auto zero = static_cast<float>(rows.zero_points[row]);
        for (int32_t j = 0; j < columns_; ++j) {
          // The zero point is taken off in float, as TFLite does it, which rounds large sums.
          const float offset = asymmetric_ ? static_cast<float>(column_sums[j]) * zero : 0.0f;
          const int32_t sum = to_int32(static_cast<float>(as_signed(sums[j])) - offset);
          const float scale = rows.scales[row] * scales[per_channel ? static_cast<size_t>(j) : 0];
          out[i++] = scale * static_cast<float>(sum);
        }
      }
    });
  }

  // The weights that make output column j, added up.
  int32_t column_sum(const int8_t* weights, int32_t j) const {
    const int64_t step = adj_y_ ? 1 : columns_;
    const int8_t* first = weights + (adj_y_ ? j * int64_t{depth_} : j);
    uint32_t sum = 0;
    for (int32_t k = 0; k < depth_; ++k) sum += static_cast<uint32_t>(first[k * step]);
    return as_signed(sum);
  }

  Mode mode_ = Mode::kFloat;
  bool adj_x_ = false, adj_y_ = false, asymmetric_ = false;
  int32_t rows_ = 0, depth_ = 0, columns_ = 0;
  int32_t batches_[kBatchDims] = {};
  int64_t x_steps_[kBatchDims] = {}, y_steps_[kBatchDims] = {};
  int64_t x_matrices_ = 1;
  Requantization requantization_;
};

}  // namespace

std::unique_ptr<Kernel> make_fully_connected() { return std::make_unique<FullyConnected>(); }
std::unique_ptr<Kernel> make_batch_matmul() { return std::make_unique<BatchMatmul>(); }

}  // namespace litefuse
