// Random numbers for tests, the same on every machine: distributions of the standard library are not.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

namespace litefuse::fake {

// Where fuzzing starts: LITEFUSE_FUZZ_SEED in the environment gives other numbers than the usual ones.
inline uint64_t first_seed() {
  const char* text = std::getenv("LITEFUSE_FUZZ_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) * 1000000 : 0;
}

// How many seeds to try instead of the usual number: LITEFUSE_FUZZ_COUNT.
inline uint64_t seed_count(uint64_t usual) {
  const char* text = std::getenv("LITEFUSE_FUZZ_COUNT");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : usual;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t bits() { return engine_(); }
  // From 0 to limit - 1.
  int below(int limit) { return static_cast<int>(engine_() % static_cast<uint64_t>(limit)); }
  // From first to last, both included.
  int between(int first, int last) { return first + below(last - first + 1); }
  bool one_in(int n) { return below(n) == 0; }
  template <typename T>
  T of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(below(static_cast<int>(choices.size())))];
  }
  // Numbers at which code breaks. None is of a size that would be computed with for long.
  int32_t odd() {
    return of<int32_t>({std::numeric_limits<int32_t>::min(),
                        -70000,
                        -9,
                        -3,
                        -2,
                        -1,
                        0,
                        0,
                        1,
                        1,
                        2,
                        2,
                        3,
                        4,
                        5,
                        7,
                        8,
                        9,
                        16,
                        33,
                        70000,
                        std::numeric_limits<int32_t>::max() - 7,
                        std::numeric_limits<int32_t>::max()});
  }
  float odd_float() {
    switch (below(10)) {
      case 0:
        return of<float>({0.0f, -0.0f, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()});
      case 1:
        return of<float>({1e-45f, 1e-38f, 3e38f, -3e38f, 2147483648.0f, -2147483904.0f, 1e10f, 1e-10f});
      default:
        return static_cast<float>(between(-4000, 4000)) / 500.0f;
    }
  }
  // A scale that a tensor may have: positive and finite.
  float scale() {
    if (one_in(8)) return of<float>({1e-45f, 1e-38f, 1e-30f, 3e38f, 1e30f, 1.0f, 65536.0f});
    return std::ldexp(static_cast<float>(between(1, 1000)) / 1000.0f, between(-8, 2));
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace litefuse::fake
