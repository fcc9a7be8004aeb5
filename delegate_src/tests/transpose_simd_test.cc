// Turned matrices of every instruction set against scalar code.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/simd/transpose.h"
#include "kernels/simd/transpose_cases.h"
#include "tests/simd_targets.h"

namespace litefuse {
namespace {

// Every element is another number, NaN among them.
void count(Guarded* floats) {
  for (size_t i = 0; i < floats->size(); ++i) {
    const auto bits = static_cast<uint32_t>(i) * 2654435761u;
    std::memcpy(&(*floats)[i], &bits, sizeof(bits));
  }
}

// Rows and columns are `gap` elements farther apart than they have to be; what is between them stays as it is.
void check(int64_t rows, int64_t columns, int64_t gap, bool before) {
  SCOPED_TRACE(testing::Message() << rows << " x " << columns << " gap " << gap);
  const ptrdiff_t from_stride = columns + gap, to_stride = rows + gap;
  const auto size = [](int64_t count, ptrdiff_t stride, int64_t last) {
    return static_cast<size_t>((count - 1) * stride + last);
  };
  Guarded from(size(rows, from_stride, columns), before), to(size(columns, to_stride, rows), before);
  count(&from);
  std::memset(to.data(), 0x5a, to.size() * sizeof(float));
  std::vector<float> expected(to.begin(), to.end());
  transpose_reference().transpose(from.data(), rows, columns, from_stride, expected.data(), to_stride);
  transpose_kernels().transpose(from.data(), rows, columns, from_stride, to.data(), to_stride);
  ASSERT_EQ(std::memcmp(expected.data(), to.data(), to.size() * sizeof(float)), 0);
}

TEST(TransposeSimd, AllSmallSizes) {
  for_each_target([] {
    for (int64_t rows = 1; rows <= 37; ++rows) {
      for (int64_t columns = 1; columns <= 37; ++columns) {
        check(rows, columns, (rows + columns) % 3, rows % 2 == 0);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST(TransposeSimd, LargerSizes) {
  for_each_target([] {
    for (const TransposeCase& t : kTransposes) {
      check(t.rows, t.columns, 0, false);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(TransposeSimd, Nothing) {
  for_each_target([] {
    float untouched = 1;
    transpose_kernels().transpose(nullptr, 0, 5, 5, &untouched, 1);
    transpose_kernels().transpose(nullptr, 5, 0, 1, &untouched, 5);
    EXPECT_EQ(untouched, 1);
  });
}

TEST(TransposeSimd, ReferenceTurns) {
  const float from[] = {1, 2, 3, 4, 5, 6};
  float to[6] = {};
  transpose_reference().transpose(from, 2, 3, 3, to, 2);
  const float expected[] = {1, 4, 2, 5, 3, 6};
  EXPECT_EQ(std::memcmp(to, expected, sizeof(to)), 0);
}

}  // namespace
}  // namespace litefuse
