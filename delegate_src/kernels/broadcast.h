// Walking over elementwise operands of different shapes: aligned at their innermost dimensions, with those of size 1
// repeated.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "region/region.h"

namespace litefuse {

// The shape to which both operands are broadcast; refuses those that do not fit.
inline Status broadcast_shape(const Shape& a, const Shape& b, Shape* result) {
  const int rank = std::max(a.rank(), b.rank());
  const Shape x = a.extended(rank);
  const Shape y = b.extended(rank);
  int32_t dims[kMaxRank];
  for (int i = 0; i < rank; ++i) {
    LITEFUSE_REQUIRE(x[i] == y[i] || x[i] == 1 || y[i] == 1, "shapes %s and %s do not fit together", a.str().c_str(),
                     b.str().c_str());
    dims[i] = x[i] == 1 ? y[i] : x[i];
  }
  LITEFUSE_REQUIRE(result->assign(dims, rank), "%s and %s have too many elements together", a.str().c_str(),
                   b.str().c_str());
  return Status();
}

// A walk over the elements of a result, in order, and those of N operands that belong to them. It goes by runs along
// the innermost dimension, within which the operands have a constant step of 0 or 1; dimensions that can be walked as
// one are merged, so that operands of equal shapes make a single run.
template <size_t N>
class Broadcast {
 public:
  // Each operand must be broadcast to `result` by the rules of broadcast_shape().
  void plan(const Shape& result, const std::array<Shape, N>& operands) {
    empty_ = result.elements() == 0;
    rank_ = 0;
    // Innermost first, which makes merging simple; turned around afterwards.
    std::array<int64_t, N> sizes;
    sizes.fill(1);
    std::array<Shape, N> shapes;
    for (size_t n = 0; n < N; ++n) shapes[n] = operands[n].extended(result.rank());
    for (int d = result.rank() - 1; d >= 0; --d) {
      const int64_t dim = result[d];
      if (dim == 1) continue;
      std::array<int64_t, N> step;
      bool merges = rank_ > 0;
      for (size_t n = 0; n < N; ++n) {
        step[n] = shapes[n][d] == 1 ? 0 : sizes[n];
        sizes[n] *= shapes[n][d];
        merges = merges && step[n] == steps_[at(rank_ - 1)][n] * dims_[at(rank_ - 1)];
      }
      if (merges) {
        dims_[at(rank_ - 1)] *= dim;
      } else {
        dims_[at(rank_)] = dim;
        steps_[at(rank_)] = step;
        ++rank_;
      }
    }
    if (rank_ == 0) {
      dims_[0] = 1;
      steps_[0].fill(1);
      rank_ = 1;
    }
  }

  // Elements of a run.
  int64_t run() const { return dims_[0]; }
  // Step of operand n within runs: 0 or 1.
  int64_t step(size_t n) const { return steps_[0][n]; }

  // Calls body(offset in the result, offsets in the operands) for each run.
  template <typename Body>
  void each_run(Body body) const {
    if (empty_) return;
    std::array<int64_t, kMaxRank> index{};
    std::array<int64_t, N> offsets{};
    int64_t offset = 0;
    while (true) {
      body(offset, offsets);
      offset += dims_[0];
      int d = 1;
      for (; d < rank_; ++d) {
        for (size_t n = 0; n < N; ++n) offsets[n] += steps_[at(d)][n];
        if (++index[at(d)] < dims_[at(d)]) break;
        for (size_t n = 0; n < N; ++n) offsets[n] -= steps_[at(d)][n] * dims_[at(d)];
        index[at(d)] = 0;
      }
      if (d == rank_) return;
    }
  }

 private:
  static size_t at(int i) { return static_cast<size_t>(i); }

  bool empty_ = true;
  int rank_ = 1;
  // Innermost first.
  std::array<int64_t, kMaxRank> dims_{};
  std::array<std::array<int64_t, N>, kMaxRank> steps_{};
};

// result[...] = f(a[...], b[...]) for every element.
template <typename A, typename B, typename R, typename F>
void broadcast(const Broadcast<2>& walk, const A* a, const B* b, R* result, F f) {
  const int64_t n = walk.run();
  walk.each_run([&](int64_t offset, const std::array<int64_t, 2>& from) {
    const A* x = a + from[0];
    const B* y = b + from[1];
    R* r = result + offset;
    if (walk.step(0) == 0) {
      const A first = *x;
      for (int64_t i = 0; i < n; ++i) r[i] = f(first, y[i]);
    } else if (walk.step(1) == 0) {
      const B second = *y;
      for (int64_t i = 0; i < n; ++i) r[i] = f(x[i], second);
    } else {
      for (int64_t i = 0; i < n; ++i) r[i] = f(x[i], y[i]);
    }
  });
}

// result[...] = f(a[...], b[...], c[...]) for every element.
template <typename A, typename B, typename C, typename R, typename F>
void broadcast(const Broadcast<3>& walk, const A* a, const B* b, const C* c, R* result, F f) {
  const int64_t n = walk.run();
  const int64_t steps[] = {walk.step(0), walk.step(1), walk.step(2)};
  walk.each_run([&](int64_t offset, const std::array<int64_t, 3>& from) {
    const A* x = a + from[0];
    const B* y = b + from[1];
    const C* z = c + from[2];
    R* r = result + offset;
    for (int64_t i = 0; i < n; ++i) r[i] = f(x[i * steps[0]], y[i * steps[1]], z[i * steps[2]]);
  });
}

}  // namespace litefuse
