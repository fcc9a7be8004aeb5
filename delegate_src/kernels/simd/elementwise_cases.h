// Functions, errors and shapes that the test and the benchmark of the elementwise kernels share.
#pragma once

#include "kernels/simd/elementwise.h"

namespace litefuse {

struct UnaryCase {
  const char* name;
  Unary f;
  float a, b;
  // Error against the exact result rounded to float, which adds half an ulp to that of math-inl.h: `ulps` of the
  // result, or `per_x` |x|, or `per_product` |a x| if that is more.
  double ulps, per_x, per_product;
  // Results below 2^-126 (below |x| 2^-126 if that is more) may be zero.
  bool flushes;
};

constexpr UnaryCase kUnaryCases[] = {
    {"clamp", Unary::kClamp, -1.5f, 6.0f, 0, 0, 0, false},
    {"relu", Unary::kClamp, 0.0f, 3.402823466e38f, 0, 0, 0, false},
    {"leaky_relu", Unary::kLeakyRelu, 0.2f, 0, 0, 0, 0, false},
    {"leaky_relu_negative", Unary::kLeakyRelu, -2.0f, 0, 0, 0, 0, false},
    {"elu", Unary::kElu, 0, 0, 2, 0, 0, false},
    {"sigmoid", Unary::kSigmoid, 0, 0, 6.5, 0, 0, true},
    {"silu", Unary::kSilu, 0, 0, 7, 0, 0, true},
    {"tanh", Unary::kTanh, 0, 0, 6.5, 0, 0, false},
    {"gelu", Unary::kGelu, 0, 0, 1, 3e-7, 0, true},
    {"gelu_tanh", Unary::kGeluTanh, 0, 0, 1, 3e-7, 0, true},
    {"quick_gelu", Unary::kQuickGelu, 1.702f, 0, 1, 3e-7, 0, true},
    {"hard_swish", Unary::kHardSwish, 0, 0, 2.5, 1e-7, 0, false},
    {"hard_sigmoid", Unary::kHardSigmoid, 0.2f, 0.5f, 1, 0, 6e-8, false},
    {"mish", Unary::kMish, 0, 0, 6, 0, 0, true},
    {"softplus", Unary::kSoftplus, 0, 0, 3, 0, 0, true},
    {"exp", Unary::kExp, 0, 0, 3, 0, 0, false},
    {"log", Unary::kLog, 0, 0, 2, 0, 0, false},
    {"sqrt", Unary::kSqrt, 0, 0, 0, 0, 0, false},
    {"rsqrt", Unary::kRsqrt, 0, 0, 1, 0, 0, false},
    {"square", Unary::kSquare, 0, 0, 0, 0, 0, false},
    {"abs", Unary::kAbs, 0, 0, 0, 0, 0, false},
    {"neg", Unary::kNeg, 0, 0, 0, 0, 0, false},
    {"sign", Unary::kSign, 0, 0, 0, 0, 0, false},
    {"floor", Unary::kFloor, 0, 0, 0, 0, 0, false},
    {"ceil", Unary::kCeil, 0, 0, 0, 0, 0, false},
    {"round", Unary::kRound, 0, 0, 0, 0, 0, false},
    {"sin", Unary::kSin, 0, 0, 3, 0, 0, false},
    {"cos", Unary::kCos, 0, 0, 3, 0, 0, false},
    {"affine", Unary::kAffine, 0.7f, -3.0f, 1, 0, 6e-8, false},
    {"reciprocal", Unary::kReciprocal, 3.0f, 0, 0, 0, 0, false},
    {"power_half", Unary::kPower, 0.5f, 0, 1, 0, 0, false},
    {"power_one", Unary::kPower, 1.0f, 0, 0, 0, 0, false},
    {"power_square", Unary::kPower, 2.0f, 0, 0, 0, 0, false},
    {"power_cube", Unary::kPower, 3.0f, 0, 1, 0, 0, false},
    {"power_minus_one", Unary::kPower, -1.0f, 0, 0, 0, 0, false},
    {"power_fraction", Unary::kPower, -2.4f, 0, 1, 0, 0, false},
};

struct BinaryCase {
  const char* name;
  Binary f;
  double ulps;
};

constexpr BinaryCase kBinaryCases[] = {
    {"add", Binary::kAdd, 0},
    {"sub", Binary::kSub, 0},
    {"mul", Binary::kMul, 0},
    {"div", Binary::kDiv, 0},
    {"maximum", Binary::kMaximum, 0},
    {"minimum", Binary::kMinimum, 0},
    {"squared_difference", Binary::kSquaredDifference, 3},
    {"pow", Binary::kPow, 1},
    {"prelu", Binary::kPrelu, 0},
    {"mul_sigmoid", Binary::kMulSigmoid, 7.5},
};

// Blocks that are rows of tensors, or all of a small one.
constexpr Block kBlocks[] = {{1, 1},   {1, 37},  {17, 1},  {33, 2},  {50, 3},  {7, 4},   {40, 6},  {9, 8},   {5, 12},
                             {3, 16},  {11, 31}, {4, 32},  {6, 33},  {3, 100}, {2, 128}, {3, 129}, {2, 576}, {600, 1},
                             {257, 2}, {171, 3}, {130, 4}, {129, 5}, {90, 23}, {0, 5},   {5, 0}};

constexpr Stretch kStretches[] = {Stretch::kNone, Stretch::kChannel, Stretch::kPixel, Stretch::kScalar};

}  // namespace litefuse
