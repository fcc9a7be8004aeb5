// CONCATENATION, PACK, UNPACK, SPLIT, SPLIT_V: tensors put together along an axis, or taken apart.
#include <cmath>

#include "kernels/movement.h"

namespace litefuse {
namespace {

// A tensor seen as rows of bytes, `outer` of them, each made of one piece per part.
struct Pieces {
  int64_t outer = 0;
  std::vector<size_t> bytes;
};

void join(const std::vector<Operand>& parts, const Pieces& pieces, void* whole) {
  char* to = static_cast<char*>(whole);
  for (int64_t row = 0; row < pieces.outer; ++row) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const size_t bytes = pieces.bytes[i];
      copy_run(to, parts[i].get<char>() + static_cast<size_t>(row) * bytes, bytes);
      to += bytes;
    }
  }
}

void separate(const void* whole, const Pieces& pieces, const std::vector<Operand>& parts) {
  const char* from = static_cast<const char*>(whole);
  for (int64_t row = 0; row < pieces.outer; ++row) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const size_t bytes = pieces.bytes[i];
      copy_run(parts[i].mutable_get<char>() + static_cast<size_t>(row) * bytes, from, bytes);
      from += bytes;
    }
  }
}

class Concatenation final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_REQUIRE(!call.inputs.empty(), "it has no inputs");
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, call.inputs.size(), call.inputs.size(), 1));
    const auto params = call.params<ConcatenationParams>();
    LITEFUSE_REQUIRE(params.activation == Activation::kNone, "it has a fused activation");
    const Operand& first = call.inputs[0];
    Operand& output = call.outputs[0];
    const int rank = first.shape.rank();
    LITEFUSE_REQUIRE(rank > 0, "its inputs are scalars");
    int axis = 0;
    LITEFUSE_RETURN_IF_REFUSED(find_axis(params.axis, rank, &axis));
    int64_t length = 0;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const Operand& input = call.inputs[i];
      LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
      LITEFUSE_REQUIRE(input.shape.rank() == rank, "its inputs 0 and %zu have %d and %d dimensions", i, rank,
                       input.shape.rank());
      for (int d = 0; d < rank; ++d) {
        LITEFUSE_REQUIRE(d == axis || input.shape[d] == first.shape[d],
                         "its inputs 0 and %zu, %s and %s, differ in dimension %d", i, first.shape.str().c_str(),
                         input.shape.str().c_str(), d);
      }
      length += input.shape[axis];
    }
    std::vector<int64_t> dims = dims_of(first.shape);
    dims[static_cast<size_t>(axis)] = length;
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));

    pieces_.outer = product_of(first.shape, 0, axis);
    pieces_.bytes.clear();
    const auto inner = static_cast<size_t>(product_of(first.shape, axis + 1, rank)) * size_of(first.type());
    for (const Operand& input : call.inputs) pieces_.bytes.push_back(static_cast<size_t>(input.shape[axis]) * inner);
    return check_quantization(call);
  }

  void run(const Call& call) const override {
    if (conversions_.empty()) {
      join(call.inputs, pieces_, call.outputs[0].data);
      return;
    }
    auto* to = call.outputs[0].mutable_get<uint8_t>();
    for (int64_t row = 0; row < pieces_.outer; ++row) {
      for (size_t i = 0; i < call.inputs.size(); ++i) {
        const size_t bytes = pieces_.bytes[i];
        const uint8_t* from = call.inputs[i].get<uint8_t>() + static_cast<size_t>(row) * bytes;
        const Conversion& conversion = conversions_[i];
        if (conversion.none) {
          if (bytes > 0) std::memcpy(to, from, bytes);
        } else {
          for (size_t k = 0; k < bytes; ++k) to[k] = conversion.of(from[k], zero_point_);
        }
        to += bytes;
      }
    }
  }

 private:
  // From the numbers of an input to those of the output, in float as the stock kernel does it.
  struct Conversion {
    bool none = true;
    float scale = 0.0f, bias = 0.0f;

    uint8_t of(uint8_t x, int32_t zero_point) const {
      const int32_t value = static_cast<int32_t>(std::round(static_cast<float>(x) * scale + bias)) + zero_point;
      return static_cast<uint8_t>(clamp_to<int32_t>(value, 0, 255));
    }
  };

  // Only uint8 inputs may be quantised otherwise than the output.
  Status check_quantization(const Call& call) {
    conversions_.clear();
    const Operand& output = call.outputs[0];
    const PlainQuantization to = plain_quantization(output);
    bool converts = false;
    std::vector<Conversion> conversions;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const PlainQuantization from = plain_quantization(call.inputs[i]);
      Conversion conversion;
      if (output.type() == Type::kInt8) {
        LITEFUSE_REQUIRE(from == to, "its input %zu and its output are int8 tensors with different quantisation", i);
      } else if (output.type() == Type::kInt16) {
        LITEFUSE_REQUIRE(from.zero_point == 0 && to.zero_point == 0, "it has int16 tensors with a zero point");
      } else if (output.type() == Type::kUInt8 && !(from == to)) {
        LITEFUSE_REQUIRE(std::isfinite(from.scale) && std::isfinite(to.scale) && from.scale > 0.0f && to.scale > 0.0f,
                         "its input %zu and its output differ in quantisation, and one has none that is usable", i);
        LITEFUSE_REQUIRE(from.zero_point >= 0 && from.zero_point <= 255 && to.zero_point >= 0 && to.zero_point <= 255,
                         "a zero point of its input %zu or its output is not a number of uint8", i);
        const float inverse = 1.0f / to.scale;
        conversion.none = false;
        conversion.scale = from.scale * inverse;
        conversion.bias = static_cast<float>(-from.zero_point) * conversion.scale;
        // What is larger would not fit an int32 when it is rounded.
        LITEFUSE_REQUIRE(conversion.scale <= 4194304.0f, "the scale of its input %zu is %g times that of its output", i,
                         conversion.scale);
        converts = true;
      }
      conversions.push_back(conversion);
    }
    zero_point_ = to.zero_point;
    if (converts) conversions_ = conversions;
    return Status();
  }

  Pieces pieces_;
  std::vector<Conversion> conversions_;  // empty when no input needs one
  int32_t zero_point_ = 0;
};

class Pack final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_REQUIRE(!call.inputs.empty(), "it has no inputs");
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, call.inputs.size(), call.inputs.size(), 1));
    const Operand& first = call.inputs[0];
    Operand& output = call.outputs[0];
    const int rank = first.shape.rank();
    int axis = 0;
    LITEFUSE_RETURN_IF_REFUSED(find_axis(call.params<AxisParams>().axis, rank + 1, &axis));
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const Operand& input = call.inputs[i];
      LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
      LITEFUSE_REQUIRE(input.shape == first.shape, "its inputs 0 and %zu have different shapes, %s and %s", i,
                       first.shape.str().c_str(), input.shape.str().c_str());
      LITEFUSE_REQUIRE(plain_quantization(input) == plain_quantization(output),
                       "its input %zu is not quantised as its output is", i);
    }
    std::vector<int64_t> dims = dims_of(first.shape);
    dims.insert(dims.begin() + axis, static_cast<int64_t>(call.inputs.size()));
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));
    pieces_.outer = product_of(first.shape, 0, axis);
    pieces_.bytes.assign(call.inputs.size(),
                         static_cast<size_t>(product_of(first.shape, axis, rank)) * size_of(first.type()));
    return Status();
  }

  void run(const Call& call) const override { join(call.inputs, pieces_, call.outputs[0].data); }

 private:
  Pieces pieces_;
};

class Unpack final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_REQUIRE(!call.outputs.empty(), "it has no outputs");
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 1, 1, call.outputs.size()));
    const Operand& input = call.inputs[0];
    const int rank = input.shape.rank();
    int axis = 0;
    LITEFUSE_RETURN_IF_REFUSED(find_axis(call.params<AxisParams>().axis, rank, &axis));
    LITEFUSE_REQUIRE(static_cast<size_t>(input.shape[axis]) == call.outputs.size(),
                     "it has %zu outputs where dimension %d of its input is %d", call.outputs.size(), axis,
                     input.shape[axis]);
    std::vector<int64_t> dims = dims_of(input.shape);
    dims.erase(dims.begin() + axis);
    for (Operand& output : call.outputs) {
      LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
      LITEFUSE_REQUIRE(plain_quantization(input) == plain_quantization(output),
                       "one of its outputs is not quantised as its input is");
      LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));
    }
    pieces_.outer = product_of(input.shape, 0, axis);
    pieces_.bytes.assign(call.outputs.size(),
                         static_cast<size_t>(product_of(input.shape, axis + 1, rank)) * size_of(input.type()));
    return Status();
  }

  void run(const Call& call) const override { separate(call.inputs[0].data, pieces_, call.outputs); }

 private:
  Pieces pieces_;
};

// What SPLIT and SPLIT_V share; `lengths` are those of the outputs along the axis and sum up to that of the input.
Status split(Call& call, const Operand& input, int axis, const std::vector<int64_t>& lengths, Pieces* pieces) {
  pieces->outer = product_of(input.shape, 0, axis);
  pieces->bytes.clear();
  const auto inner = static_cast<size_t>(product_of(input.shape, axis + 1, input.shape.rank())) * size_of(input.type());
  std::vector<int64_t> dims = dims_of(input.shape);
  for (size_t i = 0; i < lengths.size(); ++i) {
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, call.outputs[i]));
    dims[static_cast<size_t>(axis)] = lengths[i];
    LITEFUSE_RETURN_IF_REFUSED(set_shape(call.outputs[i], dims));
    pieces->bytes.push_back(static_cast<size_t>(lengths[i]) * inner);
  }
  return Status();
}

Status check_split(const Call& call, size_t inputs) {
  LITEFUSE_REQUIRE(!call.outputs.empty(), "it has no outputs");
  LITEFUSE_RETURN_IF_REFUSED(check_operands(call, inputs, inputs, call.outputs.size()));
  const int32_t splits = call.params<SplitParams>().num_splits;
  LITEFUSE_REQUIRE(splits >= 0 && static_cast<size_t>(splits) == call.outputs.size(),
                   "it has %zu outputs where its parameters say %d", call.outputs.size(), splits);
  return Status();
}

class Split final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_split(call, 2));
    const Operand& input = call.inputs[1];
    std::vector<int64_t> number;
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 0, "axis is", -1, 1, false, &number));
    int axis = 0;
    LITEFUSE_RETURN_IF_REFUSED(find_axis(number[0], input.shape.rank(), &axis));
    const auto count = static_cast<int64_t>(call.outputs.size());
    LITEFUSE_REQUIRE(input.shape[axis] % count == 0, "it splits a dimension of %d into %lld equal parts",
                     input.shape[axis], static_cast<long long>(count));
    const std::vector<int64_t> lengths(call.outputs.size(), input.shape[axis] / count);
    return split(call, input, axis, lengths, &pieces_);
  }

  void run(const Call& call) const override { separate(call.inputs[1].data, pieces_, call.outputs); }

 private:
  Pieces pieces_;
};

class SplitV final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_split(call, 3));
    const Operand& input = call.inputs[0];
    std::vector<int64_t> lengths, number;
    const auto count = static_cast<int64_t>(call.outputs.size());
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 1, "sizes are", 1, count, true, &lengths));
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 2, "axis is", -1, 1, false, &number));
    int axis = 0;
    LITEFUSE_RETURN_IF_REFUSED(find_axis(number[0], input.shape.rank(), &axis));
    int64_t rest = input.shape[axis];
    int64_t* open = nullptr;
    for (int64_t& length : lengths) {
      if (length == -1) {
        LITEFUSE_REQUIRE(open == nullptr, "its sizes leave two parts open");
        open = &length;
        continue;
      }
      LITEFUSE_REQUIRE(length >= 0 && length <= rest, "its sizes do not fit a dimension of %d", input.shape[axis]);
      rest -= length;
    }
    if (open != nullptr) {
      *open = rest;
      rest = 0;
    }
    LITEFUSE_REQUIRE(rest == 0, "its sizes leave out the last %lld of a dimension of %d", static_cast<long long>(rest),
                     input.shape[axis]);
    return split(call, input, axis, lengths, &pieces_);
  }

  void run(const Call& call) const override { separate(call.inputs[0].data, pieces_, call.outputs); }

 private:
  Pieces pieces_;
};

}  // namespace

std::unique_ptr<Kernel> make_concatenation() { return std::make_unique<Concatenation>(); }
std::unique_ptr<Kernel> make_pack() { return std::make_unique<Pack>(); }
std::unique_ptr<Kernel> make_unpack() { return std::make_unique<Unpack>(); }
std::unique_ptr<Kernel> make_split() { return std::make_unique<Split>(); }
std::unique_ptr<Kernel> make_split_v() { return std::make_unique<SplitV>(); }

}  // namespace litefuse
