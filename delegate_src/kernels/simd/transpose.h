// Matrices turned: rows become columns. For TRANSPOSE, and for the packing of matrices that are computed at run time.
#pragma once

#include "kernels/simd/simd.h"

namespace litefuse {

struct TransposeKernels {
  // to[c * to_stride + r] = from[r * from_stride + c], for elements of four bytes of any kind: they are only moved.
  // Strides are in elements. `to` does not overlap `from`.
  void (*transpose)(const float* from, int64_t rows, int64_t columns, ptrdiff_t from_stride, float* to,
                    ptrdiff_t to_stride);
};

const TransposeKernels& transpose_kernels();
const TransposeKernels& transpose_reference();

}  // namespace litefuse
