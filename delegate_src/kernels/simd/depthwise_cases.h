// The shapes that the depthwise kernels are tested and measured with.
#pragma once

#include "kernels/simd/simd.h"

namespace litefuse {

struct DepthwiseCase {
  int32_t channels;  // of the output
  int32_t height;    // of the filter
  int32_t width;
  int32_t stride;
  int32_t dilation;
  int32_t outputs;
  bool measured;  // by the benchmark, too
  int32_t multiplier = 1;
};

constexpr DepthwiseCase kDepthwiseCases[] = {
    // MobileNetV2 and its like.
    {32, 3, 3, 1, 1, 112, true},
    {96, 3, 3, 2, 1, 56, true},
    {144, 3, 3, 1, 1, 56, true},
    {144, 3, 3, 2, 1, 28, true},
    {192, 3, 3, 1, 1, 28, true},
    {192, 3, 3, 2, 1, 14, true},
    {384, 3, 3, 1, 1, 14, true},
    {576, 3, 3, 1, 1, 14, true},
    {512, 3, 3, 1, 1, 14, true},
    {576, 3, 3, 2, 1, 7, true},
    {960, 3, 3, 1, 1, 7, true},
    {16, 3, 3, 1, 1, 112, true},
    // MobileNetV1, with pixels that fight for the same places in the cache.
    {128, 3, 3, 2, 1, 28, true},
    {256, 3, 3, 1, 1, 28, true},
    {256, 3, 3, 2, 1, 14, true},
    {512, 3, 3, 2, 1, 7, true},
    {1024, 3, 3, 1, 1, 7, true},
    // MobileNetV3, EfficientNet, hand and face models.
    {72, 5, 5, 2, 1, 28, true},
    {120, 5, 5, 1, 1, 28, true},
    {240, 5, 5, 1, 1, 14, true},
    {24, 5, 5, 1, 1, 64, true},
    {24, 5, 5, 2, 1, 64, true},
    {256, 5, 5, 2, 1, 14, true},
    {672, 5, 5, 2, 1, 7, true},
    {672, 5, 5, 1, 1, 14, true},
    // ConvNeXt.
    {96, 7, 7, 1, 1, 56, true},
    {192, 7, 7, 1, 1, 28, true},
    {384, 7, 7, 1, 1, 14, true},
    {768, 7, 7, 1, 1, 7, true},
    {64, 7, 7, 2, 1, 28, true},
    // DeepLab's, and others for which there is no kernel of its own.
    {960, 3, 3, 1, 2, 33, true},
    {64, 2, 2, 2, 1, 28, true},
    {64, 9, 9, 1, 1, 28, true},
    {64, 1, 9, 1, 1, 28, true},
    {64, 9, 1, 1, 1, 28, true},
    {4, 3, 3, 1, 1, 64, true},
    // Multipliers: keyword spotting from a spectrogram, and first layers.
    {8, 10, 8, 2, 1, 20, true, 8},
    {32, 3, 3, 2, 1, 112, true, 32},
    {24, 3, 3, 1, 1, 112, true, 8},
    {64, 3, 3, 1, 1, 56, true, 2},
    {96, 3, 3, 1, 1, 28, true, 3},
    // Tails of channels and of columns.
    {1, 3, 3, 1, 1, 9, false},
    {2, 3, 3, 2, 1, 5, false},
    {3, 5, 5, 1, 1, 7, false},
    {5, 3, 3, 1, 1, 1, false},
    {7, 7, 7, 2, 1, 3, false},
    {8, 3, 3, 1, 1, 2, false},
    {9, 3, 3, 1, 1, 3, false},
    {12, 3, 3, 2, 1, 4, false},
    {13, 5, 5, 2, 1, 5, false},
    {15, 7, 7, 1, 1, 13, false},
    {17, 3, 3, 1, 1, 15, false},
    {20, 5, 5, 1, 1, 6, false},
    {24, 7, 7, 1, 1, 8, false},
    {31, 3, 3, 2, 1, 17, false},
    {33, 7, 7, 2, 1, 9, false},
    {40, 3, 3, 1, 1, 11, false},
    {19, 5, 5, 1, 1, 10, false},
    {1001, 3, 3, 1, 1, 5, false},
    {21, 1, 1, 1, 1, 12, false},
    {21, 1, 1, 3, 1, 12, false},
    {10, 2, 2, 1, 1, 9, false},
    {11, 4, 4, 2, 1, 3, false},
    {6, 3, 3, 3, 1, 7, false},
    {18, 3, 3, 1, 3, 7, false},
    {18, 3, 3, 2, 2, 6, false},
    {14, 7, 7, 1, 2, 5, false},
    {16, 3, 5, 1, 1, 9, false},
    {23, 5, 3, 2, 1, 8, false},
    {9, 1, 7, 1, 2, 14, false},
    {9, 7, 1, 4, 1, 14, false},
    {25, 9, 9, 2, 1, 4, false},
    {8, 3, 3, 1, 1, 0, false},
    // Two vectors of channels at a time, with and without one that is left, and several chunks of weights.
    {128, 3, 3, 2, 1, 9, false},
    {384, 5, 5, 2, 1, 3, false},
    {768, 5, 5, 1, 1, 6, false},
    {256, 3, 3, 1, 1, 5, false},
    // Multipliers with vectors from one channel of the input, from near ones, narrower ones, and tails.
    {1, 3, 3, 1, 1, 9, false, 1},
    {4, 3, 3, 1, 1, 9, false, 4},
    {10, 3, 3, 2, 1, 9, false, 10},
    {6, 3, 3, 1, 1, 7, false, 2},
    {33, 3, 3, 1, 1, 7, false, 11},
    {48, 5, 5, 2, 1, 9, false, 16},
    {36, 3, 3, 1, 1, 10, false, 2},
    {57, 3, 3, 1, 2, 11, false, 3},
    {85, 2, 3, 3, 1, 5, false, 5},
    {160, 7, 7, 1, 1, 9, false, 8},
    {150, 5, 5, 1, 1, 9, false, 6},
    {21, 1, 1, 1, 1, 12, false, 7},
    {34, 3, 3, 2, 1, 6, false, 17},
};

}  // namespace litefuse
