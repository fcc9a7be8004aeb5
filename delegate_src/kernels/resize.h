// Where the positions of a resized image lie in the original: what the reference kernel and the fast one share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "region/region.h"

namespace litefuse {

// Coordinates are computed in float32 and kept in tables.
constexpr int32_t kMaxSide = 1 << 24;

struct Sides {
  int32_t in = 0;
  int32_t out = 0;
};

// Where an output position lies between two positions of the input.
template <typename Fraction>
struct Between {
  int32_t lower = 0;
  int32_t upper = 0;
  Fraction fraction{};  // the distance from `lower`, below 0 where half-pixel centres lie outside
};

inline Status require_inside(int64_t lower, Sides side) {
  // The runtime's kernels read another row's elements there, or what follows the tensor.
  LITEFUSE_REQUIRE(lower < side.in, "rounding leads outside the input when %d positions become %d", side.in, side.out);
  return Status();
}

inline Status find_positions(Sides side, const ResizeParams& params, std::vector<Between<float>>* positions) {
  float scale = static_cast<float>(side.in) / static_cast<float>(side.out);
  if (params.align_corners && side.out > 1) {
    scale = static_cast<float>(side.in - 1) / static_cast<float>(side.out - 1);
  }
  positions->resize(static_cast<size_t>(side.out));
  for (int32_t i = 0; i < side.out; ++i) {
    const auto at = static_cast<float>(i);
    const float exact = params.half_pixel_centers ? (at + 0.5f) * scale - 0.5f : at * scale;
    const int32_t lower = std::max(static_cast<int32_t>(std::floor(exact)), 0);
    const int32_t upper = std::min(static_cast<int32_t>(std::ceil(exact)), side.in - 1);
    LITEFUSE_RETURN_IF_REFUSED(require_inside(lower, side));
    (*positions)[static_cast<size_t>(i)] = {lower, upper, exact - static_cast<float>(lower)};
  }
  return Status();
}

// The nearest position of the input to each of the output.
inline void find_nearest(Sides side, const ResizeParams& params, std::vector<int32_t>* nearest) {
  const float scale = params.align_corners && side.out > 1
                          ? static_cast<float>(side.in - 1) / static_cast<float>(side.out - 1)
                          : static_cast<float>(side.in) / static_cast<float>(side.out);
  const float offset = params.half_pixel_centers ? 0.5f : 0.0f;
  nearest->resize(static_cast<size_t>(side.out));
  for (int32_t i = 0; i < side.out; ++i) {
    const float exact = (static_cast<float>(i) + offset) * scale;
    const auto at = static_cast<int32_t>(params.align_corners ? std::round(exact) : std::floor(exact));
    (*nearest)[static_cast<size_t>(i)] = std::max(std::min(at, side.in - 1), 0);
  }
}

}  // namespace litefuse
