// Pooling and resizing, one row of output at a time.
#pragma once

#include "kernels/simd/simd.h"

namespace litefuse {

struct PoolRow {
  const float* const* rows = nullptr;  // input rows of the window, those inside the image only
  int32_t height = 0;                  // how many these are; at least 1
  int32_t width = 0;                   // of the window
  int32_t stride = 1;
  int32_t left = 0;     // padding before the row: output 0 begins at pixel -left
  int32_t columns = 0;  // of the input row
  int32_t channels = 0;
  ptrdiff_t pixel = 0;
  int32_t outputs = 0;
  float* out = nullptr;
  ptrdiff_t out_pixel = 0;
  float min = 0, max = 0;  // clamp
};

// Where an output column or row of a bilinear resize comes from: (1 - weight) * row `first` + weight * row `second`.
struct Sample {
  int32_t first = 0;
  int32_t second = 0;
  float weight = 0;
};

struct ResizeRow {
  const float* top = nullptr;       // input row sample.first
  const float* bottom = nullptr;    // input row sample.second
  float weight = 0;                 // of the bottom row
  const Sample* columns = nullptr;  // one for each output
  int32_t channels = 0;
  ptrdiff_t pixel = 0;
  int32_t outputs = 0;
  float* out = nullptr;
  ptrdiff_t out_pixel = 0;
};

// A window without a pixel inside the image gives zero (clamped).
struct WindowKernels {
  // NaN does not count, as in TensorFlow Lite's kernels; nothing but that, or -inf, gives the lowest number.
  void (*max_pool)(const PoolRow& row);
  // The mean of the pixels inside the image.
  void (*average_pool)(const PoolRow& row);
  // Between the rows first, then between the columns, each as a + (b - a) t.
  void (*bilinear)(const ResizeRow& row);
  // Output i is pixel columns[i].first of `top`.
  void (*nearest)(const ResizeRow& row);
};

const WindowKernels& window_kernels();
const WindowKernels& window_reference();

}  // namespace litefuse
