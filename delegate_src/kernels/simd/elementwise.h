// Functions of each element: of one tensor, or of two or three of which some are stretched.
#pragma once

#include "kernels/simd/simd.h"

namespace litefuse {

// y = f(x). `a` and `b` are parameters; where nothing is said they do not count.
enum class Unary : int32_t {
  kClamp,      // min(max(x, a), b); NaN stays
  kLeakyRelu,  // x for x >= 0, else a x
  kElu,        // x for x >= 0, else e^x - 1
  kSigmoid,    // 1 / (1 + e^-x), with relative accuracy also for very negative x
  kSilu,       // x sigmoid(x)
  kTanh,
  kGelu,         // x (1 + erf(x / sqrt 2)) / 2, to 3e-7 |x|, as 1 + erf is computed in floats
  kGeluTanh,     // x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2
  kQuickGelu,    // x sigmoid(a x)
  kHardSwish,    // x min(max(x + 3, 0), 6) / 6
  kHardSigmoid,  // min(max(x a + b, 0), 1)
  kMish,         // x tanh(log(1 + e^x)), without overflow
  kSoftplus,     // log(1 + e^x), without overflow
  kExp,
  kLog,
  kSqrt,
  kRsqrt,  // 1 / sqrt(x), exact to an ulp or two
  kSquare,
  kAbs,
  kNeg,
  kSign,
  kFloor,
  kCeil,
  kRound,  // half to even
  kSin,
  kCos,
  kAffine,      // a x + b
  kReciprocal,  // a / x
  kPower,       // x^a
};

// y = f(x, z).
enum class Binary : int32_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kMinimum,
  kSquaredDifference,
  kPow,
  kPrelu,
  kMulSigmoid,  // x sigmoid(z), a gate
};

// How an operand meets a block of `pixels` pixels with `channels` floats each.
enum class Stretch : int32_t {
  kNone,     // an element for each
  kChannel,  // one for each channel, the same at every pixel
  kPixel,    // one for each pixel, the same for every channel
  kScalar,   // one
};

struct Block {
  int32_t pixels = 0;
  int32_t channels = 0;
};

// An operand of a block, and where its next pixel is (of kNone; of kPixel the next element).
struct BlockOperand {
  const float* data = nullptr;
  ptrdiff_t pixel = 0;
  Stretch stretch = Stretch::kNone;
};

struct ElementwiseKernels {
  // y may be x.
  void (*unary)(Unary f, float a, float b, const float* x, float* y, size_t count);
  // y[p * y_pixel + c] = clamp(f(x, z)); y may be an operand that is not stretched and has the same pixel stride.
  void (*binary)(Binary f, const Block& block, const BlockOperand& x, const BlockOperand& z, float* y,
                 ptrdiff_t y_pixel, float min, float max);
  // y = clamp(x s + t), one rounding in all; s or t without data stands for 1 or 0. Then PReLU if slopes are given.
  void (*scale_shift)(const Block& block, const BlockOperand& x, const BlockOperand& s, const BlockOperand& t, float* y,
                      ptrdiff_t y_pixel, float min, float max, const float* slopes);
  // Copies pixels of `channels` floats.
  void (*copy)(const Block& block, const float* x, ptrdiff_t x_pixel, float* y, ptrdiff_t y_pixel);
};

const ElementwiseKernels& elementwise_kernels();
const ElementwiseKernels& elementwise_reference();

}  // namespace litefuse
