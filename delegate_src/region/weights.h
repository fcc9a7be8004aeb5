// Packed weights, shared by all regions, interpreters and delegates of the process that pack the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "region/profile.h"

namespace litefuse {

// Numbers aligned to kWeightAlignment.
class Weights {
 public:
  // nullptr when there is no memory for them.
  static std::shared_ptr<Weights> make(size_t floats);
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  float* data() { return data_; }
  const float* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Weights(float* data, size_t bytes) : data_(data), bytes_(bytes) {}
  float* data_;
  size_t bytes_;
};

// What packing has cost so far, in this process.
struct PackingReport {
  size_t packed_bytes = 0;   // of what is held now
  uint64_t nanoseconds = 0;  // spent on packing
  size_t packed = 0;         // matrices that were packed
  size_t shared = 0;         // that were there already
};
PackingReport packing_report();

// Says which numbers are packed, and how: two that are equal are one. The numbers themselves are part of it through
// 128 bits of hash.
class WeightsKey {
 public:
  explicit WeightsKey(const char* what);
  WeightsKey& add(int64_t number);
  WeightsKey& add(const void* data, size_t bytes);  // nullptr is told from any numbers
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

namespace detail {
std::shared_ptr<const Weights> find_weights(const std::string& key);
std::shared_ptr<const Weights> keep_weights(const std::string& key, std::shared_ptr<Weights> made, uint64_t start);
}  // namespace detail

// The weights with this key; if there are none, pack(float*) writes them. nullptr when there is no memory.
template <typename F>
std::shared_ptr<const Weights> packed_weights(const WeightsKey& key, size_t floats, const F& pack) {
  const uint64_t start = now();
  if (auto found = detail::find_weights(key.str())) return found;
  std::shared_ptr<Weights> made = Weights::make(floats);
  if (made == nullptr) return nullptr;
  pack(made->data());
  return detail::keep_weights(key.str(), std::move(made), start);
}

}  // namespace litefuse
