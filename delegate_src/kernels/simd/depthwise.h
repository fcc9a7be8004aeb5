// Depthwise convolutions, one or two rows of output at a time. Channel c of the output comes from channel c / multiplier
// of the input alone.
#pragma once

#include "kernels/simd/simd.h"

namespace litefuse {

// How the filter and bias are packed: for each vector of channels [header | bias | height * width taps], of which all
// but the header are a vector. The last one ends at the last channel and may overlap the one before; `lanes` is at most
// `channels`.
struct DepthwiseLayout {
  int32_t channels = 0;  // of the output
  int32_t multiplier = 1;
  int32_t height = 0;  // of the filter
  int32_t width = 0;
  int32_t lanes = 0;
  // Vectors that say which channels of the input a vector of the output is made of; see pack_header(). None without a
  // multiplier.
  int32_t header = 0;
  size_t floats = 0;
};

// The filter before it is packed: tap (y, x) of channel c is data[(y * width + x) * channels + c], float32 or float16
// (TFLite's layout of depthwise filters).
struct DepthwiseWeights {
  const void* data = nullptr;
  bool half = false;
  const float* bias = nullptr;  // nullptr for none
};

struct DepthwiseRow {
  const DepthwiseLayout* layout = nullptr;
  const float* weights = nullptr;  // packed
  // For each row of the filter, where its first tap for output 0 lies (in a padded row that is left of the image). With
  // two lines there are `stride` more: the second line begins so many rows further on.
  const float* const* rows = nullptr;
  ptrdiff_t pixel = 0;   // floats from one input pixel to the next
  bool far = false;      // whether the input is probably not in a near cache: it is fetched ahead
  int32_t stride = 1;    // input pixels from one output to the next
  int32_t dilation = 1;  // input pixels from one tap to the next
  int32_t outputs = 0;   // all of whose taps can be read
  int32_t lines = 1;     // rows of output, 1 or 2. Two that share rows of the input are faster than one by one
  float* out = nullptr;
  ptrdiff_t out_pixel = 0;        // floats from one output pixel to the next
  ptrdiff_t out_line = 0;         // floats from the first line to the second
  float min = 0, max = 0;         // clamp
  const float* slopes = nullptr;  // PReLU instead of the clamp: one slope for each channel
};

// One output pixel, some of whose taps lie outside of the image.
struct DepthwisePixel {
  const DepthwiseLayout* layout = nullptr;
  const float* weights = nullptr;
  const float* const* taps = nullptr;  // height * width pointers; nullptr where the tap lies outside
  float* out = nullptr;
  float min = 0, max = 0;
  const float* slopes = nullptr;
};

struct DepthwiseKernels {
  // `channels` are those of the output, a multiple of `multiplier`.
  DepthwiseLayout (*layout)(int32_t channels, int32_t height, int32_t width, int32_t multiplier);
  void (*pack)(const DepthwiseLayout& layout, const DepthwiseWeights& weights, float* to);
  // Fast for 3x3, 5x5 and 7x7 with stride 1 and 2, right for everything. Sums in the order bias, taps row by row, however
  // many lines and outputs are computed together.
  void (*row)(const DepthwiseRow& row);
  // The same sum as row() gives where the taps outside are zero.
  void (*pixel)(const DepthwisePixel& pixel);
};

const DepthwiseKernels& depthwise_kernels();
const DepthwiseKernels& depthwise_reference();

}  // namespace litefuse
