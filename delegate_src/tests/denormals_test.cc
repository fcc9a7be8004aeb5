#include "region/denormals.h"

#include <gtest/gtest.h>

#include <limits>

namespace litefuse {
namespace {

// Not known to the compiler.
float half_of(float x) {
  volatile float value = x;
  value = value * 0.5f;
  return value;
}

TEST(Denormals, CountAsZeroForAWhile) {
#if !defined(__SSE__) && !defined(__aarch64__)
  GTEST_SKIP() << "there is no such switch on this processor";
#endif
  constexpr float kSmallest = std::numeric_limits<float>::min();
  ASSERT_NE(half_of(kSmallest), 0.0f);
  {
    const FlushDenormals flush;
    EXPECT_EQ(half_of(kSmallest), 0.0f);
    {
      const FlushDenormals again;
      EXPECT_EQ(half_of(kSmallest), 0.0f);
    }
    EXPECT_EQ(half_of(kSmallest), 0.0f);
    EXPECT_EQ(half_of(2 * kSmallest), kSmallest);
  }
  EXPECT_NE(half_of(kSmallest), 0.0f);
}

}  // namespace
}  // namespace litefuse
