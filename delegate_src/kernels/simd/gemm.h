// Matrix products with packed weights: C = A B + bias, with an epilogue in registers. They serve pointwise and KxK
// convolutions, matrix products with weights and those of two tensors.
//
// The rows of A are found through a table of pointers, in `segments` pieces of `segment_length` floats each: a KxK
// convolution has a piece for every row of its window (K * C floats that lie next to each other in a padded row), a
// pointwise one has a single piece. The rows of C are found through a table, too, so that a product can be written into
// the rows of a padded ring.
#pragma once

#include <vector>

#include "kernels/simd/simd.h"

namespace litefuse {

// Columns of B that are computed together: `vectors` vector registers wide, from column `first` on. The panel lies at
// `offset` (in floats) of the packed weights as [bias | depth rows], each of vectors * lanes floats; what is beyond the
// last column is zero.
struct Panel {
  int32_t first = 0;
  int32_t vectors = 0;
  size_t offset = 0;
};

// How a matrix B of `depth` rows and `columns` columns is packed for one instruction set.
struct GemmLayout {
  int32_t depth = 0;
  int32_t columns = 0;
  int32_t lanes = 0;  // floats in a vector register
  std::vector<Panel> panels;
  size_t floats = 0;  // size of the packed weights

  // Columns with those that fill the last panel.
  int32_t padded() const { return panels.empty() ? 0 : panels.back().first + panels.back().vectors * lanes; }
};

// The piece of the depth that a product of so many rows should be computed in, or 0: where A does not stay in the second
// cache while one panel after the other is computed, but a piece does that is worth storing the sums for. Pieces are
// parts of a segment.
int32_t gemm_piece(int32_t rows, int32_t depth, int32_t segment_length);

// B before it is packed: element (k, n) is data[k * depth_stride + n * column_stride], float32 or float16.
struct GemmWeights {
  const void* data = nullptr;
  bool half = false;
  ptrdiff_t depth_stride = 0;
  ptrdiff_t column_stride = 0;
  const float* bias = nullptr;  // one for each column; nullptr for none
};

// What is done to a sum before it is stored, in this order. A residual is added after the first clamp and followed by
// the second. All of it costs little, since the sum is still in a register.
struct GemmEpilogue {
  float min = -kInfinity;  // the first clamp; infinite where there is none
  float max = kInfinity;
  const float* slopes = nullptr;           // PReLU instead of the clamp: one slope for each column
  const float* const* residual = nullptr;  // rows that are added, as many floats long as C's
  float residual_min = -kInfinity;         // the second clamp
  float residual_max = kInfinity;

  static constexpr float kInfinity = __builtin_huge_valf();
};

struct GemmCall {
  const float* const* a = nullptr;  // segments * rows pointers; row m, segment s is a[s * rows + m] + a_offset
  ptrdiff_t a_offset = 0;           // added to every pointer (the first channel of a group)
  int32_t rows = 0;
  int32_t segments = 1;
  int32_t segment_length = 0;  // segments * segment_length == layout->depth
  const GemmLayout* layout = nullptr;
  const float* weights = nullptr;  // packed, aligned to kWeightAlignment
  int32_t first_panel = 0;         // the panels to compute: [first_panel, last_panel)
  int32_t last_panel = 0;
  float* const* c = nullptr;  // rows pointers; column n of row m is stored at c[m] + c_offset + n
  ptrdiff_t c_offset = 0;     // for C and for the residual
  GemmEpilogue epilogue;      // slopes[n] belongs to column n
  // Packed weights, of the same layout, that the next call will use, where these and those are too many to stay in the
  // second cache: they are fetched meanwhile.
  const float* ahead = nullptr;
  bool cold = false;  // whether the weights are far even if they are few, since much else is read between two calls
  // Room for rows * layout->padded() sums, and how much of the depth to go through at a time, for all columns, before
  // the rest of it: then so much of each row of A stays near. 0 for all at once. Results are the same.
  float* sums = nullptr;
  int32_t piece = 0;
};

struct GemmKernels {
  // The layout of a matrix of this size.
  GemmLayout (*layout)(int32_t depth, int32_t columns);
  // Packs into `to`, which has room for layout.floats floats, aligned.
  void (*pack)(const GemmLayout& layout, const GemmWeights& weights, float* to);
  // The same of the panels [first, last) only: what is computed at run time can be packed by several threads.
  void (*pack_panels)(const GemmLayout& layout, const GemmWeights& weights, int32_t first, int32_t last, float* to);
  // Each column of C is summed in the order of A's row (segment by segment), beginning with the bias, by fused
  // multiply-adds where the instruction set has them. C may be its own residual.
  void (*run)(const GemmCall& call);
};

const GemmKernels& gemm_kernels();
const GemmKernels& gemm_reference();

}  // namespace litefuse
