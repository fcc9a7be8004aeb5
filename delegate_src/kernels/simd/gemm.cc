#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/gemm.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/simd/gemm.h"
#include "kernels/simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr int kVectorLanes = static_cast<int>(hn::MaxLanes(D()));
// NEON multiplies by one lane of a register, so that four elements of a row of A come with one load.
constexpr bool kByLane = HWY_ARCH_ARM_A64 && kVectorLanes == 4;

// Panels are two vectors wide. If the number of vectors is odd, one panel is wider, where the registers hold a tile of
// it that keeps the multipliers busy, or else narrower.
constexpr int kOddPanel = kVectorLanes >= 8 ? 3 : 1;

// The rows of the largest tile of a panel. A tile needs 8 sums at least to hide the latency of a multiply-add (4 cycles
// on two pipes), should load little for each of them, and has to leave registers for the operands.
constexpr int tile_rows(int vectors) {
  if (kVectorLanes == 16) return vectors == 3 ? 8 : 12;
  if (kVectorLanes == 8) return vectors == 3 ? 4 : vectors == 2 ? 6 : 8;
  if (kByLane) return 8;
  if (kVectorLanes == 1) return 2;  // not meant to be fast
  return vectors == 1 ? 8 : 4;
}

// Weights of this size stay in the first cache together with a few rows of A and C, and the rows are walked in blocks of
// kRowBlock, each through all panels: then rows of A and C are touched once.
constexpr size_t kSmallWeights = 16 * 1024;
constexpr int kRowBlock = kVectorLanes >= 8 ? 24 : 48;

struct Strip {
  const float* const* a = nullptr;  // the pointers of its first row; those of the next segment are a_segment further
  ptrdiff_t a_segment = 0;
  ptrdiff_t a_offset = 0;
  int32_t segments = 0;
  ptrdiff_t segment_length = 0;
  const float* weights = nullptr;  // of the panel, beginning with the bias
  size_t panel_floats = 0;         // from one panel to the next
  float* const* c = nullptr;
  const float* const* residual = nullptr;
  ptrdiff_t offset = 0;  // of the first column, for c and residual
  // Where only a piece of the depth is computed: how many floats of the panel come before it, and the sums.
  size_t skip = 0;
  float* sums = nullptr;
  ptrdiff_t sums_row = 0;
  bool begins = true, ends = true;
  // Weights that will be needed next, and may be far: what is fetched while this panel is computed.
  const float* next = nullptr;
  const float* next_end = nullptr;
  const float* slopes = nullptr;
  int32_t columns = 0;  // that are stored
  bool clamp = false;
  bool residual_clamp = false;
  float min = 0, max = 0, residual_min = 0, residual_max = 0;
};

void advance(int32_t rows, Strip* strip) {
  strip->a += rows;
  strip->c += rows;
  if (strip->residual != nullptr) strip->residual += rows;
  if (strip->sums != nullptr) strip->sums += rows * strip->sums_row;
}

// Loads `count` floats, of which there may be none, or more than a vector.
HWY_INLINE V load_some(const float* from, int count) {
  if (count >= kVectorLanes) return hn::LoadU(D(), from);
  HWY_ALIGN float buffer[kVectorLanes] = {};
  for (int i = 0; i < count; ++i) buffer[i] = from[i];
  return hn::Load(D(), buffer);
}

HWY_INLINE V prelu(V slope, V x) { return hn::IfThenElse(hn::Lt(x, hn::Zero(D())), hn::Mul(x, slope), x); }

// The epilogue of a tile whose last columns do not exist: the sums come through memory, which keeps the tiles' own code
// short and is fast enough for what happens once in a row.
HWY_NOINLINE void finish_partial(const Strip& t, const float* sums, float* const* c, const float* const* residual,
                                 int rows, int vectors) {
  const D d;
  const V min = hn::Set(d, t.min);
  const V max = hn::Set(d, t.max);
  const V residual_min = hn::Set(d, t.residual_min);
  const V residual_max = hn::Set(d, t.residual_max);
  for (int j = 0; j < vectors; ++j) {
    const int first = j * kVectorLanes;
    const int count = t.columns - first;
    if (count <= 0) return;
    const V slope = t.slopes != nullptr ? load_some(t.slopes + first, count) : hn::Zero(d);
    for (int i = 0; i < rows; ++i) {
      V x = hn::Load(d, sums + (i * vectors + j) * kVectorLanes);
      x = t.slopes != nullptr ? prelu(slope, x) : clamp(x, min, max);
      if (residual != nullptr) {
        x = hn::Add(x, load_some(residual[i] + t.offset + first, count));
        x = clamp(x, residual_min, residual_max);
      }
      float* to = c[i] + t.offset + first;
      if (count >= kVectorLanes) {
        hn::StoreU(x, d, to);
      } else {
        store_part(x, d, count, to);
      }
    }
  }
}

// What becomes of sums before they are stored: the values of a strip's epilogue, which stay in registers or nearby.
struct Finish {
  explicit Finish(const Strip& strip)
      : clamps(strip.clamp),
        clamps_residual(strip.residual_clamp),
        min(hn::Set(D(), strip.min)),
        max(hn::Set(D(), strip.max)),
        residual_min(hn::Set(D(), strip.residual_min)),
        residual_max(hn::Set(D(), strip.residual_max)) {}
  const bool clamps, clamps_residual;
  const V min, max, residual_min, residual_max;
};

// The epilogue of a tile. Slopes are those of its columns; of the rows that are added, `offset` is the first element.
template <int kRows, int kSums>
HWY_INLINE void finish(const Finish& how, const float* slopes, const float* const* residual, ptrdiff_t offset,
                       V (&sum)[kRows][kSums]) {
  if (how.clamps) {
    HWY_UNROLL(16)
    for (int i = 0; i < kRows; ++i) {
      HWY_UNROLL(16)
      for (int j = 0; j < kSums; ++j) sum[i][j] = clamp(sum[i][j], how.min, how.max);
    }
  } else if (slopes != nullptr) {
    HWY_UNROLL(16)
    for (int j = 0; j < kSums; ++j) {
      const V slope = hn::LoadU(D(), slopes + j * kVectorLanes);
      HWY_UNROLL(16)
      for (int i = 0; i < kRows; ++i) sum[i][j] = prelu(slope, sum[i][j]);
    }
  }
  if (residual == nullptr) return;
  HWY_UNROLL(16)
  for (int i = 0; i < kRows; ++i) {
    const float* row = residual[i] + offset;
    HWY_UNROLL(16)
    for (int j = 0; j < kSums; ++j) sum[i][j] = hn::Add(sum[i][j], hn::LoadU(D(), row + j * kVectorLanes));
  }
  if (!how.clamps_residual) return;
  HWY_UNROLL(16)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(16)
    for (int j = 0; j < kSums; ++j) sum[i][j] = clamp(sum[i][j], how.residual_min, how.residual_max);
  }
}

// Loads a row of each panel: of B, or the bias before it.
template <int kSums, int kPanels>
HWY_INLINE void next_row(const float* (&b)[kPanels], V (&row)[kSums]) {
  constexpr int kVectors = kSums / kPanels;
  HWY_UNROLL(16)
  for (int j = 0; j < kSums; ++j) row[j] = hn::Load(D(), b[j / kVectors] + j % kVectors * kVectorLanes);
  HWY_UNROLL(16)
  for (int p = 0; p < kPanels; ++p) b[p] += kVectors * kVectorLanes;
}

// The sums of a tile begin with the bias.
template <int kRows, int kSums, int kPanels>
HWY_INLINE void begin(const float* (&b)[kPanels], V (&sum)[kRows][kSums]) {
  V bias[kSums];
  next_row(b, bias);
  HWY_UNROLL(16)
  for (int j = 0; j < kSums; ++j) {
    HWY_UNROLL(16)
    for (int i = 0; i < kRows; ++i) sum[i][j] = bias[j];
  }
}

// One row of B: multiplies lane kLane of each a[i] with it.
template <int kLane, int kRows, int kSums, int kPanels>
HWY_INLINE void multiply_lane(const V (&a)[kRows], const float* (&b)[kPanels], V (&sum)[kRows][kSums]) {
  V row[kSums];
  next_row(b, row);
  HWY_UNROLL(16)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(16)
    for (int j = 0; j < kSums; ++j) sum[i][j] = hn::MulAdd(hn::Broadcast<kLane>(a[i]), row[j], sum[i][j]);
  }
}

// Four rows of B: each is multiplied by one lane of what a vector of each row of A has.
template <int kRows, int kSums, int kPanels>
HWY_INLINE void multiply_four(const float* const (&a)[kRows], ptrdiff_t k, const float* (&b)[kPanels],
                              V (&sum)[kRows][kSums]) {
  V four[kRows];
  HWY_UNROLL(16)
  for (int i = 0; i < kRows; ++i) four[i] = hn::LoadU(D(), a[i] + k);
  multiply_lane<0>(four, b, sum);
  multiply_lane<1>(four, b, sum);
  multiply_lane<2>(four, b, sum);
  multiply_lane<3>(four, b, sum);
}

// One row of B: multiplies element k of each row of A with it.
template <int kRows, int kSums, int kPanels>
HWY_INLINE void multiply(const float* const (&a)[kRows], ptrdiff_t k, const float* (&b)[kPanels],
                         V (&sum)[kRows][kSums]) {
  V row[kSums];
  next_row(b, row);
  HWY_UNROLL(16)
  for (int i = 0; i < kRows; ++i) {
    const V x = hn::Set(D(), a[i][k]);
    HWY_UNROLL(16)
    for (int j = 0; j < kSums; ++j) sum[i][j] = hn::MulAdd(x, row[j], sum[i][j]);
  }
}

// Fetches some lines of what will be needed next; returns what comes behind them.
HWY_INLINE const float* fetch_ahead(const float* next, const float* end, int32_t lines) {
  constexpr ptrdiff_t kLine = 64 / sizeof(float);
  for (; lines > 0 && next < end; --lines, next += kLine) __builtin_prefetch(next, 0, 2);
  return next;
}

// `tiles` tiles below one another, each of kRows rows of C and kPanels panels next to each other, which are kVectors
// vectors wide each.
template <int kRows, int kVectors, int kPanels>
HWY_NOINLINE void run_tiles(const Strip& strip, int32_t tiles) {
  constexpr int kSums = kVectors * kPanels;
  const D d;
  // Copies, since the compiler has to take the stores below for changes of *strip.
  const float* const* a_rows = strip.a;
  float* const* c_rows = strip.c;
  const float* const* residual = strip.residual;
  const float* const slopes = strip.slopes;
  const ptrdiff_t a_segment = strip.a_segment;
  const ptrdiff_t a_offset = strip.a_offset;
  const ptrdiff_t offset = strip.offset;
  const ptrdiff_t length = strip.segment_length;
  const int32_t segments = strip.segments;
  const bool whole = strip.columns == kSums * kVectorLanes;
  const Finish how(strip);
  const float* const weights = strip.weights;
  const size_t skip = strip.skip;
  float* sums = strip.sums;
  const bool begins = strip.begins, ends = strip.ends;
  // So many lines of it with every four rows of B that it is there when the tiles are done.
  const float* next = strip.next;
  const float* const next_end = strip.next_end;
  const int32_t lines = (kSums * kVectorLanes / 4 + tiles - 1) / std::max(tiles, 1);

  for (; tiles > 0; --tiles) {
    const float* b[kPanels];
    HWY_UNROLL(16)
    for (int p = 0; p < kPanels; ++p) b[p] = weights + static_cast<size_t>(p) * strip.panel_floats;
    V sum[kRows][kSums];
    begin(b, sum);
    HWY_UNROLL(16)
    for (int p = 0; p < kPanels; ++p) b[p] += skip;
    if (HWY_UNLIKELY(!begins)) {
      HWY_UNROLL(16)
      for (int i = 0; i < kRows; ++i) {
        HWY_UNROLL(16)
        for (int j = 0; j < kSums; ++j) sum[i][j] = hn::Load(d, sums + (i * kSums + j) * kVectorLanes);
      }
    }

    if (residual != nullptr && ends) {
      HWY_UNROLL(16)
      for (int i = 0; i < kRows; ++i) {
        const float* row = residual[i] + offset;
        hwy::Prefetch(row);
        hwy::Prefetch(row + strip.columns - 1);
      }
    }

    const float* const* rows = a_rows;
    for (int32_t s = 0; s < segments; ++s, rows += a_segment) {
      const float* a[kRows];
      HWY_UNROLL(16)
      for (int i = 0; i < kRows; ++i) a[i] = rows[i] + a_offset;
      ptrdiff_t k = 0;
      if constexpr (kByLane) {
        for (; next < next_end && k + 4 <= length; k += 4) {
          multiply_four(a, k, b, sum);
          next = fetch_ahead(next, next_end, lines);
        }
        for (; k + 4 <= length; k += 4) multiply_four(a, k, b, sum);
      } else {
        // Where nothing is fetched, one loop: GCC keeps more in registers than with a test in it.
        for (; next < next_end && k + 8 <= length; k += 8) {
          HWY_UNROLL(2)
          for (ptrdiff_t u = 0; u < 8; ++u) multiply(a, k + u, b, sum);
          next = fetch_ahead(next, next_end, 2 * lines);
        }
        HWY_UNROLL(2)
        for (; k < length; ++k) multiply(a, k, b, sum);
      }
      for (; k < length; ++k) multiply(a, k, b, sum);
    }

    if (HWY_UNLIKELY(!ends)) {
      HWY_UNROLL(16)
      for (int i = 0; i < kRows; ++i) {
        HWY_UNROLL(16)
        for (int j = 0; j < kSums; ++j) hn::Store(sum[i][j], d, sums + (i * kSums + j) * kVectorLanes);
      }
    } else if (HWY_UNLIKELY(!whole)) {
      HWY_ALIGN float buffer[kRows * kSums * kVectorLanes];
      HWY_UNROLL(16)
      for (int i = 0; i < kRows; ++i) {
        HWY_UNROLL(16)
        for (int j = 0; j < kSums; ++j) hn::Store(sum[i][j], d, buffer + (i * kSums + j) * kVectorLanes);
      }
      finish_partial(strip, buffer, c_rows, residual, kRows, kSums);
    } else {
      finish(how, slopes, residual, offset, sum);
      HWY_UNROLL(16)
      for (int i = 0; i < kRows; ++i) {
        float* row = c_rows[i] + offset;
        HWY_UNROLL(16)
        for (int j = 0; j < kSums; ++j) hn::StoreU(sum[i][j], d, row + j * kVectorLanes);
      }
    }
    a_rows += kRows;
    c_rows += kRows;
    if (residual != nullptr) residual += kRows;
    if (sums != nullptr) sums += kRows * kSums * kVectorLanes;
  }
}

// `tiles` tiles of kRows rows below one another, each through `panels` panels that lie next to each other, all columns of
// which exist. The weights stay in the first cache, each row of A is read from afar once, and what a tile needs to know
// of its rows stays in registers for all panels, which counts where the depth is small.
template <int kRows>
HWY_NOINLINE void run_across(const Strip& strip, int32_t tiles, int32_t panels) {
  const D d;
  constexpr int kVectors = 2;
  constexpr ptrdiff_t kWidth = kVectors * kVectorLanes;
  // Copies, since the compiler has to take the stores below for changes of *strip.
  const float* const* a_rows = strip.a;
  float* const* c_rows = strip.c;
  const float* const* residual = strip.residual;
  const float* const slopes = strip.slopes;
  const ptrdiff_t a_offset = strip.a_offset;
  const ptrdiff_t offset = strip.offset;
  const ptrdiff_t length = strip.segment_length;
  const float* const weights = strip.weights;
  const Finish how(strip);

  for (; tiles > 0; --tiles, a_rows += kRows, c_rows += kRows) {
    const float* a[kRows];
    float* c[kRows];
    HWY_UNROLL(16)
    for (int i = 0; i < kRows; ++i) {
      a[i] = a_rows[i] + a_offset;
      c[i] = c_rows[i] + offset;
    }
    const float* b[1] = {weights};
    for (ptrdiff_t column = 0; column < panels * kWidth; column += kWidth) {
      V sum[kRows][kVectors];
      begin(b, sum);
      ptrdiff_t k = 0;
      if constexpr (kByLane) {
        for (; k + 4 <= length; k += 4) multiply_four(a, k, b, sum);
        for (; k < length; ++k) multiply(a, k, b, sum);
      } else {
        HWY_UNROLL(2)
        for (; k < length; ++k) multiply(a, k, b, sum);
      }
      finish(how, slopes == nullptr ? nullptr : slopes + column, residual, offset + column, sum);
      HWY_UNROLL(16)
      for (int i = 0; i < kRows; ++i) {
        HWY_UNROLL(16)
        for (int j = 0; j < kVectors; ++j) hn::StoreU(sum[i][j], d, c[i] + j * kVectorLanes);
        c[i] += kWidth;
      }
    }
    if (residual != nullptr) residual += kRows;
  }
}

using TileFunction = void (*)(const Strip&, int32_t);
using AcrossFunction = void (*)(const Strip&, int32_t, int32_t);

template <int kVectors, size_t... kRows>
TileFunction tile_function(int rows, std::index_sequence<kRows...>) {
  static constexpr TileFunction kFunctions[] = {run_tiles<static_cast<int>(kRows) + 1, kVectors, 1>...};
  return kFunctions[rows - 1];
}

template <size_t... kRows>
AcrossFunction across_function(int rows, std::index_sequence<kRows...>) {
  static constexpr AcrossFunction kFunctions[] = {run_across<static_cast<int>(kRows) + 1>...};
  return kFunctions[rows - 1];
}

// Cuts `rows` rows into tiles, and calls run(rows of a tile, tiles, strip) for those that have equally many, where the
// strip begins with them. What is left of whole ones is cut into two halves, since a tile of one or two rows takes as
// long as one of three or four.
template <int kMost, class Run>
HWY_INLINE void in_tiles(const Strip& strip, int32_t rows, const Run& run) {
  int32_t tiles = rows / kMost;
  if (rows % kMost != 0 && tiles > 0) --tiles;
  if (tiles > 0) run(kMost, tiles, strip);
  int32_t rest = rows - tiles * kMost;
  if (rest == 0) return;
  Strip tail = strip;
  advance(tiles * kMost, &tail);
  if (tiles > 0) tail.next = tail.next_end;
  if (rest > kMost) {
    const int32_t half = (rest + 1) / 2;
    run(half, 1, tail);
    advance(half, &tail);
    rest -= half;
  }
  run(rest, 1, tail);
}

template <int kVectors>
void run_panel(const Strip& strip, int32_t rows) {
  constexpr int kMost = tile_rows(kVectors);
  constexpr auto kIndices = std::make_index_sequence<static_cast<size_t>(kMost)>();
  in_tiles<kMost>(strip, rows, [&](int32_t tile, int32_t tiles, const Strip& part) {
    tile_function<kVectors>(tile, kIndices)(part, tiles);
  });
}

void run_panels(const Strip& strip, int32_t rows, int32_t panels) {
  constexpr int kMost = tile_rows(2);
  constexpr auto kIndices = std::make_index_sequence<static_cast<size_t>(kMost)>();
  in_tiles<kMost>(strip, rows, [&](int32_t tile, int32_t tiles, const Strip& part) {
    across_function(tile, kIndices)(part, tiles, panels);
  });
}

void run_panel_of(int32_t vectors, const Strip& strip, int32_t rows) {
  if (vectors == 2) {
    run_panel<2>(strip, rows);
  } else if (vectors == kOddPanel) {
    run_panel<kOddPanel>(strip, rows);
  } else {
    run_panel<1>(strip, rows);  // all of a narrow matrix
  }
}

// How many panels are computed together if there are so few rows that one panel would not give enough sums.
constexpr int panels_together(int rows) { return rows == 1 ? 4 : 2; }

TileFunction few_rows_function(int32_t rows) {
  switch (rows) {
    case 1:
      return run_tiles<1, 2, panels_together(1)>;
    case 2:
      return run_tiles<2, 2, panels_together(2)>;
    default:
      return nullptr;  // three rows of two panels would need 17 registers
  }
}

// Where `panel` puts its tile, and how many of its columns there are.
void place(const GemmCall& call, const Panel& panel, int panels, Strip* strip) {
  strip->weights = call.weights + panel.offset;
  strip->offset = call.c_offset + panel.first;
  strip->slopes = call.epilogue.slopes == nullptr ? nullptr : call.epilogue.slopes + panel.first;
  strip->columns = std::min(panels * panel.vectors * kVectorLanes, call.layout->columns - panel.first);
}

// Rows that go through all panels before the next ones, so that they are read from afar once. Where the second cache
// holds the weights, which each block reads again, there are so many that a quarter of it holds them.
int32_t row_block(const GemmCall& call, size_t weights) {
  if (weights <= kSmallWeights) return kRowBlock;
  const size_t half = caches().l2 / 2, row = static_cast<size_t>(call.layout->depth) * sizeof(float);
  if (weights > half || static_cast<size_t>(call.rows) * row <= half) return call.rows;
  return std::max(static_cast<int32_t>(half / 2 / row) / kRowBlock * kRowBlock, kRowBlock);
}

size_t panel_floats(const GemmLayout& layout, const Panel& panel) {
  return static_cast<size_t>(panel.vectors * kVectorLanes) * static_cast<size_t>(layout.depth + 1);
}

// How many panels from `panel` on can and should be computed for one tile after the other.
int32_t panels_across(const GemmCall& call, const Panel* panel, const Panel* end) {
  if (call.segments != 1) return 0;
  const size_t most = kSmallWeights / sizeof(float) / panel_floats(*call.layout, *panel);
  int32_t count = 0;
  for (; panel != end && static_cast<size_t>(count) < most; ++panel, ++count) {
    if (panel->vectors != 2 || panel->first + 2 * kVectorLanes > call.layout->columns) break;
  }
  return count;
}

// All panels for one piece of the depth after the other.
void run_pieces(const GemmCall& call, Strip strip) {
  const GemmLayout& layout = *call.layout;
  strip.segments = 1;
  for (int32_t s = 0; s < call.segments; ++s) {
    strip.a = call.a + ptrdiff_t{s} * call.rows;
    for (int32_t k = 0; k < call.segment_length; k += call.piece) {
      const int32_t before = s * call.segment_length + k;
      strip.a_offset = call.a_offset + k;
      strip.segment_length = std::min(call.piece, call.segment_length - k);
      strip.begins = before == 0;
      strip.ends = before + strip.segment_length == layout.depth;
      for (int32_t i = call.first_panel; i < call.last_panel; ++i) {
        const Panel& panel = layout.panels[static_cast<size_t>(i)];
        place(call, panel, 1, &strip);
        strip.sums_row = panel.vectors * kVectorLanes;
        strip.sums = call.sums + ptrdiff_t{panel.first} * call.rows;
        strip.skip = static_cast<size_t>(before) * static_cast<size_t>(strip.sums_row);
        // What comes next is the same piece of the next panel, or the next piece of the first one.
        const bool last = i + 1 == call.last_panel;
        const Panel& following = layout.panels[static_cast<size_t>(last ? call.first_panel : i + 1)];
        const auto width = static_cast<size_t>(following.vectors * kVectorLanes);
        const auto from = static_cast<size_t>(before + (last ? strip.segment_length : 0));
        const size_t length =
            std::min(static_cast<size_t>(strip.segment_length), static_cast<size_t>(layout.depth) - from);
        strip.next = call.weights + following.offset + (from + 1) * width;
        strip.next_end = strip.next + length * width;
        run_panel_of(panel.vectors, strip, call.rows);
      }
    }
  }
}

void run(const GemmCall& call) {
  const GemmLayout& layout = *call.layout;
  const GemmEpilogue& epilogue = call.epilogue;
  const float infinity = GemmEpilogue::kInfinity;
  if (call.rows <= 0 || call.first_panel >= call.last_panel) return;
  Strip strip;
  strip.a = call.a;
  strip.a_segment = call.rows;
  strip.a_offset = call.a_offset;
  strip.segments = call.segments;
  strip.segment_length = call.segment_length;
  strip.c = call.c;
  strip.residual = epilogue.residual;
  strip.min = epilogue.min;
  strip.max = epilogue.max;
  strip.residual_min = epilogue.residual_min;
  strip.residual_max = epilogue.residual_max;
  strip.clamp = epilogue.slopes == nullptr && (epilogue.min != -infinity || epilogue.max != infinity);
  strip.residual_clamp = epilogue.residual_min != -infinity || epilogue.residual_max != infinity;

  const Panel* panel = layout.panels.data() + call.first_panel;
  const Panel* const end = layout.panels.data() + call.last_panel;
  if (const TileFunction few = few_rows_function(call.rows)) {
    const int together = panels_together(call.rows);
    while (panel != end) {
      if (panel->vectors == 2 && end - panel >= together && panel[together - 1].vectors == 2) {
        strip.panel_floats = panel[1].offset - panel[0].offset;
        place(call, *panel, together, &strip);
        few(strip, 1);
        panel += together;
        continue;
      }
      place(call, *panel, 1, &strip);
      run_panel_of(panel->vectors, strip, call.rows);
      ++panel;
    }
    return;
  }

  if (call.piece > 0) {
    run_pieces(call, strip);
    return;
  }
  const size_t last = call.last_panel < static_cast<int32_t>(layout.panels.size()) ? end->offset : layout.floats;
  const size_t weights = (last - panel->offset) * sizeof(float);
  const int32_t block = panel + 1 == end ? call.rows : row_block(call, weights);
  const bool far = call.cold || call.ahead != nullptr || weights > caches().l2 / 2;
  for (int32_t row = 0; row < call.rows;) {
    const int32_t rest = call.rows - row;
    const int32_t count = rest >= 2 * block ? block : rest;
    for (const Panel* p = panel; p != end; ++p) {
      place(call, *p, 1, &strip);
      if (const int32_t several = far ? 0 : panels_across(call, p, end); several > 1) {
        run_panels(strip, count, several);
        p += several - 1;
        continue;
      }
      const bool last_one = p + 1 == end;
      const float* const following = last_one ? call.ahead : call.weights;
      if (far && following != nullptr) {
        strip.next = following + (last_one ? panel : p + 1)->offset;
        strip.next_end = strip.next + panel_floats(layout, last_one ? *panel : p[1]);
      } else {
        strip.next = strip.next_end = nullptr;
      }
      run_panel_of(p->vectors, strip, count);
    }
    advance(count, &strip);
    row += count;
  }
}

GemmLayout layout(int32_t depth, int32_t columns) {
  GemmLayout layout;
  layout.depth = depth;
  layout.columns = columns;
  layout.lanes = kVectorLanes;
  int32_t vectors = (columns + kVectorLanes - 1) / kVectorLanes;
  int32_t first = 0;
  layout.panels.reserve(static_cast<size_t>(vectors / 2 + 1));
  const auto add = [&](int32_t width) {
    layout.panels.push_back({first, width, layout.floats});
    layout.floats += static_cast<size_t>(width * kVectorLanes) * static_cast<size_t>(depth + 1);
    first += width * kVectorLanes;
    vectors -= width;
  };
  if (vectors % 2 != 0 && vectors >= kOddPanel && kOddPanel == 3) add(3);
  while (vectors >= 2) add(2);
  if (vectors == 1) add(1);
  return layout;
}

// Not by the processor's instruction, which not all have, and which may take denormal numbers for zero.
HWY_INLINE float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fff;
  const float denormal = static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f;
  uint32_t bits;
  std::memcpy(&bits, &denormal, sizeof(bits));
  if (rest >= 0x400) bits = (rest << 13) + (rest >= 0x7c00 ? uint32_t{255 - 31} << 23 : uint32_t{127 - 15} << 23);
  bits |= sign;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

template <typename T>
HWY_INLINE void load_elements(const T* from, ptrdiff_t stride, int count, float* to) {
  for (int i = 0; i < count; ++i, from += stride) {
    if constexpr (sizeof(T) == sizeof(uint16_t)) {
      to[i] = float_of_half(*from);
    } else {
      to[i] = *from;
    }
  }
}

// Copies `count` elements, `stride` apart from each other, beginning with element `at`.
void load_weights(const GemmWeights& weights, ptrdiff_t at, ptrdiff_t stride, int count, float* to) {
  if (weights.half) {
    const uint16_t* from = static_cast<const uint16_t*>(weights.data) + at;
    // Loops of a known stride can use vectors.
    if (stride == 1) return load_elements(from, 1, count, to);
    return load_elements(from, stride, count, to);
  }
  const float* from = static_cast<const float*>(weights.data) + at;
  if (stride == 1) return load_elements(from, 1, count, to);
  load_elements(from, stride, count, to);
}

// One row of B after the other, of which the panel has `columns` columns.
void pack_rows(const float* from, int32_t depth, ptrdiff_t stride, int vectors, int columns, float* to) {
  const D d;
  const int whole = columns / kVectorLanes;
  for (int32_t k = 0; k < depth; ++k, from += stride) {
    for (int j = 0; j < vectors; ++j, to += kVectorLanes) {
      const int first = j * kVectorLanes;
      hn::Store(j < whole ? hn::LoadU(d, from + first) : load_some(from + first, columns - first), d, to);
    }
  }
}

// One block of each column at a time, turned by way of a buffer.
void pack_columns(const GemmWeights& weights, int32_t depth, int32_t column, int width, int columns, float* to) {
  constexpr int kMostColumns = 3 * kVectorLanes;
  constexpr int kBlock = 64;
  float buffer[kMostColumns][kBlock];
  for (int32_t first = 0; first < depth; first += kBlock) {
    const int count = std::min(kBlock, depth - first);
    for (int j = 0; j < columns; ++j) {
      load_weights(weights, first * weights.depth_stride + (column + j) * weights.column_stride, weights.depth_stride,
                   count, buffer[j]);
    }
    turn(buffer[0], columns, count, kBlock, to, width);
    to += static_cast<ptrdiff_t>(count) * width;
  }
}

void pack_panels(const GemmLayout& layout, const GemmWeights& weights, int32_t first, int32_t last, float* to) {
  for (int32_t p = first; p < last; ++p) {
    const Panel& panel = layout.panels[static_cast<size_t>(p)];
    const int width = panel.vectors * kVectorLanes;
    const int columns = std::min(width, layout.columns - panel.first);
    float* out = to + panel.offset;
    for (int j = 0; j < width; ++j) {
      out[j] = j < columns && weights.bias != nullptr ? weights.bias[panel.first + j] : 0.0f;
    }
    out += width;
    if (!weights.half && weights.column_stride == 1) {
      pack_rows(static_cast<const float*>(weights.data) + panel.first, layout.depth, weights.depth_stride,
                panel.vectors, columns, out);
      continue;
    }
    for (int32_t k = 0; k < layout.depth && columns < width; ++k)
      std::fill_n(out + k * width + columns, width - columns, 0.0f);
    if (!weights.half && weights.depth_stride == 1) {
      turn(static_cast<const float*>(weights.data) + panel.first * weights.column_stride, columns, layout.depth,
           weights.column_stride, out, width);
    } else if (weights.column_stride == 1) {
      for (int32_t k = 0; k < layout.depth; ++k) {
        load_weights(weights, k * weights.depth_stride + panel.first, 1, columns,
                     out + static_cast<ptrdiff_t>(k) * width);
      }
    } else {
      pack_columns(weights, layout.depth, panel.first, width, columns, out);
    }
  }
}

void pack(const GemmLayout& layout, const GemmWeights& weights, float* to) {
  pack_panels(layout, weights, 0, static_cast<int32_t>(layout.panels.size()), to);
}

}  // namespace

const GemmKernels* gemm_table() {
  static constexpr GemmKernels kTable = {layout, pack, pack_panels, run};
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>
#include <limits>

namespace litefuse {

HWY_EXPORT(gemm_table);

const GemmKernels& gemm_kernels() { return *HWY_DYNAMIC_DISPATCH(gemm_table)(); }

int32_t gemm_piece(int32_t rows, int32_t depth, int32_t segment_length) {
  // Shorter ones are not worth the sums, of longer ones a panel does not stay in the first cache.
  constexpr size_t kShortest = 128, kLongest = 512;
  constexpr size_t kPanel = 16;  // columns
  constexpr int32_t kFewRows = 12;
  if (rows < kFewRows) return 0;
  const auto floats = static_cast<size_t>(rows), length = static_cast<size_t>(segment_length);
  const size_t room = caches().l2 / 2 / sizeof(float);
  if ((floats + kPanel) * static_cast<size_t>(depth) <= room) return 0;
  const size_t most = std::min(room / floats, kLongest);
  if (most < kShortest || length < kShortest) return 0;
  const size_t pieces = (length + most - 1) / most;
  const auto piece = static_cast<int32_t>((length + pieces - 1) / pieces);
  return piece < depth ? piece : 0;
}

namespace {

// Panels of eight columns, the last one of four if that is enough.
GemmLayout reference_layout(int32_t depth, int32_t columns) {
  GemmLayout layout;
  layout.depth = depth;
  layout.columns = columns;
  layout.lanes = 4;
  for (int32_t first = 0; first < columns; first += 8) {
    const int32_t vectors = columns - first > 4 ? 2 : 1;
    layout.panels.push_back({first, vectors, layout.floats});
    layout.floats += static_cast<size_t>(vectors * 4) * static_cast<size_t>(depth + 1);
  }
  return layout;
}

float float_of_half(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int fraction = half & 1023;
  float size = std::ldexp(static_cast<float>(exponent == 0 ? fraction : fraction + 1024), std::max(exponent, 1) - 25);
  if (exponent == 31) {
    size = fraction == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  return half >> 15 != 0 ? -size : size;
}

void reference_pack_panels(const GemmLayout& layout, const GemmWeights& weights, int32_t first, int32_t last,
                           float* to) {
  for (int32_t p = first; p < last; ++p) {
    const Panel& panel = layout.panels[static_cast<size_t>(p)];
    const int32_t width = panel.vectors * layout.lanes;
    std::fill_n(to + panel.offset, static_cast<ptrdiff_t>(width) * (layout.depth + 1), 0.0f);
    for (int32_t j = 0; j < std::min(width, layout.columns - panel.first); ++j) {
      float* out = to + panel.offset + j;
      if (weights.bias != nullptr) *out = weights.bias[panel.first + j];
      for (int32_t k = 0; k < layout.depth; ++k) {
        const ptrdiff_t at = k * weights.depth_stride + (panel.first + j) * weights.column_stride;
        out[static_cast<ptrdiff_t>(k + 1) * width] = weights.half
                                                         ? float_of_half(static_cast<const uint16_t*>(weights.data)[at])
                                                         : static_cast<const float*>(weights.data)[at];
      }
    }
  }
}

void reference_pack(const GemmLayout& layout, const GemmWeights& weights, float* to) {
  reference_pack_panels(layout, weights, 0, static_cast<int32_t>(layout.panels.size()), to);
}

double reference_clamp(double x, float min, float max) { return x < min ? min : x > max ? max : x; }

void reference_run(const GemmCall& call) {
  const GemmLayout& layout = *call.layout;
  const GemmEpilogue& epilogue = call.epilogue;
  for (int32_t p = call.first_panel; p < call.last_panel; ++p) {
    const Panel& panel = layout.panels[static_cast<size_t>(p)];
    const int32_t width = panel.vectors * layout.lanes;
    for (int32_t m = 0; m < call.rows; ++m) {
      for (int32_t j = 0; j < std::min(width, layout.columns - panel.first); ++j) {
        const int32_t n = panel.first + j;
        const float* b = call.weights + panel.offset + j;
        double x = *b;
        for (int32_t s = 0; s < call.segments; ++s) {
          const float* a = call.a[static_cast<ptrdiff_t>(s) * call.rows + m] + call.a_offset;
          for (int32_t k = 0; k < call.segment_length; ++k) {
            b += width;
            x += static_cast<double>(a[k]) * static_cast<double>(*b);
          }
        }
        if (epilogue.slopes != nullptr) {
          x = x < 0 ? x * epilogue.slopes[n] : x;
        } else {
          x = reference_clamp(x, epilogue.min, epilogue.max);
        }
        if (epilogue.residual != nullptr) {
          x += epilogue.residual[m][call.c_offset + n];
          x = reference_clamp(x, epilogue.residual_min, epilogue.residual_max);
        }
        call.c[m][call.c_offset + n] = static_cast<float>(x);
      }
    }
  }
}

}  // namespace

const GemmKernels& gemm_reference() {
  static constexpr GemmKernels kTable = {reference_layout, reference_pack, reference_pack_panels, reference_run};
  return kTable;
}

}  // namespace litefuse
#endif  // HWY_ONCE
