// From the operators of a region to units: what each operator is as a stage, with those that go with it in registers,
// and which images its tensors are.
#pragma once

#include <cstdint>
#include <vector>

#include "region/region.h"
#include "region/stages/stages.h"
#include "region/strips.h"

namespace litefuse {

inline size_t at(int64_t i) { return static_cast<size_t>(i); }

// What one stage, or a view, does: one operator with those that go with it.
struct Unit {
  enum class Type {
    kConv,
    kTransposeConv,
    kDepthwise,
    kUnary,
    kBinary,
    kScaleShift,
    kPool,
    kBilinear,
    kNearest,
    kPad,
    kConcat,
    kSplit,
    kView,
    kReducePixels,
    kReduceChannels,
    kNorm,
    kInstanceNorm,
    kMatmul,
    kOther  // the reference kernel of a single operator
  };
  Type type = Type::kOther;
  int32_t root = -1;  // the operator that gets the time in profiles
  std::vector<int32_t> operators;
  std::vector<int32_t> inputs, outputs;  // tensors
  std::vector<Image> wants;              // for each input the image that it must be, or anything()
  std::vector<Stretch> stretches;        // of the inputs
  std::vector<Strides> strides;          // of the inputs, and at last of the output, of those units that read others
  Image result;                          // of the outputs (of a split: of the first one)
  bool local = false;     // each pixel depends on the same pixel of the inputs only, so that any image will do
  bool inherits = false;  // the result is an image like that of the first input, with other channels

  ConvStageParams conv;
  DepthwiseStageParams depthwise;
  Unary unary = Unary::kClamp;
  Binary binary = Binary::kAdd;
  float a = 0, b = 0;  // parameters; the clamp of binary functions
  ScaleShift scale_shift;
  PoolStageParams pool;
  std::vector<Sample> rows, columns;
  int32_t top = 0, left = 0, front = 0;
  Reduction reduction = Reduction::kSum;
  RowNorm norm = RowNorm::kSoftmax;
  MatmulParams matmul;
  bool turned = false;  // the first matrix of a product is given by columns
  bool scored = false;  // it is scores, of which the softmax is multiplied; a mask is the third input
  ScoreParams scores;
  int32_t score_root = -1;  // the operator that gets the time of the softmax in profiles
  const float *gamma = nullptr, *beta = nullptr;
  float epsilon = 0;

  // Of an operator of which no more is known.
  Unit(const Region& region, int32_t i) : root(i), operators({i}), outputs(region.operators[at(i)].outputs) {}
  void add_input(int32_t tensor, const Image& want, Stretch stretch = Stretch::kNone) {
    inputs.push_back(tensor);
    wants.push_back(want);
    stretches.push_back(stretch);
  }
};

// What an input wants to be where any image of the right size will do.
inline Image anything() { return Image{0, 1, 1, 1}; }
// The same where the input is a single image, for all images of the result.
inline Image anything_shared() { return Image{-1, 1, 1, 1}; }
inline bool any_image(const Image& image) { return image.batch <= 0; }
inline bool is_shared(const Image& image) { return image.batch < 0; }
// Whether an input is the same for all pixels.
inline bool is_fixed(Stretch stretch) { return stretch == Stretch::kChannel || stretch == Stretch::kScalar; }
// The window of a convolution that looks at one position only.
inline Window pointwise(int32_t size) { return {size, 1, 1, 1, size, 0}; }

// A tensor as rows of pixels, where the last dimension is the channels.
Image image_of(const Shape& shape);
// How many channels the pixels of an input have, whose shape is given.
int64_t channels_of(const Unit& unit, size_t input, const Shape& shape);

// What the reference kernel of one operator does.
Unit single(const Region& region, int32_t i);
// All operators but those that are done already. A unit may read what one behind it computes: see divide().
std::vector<Unit> find_units(const Region& region, const std::vector<Shape>& shapes, const std::vector<bool>& done);

}  // namespace litefuse
