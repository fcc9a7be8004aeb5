// Stages of convolutions that are matrix products: CONV_2D, FULLY_CONNECTED, TRANSPOSE_CONV, and 3x3 by Winograd.
#include <algorithm>
#include <cstring>

#include "kernels/simd/winograd.h"
#include "region/scratch.h"
#include "region/stages/stages.h"
#include "region/weights.h"

namespace litefuse {
namespace {

// Parts of a product that have fewer rows than this would each read all weights for little.
constexpr int32_t kFewRows = 24;

size_t at(int64_t i) { return static_cast<size_t>(i); }

int64_t filter_elements(const ConvStageParams& p) { return int64_t{p.outputs} * p.y.filter * p.x.filter * p.depth; }

// Where a table of pointers may begin behind so many others.
float** behind(void* table, size_t pointers) {
  return static_cast<float**>(static_cast<void*>(static_cast<char*>(table) + pointers * sizeof(void*)));
}

const void* element(const Filter& filter, int64_t i) {
  return static_cast<const char*>(filter.data) + i * (filter.half ? 2 : 4);
}

// The rows of an input window that rows of the output need.
Span window_rows(const Window& y, Span rows) {
  return Span{static_cast<int32_t>(y.origin(rows.begin)),
              static_cast<int32_t>(y.origin(rows.end - 1) + int64_t{y.filter - 1} * y.dilation + 1)};
}

// Whether each output comes from a single input, which is inside the image.
bool is_pointwise(const Window& w) { return w.filter == 1 && w.pad_before == 0 && w.origin(w.out - 1) < w.in; }

// Whether some windows have taps outside of the image.
bool reaches_beyond(const Window& w) {
  return w.pad_before > 0 || w.origin(w.out - 1) + int64_t{w.filter - 1} * w.dilation >= w.in;
}

int32_t columns_before(const Window& x) { return x.pad_before; }

int32_t columns_behind(const Window& x) {
  const int64_t last = x.origin(x.out - 1) + int64_t{x.filter - 1} * x.dilation;
  return static_cast<int32_t>(std::max<int64_t>(last + 1 - x.in, 0));
}

GemmEpilogue registers(const Epilogue& epilogue) {
  GemmEpilogue result;
  result.min = epilogue.min;
  result.max = epilogue.max;
  result.slopes = epilogue.slopes;
  result.residual_min = epilogue.residual_min;
  result.residual_max = epilogue.residual_max;
  return result;
}

// The matrix of one group of channels, or of one phase of a transposed convolution.
struct Matrix {
  GemmLayout layout;
  std::shared_ptr<const Weights> weights;
};

class Conv final : public Stage {
 public:
  explicit Conv(const ConvStageParams& params) : p_(params), kernels_(gemm_kernels()) {
    pointwise_ = is_pointwise(p_.y) && is_pointwise(p_.x);
    // A row of the window is one piece if its pixels lie next to each other.
    by_rows_ = p_.groups == 1 && p_.x.dilation == 1 && !p_.sliced;
    segments_ =
        pointwise_ ? (p_.piece > 0 ? p_.depth / p_.piece : 1) : (by_rows_ ? p_.y.filter : p_.y.filter * p_.x.filter);
    inside_ = Span{0, p_.x.out};
    if (!pointwise_) {
      const int64_t before = (int64_t{p_.x.pad_before} + p_.x.stride - 1) / p_.x.stride;
      inside_.begin = static_cast<int32_t>(std::clamp<int64_t>(before, 0, p_.x.out));
      const int64_t room = int64_t{p_.x.in} - (int64_t{p_.x.filter - 1} * p_.x.dilation + 1) + p_.x.pad_before;
      inside_.end = static_cast<int32_t>(
          room < 0 ? inside_.begin : std::clamp<int64_t>(room / p_.x.stride + 1, inside_.begin, p_.x.out));
    }
  }

  bool pack() {
    const int64_t depth = int64_t{p_.y.filter} * p_.x.filter * p_.depth;
    const int32_t columns = p_.outputs / p_.groups;
    for (int32_t g = 0; g < p_.groups; ++g) {
      GemmWeights weights;
      weights.data = element(p_.filter, g * columns * depth);
      weights.half = p_.filter.half;
      weights.depth_stride = p_.filter.by_depth ? columns : 1;
      weights.column_stride = p_.filter.by_depth ? 1 : static_cast<ptrdiff_t>(depth);
      weights.bias = p_.filter.bias != nullptr ? p_.filter.bias + g * columns : nullptr;
      Matrix matrix;
      matrix.layout = kernels_.layout(static_cast<int32_t>(depth), columns);
      WeightsKey key("gemm");
      key.add(matrix.layout.lanes).add(depth).add(columns).add(weights.half).add(p_.filter.by_depth);
      key.add(weights.data, at(columns * depth) * (weights.half ? 2 : 4));
      key.add(weights.bias, at(columns) * sizeof(float));
      matrix.weights =
          packed_weights(key, matrix.layout.floats, [&](float* to) { kernels_.pack(matrix.layout, weights, to); });
      if (matrix.weights == nullptr) return false;
      groups_.push_back(std::move(matrix));
    }
    // Of the whole image, so that it is the same for all strips.
    piece_ = gemm_piece(p_.y.out * p_.x.out, static_cast<int32_t>(depth), static_cast<int32_t>(depth) / segments_);
    return true;
  }

  Span needs(size_t input, Span rows) const override {
    return input == 0 && !pointwise_local() ? window_rows(p_.y, rows) : rows;
  }
  int32_t wants_left(size_t input) const override { return input == 0 ? columns_before(p_.x) : 0; }
  int32_t wants_right(size_t input) const override { return input == 0 ? columns_behind(p_.x) : 0; }
  bool reads_zeros() const override { return !pointwise_ && (!by_rows_ || reaches_beyond(p_.y)); }
  // Windows at the edges are put together one by one, which is less work than to copy every row, if they are few.
  bool needs_padding() const override {
    return by_rows_ && int64_t{edges()} * p_.y.filter * p_.x.filter > int64_t{p_.x.in} * p_.y.stride;
  }
  size_t weight_bytes() const override { return at(filter_elements(p_)) * sizeof(float); }
  double work(const Image& output) const override {
    return static_cast<double>(output.row()) * p_.y.filter * p_.x.filter * p_.depth;
  }
  size_t scratch_bytes(int32_t rows) const override {
    const size_t edge = by_rows_ && !pointwise_ ? at(edges()) * at(p_.y.filter) * window_floats() * sizeof(float) : 0;
    const size_t sums = piece_ > 0 ? at(p_.x.out) * at(groups_[0].layout.padded()) * sizeof(float) : 0;
    return aligned(at(rows) * sums) + aligned(at(rows) * at(p_.x.out) * at(segments_ + 2) * sizeof(void*)) +
           at(rows) * edge;
  }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void* scratch) const override {
    const Rows &in = inputs[0], &out = outputs[0];
    GemmCall call;
    int32_t first_panel = 0, last_panel = std::numeric_limits<int32_t>::max();
    if (share.parts > 1) {
      const auto panels = static_cast<int32_t>(groups_[0].layout.panels.size());
      const bool few = rows.size() * p_.x.out < kFewRows * share.parts || rows.size() < share.parts;
      if (few && p_.groups == 1 && panels >= share.parts) {
        const Span part = share.of(Span{0, panels});
        first_panel = part.begin;
        last_panel = part.end;
      } else {
        rows = share.of(rows);
      }
    }
    const int32_t width = p_.x.out, count = rows.size() * width;
    if (count == 0) return;
    if (piece_ > 0) {
      call.piece = piece_;
      call.sums = static_cast<float*>(scratch);
      scratch = static_cast<char*>(scratch) + aligned(at(count) * at(groups_[0].layout.padded()) * sizeof(float));
    }
    auto** const a = static_cast<const float**>(scratch);
    auto** const c = behind(scratch, at(count) * at(segments_));
    const Rows* const residual = inputs + (p_.piece > 0 ? point_at_pieces(inputs, rows, a) : 1);
    if (p_.piece == 0) {
      point_at_inputs(in, rows, a);
      if (!pointwise_ && (in.left < columns_before(p_.x) || in.right < columns_behind(p_.x))) {
        void* edge = static_cast<char*>(scratch) + aligned(at(count) * at(segments_ + 2) * sizeof(void*));
        point_at_edges(in, rows, a, static_cast<float*>(edge));
      }
    }
    size_t m = 0;
    for (int32_t y = rows.begin; y < rows.end; ++y) {
      float* to = out.at(y);
      for (int32_t x = 0; x < width; ++x, to += out.pixel) c[m++] = to;
    }
    call.epilogue = registers(p_.epilogue);
    if (p_.epilogue.residual) {
      auto** const r = const_cast<const float**>(c + count);
      m = 0;
      for (int32_t y = rows.begin; y < rows.end; ++y) {
        const float* from = residual->at(y);
        for (int32_t x = 0; x < width; ++x, from += residual->pixel) r[m++] = from;
      }
      call.epilogue.residual = r;
    }
    call.a = a;
    call.c = c;
    call.rows = count;
    call.segments = segments_;
    call.cold = p_.cold;
    const int32_t columns = p_.outputs / p_.groups;
    for (int32_t g = 0; g < p_.groups; ++g) {
      const Matrix& matrix = groups_[at(g)];
      call.segment_length = matrix.layout.depth / segments_;
      call.a_offset = static_cast<ptrdiff_t>(g) * p_.depth;
      call.c_offset = static_cast<ptrdiff_t>(g) * columns;
      if (p_.epilogue.slopes != nullptr) call.epilogue.slopes = p_.epilogue.slopes + call.c_offset;
      call.layout = &matrix.layout;
      call.weights = matrix.weights->data();
      call.first_panel = first_panel;
      call.last_panel = std::min(last_panel, static_cast<int32_t>(matrix.layout.panels.size()));
      kernels_.run(call);
    }
  }

 private:
  bool pointwise_local() const { return pointwise_ && p_.y.stride == 1; }

  // Returns how many inputs there are besides the residual.
  size_t point_at_pieces(const Rows* inputs, Span rows, const float** a) const {
    size_t i = 0;
    for (int32_t channel = 0; channel < p_.depth; channel += inputs[i++].channels) {
      for (int32_t first = 0; first < inputs[i].channels; first += p_.piece) {
        for (int32_t y = rows.begin; y < rows.end; ++y) {
          const float* from = inputs[i].at(y) + first;
          for (int32_t x = 0; x < p_.x.out; ++x, from += inputs[i].pixel) *a++ = from;
        }
      }
    }
    return i;
  }

  void point_at_inputs(const Rows& in, Span rows, const float** a) const {
    const ptrdiff_t step = p_.x.stride * in.pixel;
    const int32_t width = p_.x.out;
    if (pointwise_) {
      for (int32_t y = rows.begin; y < rows.end; ++y) {
        const float* from = in.at(y * p_.y.stride);
        for (int32_t x = 0; x < width; ++x, from += step) *a++ = from;
      }
      return;
    }
    for (int32_t fy = 0; fy < p_.y.filter; ++fy) {
      for (int32_t fx = 0; fx < (by_rows_ ? 1 : p_.x.filter); ++fx) {
        const ptrdiff_t left = (ptrdiff_t{fx} * p_.x.dilation - p_.x.pad_before) * in.pixel;
        for (int32_t y = rows.begin; y < rows.end; ++y) {
          const float* from = in.padded(static_cast<int32_t>(p_.y.origin(y)) + fy * p_.y.dilation) + left;
          for (int32_t x = 0; x < width; ++x, from += step) *a++ = from;
        }
      }
    }
  }

  int32_t edges() const { return p_.x.out - inside_.size(); }
  size_t window_floats() const { return at(p_.x.filter) * at(p_.depth); }

  // Corrects the pointers of windows that reach beyond the ends of rows without zeros beside them: to zeros where a
  // segment is a pixel, else to copies of the windows.
  void point_at_edges(const Rows& in, Span rows, const float** a, float* copies) const {
    const auto each_edge = [&](const auto& f) {
      for (int32_t x = 0; x < inside_.begin; ++x) f(x);
      for (int32_t x = inside_.end; x < p_.x.out; ++x) f(x);
    };
    for (int32_t fy = 0; fy < p_.y.filter; ++fy) {
      for (int32_t fx = 0; fx < (by_rows_ ? 1 : p_.x.filter); ++fx) {
        for (int32_t y = rows.begin; y < rows.end; ++y, a += p_.x.out) {
          const float* const row = in.padded(static_cast<int32_t>(p_.y.origin(y)) + fy * p_.y.dilation);
          each_edge([&](int32_t x) {
            const int64_t first = p_.x.origin(x) + int64_t{fx} * p_.x.dilation;
            if (!by_rows_) {
              if (first < 0 || first >= p_.x.in) a[x] = in.zeros;
              return;
            }
            const auto begin = static_cast<int32_t>(std::clamp<int64_t>(-first, 0, p_.x.filter));
            const auto end = static_cast<int32_t>(std::clamp<int64_t>(p_.x.in - first, begin, p_.x.filter));
            float* const to = copies;
            copies += window_floats();
            std::fill(to, to + ptrdiff_t{begin} * p_.depth, 0.0f);
            if (begin < end) {
              std::memcpy(to + ptrdiff_t{begin} * p_.depth, row + (first + begin) * in.pixel,
                          at(end - begin) * at(p_.depth) * sizeof(float));
            }
            std::fill(to + ptrdiff_t{end} * p_.depth, to + window_floats(), 0.0f);
            a[x] = to;
          });
        }
      }
    }
  }

  ConvStageParams p_;
  const GemmKernels& kernels_;
  bool pointwise_, by_rows_;
  int32_t segments_;
  int32_t piece_ = 0;  // see GemmCall
  Span inside_;        // outputs whose windows reach no further than the rows; all of them for pointwise convolutions
  std::vector<Matrix> groups_;
};

class WinogradConv final : public Stage {
 public:
  explicit WinogradConv(const ConvStageParams& params) : p_(params), kernels_(winograd_kernels()) {
    layout_ = kernels_.layout(p_.depth, p_.outputs);
    across_ = (p_.x.out + 3) / 4;
    chunk_ = std::max(winograd_tiles(layout_, caches().l2), 1);
  }

  bool pack() {
    WeightsKey key("winograd");
    key.add(layout_.product.lanes).add(p_.depth).add(p_.outputs).add(p_.filter.half);
    key.add(p_.filter.data, at(filter_elements(p_)) * (p_.filter.half ? 2 : 4));
    weights_ = packed_weights(key, layout_.floats,
                              [&](float* to) { kernels_.pack(layout_, p_.filter.data, p_.filter.half, to); });
    return weights_ != nullptr;
  }

  int32_t grain() const override { return 4; }
  Span needs(size_t input, Span rows) const override {
    if (input != 0) return rows;
    const auto begin = static_cast<int32_t>(p_.y.origin(rows.begin));
    return Span{begin, begin + (rows.size() + 3) / 4 * 4 + 2};
  }
  int32_t wants_left(size_t input) const override { return input == 0 ? p_.x.pad_before : 0; }
  int32_t wants_right(size_t input) const override {
    return input == 0 ? std::max(4 * across_ + 2 - p_.x.pad_before - p_.x.in, 0) : 0;
  }
  bool reads_zeros() const override { return true; }
  size_t weight_bytes() const override { return layout_.floats * sizeof(float); }
  double work(const Image& output) const override { return static_cast<double>(output.row()) * 9 * p_.depth / 3; }
  size_t scratch_bytes(int32_t rows) const override {
    const int32_t tiles = std::min((rows + 3) / 4 * across_, chunk_);
    return aligned(36 * at(tiles) * at(p_.depth) * sizeof(float)) + 36 * at(tiles) * at(p_.outputs) * sizeof(float);
  }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void* scratch) const override {
    const int32_t down = (rows.size() + 3) / 4;
    const Span tiles = share.of(Span{0, down * across_});
    const int32_t most = std::min(down * across_, chunk_);
    auto* const transformed = static_cast<float*>(scratch);
    auto* const products =
        reinterpret_cast<float*>(static_cast<char*>(scratch) + aligned(36 * at(most) * at(p_.depth) * sizeof(float)));
    const auto panels = static_cast<int32_t>(layout_.product.panels.size());
    // Chunks of nearly equal size.
    const int32_t chunks = (tiles.size() + chunk_ - 1) / chunk_;
    for (int32_t i = 0; i < chunks; ++i) {
      const Span chunk = Share{i, chunks}.of(tiles);
      each_row(chunk, [&](int32_t row, Span across, int32_t first) {
        WinogradRow from;
        from.layout = &layout_;
        from.weights = weights_->data();
        from.pixel = inputs[0].pixel;
        const auto top = static_cast<int32_t>(p_.y.origin(rows.begin + 4 * row));
        const ptrdiff_t left = (ptrdiff_t{4} * across.begin - p_.x.pad_before) * inputs[0].pixel;
        for (int32_t r = 0; r < 6; ++r) from.rows[r] = inputs[0].padded(top + r) + left;
        kernels_.input(from, across.size(), transformed, chunk.size(), first);
      });
      kernels_.multiply(layout_, weights_->data(), transformed, chunk.size(), products, 0, panels);
      each_row(chunk, [&](int32_t row, Span across, int32_t first) {
        WinogradOutput to;
        to.pixel = outputs[0].pixel;
        to.columns = std::min(4 * across.size(), p_.x.out - 4 * across.begin);
        to.bias = p_.filter.bias;
        to.epilogue = registers(p_.epilogue);
        for (int32_t r = 0; r < 4; ++r) {
          const int32_t y = rows.begin + 4 * row + r;
          if (y >= rows.end) break;
          to.rows[r] = outputs[0].at(y) + ptrdiff_t{4} * across.begin * outputs[0].pixel;
          if (p_.epilogue.residual) {
            to.residual[r] = inputs[1].at(y) + ptrdiff_t{4} * across.begin * inputs[1].pixel;
          }
        }
        kernels_.output(layout_, products, chunk.size(), first, across.size(), to);
      });
    }
  }

 private:
  // Calls f(row of tiles, its tiles, how many of the chunk come before) for each row that a chunk of tiles has part in.
  template <typename F>
  void each_row(Span chunk, const F& f) const {
    for (int32_t tile = chunk.begin; tile < chunk.end;) {
      const int32_t row = tile / across_, begin = tile % across_;
      const int32_t end = std::min(across_, begin + chunk.end - tile);
      f(row, Span{begin, end}, tile - chunk.begin);
      tile += end - begin;
    }
  }

  ConvStageParams p_;
  const WinogradKernels& kernels_;
  WinogradLayout layout_;
  std::shared_ptr<const Weights> weights_;
  int32_t across_ = 0;  // tiles in a row
  int32_t chunk_ = 1;   // tiles that are multiplied together
};

// Outputs whose distance from the first tap is the same in units of the stride meet the same taps: for each of these
// phases the transposed convolution is a plain one with a part of the filter.
class TransposeConv final : public Stage {
 public:
  explicit TransposeConv(const ConvStageParams& params) : p_(params), kernels_(gemm_kernels()) {}

  bool pack() {
    for (int32_t py = 0; py < p_.y.stride; ++py) {
      for (int32_t px = 0; px < p_.x.stride; ++px) {
        phases_.emplace_back();
        Phase& phase = phases_.back();
        for (int32_t fy = py; fy < p_.y.filter; fy += p_.y.stride) phase.rows.push_back(fy);
        for (int32_t fx = px; fx < p_.x.filter; fx += p_.x.stride) phase.columns.push_back(fx);
        most_taps_ = std::max(most_taps_, static_cast<int32_t>(phase.rows.size() * phase.columns.size()));
        if (!pack(&phase)) return false;
      }
    }
    return true;
  }

  Span needs(size_t input, Span rows) const override {
    if (input != 0) return rows;
    // Output y meets the inputs whose window, from input * stride - pad on, holds it.
    const int32_t first = rows.begin + p_.y.pad_before - (p_.y.filter - 1);
    const int32_t begin = first <= 0 ? 0 : (first + p_.y.stride - 1) / p_.y.stride;
    return Span{begin, (rows.end - 1 + p_.y.pad_before) / p_.y.stride + 1};
  }
  bool reads_zeros() const override { return true; }
  size_t weight_bytes() const override { return at(filter_elements(p_)) * sizeof(float); }
  double work(const Image& output) const override {
    return static_cast<double>(output.row()) * p_.y.filter * p_.x.filter * p_.depth / (p_.y.stride * p_.x.stride);
  }
  size_t scratch_bytes(int32_t rows) const override {
    return at(rows) * at(p_.x.in) * at(most_taps_ + 2) * sizeof(void*);
  }

  void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void* scratch) const override {
    rows = share.of(rows);
    if (rows.size() == 0) return;
    const Rows &in = inputs[0], &out = outputs[0];
    for (int32_t py = 0; py < p_.y.stride; ++py) {
      for (int32_t px = 0; px < p_.x.stride; ++px) {
        const Phase& phase = phases_[at(py * p_.x.stride + px)];
        // Rows and columns of the output with this phase.
        const int32_t y0 = first_of_phase(rows.begin + p_.y.pad_before, py, p_.y.stride) - p_.y.pad_before;
        const int32_t x0 = first_of_phase(p_.x.pad_before, px, p_.x.stride) - p_.x.pad_before;
        const int32_t down = y0 < rows.end ? (rows.end - 1 - y0) / p_.y.stride + 1 : 0;
        const int32_t across = x0 < p_.x.in ? (p_.x.in - 1 - x0) / p_.x.stride + 1 : 0;
        const int32_t count = down * across;
        if (count == 0) continue;
        auto** a = static_cast<const float**>(scratch);
        auto** const c = behind(scratch, at(count) * phase.rows.size() * phase.columns.size());
        for (int32_t fy : phase.rows) {
          for (int32_t fx : phase.columns) {
            for (int32_t i = 0; i < down; ++i) {
              const int32_t iy = (y0 + i * p_.y.stride + p_.y.pad_before - fy) / p_.y.stride;
              const bool inside_y = y0 + i * p_.y.stride + p_.y.pad_before >= fy && iy < p_.y.out;
              const float* row = inside_y ? in.at(iy) : in.zeros;
              for (int32_t j = 0; j < across; ++j) {
                const int32_t from = x0 + j * p_.x.stride + p_.x.pad_before - fx;
                const bool inside = inside_y && from >= 0 && from / p_.x.stride < p_.x.out;
                *a++ = inside ? row + from / p_.x.stride * in.pixel : in.zeros;
              }
            }
          }
        }
        size_t m = 0;
        for (int32_t i = 0; i < down; ++i) {
          float* to = out.at(y0 + i * p_.y.stride) + x0 * out.pixel;
          for (int32_t j = 0; j < across; ++j, to += p_.x.stride * out.pixel) c[m++] = to;
        }
        GemmCall call;
        call.epilogue = registers(p_.epilogue);
        if (p_.epilogue.residual) {
          auto** const r = const_cast<const float**>(c + count);
          m = 0;
          for (int32_t i = 0; i < down; ++i) {
            const float* from = inputs[1].at(y0 + i * p_.y.stride) + x0 * inputs[1].pixel;
            for (int32_t j = 0; j < across; ++j, from += p_.x.stride * inputs[1].pixel) r[m++] = from;
          }
          call.epilogue.residual = r;
        }
        call.a = static_cast<const float**>(scratch);
        call.c = c;
        call.rows = count;
        call.segments = static_cast<int32_t>(phase.rows.size() * phase.columns.size());
        call.segment_length = call.segments > 0 ? p_.depth : 0;
        call.layout = &phase.matrix.layout;
        call.weights = phase.matrix.weights->data();
        call.last_panel = static_cast<int32_t>(phase.matrix.layout.panels.size());
        kernels_.run(call);
      }
    }
  }

 private:
  struct Phase {
    std::vector<int32_t> rows, columns;  // taps
    Matrix matrix;
  };

  static int32_t first_of_phase(int32_t from, int32_t phase, int32_t stride) {
    const int32_t over = from % stride;
    return from + (phase - over + stride) % stride;
  }

  bool pack(Phase* phase) const {
    const size_t taps = phase->rows.size() * phase->columns.size();
    const auto depth = static_cast<int32_t>(taps) * p_.depth;
    const size_t size = p_.filter.half ? 2 : 4, piece = at(p_.depth) * size;
    // The taps of the phase, one after the other for each output channel.
    std::vector<char> part(at(p_.outputs) * taps * piece);
    char* to = part.data();
    for (int32_t n = 0; n < p_.outputs; ++n) {
      for (int32_t fy : phase->rows) {
        for (int32_t fx : phase->columns) {
          std::memcpy(to, element(p_.filter, ((int64_t{n} * p_.y.filter + fy) * p_.x.filter + fx) * p_.depth), piece);
          to += piece;
        }
      }
    }
    GemmWeights weights;
    weights.data = part.data();
    weights.half = p_.filter.half;
    weights.depth_stride = 1;
    weights.column_stride = depth;
    weights.bias = p_.filter.bias;
    phase->matrix.layout = kernels_.layout(depth, p_.outputs);
    WeightsKey key("gemm");
    key.add(phase->matrix.layout.lanes).add(depth).add(p_.outputs).add(weights.half);
    key.add(part.data(), part.size()).add(weights.bias, at(p_.outputs) * sizeof(float));
    phase->matrix.weights = packed_weights(key, phase->matrix.layout.floats,
                                           [&](float* out) { kernels_.pack(phase->matrix.layout, weights, out); });
    return phase->matrix.weights != nullptr;
  }

  ConvStageParams p_;
  const GemmKernels& kernels_;
  std::vector<Phase> phases_;
  int32_t most_taps_ = 0;
};

template <typename S>
std::unique_ptr<Stage> packed(const ConvStageParams& params) {
  auto stage = std::make_unique<S>(params);
  if (!stage->pack()) return nullptr;
  return stage;
}

}  // namespace

std::unique_ptr<Stage> make_conv_stage(const ConvStageParams& params) { return packed<Conv>(params); }

std::unique_ptr<Stage> make_winograd_stage(const ConvStageParams& p) {
  const bool applies = p.y.filter == 3 && p.x.filter == 3 && p.y.stride == 1 && p.x.stride == 1 && p.y.dilation == 1 &&
                       p.x.dilation == 1 && p.groups == 1;
  if (!applies || !winograd_pays(p.depth, p.outputs, p.y.out, p.x.out)) return nullptr;
  return packed<WinogradConv>(p);
}

std::unique_ptr<Stage> make_transpose_conv_stage(const ConvStageParams& params) {
  return packed<TransposeConv>(params);
}

}  // namespace litefuse
