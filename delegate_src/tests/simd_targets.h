// What tests of the vector kernels have in common: every instruction set in turn, and memory with nothing behind it.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace litefuse {

// Calls f() once for every instruction set that the kernels are compiled for and this processor has.
template <typename F>
void for_each_target(F f) {
  // hwy::SupportedTargets() has bits that nothing is compiled for.
  hwy::SetSupportedTargetsForTest(0);
  auto supported = static_cast<int64_t>(hwy::SupportedTargets()) & static_cast<int64_t>(HWY_TARGETS);
  // A single one is used without asking the processor: NEON, which Highway 1.0.3 does not see where there is no AES.
  if ((HWY_TARGETS & (HWY_TARGETS - 1)) == 0) supported = HWY_TARGETS;
  ASSERT_NE(supported, 0);
  for (int64_t rest = supported; rest != 0; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    hwy::SetSupportedTargetsForTest(static_cast<decltype(hwy::SupportedTargets())>(target));
    hwy::GetChosenTarget().Update(static_cast<decltype(hwy::SupportedTargets())>(target));
    SCOPED_TRACE(hwy::TargetName(static_cast<decltype(hwy::SupportedTargets())>(target)));
    f();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Floats of which the last one ends at the end of a page that is followed by one that cannot be touched, or, with
// `before`, of which the first one begins a page that follows such a one.
class Guarded {
 public:
  explicit Guarded(size_t count, bool before = false) : count_(count) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = (count * sizeof(float) + page - 1) / page * page;
    size_ = bytes + 2 * page;
    memory_ = static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED) std::abort();
    mprotect(memory_, page, PROT_NONE);
    mprotect(memory_ + page + bytes, page, PROT_NONE);
    char* first = before ? memory_ + page : memory_ + page + bytes - count * sizeof(float);
    data_ = reinterpret_cast<float*>(first);
  }
  ~Guarded() { munmap(memory_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  float* data() { return data_; }
  const float* data() const { return data_; }
  size_t size() const { return count_; }
  float& operator[](size_t i) { return data_[i]; }
  float operator[](size_t i) const { return data_[i]; }
  float* begin() { return data_; }
  float* end() { return data_ + count_; }

 private:
  size_t count_;
  size_t size_ = 0;
  char* memory_ = nullptr;
  float* data_ = nullptr;
};

// Random numbers that are the same everywhere.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  uint64_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ * 0x2545f4914f6cdd1dull;
  }
  // In [low, high).
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(bits() >> 40) * (1.0f / 16777216.0f);
  }
  int32_t between(int32_t low, int32_t high) {  // both included
    return low + static_cast<int32_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  template <typename Range>
  void fill(Range&& range, float low = -1.0f, float high = 1.0f) {
    for (float& x : range) x = uniform(low, high);
  }

 private:
  uint64_t state_;
};

}  // namespace litefuse
