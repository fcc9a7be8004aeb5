// Stages of products of two matrices that are computed at run time: BATCH_MATMUL.
#include <algorithm>
#include <limits>

#include "kernels/simd/attention.h"
#include "kernels/simd/transpose.h"
#include "region/stages/stages.h"

namespace litefuse {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

constexpr Span kAllRows{0, std::numeric_limits<int32_t>::max()};

// Packs the second matrix for the product, once for each image: one row of all panels.
class Pack final : public Stage {
 public:
  explicit Pack(const MatmulParams& params)
      : by_column_(params.by_column),
        kernels_(gemm_kernels()),
        layout_(kernels_.layout(params.depth, params.columns)) {}

  Span needs(size_t, Span) const override { return kAllRows; }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    if (rows.size() == 0) return;
    const Rows& in = inputs[0];
    GemmWeights weights;
    weights.data = in.at(0);
    weights.depth_stride = by_column_ ? 1 : in.row;
    weights.column_stride = by_column_ ? in.row : 1;
    const Span panels = share.of(Span{0, static_cast<int32_t>(layout_.panels.size())});
    kernels_.pack_panels(layout_, weights, panels.begin, panels.end, outputs[0].at(0));
  }

 private:
  bool by_column_;
  const GemmKernels& kernels_;
  GemmLayout layout_;
};

class Matmul final : public Stage {
 public:
  Matmul(const MatmulParams& params, bool factors)
      : depth_(params.depth),
        factors_(factors),
        kernels_(gemm_kernels()),
        layout_(kernels_.layout(params.depth, params.columns)) {}

  Span needs(size_t input, Span rows) const override { return input == 1 ? Span{0, 1} : rows; }
  size_t scratch_bytes(int32_t rows) const override { return at(rows) * 2 * sizeof(void*); }
  size_t weight_bytes() const override { return layout_.floats * sizeof(float); }
  double work(const Image& output) const override { return static_cast<double>(output.row()) * depth_; }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void* scratch) const override {
    const Rows &in = inputs[0], &out = outputs[0];
    const auto panels = static_cast<int32_t>(layout_.panels.size());
    Span columns{0, panels};
    if (rows.size() >= 8 * share.parts || panels < share.parts) {
      rows = share.of(rows);
    } else {
      columns = share.of(columns);
    }
    if (rows.size() == 0 || columns.size() == 0) return;
    auto** const a = static_cast<const float**>(scratch);
    auto** const c = reinterpret_cast<float**>(static_cast<void**>(scratch) + rows.size());
    for (int32_t i = 0; i < rows.size(); ++i) {
      a[i] = in.at(rows.begin + i);
      c[i] = out.at(rows.begin + i);
    }
    GemmCall call;
    call.a = a;
    call.rows = rows.size();
    call.segment_length = depth_;
    call.layout = &layout_;
    call.weights = inputs[1].at(0);
    call.first_panel = columns.begin;
    call.last_panel = columns.end;
    call.c = c;
    kernels_.run(call);
    if (!factors_) return;
    const int32_t first = layout_.panels[at(columns.begin)].first;
    const int32_t last = columns.end < panels ? layout_.panels[at(columns.end)].first : layout_.columns;
    const Rows& factors = inputs[2];
    for (int32_t i = 0; i < rows.size();) {
      const int32_t together = factors.joined(Span{rows.begin + i, rows.end});
      attention_kernels().scale(c + i, together, first, last - first, factors.at(rows.begin + i));
      i += together;
    }
  }

 private:
  int32_t depth_;
  bool factors_;
  const GemmKernels& kernels_;
  GemmLayout layout_;
};

class Score final : public Stage {
 public:
  explicit Score(const ScoreParams& params) : p_(params), kernels_(attention_kernels()) {}

  Span needs(size_t input, Span rows) const override {
    return input == 1 && p_.mask == Stretch::kChannel ? Span{0, 1} : rows;
  }
  double work(const Image& output) const override { return static_cast<double>(output.row()) * 8; }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    const bool fixed = p_.mask == Stretch::kChannel;
    const Rows* all[4] = {&inputs[0], &outputs[0], &outputs[1]};
    if (p_.masked && !fixed) all[3] = &inputs[1];
    each_run(all, p_.masked && !fixed ? 4 : 3, share.of(rows), [&](int32_t y, int32_t together) {
      ScoreRows s;
      s.rows = together;
      s.channels = inputs[0].channels;
      s.x = inputs[0].at(y);
      s.x_stride = inputs[0].row;
      s.scale = p_.scale;
      s.beta = p_.beta;
      if (p_.masked) {
        s.mask = inputs[1].at(fixed ? 0 : y);
        s.mask_stride = fixed ? 0 : inputs[1].row;
      }
      s.y = outputs[0].at(y);
      s.y_stride = outputs[0].row;
      s.factors = outputs[1].at(y);
      kernels_.weights(s);
    });
  }

 private:
  ScoreParams p_;
  const AttentionKernels& kernels_;
};

// Rows of the output are columns of the input.
class Turn final : public Stage {
 public:
  Turn() : kernels_(transpose_kernels()) {}

  Span needs(size_t, Span) const override { return kAllRows; }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void*) const override {
    const Rows &in = inputs[0], &out = outputs[0];
    rows = share.of(rows);
    while (rows.size() > 0) {
      const int32_t together = out.joined(rows);
      kernels_.transpose(in.at(0) + rows.begin, in.height, together, in.row, out.at(rows.begin), out.row);
      rows.begin += together;
    }
  }

 private:
  const TransposeKernels& kernels_;
};

}  // namespace

int64_t packed_floats(const MatmulParams& params) {
  return static_cast<int64_t>(gemm_kernels().layout(params.depth, params.columns).floats);
}
std::unique_ptr<Stage> make_pack_stage(const MatmulParams& params) { return std::make_unique<Pack>(params); }
std::unique_ptr<Stage> make_matmul_stage(const MatmulParams& params, bool factors) {
  return std::make_unique<Matmul>(params, factors);
}
std::unique_ptr<Stage> make_score_stage(const ScoreParams& params) { return std::make_unique<Score>(params); }
std::unique_ptr<Stage> make_turn_stage() { return std::make_unique<Turn>(); }

}  // namespace litefuse
