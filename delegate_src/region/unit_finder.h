// How units.cc, units_conv.cc and units_elementwise.cc find units, operator by operator.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "region/functions.h"
#include "region/norms.h"
#include "region/units.h"

namespace litefuse {

// The functions named after operators fill a unit of the one operator, and return false where no stage covers the
// operator: what they have written is of no use then. Those called absorb_... add operators that stand beside it.
class UnitFinder {
 public:
  UnitFinder(const Region& region, const std::vector<Shape>& shapes, const std::vector<bool>& done);
  std::vector<Unit> find();

 private:
  // -- the graph
  const Operator& op(int32_t i) const { return region_.operators[at(i)]; }
  const Tensor& tensor(int32_t t) const { return region_.tensors[at(t)]; }
  const Shape& shape(int32_t t) const { return shapes_[at(t)]; }
  bool is_constant(int32_t t) const { return tensor(t).constant != nullptr; }
  const float* constant(int32_t t) const { return static_cast<const float*>(tensor(t).constant); }
  const int32_t* integers(int32_t t) const { return static_cast<const int32_t*>(tensor(t).constant); }
  int64_t elements(int32_t t) const { return shape(t).elements(); }
  // Whether an operator works on floats that there are, besides constants that say where or what shape.
  bool is_float(int32_t i) const;
  // A tensor as an image. Sequences that stand upright, one pixel wide, lie down where the region has nothing else.
  Image image(int32_t t) const;
  bool stands_upright() const;
  // The only operator that reads a tensor; -1 when there are others, or it leaves the region.
  int32_t only_reader(int32_t t) const;
  // How much is put around each dimension of an image; nullptr where what is padded is none.
  const int32_t* amounts_of(int32_t pad) const;

  bool cover(int32_t i, Unit* unit);
  // One input, which must be the image that its shape is.
  void one_image(int32_t input, Unit* unit) const;
  // One input in whatever image, each pixel of which makes the same pixel of the output.
  void pixel_by_pixel(int32_t input, Unit* unit) const;

  // -- units_conv.cc. `front` is the PAD or CONCATENATION before a convolution that may become a part of it, or -1.
  bool conv(int32_t i, int32_t front, Unit* unit);
  bool grouped_depthwise(int32_t i, int32_t front, Unit* unit);
  bool fully_connected(int32_t i, Unit* unit);
  bool depthwise(int32_t i, int32_t front, Unit* unit);
  bool finish_depthwise(int32_t i, int32_t front, Unit* unit);
  bool transpose_conv(int32_t i, Unit* unit);
  // The convolution that reads what `front` computes, together with it; false, and nothing done, if that cannot be.
  bool conv_with(int32_t front, int32_t conv, Unit* unit);
  bool constants_of(int32_t i, size_t bias, Activation activation, Filter* filter, Epilogue* epilogue) const;
  int32_t absorb_pad(int32_t front, int32_t input, Unit* unit, Window* y, Window* x) const;
  void absorb_concat(int32_t front, Unit* unit) const;
  void absorb_epilogue(int32_t root, Unit* unit, Epilogue* epilogue, bool residual);
  // Whether a PAD puts zeros around the pixels only, for the one convolution that reads it.
  bool is_for_conv(int32_t i, int32_t* reader) const;
  bool is_pointwise(int32_t conv) const;
  bool windows(const Shape& in, int32_t height, int32_t width, const Conv2dParams& p, Window* y, Window* x) const;

  // -- units_matmul.cc
  // The matrices that a product reads: in which tensor they are and how they lie there, and the operators that are left
  // out by that.
  struct Matrix {
    int32_t tensor = -1;
    bool turned = false;  // rows are columns
    Strides strides;
    std::vector<int32_t> operators;
  };
  // The softmax that makes the first matrix, with what scales and masks its operand.
  struct Scores {
    int32_t softmax = -1;
    int32_t tensor = -1, mask = -1;
    ScoreParams params;
    std::vector<int32_t> operators;
  };
  struct Product {
    Matrix first, second;
    Scores scores;
  };
  bool batch_matmul(int32_t i, Unit* unit);
  void find_scores(int32_t weights, Scores* scores) const;
  bool is_scale(int32_t i, int32_t* x, float* factor) const;
  bool is_matmul(int32_t i) const;
  bool is_weights(int32_t matmul) const;
  void find_matrices();
  Matrix matrix_of(int32_t t) const;
  void absorb_transpose(Unit* unit);

  // -- units_elementwise.cc
  bool elementwise(int32_t i, Unit* unit);
  bool gate(int32_t i, Unit* unit);
  bool scale_shift(int32_t i, Unit* unit);
  bool scaled_softmax(int32_t i, Unit* unit) const;
  void absorb_clamp(Unit* unit) const;
  bool is_repeated(int32_t t, int32_t whole, int64_t* lead) const;
  bool operands(const std::vector<int32_t>& tensors, Unit* unit) const;
  bool is_plain_power(int32_t exponent) const;
  // How a tensor meets one of another shape; kNone also when it does not.
  Stretch stretch_of(int32_t t, int32_t whole) const;
  // The constants of a PReLU with one slope for each channel of `x`; nullptr where an operator is none.
  const float* slopes_of(const Operator& prelu, int32_t x) const;

  // -- units.cc
  bool pool(int32_t i, Unit* unit) const;
  bool resize(int32_t i, Unit* unit) const;
  bool pad(int32_t i, Unit* unit);
  bool mirror_pad(int32_t i, Unit* unit) const;
  bool concat(int32_t i, Unit* unit);
  bool split(int32_t i, Unit* unit) const;
  bool view(int32_t i, Unit* unit) const;
  bool reduce(int32_t i, Unit* unit) const;
  bool reduce_pixels(int32_t input, Reduction reduction, Unit* unit) const;
  bool norm(int32_t i, Unit* unit) const;
  bool row_norm(int32_t i, Unit* unit) const;
  bool instance_norm(int32_t i, Unit* unit) const;
  bool absorb_norm(int32_t i, NormFinder* finder, Unit* unit) const;

  const Region& region_;
  const std::vector<Shape>& shapes_;
  std::vector<bool> taken_;  // operators that are done, or in a unit
  std::vector<std::vector<int32_t>> readers_;
  std::vector<int32_t> producer_;
  std::vector<bool> leaves_;
  std::map<int32_t, Product> products_;  // of BATCH_MATMULs that are covered
  bool sideways_ = false;                // heights and widths change places
};

}  // namespace litefuse
