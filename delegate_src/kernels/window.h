// Output sizes and paddings of operators that move a window over one spatial axis: convolutions and pooling.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "region/region.h"

namespace litefuse {

// One spatial axis. Output position o looks at inputs o * stride - pad_before + tap * dilation.
struct Window {
  int32_t in = 0;
  int32_t filter = 1;
  int32_t stride = 1;
  int32_t dilation = 1;
  int32_t out = 0;
  int32_t pad_before = 0;

  // Where the first tap of output o is; negative in the padding.
  int64_t origin(int32_t o) const { return int64_t{o} * stride - pad_before; }
};

// The taps [begin, end) of a window that lie in the input; possibly none.
struct Taps {
  int32_t begin = 0;
  int32_t end = 0;
};

inline Taps taps_inside(const Window& w, int64_t origin) {
  const int64_t d = w.dilation;
  const int64_t begin = origin >= 0 ? 0 : std::min<int64_t>((-origin + d - 1) / d, w.filter);
  const int64_t end = origin >= w.in ? 0 : std::min<int64_t>((w.in - origin + d - 1) / d, w.filter);
  return {static_cast<int32_t>(begin), static_cast<int32_t>(std::max(begin, end))};
}

// Fills `window` from the other arguments, or refuses with `axis` ("height", "width") in the reason. Inputs may be
// empty; an output can be then, or when a filter is larger than its input. What it accepts cannot overflow: filters
// span less than 2^31 inputs.
inline Status find_window(const char* axis, Padding padding, int32_t in, int32_t filter, int32_t stride,
                          int32_t dilation, Window* window) {
  LITEFUSE_REQUIRE(padding == Padding::kSame || padding == Padding::kValid, "its padding is neither SAME nor VALID");
  LITEFUSE_REQUIRE(in >= 0, "its input has a negative %s", axis);
  LITEFUSE_REQUIRE(filter > 0, "its filter's %s is %d", axis, filter);
  LITEFUSE_REQUIRE(stride > 0, "its stride along the %s is %d", axis, stride);
  LITEFUSE_REQUIRE(dilation > 0, "its dilation along the %s is %d", axis, dilation);
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const int64_t span = (int64_t{filter} - 1) * dilation + 1;
  LITEFUSE_REQUIRE(span <= kMax, "its dilated filter is too large along the %s", axis);
  const int64_t reach = int64_t{in} + stride - (padding == Padding::kSame ? 1 : span);
  const int64_t out = reach / stride;
  LITEFUSE_REQUIRE(out >= 0, "its filter covers %lld positions of the %s where the input has %d",
                   static_cast<long long>(span), axis, in);
  const int64_t total = std::max<int64_t>((out - 1) * stride + span - in, 0);
  LITEFUSE_REQUIRE(out <= kMax, "its output is too large along the %s", axis);
  *window = {in, filter, stride, dilation, static_cast<int32_t>(out), static_cast<int32_t>(total / 2)};
  return Status();
}

}  // namespace litefuse
