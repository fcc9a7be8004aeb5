#include "tflite/flexbuffer.h"

#include <gtest/gtest.h>

#include <climits>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/fake_runtime.h"

namespace litefuse {
namespace {

using fake::Bytes;

// What flatbuffers.flexbuffers of Python's flatbuffers 25 writes.
// clang-format off
// {'litefuse': 1, 'inputs': [0, 1], 'outputs': [3], 'places': [0, 0, 0, 1, 0, 1099511627776], 'scratch_bytes':
// 70000}
constexpr uint8_t kAttributes[] = {
    108, 105, 116, 101, 102, 117, 115, 101, 0, 105, 110, 112, 117, 116, 115, 0, 2, 0, 1, 4, 4, 111, 117, 116, 112,
    117, 116, 115, 0, 1, 3, 4, 112, 108, 97, 99, 101, 115, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
    0, 0, 7, 7, 7, 7, 7, 7, 115, 99, 114, 97, 116, 99, 104, 95, 98, 121, 116, 101, 115, 0, 5, 108, 118, 98, 88, 19,
    0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 119, 0, 0, 0, 1, 0, 0, 0, 114, 0, 0, 0, 100, 0, 0, 0, 112, 17, 1, 0,
    40, 6, 40, 43, 6, 25, 38, 1};
// {'litefuse': 1, 'regions': [{'kind': 'conv_epilogue', 'subgraph': 0, 'operators': [3, 4, 5], 'fingerprint':
// 4611686018427400249, 'places': [], 'scratch_bytes': 0}, {'kind': 'é', 'subgraph': 1, 'operators': [300],
// 'fingerprint': -1}]}
constexpr uint8_t kPlan[] = {
    108, 105, 116, 101, 102, 117, 115, 101, 0, 114, 101, 103, 105, 111, 110, 115, 0, 107, 105, 110, 100, 0, 13, 99,
    111, 110, 118, 95, 101, 112, 105, 108, 111, 103, 117, 101, 0, 115, 117, 98, 103, 114, 97, 112, 104, 0, 111, 112,
    101, 114, 97, 116, 111, 114, 115, 0, 3, 3, 4, 5, 4, 4, 4, 102, 105, 110, 103, 101, 114, 112, 114, 105, 110, 116,
    0, 112, 108, 97, 99, 101, 115, 0, 0, 115, 99, 114, 97, 116, 99, 104, 95, 98, 121, 116, 101, 115, 0, 6, 35, 82,
    54, 26, 19, 66, 6, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 57, 48, 0, 0, 0, 0, 0,
    64, 113, 0, 0, 0, 0, 0, 0, 0, 87, 0, 0, 0, 0, 0, 0, 0, 69, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 7, 20, 40, 40, 7, 7, 107, 105, 110, 100, 0, 2, 195, 169, 0, 115, 117, 98, 103, 114, 97, 112, 104,
    0, 111, 112, 101, 114, 97, 116, 111, 114, 115, 0, 1, 0, 44, 1, 5, 102, 105, 110, 103, 101, 114, 112, 114, 105,
    110, 116, 0, 4, 13, 47, 30, 40, 4, 1, 4, 255, 48, 25, 1, 4, 20, 41, 4, 2, 116, 10, 39, 36, 2, 249, 241, 2, 1, 2,
    1, 11, 4, 40, 4, 36, 1};
// {'a': True, 'b': None, 'c': 1.5, 'd': 'text', 'e': [1, 'two', [3]], 'f': b'blob', 'g': -129, 'h':
// 9223372036854775807, 'i': -9223372036854775808, 'j': [True, False], 'k': [1.0, 2.0], 'l': {}, 'm': '', 'n': [-1,
// -40000]}
constexpr uint8_t kMixed[] = {
    97, 0, 98, 0, 99, 0, 100, 0, 4, 116, 101, 120, 116, 0, 101, 0, 3, 116, 119, 111, 0, 1, 3, 4, 3, 1, 9, 5, 4, 20,
    40, 102, 0, 4, 98, 108, 111, 98, 103, 0, 104, 0, 105, 0, 106, 0, 2, 1, 0, 104, 104, 107, 0, 0, 0, 0, 2, 0, 0, 0,
    0, 0, 128, 63, 0, 0, 0, 64, 14, 14, 108, 0, 0, 0, 1, 0, 109, 0, 0, 0, 110, 0, 0, 0, 2, 0, 0, 0, 255, 255, 255,
    255, 192, 99, 255, 255, 6, 6, 14, 99, 98, 97, 96, 89, 73, 67, 66, 65, 64, 58, 40, 35, 32, 0, 0, 0, 0, 0, 0, 0,
    21, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 14, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 248, 63, 159, 0, 0, 0, 0, 0, 0, 0, 151, 0, 0, 0, 0, 0, 0, 0, 150, 0, 0, 0, 0, 0, 0,
    0, 127, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 127, 0, 0, 0, 0, 0, 0, 0, 128,
    169, 0, 0, 0, 0, 0, 0, 0, 164, 0, 0, 0, 0, 0, 0, 0, 156, 0, 0, 0, 0, 0, 0, 0, 161, 0, 0, 0, 0, 0, 0, 0, 160, 0,
    0, 0, 0, 0, 0, 0, 107, 3, 15, 20, 40, 100, 7, 7, 7, 40, 42, 36, 20, 42, 126, 39, 1};
// -7
constexpr uint8_t kNumber[] = {
    249, 4, 1};
// 'hello'
constexpr uint8_t kText[] = {
    5, 104, 101, 108, 108, 111, 0, 6, 20, 1};
// {'k0': 0, 'k1': 1000, .. 'k39': 39000}
constexpr uint8_t kWide[] = {
    107, 48, 0, 107, 49, 0, 107, 50, 0, 107, 51, 0, 107, 52, 0, 107, 53, 0, 107, 54, 0, 107, 55, 0, 107, 56, 0, 107,
    57, 0, 107, 49, 48, 0, 107, 49, 49, 0, 107, 49, 50, 0, 107, 49, 51, 0, 107, 49, 52, 0, 107, 49, 53, 0, 107, 49,
    54, 0, 107, 49, 55, 0, 107, 49, 56, 0, 107, 49, 57, 0, 107, 50, 48, 0, 107, 50, 49, 0, 107, 50, 50, 0, 107, 50,
    51, 0, 107, 50, 52, 0, 107, 50, 53, 0, 107, 50, 54, 0, 107, 50, 55, 0, 107, 50, 56, 0, 107, 50, 57, 0, 107, 51,
    48, 0, 107, 51, 49, 0, 107, 51, 50, 0, 107, 51, 51, 0, 107, 51, 52, 0, 107, 51, 53, 0, 107, 51, 54, 0, 107, 51,
    55, 0, 107, 51, 56, 0, 107, 51, 57, 0, 40, 151, 149, 123, 120, 117, 114, 111, 108, 105, 102, 99, 96, 157, 94,
    91, 88, 85, 82, 79, 76, 73, 70, 67, 165, 65, 62, 59, 56, 53, 50, 47, 44, 41, 38, 173, 171, 169, 167, 165, 163,
    0, 41, 0, 0, 0, 1, 0, 0, 0, 40, 0, 0, 0, 0, 0, 0, 0, 232, 3, 0, 0, 16, 39, 0, 0, 248, 42, 0, 0, 224, 46, 0, 0,
    200, 50, 0, 0, 176, 54, 0, 0, 152, 58, 0, 0, 128, 62, 0, 0, 104, 66, 0, 0, 80, 70, 0, 0, 56, 74, 0, 0, 208, 7,
    0, 0, 32, 78, 0, 0, 8, 82, 0, 0, 240, 85, 0, 0, 216, 89, 0, 0, 192, 93, 0, 0, 168, 97, 0, 0, 144, 101, 0, 0,
    120, 105, 0, 0, 96, 109, 0, 0, 72, 113, 0, 0, 184, 11, 0, 0, 48, 117, 0, 0, 24, 121, 0, 0, 0, 125, 0, 0, 232,
    128, 0, 0, 208, 132, 0, 0, 184, 136, 0, 0, 160, 140, 0, 0, 136, 144, 0, 0, 112, 148, 0, 0, 88, 152, 0, 0, 160,
    15, 0, 0, 136, 19, 0, 0, 112, 23, 0, 0, 88, 27, 0, 0, 64, 31, 0, 0, 40, 35, 0, 0, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6,
    6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 200, 38, 1};
// map with typed vectors of fixed and other lengths, and indirect integers
constexpr uint8_t kTyped[] = {
    102, 105, 120, 101, 100, 0, 7, 8, 9, 116, 121, 112, 101, 100, 0, 0, 4, 0, 1, 0, 2, 0, 3, 0, 144, 1, 105, 110,
    100, 105, 114, 101, 99, 116, 0, 251, 105, 110, 100, 105, 114, 101, 99, 116, 117, 0, 0, 0, 209, 47, 1, 0, 117, 0,
    112, 97, 105, 114, 0, 255, 254, 102, 111, 117, 114, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 112, 17, 1, 0,
    107, 101, 121, 0, 1, 120, 0, 8, 92, 32, 68, 59, 12, 43, 89, 47, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
    0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 122, 0, 0, 0, 0, 0, 0, 0, 68, 0, 0, 0, 0, 0, 0, 0, 109, 0, 0, 0, 0, 0, 0, 0,
    104, 0, 0, 0, 0, 0, 0, 0, 71, 0, 0, 0, 0, 0, 0, 0, 109, 0, 0, 0, 0, 0, 0, 0, 158, 0, 0, 0, 0, 0, 0, 0, 255, 255,
    255, 255, 255, 255, 255, 255, 76, 90, 24, 30, 20, 64, 45, 11, 72, 39, 1};
// clang-format on

template <size_t size>
Bytes bytes_of(const uint8_t (&array)[size]) {
  return Bytes(array, array + size);
}

// In memory of exactly that size, for the sanitizer to see the first byte too many.
class Exact {
 public:
  explicit Exact(const Bytes& bytes) : size_(bytes.size()), data_(new uint8_t[bytes.size()]) {
    if (!bytes.empty()) std::memcpy(data_.get(), bytes.data(), bytes.size());
  }
  FlexValue root() const { return FlexValue::root(data_.get(), size_); }

 private:
  size_t size_;
  std::unique_ptr<uint8_t[]> data_;
};

// Asks a value everything. Damaged values may refer to each other in circles.
int64_t explore(const FlexValue& value, int depth, int* budget) {
  if (--*budget < 0) return 0;
  int64_t sum = value.integer(1) ^ static_cast<int64_t>(value.string("none").size());
  for (const char* key : {"litefuse", "inputs", "regions", "places", "a", "k39", "", "fingerprint"}) {
    const FlexValue member = value.get(key);
    sum ^= member.integer(2);
    if (depth > 0 && member.exists()) sum ^= explore(member, depth - 1, budget);
  }
  if (*budget > 0 && value.size() < 100000) {
    for (int64_t number : value.integers()) sum ^= number;
  }
  for (size_t i = 0; i < value.size() && *budget > 0; ++i) {
    const FlexValue element = value.element(i);
    sum ^= element.integer(3);
    if (depth > 0) sum ^= explore(element, depth - 1, budget);
  }
  EXPECT_FALSE(value.element(value.size()).exists());
  EXPECT_FALSE(value.element(SIZE_MAX).exists());
  return sum;
}
int64_t explore(const Bytes& bytes) {
  const Exact exact(bytes);
  int budget = 2000;
  return explore(exact.root(), 5, &budget);
}

std::vector<Bytes> all() {
  return {bytes_of(kAttributes), bytes_of(kPlan), bytes_of(kMixed), bytes_of(kNumber),
          bytes_of(kText),       bytes_of(kWide), bytes_of(kTyped)};
}

TEST(FlexBuffer, ReadsAttributes) {
  const Exact exact(bytes_of(kAttributes));
  const FlexValue root = exact.root();
  EXPECT_TRUE(root.exists());
  EXPECT_EQ(root.get("litefuse").integer(-1), 1);
  EXPECT_EQ(root.get("inputs").integers(), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(root.get("outputs").integers(), std::vector<int64_t>{3});
  EXPECT_EQ(root.get("places").integers(), (std::vector<int64_t>{0, 0, 0, 1, 0, int64_t{1} << 40}));
  EXPECT_EQ(root.get("scratch_bytes").integer(-1), 70000);
  EXPECT_EQ(root.size(), 5u);
  EXPECT_FALSE(root.get("input").exists());
  EXPECT_FALSE(root.get("inputsx").exists());
  EXPECT_FALSE(root.get("").exists());
  EXPECT_EQ(root.integer(-4), -4);
  EXPECT_EQ(root.string("no"), "no");
}

TEST(FlexBuffer, ReadsPlans) {
  const Exact exact(bytes_of(kPlan));
  const FlexValue regions = exact.root().get("regions");
  ASSERT_EQ(regions.size(), 2u);
  EXPECT_EQ(regions.element(0).get("kind").string(""), "conv_epilogue");
  EXPECT_EQ(regions.element(0).get("operators").integers(), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(regions.element(0).get("fingerprint").integer(0), (int64_t{1} << 62) + 12345);
  EXPECT_EQ(regions.element(0).get("places").size(), 0u);
  EXPECT_EQ(regions.element(1).get("kind").string(""), "\xc3\xa9");
  EXPECT_EQ(regions.element(1).get("operators").integers(), std::vector<int64_t>{300});
  EXPECT_EQ(regions.element(1).get("fingerprint").integer(0), -1);
  EXPECT_FALSE(regions.element(2).exists());
}

TEST(FlexBuffer, ReadsEverySort) {
  const Exact exact(bytes_of(kMixed));
  const FlexValue root = exact.root();
  EXPECT_EQ(root.get("a").integer(7), 1);
  EXPECT_TRUE(root.get("b").exists());
  EXPECT_EQ(root.get("b").integer(7), 7);
  EXPECT_EQ(root.get("c").integer(7), 7);  // no integer
  EXPECT_EQ(root.get("d").string(""), "text");
  EXPECT_EQ(root.get("d").integer(7), 7);
  EXPECT_EQ(root.get("e").size(), 3u);
  EXPECT_EQ(root.get("e").integers(), (std::vector<int64_t>{1, 0, 0}));
  EXPECT_EQ(root.get("e").element(1).string(""), "two");
  EXPECT_EQ(root.get("e").element(2).integers(), std::vector<int64_t>{3});
  EXPECT_EQ(root.get("f").size(), 0u);  // a blob
  EXPECT_EQ(root.get("g").integer(0), -129);
  EXPECT_EQ(root.get("h").integer(0), INT64_MAX);
  EXPECT_EQ(root.get("i").integer(0), INT64_MIN);
  EXPECT_EQ(root.get("j").integers(), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(root.get("k").integers(), (std::vector<int64_t>{0, 0}));  // floats
  EXPECT_EQ(root.get("l").size(), 0u);
  EXPECT_TRUE(root.get("m").exists());
  EXPECT_EQ(root.get("m").string("no"), "");
  EXPECT_EQ(root.get("n").integers(), (std::vector<int64_t>{-1, -40000}));
}

TEST(FlexBuffer, ReadsTypedVectorsAndIndirectIntegers) {
  const Exact exact(bytes_of(kTyped));
  const FlexValue root = exact.root();
  EXPECT_EQ(root.get("fixed").integers(), (std::vector<int64_t>{7, 8, 9}));
  EXPECT_EQ(root.get("typed").integers(), (std::vector<int64_t>{1, 2, 3, 400}));
  EXPECT_EQ(root.get("indirect").integer(0), -5);
  EXPECT_EQ(root.get("indirectu").integer(0), 77777);
  EXPECT_EQ(root.get("u").integer(7), 7);  // 2^64 - 1 fits in no int64
  EXPECT_EQ(root.get("pair").integers(), (std::vector<int64_t>{-1, -2}));
  EXPECT_EQ(root.get("four").integers(), (std::vector<int64_t>{1, 2, 3, 70000}));
}

TEST(FlexBuffer, ReadsRootsThatAreNoMaps) {
  const Exact number(bytes_of(kNumber));
  EXPECT_EQ(number.root().integer(0), -7);
  EXPECT_EQ(number.root().size(), 0u);
  EXPECT_FALSE(number.root().get("a").exists());
  const Exact text(bytes_of(kText));
  EXPECT_EQ(text.root().string(""), "hello");
  const Exact wide(bytes_of(kWide));
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(wide.root().get(("k" + std::to_string(i)).c_str()).integer(-1), 1000 * i);
  }
}

TEST(FlexBuffer, ReadsWhatTheTestsWrite) {
  using fake::Flex;
  const Exact exact(fake::flexbuffer(Flex::map({{"b", Flex::ints({INT64_MIN, 0, INT64_MAX})},
                                                {"a", Flex::vector({1, "two", Flex::map({{"c", -3}})})},
                                                {"d", ""}})));
  const FlexValue root = exact.root();
  EXPECT_EQ(root.get("b").integers(), (std::vector<int64_t>{INT64_MIN, 0, INT64_MAX}));
  EXPECT_EQ(root.get("a").element(0).integer(0), 1);
  EXPECT_EQ(root.get("a").element(1).string(""), "two");
  EXPECT_EQ(root.get("a").element(2).get("c").integer(0), -3);
  EXPECT_EQ(root.get("d").string("no"), "");
}

TEST(FlexBuffer, IsNothingWithoutBytes) {
  EXPECT_FALSE(FlexValue().exists());
  EXPECT_FALSE(FlexValue::root(nullptr, 100).exists());
  const uint8_t few[] = {0, 4, 1};
  for (size_t size = 0; size < 3; ++size) EXPECT_FALSE(FlexValue::root(few, size).exists());
  const uint8_t width[] = {0, 0, 0, 4, 3};
  EXPECT_FALSE(FlexValue::root(width, 5).exists());
  EXPECT_EQ(FlexValue().size(), 0u);
  EXPECT_EQ(FlexValue().integer(5), 5);
  EXPECT_EQ(FlexValue().string("x"), "x");
  EXPECT_FALSE(FlexValue().get("a").exists());
  EXPECT_FALSE(FlexValue().element(0).exists());
}

TEST(FlexBuffer, EveryTruncationStaysInside) {
  int64_t sum = 0;
  for (const Bytes& whole : all()) {
    for (size_t size = 0; size < whole.size(); ++size) {
      sum ^= explore(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
      sum ^= explore(Bytes(whole.end() - static_cast<std::ptrdiff_t>(size), whole.end()));
    }
  }
  RecordProperty("sum", std::to_string(sum));
}

TEST(FlexBuffer, EveryByteMayBeAnything) {
  for (const Bytes& whole : {bytes_of(kAttributes), bytes_of(kText), bytes_of(kNumber)}) {
    for (size_t i = 0; i < whole.size(); ++i) {
      for (const int value : {0, 1, 2, 3, 4, 8, 127, 128, 255, 36 << 2 & 255, 9 << 2 | 3}) {
        Bytes damaged = whole;
        damaged[i] = static_cast<uint8_t>(value);
        explore(damaged);
      }
    }
  }
}

TEST(FlexBuffer, RandomDamageStaysInside) {
  std::mt19937 random(20240607);
  auto below = [&random](size_t limit) { return static_cast<size_t>(random() % limit); };
  for (const Bytes& whole : all()) {
    for (int round = 0; round < 3000; ++round) {
      Bytes damaged = whole;
      for (size_t i = 0, n = 1 + below(6); i < n && !damaged.empty(); ++i) {
        const size_t place =
            below(4) == 0 ? damaged.size() - 1 - below(std::min<size_t>(damaged.size(), 12)) : below(damaged.size());
        switch (below(4)) {
          case 0:
            damaged[place] = static_cast<uint8_t>(random());
            break;
          case 1:
            damaged[place] ^= static_cast<uint8_t>(1u << below(8));
            break;
          case 2:
            damaged.erase(damaged.begin() + static_cast<std::ptrdiff_t>(place));
            break;
          default:
            damaged.insert(damaged.begin() + static_cast<std::ptrdiff_t>(place), static_cast<uint8_t>(random()));
        }
      }
      explore(damaged);
    }
  }
  for (int round = 0; round < 10000; ++round) {
    Bytes noise(below(64));
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random());
    if (!noise.empty()) noise.back() = static_cast<uint8_t>(1u << below(4));
    explore(noise);
  }
}

}  // namespace
}  // namespace litefuse
