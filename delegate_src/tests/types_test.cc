#include "region/types.h"

#include <gtest/gtest.h>

#include <climits>
#include <cstdint>
#include <string>
#include <vector>

namespace litefuse {
namespace {

constexpr Type kTypes[] = {Type::kFloat32, Type::kInt32, Type::kUInt8, Type::kInt64,
                           Type::kBool,    Type::kInt16, Type::kInt8,  Type::kFloat16};

TEST(Types, SizesAreThoseOfTheElements) {
  EXPECT_EQ(size_of(Type::kFloat32), sizeof(float));
  EXPECT_EQ(size_of(Type::kInt32), sizeof(int32_t));
  EXPECT_EQ(size_of(Type::kInt64), sizeof(int64_t));
  EXPECT_EQ(size_of(Type::kInt16), sizeof(int16_t));
  EXPECT_EQ(size_of(Type::kFloat16), 2u);
  EXPECT_EQ(size_of(Type::kInt8), 1u);
  EXPECT_EQ(size_of(Type::kUInt8), 1u);
  EXPECT_EQ(size_of(Type::kBool), 1u);
}

// A file can hold any number as a type.
TEST(Types, UnknownNumbersHaveNoSizeAndAName) {
  for (int number = -2; number < 40; ++number) {
    const Type type = static_cast<Type>(number);
    bool known = false;
    for (const Type one : kTypes) known = known || one == type;
    EXPECT_EQ(size_of(type) > 0, known) << number;
    EXPECT_EQ(std::string(name_of(type)) != "an unknown type", known) << number;
  }
}

TEST(Types, NamesDiffer) {
  for (const Type a : kTypes) {
    for (const Type b : kTypes) EXPECT_EQ(std::string(name_of(a)) == name_of(b), a == b);
  }
}

TEST(Shape, IsAScalarAtFirst) {
  const Shape shape;
  EXPECT_EQ(shape.rank(), 0);
  EXPECT_EQ(shape.elements(), 1);
  EXPECT_EQ(shape.str(), "[]");
}

TEST(Shape, TellsItsDimensions) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[2], 5);
  EXPECT_EQ(shape.last(0), 5);
  EXPECT_EQ(shape.last(2), 2);
  EXPECT_EQ(shape.data()[1], 3);
  EXPECT_EQ(shape.elements(), 30);
  EXPECT_EQ(shape.str(), "[2,3,5]");
}

TEST(Shape, OfNothingHasNoElements) {
  EXPECT_EQ((Shape{4, 0, 7}).elements(), 0);
  EXPECT_EQ((Shape{0}).elements(), 0);
}

TEST(Shape, RefusesWhatIsAbsurdAndStaysAsItWas) {
  Shape shape{2, 3};
  EXPECT_FALSE(shape.assign({-1, 3}));
  EXPECT_FALSE(shape.assign({INT_MIN}));
  EXPECT_FALSE(shape.assign(std::vector<int32_t>(kMaxRank + 1, 1)));
  EXPECT_FALSE(shape.assign(shape.data(), -1));
  EXPECT_FALSE(shape.assign({INT_MAX, INT_MAX}));
  // 2^31 to the eighth: no product of these may overflow on the way to the refusal.
  EXPECT_FALSE(shape.assign(std::vector<int32_t>(kMaxRank, INT_MAX)));
  // In 64 bits these products would be 0 and negative.
  EXPECT_FALSE(shape.assign({1 << 30, 1 << 10, 1 << 24}));
  EXPECT_FALSE(shape.assign({1 << 20, 1 << 20, INT_MAX}));
  EXPECT_FALSE(shape.assign({1 << 30, 1 << 10, INT_MAX, INT_MAX}));
  EXPECT_EQ(shape, (Shape{2, 3}));
}

TEST(Shape, TakesAsManyElementsAsAreAllowedAndNoMore) {
  Shape shape;
  EXPECT_TRUE(shape.assign({1 << 20, 1 << 20}));
  EXPECT_EQ(shape.elements(), kMaxElements);
  EXPECT_FALSE(shape.assign({1 << 20, (1 << 20) + 1}));
  EXPECT_TRUE(shape.assign({INT_MAX}));
  EXPECT_EQ(shape.elements(), INT_MAX);
}

TEST(Shape, AZeroHidesNothing) {
  Shape shape;
  EXPECT_FALSE(shape.assign({0, INT_MAX, INT_MAX}));
  EXPECT_FALSE(shape.assign({INT_MAX, INT_MAX, 0}));
  EXPECT_TRUE(shape.assign({0, 1 << 20, 1 << 20}));
}

TEST(Shape, ForgetsThePreviousDimensions) {
  Shape shape{2, 3, 4};
  EXPECT_TRUE(shape.assign({7}));
  EXPECT_EQ(shape, (Shape{7}));
  EXPECT_EQ(shape.elements(), 7);
  EXPECT_TRUE(shape.assign(nullptr, 0));
  EXPECT_EQ(shape, Shape());
}

TEST(Shape, IsEqualWhenRankAndDimensionsAre) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{1, 2}), (Shape{2}));
  EXPECT_NE((Shape{2}), (Shape{2, 0}));
  EXPECT_NE((Shape{1}), Shape());
}

TEST(Shape, ExtendsByLeadingOnes) {
  const Shape shape{2, 3};
  EXPECT_EQ(shape.extended(4), (Shape{1, 1, 2, 3}));
  EXPECT_EQ(shape.extended(2), shape);
  EXPECT_EQ(Shape().extended(3), (Shape{1, 1, 1}));
  EXPECT_EQ(shape.extended(kMaxRank).elements(), shape.elements());
  EXPECT_EQ((Shape{0, 5}).extended(3).elements(), 0);
}

TEST(Quantization, KnowsWhichKindItIs) {
  Quantization none;
  EXPECT_FALSE(none.quantized());
  EXPECT_FALSE(none.per_channel());
  EXPECT_EQ(none.scale(), 0.0f);
  EXPECT_EQ(none.zero_point(), 0);

  const Quantization whole{{0.5f}, {-3}, 0};
  EXPECT_TRUE(whole.quantized());
  EXPECT_FALSE(whole.per_channel());
  EXPECT_EQ(whole.scale(), 0.5f);
  EXPECT_EQ(whole.zero_point(), -3);

  const Quantization channels{{0.5f, 0.25f}, {0, 0}, 3};
  EXPECT_TRUE(channels.quantized());
  EXPECT_TRUE(channels.per_channel());
}

}  // namespace
}  // namespace litefuse
