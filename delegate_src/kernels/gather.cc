// GATHER, TILE, BROADCAST_TO: elements that are taken by index, or more than once.
#include "kernels/movement.h"

namespace litefuse {
namespace {

class Gather final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 2, 2, 1));
    const Operand& input = call.inputs[0];
    const Operand& indices = call.inputs[1];
    Operand& output = call.outputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
    LITEFUSE_REQUIRE(indices.type() == Type::kInt16 || indices.type() == Type::kInt32 || indices.type() == Type::kInt64,
                     "its indices are %s", name_of(indices.type()));
    const auto params = call.params<AxisParams>();
    const int rank = input.shape.rank(), index_rank = indices.shape.rank();
    int axis = 0;
    LITEFUSE_RETURN_IF_REFUSED(find_axis(params.axis, rank, &axis));
    const int64_t batch_dims = int64_t{params.batch_dims} + (params.batch_dims < 0 ? index_rank : 0);
    LITEFUSE_REQUIRE(batch_dims >= 0 && batch_dims <= axis && batch_dims <= index_rank,
                     "it has %d batch dimensions, axis %d and indices of shape %s", params.batch_dims, axis,
                     indices.shape.str().c_str());
    const auto batches = static_cast<int>(batch_dims);
    for (int i = 0; i < batches; ++i) {
      LITEFUSE_REQUIRE(input.shape[i] == indices.shape[i], "its input and its indices, %s and %s, differ in batch",
                       input.shape.str().c_str(), indices.shape.str().c_str());
    }
    std::vector<int64_t> dims;
    for (int i = 0; i < axis; ++i) dims.push_back(input.shape[i]);
    for (int i = batches; i < index_rank; ++i) dims.push_back(indices.shape[i]);
    for (int i = axis + 1; i < rank; ++i) dims.push_back(input.shape[i]);
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));

    length_ = input.shape[axis];
    if (indices.constant()) {
      for (int64_t i = 0; i < indices.elements(); ++i) {
        const int64_t index = integer_at(indices, i);
        LITEFUSE_REQUIRE(index >= 0 && index < length_, "its index %lld is not within a dimension of %lld",
                         static_cast<long long>(index), static_cast<long long>(length_));
      }
    }
    LITEFUSE_REQUIRE(length_ > 0 || output.elements() == 0, "it gathers from a dimension of 0");
    empty_ = output.elements() == 0;
    batch_ = product_of(input.shape, 0, batches);
    outer_ = product_of(input.shape, batches, axis);
    picked_ = product_of(indices.shape, batches, index_rank);
    row_bytes_ = static_cast<size_t>(product_of(input.shape, axis + 1, rank)) * size_of(input.type());
    return Status();
  }

  void run(const Call& call) const override {
    if (empty_) return;
    const char* from = call.inputs[0].get<char>();
    char* to = call.outputs[0].mutable_get<char>();
    for (int64_t batch = 0; batch < batch_; ++batch) {
      for (int64_t outer = 0; outer < outer_; ++outer) {
        for (int64_t i = 0; i < picked_; ++i) {
          // The stock kernel stops with an error at an index out of range. A kernel here cannot, so the nearest that is
          // within the input is taken.
          const int64_t index = integer_at(call.inputs[1], batch * picked_ + i);
          const int64_t inside = std::min(std::max(index, int64_t{0}), length_ - 1);
          copy_run(to, from + static_cast<size_t>(inside) * row_bytes_, row_bytes_);
          to += row_bytes_;
        }
        from += static_cast<size_t>(length_) * row_bytes_;
      }
    }
  }

 private:
  int64_t batch_ = 0, outer_ = 0, picked_ = 0;
  int64_t length_ = 0;  // of the axis
  size_t row_bytes_ = 0;
  bool empty_ = true;
};

class Tile final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 2, 2, 1));
    const Operand& input = call.inputs[0];
    Operand& output = call.outputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
    const int rank = input.shape.rank();
    std::vector<int64_t> times, dims;
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 1, "multiples are", -1, rank, true, &times));
    for (int i = 0; i < rank; ++i) {
      const int64_t multiple = times[static_cast<size_t>(i)];
      LITEFUSE_REQUIRE(multiple >= 0 && multiple <= std::numeric_limits<int32_t>::max(),
                       "it repeats dimension %d %lld times", i, static_cast<long long>(multiple));
      dims.push_back(multiple * input.shape[i]);
    }
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));
    const auto input_strides = dense_strides(input.shape), output_strides = dense_strides(output.shape);
    copy_ = StridedCopy(size_of(input.type()));
    if (output.elements() == 0) copy_.add(0, 0, 0);
    for (int i = 0; i < rank && output.elements() > 0; ++i) {
      const int64_t in = input_strides[static_cast<size_t>(i)], out = output_strides[static_cast<size_t>(i)];
      copy_.add(times[static_cast<size_t>(i)], 0, input.shape[i] * out);
      copy_.add(input.shape[i], in, out);
    }
    return Status();
  }

  void run(const Call& call) const override { copy_.run(call.inputs[0].data, call.outputs[0].data); }

 private:
  StridedCopy copy_;
};

class BroadcastTo final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 2, 2, 1));
    const Operand& input = call.inputs[0];
    Operand& output = call.outputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
    const int64_t rank = call.inputs[1].elements();
    LITEFUSE_REQUIRE(rank >= input.shape.rank() && rank <= kMaxRank,
                     "its output would have %lld dimensions, its input %d", static_cast<long long>(rank),
                     input.shape.rank());
    std::vector<int64_t> dims;
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 1, "shape is", 1, rank, true, &dims));
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));
    const Shape from = input.shape.extended(static_cast<int>(rank));
    const auto input_strides = dense_strides(from), output_strides = dense_strides(output.shape);
    copy_ = StridedCopy(size_of(input.type()));
    for (int i = 0; i < from.rank(); ++i) {
      LITEFUSE_REQUIRE(from[i] == 1 || from[i] == output.shape[i], "%s cannot be broadcast to %s",
                       input.shape.str().c_str(), output.shape.str().c_str());
      const auto axis = static_cast<size_t>(i);
      copy_.add(output.shape[i], from[i] == 1 ? 0 : input_strides[axis], output_strides[axis]);
    }
    return Status();
  }

  void run(const Call& call) const override { copy_.run(call.inputs[0].data, call.outputs[0].data); }

 private:
  StridedCopy copy_;
};

}  // namespace

std::unique_ptr<Kernel> make_gather() { return std::make_unique<Gather>(); }
std::unique_ptr<Kernel> make_tile() { return std::make_unique<Tile>(); }
std::unique_ptr<Kernel> make_broadcast_to() { return std::make_unique<BroadcastTo>(); }

}  // namespace litefuse
