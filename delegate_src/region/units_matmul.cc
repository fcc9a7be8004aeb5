// Finds the units of products of two matrices. Operators before and behind one that only give dimensions another order
// become a part of it: its stages read and write tensors of that order as they are.
#include <algorithm>
#include <utility>

#include "region/unit_finder.h"

namespace litefuse {
namespace {

bool is_reshape(Kind kind) { return kind == Kind::kReshape || kind == Kind::kSqueeze || kind == Kind::kExpandDims; }

// The product of all dimensions but the last two.
int64_t images_of(const Shape& shape) {
  const int64_t matrix = int64_t{shape.last(1)} * shape.last(0);
  return matrix > 0 ? shape.elements() / matrix : 0;
}

// The strides of the images of a tensor whose dimensions before the last two have these sizes and strides; false where
// they do not make two loops at most.
bool find_images(const Shape& shape, const std::vector<int64_t>& strides, Strides* result) {
  struct Loop {
    int64_t count, stride;
  };
  std::vector<Loop> loops;
  for (int i = 0; i + 2 < shape.rank(); ++i) {
    if (shape[i] == 1) continue;
    const Loop inner{shape[i], strides[at(i)]};
    if (!loops.empty() && loops.back().stride == inner.count * inner.stride) {
      loops.back() = {loops.back().count * inner.count, inner.stride};
    } else {
      loops.push_back(inner);
    }
  }
  if (loops.size() > 2) return false;
  if (!loops.empty()) {
    result->inner_count = static_cast<int32_t>(loops.back().count);
    result->inner = static_cast<ptrdiff_t>(loops.back().stride);
  }
  if (loops.size() == 2) result->outer = static_cast<ptrdiff_t>(loops[0].stride);
  return true;
}

std::vector<int64_t> dense_strides(const Shape& shape) {
  std::vector<int64_t> strides(at(shape.rank()), 1);
  for (int i = shape.rank() - 1; i > 0; --i) strides[at(i - 1)] = strides[at(i)] * shape[i];
  return strides;
}

}  // namespace

// Whether a product is one of images: all of them by others, or by a single one.
bool UnitFinder::is_matmul(int32_t i) const {
  if (op(i).kind != Kind::kBatchMatmul || !is_float(i)) return false;
  const Shape &x = shape(op(i).inputs[0]), &z = shape(op(i).inputs[1]);
  if (x.rank() < 2 || z.rank() < 2) return false;
  // What is packed is counted in 32 bits.
  if (elements(op(i).inputs[1]) > int64_t{1} << 27) return false;
  if (images_of(z) == 1) return images_of(x) == images_of(shape(op(i).outputs[0]));
  const int rank = std::max(x.rank(), z.rank());
  const Shape wide_x = x.extended(rank), wide_z = z.extended(rank);
  return std::equal(wide_x.data(), wide_x.data() + rank - 2, wide_z.data());
}

// Which TRANSPOSE and RESHAPE belong to which products, before any of them is looked at by itself.
void UnitFinder::find_matrices() {
  for (size_t i = 0; i < region_.operators.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    if (taken_[i] || !is_matmul(index)) continue;
    Product product;
    // What is multiplied by weights, which are packed once and for all, is read pixel by pixel: see batch_matmul().
    if (!is_weights(index)) {
      product.first = matrix_of(op(index).inputs[0]);
      product.second = matrix_of(op(index).inputs[1]);
      const bool plain = product.first.operators.empty() && !params_of<BatchMatmulParams>(op(index)).adj_x;
      if (plain) find_scores(product.first.tensor, &product.scores);
      for (int32_t taken : product.scores.operators) taken_[at(taken)] = true;
    }
    for (const Matrix* matrix : {&product.first, &product.second}) {
      for (int32_t taken : matrix->operators) taken_[at(taken)] = true;
    }
    products_[index] = std::move(product);
  }
}

bool UnitFinder::is_weights(int32_t matmul) const {
  const int32_t weights = op(matmul).inputs[1];
  return is_constant(weights) && images_of(shape(weights)) == 1 && !params_of<BatchMatmulParams>(op(matmul)).adj_x;
}

// The matrices of a tensor, as they lie in the tensor that it was made of.
UnitFinder::Matrix UnitFinder::matrix_of(int32_t t) const {
  const Shape& whole = shape(t);
  Matrix plain;
  plain.tensor = t;
  Matrix matrix = plain;
  const auto before = [&](int32_t tensor) {
    const int32_t i = producer_[at(tensor)];
    return i >= 0 && only_reader(tensor) >= 0 && !taken_[at(i)] ? i : -1;
  };
  const auto pass_reshapes = [&] {
    for (int32_t i = before(matrix.tensor); i >= 0 && is_reshape(op(i).kind); i = before(matrix.tensor)) {
      matrix.operators.push_back(i);
      matrix.tensor = op(i).inputs[0];
    }
  };
  pass_reshapes();
  const int32_t i = before(matrix.tensor);
  if (i < 0 || op(i).kind != Kind::kTranspose || !is_float(i)) return plain;
  const Shape &turned = shape(matrix.tensor), &from = shape(op(i).inputs[0]);
  const int rank = turned.rank();
  if (rank < 2 || turned.last(0) != whole.last(0) || turned.last(1) != whole.last(1)) return plain;
  const std::vector<int64_t> dense = dense_strides(from);
  std::vector<int64_t> strides;
  for (int k = 0; k < rank; ++k) {
    const int32_t axis = integers(op(i).inputs[1])[k];
    strides.push_back(dense[at(axis < 0 ? axis + rank : axis)]);
  }
  const int64_t row = strides[at(rank - 2)], column = strides[at(rank - 1)];
  matrix.turned = column != 1 && turned.last(0) > 1;
  if (matrix.turned && row != 1 && turned.last(1) > 1) return plain;
  if (!find_images(turned, strides, &matrix.strides)) return plain;
  matrix.strides.row = static_cast<ptrdiff_t>(matrix.turned ? column : row);
  matrix.operators.push_back(i);
  matrix.tensor = op(i).inputs[0];
  pass_reshapes();
  if (is_constant(matrix.tensor)) return plain;
  return matrix;
}

void UnitFinder::find_scores(int32_t weights, Scores* scores) const {
  // The operator that computes a tensor for this alone; those that give its matrices other leading dimensions are passed.
  std::vector<int32_t> taken;
  const auto before = [&](int32_t* t) {
    for (;;) {
      const int32_t i = producer_[at(*t)];
      if (i < 0 || only_reader(*t) < 0 || taken_[at(i)] || !is_float(i)) return -1;
      if (!is_reshape(op(i).kind)) return i;
      const Shape &from = shape(op(i).inputs[0]), &to = shape(*t);
      if (from.rank() < 2 || from.last(0) != to.last(0) || from.last(1) != to.last(1)) return -1;
      taken.push_back(i);
      *t = op(i).inputs[0];
    }
  };
  int32_t t = weights;
  const int32_t softmax = before(&t);
  if (softmax < 0 || op(softmax).kind != Kind::kSoftmax) return;
  ScoreParams& p = scores->params;
  p.beta = params_of<SoftmaxParams>(op(softmax)).beta;
  if (!is_moderate(p.beta) || is_constant(op(softmax).inputs[0])) return;
  const auto accept = [&](int32_t i, int32_t tensor) {
    taken.push_back(i);
    scores->operators = taken;
    scores->tensor = t = tensor;
  };
  scores->softmax = softmax;
  accept(softmax, op(softmax).inputs[0]);
  int32_t i = before(&t);
  if (i >= 0 && op(i).kind == Kind::kAdd && params_of<ActivationParams>(op(i)).activation == Activation::kNone) {
    // The mask is what is stretched, or else what was there before.
    const int32_t a = op(i).inputs[0], b = op(i).inputs[1];
    const bool first = shape(a) != shape(t) || (shape(b) == shape(t) && producer_[at(a)] < producer_[at(b)]);
    const int32_t mask = first ? a : b, x = first ? b : a;
    Unit sum(region_, i);
    const bool fits =
        a != b && !is_constant(x) && shape(x) == shape(t) && operands({x, mask}, &sum) &&
        (sum.stretches[1] == Stretch::kNone || (sum.stretches[1] == Stretch::kChannel && sum.wants[1].batch <= 1));
    if (fits) {
      p.masked = true;
      p.mask = sum.stretches[1];
      scores->mask = mask;
      accept(i, x);
      i = before(&t);
    }
  }
  int32_t x = -1;
  float factor = 1;
  if (i >= 0 && is_scale(i, &x, &factor) && is_moderate(factor * p.beta)) {
    p.scale = factor;
    accept(i, x);
  }
}

// A TRANSPOSE behind a product, where its rows stay in one piece, with the RESHAPEs around it.
void UnitFinder::absorb_transpose(Unit* unit) {
  const Shape& whole = shape(unit->outputs[0]);
  std::vector<int32_t> taken;
  int32_t t = unit->outputs[0], next = only_reader(t);
  const auto take = [&] {
    taken.push_back(next);
    t = op(next).outputs[0];
    next = only_reader(t);
  };
  while (next >= 0 && is_reshape(op(next).kind)) take();
  if (next < 0 || op(next).kind != Kind::kTranspose || !is_float(next)) return;
  const Shape& from = shape(t);
  const int rank = from.rank();
  if (rank < 2 || from.last(0) != whole.last(0) || from.last(1) != whole.last(1)) return;
  const std::vector<int64_t> dense = dense_strides(shape(op(next).outputs[0]));
  std::vector<int64_t> strides(at(rank), 0);
  for (int k = 0; k < rank; ++k) {
    const int32_t axis = integers(op(next).inputs[1])[k];
    strides[at(axis < 0 ? axis + rank : axis)] = dense[at(k)];
  }
  Strides result;
  if ((strides.back() != 1 && whole.last(0) > 1) || !find_images(from, strides, &result)) return;
  result.row = static_cast<ptrdiff_t>(strides[at(rank - 2)]);
  take();
  while (next >= 0 && is_reshape(op(next).kind)) take();
  for (int32_t i : taken) taken_[at(i)] = true;
  unit->operators.insert(unit->operators.end(), taken.begin(), taken.end());
  unit->outputs = {t};
  unit->strides.back() = result;
}

bool UnitFinder::batch_matmul(int32_t i, Unit* unit) {
  const auto found = products_.find(i);
  if (found == products_.end()) return false;
  const auto params = params_of<BatchMatmulParams>(op(i));
  const Shape &x = shape(op(i).inputs[0]), &out = shape(op(i).outputs[0]);
  const int32_t rows = out.last(1), columns = out.last(0), depth = x.last(params.adj_x ? 1 : 0);
  if (is_weights(i)) {
    ConvStageParams& conv = unit->conv;
    conv.filter.data = tensor(op(i).inputs[1]).constant;
    conv.filter.by_depth = !params.adj_y;
    conv.depth = depth;
    conv.outputs = columns;
    unit->type = Unit::Type::kConv;
    pixel_by_pixel(op(i).inputs[0], unit);
    conv.y = pointwise(unit->result.height);
    conv.x = pointwise(unit->result.width);
    absorb_epilogue(i, unit, &conv.epilogue, true);
    return true;
  }
  const Product& product = found->second;
  const auto images = static_cast<int32_t>(images_of(out));
  unit->type = Unit::Type::kMatmul;
  unit->matmul.depth = depth;
  unit->matmul.columns = columns;
  unit->matmul.by_column = params.adj_y != product.second.turned;
  unit->turned = params.adj_x != product.first.turned;
  const auto image = [](int32_t batch, int32_t height, int32_t channels, bool turned) {
    return turned ? Image{batch, channels, 1, height} : Image{batch, height, 1, channels};
  };
  const Scores& scores = product.scores;
  unit->scored = scores.softmax >= 0;
  unit->scores = scores.params;
  unit->score_root = scores.softmax;
  const int32_t first = unit->scored ? scores.tensor : product.first.tensor;
  const auto second = static_cast<int32_t>(images_of(shape(op(i).inputs[1])));
  unit->add_input(first, image(images, rows, depth, unit->turned));
  unit->add_input(product.second.tensor, image(second, depth, columns, unit->matmul.by_column));
  unit->strides = {product.first.strides, product.second.strides};
  if (scores.mask >= 0) {
    const bool repeated = images_of(shape(scores.mask)) == 1;
    const Image mask = scores.params.mask == Stretch::kChannel ? Image{1, 1, 1, depth}
                       : repeated                              ? image(1, rows, depth, false)
                                                               : image(images, rows, depth, false);
    unit->add_input(scores.mask, mask, scores.params.mask);
    unit->strides.emplace_back();
  }
  unit->strides.emplace_back();  // of the result
  unit->operators.insert(unit->operators.end(), scores.operators.begin(), scores.operators.end());
  for (const Matrix* matrix : {&product.first, &product.second}) {
    unit->operators.insert(unit->operators.end(), matrix->operators.begin(), matrix->operators.end());
  }
  std::sort(unit->operators.begin(), unit->operators.end());
  unit->result = Image{images, rows, 1, columns};
  absorb_transpose(unit);
  return true;
}

}  // namespace litefuse
