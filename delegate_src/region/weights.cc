#include "region/weights.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "kernels/simd/simd.h"
#include "region/profile.h"

namespace litefuse {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, std::weak_ptr<const Weights>> weights;
  PackingReport report;
};

// Never destroyed: kernels may outlive what static destructors take down.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

uint64_t mixed(uint64_t hash, uint64_t word, uint64_t factor) {
  hash = (hash ^ word) * factor;
  return hash ^ (hash >> 29);
}

}  // namespace

std::shared_ptr<Weights> Weights::make(size_t floats) {
  const size_t bytes = (floats * sizeof(float) + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
  void* memory = std::aligned_alloc(kWeightAlignment, bytes + kWeightAlignment);
  if (memory == nullptr) return nullptr;
  return std::shared_ptr<Weights>(new Weights(static_cast<float*>(memory), bytes));
}

Weights::~Weights() {
  std::free(data_);
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.report.packed_bytes -= std::min(all.report.packed_bytes, bytes_);
}

PackingReport packing_report() {
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.report;
}

WeightsKey::WeightsKey(const char* what) : text_(what) {}

WeightsKey& WeightsKey::add(int64_t number) {
  text_ += '/';
  text_ += std::to_string(number);
  return *this;
}

WeightsKey& WeightsKey::add(const void* data, size_t bytes) {
  if (data == nullptr) {
    text_ += "/-";
    return *this;
  }
  uint64_t one = 0x9e3779b97f4a7c15ull, two = bytes;
  const char* from = static_cast<const char*>(data);
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, from + i, 8);
    one = mixed(one, word, 0xff51afd7ed558ccdull);
    two = mixed(two, word + i, 0xc4ceb9fe1a85ec53ull);
  }
  uint64_t rest = 0;
  if (i < bytes) std::memcpy(&rest, from + i, bytes - i);
  one = mixed(one, rest, 0xff51afd7ed558ccdull);
  two = mixed(two, rest + i, 0xc4ceb9fe1a85ec53ull);
  return add(static_cast<int64_t>(one)).add(static_cast<int64_t>(two)).add(static_cast<int64_t>(bytes));
}

namespace detail {

std::shared_ptr<const Weights> find_weights(const std::string& key) {
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.weights.find(key);
  if (found == all.weights.end()) return nullptr;
  auto held = found->second.lock();
  if (held == nullptr) {
    all.weights.erase(found);
  } else {
    ++all.report.shared;
  }
  return held;
}

std::shared_ptr<const Weights> keep_weights(const std::string& key, std::shared_ptr<Weights> made, uint64_t start) {
  Registry& all = registry();
  std::shared_ptr<const Weights> result = std::move(made);
  std::lock_guard<std::mutex> lock(all.mutex);
  all.report.packed_bytes += result->bytes();
  all.report.nanoseconds += now() - start;
  ++all.report.packed;
  all.weights[key] = result;
  return result;
}

}  // namespace detail
}  // namespace litefuse
