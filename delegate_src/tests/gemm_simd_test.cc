// The matrix products of every instruction set against scalar code.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/simd/gemm.h"
#include "kernels/simd/gemm_cases.h"
#include "tests/simd_targets.h"

namespace litefuse {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kCanary = -12345.5f;

// Packed weights.
class Packed {
 public:
  Packed(const GemmKernels& kernels, int32_t depth, int32_t columns, const GemmWeights& weights)
      : layout(kernels.layout(depth, columns)), memory_(layout.floats + kWeightAlignment / sizeof(float), kNaN) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    const size_t skip = (kWeightAlignment - address % kWeightAlignment) % kWeightAlignment / sizeof(float);
    weights_ = memory_.data() + skip;
    kernels.pack(layout, weights, weights_);
  }
  const float* weights() const { return weights_; }

  const GemmLayout layout;

 private:
  std::vector<float> memory_;
  float* weights_ = nullptr;
};

enum class Extra { kNothing, kClamp, kPrelu, kResidual, kClampResidualClamp, kPreluResidualClamp };
constexpr Extra kExtras[] = {
    Extra::kNothing,           Extra::kClamp, Extra::kPrelu, Extra::kResidual, Extra::kClampResidualClamp,
    Extra::kPreluResidualClamp};

// A product with all of its operands, of which those that the kernels read lie at ends of pages.
class Product {
 public:
  // Rows of A and C are `gap` floats longer than they have to be.
  Product(int32_t rows, int32_t segments, int32_t segment_length, int32_t columns, int32_t gap, uint64_t seed)
      : rows_(rows),
        segments_(segments),
        segment_length_(segment_length),
        depth_(segments * segment_length),
        columns_(columns),
        a_stride_(segment_length + gap),
        c_stride_(columns + gap),
        // What follows the last row cannot be touched.
        a_(size_of(segments * rows, a_stride_, segment_length)),
        b_(static_cast<size_t>(depth_) * static_cast<size_t>(columns)),
        bias_(static_cast<size_t>(columns)),
        slopes_(static_cast<size_t>(columns)),
        residual_(size_of(rows, c_stride_, columns)),
        c_(size_of(rows, c_stride_, columns)) {
    Numbers numbers(seed);
    numbers.fill(a_);
    numbers.fill(b_);
    numbers.fill(bias_);
    numbers.fill(slopes_);
    numbers.fill(residual_);
    for (int32_t i = 0; i < segments * rows; ++i) a_rows_.push_back(a_.data() + i * a_stride_);
    for (int32_t i = 0; i < rows; ++i) {
      residual_rows_.push_back(residual_.data() + i * c_stride_);
      c_rows_.push_back(c_.data() + i * c_stride_);
    }
  }

  GemmWeights weights() const { return {b_.data(), false, 1, depth_, bias_.data()}; }

  GemmCall call(const Packed& packed, Extra extra) {
    GemmCall call;
    call.a = a_rows_.data();
    call.rows = rows_;
    call.segments = segments_;
    call.segment_length = segment_length_;
    call.layout = &packed.layout;
    call.weights = packed.weights();
    call.last_panel = static_cast<int32_t>(packed.layout.panels.size());
    call.c = c_rows_.data();
    GemmEpilogue& epilogue = call.epilogue;
    if (extra == Extra::kClamp || extra == Extra::kClampResidualClamp) {
      epilogue.min = -0.25f;
      epilogue.max = 0.5f;
    }
    if (extra == Extra::kPrelu || extra == Extra::kPreluResidualClamp) epilogue.slopes = slopes_.data();
    if (extra == Extra::kResidual || extra == Extra::kClampResidualClamp || extra == Extra::kPreluResidualClamp) {
      epilogue.residual = residual_rows_.data();
    }
    if (extra == Extra::kClampResidualClamp || extra == Extra::kPreluResidualClamp) {
      epilogue.residual_min = -0.5f;
      epilogue.residual_max = 0.75f;
    }
    return call;
  }

  // Runs on a C full of canaries, and gives all of it.
  std::vector<float> run(const GemmKernels& kernels, const GemmCall& call) {
    std::fill(c_.begin(), c_.end(), kCanary);
    kernels.run(call);
    return std::vector<float>(c_.begin(), c_.end());
  }
  std::vector<float> run(const GemmKernels& kernels, Extra extra) {
    const Packed packed(kernels, depth_, columns_, weights());
    return run(kernels, call(packed, extra));
  }

  // How far a sum in float32 can be off, for element i of C: the usual bound of a sum of `depth` products.
  double bound(size_t i) const {
    const auto row = static_cast<int32_t>(i) / c_stride_;
    const auto column = static_cast<int32_t>(i) % c_stride_;
    double sum = std::fabs(bias_[static_cast<size_t>(column)]) + 1;
    for (int32_t k = 0; k < depth_; ++k) {
      sum += std::fabs(static_cast<double>(a(row, k)) * b_[static_cast<size_t>(column * depth_ + k)]);
    }
    return sum * (depth_ + 4) * std::ldexp(1.0, -24);
  }

  float a(int32_t row, int32_t k) const {
    return a_rows_[static_cast<size_t>(k / segment_length_ * rows_ + row)][k % segment_length_];
  }

  // The sum as it is promised, bit by bit.
  float fused_sum(int32_t row, int32_t column) const {
    float sum = bias_[static_cast<size_t>(column)];
    for (int32_t k = 0; k < depth_; ++k) {
      sum = std::fma(a(row, k), b_[static_cast<size_t>(column * depth_ + k)], sum);
    }
    return sum;
  }

  int32_t rows_, segments_, segment_length_, depth_, columns_, a_stride_, c_stride_;
  Guarded a_;
  std::vector<float> b_, bias_;
  Guarded slopes_, residual_, c_;
  std::vector<const float*> a_rows_, residual_rows_;
  std::vector<float*> c_rows_;

 private:
  static size_t size_of(int32_t rows, int32_t stride, int32_t last) {
    return rows == 0 ? 0 : static_cast<size_t>((rows - 1) * stride + last);
  }
};

// Compares all of C, canaries included.
void compare(const Product& product, const std::vector<float>& expected, const std::vector<float>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (static_cast<int32_t>(i) % product.c_stride_ >= product.columns_) {
      ASSERT_EQ(actual[i], kCanary) << i;
    } else {
      ASSERT_NEAR(actual[i], expected[i], product.bound(i))
          << "row " << static_cast<int32_t>(i) / product.c_stride_ << " column "
          << static_cast<int32_t>(i) % product.c_stride_;
    }
  }
}

bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

bool fuses() {
  const std::string name = simd_name();
  return name.find("AVX") != std::string::npos || name.find("NEON") != std::string::npos;
}

void check(int32_t rows, int32_t segments, int32_t segment_length, int32_t columns, int32_t gap, Extra extra) {
  SCOPED_TRACE(testing::Message() << rows << " rows, " << segments << " x " << segment_length << ", " << columns
                                  << " columns, gap " << gap << ", extra " << static_cast<int>(extra));
  Product product(rows, segments, segment_length, columns, gap, static_cast<uint64_t>(rows * 1000 + columns));
  const std::vector<float> expected = product.run(gemm_reference(), extra);
  compare(product, expected, product.run(gemm_kernels(), extra));
}

TEST(GemmSimd, LayersOfModels) {
  for_each_target([] {
    for (const GemmCase& layer : kGemmLayers) {
      check(std::min(layer.rows, 13), layer.segments, std::min(layer.segment_length, 200), std::min(layer.columns, 200),
            0, Extra::kClamp);
    }
  });
}

TEST(GemmSimd, EveryNumberOfRows) {
  for_each_target([] {
    for (int32_t rows = 0; rows <= 50; ++rows) {
      for (const int32_t columns : {1, 8, 16, 24, 48, 70}) {
        check(rows, 1, 5, columns, rows % 3, kExtras[static_cast<size_t>(rows + columns) % std::size(kExtras)]);
      }
    }
  });
}

TEST(GemmSimd, EveryNumberOfColumns) {
  for_each_target([] {
    for (int32_t columns = 1; columns <= 100; ++columns) {
      for (const int32_t rows : {1, 2, 3, 7, 17}) {
        for (const Extra extra : kExtras) check(rows, 1, 6, columns, columns % 2, extra);
      }
    }
  });
}

TEST(GemmSimd, EveryDepth) {
  for_each_target([] {
    for (int32_t length = 0; length <= 20; ++length) {
      for (const int32_t segments : {1, 2, 3, 7}) {
        for (const int32_t rows : {1, 2, 9}) check(rows, segments, length, 33, 1, Extra::kNothing);
      }
    }
  });
}

TEST(GemmSimd, SumsAreFusedAndInOrder) {
  for_each_target([] {
    if (!fuses()) return;
    for (const int32_t rows : {1, 2, 3, 4, 6, 8, 11, 25}) {
      for (const int32_t columns : {5, 8, 24, 64, 83}) {
        for (const int32_t segments : {1, 3}) {
          Product product(rows, segments, 37, columns, 0, 5);
          const std::vector<float> c = product.run(gemm_kernels(), Extra::kNothing);
          for (int32_t m = 0; m < rows; ++m) {
            for (int32_t n = 0; n < columns; ++n) {
              ASSERT_EQ(c[static_cast<size_t>(m * columns + n)], product.fused_sum(m, n)) << rows << " " << columns;
            }
          }
        }
      }
    }
  });
}

TEST(GemmSimd, ResultDoesNotDependOnHowRowsAndPanelsAreCut) {
  for_each_target([] {
    const GemmKernels& kernels = gemm_kernels();
    for (const Extra extra : kExtras) {
      Product product(29, 3, 11, 101, 0, 6);
      const Packed packed(kernels, product.depth_, product.columns_, product.weights());
      const GemmCall whole = product.call(packed, extra);
      const std::vector<float> expected = product.run(kernels, whole);
      for (const int32_t step : {1, 2, 3, 4, 5, 13}) {
        std::fill(product.c_.begin(), product.c_.end(), kCanary);
        for (int32_t row = 0; row < product.rows_; row += step) {
          GemmCall part = whole;
          part.rows = std::min(step, product.rows_ - row);
          std::vector<const float*> a;
          for (int32_t s = 0; s < product.segments_; ++s) {
            for (int32_t m = 0; m < part.rows; ++m) a.push_back(whole.a[s * product.rows_ + row + m]);
          }
          part.a = a.data();
          part.c += row;
          if (part.epilogue.residual != nullptr) part.epilogue.residual += row;
          for (int32_t panel = 0; panel < whole.last_panel; panel += step) {
            part.first_panel = panel;
            part.last_panel = std::min(panel + step, whole.last_panel);
            kernels.run(part);
          }
        }
        ASSERT_TRUE(same_bits(expected, std::vector<float>(product.c_.begin(), product.c_.end()))) << step;
      }
    }
  });
}

TEST(GemmSimd, OnlyThePanelsThatAreAskedFor) {
  for_each_target([] {
    const GemmKernels& kernels = gemm_kernels();
    for (const int32_t rows : {1, 2, 14}) {
      Product product(rows, 1, 9, 150, 0, 7);
      const Packed packed(kernels, product.depth_, product.columns_, product.weights());
      const std::vector<float> all = product.run(kernels, product.call(packed, Extra::kClamp));
      const auto panels = static_cast<int32_t>(packed.layout.panels.size());
      for (int32_t first = 0; first < panels; ++first) {
        for (int32_t last = first; last <= panels; ++last) {
          GemmCall call = product.call(packed, Extra::kClamp);
          call.first_panel = first;
          call.last_panel = last;
          const std::vector<float> some = product.run(kernels, call);
          const int32_t begin = packed.layout.panels[static_cast<size_t>(first)].first;
          const int32_t end = first == last    ? begin
                              : last == panels ? 150
                                               : packed.layout.panels[static_cast<size_t>(last)].first;
          for (int32_t n = 0; n < 150; ++n) {
            for (int32_t m = 0; m < rows; ++m) {
              const auto i = static_cast<size_t>(m * 150 + n);
              ASSERT_EQ(some[i], n >= begin && n < end ? all[i] : kCanary) << first << " " << last << " " << n;
            }
          }
        }
      }
    }
  });
}

TEST(GemmSimd, OffsetsAreAdded) {
  for_each_target([] {
    const GemmKernels& kernels = gemm_kernels();
    for (const Extra extra : kExtras) {
      Product product(10, 2, 8, 21, 0, 8);
      const Packed packed(kernels, product.depth_, product.columns_, product.weights());
      GemmCall call = product.call(packed, extra);
      const std::vector<float> expected = product.run(kernels, call);
      std::vector<const float*> a = product.a_rows_;
      for (const float*& row : a) row -= 5;
      std::vector<float*> c = product.c_rows_;
      for (float*& row : c) row += 3;
      std::vector<const float*> residual = product.residual_rows_;
      for (const float*& row : residual) row += 3;
      call.a = a.data();
      call.a_offset = 5;
      call.c = c.data();
      call.c_offset = -3;
      if (call.epilogue.residual != nullptr) call.epilogue.residual = residual.data();
      ASSERT_TRUE(same_bits(expected, product.run(kernels, call)));
    }
  });
}

// C may be its own residual: it is read before it is written.
TEST(GemmSimd, ResidualInPlace) {
  for_each_target([] {
    const GemmKernels& kernels = gemm_kernels();
    for (const int32_t rows : {1, 2, 19}) {
      for (const int32_t columns : {7, 32, 45}) {
        Product product(rows, 1, 12, columns, 0, 9);
        const Packed packed(kernels, product.depth_, product.columns_, product.weights());
        GemmCall call = product.call(packed, Extra::kClampResidualClamp);
        const std::vector<float> expected = product.run(kernels, call);
        std::copy(product.residual_.begin(), product.residual_.end(), product.c_.begin());
        call.epilogue.residual = product.c_rows_.data();
        kernels.run(call);
        ASSERT_TRUE(same_bits(expected, std::vector<float>(product.c_.begin(), product.c_.end())));
      }
    }
  });
}

// With a depth of 1 and a weight of 1 the epilogue's input is what A holds.
TEST(GemmSimd, SpecialValuesInTheEpilogue) {
  const std::vector<float> values = {kNaN,
                                     -kNaN,
                                     kInfinity,
                                     -kInfinity,
                                     0.0f,
                                     -0.0f,
                                     std::numeric_limits<float>::denorm_min(),
                                     -std::numeric_limits<float>::denorm_min(),
                                     std::numeric_limits<float>::max(),
                                     std::numeric_limits<float>::lowest(),
                                     7.0f,
                                     -7.0f,
                                     3.0f};
  for_each_target([&] {
    const GemmKernels& kernels = gemm_kernels();
    for (const int32_t columns : {3, 8, 16, 24, 35, 64}) {
      const auto rows = static_cast<int32_t>(values.size());
      for (int variant = 0; variant < 5; ++variant) {
        Product product(rows, 1, 1, columns, 0, 10);
        std::copy(values.begin(), values.end(), product.a_.begin());
        std::fill(product.b_.begin(), product.b_.end(), 1.0f);
        std::fill(product.slopes_.begin(), product.slopes_.end(), 0.5f);
        std::fill(product.residual_.begin(), product.residual_.end(), 0.0f);
        GemmWeights weights = product.weights();
        weights.bias = nullptr;
        const Packed packed(kernels, 1, columns, weights);
        GemmCall call = product.call(packed, Extra::kNothing);
        GemmEpilogue& epilogue = call.epilogue;
        const auto expect = [&](float x) {
          switch (variant) {
            case 0:  // nothing
              return x;
            case 1:  // relu
              return x < 0 ? 0 : x;
            case 2:  // relu6
              return x < 0 ? 0 : x > 6 ? 6 : x;
            case 3:  // prelu
              return x < 0 ? x * 0.5f : x;
            default:  // relu6 after a residual of zero
              return x < 0 ? 0 : x > 6 ? 6 : x;
          }
        };
        if (variant == 1 || variant == 2) epilogue.min = 0;
        if (variant == 2) epilogue.max = 6;
        if (variant == 3) epilogue.slopes = product.slopes_.data();
        if (variant == 4) {
          epilogue.residual = product.residual_rows_.data();
          epilogue.residual_min = 0;
          epilogue.residual_max = 6;
        }
        const std::vector<float> c = product.run(kernels, call);
        for (int32_t m = 0; m < rows; ++m) {
          for (int32_t n = 0; n < columns; ++n) {
            const float x = values[static_cast<size_t>(m)];
            const float y = c[static_cast<size_t>(m * columns + n)];
            if (std::isnan(x)) {
              ASSERT_TRUE(std::isnan(y)) << variant << " " << columns << " " << n;
            } else {
              ASSERT_EQ(y, expect(x)) << variant << " " << columns << " " << n;
            }
          }
        }
      }
    }
  });
}

// An infinity or NaN in one row of A stays in its row of C.
TEST(GemmSimd, RowsDoNotMix) {
  for_each_target([] {
    Product product(13, 1, 10, 40, 0, 11);
    product.a_[static_cast<size_t>(5 * product.a_stride_ + 3)] = kNaN;
    product.a_[static_cast<size_t>(8 * product.a_stride_ + 9)] = kInfinity;
    const std::vector<float> c = product.run(gemm_kernels(), Extra::kClamp);
    for (int32_t m = 0; m < 13; ++m) {
      for (int32_t n = 0; n < 40; ++n) {
        const float x = c[static_cast<size_t>(m * 40 + n)];
        ASSERT_EQ(std::isnan(x), m == 5);
        ASSERT_TRUE(m != 8 || x == -0.25f || x == 0.5f);
      }
    }
  });
}

TEST(GemmSimd, PacksEveryOrderAndWidth) {
  for_each_target([] {
    const GemmKernels& kernels = gemm_kernels();
    Numbers numbers(12);
    for (const int32_t depth : {0, 1, 3, 64, 65, 131}) {
      for (const int32_t columns : {1, 7, 8, 17, 48, 57}) {
        const auto count = static_cast<size_t>(depth * columns);
        Guarded by_column(count), by_row(count), bias(static_cast<size_t>(columns));
        numbers.fill(by_column);
        numbers.fill(bias);
        for (int32_t k = 0; k < depth; ++k) {
          for (int32_t n = 0; n < columns; ++n) {
            by_row[static_cast<size_t>(k * columns + n)] = by_column[static_cast<size_t>(n * depth + k)];
          }
        }
        const Packed first(kernels, depth, columns, {by_column.data(), false, 1, depth, bias.data()});
        const Packed second(kernels, depth, columns, {by_row.data(), false, columns, 1, bias.data()});
        ASSERT_EQ(std::memcmp(first.weights(), second.weights(), first.layout.floats * sizeof(float)), 0);
        size_t at = 0;
        int32_t column = 0;
        for (const Panel& panel : first.layout.panels) {
          ASSERT_EQ(panel.first, column);
          ASSERT_EQ(panel.offset, at);
          const int32_t width = panel.vectors * first.layout.lanes;
          for (int32_t k = -1; k < depth; ++k) {
            for (int32_t j = 0; j < width; ++j, ++at) {
              const int32_t n = column + j;
              const float expected = n >= columns ? 0
                                     : k < 0      ? bias[static_cast<size_t>(n)]
                                                  : by_column[static_cast<size_t>(n * depth + k)];
              ASSERT_EQ(first.weights()[at], expected);
            }
          }
          column += width;
        }
        ASSERT_EQ(at, first.layout.floats);
        ASSERT_GE(column, columns);
      }
    }
  });
}

// Packs as what is computed at run time is packed: panel by panel, rows or columns that lie apart from each other, and
// nothing behind the last of them.
void check_pack(const GemmKernels& kernels, int32_t depth, int32_t columns, bool by_column, int32_t step, int32_t gap) {
  SCOPED_TRACE(testing::Message() << depth << " x " << columns << (by_column ? " by column" : " by row") << " step "
                                  << step << " gap " << gap);
  const int32_t inner = by_column ? depth : columns, outer = by_column ? columns : depth;
  const int32_t stride = inner * step + gap;
  Guarded b(static_cast<size_t>((outer - 1) * stride + (inner - 1) * step + 1));
  Numbers(7).fill(b);
  GemmWeights weights;
  weights.data = b.data();
  weights.depth_stride = by_column ? step : stride;
  weights.column_stride = by_column ? stride : step;
  const GemmLayout layout = kernels.layout(depth, columns);
  const auto panels = static_cast<int32_t>(layout.panels.size());
  std::vector<float> memory(layout.floats + kWeightAlignment / sizeof(float), kCanary);
  float* to = memory.data();
  while (reinterpret_cast<uintptr_t>(to) % kWeightAlignment != 0) ++to;
  for (int32_t p = panels - 1; p >= 0; --p) {
    kernels.pack_panels(layout, weights, p, p + 1, to);
    const Panel& panel = layout.panels[static_cast<size_t>(p)];
    const int32_t width = panel.vectors * layout.lanes;
    if (panel.offset > 0) {
      ASSERT_EQ(to[panel.offset - 1], kCanary);  // not yet
    }
    for (int32_t j = 0; j < width; ++j) {
      const float* found = to + panel.offset + j;
      ASSERT_EQ(*found, 0.0f);
      for (int32_t k = 0; k < depth; ++k) {
        found += width;
        const int32_t n = panel.first + j;
        ASSERT_EQ(*found, n < columns ? b.data()[k * weights.depth_stride + n * weights.column_stride] : 0.0f);
      }
    }
  }
}

TEST(GemmSimd, PacksPanelByPanel) {
  for_each_target([] {
    for (const GemmKernels* kernels : {&gemm_kernels(), &gemm_reference()}) {
      for (const int32_t depth : {1, 2, 3, 4, 7, 32, 65, 130}) {
        for (const int32_t columns : {1, 2, 5, 8, 9, 16, 17, 24, 31, 40, 49}) {
          for (const bool by_column : {false, true}) {
            for (const int32_t gap : {0, 3}) check_pack(*kernels, depth, columns, by_column, 1, gap);
            check_pack(*kernels, depth, columns, by_column, 3, 2);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

// All 65536 numbers of float16, in both orders.
TEST(GemmSimd, WidensHalves) {
  constexpr int32_t kDepth = 256, kColumns = 256;
  std::vector<uint16_t> halves(kDepth * kColumns);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  for_each_target([&] {
    for (const bool by_column : {false, true}) {
      GemmWeights weights;
      weights.data = halves.data();
      weights.half = true;
      weights.depth_stride = by_column ? 1 : kColumns;
      weights.column_stride = by_column ? kDepth : 1;
      const Packed packed(gemm_kernels(), kDepth, kColumns, weights);
      for (const Panel& panel : packed.layout.panels) {
        const int32_t width = panel.vectors * packed.layout.lanes;
        for (int32_t j = 0; j < width && panel.first + j < kColumns; ++j) {
          for (int32_t k = 0; k < kDepth; ++k) {
            const ptrdiff_t half = k * weights.depth_stride + (panel.first + j) * weights.column_stride;
            const int exponent = static_cast<int>(half >> 10 & 31);
            const auto fraction = static_cast<float>(half & 1023);
            float expected = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
            if (exponent == 31) expected = fraction == 0 ? kInfinity : kNaN;
            if (half >> 15 != 0) expected = -expected;
            const float actual = packed.weights()[panel.offset + static_cast<size_t>((k + 1) * width + j)];
            if (std::isnan(expected)) {
              ASSERT_TRUE(std::isnan(actual)) << half;
            } else {
              ASSERT_EQ(actual, expected) << half;
              ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << half;
            }
          }
        }
      }
    }
  });
}

TEST(GemmSimd, ReferenceWidensHalves) {
  const uint16_t halves[] = {0x0000, 0x8000, 0x0001, 0x03ff, 0x0400, 0x3c00, 0xc000, 0x7bff, 0x7c00, 0xfc00};
  const float floats[] = {0.0f, -0.0f, 0x1p-24f, 0x1.ff8p-15f, 0x1p-14f, 1.0f, -2.0f, 65504.0f, kInfinity, -kInfinity};
  const Packed packed(gemm_reference(), 1, 10, {halves, true, 10, 1, nullptr});
  for (const Panel& panel : packed.layout.panels) {
    const int32_t width = panel.vectors * packed.layout.lanes;
    for (int32_t j = 0; j < width && panel.first + j < 10; ++j) {
      ASSERT_EQ(packed.weights()[panel.offset + static_cast<size_t>(width + j)], floats[panel.first + j]);
    }
  }
}

TEST(GemmSimd, UnalignedOperands) {
  for_each_target([] {
    const GemmKernels& kernels = gemm_kernels();
    std::vector<float> expected;
    for (int32_t shift = 0; shift < 4; ++shift) {
      // Values that do not depend on where they are.
      Guarded a(static_cast<size_t>(9 * 20 + shift)), c(static_cast<size_t>(9 * 30 + shift), true);
      std::vector<const float*> a_rows;
      std::vector<float*> c_rows;
      for (int32_t m = 0; m < 9; ++m) {
        for (int32_t k = 0; k < 20; ++k) a[static_cast<size_t>(m * 20 + k)] = std::sin(static_cast<float>(m * 20 + k));
        a_rows.push_back(a.data() + m * 20);
        c_rows.push_back(c.data() + shift + m * 30);
      }
      std::vector<float> b(20 * 30);
      for (size_t i = 0; i < b.size(); ++i) b[i] = std::cos(static_cast<float>(i));
      const Packed packed(kernels, 20, 30, {b.data(), false, 1, 20, nullptr});
      GemmCall call;
      call.a = a_rows.data();
      call.rows = 9;
      call.segment_length = 20;
      call.layout = &packed.layout;
      call.weights = packed.weights();
      call.last_panel = static_cast<int32_t>(packed.layout.panels.size());
      call.c = c_rows.data();
      kernels.run(call);
      const std::vector<float> result(c.data() + shift, c.data() + shift + 9 * 30);
      if (shift == 0) expected = result;
      ASSERT_TRUE(same_bits(expected, result)) << shift;
    }
  });
}

TEST(Simd, NamesTheInstructionSet) {
  for_each_target([] { EXPECT_FALSE(simd_name().empty()); });
}

TEST(Simd, CachesAreSane) {
  const Caches& sizes = caches();
  EXPECT_GE(sizes.l1, size_t{4} << 10);
  EXPECT_LE(sizes.l1, size_t{1} << 20);
  EXPECT_GE(sizes.l2, sizes.l1);
  EXPECT_LE(sizes.l2, size_t{64} << 20);
  EXPECT_TRUE(sizes.l3 == 0 || sizes.l3 >= size_t{256} << 10);
  EXPECT_EQ(&sizes, &caches());
}

// In pieces of the depth, and with other weights fetched meanwhile, nothing changes.
TEST(GemmSimd, PiecesGiveTheSameBits) {
  for (const int32_t segments : {1, 3}) {
    for (const int32_t columns : {5, 8, 24, 41, 64}) {
      for (const int32_t rows : {3, 12, 25}) {
        Product product(rows, segments, 130, columns, 3, 7);
        for_each_target([&] {
          const GemmKernels& kernels = gemm_kernels();
          const Packed packed(kernels, segments * 130, columns, product.weights());
          for (const Extra extra : kExtras) {
            GemmCall call = product.call(packed, extra);
            const std::vector<float> whole = product.run(kernels, call);
            call.ahead = packed.weights();
            const std::vector<float> fetching = product.run(kernels, call);
            ASSERT_EQ(std::memcmp(whole.data(), fetching.data(), whole.size() * sizeof(float)), 0);
            const auto room = static_cast<size_t>(rows * packed.layout.padded());
            std::vector<float> memory(room + kWeightAlignment / sizeof(float), kNaN);
            const auto address = reinterpret_cast<uintptr_t>(memory.data());
            call.sums =
                memory.data() + (kWeightAlignment - address % kWeightAlignment) % kWeightAlignment / sizeof(float);
            for (const int32_t piece : {32, 65, 100, 130}) {
              call.piece = piece;
              const std::vector<float> got = product.run(kernels, call);
              ASSERT_EQ(std::memcmp(whole.data(), got.data(), whole.size() * sizeof(float)), 0)
                  << segments << " segments, " << columns << " columns, " << rows << " rows, pieces of " << piece;
            }
          }
        });
      }
    }
  }
}

TEST(GemmSimd, PiecesAreForWhatDoesNotStayNear) {
  EXPECT_EQ(gemm_piece(49, 64, 64), 0);           // stays
  EXPECT_EQ(gemm_piece(1, 1 << 20, 1 << 20), 0);  // each row is read once anyhow
  EXPECT_EQ(gemm_piece(1 << 20, 512, 512), 0);    // no piece does
  const int32_t piece = gemm_piece(49, 9 << 20, 3 << 20);
  EXPECT_GE(piece, 128);
  EXPECT_LE(piece, 512);
}

}  // namespace
}  // namespace litefuse
