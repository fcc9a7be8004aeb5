// What vector instructions this processor has, as Highway sees it.
#pragma once

#include <string>

namespace litefuse {

// The best instruction set that kernels could use here, such as "AVX2" or "NEON".
std::string best_simd_target();

}  // namespace litefuse
