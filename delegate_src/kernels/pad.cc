// PAD, PADV2, MIRROR_PAD.
#include "kernels/movement.h"

namespace litefuse {
namespace {

// The dimensions of the output; paddings are pairs of before and after.
Status padded(const Shape& input, const std::vector<int64_t>& paddings, std::vector<int64_t>* dims) {
  for (int i = 0; i < input.rank(); ++i) {
    const int64_t before = paddings[static_cast<size_t>(2 * i)], after = paddings[static_cast<size_t>(2 * i + 1)];
    LITEFUSE_REQUIRE(before >= 0 && after >= 0, "dimension %d is padded by a negative number", i);
    LITEFUSE_REQUIRE(before <= std::numeric_limits<int32_t>::max() && after <= std::numeric_limits<int32_t>::max(),
                     "dimension %d is padded by too large a number", i);
    dims->push_back(input[i] + before + after);
  }
  return Status();
}

Status read_paddings(const Call& call, std::vector<int64_t>* paddings) {
  const int rank = call.inputs[0].shape.rank();
  LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 1, "paddings are", 2, 2 * int64_t{rank}, true, paddings));
  LITEFUSE_REQUIRE(call.inputs[1].shape[0] == rank, "its paddings are given as a tensor of shape %s",
                   call.inputs[1].shape.str().c_str());
  return Status();
}

// PAD and PADV2 have one kernel: the value is a third input, or zero.
class Pad final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 2, 3, 1));
    const Operand& input = call.inputs[0];
    Operand& output = call.outputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
    std::vector<int64_t> paddings, dims;
    LITEFUSE_RETURN_IF_REFUSED(read_paddings(call, &paddings));
    LITEFUSE_RETURN_IF_REFUSED(padded(input.shape, paddings, &dims));
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));
    LITEFUSE_RETURN_IF_REFUSED(find_value(call));

    // Dimensions that nothing is added to become one with what is inside them, as does the innermost one that something
    // is added to.
    element_size_ = size_of(input.type());
    levels_.clear();
    inner_ = 1;
    for (int i = input.shape.rank() - 1; i >= 0; --i) {
      const int64_t before = paddings[static_cast<size_t>(2 * i)], after = paddings[static_cast<size_t>(2 * i + 1)];
      const int64_t count = input.shape[i];
      if (levels_.empty()) {
        if (before != 0 || after != 0) {
          levels_.push_back({before * inner_, 1, after * inner_, (before + count + after) * inner_});
        }
        inner_ *= count;
      } else {
        const int64_t block = levels_.back().total;
        levels_.push_back({before * block, count, after * block, (before + count + after) * block});
      }
    }
    return Status();
  }

  void run(const Call& call) const override {
    if (call.outputs[0].elements() == 0) return;
    const void* value = call.has(2) ? call.inputs[2].data : &value_;
    const char* from = call.inputs[0].get<char>();
    pad(levels_.size(), value, &from, call.outputs[0].mutable_get<char>());
  }

 private:
  // A dimension: elements of the output before and behind what `count` times the level inside writes, and all of them.
  struct Level {
    int64_t before, count, after, total;
  };

  Status find_value(const Call& call) {
    const Operand& input = call.inputs[0];
    const Operand& output = call.outputs[0];
    // Tensors of uint8 are taken for quantised always, those of int8 and int16 where their parameters say so.
    const bool quantized =
        input.type() == Type::kUInt8 ||
        ((input.type() == Type::kInt8 || input.type() == Type::kInt16) && input.quantization().quantized());
    value_ = 0;
    if (call.has(2)) {
      const Operand& value = call.inputs[2];
      LITEFUSE_RETURN_IF_REFUSED(check_types(value, output));
      LITEFUSE_REQUIRE(value.elements() == 1, "its value has the shape %s", value.shape.str().c_str());
      LITEFUSE_REQUIRE(!quantized || plain_quantization(value) == plain_quantization(output),
                       "its value is not quantised as its output is");
    } else if (quantized) {
      const int32_t zero_point = plain_quantization(output).zero_point;
      const Range range = range_of(output.type());
      LITEFUSE_REQUIRE(range.clamp(zero_point) == zero_point, "the zero point %d of its output is not a number of %s",
                       zero_point, name_of(output.type()));
      if (output.type() == Type::kInt16) {
        const auto narrowed = static_cast<int16_t>(zero_point);
        std::memcpy(&value_, &narrowed, sizeof(narrowed));
      } else {
        const auto narrowed = static_cast<uint8_t>(zero_point);
        std::memcpy(&value_, &narrowed, sizeof(narrowed));
      }
    }
    return Status();
  }

  // Writes what is within the first `depth` levels, of which the last is the outermost; returns the end.
  char* pad(size_t depth, const void* value, const char** from, char* to) const {
    if (depth == 0) {
      const auto bytes = static_cast<size_t>(inner_) * element_size_;
      copy_run(to, *from, bytes);
      *from += bytes;
      return to + bytes;
    }
    const Level& level = levels_[depth - 1];
    to = filled(to, level.before, value);
    for (int64_t i = 0; i < level.count; ++i) to = pad(depth - 1, value, from, to);
    return filled(to, level.after, value);
  }

  char* filled(char* to, int64_t count, const void* value) const {
    fill(to, count, element_size_, value);
    return to + static_cast<size_t>(count) * element_size_;
  }

  std::vector<Level> levels_;  // the innermost first
  int64_t inner_ = 1;          // elements in a row that have nothing between them
  size_t element_size_ = 1;
  uint64_t value_ = 0;  // an element in its first bytes
};

class MirrorPad final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 2, 2, 1));
    const Operand& input = call.inputs[0];
    Operand& output = call.outputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
    if (is_quantized_type(input.type())) LITEFUSE_RETURN_IF_REFUSED(check_same_quantization(input, output));
    std::vector<int64_t> paddings, dims;
    LITEFUSE_RETURN_IF_REFUSED(read_paddings(call, &paddings));
    LITEFUSE_RETURN_IF_REFUSED(padded(input.shape, paddings, &dims));
    const int offset = call.params<MirrorPadParams>().reflect ? 1 : 0;
    for (int i = 0; i < input.shape.rank(); ++i) {
      const int64_t most = int64_t{input.shape[i]} - offset;
      LITEFUSE_REQUIRE(paddings[static_cast<size_t>(2 * i)] <= most && paddings[static_cast<size_t>(2 * i + 1)] <= most,
                       "dimension %d is padded by more than its %d elements can mirror", i, input.shape[i]);
    }
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));

    // Each axis in three parts, before, within and after; the first and the last go backwards.
    const auto input_strides = dense_strides(input.shape), output_strides = dense_strides(output.shape);
    element_size_ = size_of(input.type());
    axes_.clear();
    for (int i = 0; i < input.shape.rank(); ++i) {
      const int64_t before = paddings[static_cast<size_t>(2 * i)], after = paddings[static_cast<size_t>(2 * i + 1)];
      const int64_t in = input_strides[static_cast<size_t>(i)], out = output_strides[static_cast<size_t>(i)];
      const int64_t count = input.shape[i];
      axes_.push_back({Part{before, (before - 1 + offset) * in, -in, 0, out}, Part{count, 0, in, before * out, out},
                       Part{after, (count - 1 - offset) * in, -in, (before + count) * out, out}});
    }
    return Status();
  }

  void run(const Call& call) const override {
    // Every combination of the parts of the axes is a copy; those of nothing are passed over.
    mirror(call, 0, 0, 0, StridedCopy(element_size_));
  }

 private:
  struct Part {
    int64_t count, input_start, input_stride, output_start, output_stride;
  };

  void mirror(const Call& call, size_t axis, int64_t input_start, int64_t output_start, StridedCopy copy) const {
    if (axis == axes_.size()) {
      copy.start_at(input_start, output_start);
      copy.run(call.inputs[0].data, call.outputs[0].data);
      return;
    }
    for (const Part& part : axes_[axis]) {
      if (part.count == 0) continue;
      StridedCopy longer = copy;
      longer.add(part.count, part.input_stride, part.output_stride);
      mirror(call, axis + 1, input_start + part.input_start, output_start + part.output_start, longer);
    }
  }

  std::vector<std::array<Part, 3>> axes_;
  size_t element_size_ = 1;
};

}  // namespace

std::unique_ptr<Kernel> make_pad() { return std::make_unique<Pad>(); }
std::unique_ptr<Kernel> make_pad_v2() { return std::make_unique<Pad>(); }
std::unique_ptr<Kernel> make_mirror_pad() { return std::make_unique<MirrorPad>(); }

}  // namespace litefuse
