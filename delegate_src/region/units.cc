// Finds units: goes through the operators, and knows those that move, pool, reduce and normalise. Convolutions are in
// units_conv.cc, functions of each element in units_elementwise.cc.
#include "region/units.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/resize.h"
#include "region/unit_finder.h"

namespace litefuse {
namespace {

// Whether elements are many enough to be computed, and few enough to be counted in 32 bits for an image.
bool is_usable(const Shape& shape) {
  const int64_t elements = shape.elements();
  // Sums of two rows or heights stay below 2^31.
  return elements > 0 && elements <= int64_t{1} << 30;
}

}  // namespace

Image image_of(const Shape& shape) {
  Image image;
  const int rank = shape.rank();
  if (rank == 0) return image;
  image.channels = shape.last(0);
  if (rank == 4) {
    image.batch = shape[0];
    image.height = shape[1];
    image.width = shape[2];
    return image;
  }
  int64_t rows = 1;
  for (int i = 0; i + 1 < rank; ++i) rows *= shape[i];
  image.height = static_cast<int32_t>(std::min<int64_t>(rows, std::numeric_limits<int32_t>::max()));
  return image;
}

int64_t channels_of(const Unit& unit, size_t input, const Shape& shape) {
  if (unit.stretches[input] == Stretch::kPixel) return 1;
  if (unit.type == Unit::Type::kConv && input == 0 && unit.conv.piece == 0) {
    return int64_t{unit.conv.depth} * unit.conv.groups;
  }
  if (!any_image(unit.wants[input])) return unit.wants[input].channels;
  return shape.rank() > 0 ? shape.last(0) : 1;
}

Unit single(const Region& region, int32_t i) {
  Unit unit(region, i);
  for (int32_t t : region.operators[at(i)].inputs) {
    if (t >= 0 && region.tensors[at(t)].constant == nullptr) unit.inputs.push_back(t);
  }
  return unit;
}

std::vector<Unit> find_units(const Region& region, const std::vector<Shape>& shapes, const std::vector<bool>& done) {
  return UnitFinder(region, shapes, done).find();
}

UnitFinder::UnitFinder(const Region& region, const std::vector<Shape>& shapes, const std::vector<bool>& done)
    : region_(region), shapes_(shapes), taken_(done) {
  readers_.resize(region.tensors.size());
  producer_.assign(region.tensors.size(), -1);
  leaves_.assign(region.tensors.size(), false);
  for (size_t i = 0; i < region.operators.size(); ++i) {
    if (done[i]) continue;
    for (int32_t t : region.operators[i].inputs) {
      if (t >= 0) readers_[at(t)].push_back(static_cast<int32_t>(i));
    }
    for (int32_t t : region.operators[i].outputs) producer_[at(t)] = static_cast<int32_t>(i);
  }
  for (int32_t t : region.outputs) leaves_[at(t)] = true;
  sideways_ = stands_upright();
}

// Whether all windows slide over images that are one pixel wide and higher. Lying down these are rows, which stages
// compute much faster; but strips of them there are not, so that they should be small.
bool UnitFinder::stands_upright() const {
  const auto most = static_cast<int64_t>(caches().l2 / 2 / sizeof(float));
  bool found = false;
  for (size_t i = 0; i < region_.operators.size(); ++i) {
    if (taken_[i]) continue;
    const Operator& operation = region_.operators[i];
    switch (operation.kind) {
      case Kind::kConv2d:
      case Kind::kDepthwiseConv2d:
      case Kind::kTransposeConv:
        if (shape(operation.inputs[1])[2] != 1) return false;  // the filter would have to be turned
        break;
      case Kind::kAveragePool2d:
      case Kind::kMaxPool2d:
      case Kind::kResizeBilinear:
      case Kind::kResizeNearestNeighbor:
      case Kind::kPad:
      case Kind::kPadV2:
      case Kind::kMirrorPad:
        break;
      default:
        continue;
    }
    const int32_t input = operation.inputs[operation.kind == Kind::kTransposeConv ? 2 : 0];
    for (int32_t t : {input, operation.outputs[0]}) {
      const Shape& s = shape(t);
      if (s.rank() != 4 || s[2] != 1 || s.elements() > most) return false;
      found = found || s[1] > 1;
    }
  }
  return found;
}

Image UnitFinder::image(int32_t t) const {
  Image result = image_of(shape(t));
  if (sideways_ && shape(t).rank() == 4 && result.width == 1) std::swap(result.height, result.width);
  return result;
}

std::vector<Unit> UnitFinder::find() {
  find_matrices();
  std::vector<Unit> units;
  for (size_t i = 0; i < region_.operators.size(); ++i) {
    if (taken_[i]) continue;
    const auto index = static_cast<int32_t>(i);
    Unit unit(region_, index);
    if (!is_float(index) || !cover(index, &unit)) unit = single(region_, index);
    for (int32_t taken : unit.operators) taken_[at(taken)] = true;
    units.push_back(std::move(unit));
  }
  return units;
}

bool UnitFinder::is_float(int32_t i) const {
  for (int32_t t : op(i).outputs) {
    if (tensor(t).type != Type::kFloat32 || !is_usable(shape(t))) return false;
  }
  for (int32_t t : op(i).inputs) {
    if (t < 0) continue;
    const bool says_where = is_constant(t) && tensor(t).type == Type::kInt32;
    if (!says_where && (tensor(t).type != Type::kFloat32 || !is_usable(shape(t)))) return false;
  }
  return true;
}

int32_t UnitFinder::only_reader(int32_t t) const {
  if (leaves_[at(t)] || readers_[at(t)].size() != 1) return -1;
  return taken_[at(readers_[at(t)][0])] ? -1 : readers_[at(t)][0];
}

const int32_t* UnitFinder::amounts_of(int32_t pad) const {
  const int32_t amounts = op(pad).inputs[1];
  return shape(op(pad).inputs[0]).rank() == 4 && tensor(amounts).type == Type::kInt32 ? integers(amounts) : nullptr;
}

bool UnitFinder::cover(int32_t i, Unit* unit) {
  switch (op(i).kind) {
    case Kind::kConv2d:
      return conv(i, -1, unit);
    case Kind::kDepthwiseConv2d:
      return depthwise(i, -1, unit);
    case Kind::kFullyConnected:
      return fully_connected(i, unit);
    case Kind::kTransposeConv:
      return transpose_conv(i, unit);
    case Kind::kBatchMatmul:
      return batch_matmul(i, unit);
    case Kind::kAveragePool2d:
    case Kind::kMaxPool2d:
      return pool(i, unit);
    case Kind::kResizeBilinear:
    case Kind::kResizeNearestNeighbor:
      return resize(i, unit);
    case Kind::kPad:
    case Kind::kPadV2:
      return pad(i, unit);
    case Kind::kMirrorPad:
      return mirror_pad(i, unit);
    case Kind::kConcatenation:
      return concat(i, unit);
    case Kind::kSplit:
      return split(i, unit);
    case Kind::kReshape:
    case Kind::kSqueeze:
    case Kind::kExpandDims:
      return view(i, unit);
    case Kind::kMean:
    case Kind::kSum:
    case Kind::kReduceMax:
    case Kind::kReduceMin:
      return row_norm(i, unit) || instance_norm(i, unit) || reduce(i, unit);
    case Kind::kSoftmax:
    case Kind::kLogSoftmax:
    case Kind::kL2Normalization:
      return norm(i, unit);
    case Kind::kSquare:
    case Kind::kMul:
      return row_norm(i, unit) || elementwise(i, unit);
    default:
      return elementwise(i, unit);
  }
}

void UnitFinder::one_image(int32_t input, Unit* unit) const {
  unit->add_input(input, image(input));
  unit->result = image(unit->outputs[0]);
}

void UnitFinder::pixel_by_pixel(int32_t input, Unit* unit) const {
  unit->add_input(input, anything());
  unit->result = image(unit->outputs[0]);
  unit->local = unit->inherits = true;
}

bool UnitFinder::pool(int32_t i, Unit* unit) const {
  const auto params = params_of<PoolParams>(op(i));
  const int32_t input = op(i).inputs[0];
  const Shape& in = shape(input);
  PoolStageParams& p = unit->pool;
  p.max = op(i).kind == Kind::kMaxPool2d;
  p.min = -kInfinity;
  p.clamp_max = kInfinity;
  if (!clamp_of(params.activation, &p.min, &p.clamp_max)) return false;
  Conv2dParams steps;
  steps.padding = params.padding;
  steps.stride_h = params.stride_h;
  steps.stride_w = params.stride_w;
  if (!windows(in, params.filter_height, params.filter_width, steps, &p.y, &p.x)) return false;
  // The mean of an image is better taken row by row.
  if (!p.max && p.y.out == 1 && p.x.out == 1 && p.y.filter >= p.y.in && p.x.filter >= p.x.in &&
      !is_clamped(p.min, p.clamp_max) && p.y.pad_before == 0 && p.x.pad_before == 0) {
    return reduce_pixels(input, Reduction::kMean, unit);
  }
  unit->type = Unit::Type::kPool;
  one_image(input, unit);
  return true;
}

bool UnitFinder::resize(int32_t i, Unit* unit) const {
  const auto params = params_of<ResizeParams>(op(i));
  const int32_t input = op(i).inputs[0], output = op(i).outputs[0];
  const Sides height{shape(input)[1], shape(output)[1]}, width{shape(input)[2], shape(output)[2]};
  if (op(i).kind == Kind::kResizeBilinear) {
    unit->type = Unit::Type::kBilinear;
    const auto find = [&](Sides side, std::vector<Sample>* samples) {
      std::vector<Between<float>> positions;
      if (!find_positions(side, params, &positions).ok()) return false;
      for (const Between<float>& p : positions) samples->push_back(Sample{p.lower, p.upper, p.fraction});
      return true;
    };
    if (!find(height, &unit->rows) || !find(width, &unit->columns)) return false;
  } else {
    unit->type = Unit::Type::kNearest;
    const auto find = [&](Sides side, std::vector<Sample>* samples) {
      std::vector<int32_t> nearest;
      find_nearest(side, params, &nearest);
      for (int32_t position : nearest) samples->push_back(Sample{position, position, 0.0f});
    };
    find(height, &unit->rows);
    find(width, &unit->columns);
  }
  if (sideways_) std::swap(unit->rows, unit->columns);
  one_image(input, unit);
  return true;
}

bool UnitFinder::pad(int32_t i, Unit* unit) {
  int32_t reader = -1;
  if (is_for_conv(i, &reader) && conv_with(i, reader, unit)) return true;
  const int32_t* amounts = amounts_of(i);
  if (amounts == nullptr || amounts[0] != 0 || amounts[1] != 0) return false;
  const std::vector<int32_t>& inputs = op(i).inputs;
  if (inputs.size() > 2 && inputs[2] >= 0) {
    if (!is_constant(inputs[2])) return false;
    unit->a = constant(inputs[2])[0];
  }
  unit->type = Unit::Type::kPad;
  unit->top = amounts[2];
  unit->left = amounts[4];
  unit->front = amounts[6];
  if (sideways_) std::swap(unit->top, unit->left);
  one_image(inputs[0], unit);
  return true;
}

// Of height and width only.
bool UnitFinder::mirror_pad(int32_t i, Unit* unit) const {
  const int32_t input = op(i).inputs[0], output = op(i).outputs[0];
  const int32_t* amounts = amounts_of(i);
  if (amounts == nullptr || amounts[0] != 0 || amounts[1] != 0 || amounts[6] != 0 || amounts[7] != 0) return false;
  const bool reflect = params_of<MirrorPadParams>(op(i)).reflect;
  // Where each position comes from; the reference kernel has made sure that it is inside.
  const auto find = [&](int32_t size, int32_t before, int32_t total, std::vector<Sample>* samples) {
    for (int32_t o = 0; o < total; ++o) {
      int32_t from = o - before;
      if (from < 0) from = -from - (reflect ? 0 : 1);
      if (from >= size) from = 2 * size - from - (reflect ? 2 : 1);
      samples->push_back(Sample{from, from, 0.0f});
    }
  };
  find(shape(input)[1], amounts[2], shape(output)[1], &unit->rows);
  find(shape(input)[2], amounts[4], shape(output)[2], &unit->columns);
  if (sideways_) std::swap(unit->rows, unit->columns);
  unit->type = Unit::Type::kNearest;
  one_image(input, unit);
  return true;
}

bool UnitFinder::concat(int32_t i, Unit* unit) {
  const auto params = params_of<ConcatenationParams>(op(i));
  const int32_t output = op(i).outputs[0];
  if (params.axis != shape(output).rank() - 1 && params.axis != -1) return false;
  const int32_t reader = only_reader(output);
  const bool for_conv = reader >= 0 && op(reader).kind == Kind::kConv2d && is_float(reader) &&
                        op(reader).inputs[0] == output && op(i).inputs.size() <= 8 && is_pointwise(reader);
  if (for_conv && conv_with(i, reader, unit)) return true;
  unit->type = Unit::Type::kConcat;
  for (int32_t t : op(i).inputs) {
    if (is_constant(t) && image(t).batch != image(output).batch) return false;
    unit->add_input(t, anything());
  }
  unit->local = unit->inherits = true;
  unit->result = image(output);
  return unit->inputs.size() <= 16;
}

bool UnitFinder::split(int32_t i, Unit* unit) const {
  const int32_t input = op(i).inputs[1], axis = op(i).inputs[0];
  const int rank = shape(input).rank();
  if (!is_constant(axis) || rank == 0) return false;
  const int32_t along = integers(axis)[0];
  if (along != rank - 1 && along != -1) return false;
  unit->type = Unit::Type::kSplit;
  pixel_by_pixel(input, unit);
  return unit->outputs.size() <= 16;
}

bool UnitFinder::view(int32_t i, Unit* unit) const {
  const int32_t input = op(i).inputs[0], output = op(i).outputs[0];
  if (shape(input).rank() == 0 || shape(output).rank() == 0 || is_constant(input)) return false;
  if (shape(input).last(0) != shape(output).last(0)) return false;
  unit->type = Unit::Type::kView;
  pixel_by_pixel(input, unit);
  return true;
}

bool UnitFinder::reduce(int32_t i, Unit* unit) const {
  const int32_t input = op(i).inputs[0], axes = op(i).inputs[1];
  const Shape& in = shape(input);
  if (in.rank() == 0 || tensor(axes).type != Type::kInt32 || is_constant(input)) return false;
  std::vector<bool> gone(at(in.rank()), false);
  for (int64_t k = 0; k < elements(axes); ++k) {
    const int32_t axis = integers(axes)[k];
    gone[at(axis < 0 ? axis + in.rank() : axis)] = true;
  }
  Reduction reduction = Reduction::kSum;
  if (op(i).kind == Kind::kMean) reduction = Reduction::kMean;
  if (op(i).kind == Kind::kReduceMax) reduction = Reduction::kMax;
  if (op(i).kind == Kind::kReduceMin) reduction = Reduction::kMin;
  const auto count = std::count(gone.begin(), gone.end(), true);
  if (count == 1 && gone.back()) {
    unit->type = Unit::Type::kReduceChannels;
    unit->reduction = reduction;
    pixel_by_pixel(input, unit);
    unit->result = image(input);  // also where the output has lost the dimension
    unit->result.channels = 1;
    return true;
  }
  if (in.rank() == 4 && count == 2 && gone[1] && gone[2]) return reduce_pixels(input, reduction, unit);
  // Neighbouring dimensions: as [those before, these, those behind].
  int64_t sizes[3] = {1, 1, 1};
  size_t part = 0;
  for (int k = 0; k < in.rank(); ++k) {
    if (in[k] == 1) continue;
    if (part == 0 && gone[at(k)]) part = 1;
    if (part == 1 && !gone[at(k)]) part = 2;
    if (part == 2 && gone[at(k)]) return false;
    sizes[part] *= in[k];
  }
  const auto before = static_cast<int32_t>(sizes[0]), these = static_cast<int32_t>(sizes[1]);
  const auto behind = static_cast<int32_t>(sizes[2]);
  unit->reduction = reduction;
  if (behind == 1) {
    unit->type = Unit::Type::kReduceChannels;
    unit->add_input(input, Image{1, before, 1, these});
    unit->result = Image{1, before, 1, 1};
    return true;
  }
  // Images are computed one by one, which takes longer than small ones are worth.
  constexpr int64_t kSmall = 512;
  if (before > 1 && sizes[1] * sizes[2] < kSmall) return false;
  unit->type = Unit::Type::kReducePixels;
  unit->add_input(input, Image{before, these, 1, behind});
  unit->result = Image{before, 1, 1, behind};
  return true;
}

bool UnitFinder::reduce_pixels(int32_t input, Reduction reduction, Unit* unit) const {
  const Image image = this->image(input);
  unit->type = Unit::Type::kReducePixels;
  unit->reduction = reduction;
  unit->add_input(input, image);
  unit->result = Image{image.batch, 1, 1, image.channels};
  return true;
}

bool UnitFinder::norm(int32_t i, Unit* unit) const {
  const int32_t input = op(i).inputs[0];
  if (shape(input).rank() == 0) return false;
  unit->type = Unit::Type::kNorm;
  switch (op(i).kind) {
    case Kind::kSoftmax:
      unit->norm = RowNorm::kSoftmax;
      unit->a = params_of<SoftmaxParams>(op(i)).beta;
      break;
    case Kind::kLogSoftmax:
      unit->norm = RowNorm::kLogSoftmax;
      break;
    default:
      unit->norm = RowNorm::kL2Norm;
      unit->a = 1e-6f;  // as TFLite has it
      if (params_of<ActivationParams>(op(i)).activation != Activation::kNone) return false;
  }
  pixel_by_pixel(input, unit);
  return true;
}

// Layer and RMS normalisation over the channels, which files spell out in many ways.
bool UnitFinder::row_norm(int32_t i, Unit* unit) const {
  NormFinder finder(region_, shapes_, readers_, leaves_);
  if (!absorb_norm(i, &finder, unit)) return false;
  unit->type = Unit::Type::kNorm;
  unit->norm = finder.centred() ? RowNorm::kLayerNorm : RowNorm::kRmsNorm;
  unit->a = finder.epsilon();
  pixel_by_pixel(finder.input(), unit);
  return true;
}

// Normalisation over the pixels of each channel, with a clamp behind.
bool UnitFinder::instance_norm(int32_t i, Unit* unit) const {
  NormFinder finder(region_, shapes_, readers_, leaves_);
  finder.over_pixels();
  if (!absorb_norm(i, &finder, unit)) return false;
  unit->type = Unit::Type::kInstanceNorm;
  unit->epsilon = finder.epsilon();
  one_image(finder.input(), unit);
  unit->a = -kInfinity;
  unit->b = kInfinity;
  absorb_clamp(unit);
  return true;
}

// The operators of a normalisation that begins with one, and its constants. Leaves the unit as it is where there is none.
bool UnitFinder::absorb_norm(int32_t i, NormFinder* finder, Unit* unit) const {
  if (!finder->find(i)) return false;
  for (int32_t part : finder->operators()) {
    if (taken_[at(part)] || !is_float(part)) return false;
  }
  unit->operators = finder->operators();
  unit->outputs = {finder->output()};
  if (finder->gamma() >= 0) unit->gamma = constant(finder->gamma());
  if (finder->beta() >= 0) unit->beta = constant(finder->beta());
  return true;
}

}  // namespace litefuse
