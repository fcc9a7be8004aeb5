// The shapes that the test and the benchmark of the normalisations and reductions go through.
#pragma once

#include <cstddef>
#include <cstdint>

namespace litefuse {

// Rows of the last dimension. Strides are `channels` and the gap.
struct RowsCase {
  const char* name;
  int32_t rows;
  int32_t channels;
  int32_t gap = 0;         // floats between rows
  bool benchmark = false;  // also worth a measurement
};

constexpr RowsCase kRowsCases[] = {
    {"one", 1, 1},
    {"ones", 9, 1},
    {"pairs", 37, 2},
    {"triples", 37, 3},
    {"fours", 37, 4},
    {"fives", 9, 5},
    {"spread_pairs", 37, 2, 3},
    {"spread_fours", 21, 4, 1},
    {"sixes", 6, 6},
    {"sevens", 7, 7},
    {"eights", 11, 8},
    {"nines", 5, 9},
    {"tens", 4, 10, 5},
    {"elevens", 3, 11},
    {"twelves", 2, 12},
    {"thirteens", 8, 13},
    {"fourteens", 6, 14},
    {"fifteens", 5, 15},
    {"sixteens", 7, 16},
    {"seventeens", 7, 17, 1},
    {"classes_21", 6, 21},
    {"31", 5, 31},
    {"32", 4, 32},
    {"33", 9, 33, 2},
    {"47", 5, 47},
    {"49", 13, 49},
    {"head_64", 7, 64},
    {"96", 6, 96, 4},
    {"100", 5, 100},
    {"196", 6, 196},
    {"768", 5, 768},
    {"1000", 1, 1000},
    {"1001", 6, 1001},
    {"detector_pairs", 100000, 2, 0, true},
    {"detector_fours", 50000, 4, 0, true},
    {"digits_5", 20000, 5, 0, true},
    {"digits_10", 10000, 10, 0, true},
    {"segmentation_21", 66049, 21, 0, true},
    {"window_49", 2352, 49, 0, true},
    {"convnext_96", 3136, 96, 0, true},
    {"convnext_192", 784, 192, 0, true},
    {"vit_196", 588, 196, 0, true},
    {"convnext_768", 49, 768, 0, true},
    {"imagenet_1000", 1, 1000, 0, true},
    {"imagenet_1001", 8, 1001, 0, true},
};

// Pixels, of which the sums over an image are taken.
struct PixelsCase {
  const char* name;
  int32_t pixels;
  int32_t channels;
  int32_t gap = 0;  // floats between pixels
  bool benchmark = false;
};

constexpr PixelsCase kPixelsCases[] = {
    {"one", 1, 1},
    {"grey", 103, 1},
    {"grey_3", 3, 1},
    {"spread_grey", 10, 1, 7},
    {"flow", 49, 2},
    {"rgb", 101, 3},
    {"spread_rgb", 22, 3, 1},
    {"rgba", 18, 4},
    {"five", 9, 5},
    {"six", 5, 6},
    {"seven", 15, 7},
    {"spread_seven", 7, 7, 1},
    {"eight", 7, 8},
    {"nine", 6, 9},
    {"eleven", 4, 11, 3},
    {"fifteen", 5, 15},
    {"sixteen", 2, 16},
    {"seventeen", 3, 17},
    {"23", 49, 23},
    {"31", 12, 31, 5},
    {"33", 13, 33},
    {"49", 8, 49},
    {"96", 49, 96},
    {"100", 50, 100, 28},
    {"257", 6, 257},
    {"65_of_1", 1, 65},
    {"65_of_2", 2, 65},
    {"65_of_3", 3, 65, 3},
    {"65_of_4", 4, 65},
    {"65_of_5", 5, 65},
    {"65_of_7", 7, 65, 1},
    {"129_of_11", 11, 129},
    {"129_of_15", 15, 129},
    {"row_7x1152", 7, 1152, 0, true},
    {"rgb_224", 50176, 3, 0, true},
    {"grey_224", 50176, 1, 0, true},
    {"mobile_56x96", 3136, 96, 0, true},
    {"se_28x120", 784, 120, 0, true},
    {"se_14x480", 196, 480, 0, true},
    {"mean_7x1280", 49, 1280, 0, true},
    {"mean_7x2048", 49, 2048, 0, true},
    {"mean_14x1024", 196, 1024, 0, true},
};

}  // namespace litefuse
