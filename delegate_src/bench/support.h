// What the benchmarks of the kernels share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/simd/simd.h"

namespace litefuse {

// Floats in [-4, 4) that begin at a multiple of kWeightAlignment. Those of another `place` begin elsewhere in a page:
// loads would wait for stores to what only looks like the same address.
class Floats {
 public:
  explicit Floats(size_t count, size_t place = 0) : size_(count), memory_(count + kPage + place * kStep) {
    uint32_t state = 1;
    for (float& value : memory_) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(state >> 8) * (8.0f / 16777216.0f) - 4.0f;
    }
    const auto address = reinterpret_cast<uintptr_t>(memory_.data()) / sizeof(float);
    data_ = memory_.data() + (kPage - address % kPage) % kPage + place * kStep;
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  Floats(Floats&&) = default;  // vectors keep their memory when they are moved
  Floats& operator=(Floats&&) = default;

  size_t size() const { return size_; }
  float* data() { return data_; }
  const float* data() const { return data_; }

 private:
  static constexpr size_t kPage = 4096 / sizeof(float);
  static constexpr size_t kStep = 21 * kWeightAlignment / sizeof(float);

  size_t size_;
  std::vector<float> memory_;
  float* data_ = nullptr;
};

}  // namespace litefuse
