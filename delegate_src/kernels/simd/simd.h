// The vector kernels: one family per file, written once on Highway and compiled for every instruction set that it can
// choose at run time.
//
// A family is a struct of function pointers (GemmKernels, DepthwiseKernels, ...). `gemm_kernels()` gives those of the
// best instruction set of this processor, `gemm_reference()` the same functions as plain scalar C++, which tests
// compare with. All are float32 and agree on these rules:
//
// * Tensors are NHWC, and kernels work on rows of them. Strides are counted in floats. A pixel is `channels` floats
//   next to each other; where the next pixel begins is said by a stride, so that outputs can be written side by side.
// * Nothing is read or written beyond what the arguments name, not even masked: the last row of a tensor may end at the
//   end of a page. Packed weights are padded, and are the only exception.
// * No pointer but that of packed weights has to be aligned. A result does not depend on alignment, nor on how a strip
//   of rows is cut into calls.
// * NaN goes through clamps as in XNNPACK (a NaN stays one); infinities give what the formula gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace litefuse {

// Weights start at multiples of this.
constexpr size_t kWeightAlignment = 64;

// The instruction set that the kernels use, such as "AVX2" or "NEON".
std::string simd_name();

// The sizes of the caches of the core that runs this, in bytes: as the system tells them, else those of a small core.
struct Caches {
  size_t l1 = 32 * 1024;
  size_t l2 = 256 * 1024;
  size_t l3 = 0;  // of all cores together
};
const Caches& caches();

}  // namespace litefuse
