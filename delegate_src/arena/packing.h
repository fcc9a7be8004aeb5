// Exact packing of buffers with known lifetimes into one arena of given capacity.
//
// A buffer occupies `size` units of address space while lower <= t < upper. The question is whether offsets exist such
// that no two buffers which live at the same time share an address and none reaches past the capacity. It is the
// problem that Moffitt's minimalloc paper (ASPLOS 2023, "MiniMalloc: A Lightweight Memory Allocator for
// Hardware-Accelerated Machine Learning") solves, and the search here has the same ingredients: sections, canonical
// bottom-up placements, dominance. packing.cc explains how it goes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace litefuse::arena {

struct Buffer {
  int64_t lower;  // first time at which the buffer lives
  int64_t upper;  // first time at which it no longer does
  int64_t size;   // in units of address space
};

// The search keeps tables that are quadratic in the number of buffers (up to 50 MB at this number) and recurses once
// per decision, so larger problems are refused.
constexpr int64_t kMaxBuffers = 2000;
// The sum of all sizes must not be larger, so that no sum of an offset and two sizes overflows.
constexpr int64_t kMaxTotalSize = int64_t{1} << 60;

enum class Outcome {
  kFound,        // offsets() holds a packing within the capacity
  kInfeasible,   // proved: there is none
  kLimit,        // out of nodes or time; call run() again to go on
  kInterrupted,  // the caller's `interrupted` said so; call run() again to go on
};

// The largest sum of the sizes of buffers that live at the same time: no arena can be smaller.
// Throws std::invalid_argument on a lifetime that is empty, a negative size, or sizes past kMaxTotalSize.
int64_t lower_bound(const std::vector<Buffer>& buffers);

class Packer {
 public:
  // Throws std::invalid_argument like lower_bound(), and for more than kMaxBuffers buffers.
  Packer(const std::vector<Buffer>& buffers, int64_t capacity);
  ~Packer();
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  // Searches until it knows the answer, has made `nodes` decisions or `seconds` have passed. It ends with the restart
  // that passes the number of decisions, so the search goes the same way however it is cut into calls. Deterministic as
  // long as the time limit does not strike. `interrupted` is asked some twenty times a second; it may be empty.
  Outcome run(int64_t nodes, double seconds, const std::function<bool()>& interrupted);

  // One offset for each buffer, in their order; empty unless run() has returned kFound.
  const std::vector<int64_t>& offsets() const;

  // Decisions made by all calls of run() together.
  int64_t nodes() const;

 private:
  class Search;
  std::unique_ptr<Search> search_;
  std::vector<size_t> solid_;  // the buffers that the search knows: those with a size
  std::vector<int64_t> offsets_;
  Outcome outcome_ = Outcome::kLimit;
};

}  // namespace litefuse::arena
