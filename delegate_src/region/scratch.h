// Where the intermediates of a region lie in its scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace litefuse {

// Every piece starts at a multiple of this.
constexpr size_t kAlignment = 64;

inline size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A piece of scratch memory that is needed from step `first` to step `last`, both included.
struct Piece {
  size_t bytes = 0;
  int32_t first = 0;
  int32_t last = 0;
  size_t offset = 0;
};

// Gives the pieces offsets such that none that are needed at the same time overlap: largest first, each into the
// lowest gap that takes it. Returns the bytes needed in all.
size_t place(std::vector<Piece>* pieces);

// Whether the offsets that the pieces have are aligned and keep apart what is needed at the same time, within `limit`.
bool placed_well(const std::vector<Piece>& pieces, size_t limit);

}  // namespace litefuse
