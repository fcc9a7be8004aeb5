// Sparse constants for tests: made from dense ones, level by level.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "region/region.h"
#include "tests/random.h"

namespace litefuse::fake {

template <typename T>
struct Sparse {
  Sparsity how;
  std::vector<T> values;
};

// What makes up a sparse form: `how.order` and `how.block_map`, the sizes of the blocks, and which levels are dense.
struct SparseForm {
  std::vector<int32_t> order, block_map, block_sizes;
  std::vector<bool> dense;
};

inline SparseForm random_form(const std::vector<int32_t>& dims, Random* random) {
  SparseForm form;
  const auto rank = static_cast<int32_t>(dims.size());
  for (int32_t d = 0; d < rank; ++d) {
    form.order.push_back(d);
    if (!random->one_in(3)) continue;
    std::vector<int32_t> sizes;
    for (int32_t size = 1; size <= dims[static_cast<size_t>(d)]; ++size) {
      if (dims[static_cast<size_t>(d)] % size == 0) sizes.push_back(size);
    }
    if (sizes.empty()) continue;
    form.block_map.push_back(d);
    form.block_sizes.push_back(random->of(sizes));
  }
  for (int32_t i = rank - 1; i > 0; --i) {
    std::swap(form.order[static_cast<size_t>(i)], form.order[static_cast<size_t>(random->below(i + 1))]);
  }
  for (size_t b = 0; b < form.block_map.size(); ++b) form.order.push_back(rank + static_cast<int32_t>(b));
  for (size_t i = 0; i < form.order.size(); ++i) {
    form.dense.push_back(i >= static_cast<size_t>(rank) || random->one_in(2));
  }
  return form;
}

// `all` has the elements of a tensor of these dimensions; numbers other than zero are kept.
template <typename T>
Sparse<T> make_sparse(const std::vector<T>& all, const std::vector<int32_t>& dims, const SparseForm& form) {
  const size_t rank = dims.size(), count = form.order.size();
  std::vector<int64_t> sizes(count), strides(count);
  int64_t stride = 1;
  for (size_t d = rank; d-- > 0; stride *= dims[d]) {
    sizes[d] = dims[d];
    strides[d] = stride;
  }
  for (size_t b = 0; b < form.block_map.size(); ++b) {
    const auto whole = static_cast<size_t>(form.block_map[b]);
    sizes[rank + b] = form.block_sizes[b];
    strides[rank + b] = strides[whole];
    sizes[whole] /= form.block_sizes[b];
    strides[whole] *= form.block_sizes[b];
  }
  // The places in the dense tensor that lie below a node, which stands at `first`, from a level on.
  auto below = [&](size_t level, int64_t first) {
    std::vector<int64_t> places{first};
    for (size_t i = level; i < count; ++i) {
      const auto dimension = static_cast<size_t>(form.order[i]);
      std::vector<int64_t> next;
      for (int64_t place : places) {
        for (int64_t c = 0; c < sizes[dimension]; ++c) next.push_back(place + c * strides[dimension]);
      }
      places = std::move(next);
    }
    return places;
  };
  auto any = [&](size_t level, int64_t first) {
    for (int64_t place : below(level, first)) {
      if (all[static_cast<size_t>(place)] != T(0)) return true;
    }
    return false;
  };
  Sparse<T> made;
  made.how.order = form.order;
  made.how.block_map = form.block_map;
  std::vector<int64_t> nodes{0};
  for (size_t i = 0; i < count; ++i) {
    const auto dimension = static_cast<size_t>(form.order[i]);
    Sparsity::Level level;
    level.dense = form.dense[i];
    if (level.dense) {
      level.size = static_cast<int32_t>(sizes[dimension]);
    } else {
      level.segments.push_back(0);
    }
    std::vector<int64_t> next;
    for (int64_t node : nodes) {
      for (int64_t c = 0; c < sizes[dimension]; ++c) {
        const int64_t place = node + c * strides[dimension];
        if (!level.dense && !any(i + 1, place)) continue;
        if (!level.dense) level.indices.push_back(static_cast<int32_t>(c));
        next.push_back(place);
      }
      if (!level.dense) level.segments.push_back(static_cast<int32_t>(level.indices.size()));
    }
    nodes = std::move(next);
    made.how.levels.push_back(std::move(level));
  }
  for (int64_t node : nodes) made.values.push_back(all[static_cast<size_t>(node)]);
  made.how.values = static_cast<int64_t>(made.values.size());
  return made;
}

// Sets something in it to what no converter writes.
inline void spoil(Sparsity* how, Random* random) {
  auto number = [&](std::vector<int32_t>* list) {
    if (list->empty() || random->one_in(6)) {
      list->push_back(random->one_in(2) ? random->odd() : random->below(4));
    } else if (random->one_in(6)) {
      list->pop_back();
    } else {
      (*list)[static_cast<size_t>(random->below(static_cast<int>(list->size())))] =
          random->one_in(2) ? random->odd() : random->below(4);
    }
  };
  if (how->levels.empty() || random->one_in(8)) {
    how->levels.emplace_back();
    return;
  }
  Sparsity::Level& level = how->levels[static_cast<size_t>(random->below(static_cast<int>(how->levels.size())))];
  switch (random->below(7)) {
    case 0:
      return number(&how->order);
    case 1:
      return number(&how->block_map);
    case 2:
      how->levels.pop_back();
      return;
    case 3:
      level.dense = !level.dense;
      return;
    case 4:
      level.size = random->odd();
      return;
    case 5:
      return number(&level.segments);
    default:
      return number(&level.indices);
  }
}

}  // namespace litefuse::fake
