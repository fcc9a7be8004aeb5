// Comparisons, logic and selection. Bytes of bool tensors count as true unless they are 0, as files may hold others
// than 0 and 1; results are 0 or 1.
#include <array>
#include <memory>
#include <type_traits>

#include "kernels/broadcast.h"
#include "kernels/elementwise.h"
#include "kernels/kernel.h"

namespace litefuse {
namespace {

struct Equal {
  template <typename T>
  bool operator()(T a, T b) const {
    return a == b;
  }
};
struct NotEqual {
  template <typename T>
  bool operator()(T a, T b) const {
    return a != b;
  }
};
struct Less {
  template <typename T>
  bool operator()(T a, T b) const {
    return a < b;
  }
};
struct LessEqual {
  template <typename T>
  bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct Greater {
  template <typename T>
  bool operator()(T a, T b) const {
    return a > b;
  }
};
struct GreaterEqual {
  template <typename T>
  bool operator()(T a, T b) const {
    return a >= b;
  }
};

Status check_bool_output(const Call& call) {
  LITEFUSE_REQUIRE(call.outputs[0].type() == Type::kBool, "its output is %s instead of bool",
                   name_of(call.outputs[0].type()));
  return Status();
}

// Broadcasts the two inputs of a call and sets the shape of its output.
Status plan_pair(Call& call, Broadcast<2>* walk) {
  Shape shape;
  LITEFUSE_RETURN_IF_REFUSED(broadcast_shape(call.inputs[0].shape, call.inputs[1].shape, &shape));
  walk->plan(shape, {call.inputs[0].shape, call.inputs[1].shape});
  call.outputs[0].shape = shape;
  call.scratch_bytes = 0;
  return Status();
}

template <typename Op>
class Comparison final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 2, 1));
    const Operand& a = call.inputs[0];
    const Operand& b = call.inputs[1];
    const Type type = a.type();
    LITEFUSE_REQUIRE(b.type() == type, "its inputs are %s and %s", name_of(type), name_of(b.type()));
    LITEFUSE_RETURN_IF_REFUSED(check_bool_output(call));
    switch (type) {
      case Type::kBool:
        LITEFUSE_REQUIRE(kEquality, "bool is not supported");
        scaled_ = false;
        break;
      case Type::kFloat32:
      case Type::kInt32:
      case Type::kInt64:
        scaled_ = false;
        break;
      case Type::kInt16:
        // TFLite orders int16 as stored. Its NOT_EQUAL computes nothing where there is no quantisation.
        scaled_ = kEquality && a.quantization().quantized();
        LITEFUSE_REQUIRE(scaled_ || !kInequality, "int16 without quantisation is not supported");
        break;
      case Type::kInt8:
      case Type::kUInt8:
        scaled_ = true;
        break;
      default:
        return refuse("%s is not supported", name_of(type));
    }
    if (scaled_) {
      LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("first input", a));
      LITEFUSE_RETURN_IF_REFUSED(require_per_tensor("second input", b));
      zero_a_ = a.quantization().zero_point();
      zero_b_ = b.quantization().zero_point();
      // The kernels of TFLite only shift to the right here, and end the program at a scale of exactly one.
      LITEFUSE_REQUIRE(a.quantization().scale() < 1.0f && b.quantization().scale() < 1.0f,
                       "its inputs have scales of %g and %g, not below one",
                       static_cast<double>(a.quantization().scale()), static_cast<double>(b.quantization().scale()));
      LITEFUSE_RETURN_IF_REFUSED(find_multiplier_below_one(a.quantization().scale(), &multiplier_a_));
      LITEFUSE_RETURN_IF_REFUSED(find_multiplier_below_one(b.quantization().scale(), &multiplier_b_));
    }
    return plan_pair(call, &walk_);
  }

  void run(const Call& call) const override {
    switch (call.inputs[0].type()) {
      case Type::kBool:
        return each<uint8_t>(call, [](uint8_t a, uint8_t b) { return Op()(a != 0, b != 0); });
      case Type::kFloat32:
        return each<float>(call, Op());
      case Type::kInt32:
        return each<int32_t>(call, Op());
      case Type::kInt64:
        return each<int64_t>(call, Op());
      case Type::kInt16:
        if (scaled_) return run_scaled<int16_t>(call);
        return each<int16_t>(call, Op());
      case Type::kInt8:
        return run_scaled<int8_t>(call);
      default:
        return run_scaled<uint8_t>(call);
    }
  }

 private:
  static constexpr bool kInequality = std::is_same_v<Op, NotEqual>;
  static constexpr bool kEquality = std::is_same_v<Op, Equal> || kInequality;

  template <typename T, typename F>
  void each(const Call& call, F f) const {
    broadcast(walk_, call.inputs[0].get<T>(), call.inputs[1].get<T>(), call.outputs[0].mutable_get<uint8_t>(),
              [f](T a, T b) { return static_cast<uint8_t>(f(a, b)); });
  }
  template <typename T>
  void run_scaled(const Call& call) const {
    each<T>(call, [this](T a, T b) {
      return Op()(multiply((a - zero_a_) * 256, multiplier_a_), multiply((b - zero_b_) * 256, multiplier_b_));
    });
  }

  Broadcast<2> walk_;
  bool scaled_ = false;
  int32_t zero_a_ = 0, zero_b_ = 0;
  Multiplier multiplier_a_, multiplier_b_;
};

template <bool kAnd>
class Logical final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 2, 1));
    LITEFUSE_REQUIRE(call.inputs[0].type() == Type::kBool && call.inputs[1].type() == Type::kBool,
                     "its inputs are %s and %s instead of bool", name_of(call.inputs[0].type()),
                     name_of(call.inputs[1].type()));
    LITEFUSE_RETURN_IF_REFUSED(check_bool_output(call));
    return plan_pair(call, &walk_);
  }
  void run(const Call& call) const override {
    broadcast(walk_, call.inputs[0].get<uint8_t>(), call.inputs[1].get<uint8_t>(),
              call.outputs[0].mutable_get<uint8_t>(),
              [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(kAnd ? a != 0 && b != 0 : a != 0 || b != 0); });
  }

 private:
  Broadcast<2> walk_;
};

class LogicalNot final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 1, 1));
    LITEFUSE_REQUIRE(call.inputs[0].type() == Type::kBool, "its input is %s instead of bool",
                     name_of(call.inputs[0].type()));
    LITEFUSE_RETURN_IF_REFUSED(check_bool_output(call));
    call.outputs[0].shape = call.inputs[0].shape;
    call.scratch_bytes = 0;
    return Status();
  }
  void run(const Call& call) const override {
    const uint8_t* x = call.inputs[0].get<uint8_t>();
    uint8_t* y = call.outputs[0].mutable_get<uint8_t>();
    const int64_t n = call.inputs[0].elements();
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] == 0 ? 1 : 0;
  }
};

// SELECT, whose condition may have one element per slice of the others, and SELECT_V2, which broadcasts all three.
template <bool kBroadcasts>
class Select final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 3, 1));
    const Operand& condition = call.inputs[0];
    const Operand& x = call.inputs[1];
    const Operand& y = call.inputs[2];
    Operand& output = call.outputs[0];
    LITEFUSE_REQUIRE(condition.type() == Type::kBool, "its condition is %s instead of bool", name_of(condition.type()));
    LITEFUSE_REQUIRE(x.type() == y.type() && x.type() == output.type(), "it chooses between %s and %s to give %s",
                     name_of(x.type()), name_of(y.type()), name_of(output.type()));
    LITEFUSE_REQUIRE(size_of(x.type()) > 0, "%s is not supported", name_of(x.type()));
    call.scratch_bytes = 0;
    // Single elements may have any shapes, and the output keeps that of the file.
    if (condition.elements() == 1 && x.elements() == 1 && y.elements() == 1 && output.tensor->shape.elements() == 1) {
      output.shape = output.tensor->shape;
      walk_.plan(Shape(), {Shape(), Shape(), Shape()});
      return Status();
    }
    Shape shape = x.shape;
    Shape condition_shape = condition.shape;
    if (kBroadcasts) {
      Shape both;
      LITEFUSE_RETURN_IF_REFUSED(broadcast_shape(x.shape, y.shape, &both));
      LITEFUSE_RETURN_IF_REFUSED(broadcast_shape(condition.shape, both, &shape));
    } else {
      LITEFUSE_REQUIRE(x.shape == y.shape, "it chooses between shapes %s and %s", x.shape.str().c_str(),
                       y.shape.str().c_str());
      if (condition.shape != x.shape && condition.shape.rank() != 0) {
        LITEFUSE_REQUIRE(condition.shape.rank() == 1 && x.shape.rank() > 0 && condition.shape[0] == x.shape[0],
                         "its condition, %s, does not fit %s", condition.shape.str().c_str(), x.shape.str().c_str());
        std::array<int32_t, kMaxRank> dims;
        dims.fill(1);
        dims[0] = x.shape[0];
        LITEFUSE_REQUIRE(condition_shape.assign(dims.data(), x.shape.rank()), "its condition is too large");
      }
    }
    output.shape = shape;
    walk_.plan(shape, {condition_shape, x.shape, y.shape});
    return Status();
  }

  void run(const Call& call) const override {
    switch (size_of(call.outputs[0].type())) {
      case 1:
        return choose<uint8_t>(call);
      case 2:
        return choose<uint16_t>(call);
      case 4:
        return choose<uint32_t>(call);
      default:
        return choose<uint64_t>(call);
    }
  }

 private:
  template <typename T>
  void choose(const Call& call) const {
    broadcast(walk_, call.inputs[0].get<uint8_t>(), call.inputs[1].get<T>(), call.inputs[2].get<T>(),
              call.outputs[0].mutable_get<T>(), [](uint8_t condition, T x, T y) { return condition != 0 ? x : y; });
  }

  Broadcast<3> walk_;
};

}  // namespace

std::unique_ptr<Kernel> make_equal() { return std::make_unique<Comparison<Equal>>(); }
std::unique_ptr<Kernel> make_not_equal() { return std::make_unique<Comparison<NotEqual>>(); }
std::unique_ptr<Kernel> make_less() { return std::make_unique<Comparison<Less>>(); }
std::unique_ptr<Kernel> make_less_equal() { return std::make_unique<Comparison<LessEqual>>(); }
std::unique_ptr<Kernel> make_greater() { return std::make_unique<Comparison<Greater>>(); }
std::unique_ptr<Kernel> make_greater_equal() { return std::make_unique<Comparison<GreaterEqual>>(); }
std::unique_ptr<Kernel> make_logical_and() { return std::make_unique<Logical<true>>(); }
std::unique_ptr<Kernel> make_logical_or() { return std::make_unique<Logical<false>>(); }
std::unique_ptr<Kernel> make_logical_not() { return std::make_unique<LogicalNot>(); }
std::unique_ptr<Kernel> make_select() { return std::make_unique<Select<false>>(); }
std::unique_ptr<Kernel> make_select_v2() { return std::make_unique<Select<true>>(); }

}  // namespace litefuse
