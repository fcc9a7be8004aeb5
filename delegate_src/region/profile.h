// Where the time of a region goes, operator by operator.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace litefuse {

// Nanoseconds since some moment.
inline uint64_t now() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// Counters may be read while another thread runs the region.
class Profile {
 public:
  explicit Profile(std::vector<std::string> operators)
      : names_(std::move(operators)), nanoseconds_(std::make_unique<std::atomic<uint64_t>[]>(names_.size())) {
    for (size_t i = 0; i < names_.size(); ++i) nanoseconds_[i] = 0;
  }

  const std::vector<std::string>& names() const { return names_; }
  uint64_t runs() const { return runs_.load(std::memory_order_relaxed); }
  uint64_t nanoseconds(size_t i) const { return nanoseconds_[i].load(std::memory_order_relaxed); }
  void add(size_t i, uint64_t nanoseconds) { nanoseconds_[i].fetch_add(nanoseconds, std::memory_order_relaxed); }
  void add_run() { runs_.fetch_add(1, std::memory_order_relaxed); }
  void clear() {
    runs_ = 0;
    for (size_t i = 0; i < names_.size(); ++i) nanoseconds_[i] = 0;
  }

 private:
  std::vector<std::string> names_;
  std::unique_ptr<std::atomic<uint64_t>[]> nanoseconds_;
  std::atomic<uint64_t> runs_{0};
};

// Told when an operator of a region begins and ends, such as by the runtime's own profiler.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual uint32_t begin(const char* name, int32_t index) = 0;
  virtual void end(uint32_t handle) = 0;
};

}  // namespace litefuse
