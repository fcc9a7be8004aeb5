// DENSIFY: a sparse constant as a dense tensor. Its values are the leaves of a tree of levels, in order; see Sparsity.
#include <algorithm>
#include <array>

#include "kernels/checks.h"

namespace litefuse {
namespace {

constexpr size_t kMaxLevels = 2 * kMaxRank;

// A level as run() walks it.
struct Step {
  int32_t size = 0;                   // of a dense one; otherwise there are segments
  const int32_t* segments = nullptr;  // of a compressed one
  const int32_t* indices = nullptr;
  int64_t stride = 0;  // elements of the dense tensor from one coordinate to the next
};

class Densify final : public Kernel {
 public:
  Status prepare(Call& call) override {
    LITEFUSE_RETURN_IF_REFUSED(require_operands(call, 1, 1));
    const Operand& input = call.inputs[0];
    const Type type = input.type();
    LITEFUSE_REQUIRE(type == Type::kFloat32 || type == Type::kFloat16 || type == Type::kInt8, "%s is not supported",
                     name_of(type));
    LITEFUSE_REQUIRE(call.outputs[0].type() == type, "its output is %s instead of %s", name_of(call.outputs[0].type()),
                     name_of(type));
    LITEFUSE_REQUIRE(input.constant() && input.tensor->sparsity != nullptr, "its input is no sparse constant");
    // Its description does not change with the shapes of a run.
    LITEFUSE_RETURN_IF_REFUSED(read(*input.tensor->sparsity, input.tensor->shape));
    call.outputs[0].shape = input.tensor->shape;
    call.scratch_bytes = 0;
    return Status();
  }

  void run(const Call& call) const override {
    switch (size_of(call.inputs[0].type())) {
      case 1:
        return place<uint8_t>(call);
      case 2:
        return place<uint16_t>(call);
      default:
        return place<uint32_t>(call);
    }
  }

 private:
  Status read(const Sparsity& sparsity, const Shape& shape) {
    const size_t rank = static_cast<size_t>(shape.rank());
    const size_t blocks = sparsity.block_map.size();
    count_ = sparsity.levels.size();
    LITEFUSE_REQUIRE(blocks <= rank && count_ == rank + blocks && sparsity.order.size() == count_,
                     "%zu dimensions and %zu blocks in %zu levels, with a traversal order of %zu", rank, blocks, count_,
                     sparsity.order.size());
    // The level of each dimension, then of each block.
    std::array<size_t, kMaxLevels> level_of;
    level_of.fill(count_);
    for (size_t i = 0; i < count_; ++i) {
      const int32_t dimension = sparsity.order[i];
      const bool known = dimension >= 0 && static_cast<size_t>(dimension) < count_ &&
                         (static_cast<size_t>(dimension) < rank) == (i < rank);
      LITEFUSE_REQUIRE(known && level_of[static_cast<size_t>(dimension)] == count_,
                       "its traversal order is none of the dimensions, followed by one of the blocks");
      level_of[static_cast<size_t>(dimension)] = i;
    }
    // What each dimension, then each block, can count up to, and the distance between its coordinates.
    std::array<int64_t, kMaxLevels> extents{}, strides{};
    int64_t stride = 1;
    for (size_t d = rank; d-- > 0;) {
      extents[d] = shape[static_cast<int>(d)];
      strides[d] = stride;
      stride *= extents[d];
    }
    for (size_t b = 0; b < blocks; ++b) {
      const int32_t dimension = sparsity.block_map[b];
      LITEFUSE_REQUIRE(
          dimension >= 0 && static_cast<size_t>(dimension) < rank && (b == 0 || sparsity.block_map[b - 1] < dimension),
          "its block map does not list dimensions in ascending order");
      const auto whole = static_cast<size_t>(dimension);
      const Sparsity::Level& level = sparsity.levels[level_of[rank + b]];
      LITEFUSE_REQUIRE(level.dense && level.size > 0 && extents[whole] % level.size == 0,
                       "its blocks do not divide dimension %d", dimension);
      // TFLite looks for the size of a block at the level that `order` names, which is not always that of the block.
      const Sparsity::Level& other = sparsity.levels[static_cast<size_t>(sparsity.order[rank + b])];
      LITEFUSE_REQUIRE(other.dense && other.size == level.size, "its blocks are in an ambiguous order");
      extents[rank + b] = level.size;
      strides[rank + b] = strides[whole];
      extents[whole] /= level.size;
      strides[whole] *= level.size;
    }
    int64_t nodes = 1;
    for (size_t i = 0; i < count_; ++i) {
      const Sparsity::Level& level = sparsity.levels[i];
      const auto dimension = static_cast<size_t>(sparsity.order[i]);
      LITEFUSE_RETURN_IF_REFUSED(count(level, extents[dimension], &nodes));
      steps_[i] = {level.size, level.dense ? nullptr : level.segments.data(),
                   level.dense ? nullptr : level.indices.data(), strides[dimension]};
    }
    LITEFUSE_REQUIRE(nodes <= sparsity.values, "%lld values where %lld are needed",
                     static_cast<long long>(sparsity.values), static_cast<long long>(nodes));
    return Status();
  }

  // Checks a level below `*nodes` nodes, and says how many it has.
  static Status count(const Sparsity::Level& level, int64_t extent, int64_t* nodes) {
    if (level.dense) {
      LITEFUSE_REQUIRE(level.size == extent, "a dimension of its sparsity has size %d instead of %lld", level.size,
                       static_cast<long long>(extent));
      LITEFUSE_REQUIRE(extent == 0 || *nodes <= kMaxElements / extent, "it stores too much");
      *nodes *= extent;
      return Status();
    }
    const std::vector<int32_t>& segments = level.segments;
    LITEFUSE_REQUIRE(static_cast<int64_t>(segments.size()) == *nodes + 1, "%zu segments for %lld rows", segments.size(),
                     static_cast<long long>(*nodes));
    const auto end = static_cast<int64_t>(level.indices.size());
    LITEFUSE_REQUIRE(
        segments.front() == 0 && segments.back() == end && std::is_sorted(segments.begin(), segments.end()),
        "its segments do not rise from 0 to %lld", static_cast<long long>(end));
    for (int32_t index : level.indices) {
      LITEFUSE_REQUIRE(index >= 0 && index < extent, "its index %d is not below %lld", index,
                       static_cast<long long>(extent));
    }
    *nodes = end;
    return Status();
  }

  template <typename T>
  void place(const Call& call) const {
    T* y = call.outputs[0].mutable_get<T>();
    std::fill_n(y, call.outputs[0].elements(), T{0});
    const T* x = call.inputs[0].get<T>();
    walk(0, 0, &x, y);
  }

  // Places the values below a node of the level above `level`, which is the `above`th there.
  template <typename T>
  void walk(size_t level, int64_t above, const T** x, T* y) const {
    if (level == count_) {
      *y = *(*x)++;
      return;
    }
    const Step& step = steps_[level];
    if (step.segments == nullptr) {
      for (int64_t i = 0; i < step.size; ++i) walk(level + 1, above * step.size + i, x, y + i * step.stride);
      return;
    }
    for (int64_t i = step.segments[above]; i < step.segments[above + 1]; ++i) {
      walk(level + 1, i, x, y + step.indices[i] * step.stride);
    }
  }

  std::array<Step, kMaxLevels> steps_;
  size_t count_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_densify() { return std::make_unique<Densify>(); }

}  // namespace litefuse
