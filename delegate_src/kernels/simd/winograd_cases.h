// The shapes that Winograd's algorithm is tested and measured with, and a whole convolution made of its kernels.
#pragma once

#include <algorithm>

#include "kernels/simd/winograd.h"

namespace litefuse {

struct WinogradCase {
  int32_t channels;
  int32_t outputs;
  int32_t height;
  int32_t width;
  bool measured;  // by the benchmark, too
};

constexpr WinogradCase kWinogradCases[] = {
    // ResNet and its like.
    {64, 64, 56, 56, true},
    {128, 128, 28, 28, true},
    {256, 256, 14, 14, true},
    {512, 512, 7, 7, true},
    // DenseNet121.
    {128, 32, 56, 56, true},
    {128, 32, 14, 14, true},
    // EfficientNetV2B0.
    {16, 16, 112, 112, true},
    {32, 32, 56, 56, true},
    {48, 48, 28, 28, true},
    // Detectors, style transfer, hourglass.
    {24, 24, 64, 64, true},
    {32, 32, 112, 112, true},
    {96, 96, 28, 28, true},
    {128, 128, 32, 32, true},
    {64, 64, 14, 14, true},
    {128, 256, 20, 20, true},
    // Odd sizes, and vectors that are not full.
    {1, 1, 1, 1, false},
    {3, 5, 4, 4, false},
    {4, 8, 5, 9, false},
    {5, 3, 2, 3, false},
    {7, 33, 13, 6, false},
    {12, 20, 9, 11, false},
    {17, 19, 8, 17, false},
    {20, 24, 7, 7, false},
    {24, 17, 5, 30, false},
    {31, 31, 3, 21, false},
    {40, 9, 10, 10, false},
};

// A convolution of stride 1 and padding SAME, `batch` tiles in one product. `padded` has a row above and a pixel to the
// left of the image, and as many after it as whole tiles need: 4 * ceil(height / 4) + 2 rows of 4 * ceil(width / 4) + 2
// pixels. `transformed` and `products` have room for 36 * batch * channels and 36 * batch * outputs floats. `out` has
// what is the same for all tiles; its rows are set here.
inline void winograd_convolution(const WinogradKernels& kernels, const WinogradLayout& layout, const float* weights,
                                 const WinogradCase& shape, int32_t batch, const float* padded, float* transformed,
                                 float* products, WinogradOutput out, float* to, const float* residual) {
  const int32_t across = (shape.width + 3) / 4;
  const int32_t tiles = across * ((shape.height + 3) / 4);
  const ptrdiff_t row = static_cast<ptrdiff_t>(4 * across + 2) * shape.channels;
  const ptrdiff_t out_row = static_cast<ptrdiff_t>(shape.width) * out.pixel;
  for (int32_t begin = 0; begin < tiles; begin += batch) {
    const int32_t count = std::min(batch, tiles - begin);
    // The pieces of rows of tiles that make up [begin, begin + count).
    const auto for_pieces = [&](auto f) {
      for (int32_t tile = begin; tile < begin + count;) {
        const int32_t x = tile % across;
        const int32_t some = std::min(across - x, begin + count - tile);
        f(tile / across * 4, x * 4, tile - begin, some);
        tile += some;
      }
    };
    for_pieces([&](int32_t y, int32_t x, int32_t first, int32_t some) {
      WinogradRow from;
      from.layout = &layout;
      from.weights = weights;
      from.pixel = shape.channels;
      for (int32_t i = 0; i < 6; ++i) {
        from.rows[i] = padded + (y + i) * row + static_cast<ptrdiff_t>(x) * shape.channels;
      }
      kernels.input(from, some, transformed, count, first);
    });
    kernels.multiply(layout, weights, transformed, count, products, 0,
                     static_cast<int32_t>(layout.product.panels.size()));
    for_pieces([&](int32_t y, int32_t x, int32_t first, int32_t some) {
      for (int32_t i = 0; i < 4; ++i) {
        const ptrdiff_t at = (y + i) * out_row + x * out.pixel;
        out.rows[i] = y + i < shape.height ? to + at : nullptr;
        out.residual[i] = residual != nullptr && y + i < shape.height ? residual + at : nullptr;
      }
      out.columns = shape.width - x;
      kernels.output(layout, products, count, first, some, out);
    });
  }
}

}  // namespace litefuse
