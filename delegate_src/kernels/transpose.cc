// TRANSPOSE, REVERSE_V2: the same elements in another order.
#include "kernels/movement.h"

namespace litefuse {
namespace {

class Transpose final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 2, 2, 1));
    const Operand& input = call.inputs[0];
    Operand& output = call.outputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
    const int rank = input.shape.rank();
    std::vector<int64_t> permutation;
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 1, "permutation is", 1, rank, false, &permutation));
    std::vector<int64_t> dims;
    std::array<bool, kMaxRank> seen{};
    const auto strides = dense_strides(input.shape);
    std::array<int64_t, kMaxRank> input_strides{};
    for (int i = 0; i < rank; ++i) {
      int axis = 0;
      LITEFUSE_RETURN_IF_REFUSED(find_axis(permutation[static_cast<size_t>(i)], rank, &axis));
      // The stock kernel lets this pass and may read beyond the input.
      LITEFUSE_REQUIRE(!seen[static_cast<size_t>(axis)], "its permutation names axis %d twice", axis);
      seen[static_cast<size_t>(axis)] = true;
      dims.push_back(input.shape[axis]);
      input_strides[static_cast<size_t>(i)] = strides[static_cast<size_t>(axis)];
    }
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));
    const auto output_strides = dense_strides(output.shape);
    copy_ = StridedCopy(size_of(input.type()));
    for (size_t i = 0; i < dims.size(); ++i) copy_.add(dims[i], input_strides[i], output_strides[i]);
    return Status();
  }

  void run(const Call& call) const override { copy_.run(call.inputs[0].data, call.outputs[0].data); }

 private:
  StridedCopy copy_;
};

class ReverseV2 final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 2, 2, 1));
    const Operand& input = call.inputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, call.outputs[0]));
    const int rank = input.shape.rank();
    const int64_t count = call.inputs[1].elements();
    LITEFUSE_REQUIRE(count > 0 && count <= rank, "it reverses %lld axes of a tensor that has %d",
                     static_cast<long long>(count), rank);
    std::vector<int64_t> numbers;
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 1, "axes are", 1, count, false, &numbers));
    std::array<bool, kMaxRank> reversed{};
    int first = rank, last = 0;
    for (const int64_t number : numbers) {
      int axis = 0;
      LITEFUSE_RETURN_IF_REFUSED(find_axis(number, rank, &axis));
      LITEFUSE_REQUIRE(!reversed[static_cast<size_t>(axis)], "it reverses axis %d twice", axis);
      reversed[static_cast<size_t>(axis)] = true;
      first = std::min(first, axis);
      last = std::max(last, axis);
    }
    // The stock kernel stops with an error then.
    LITEFUSE_REQUIRE(last - first + 1 == count, "the axes that it reverses are not neighbours");
    LITEFUSE_RETURN_IF_REFUSED(set_shape(call.outputs[0], dims_of(input.shape)));

    const auto strides = dense_strides(input.shape);
    copy_ = StridedCopy(size_of(input.type()));
    int64_t start = 0;
    for (int i = 0; i < rank; ++i) {
      const int64_t stride = strides[static_cast<size_t>(i)];
      const bool backwards = reversed[static_cast<size_t>(i)];
      if (backwards) start += (input.shape[i] - 1) * stride;
      copy_.add(input.shape[i], backwards ? -stride : stride, stride);
    }
    copy_.start_at(start, 0);
    return Status();
  }

  void run(const Call& call) const override { copy_.run(call.inputs[0].data, call.outputs[0].data); }

 private:
  StridedCopy copy_;
};

}  // namespace

std::unique_ptr<Kernel> make_transpose() { return std::make_unique<Transpose>(); }
std::unique_ptr<Kernel> make_reverse_v2() { return std::make_unique<ReverseV2>(); }

}  // namespace litefuse
