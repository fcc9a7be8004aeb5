#include "backends/cpu/simd.h"

#include <hwy/highway.h>

namespace litefuse {

std::string best_simd_target() {
  // The bit of a better target is lower.
  const auto supported = static_cast<uint64_t>(hwy::SupportedTargets());
  return hwy::TargetName(static_cast<decltype(hwy::SupportedTargets())>(supported & (~supported + 1)));
}

}  // namespace litefuse
