// SLICE, STRIDED_SLICE.
#include "kernels/movement.h"

namespace litefuse {
namespace {

class Slice final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 3, 3, 1));
    const Operand& input = call.inputs[0];
    Operand& output = call.outputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
    const int rank = input.shape.rank();
    std::vector<int64_t> begins, dims;
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 1, "first indices are", 1, rank, true, &begins));
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 2, "sizes are", 1, rank, true, &dims));
    // The stock kernel reads both as the type of the first.
    LITEFUSE_REQUIRE(call.inputs[1].type() == call.inputs[2].type(), "its first indices are %s and its sizes %s",
                     name_of(call.inputs[1].type()), name_of(call.inputs[2].type()));
    const auto strides = dense_strides(input.shape);
    int64_t start = 0;
    for (int i = 0; i < rank; ++i) {
      const int64_t begin = begins[static_cast<size_t>(i)];
      int64_t& size = dims[static_cast<size_t>(i)];
      LITEFUSE_REQUIRE(begin >= 0 && begin <= input.shape[i], "it begins at %lld in dimension %d, which is %d",
                       static_cast<long long>(begin), i, input.shape[i]);
      if (size == -1) size = input.shape[i] - begin;
      LITEFUSE_REQUIRE(size >= 0 && size <= input.shape[i] - begin,
                       "it takes %lld elements from %lld on in dimension %d, which is %d", static_cast<long long>(size),
                       static_cast<long long>(begin), i, input.shape[i]);
      start += begin * strides[static_cast<size_t>(i)];
    }
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));
    const auto output_strides = dense_strides(output.shape);
    copy_ = StridedCopy(size_of(input.type()));
    copy_.start_at(start, 0);
    for (size_t i = 0; i < dims.size(); ++i) copy_.add(dims[i], strides[i], output_strides[i]);
    return Status();
  }

  void run(const Call& call) const override { copy_.run(call.inputs[0].data, call.outputs[0].data); }

 private:
  StridedCopy copy_;
};

class StridedSlice final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(check_operands(call, 4, 4, 1));
    const Operand& input = call.inputs[0];
    Operand& output = call.outputs[0];
    LITEFUSE_RETURN_IF_REFUSED(check_types(input, output));
    std::vector<Entry> entries;
    LITEFUSE_RETURN_IF_REFUSED(read_entries(call, &entries));

    const auto strides = dense_strides(input.shape);
    std::vector<int64_t> dims, input_strides;
    int64_t start = 0;
    for (const Entry& entry : entries) {
      if (entry.added) {
        dims.push_back(1);
        input_strides.push_back(0);
        continue;
      }
      const int64_t stride = strides[static_cast<size_t>(entry.axis)];
      int64_t first = 0, count = 0;
      LITEFUSE_RETURN_IF_REFUSED(extent(entry, input.shape[entry.axis], &first, &count));
      // Of nothing nothing is read, wherever it would begin.
      if (count > 0) start += first * stride;
      if (entry.dropped) continue;
      dims.push_back(count);
      // A stride that is not taken can be anything.
      input_strides.push_back(count > 1 ? entry.stride * stride : 0);
    }
    LITEFUSE_RETURN_IF_REFUSED(set_shape(output, dims));
    const auto output_strides = dense_strides(output.shape);
    copy_ = StridedCopy(size_of(input.type()));
    copy_.start_at(start, 0);
    for (size_t i = 0; i < dims.size(); ++i) copy_.add(dims[i], input_strides[i], output_strides[i]);
    return Status();
  }

  void run(const Call& call) const override { copy_.run(call.inputs[0].data, call.outputs[0].data); }

 private:
  // What is taken of an axis of the input, or an axis that is added.
  struct Entry {
    int axis = 0;
    bool added = false;
    bool dropped = false;  // a single index, whose dimension goes
    bool open_begin = true, open_end = true;
    int64_t begin = 0, end = 0, stride = 1;
    bool offset = false;  // `end` counts from the beginning
  };

  static bool bit(int64_t mask, int64_t i) { return i < 31 && ((mask >> i) & 1) != 0; }

  // One entry per axis of the input or added, with the ellipsis spelt out.
  static Status read_entries(const Call& call, std::vector<Entry>* entries) {
    const auto params = call.params<StridedSliceParams>();
    const int rank = call.inputs[0].shape.rank();
    const int64_t count = call.inputs[1].elements();
    LITEFUSE_REQUIRE(count <= 2 * kMaxRank, "it has %lld indices", static_cast<long long>(count));
    std::vector<int64_t> begins, ends, strides;
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 1, "first indices are", 1, count, false, &begins));
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 2, "last indices are", 1, count, false, &ends));
    LITEFUSE_RETURN_IF_REFUSED(read_integers(call, 3, "strides are", 1, count, false, &strides));

    LITEFUSE_REQUIRE((params.ellipsis_mask >> count) == 0 && (params.new_axis_mask >> count) == 0,
                     "its masks speak of more indices than the %lld there are", static_cast<long long>(count));
    int64_t ellipses = 0, added = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (bit(params.ellipsis_mask, i)) {
        ++ellipses;
      } else if (bit(params.new_axis_mask, i)) {
        ++added;
      }
    }
    LITEFUSE_REQUIRE(ellipses <= 1, "it has %lld ellipses", static_cast<long long>(ellipses));
    const int64_t effective = rank + added;
    // An ellipsis of no dimensions is one of these too: the stock kernel lets it swallow a dimension.
    LITEFUSE_REQUIRE(count <= effective, "it has %lld indices for %d dimensions", static_cast<long long>(count), rank);

    int axis = 0;
    for (int64_t i = 0; i < count; ++i) {
      Entry entry;
      if (bit(params.ellipsis_mask, i)) {
        for (int64_t k = 0; k < effective - count + 1; ++k) {
          entry.axis = axis++;
          entries->push_back(entry);
        }
        continue;
      }
      entry.added = bit(params.new_axis_mask, i);
      if (!entry.added) {
        entry.axis = axis++;
        entry.dropped = bit(params.shrink_axis_mask, i);
        entry.open_begin = bit(params.begin_mask, i);
        entry.open_end = bit(params.end_mask, i);
        entry.begin = begins[static_cast<size_t>(i)];
        entry.end = ends[static_cast<size_t>(i)];
        entry.stride = strides[static_cast<size_t>(i)];
        entry.offset = params.offset;
        LITEFUSE_REQUIRE(entry.stride != 0 && entry.stride != std::numeric_limits<int32_t>::min(),
                         "it has the stride %lld", static_cast<long long>(entry.stride));
      }
      entries->push_back(entry);
    }
    while (axis < rank) {
      Entry entry;
      entry.axis = axis++;
      entries->push_back(entry);
    }
    // With offsets the stock kernel takes the shape from `ends`, at the places of the output's axes.
    LITEFUSE_REQUIRE(!params.offset || (ellipses == 0 && added == 0 && count == rank),
                     "its ends are offsets and its indices are not one for each dimension");
    return Status();
  }

  // The first index and how many there are.
  static Status extent(const Entry& entry, int64_t size, int64_t* first, int64_t* count) {
    const bool forward = entry.stride > 0;
    const int64_t low = forward ? 0 : -1, high = forward ? size : size - 1;
    const auto clamped = [&](int64_t i) { return std::min(std::max(i < 0 ? i + size : i, low), high); };
    const int64_t begin = entry.open_begin ? (forward ? 0 : size - 1) : clamped(entry.begin);
    *first = begin;
    if (entry.dropped) {
      // What the stock kernel gives then is what was in its memory before.
      LITEFUSE_REQUIRE(forward && begin < size, "it takes index %lld, with stride %lld, of a dimension of %lld",
                       static_cast<long long>(entry.begin), static_cast<long long>(entry.stride),
                       static_cast<long long>(size));
      *count = 1;
      return Status();
    }
    const int64_t end = entry.open_end ? (forward ? size : -1) : clamped(entry.offset ? entry.end + begin : entry.end);
    const int64_t step = forward ? entry.stride : -entry.stride;
    const int64_t distance = forward ? end - begin : begin - end;
    *count = distance > 0 ? (distance - 1) / step + 1 : 0;
    if (entry.offset) {
      const int64_t wanted = forward ? entry.end : -entry.end;
      LITEFUSE_REQUIRE(*count == (wanted > 0 ? (wanted - 1) / step + 1 : 0),
                       "it takes %lld elements from %lld on of a dimension of %lld", static_cast<long long>(entry.end),
                       static_cast<long long>(begin), static_cast<long long>(size));
    }
    return Status();
  }

  StridedCopy copy_;
};

}  // namespace

std::unique_ptr<Kernel> make_slice() { return std::make_unique<Slice>(); }
std::unique_ptr<Kernel> make_strided_slice() { return std::make_unique<StridedSlice>(); }

}  // namespace litefuse
