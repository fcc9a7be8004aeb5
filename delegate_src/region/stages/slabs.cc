// Inverted residuals by slabs of channels: for small images with many weights.
//
// A slab is some of the channels between the expansion and the projection. They are expanded, filtered and multiplied by
// their part of the projection while they are in the cache, and what this gives is one term of the result. So each
// weight is read once, whichever core reads it, no core needs what another one has just computed, and no row is computed
// twice, as strips and bands of rows would have it. The terms are added at the end.
#include <algorithm>
#include <cstring>

#include "kernels/simd/simd.h"
#include "region/scratch.h"
#include "region/stages/stages.h"

namespace litefuse {
namespace {

// Terms of the sum, and parts that workers can do at the same time. Not the number of threads, on which results must not
// depend.
constexpr int32_t kTerms = 4;
// Where a strip of rows would be a large part of the image anyway, ...
constexpr int32_t kMostRows = 16;
// ... and weights do not stay in the first cache.
constexpr int64_t kLeastWeights = 24 * 1024;  // floats

size_t at(int64_t i) { return static_cast<size_t>(i); }

bool is_pointwise(const ConvStageParams& conv) {
  const auto one = [](const Window& w) { return w.filter == 1 && w.stride == 1 && w.pad_before == 0 && w.in == w.out; };
  return one(conv.y) && one(conv.x) && conv.groups == 1 && conv.piece == 0 && !conv.filter.by_depth;
}

// Channels are cut where panels of the products are.
int32_t panel_columns() { return 2 * gemm_kernels().layout(1, 1).lanes; }

// Of the two products, in floats.
int64_t weights_of(const SlabParams& p) { return int64_t{p.expand.outputs} * (p.expand.depth + p.project.outputs); }

// A filter without some of its channels; what is copied has to be held while stages are made.
class Slicer {
 public:
  // `count` pieces of `elements`, which lie `distance` elements apart, from element `first` on.
  Filter cut(const Filter& from, int64_t first, int64_t count, int64_t elements, int64_t distance) {
    const size_t size = from.half ? 2 : 4;
    const char* data = static_cast<const char*>(from.data) + at(first) * size;
    Filter result = from;
    result.data = data;
    if (count > 1 && distance != elements) {
      copies_.emplace_back(at(count * elements) * size);
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(&copies_.back()[at(i * elements) * size], data + at(i * distance) * size, at(elements) * size);
      }
      result.data = copies_.back().data();
    }
    return result;
  }

 private:
  std::vector<std::vector<char>> copies_;
};

class Slabs final : public Stage {
 public:
  explicit Slabs(const SlabParams& params) : p_(params) {}

  bool pack() {
    const int32_t grain = panel_columns();
    const Window &y = p_.depthwise.y, &x = p_.depthwise.x;
    const int64_t pixels = int64_t{y.in} * x.in + int64_t{y.out} * x.out;
    for (int32_t term = 0; term < kTerms; ++term) {
      const Span all = Share{term, kTerms}.of(Span{0, p_.expand.outputs}, grain);
      // As many slabs as it takes to keep what is between in a part of the second cache.
      const size_t bytes = at(pixels * all.size()) * sizeof(float), most = caches().l2 / 2;
      const auto grains = at((all.size() + grain - 1) / grain);
      const auto slabs = static_cast<int32_t>(std::clamp<size_t>((bytes + most / 2) / most, 1, grains));
      for (int32_t i = 0; i < slabs; ++i) {
        if (!add(term, i == 0, Share{i, slabs}.of(all, grain))) return false;
      }
    }
    for (const Slab& slab : slabs_) {
      left_ = std::max(left_, slab.depthwise->wants_left(0));
      right_ = std::max(right_, slab.depthwise->wants_right(0));
      widest_ = std::max(widest_, slab.channels);
    }
    for (const Slab& slab : slabs_) {
      inner_ = std::max({inner_, slab.expand->scratch_bytes(y.in), slab.depthwise->scratch_bytes(y.out),
                         slab.project->scratch_bytes(y.out)});
    }
    return true;
  }

  Span needs(size_t, Span) const override { return Span{0, p_.expand.y.in}; }
  int32_t grain() const override { return p_.project.y.out; }
  size_t scratch_bytes(int32_t) const override { return zero_bytes() + wide_bytes() + filtered_bytes() + inner_; }
  size_t weight_bytes() const override {
    size_t bytes = 0;
    for (const Slab& slab : slabs_) {
      bytes += slab.expand->weight_bytes() + slab.depthwise->weight_bytes() + slab.project->weight_bytes();
    }
    return bytes;
  }
  double work(const Image& output) const override {
    const SlabWork work = slab_work(p_);
    return (work.expand + work.depthwise + work.project) / std::max(output.height, 1);
  }

  void run(const Rows* inputs, const Rows* outputs, Span, Share share, void* scratch) const override {
    const Span terms = share.of(Span{0, kTerms});
    char* const memory = static_cast<char*>(scratch);
    std::memset(memory, 0, zero_bytes());
    Rows wide;  // what is expanded
    wide.height = p_.depthwise.y.in;
    wide.width = p_.depthwise.x.in;
    wide.modulus = std::max(wide.height, 1);
    wide.left = left_;
    wide.right = right_;
    Rows filtered;
    filtered.height = p_.depthwise.y.out;
    filtered.width = p_.depthwise.x.out;
    filtered.modulus = std::max(filtered.height, 1);
    filtered.base = reinterpret_cast<float*>(memory + zero_bytes() + wide_bytes());
    void* const inner = memory + zero_bytes() + wide_bytes() + filtered_bytes();
    int32_t channels = 0;
    for (const Slab& slab : slabs_) {
      if (slab.term < terms.begin || slab.term >= terms.end) continue;
      if (slab.channels != channels) {
        channels = slab.channels;
        wide.channels = filtered.channels = channels;
        wide.pixel = filtered.pixel = channels;
        wide.row = static_cast<ptrdiff_t>(wide_row(channels));
        filtered.row = ptrdiff_t{filtered.width} * channels;
        wide.zeros = reinterpret_cast<const float*>(memory) + ptrdiff_t{left_} * channels;
        wide.base = reinterpret_cast<float*>(memory + zero_bytes()) + ptrdiff_t{left_} * channels;
        wide.clear_sides();
      }
      slab.expand->run(inputs, &wide, Span{0, wide.height}, Share(), inner);
      slab.depthwise->run(&wide, &filtered, Span{0, filtered.height}, Share(), inner);
      const Rows reads[] = {filtered, outputs[slab.term]};  // the second one unless the slab begins its term
      slab.project->run(reads, outputs + slab.term, Span{0, filtered.height}, Share(), inner);
    }
  }

 private:
  struct Slab {
    int32_t term = 0, channels = 0;
    std::unique_ptr<Stage> expand, depthwise, project;
  };

  // The first slab of a term begins it, the others are added to it; the first term has the bias.
  bool add(int32_t term, bool begins, Span channels) {
    // Most of the weights have left the second cache when they are read again.
    const bool cold = at(weights_of(p_)) * sizeof(float) > caches().l2 / 4 * 3;
    Slicer slicer;
    Slab slab;
    slab.term = term;
    slab.channels = channels.size();
    const int32_t first = channels.begin;
    const auto from = [first](const float* values) { return values != nullptr ? values + first : nullptr; };
    ConvStageParams expand = p_.expand;
    expand.outputs = slab.channels;
    expand.cold = cold;
    expand.filter = slicer.cut(expand.filter, int64_t{first} * expand.depth, 1, 0, 0);
    expand.filter.bias = from(expand.filter.bias);
    expand.epilogue.slopes = from(expand.epilogue.slopes);
    slab.expand = make_conv_stage(expand);

    DepthwiseStageParams depthwise = p_.depthwise;
    const int64_t taps = int64_t{depthwise.y.filter} * depthwise.x.filter;
    depthwise.channels = slab.channels;
    depthwise.filter = depthwise.filter.by_channel
                           ? slicer.cut(depthwise.filter, first * taps, 1, 0, 0)
                           : slicer.cut(depthwise.filter, first, taps, slab.channels, p_.depthwise.channels);
    depthwise.filter.bias = from(depthwise.filter.bias);
    depthwise.epilogue.slopes = from(depthwise.epilogue.slopes);
    slab.depthwise = make_depthwise_stage(depthwise);

    ConvStageParams project = p_.project;
    project.depth = slab.channels;
    project.cold = cold;
    project.filter = slicer.cut(project.filter, first, project.outputs, slab.channels, p_.project.depth);
    if (term > 0 || !begins) project.filter.bias = nullptr;
    project.epilogue = Epilogue();
    project.epilogue.residual = !begins;
    slab.project = make_conv_stage(project);
    if (slab.expand == nullptr || slab.depthwise == nullptr || slab.project == nullptr) return false;
    slabs_.push_back(std::move(slab));
    return true;
  }

  size_t wide_row(int32_t channels) const { return padded_row(at(p_.depthwise.x.in + left_ + right_) * at(channels)); }
  // The longest, which need not be that of the widest slab.
  size_t most_row_bytes() const { return (wide_row(widest_) + 32) * sizeof(float); }
  size_t zero_bytes() const { return aligned(most_row_bytes()); }
  size_t wide_bytes() const { return aligned(at(p_.depthwise.y.in) * most_row_bytes()); }
  size_t filtered_bytes() const {
    return aligned(at(int64_t{p_.depthwise.y.out} * p_.depthwise.x.out * widest_) * sizeof(float));
  }

  SlabParams p_;
  std::vector<Slab> slabs_;  // term after term
  int32_t left_ = 0, right_ = 0, widest_ = 0;
  size_t inner_ = 0;
};

// The sum of the terms, with the epilogue of the projection.
class Sum final : public Stage {
 public:
  explicit Sum(const Epilogue& epilogue) : epilogue_(epilogue), kernels_(elementwise_kernels()) {}

  double work(const Image& output) const override { return static_cast<double>(output.row()) * 4 * kTerms; }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    const Rows& out = outputs[0];
    constexpr float kInfinity = GemmEpilogue::kInfinity;
    const Rows* all[kTerms + 2] = {&out};
    size_t count = 1;
    for (; count <= kTerms + (epilogue_.residual ? 1 : 0); ++count) all[count] = inputs + count - 1;
    each_run(all, count, share.of(rows), [&](int32_t first, int32_t together) {
      // Row by row, so that the sum stays in the first cache.
      for (int32_t y = first; y < first + together; ++y) {
        const Block block{out.width, out.channels};
        const auto add = [&](const Rows& x, const Rows& z, float min, float max) {
          kernels_.binary(Binary::kAdd, block, BlockOperand{x.at(y), x.pixel, Stretch::kNone},
                          BlockOperand{z.at(y), z.pixel, Stretch::kNone}, out.at(y), out.pixel, min, max);
        };
        add(inputs[0], inputs[1], -kInfinity, kInfinity);
        for (int32_t i = 2; i < kTerms; ++i) {
          const bool last = i + 1 == kTerms;
          add(out, inputs[i], last ? epilogue_.min : -kInfinity, last ? epilogue_.max : kInfinity);
        }
        if (epilogue_.residual) add(out, inputs[kTerms], epilogue_.residual_min, epilogue_.residual_max);
      }
    });
  }

 private:
  Epilogue epilogue_;
  const ElementwiseKernels& kernels_;
};

}  // namespace

int32_t slab_terms() { return kTerms; }

SlabWork slab_work(const SlabParams& p) {
  const double in = static_cast<double>(p.expand.y.in) * p.expand.x.in;
  const double out = static_cast<double>(p.project.y.out) * p.project.x.out, wide = p.expand.outputs;
  return {in * wide * p.expand.depth, out * wide * 2 * p.depthwise.y.filter * p.depthwise.x.filter,
          out * wide * p.project.outputs};
}

bool slabs_pay(const SlabParams& p) {
  if (!is_pointwise(p.expand) || !is_pointwise(p.project) || p.depthwise.multiplier != 1) return false;
  if (p.expand.epilogue.residual || p.project.epilogue.slopes != nullptr) return false;
  const int32_t wide = p.expand.outputs;
  if (p.depthwise.channels != wide || p.project.depth != wide) return false;
  const auto small = [](const Window& w) { return w.in <= kMostRows && w.out <= kMostRows; };
  return wide >= kTerms * panel_columns() && small(p.depthwise.y) && small(p.depthwise.x) &&
         weights_of(p) >= kLeastWeights;
}

std::unique_ptr<Stage> make_slab_stage(const SlabParams& params) {
  auto stage = std::make_unique<Slabs>(params);
  if (!stage->pack()) return nullptr;
  return stage;
}

std::unique_ptr<Stage> make_slab_sum_stage(const Epilogue& epilogue) { return std::make_unique<Sum>(epilogue); }

}  // namespace litefuse
