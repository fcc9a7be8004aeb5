#include "region/scratch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace litefuse {
namespace {

// Whether no byte belongs to two pieces at the same step, byte by byte; pieces are small here.
bool separate(const std::vector<Piece>& pieces, size_t limit) {
  for (const Piece& piece : pieces) {
    if (piece.offset % kAlignment != 0 || piece.offset + piece.bytes > limit) return false;
  }
  int32_t end = 0;
  for (const Piece& piece : pieces) end = std::max(end, piece.last + 1);
  for (int32_t step = 0; step < end; ++step) {
    std::vector<bool> taken(limit, false);
    for (const Piece& piece : pieces) {
      if (step < piece.first || step > piece.last) continue;
      for (size_t i = piece.offset; i < piece.offset + piece.bytes; ++i) {
        if (taken[i]) return false;
        taken[i] = true;
      }
    }
  }
  return true;
}

size_t most_alive(const std::vector<Piece>& pieces) {
  size_t most = 0;
  for (const Piece& at : pieces) {
    size_t sum = 0;
    for (const Piece& piece : pieces) {
      if (piece.first <= at.first && at.first <= piece.last) sum += aligned(piece.bytes);
    }
    most = std::max(most, sum);
  }
  return most;
}

TEST(Scratch, RoundsUp) {
  EXPECT_EQ(aligned(0), 0u);
  EXPECT_EQ(aligned(1), 64u);
  EXPECT_EQ(aligned(64), 64u);
  EXPECT_EQ(aligned(65), 128u);
}

TEST(Scratch, PlacesNothing) {
  std::vector<Piece> pieces;
  EXPECT_EQ(place(&pieces), 0u);
  EXPECT_TRUE(placed_well(pieces, 0));
}

TEST(Scratch, ReusesWhatIsFree) {
  // A chain: at any time two are needed.
  std::vector<Piece> pieces;
  for (int32_t i = 0; i < 10; ++i) pieces.push_back({100, i, i + 1, 0});
  EXPECT_EQ(place(&pieces), 256u);
  EXPECT_TRUE(placed_well(pieces, 256));
  EXPECT_TRUE(separate(pieces, 256));
}

TEST(Scratch, PlacesRandomPiecesApart) {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::vector<Piece> pieces(random() % 12);
    for (Piece& piece : pieces) {
      piece.bytes = random() % 4 == 0 ? random() % 3 : random() % 400;
      piece.first = static_cast<int32_t>(random() % 8);
      piece.last = piece.first + static_cast<int32_t>(random() % 4);
      piece.offset = random();  // of no importance
    }
    const size_t total = place(&pieces);
    ASSERT_TRUE(separate(pieces, total)) << round;
    ASSERT_TRUE(placed_well(pieces, total)) << round;
    size_t sum = 0;
    for (const Piece& piece : pieces) sum += aligned(piece.bytes);
    EXPECT_LE(total, sum);
    EXPECT_GE(total, most_alive(pieces));
    // One byte less than the highest end is too little.
    size_t end = 0;
    for (const Piece& piece : pieces) end = std::max(end, piece.offset + piece.bytes);
    if (end > 0) {
      EXPECT_FALSE(placed_well(pieces, end - 1)) << round;
    }
  }
}

TEST(Scratch, JudgesRandomOffsetsRightly) {
  std::mt19937 random(12);
  int good = 0, bad = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<Piece> pieces(1 + random() % 4);
    for (Piece& piece : pieces) {
      piece.bytes = random() % 3 == 0 ? 64 * (random() % 3) : random() % 200;
      piece.first = static_cast<int32_t>(random() % 4);
      piece.last = piece.first + static_cast<int32_t>(random() % 3);
      piece.offset = 64 * (random() % 6) + (random() % 16 == 0 ? random() % 64 : 0);
    }
    const size_t limit = 64 * (random() % 10);
    const bool right = separate(pieces, limit);
    ASSERT_EQ(placed_well(pieces, limit), right) << round;
    ++(right ? good : bad);
  }
  // Both outcomes were seen often.
  EXPECT_GT(good, 1000);
  EXPECT_GT(bad, 1000);
}

TEST(Scratch, HugeNumbersDoNotWrapAround) {
  const size_t huge = SIZE_MAX - 63;
  EXPECT_FALSE(placed_well({{128, 0, 0, huge}}, 1000));
  EXPECT_FALSE(placed_well({{128, 0, 0, huge}}, SIZE_MAX));
  EXPECT_FALSE(placed_well({{SIZE_MAX, 0, 0, 64}}, SIZE_MAX));
  EXPECT_FALSE(placed_well({{SIZE_MAX - 64, 0, 0, 0}, {64, 0, 0, 64}}, SIZE_MAX));
  EXPECT_TRUE(placed_well({{SIZE_MAX - 127, 0, 0, 0}, {64, 0, 0, SIZE_MAX - 127}}, SIZE_MAX));
}

}  // namespace
}  // namespace litefuse
