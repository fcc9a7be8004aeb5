// Normalisations and softmax over rows, and sums over pixels.
#pragma once

#include "kernels/simd/simd.h"

namespace litefuse {

// What functions of rows add up is added in an order that depends on the number of channels and the instruction set
// only (norm.cc says which), so that a row gives the same alone, with others, in place and at any stride.
struct NormKernels {
  // For each row: y = (x - mean) / sqrt(variance + epsilon) * gamma + beta. The mean is taken first, then the variance
  // of the differences. gamma and beta may be nullptr (1 and 0); y may be x. Rows are `stride` floats apart.
  void (*layer_norm)(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, const float* gamma,
                     const float* beta, float epsilon, float* y, ptrdiff_t y_stride);
  // y = x / sqrt(mean of squares + epsilon) * gamma.
  void (*rms_norm)(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, const float* gamma,
                   float epsilon, float* y, ptrdiff_t y_stride);
  // y = x / max(sqrt(sum of squares), epsilon), as TFLite's L2_NORMALIZATION.
  void (*l2_norm)(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, float epsilon, float* y,
                  ptrdiff_t y_stride);
  // y = e^(beta (x - max)) / sum of these, over each row; fast for short rows (2 to 16) as well as long ones. As in
  // TFLite's kernel a NaN or +inf makes NaN of its row, and so do -inf in all elements. Results below the smallest
  // normal number may be 0. y may be x.
  void (*softmax)(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, float beta, float* y,
                  ptrdiff_t y_stride);
  // y = x - max - log(sum of e^(x - max)).
  void (*log_softmax)(const float* x, int32_t rows, ptrdiff_t x_stride, int32_t channels, float* y, ptrdiff_t y_stride);
  // For each channel the sum over `pixels` pixels that are `pixel` floats apart, in the order of the pixels and in four
  // partial sums (pixel i goes to number i % 4, added up as (0 + 1) + (2 + 3)): sums[c] of `channels`.
  void (*sum_pixels)(const float* x, int32_t pixels, ptrdiff_t pixel, int32_t channels, float* sums);
  // The same for the largest and the smallest element, and for the sum of (x - shift[c])^2. NaN as in TFLite's
  // REDUCE_MAX and REDUCE_MIN, where the element that follows a NaN replaces it: the result is that of the elements
  // behind the last NaN, and NaN if it is the last element. Which of +0 and -0 is given is not specified. No elements at
  // all give the lowest or the largest finite float, as there.
  void (*max_pixels)(const float* x, int32_t pixels, ptrdiff_t pixel, int32_t channels, float* result);
  void (*min_pixels)(const float* x, int32_t pixels, ptrdiff_t pixel, int32_t channels, float* result);
  void (*sum_squares)(const float* x, int32_t pixels, ptrdiff_t pixel, int32_t channels, const float* shift,
                      float* sums);
  // For each row the sum, the largest or smallest element (with NaN and nothing as above): result[row].
  void (*sum_rows)(const float* x, int32_t rows, ptrdiff_t stride, int32_t channels, float* result);
  void (*max_rows)(const float* x, int32_t rows, ptrdiff_t stride, int32_t channels, float* result);
  void (*min_rows)(const float* x, int32_t rows, ptrdiff_t stride, int32_t channels, float* result);
};

const NormKernels& norm_kernels();
const NormKernels& norm_reference();

}  // namespace litefuse
