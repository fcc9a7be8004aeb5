// The shapes that pooling and resizing are tested and measured with.
#pragma once

#include "kernels/simd/simd.h"

namespace litefuse {

struct PoolCase {
  int32_t channels;
  int32_t height;  // of the window, as clipped
  int32_t width;
  int32_t stride;
  int32_t left;
  int32_t columns;
  int32_t outputs;
  bool measured;
};

constexpr PoolCase kPoolCases[] = {
    {64, 2, 2, 2, 0, 112, 56, true},
    {64, 3, 3, 2, 0, 113, 56, true},
    {64, 3, 3, 2, 1, 112, 56, true},
    {256, 3, 3, 1, 1, 28, 28, true},
    {32, 2, 2, 2, 0, 56, 28, true},
    {288, 3, 3, 2, 0, 35, 17, true},
    {1280, 7, 7, 1, 0, 7, 1, true},
    {960, 14, 14, 1, 0, 14, 1, true},
    {128, 5, 5, 1, 2, 20, 20, true},
    {96, 4, 4, 1, 1, 28, 27, true},
    {3, 2, 2, 2, 0, 128, 64, true},
    // Tails, and windows that leave the image on one side or both.
    {1, 2, 2, 2, 0, 7, 4, false},
    {2, 3, 3, 2, 1, 9, 5, false},
    {5, 3, 3, 1, 1, 4, 4, false},
    {7, 1, 3, 1, 1, 1, 1, false},
    {8, 2, 3, 2, 1, 2, 2, false},
    {9, 3, 3, 2, 0, 11, 5, false},
    {12, 1, 2, 2, 0, 9, 5, false},
    {15, 3, 3, 1, 0, 11, 9, false},
    {17, 2, 2, 2, 0, 18, 9, false},
    {20, 2, 3, 1, 2, 3, 5, false},
    {31, 3, 2, 2, 1, 12, 7, false},
    {33, 3, 3, 2, 1, 14, 7, false},
    {40, 2, 2, 1, 0, 6, 6, false},
    {41, 5, 5, 3, 2, 13, 5, false},
    {10, 4, 9, 1, 4, 5, 5, false},
    {23, 1, 1, 1, 0, 5, 5, false},
    {67, 4, 6, 1, 0, 6, 1, false},
    {6, 2, 2, 2, -2, 9, 3, false},
    {8, 1, 2, 1, 2, 3, 6, false},
    {8, 3, 3, 1, 1, 5, 0, false},
};

struct ResizeCase {
  int32_t channels;
  int32_t columns;  // of the input
  int32_t outputs;
  bool half_pixel;
  bool align_corners;
  bool measured;
};

constexpr ResizeCase kResizeCases[] = {
    {256, 28, 56, true, false, true}, {64, 56, 112, true, false, true}, {32, 56, 112, false, false, true},
    {21, 33, 513, false, true, true}, {3, 64, 128, true, false, true},  {96, 28, 14, true, false, true},
    {1, 5, 10, true, false, false},   {2, 5, 9, false, true, false},    {3, 4, 11, false, false, false},
    {5, 7, 3, true, false, false},    {7, 1, 6, true, false, false},    {8, 6, 6, false, false, false},
    {9, 3, 7, true, false, false},    {12, 13, 5, false, true, false},  {17, 4, 8, true, false, false},
    {33, 3, 1, true, false, false},   {40, 6, 13, true, false, false},
};

}  // namespace litefuse
