// What stands between the two products of attention: softmax of a row of scores, but for the division, which is made
// after the second product, where rows are shorter.
#pragma once

#include "kernels/simd/simd.h"

namespace litefuse {

// Rows of scores that become weights.
struct ScoreRows {
  int32_t rows = 0;
  int32_t channels = 0;
  const float* x = nullptr;
  ptrdiff_t x_stride = 0;  // from one row to the next
  float scale = 1.0f;      // positive and finite, as is its product with beta
  const float* mask = nullptr;
  ptrdiff_t mask_stride = 0;
  float beta = 1.0f;
  float* y = nullptr;  // not x
  ptrdiff_t y_stride = 0;
  float* factors = nullptr;  // one for each row
};

struct AttentionKernels {
  // With z = x scale + mask, or z = x where there is no mask and all of the scale is in beta: y = e^(beta (z - max z)),
  // and factors[row] = 1 / the sum of the row. A NaN or +inf makes a row whose products with its factor are NaN, and so
  // do -inf in all elements; -inf in some makes 0 of these. Results below the smallest normal number may be 0. A row
  // gives the same alone and with others.
  void (*weights)(const ScoreRows& rows);
  // rows[i][first, first + channels) *= factors[i] for `count` rows.
  void (*scale)(float* const* rows, int32_t count, ptrdiff_t first, int32_t channels, const float* factors);
};

const AttentionKernels& attention_kernels();
const AttentionKernels& attention_reference();

}  // namespace litefuse
