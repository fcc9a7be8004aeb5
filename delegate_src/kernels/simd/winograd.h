// 3x3 convolutions of stride 1 by Winograd's algorithm F(4x4, 3x3): 36 products where the plain sum takes 144 (Lavin
// and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015). Float only, and of a numerics class of its own:
//
// * The error is at most kWinogradError of the largest output, for up to 512 channels of inputs with or without a
//   common offset. It grows with the root of the channels; typical are 1e-7 (root of the mean square) and 1e-6
//   (largest).
// * The usual points of interpolation, 0, +-1, +-2 and infinity, have two to four times this error. Those used here are
//   0, +-11/16, +-3/2 and infinity: near +-sqrt(1/2) and +-sqrt(2), where both transforms have small numbers, and all
//   that is computed from them is exact in float32. They were chosen by measuring.
// * A pixel that is not finite makes NaN of all 16 outputs of its tile, also where the plain sum would not see it or be
//   infinite. Tiles that have it in the border of their 6x6 pixels lose the row or column of outputs that it meets, up
//   to four of them; no others change. Inputs beyond about 1e37 may overflow in the transform.
// * A tile's outputs depend neither on the tiles that are computed together with it nor on the cut into calls.
#pragma once

#include "kernels/simd/gemm.h"

namespace litefuse {

constexpr int32_t kWinogradProducts = 36;
constexpr double kWinogradError = 6e-6;

struct WinogradLayout {
  int32_t channels = 0;  // of the input
  GemmLayout product;    // of each of the 36 matrices
  size_t floats = 0;     // 36 packed matrices behind one another, each a multiple of kWeightAlignment long
};

// A band of output tiles, 4x4 pixels each: `tiles` of them side by side, in one row of tiles.
struct WinogradRow {
  const WinogradLayout* layout = nullptr;
  const float* weights = nullptr;
  // Six input rows (the first one above the tiles), each from the pixel left of the first tile on: 4 * tiles + 2 pixels
  // can be read.
  const float* rows[6] = {};
  ptrdiff_t pixel = 0;
};

struct WinogradOutput {
  // Four rows of output (nullptr: not wanted), `columns` pixels wide at most: what is beyond is not stored.
  float* rows[4] = {};
  // Added after the clamp if there, for all rows that are wanted or for none; same strides as the output, which may be
  // the same memory.
  const float* residual[4] = {};
  ptrdiff_t pixel = 0;
  int32_t columns = 0;
  const float* bias = nullptr;  // nullptr for none
  GemmEpilogue epilogue;        // residual pointer table unused: see above
};

struct WinogradKernels {
  WinogradLayout (*layout)(int32_t channels, int32_t outputs);
  // The filter in TFLite's layout OHWI (outputs, 3, 3, channels), float32 or float16; transformed in double.
  void (*pack)(const WinogradLayout& layout, const void* filter, bool half, float* to);
  // Transforms the input of `tiles` tiles into [36][stride tiles][channels], of which it fills tiles [first, first +
  // tiles).
  void (*input)(const WinogradRow& row, int32_t tiles, float* transformed, int32_t stride, int32_t first);
  // The 36 products of `tiles` tiles: [36][tiles][channels] -> [36][tiles][outputs]. Fills the columns of the panels
  // [first_panel, last_panel).
  void (*multiply)(const WinogradLayout& layout, const float* weights, const float* transformed, int32_t tiles,
                   float* products, int32_t first_panel, int32_t last_panel);
  // Transforms tiles [first, first + tiles) of the products back into four rows of output.
  void (*output)(const WinogradLayout& layout, const float* products, int32_t stride, int32_t first, int32_t tiles,
                 const WinogradOutput& out);
};

// How many tiles one multiplication should take at most. Fewer, where that cuts an image evenly, do no harm down to
// about 18: measured, 18 to 60 differ by less than 10%, while 7 cost 20%. Avoid multiples of four with 64 channels and
// more: then the 36 matrices lie a multiple of 4 KB apart, and the transforms take two to five times as long, since the
// lines meet in the same sets of the first cache. Otherwise a transform takes about 110 cycles for a vector of eight
// channels of a tile, both transforms together 35% of all time at 16 channels, 23% at 32, 12% at 64 and 7% at 128.
int32_t winograd_tiles(const WinogradLayout& layout, size_t l2_bytes);

// Whether a convolution takes less time this way than as a direct one by GemmKernels, by a quarter at least, since it
// costs accuracy and four times the weights. By a formula for the cycles of both, fitted to times on one core of a
// Zen 3 (AVX2) for 16 to 512 channels and 4x4 to 112x112 pixels. Measured, time in relation to the direct one:
//   channels   4x4  5x5  7x7  8x8  10x10  14x14  20x20  28x28
//         16  1.87 1.88 1.03  .78    .94    .82    .55    .49
//         32  1.46 1.13  .62  .48    .60    .62    .40    .37
//         64   .88  .92  .49  .38    .49    .56    .34    .35
//        128   .80  .94  .58  .37    .57    .59
// With 256 channels and more, few tiles wait for the weights: about .5 at 14x14x256, .6 to .95 at 7x7x512.
bool winograd_pays(int32_t channels, int32_t outputs, int32_t height, int32_t width);

const WinogradKernels& winograd_kernels();
const WinogradKernels& winograd_reference();

}  // namespace litefuse
