// AVERAGE_POOL_2D and MAX_POOL_2D.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/checks.h"
#include "kernels/window.h"

namespace litefuse {
namespace {

// What average and maximum pooling have in common: windows over the height and width of NHWC inputs.
class Pool : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 1, 1));
    const auto params = call.params<PoolParams>();
    const Operand& input = call.inputs[0];
    Operand& output = call.outputs[0];
    const Type type = input.type();
    LITEFUSE_REQUIRE(type == Type::kFloat32 || is_quantized_type(type), "inputs of type %s are not supported",
                     name_of(type));
    LITEFUSE_REQUIRE(output.type() == type, "its input is %s and its output %s", name_of(type), name_of(output.type()));
    LITEFUSE_REQUIRE(input.shape.rank() == 4, "its input has rank %d, not 4", input.shape.rank());
    const Shape& in = input.shape;
    LITEFUSE_RETURN_IF_REFUSED(
        find_window("height", params.padding, in[1], params.filter_height, params.stride_h, 1, &rows_));
    LITEFUSE_RETURN_IF_REFUSED(
        find_window("width", params.padding, in[2], params.filter_width, params.stride_w, 1, &columns_));
    LITEFUSE_REQUIRE(output.shape.assign({in[0], rows_.out, columns_.out, in[3]}), "its output would be too large");
    LITEFUSE_REQUIRE(output.elements() == 0 || (reaches_input(rows_) && reaches_input(columns_)),
                     "its windows do not all reach the input");
    batches_ = in[0];
    depth_ = in[3];
    call.scratch_bytes = 0;
    if (type == Type::kFloat32) return activation_range(params.activation, &min_, &max_);
    LITEFUSE_RETURN_IF_REFUSED(prepare_quantized(input, output));
    return activation_range(params.activation, *output.tensor, &range_);
  }

 protected:
  // The most inputs that a window has.
  int64_t window_elements() const {
    return int64_t{std::min(rows_.filter, rows_.in)} * std::min(columns_.filter, columns_.in);
  }

  // For each output position: first(its depth outputs), then tap(its outputs, one position's inputs) for each position
  // of the window from the top left, last(its outputs, number of positions).
  template <typename T, typename First, typename Tap, typename Last>
  void each_window(const Call& call, First first, Tap tap, Last last) const {
    const T* in = call.inputs[0].get<T>();
    T* out = call.outputs[0].mutable_get<T>();
    const int64_t row_size = columns_.in * depth_;
    if (call.outputs[0].elements() == 0) return;  // however many positions without channels there are
    for (int64_t batch = 0; batch < batches_; ++batch, in += rows_.in * row_size) {
      for (int32_t y = 0; y < rows_.out; ++y) {
        const int64_t top = rows_.origin(y);
        const Taps down = taps_inside(rows_, top);
        for (int32_t x = 0; x < columns_.out; ++x, out += depth_) {
          const int64_t left = columns_.origin(x);
          const Taps across = taps_inside(columns_, left);
          first(out);
          for (int32_t i = down.begin; i < down.end; ++i) {
            const T* at = in + (top + i) * row_size + (left + across.begin) * depth_;
            for (int32_t j = across.begin; j < across.end; ++j, at += depth_) tap(out, at);
          }
          last(out, int64_t{down.end - down.begin} * (across.end - across.begin));
        }
      }
    }
  }

  Window rows_;
  Window columns_;
  int64_t batches_ = 0;
  int64_t depth_ = 0;
  float min_ = 0.0f;
  float max_ = 0.0f;
  Range range_;

 private:
  static bool reaches_input(const Window& w) { return w.origin(0) + w.filter > 0 && w.origin(w.out - 1) < w.in; }

  static Status prepare_quantized(const Operand& input, const Operand& output) {
    const Quantization& from = input.quantization();
    const Quantization& to = output.quantization();
    if (!from.quantized() && !to.quantized()) return Status();
    LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("input", input));
    LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("output", output));
    // The numbers go through as they are. The runtime does not ask this of int16.
    LITEFUSE_REQUIRE(input.type() == Type::kInt16 ||
                         (std::abs(from.scale() - to.scale()) <= 1e-6f && from.zero_point() == to.zero_point()),
                     "its input and output are quantised differently");
    return Status();
  }
};

class MaxPool : public Pool {
 public:
  void run(const Call& call) const override {
    switch (call.inputs[0].type()) {
      case Type::kFloat32:
        return pool<float>(call, min_, max_);
      case Type::kInt8:
        return pool<int8_t>(call, range_.min, range_.max);
      case Type::kUInt8:
        return pool<uint8_t>(call, range_.min, range_.max);
      default:
        return pool<int16_t>(call, range_.min, range_.max);
    }
  }

 private:
  template <typename T, typename Bound>
  void pool(const Call& call, Bound min, Bound max) const {
    const T low = static_cast<T>(min);
    const T high = static_cast<T>(max);
    const int64_t depth = depth_;
    each_window<T>(
        call, [depth](T* out) { std::fill_n(out, depth, std::numeric_limits<T>::lowest()); },
        [depth](T* out, const T* in) {
          for (int64_t c = 0; c < depth; ++c) out[c] = std::max(out[c], in[c]);
        },
        [depth, low, high](T* out, int64_t) {
          for (int64_t c = 0; c < depth; ++c) out[c] = clamp_to(out[c], low, high);
        });
  }
};

class AveragePool : public Pool {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(Pool::prepare(call));
    const Type type = call.inputs[0].type();
    const int64_t largest = type == Type::kInt16 ? 32768 : type == Type::kFloat32 ? 1 : 255;
    // float32 counts as far as 2^24.
    const int64_t limit = type == Type::kFloat32 ? 1 << 24 : std::numeric_limits<int32_t>::max();
    LITEFUSE_REQUIRE(window_elements() <= limit / (largest + 1), "its windows of %lld elements are too large for sums",
                     static_cast<long long>(window_elements()));
    if (type != Type::kFloat32) call.scratch_bytes = static_cast<size_t>(depth_) * sizeof(int32_t);
    return Status();
  }

  void run(const Call& call) const override {
    switch (call.inputs[0].type()) {
      case Type::kFloat32:
        return run_float(call);
      case Type::kInt8:
        return run_integers<int8_t>(call);
      case Type::kUInt8:
        return run_integers<uint8_t>(call);
      default:
        return run_integers<int16_t>(call);
    }
  }

 private:
  void run_float(const Call& call) const {
    const int64_t depth = depth_;
    each_window<float>(
        call, [depth](float* out) { std::fill_n(out, depth, 0.0f); },
        [depth](float* out, const float* in) {
          for (int64_t c = 0; c < depth; ++c) out[c] += in[c];
        },
        [this, depth](float* out, int64_t count) {
          const auto n = static_cast<float>(count);
          for (int64_t c = 0; c < depth; ++c) out[c] = clamp_to(out[c] / n, min_, max_);
        });
  }

  template <typename T>
  void run_integers(const Call& call) const {
    auto* totals = static_cast<int32_t*>(call.scratch);
    const int64_t depth = depth_;
    each_window<T>(
        call, [totals, depth](T*) { std::fill_n(totals, depth, 0); },
        [totals, depth](T*, const T* in) {
          for (int64_t c = 0; c < depth; ++c) totals[c] += in[c];
        },
        [this, totals, depth](T* out, int64_t count) {
          const auto n = static_cast<int32_t>(count);
          for (int64_t c = 0; c < depth; ++c) {
            const int32_t half = totals[c] > 0 ? n / 2 : -(n / 2);
            out[c] = static_cast<T>(range_.clamp((totals[c] + half) / n));
          }
        });
  }
};

}  // namespace

std::unique_ptr<Kernel> make_average_pool_2d() { return std::make_unique<AveragePool>(); }
std::unique_ptr<Kernel> make_max_pool_2d() { return std::make_unique<MaxPool>(); }

}  // namespace litefuse
