// DEPTH_TO_SPACE, SPACE_TO_DEPTH, SPACE_TO_BATCH_ND, BATCH_TO_SPACE_ND: blocks of pixels exchanged with channels or
// with the batch.
#include "kernels/movement.h"

namespace litefuse {
namespace {

// DEPTH_TO_SPACE, or its inverse.
class DepthSpace final : public Kernel {
 public:
  explicit DepthSpace(bool to_space) : to_space_(to_space) {}

  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 1, 1, 1));
    const Operand& input = call.inputs[0];
    Operand& output = call.outputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
    LITEFUSE_REQUIRE(input.shape.rank() == 4, "its input has %d dimensions instead of 4", input.shape.rank());
    const int64_t block = call.params<BlockParams>().block_size;
    LITEFUSE_REQUIRE(block > 0, "its block size is %lld", static_cast<long long>(block));
    std::vector<int64_t> dims = dims_of(input.shape);
    if (to_space_) {
      LITEFUSE_REQUIRE(dims[3] % (block * block) == 0, "its %lld channels are no multiple of %lld squared",
                       static_cast<long long>(dims[3]), static_cast<long long>(block));
      dims = {dims[0], dims[1] * block, dims[2] * block, dims[3] / (block * block)};
    } else {
      LITEFUSE_REQUIRE(dims[1] % block == 0 && dims[2] % block == 0, "its %lld x %lld pixels are no multiple of %lld",
                       static_cast<long long>(dims[1]), static_cast<long long>(dims[2]), static_cast<long long>(block));
      // A factor at a time, so that nothing overflows before it is refused.
      LITEFUSE_REQUIRE(dims[3] * block <= kMaxElements, "its output would be too large");
      dims = {dims[0], dims[1] / block, dims[2] / block, dims[3] * block * block};
    }
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));

    // The side with the many pixels is seen as [batch, rows, block, columns, block, channels].
    const Shape& wide = to_space_ ? output.shape : input.shape;
    const Shape& deep = to_space_ ? input.shape : output.shape;
    const auto wide_strides = dense_strides(wide), deep_strides = dense_strides(deep);
    const int64_t channels = wide[3];
    copy_ = StridedCopy(size_of(input.type()));
    const auto add = [&](int64_t count, int64_t in_wide, int64_t in_deep) {
      copy_.add(count, to_space_ ? in_deep : in_wide, to_space_ ? in_wide : in_deep);
    };
    add(wide[0], wide_strides[0], deep_strides[0]);
    add(deep[1], wide_strides[1] * block, deep_strides[1]);
    add(block, wide_strides[1], block * channels);
    add(deep[2], wide_strides[2] * block, deep_strides[2]);
    add(block, wide_strides[2], channels);
    add(channels, 1, 1);
    return Status();
  }

  void run(const Call& call) const override { copy_.run(call.inputs[0].data, call.outputs[0].data); }

 private:
  bool to_space_;
  StridedCopy copy_;
};

// SPACE_TO_BATCH_ND, or its inverse: image n of the many is those pixels of image n % (the few) that have the
// remainders n / (the few) when their places in the padded image are divided by the block.
class BatchSpace final : public Kernel {
 public:
  explicit BatchSpace(bool to_space) : to_space_(to_space) {}

  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 3, 3, 1));
    const Operand& input = call.inputs[0];
    Operand& output = call.outputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
    const int rank = input.shape.rank();
    LITEFUSE_REQUIRE(rank == 3 || rank == 4, "its input has %d dimensions instead of 3 or 4", rank);
    if (is_quantized_type(input.type())) LITEFUSE_RETURN_IF_REFUSED(check_same_quantization(input, output));
    const int spatial = rank - 2;
    std::vector<int64_t> blocks, margins;
    const char* what = to_space_ ? "crops are" : "paddings are";
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 1, "block is", 1, spatial, false, &blocks));
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 2, what, 2, 2 * int64_t{spatial}, false, &margins));
    LITEFUSE_REQUIRE(call.inputs[2].shape[0] == spatial, "its %s given as a tensor of shape %s", what,
                     call.inputs[2].shape.str().c_str());

    std::vector<int64_t> dims = dims_of(input.shape);
    for (int i = 0; i < spatial; ++i) {
      const auto axis = static_cast<size_t>(i);
      const int64_t block = blocks[axis], before = margins[2 * axis], after = margins[2 * axis + 1];
      LITEFUSE_REQUIRE(block > 0, "its block is %lld in dimension %d", static_cast<long long>(block), i + 1);
      LITEFUSE_REQUIRE(before >= 0 && after >= 0, "its %s negative in dimension %d", what, i + 1);
      int64_t& dim = dims[axis + 1];
      if (to_space_) {
        LITEFUSE_REQUIRE(dims[0] % block == 0, "its batch of %d is no multiple of the block", input.shape[0]);
        dims[0] /= block;
        dim = dim * block - before - after;
      } else {
        const int64_t padded = dim + before + after;
        LITEFUSE_REQUIRE(padded % block == 0, "its dimension %d, %lld with the paddings, is no multiple of %lld", i + 1,
                         static_cast<long long>(padded), static_cast<long long>(block));
        dim = padded / block;
        dims[0] *= block;
        LITEFUSE_REQUIRE(dims[0] <= std::numeric_limits<int32_t>::max(), "its output would be too large");
      }
    }
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));

    element_size_ = size_of(input.type());
    fills_ = false;
    for (const int64_t margin : margins) fills_ = fills_ || margin > 0;
    // The bytes of padding all are the zero point, as in the stock kernel; of int16 it is 0.
    zero_point_ = 0;
    if (element_size_ == 1) {
      const int32_t zero_point = plain_quantization(output).zero_point;
      const Range range = input.type() == Type::kInt8 ? Range{-128, 127} : Range{0, 255};
      LITEFUSE_REQUIRE(range.clamp(zero_point) == zero_point, "the zero point %d of its output is not a number of %s",
                       zero_point, name_of(output.type()));
      zero_point_ = zero_point;
    }
    few_ = to_space_ ? output.shape : input.shape;
    many_ = to_space_ ? input.shape : output.shape;
    // Images of three dimensions have a single column.
    if (rank == 3) {
      few_ = Shape{few_[0], few_[1], 1, few_[2]};
      many_ = Shape{many_[0], many_[1], 1, many_[2]};
    }
    rows_ = {blocks[0], margins[0]};
    columns_ = rank == 4 ? Margin{blocks[1], margins[2]} : Margin{1, 0};
    return Status();
  }

  void run(const Call& call) const override {
    const Operand& output = call.outputs[0];
    if (output.elements() == 0) return;
    if (!to_space_ && fills_) {
      std::memset(output.data, zero_point_, static_cast<size_t>(output.elements()) * element_size_);
    }
    const auto few = dense_strides(few_), many = dense_strides(many_);
    for (int64_t row = 0; row < rows_.block; ++row) {
      const Span down = rows_.span(row, few_[1], many_[1]);
      for (int64_t column = 0; column < columns_.block; ++column) {
        const Span across = columns_.span(column, few_[2], many_[2]);
        StridedCopy copy(element_size_);
        const auto add = [&](int64_t count, int64_t in_few, int64_t in_many) {
          copy.add(count, to_space_ ? in_many : in_few, to_space_ ? in_few : in_many);
        };
        add(few_[0], few[0], many[0]);
        add(down.count, few[1] * rows_.block, many[1]);
        add(across.count, few[2] * columns_.block, many[2]);
        add(few_[3], 1, 1);
        const int64_t in_few = down.few * few[1] + across.few * few[2];
        const int64_t in_many =
            (row * columns_.block + column) * few_[0] * many[0] + down.many * many[1] + across.many * many[2];
        copy.start_at(to_space_ ? in_many : in_few, to_space_ ? in_few : in_many);
        copy.run(call.inputs[0].data, output.data);
      }
    }
  }

 private:
  // The pixels in a row, or a column, that two images have in common: where they begin in each, and how many.
  struct Span {
    int64_t few, many, count;
  };

  struct Margin {
    int64_t block = 1, before = 0;

    // Index i of an image with `many` pixels is index i * block + remainder - before of that with `few`.
    Span span(int64_t remainder, int64_t few, int64_t many) const {
      const int64_t shift = remainder - before;
      const int64_t first = shift >= 0 ? 0 : (-shift + block - 1) / block;
      const int64_t place = first * block + shift;
      const int64_t fitting = place < few ? (few - 1 - place) / block + 1 : 0;
      return {place, first, std::max<int64_t>(0, std::min(fitting, many - first))};
    }
  };

  bool to_space_;
  bool fills_ = false;
  int zero_point_ = 0;
  size_t element_size_ = 1;
  Shape few_, many_;  // [batch, rows, columns, channels] of the side with few images, and of the other
  Margin rows_, columns_;
};

}  // namespace

std::unique_ptr<Kernel> make_depth_to_space() { return std::make_unique<DepthSpace>(true); }
std::unique_ptr<Kernel> make_space_to_depth() { return std::make_unique<DepthSpace>(false); }
std::unique_ptr<Kernel> make_space_to_batch_nd() { return std::make_unique<BatchSpace>(false); }
std::unique_ptr<Kernel> make_batch_to_space_nd() { return std::make_unique<BatchSpace>(true); }

}  // namespace litefuse
