#include "region/weights.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/simd/simd.h"

namespace litefuse {
namespace {

// Keys of these tests alone.
WeightsKey key_of(int64_t number) { return WeightsKey("weights_test").add(number); }

std::shared_ptr<const Weights> pack_numbers(const WeightsKey& key, size_t floats, float value, int* packed) {
  return packed_weights(key, floats, [&](float* to) {
    ++*packed;
    for (size_t i = 0; i < floats; ++i) to[i] = value;
  });
}

TEST(Weights, AreAligned) {
  for (const size_t floats : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{1000}}) {
    const std::shared_ptr<Weights> weights = Weights::make(floats);
    ASSERT_NE(weights, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(weights->data()) % kWeightAlignment, 0u);
    EXPECT_GE(weights->bytes(), floats * sizeof(float));
    EXPECT_EQ(weights->bytes() % kWeightAlignment, 0u);
    for (size_t i = 0; i < floats; ++i) weights->data()[i] = 1.0f;
  }
}

TEST(Weights, AreSharedWhileTheyAreHeld) {
  const PackingReport before = packing_report();
  int packed = 0;
  auto one = pack_numbers(key_of(1), 100, 2.5f, &packed);
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one->data()[99], 2.5f);
  auto same = pack_numbers(key_of(1), 100, 9.0f, &packed);
  EXPECT_EQ(same, one);
  auto other = pack_numbers(key_of(2), 100, 3.5f, &packed);
  EXPECT_NE(other, one);
  EXPECT_EQ(other->data()[0], 3.5f);
  EXPECT_EQ(packed, 2);
  PackingReport now = packing_report();
  EXPECT_EQ(now.packed - before.packed, 2u);
  EXPECT_EQ(now.shared - before.shared, 1u);
  EXPECT_EQ(now.packed_bytes - before.packed_bytes, one->bytes() + other->bytes());
  EXPECT_GE(now.nanoseconds, before.nanoseconds);
  one.reset();
  EXPECT_EQ(packing_report().packed_bytes, now.packed_bytes);  // `same` holds it
  same.reset();
  EXPECT_EQ(packing_report().packed_bytes - before.packed_bytes, other->bytes());
  one = pack_numbers(key_of(1), 100, 4.5f, &packed);
  EXPECT_EQ(packed, 3);
  EXPECT_EQ(one->data()[0], 4.5f);
  one.reset();
  other.reset();
  EXPECT_EQ(packing_report().packed_bytes, before.packed_bytes);
}

TEST(Weights, HaveKeysOfTheirNumbers) {
  std::vector<float> numbers(19, 1.0f);
  const size_t bytes = numbers.size() * sizeof(float);
  std::set<std::string> keys;
  size_t count = 0;
  const auto insert = [&](const WeightsKey& key) {
    keys.insert(key.str());
    ++count;
  };
  insert(WeightsKey("a"));
  insert(WeightsKey("b"));
  insert(WeightsKey("a").add(1));
  insert(WeightsKey("a").add(-1));
  insert(WeightsKey("a").add(1).add(1));
  insert(WeightsKey("a").add(11));
  insert(WeightsKey("a").add(nullptr, 0));
  insert(WeightsKey("a").add(nullptr, 0).add(nullptr, 0));
  for (size_t length = 0; length <= bytes; ++length) insert(WeightsKey("a").add(numbers.data(), length));
  for (float& x : numbers) {  // one number is another, wherever it is
    x = -1.0f;
    insert(WeightsKey("a").add(numbers.data(), bytes));
    x = 1.0f;
  }
  numbers[0] = 2.0f;
  numbers[2] = 3.0f;
  insert(WeightsKey("a").add(numbers.data(), bytes));
  std::swap(numbers[0], numbers[2]);
  insert(WeightsKey("a").add(numbers.data(), bytes));
  EXPECT_EQ(keys.size(), count);
  // The same numbers elsewhere, with any alignment.
  std::vector<char> copy(bytes + 1);
  std::memcpy(copy.data() + 1, numbers.data(), bytes);
  EXPECT_EQ(WeightsKey("a").add(numbers.data(), bytes).str(), WeightsKey("a").add(copy.data() + 1, bytes).str());
}

TEST(Weights, ArePackedByManyThreads) {
  const PackingReport before = packing_report();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        const int number = round % 5;
        int packed = 0;
        const auto weights = pack_numbers(key_of(100 + number), 64, static_cast<float>(number), &packed);
        for (size_t i = 0; i < 64; ++i) wrong += weights->data()[i] != static_cast<float>(number);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  const PackingReport after = packing_report();
  EXPECT_EQ(after.packed_bytes, before.packed_bytes);
  EXPECT_EQ(after.packed + after.shared - before.packed - before.shared, 800u);
}

}  // namespace
}  // namespace litefuse
