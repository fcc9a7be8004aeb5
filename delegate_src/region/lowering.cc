// Makes the sections of a region: finds its units, puts them into phases, and emits the streams and stages of each.
#include "region/lowering.h"

#include <algorithm>
#include <utility>

#include "region/functions.h"
#include "region/phases.h"
#include "region/stages/stages.h"
#include "region/units.h"

namespace litefuse {
namespace {

int number_of(std::vector<int32_t>* list, int32_t tensor) {
  const auto found = std::find(list->begin(), list->end(), tensor);
  if (found != list->end()) return static_cast<int>(found - list->begin());
  list->push_back(tensor);
  return static_cast<int>(list->size()) - 1;
}

// Of a unit that is a convolution, whose input has this size.
ConvStageParams conv_params(const Unit& unit, int32_t height, int32_t width) {
  ConvStageParams params = unit.conv;
  if (unit.inherits) {
    params.y = pointwise(height);
    params.x = pointwise(width);
  }
  return params;
}

// The stages of units that are one, which `in`, the image of the first input, may decide on; nullptr for other units,
// or where there is no memory for the weights.
std::unique_ptr<Stage> make_stage(const Unit& unit, const Image& in, bool sliced, bool winograd) {
  switch (unit.type) {
    case Unit::Type::kConv: {
      ConvStageParams params = conv_params(unit, in.height, in.width);
      params.sliced = sliced;
      std::unique_ptr<Stage> stage = winograd ? make_winograd_stage(params) : nullptr;
      return stage != nullptr ? std::move(stage) : make_conv_stage(params);
    }
    case Unit::Type::kTransposeConv:
      return make_transpose_conv_stage(unit.conv);
    case Unit::Type::kDepthwise:
      return make_depthwise_stage(unit.depthwise);
    case Unit::Type::kUnary:
      return make_unary_stage(unit.unary, unit.a, unit.b);
    case Unit::Type::kBinary:
      return make_binary_stage(unit.binary, unit.stretches[0], unit.stretches[1], unit.a, unit.b);
    case Unit::Type::kScaleShift:
      return make_scale_shift_stage(unit.scale_shift);
    case Unit::Type::kPool:
      return make_pool_stage(unit.pool);
    case Unit::Type::kBilinear:
      return make_bilinear_stage(unit.rows, unit.columns);
    case Unit::Type::kNearest:
      return make_nearest_stage(unit.rows, unit.columns);
    case Unit::Type::kPad:
      return make_pad_stage(unit.top, unit.left, unit.front, in, unit.a);
    case Unit::Type::kReduceChannels:
      return make_reduce_channels_stage(unit.reduction);
    case Unit::Type::kNorm:
      return make_norm_stage(unit.norm, unit.gamma, unit.beta, unit.a);
    default:
      return nullptr;
  }
}

// Builds the pipeline of one phase.
class Emitter {
 public:
  Emitter(const Phases& phases, const Phase& phase, const std::vector<Shape>& shapes, const LoweringOptions& options,
          Section* section)
      : phases_(phases),
        phase_(phase),
        shapes_(shapes),
        options_(options),
        section_(section),
        pipeline_(std::make_unique<Pipeline>()),
        streams_(shapes.size(), -1),
        uses_(phases.uses(phase)) {}

  Status run() {
    std::vector<int32_t>& operators = section_->operators;
    for (const Unit& unit : phase_.units) {
      operators.insert(operators.end(), unit.operators.begin(), unit.operators.end());
    }
    std::sort(operators.begin(), operators.end());
    for (size_t u = 0; u < phase_.units.size();) {
      if (in_slabs(u)) {
        LITEFUSE_RETURN_IF_REFUSED(emit_slabs(u));
        u += 3;
      } else {
        LITEFUSE_RETURN_IF_REFUSED(emit(phase_.units[u++]));
      }
    }
    if (options_.strip > 0) pipeline_->set_strip(options_.strip);
    LITEFUSE_RETURN_IF_REFUSED(pipeline_->plan(options_.threads));
    section_->pipeline = std::move(pipeline_);
    return Status();
  }

 private:
  // -- streams

  Image flattened(Image image) const {
    if (!phase_.flat) return image;
    image.height = image.height * image.width;
    image.width = 1;
    if (phase_.flat_batch) {
      image.height *= image.batch;
      image.batch = 1;
    }
    return image;
  }

  int external(int32_t t, const Image& image) {
    for (const External& e : externals_) {
      if (e.tensor == t && e.image == image) return e.stream;
    }
    const int stream = pipeline_->add_input(image, number_of(&section_->inputs, t));
    externals_.push_back({t, image, stream});
    return stream;
  }

  int input(const Unit& unit, size_t i) {
    const int32_t t = unit.inputs[i];
    if (streams_[at(t)] >= 0) return streams_[at(t)];
    Image image = unit.wants[i];
    if (is_fixed(unit.stretches[i])) return external(t, image);
    const int64_t channels = channels_of(unit, i, shapes_[at(t)]);
    if (any_image(image)) image = phases_.images[at(unit.outputs[0])];
    if (is_shared(unit.wants[i])) image.batch = 1;
    image.channels = static_cast<int32_t>(channels);
    if (i < unit.strides.size() && !unit.strides[i].dense()) {
      return pipeline_->add_input(image, number_of(&section_->inputs, t), unit.strides[i]);
    }
    return external(t, flattened(image));
  }

  int output(int32_t t, Strides strides = {}) {
    const Image image = flattened(phases_.images[at(t)]);
    const int stream = phases_.escapes[at(t)] ? pipeline_->add_output(image, number_of(&section_->outputs, t), strides)
                                              : pipeline_->add_ring(image);
    streams_[at(t)] = stream;
    return stream;
  }

  // Whether a stage may write over a stream: nothing else reads it.
  bool is_spent(int32_t t, int stream) const { return pipeline_->is_own_ring(stream) && uses_[at(t)] == 1; }

  // Computes in place where that can be.
  void in_place(const Unit& unit, const std::vector<int>& inputs, int out) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool fits = unit.stretches[i] == Stretch::kNone && is_spent(unit.inputs[i], inputs[i]) &&
                        pipeline_->image(inputs[i]) == pipeline_->image(out);
      if (!fits) continue;
      pipeline_->make_view(inputs[i], out, 0);
      return;
    }
  }

  int copied(int stream, int to, int op) {
    pipeline_->add_stage(make_pad_stage(0, 0, 0, pipeline_->image(stream), 0.0f), {stream}, {to}, op);
    return to;
  }

  // A stage that wants zeros beside its rows gets a copy of what is not kept in a ring.
  int padded(const Stage& stage, int stream, int op) {
    const bool wanted = stage.wants_left(0) + stage.wants_right(0) > 0;
    if (!wanted || !stage.needs_padding() || pipeline_->is_ring(stream)) return stream;
    return copied(stream, pipeline_->add_ring(pipeline_->image(stream)), op);
  }

  // -- stages

  Status emit(const Unit& unit) {
    std::vector<int> ins;
    for (size_t i = 0; i < unit.inputs.size(); ++i) ins.push_back(input(unit, i));
    switch (unit.type) {
      case Unit::Type::kView:
        emit_view(unit, ins[0]);
        break;
      case Unit::Type::kConcat:
        emit_concat(unit, ins);
        break;
      case Unit::Type::kSplit:
        emit_split(unit, ins[0]);
        break;
      case Unit::Type::kReducePixels:
        emit_reduce_pixels(unit, ins[0]);
        break;
      case Unit::Type::kInstanceNorm:
        emit_instance_norm(unit, ins[0]);
        break;
      case Unit::Type::kMatmul:
        emit_matmul(unit, ins);
        break;
      default:
        return emit_stage(unit, std::move(ins));
    }
    return Status();
  }

  Status emit_stage(const Unit& unit, std::vector<int> ins) {
    std::unique_ptr<Stage> stage =
        make_stage(unit, pipeline_->image(ins[0]), pipeline_->is_sliced(ins[0]), options_.winograd);
    LITEFUSE_REQUIRE(stage != nullptr, "there is no memory for its weights");
    ins[0] = padded(*stage, ins[0], unit.root);
    const int out = output(unit.outputs[0]);
    const bool writes_over =
        unit.type == Unit::Type::kUnary || unit.type == Unit::Type::kBinary || unit.type == Unit::Type::kScaleShift;
    if (writes_over) in_place(unit, ins, out);
    pipeline_->add_stage(std::move(stage), std::move(ins), {out}, unit.root);
    return Status();
  }

  SlabParams slab_params(size_t u) const {
    const Unit* const units = &phase_.units[u];
    const DepthwiseStageParams& depthwise = units[1].depthwise;
    return SlabParams{conv_params(units[0], depthwise.y.in, depthwise.x.in), depthwise,
                      conv_params(units[2], depthwise.y.out, depthwise.x.out)};
  }

  // Whether three units from `u` on are an inverted residual that is computed by slabs of channels.
  bool in_slabs(size_t u) const {
    if (phase_.flat || u + 3 > phase_.units.size()) return false;
    const Unit *const expand = &phase_.units[u], *const depthwise = expand + 1, *const project = expand + 2;
    const auto feeds = [this](const Unit& one, const Unit& next) {
      const int32_t t = one.outputs[0];
      return next.inputs[0] == t && uses_[at(t)] == 1 && !phases_.escapes[at(t)];
    };
    return expand->type == Unit::Type::kConv && depthwise->type == Unit::Type::kDepthwise &&
           project->type == Unit::Type::kConv && feeds(*expand, *depthwise) && feeds(*depthwise, *project) &&
           slabs_pay(slab_params(u));
  }

  Status emit_slabs(size_t u) {
    const Unit *const units = &phase_.units[u], &project = units[2];
    const SlabParams params = slab_params(u);
    std::unique_ptr<Stage> stage = make_slab_stage(params);
    LITEFUSE_REQUIRE(stage != nullptr, "there is no memory for its weights");
    const int in = input(units[0], 0);
    std::vector<int> summed;
    Image image = phases_.images[at(project.outputs[0])];
    for (int32_t i = 0; i < slab_terms(); ++i) summed.push_back(pipeline_->add_ring(image));
    const SlabWork work = slab_work(params);
    const double all = work.expand + work.depthwise + work.project;
    pipeline_->add_stage(std::move(stage), {in}, summed,
                         std::vector<Pipeline::Timed>{{units[0].root, work.expand / all},
                                                      {units[1].root, work.depthwise / all},
                                                      {project.root, work.project / all}});
    if (params.project.epilogue.residual) summed.push_back(input(project, 1));
    const int out = output(project.outputs[0]);
    pipeline_->add_stage(make_slab_sum_stage(params.project.epilogue), std::move(summed), {out}, project.root);
    return Status();
  }

  void emit_view(const Unit& unit, int from) {
    const int32_t t = unit.outputs[0];
    if (phases_.is_view(unit)) {
      streams_[at(t)] = from;
      return;
    }
    const int out = output(t);
    if (is_spent(unit.inputs[0], from) && pipeline_->image(from) == pipeline_->image(out)) {
      pipeline_->make_view(from, out, 0);  // computed in place
      pipeline_->add_stage(nullptr, {from}, {out}, unit.root);
    } else {
      copied(from, out, unit.root);
    }
  }

  void emit_concat(const Unit& unit, const std::vector<int>& ins) {
    // Stages that write fewer channels into each pixel take longer than they do for whole rows with a copy behind.
    constexpr int32_t kNarrow = 8;
    const int out = output(unit.outputs[0]);
    std::vector<int> parts;
    int32_t first = 0;
    for (size_t i = 0; i < ins.size(); ++i) {
      const int32_t channels = pipeline_->image(ins[i]).channels;
      if (channels >= kNarrow && is_spent(unit.inputs[i], ins[i]) &&
          std::find(parts.begin(), parts.end(), ins[i]) == parts.end()) {
        pipeline_->make_view(ins[i], out, first);
        parts.push_back(ins[i]);
      } else {
        parts.push_back(copied(ins[i], pipeline_->add_view(out, first, channels), unit.root));
      }
      first += channels;
    }
    pipeline_->add_stage(nullptr, std::move(parts), {out}, unit.root);
  }

  void emit_split(const Unit& unit, int in) {
    std::vector<int> parts;
    int32_t first = 0;
    for (int32_t t : unit.outputs) {
      const int32_t channels = phases_.images[at(t)].channels;
      parts.push_back(pipeline_->add_view(in, first, channels));
      first += channels;
    }
    pipeline_->add_stage(nullptr, {in}, parts, unit.root);
    for (size_t i = 0; i < parts.size(); ++i) {
      const int32_t t = unit.outputs[i];
      if (phases_.escapes[at(t)]) {
        copied(parts[i], output(t), unit.root);
      } else {
        streams_[at(t)] = parts[i];
      }
    }
  }

  // One pixel for each row of the first input.
  int reduced_rows(std::unique_ptr<Stage> stage, std::vector<int> inputs, int op) {
    Image rows = pipeline_->image(inputs[0]);
    rows.width = 1;
    const int each = pipeline_->add_ring(rows);
    pipeline_->add_stage(std::move(stage), std::move(inputs), {each}, op);
    return each;
  }

  int64_t pixels_of(int stream) const {
    return int64_t{pipeline_->image(stream).height} * pipeline_->image(stream).width;
  }

  void emit_reduce_pixels(const Unit& unit, int in) {
    int each = in;
    if (pipeline_->image(in).width > 1) each = reduced_rows(make_reduce_row_stage(unit.reduction), {in}, unit.root);
    const int out = output(unit.outputs[0]);
    pipeline_->add_stage(make_reduce_rows_stage(unit.reduction, pixels_of(in)), {each}, {out}, unit.root);
  }

  void emit_matmul(const Unit& unit, std::vector<int> ins) {
    const MatmulParams& params = unit.matmul;
    Image image = pipeline_->image(ins[0]);
    if (unit.turned) {
      std::swap(image.height, image.channels);
      const int turned = pipeline_->add_ring(image);
      pipeline_->add_stage(make_turn_stage(), {ins[0]}, {turned}, unit.root);
      ins[0] = turned;
    }
    int factors = -1;
    if (unit.scored) {
      const int weights = pipeline_->add_ring(image);
      factors = pipeline_->add_ring(Image{image.batch, image.height, 1, 1});
      std::vector<int> scores = {ins[0]};
      if (unit.scores.masked) scores.push_back(ins[2]);
      pipeline_->add_stage(make_score_stage(unit.scores), std::move(scores), {weights, factors}, unit.score_root);
      ins[0] = weights;
    }
    const int packed = pipeline_->add_ring(Image{image.batch, 1, 1, static_cast<int32_t>(packed_floats(params))});
    pipeline_->add_stage(make_pack_stage(params), {ins[1]}, {packed}, unit.root);
    const int out = output(unit.outputs[0], unit.strides.back());
    std::vector<int> reads = {ins[0], packed};
    if (unit.scored) reads.push_back(factors);
    pipeline_->add_stage(make_matmul_stage(params, unit.scored), std::move(reads), {out}, unit.root);
  }

  void emit_instance_norm(const Unit& unit, int in) {
    const Image one{pipeline_->image(in).batch, 1, 1, pipeline_->image(in).channels};
    const int mean = pipeline_->add_ring(one), variance = pipeline_->add_ring(one);
    const int scale = pipeline_->add_ring(one), shift = pipeline_->add_ring(one);
    const auto emit_mean = [&](int rows, int out) {
      pipeline_->add_stage(make_reduce_rows_stage(Reduction::kMean, pixels_of(in)), {rows}, {out}, unit.root);
    };
    emit_mean(reduced_rows(make_reduce_row_stage(Reduction::kSum), {in}, unit.root), mean);
    emit_mean(reduced_rows(make_sum_squares_row_stage(), {in, mean}, unit.root), variance);
    pipeline_->add_stage(make_norm_scale_stage(unit.gamma, unit.beta, unit.epsilon), {variance}, {scale, shift},
                         unit.root);
    // The difference first: a large mean would cost the product its last digits.
    const int out = output(unit.outputs[0]);
    const int centred = pipeline_->add_view(out, 0, pipeline_->image(out).channels);
    pipeline_->add_stage(make_binary_stage(Binary::kSub, Stretch::kNone, Stretch::kChannel, -kInfinity, kInfinity),
                         {in, mean}, {centred}, unit.root);
    ScaleShift params;
    params.scaled = params.shifted = true;
    params.min = unit.a;
    params.max = unit.b;
    pipeline_->add_stage(make_scale_shift_stage(params), {centred, scale, shift}, {out}, unit.root);
  }

  struct External {
    int32_t tensor;
    Image image;
    int stream;
  };

  const Phases& phases_;
  const Phase& phase_;
  const std::vector<Shape>& shapes_;
  const LoweringOptions& options_;
  Section* section_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<int> streams_;  // of tensors; -1
  std::vector<int> uses_;     // of tensors that are computed here
  std::vector<External> externals_;
};

}  // namespace

Status lower(const Region& region, const std::vector<Shape>& shapes, const std::vector<bool>& done,
             const LoweringOptions& options, std::vector<Section>* sections) {
  sections->clear();
  const Phases phases = divide(region, shapes, find_units(region, shapes, done));
  for (const Phase& phase : phases.all) {
    Section section;
    if (phase.other) {
      const Unit& unit = phase.units[0];
      section.operators = unit.operators;
      section.inputs = unit.inputs;
      section.outputs = unit.outputs;
    } else {
      LITEFUSE_RETURN_IF_REFUSED(Emitter(phases, phase, shapes, options, &section).run());
    }
    sections->push_back(std::move(section));
  }
  return Status();
}

}  // namespace litefuse
