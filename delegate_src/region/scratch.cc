#include "region/scratch.h"

#include <algorithm>

namespace litefuse {
namespace {

bool at_the_same_time(const Piece& a, const Piece& b) { return a.first <= b.last && b.first <= a.last; }

}  // namespace

size_t place(std::vector<Piece>* pieces) {
  std::vector<Piece*> order;
  for (Piece& piece : *pieces) order.push_back(&piece);
  std::stable_sort(order.begin(), order.end(), [](const Piece* a, const Piece* b) { return a->bytes > b->bytes; });
  size_t total = 0;
  std::vector<const Piece*> placed;  // by offset
  for (Piece* piece : order) {
    const size_t bytes = aligned(piece->bytes);
    size_t offset = 0;
    for (const Piece* other : placed) {
      if (!at_the_same_time(*piece, *other)) continue;
      if (other->offset >= offset + bytes) break;
      offset = std::max(offset, other->offset + aligned(other->bytes));
    }
    piece->offset = offset;
    total = std::max(total, offset + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), piece,
                                   [](const Piece* a, const Piece* b) { return a->offset < b->offset; }),
                  piece);
  }
  return total;
}

bool placed_well(const std::vector<Piece>& pieces, size_t limit) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& a = pieces[i];
    if (a.offset % kAlignment != 0 || a.offset > limit || a.bytes > limit - a.offset) return false;
    for (size_t j = 0; j < i; ++j) {
      const Piece& b = pieces[j];
      if (!at_the_same_time(a, b) || a.bytes == 0 || b.bytes == 0) continue;
      if (a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes) return false;
    }
  }
  return true;
}

}  // namespace litefuse
