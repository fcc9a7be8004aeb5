// MEAN, SUM, REDUCE_MAX, REDUCE_MIN and REDUCE_PROD over any set of axes.
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/checks.h"

namespace litefuse {
namespace {

enum class Reducer { kMean, kSum, kMax, kMin, kProd };

// How the elements of an input map to those of the output when some axes are reduced.
class Layout {
 public:
  // Refuses axes out of range. `axes` are `count` numbers, from the end where negative; they may repeat.
  Status assign(const Shape& input, const int32_t* axes, int64_t count, bool keep_dims, Shape* output) {
    const int rank = input.rank();
    std::array<bool, kMaxRank> reduced{};
    // Those of a scalar are not looked at.
    for (int64_t i = 0; rank > 0 && i < count; ++i) {
      const int64_t axis = axes[i] < 0 ? int64_t{axes[i]} + rank : axes[i];
      LITEFUSE_REQUIRE(axis >= 0 && axis < rank, "it reduces axis %d of an input of rank %d", axes[i], rank);
      reduced[static_cast<size_t>(axis)] = true;
    }
    std::vector<int32_t> dims;
    all_ = true;
    empty_ = input.elements() == 0;
    reduced_elements_ = 1;
    for (int i = 0; i < rank; ++i) {
      const bool gone = reduced[static_cast<size_t>(i)];
      if (!gone) dims.push_back(input[i]);
      if (gone && keep_dims) dims.push_back(1);
      all_ = all_ && gone;
      if (gone && !empty_) reduced_elements_ *= input[i];
    }
    LITEFUSE_REQUIRE(output->assign(dims), "its output would be too large");
    merge(input, reduced);
    return Status();
  }

  bool all() const { return all_; }
  bool empty() const { return empty_; }
  // Inputs for each output.
  int64_t reduced_elements() const { return reduced_elements_; }

  // Goes through the input in order. What is written to each output starts with first(in), and next(output, in) follows
  // for each further element.
  template <typename In, typename Out, typename First, typename Next>
  void fold(const In* in, Out* out, First first, Next next) const {
    if (empty_) return;
    const Axis inner = axes_[static_cast<size_t>(count_ - 1)];
    std::array<int64_t, kMaxRank> index{};
    int advanced = 0;  // reduced axes that are not at their first element
    for (;;) {
      if (inner.step == 0) {
        Out total = advanced == 0 ? first(in[0]) : next(*out, in[0]);
        for (int64_t i = 1; i < inner.size; ++i) total = next(total, in[i]);
        *out = total;
      } else if (advanced == 0) {
        for (int64_t i = 0; i < inner.size; ++i) out[i] = first(in[i]);
      } else {
        for (int64_t i = 0; i < inner.size; ++i) out[i] = next(out[i], in[i]);
      }
      in += inner.size;
      int i = count_ - 2;
      for (; i >= 0; --i) {
        const Axis& axis = axes_[static_cast<size_t>(i)];
        int64_t& at = index[static_cast<size_t>(i)];
        if (at == 0 && axis.step == 0 && axis.size > 1) ++advanced;
        out += axis.step;
        if (++at < axis.size) break;
        out -= axis.step * axis.size;
        at = 0;
        if (axis.step == 0 && axis.size > 1) --advanced;
      }
      if (i < 0) return;
    }
  }

 private:
  struct Axis {
    int64_t size = 1;
    int64_t step = 0;  // in the output; 0 where the axis is reduced
  };

  // Dimensions of one element are left out and neighbours of the same kind are joined.
  void merge(const Shape& input, const std::array<bool, kMaxRank>& reduced) {
    std::array<Axis, kMaxRank> inside_out{};
    int count = 0;
    int64_t step = 1;
    for (int i = input.rank() - 1; i >= 0 && !empty_; --i) {
      if (input[i] == 1) continue;
      const bool kept = !reduced[static_cast<size_t>(i)];
      if (count > 0 && (inside_out[static_cast<size_t>(count - 1)].step != 0) == kept) {
        inside_out[static_cast<size_t>(count - 1)].size *= input[i];
      } else {
        inside_out[static_cast<size_t>(count++)] = {input[i], kept ? step : 0};
      }
      if (kept) step *= input[i];
    }
    if (count == 0) count = 1;  // a single element
    count_ = count;
    for (int i = 0; i < count; ++i) axes_[static_cast<size_t>(i)] = inside_out[static_cast<size_t>(count - 1 - i)];
  }

  std::array<Axis, kMaxRank> axes_{};
  int count_ = 1;
  bool all_ = false;
  bool empty_ = false;
  int64_t reduced_elements_ = 1;
};

// Integers keep the low bits of sums and products that do not fit.
template <typename T>
T plus(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return a + b;
}

template <typename T>
T times(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return a * b;
}

// `neutral` is what the output holds before its first element, except where a single output takes in everything: that
// one starts with the first element, which is how NaN and infinities get through.
template <typename T, typename Next>
void fold_from(const Layout& layout, const Call& call, T neutral, Next next) {
  T* out = call.outputs[0].mutable_get<T>();
  const T* in = call.inputs[0].get<T>();
  if (layout.empty()) {
    std::fill_n(out, call.outputs[0].elements(), neutral);
  } else if (layout.all()) {
    layout.fold(
        in, out, [](T x) { return x; }, next);
  } else {
    layout.fold(
        in, out, [next, neutral](T x) { return next(neutral, x); }, next);
  }
}

template <typename T>
void extreme(const Layout& layout, const Call& call, bool max) {
  if (max) {
    fold_from<T>(layout, call, std::numeric_limits<T>::lowest(), [](T a, T x) { return x > a ? x : a; });
  } else {
    fold_from<T>(layout, call, std::numeric_limits<T>::max(), [](T a, T x) { return x < a ? x : a; });
  }
}

template <typename T>
void sum(const Layout& layout, const Call& call) {
  fold_from<T>(layout, call, T{0}, [](T a, T x) { return plus(a, x); });
}

template <typename T>
void product(const Layout& layout, const Call& call) {
  fold_from<T>(layout, call, T{1}, [](T a, T x) { return times(a, x); });
}

class Reduce : public Kernel {
 public:
  explicit Reduce(Reducer reducer) : reducer_(reducer) {}

  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 2, 1));
    const Operand& input = call.inputs[0];
    const Operand& axes = call.inputs[1];
    Operand& output = call.outputs[0];
    LITEFUSE_REQUIRE(axes.constant(), "its axes are computed at run time");
    LITEFUSE_REQUIRE(axes.type() == Type::kInt32, "its axes are %s, not int32", name_of(axes.type()));
    LITEFUSE_REQUIRE(output.type() == input.type(), "its input is %s and its output %s", name_of(input.type()),
                     name_of(output.type()));
    LITEFUSE_RETURN_IF_REFUSED(layout_.assign(input.shape, axes.get<int32_t>(), axes.elements(),
                                              call.params<ReducerParams>().keep_dims, &output.shape));
    LITEFUSE_RETURN_IF_REFUSED(prepare_arithmetic(input, output));
    const auto outputs = static_cast<size_t>(output.elements());
    call.scratch_bytes = 0;
    if (rescaled_) call.scratch_bytes = outputs * sizeof(int32_t);
    if (reducer_ == Reducer::kMean && !rescaled_ && input.type() != Type::kFloat32) {
      call.scratch_bytes = outputs * sizeof(int64_t);
    }
    return Status();
  }

  void run(const Call& call) const override {
    switch (call.inputs[0].type()) {
      case Type::kFloat32:
        return run_numbers<float>(call);
      case Type::kInt32:
        return run_numbers<int32_t>(call);
      case Type::kInt64:
        return run_numbers<int64_t>(call);
      case Type::kInt8:
        return run_quantized<int8_t>(call);
      case Type::kUInt8:
        return run_quantized<uint8_t>(call);
      case Type::kInt16:
        return run_quantized<int16_t>(call);
      case Type::kBool:
        return extreme<bool>(layout_, call, reducer_ == Reducer::kMax);
      default:
        return;  // prepare() refused it
    }
  }

 private:
  Status prepare_arithmetic(const Operand& input, const Operand& output) {
    rescaled_ = false;
    const Type type = input.type();
    const bool extreme = reducer_ == Reducer::kMax || reducer_ == Reducer::kMin;
    if (!is_quantized_type(type)) {
      LITEFUSE_REQUIRE(
          type == Type::kFloat32 || type == Type::kInt32 || type == Type::kInt64 || (type == Type::kBool && extreme),
          "inputs of type %s are not supported", name_of(type));
      LITEFUSE_REQUIRE(reducer_ != Reducer::kProd || !input.quantization().quantized(),
                       "it multiplies quantised numbers of type %s", name_of(type));
      return Status();
    }
    const Quantization& from = input.quantization();
    const Quantization& to = output.quantization();
    // Numbers without quantisation are compared and multiplied as they stand.
    if (from.quantized() || to.quantized() || reducer_ == Reducer::kMean || reducer_ == Reducer::kSum) {
      LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("input", input));
      LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("output", output));
    }
    LITEFUSE_REQUIRE(type != Type::kInt16 || (from.zero_point() == 0 && to.zero_point() == 0),
                     "it has int16 numbers with a zero point other than 0");
    if (extreme) {
      LITEFUSE_REQUIRE(from.scale() == to.scale() && from.zero_point() == to.zero_point(),
                       "its input and output are quantised differently");
      return Status();
    }
    if (!from.quantized()) return Status();
    rescaled_ = true;
    input_zero_ = from.zero_point();
    output_zero_ = to.zero_point();
    if (reducer_ == Reducer::kProd) return prepare_product(type, from.scale(), to.scale());
    const double factor = static_cast<double>(from.scale()) / static_cast<double>(to.scale());
    LITEFUSE_REQUIRE(factor < 1 << 30, "its input's scale is %g times that of its output", factor);
    factor_ = multiplier_of(factor);
    // The division by the number of elements goes into the factor; the shift by its power of two keeps the precision.
    if (reducer_ == Reducer::kMean && !layout_.empty()) {
      const int64_t n = layout_.reduced_elements();
      int shift = 0;
      while (shift < 32 && (n >> (shift + 1)) != 0) ++shift;
      shift = std::min(shift, 31 + factor_.shift);
      factor_.fraction = static_cast<int32_t>((int64_t{factor_.fraction} << shift) / n);
      factor_.shift -= shift;
    }
    return Status();
  }

  Status prepare_product(Type type, double from, double to) {
    LITEFUSE_REQUIRE(type != Type::kUInt8, "it multiplies quantised numbers of type uint8");
    LITEFUSE_REQUIRE(!layout_.empty(), "it multiplies the elements of an empty quantised input");
    LITEFUSE_REQUIRE(layout_.reduced_elements() <= std::numeric_limits<int32_t>::max(), "it reduces too many elements");
    // Each multiplication is scaled, the last one too, so that no intermediate product overflows.
    const double factor = from / std::pow(to, 1.0 / static_cast<double>(layout_.reduced_elements()));
    factor_ = multiplier_of(factor);
    LITEFUSE_REQUIRE(factor_.shift < 8, "its input's scale is too large for that of its output");
    return Status();
  }

  template <typename T>
  void run_numbers(const Call& call) const {
    switch (reducer_) {
      case Reducer::kSum:
        return sum<T>(layout_, call);
      case Reducer::kProd:
        return product<T>(layout_, call);
      case Reducer::kMean:
        return mean<T>(call);
      default:
        return extreme<T>(layout_, call, reducer_ == Reducer::kMax);
    }
  }

  template <typename T>
  void mean(const Call& call) const {
    using Total = std::conditional_t<std::is_floating_point_v<T>, T, int64_t>;
    const int64_t outputs = call.outputs[0].elements();
    T* out = call.outputs[0].mutable_get<T>();
    if (layout_.empty()) {
      std::fill_n(out, outputs, std::numeric_limits<T>::quiet_NaN());  // 0 for integers
      return;
    }
    Total* totals = static_cast<Total*>(std::is_floating_point_v<T> ? static_cast<void*>(out) : call.scratch);
    layout_.fold(
        call.inputs[0].get<T>(), totals, [](T x) { return Total{0} + x; },
        [](Total total, T x) { return plus<Total>(total, x); });
    const auto n = static_cast<Total>(layout_.reduced_elements());
    for (int64_t i = 0; i < outputs; ++i) out[i] = static_cast<T>(totals[i] / n);
  }

  template <typename T>
  void run_quantized(const Call& call) const {
    if (!rescaled_) {
      if (reducer_ == Reducer::kProd) return product<T>(layout_, call);
      return extreme<T>(layout_, call, reducer_ == Reducer::kMax);
    }
    const int64_t outputs = call.outputs[0].elements();
    T* out = call.outputs[0].mutable_get<T>();
    if (layout_.empty()) {
      std::fill_n(out, outputs, T{0});
      return;
    }
    const T* in = call.inputs[0].get<T>();
    auto* totals = static_cast<int32_t*>(call.scratch);
    const Range range = range_of(call.outputs[0].type());
    if (reducer_ == Reducer::kProd) {
      const int32_t zero = input_zero_;
      const Multiplier factor = factor_;
      layout_.fold(
          in, totals, [zero](T x) { return x - zero; },
          [zero, factor](int32_t total, T x) { return multiply(int64_t{total} * (x - zero), factor); });
      for (int64_t i = 0; i < outputs; ++i) {
        const int32_t stored = wrapping_add(multiply(int64_t{totals[i]}, factor_), output_zero_);
        out[i] = static_cast<T>(range.clamp(stored));
      }
      return;
    }
    layout_.fold(
        in, totals, [](T x) { return int32_t{x}; }, [](int32_t total, T x) { return wrapping_add(total, x); });
    const int64_t zeros = input_zero_ * layout_.reduced_elements();
    for (int64_t i = 0; i < outputs; ++i) {
      const auto total = static_cast<int32_t>(totals[i] - zeros);
      out[i] = static_cast<T>(range.clamp(wrapping_add(multiply(total, factor_), output_zero_)));
    }
  }

  const Reducer reducer_;
  Layout layout_;
  bool rescaled_ = false;  // 8 and 16 bits with scales that count
  int32_t input_zero_ = 0;
  int32_t output_zero_ = 0;
  Multiplier factor_;
};

}  // namespace

std::unique_ptr<Kernel> make_mean() { return std::make_unique<Reduce>(Reducer::kMean); }
std::unique_ptr<Kernel> make_sum() { return std::make_unique<Reduce>(Reducer::kSum); }
std::unique_ptr<Kernel> make_reduce_max() { return std::make_unique<Reduce>(Reducer::kMax); }
std::unique_ptr<Kernel> make_reduce_min() { return std::make_unique<Reduce>(Reducer::kMin); }
std::unique_ptr<Kernel> make_reduce_prod() { return std::make_unique<Reduce>(Reducer::kProd); }

}  // namespace litefuse
