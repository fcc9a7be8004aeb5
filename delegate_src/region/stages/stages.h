// The stages that pipelines are made of. Each covers an operator with what follows it in registers; what it computes
// with is in kernels/simd.
#pragma once

#include <memory>
#include <vector>

#include "kernels/simd/elementwise.h"
#include "kernels/simd/gemm.h"
#include "kernels/simd/window.h"
#include "kernels/window.h"
#include "region/strips.h"

namespace litefuse {

// Constants of an operator, float32 or (weights) float16.
struct Filter {
  const void* data = nullptr;
  bool half = false;
  const float* bias = nullptr;
  bool by_channel = false;  // of depthwise convolutions: the filter is CHW, not HWC
  bool by_depth = false;    // of matrix products: the filter is (depth, outputs)
};

// What is done to each sum before it is stored, see GemmEpilogue.
struct Epilogue {
  float min = -GemmEpilogue::kInfinity, max = GemmEpilogue::kInfinity;
  const float* slopes = nullptr;  // of PReLU, one for each channel; held by the region
  bool residual = false;          // the second input of the stage is added
  float residual_min = -GemmEpilogue::kInfinity, residual_max = GemmEpilogue::kInfinity;
};

struct ConvStageParams {
  Window y, x;        // pad_before may be more than the operator's own, with padding that stood before it
  int32_t depth = 0;  // channels of the filter, which is a part of the input's where there are groups
  int32_t groups = 1;
  int32_t outputs = 0;  // channels
  Filter filter;        // OHWI
  Epilogue epilogue;
  bool cold = false;    // see GemmCall
  bool sliced = false;  // whether the input is a part of wider pixels
  int32_t piece = 0;    // unless 0, the channels come from several inputs (a pointwise convolution of their
                        // concatenation), each in pieces of so many; the residual is the last input
};
// CONV_2D and FULLY_CONNECTED. Inputs: the image, and the residual if the epilogue has one. nullptr when there is no
// memory for the packed weights.
std::unique_ptr<Stage> make_conv_stage(const ConvStageParams& params);
// The same by Winograd's algorithm; nullptr also where it does not apply or does not pay.
std::unique_ptr<Stage> make_winograd_stage(const ConvStageParams& params);
// TRANSPOSE_CONV: `y` and `x` are the windows of the convolution that leads back, so that `in` and `out` are swapped.
std::unique_ptr<Stage> make_transpose_conv_stage(const ConvStageParams& params);

struct DepthwiseStageParams {
  Window y, x;
  int32_t channels = 0;    // of the output
  int32_t multiplier = 1;  // channels of the output for each of the input
  Filter filter;           // 1HWC
  Epilogue epilogue;       // without a residual
};
std::unique_ptr<Stage> make_depthwise_stage(const DepthwiseStageParams& params);

// A pointwise convolution, a depthwise one of its result, and a pointwise one of that, by slabs of the channels between
// them. Results depend on the sizes only, not on threads.
struct SlabParams {
  ConvStageParams expand;
  DepthwiseStageParams depthwise;
  ConvStageParams project;
};
// Whether they can be computed so, and should.
bool slabs_pay(const SlabParams& params);
// Input: the image; outputs: slab_terms() images, which make_slab_sum_stage() adds. nullptr when there is no memory.
std::unique_ptr<Stage> make_slab_stage(const SlabParams& params);
int32_t slab_terms();
// Inputs: the terms, and the residual if the epilogue, that of the projection, has one.
std::unique_ptr<Stage> make_slab_sum_stage(const Epilogue& epilogue);
// What each of the three takes, as Stage::work().
struct SlabWork {
  double expand = 0, depthwise = 0, project = 0;
};
SlabWork slab_work(const SlabParams& params);

std::unique_ptr<Stage> make_unary_stage(Unary function, float a, float b);
// y = clamp(f(x, z)).
std::unique_ptr<Stage> make_binary_stage(Binary function, Stretch x, Stretch z, float min, float max);
// y = clamp(x s + t) or PReLU of it; inputs x and, where they are not kNone, the tensors s and t. `slopes` are held by
// the region.
struct ScaleShift {
  bool scaled = false, shifted = false;
  Stretch scale = Stretch::kChannel, shift = Stretch::kChannel;
  float min = -GemmEpilogue::kInfinity, max = GemmEpilogue::kInfinity;
  const float* slopes = nullptr;
};
std::unique_ptr<Stage> make_scale_shift_stage(const ScaleShift& params);

// Copies rows, with `top` rows and `left` columns and `front` channels of `value` before them, and as much behind as the
// output has room for.
std::unique_ptr<Stage> make_pad_stage(int32_t top, int32_t left, int32_t front, const Image& input, float value);

// The product of two tensors: each image of the first by that of the second.
struct MatmulParams {
  int32_t depth = 0, columns = 0;
  bool by_column = false;  // whether the rows of the second image are the columns of the matrix
};
// Packs the second image into one row of so many floats, ...
std::unique_ptr<Stage> make_pack_stage(const MatmulParams& params);
int64_t packed_floats(const MatmulParams& params);
// ... which is the second input of the product. With `factors` the third has a factor for each row of the result.
std::unique_ptr<Stage> make_matmul_stage(const MatmulParams& params, bool factors);
// Of attention: what scores are multiplied by and added to before their softmax.
struct ScoreParams {
  float scale = 1.0f, beta = 1.0f;
  bool masked = false;
  Stretch mask = Stretch::kNone;
};
// Softmax of scores, but for the last factor of each row. Inputs: scores and mask; outputs: weights and factors.
std::unique_ptr<Stage> make_score_stage(const ScoreParams& params);
// Turns a matrix: (height, 1, channels) -> (channels, 1, height).
std::unique_ptr<Stage> make_turn_stage();

struct PoolStageParams {
  Window y, x;
  bool max = false;
  float min = 0, clamp_max = 0;
};
std::unique_ptr<Stage> make_pool_stage(const PoolStageParams& params);

// `rows` and `columns` say where each output row and column comes from.
std::unique_ptr<Stage> make_bilinear_stage(std::vector<Sample> rows, std::vector<Sample> columns);
std::unique_ptr<Stage> make_nearest_stage(std::vector<Sample> rows, std::vector<Sample> columns);

enum class Reduction { kSum, kMean, kMax, kMin };
// Over the pixels of each row: (height, width, channels) -> (height, 1, channels), without the division of a mean.
std::unique_ptr<Stage> make_reduce_row_stage(Reduction reduction);
// The same of (x - mean)^2, where the second input is the mean of all pixels (1, 1, channels).
std::unique_ptr<Stage> make_sum_squares_row_stage();
// From the variance of each channel what an instance normalisation multiplies x - mean by, and what it adds: two outputs.
std::unique_ptr<Stage> make_norm_scale_stage(const float* gamma, const float* beta, float epsilon);
// Over all rows: (height, 1, channels) -> (1, 1, channels). `count` is what a mean divides by.
std::unique_ptr<Stage> make_reduce_rows_stage(Reduction reduction, int64_t count);
// Over the channels of each pixel: (height, width, channels) -> (height, width, 1).
std::unique_ptr<Stage> make_reduce_channels_stage(Reduction reduction);

enum class RowNorm { kLayerNorm, kRmsNorm, kL2Norm, kSoftmax, kLogSoftmax };
// Over the channels of each pixel. `parameter` is epsilon, or beta of the softmax; gamma and beta are constants.
std::unique_ptr<Stage> make_norm_stage(RowNorm norm, const float* gamma, const float* beta, float parameter);

}  // namespace litefuse
