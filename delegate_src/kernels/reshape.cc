// RESHAPE, SQUEEZE, EXPAND_DIMS: the same elements under another shape.
#include "kernels/movement.h"

namespace litefuse {
namespace {

class CopyingKernel : public Kernel {
 public:
  void run(const Call& call) const override { copy_all(call.inputs[0], call.outputs[0]); }
};

class Reshape final : public CopyingKernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 1, 2, 1));
    const Operand& input = call.inputs[0];
    Operand& output = call.outputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
    std::vector<int64_t> dims;
    LITEFUSE_RETURN_IF_REFUSED(wanted(call, &dims));
    LITEFUSE_RETURN_IF_REFUSED(fill_in(input.shape, &dims));
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));
    LITEFUSE_REQUIRE(output.elements() == input.elements(), "it makes %s of %s, which has another number of elements",
                     output.shape.str().c_str(), input.shape.str().c_str());
    return Status();
  }

 private:
  // The shape as the file has it. A second input counts when it is a vector of int32; otherwise the parameters do, as
  // in the stock kernel.
  static Status wanted(const Call& call, std::vector<int64_t>* dims) {
    if (call.has(1)) {
      const Operand& shape = call.inputs[1];
      LITEFUSE_REQUIRE(shape.constant() || shape.elements() == 0, "its shape is computed at run time");
      if (shape.shape.rank() == 1 && shape.type() == Type::kInt32) {
        LITEFUSE_REQUIRE(shape.elements() <= kMaxRank, "its output would have %lld dimensions",
                         static_cast<long long>(shape.elements()));
        return read_integers(call, 1, "shape is", 1, shape.elements(), false, dims);
      }
    }
    const auto params = call.params<ReshapeParams>();
    // Old files say [0] where they mean a scalar.
    if (params.new_shape.size() == 1 && params.new_shape[0] == 0) return Status();
    LITEFUSE_REQUIRE(params.new_shape.size() <= kMaxRank, "its output would have %zu dimensions",
                     params.new_shape.size());
    dims->assign(params.new_shape.begin(), params.new_shape.end());
    return Status();
  }

  // Puts a number in place of -1.
  static Status fill_in(const Shape& input, std::vector<int64_t>* dims) {
    int open = -1;
    Shape others;
    std::vector<int32_t> known;
    for (size_t i = 0; i < dims->size(); ++i) {
      const int64_t dim = (*dims)[i];
      if (dim == -1) {
        LITEFUSE_REQUIRE(open < 0, "its shape leaves two dimensions open");
        open = static_cast<int>(i);
      } else {
        known.push_back(static_cast<int32_t>(dim));
      }
    }
    LITEFUSE_REQUIRE(others.assign(known), "its shape has a negative dimension, or too many elements");
    if (open < 0) return Status();
    // Zeros among the dimensions do not count when there are some on both sides.
    int64_t missing = 0;
    if (input.elements() > 0 || others.elements() == 0) {
      missing = without_zeros(input) / without_zeros(others);
    }
    (*dims)[static_cast<size_t>(open)] = missing;
    return Status();
  }

  static int64_t without_zeros(const Shape& shape) {
    int64_t product = 1;
    for (int i = 0; i < shape.rank(); ++i) product *= shape[i] > 0 ? shape[i] : 1;
    return product;
  }
};

class Squeeze final : public CopyingKernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 1, 1, 1));
    const Shape& input = call.inputs[0].shape;
    LITEFUSE_RETURN_IF_REFUSED(check_types(call.inputs[0], call.outputs[0]));
    const auto params = call.params<SqueezeParams>();
    std::array<bool, kMaxRank> dropped{};
    if (params.squeeze_dims.empty()) {
      for (int i = 0; i < input.rank(); ++i) dropped[static_cast<size_t>(i)] = input[i] == 1;
    }
    for (const int32_t number : params.squeeze_dims) {
      int axis = 0;
      LITEFUSE_RETURN_IF_REFUSED(find_axis(number, input.rank(), &axis));
      LITEFUSE_REQUIRE(input[axis] == 1, "it drops dimension %d, which is %d and not 1", axis, input[axis]);
      dropped[static_cast<size_t>(axis)] = true;
    }
    std::vector<int64_t> dims;
    for (int i = 0; i < input.rank(); ++i) {
      if (!dropped[static_cast<size_t>(i)]) dims.push_back(input[i]);
    }
    return set_shape(call.outputs[0], dims);
  }
};

class ExpandDims final : public CopyingKernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 2, 2, 1));
    const Operand& input = call.inputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, call.outputs[0]));
    LITEFUSE_RETURN_IF_REFUSED(check_same_quantization(input, call.outputs[0]));
    std::vector<int64_t> number;
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 1, "axis is", -1, 1, true, &number));
    int axis = 0;
    LITEFUSE_RETURN_IF_REFUSED(find_axis(number[0], input.shape.rank() + 1, &axis));
    std::vector<int64_t> dims = dims_of(input.shape);
    dims.insert(dims.begin() + axis, 1);
    return set_shape(call.outputs[0], dims);
  }
};

}  // namespace

std::unique_ptr<Kernel> make_reshape() { return std::make_unique<Reshape>(); }
std::unique_ptr<Kernel> make_squeeze() { return std::make_unique<Squeeze>(); }
std::unique_ptr<Kernel> make_expand_dims() { return std::make_unique<ExpandDims>(); }

}  // namespace litefuse
