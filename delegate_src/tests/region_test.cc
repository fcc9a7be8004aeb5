#include "region/region.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel.h"

namespace litefuse {
namespace {

constexpr float kOne = 1.0f;

// y = relu(x + c)
Region good() {
  Region region;
  for (const char* name : {"x", "c", "sum", "y"}) {
    Tensor tensor;
    tensor.name = name;
    tensor.type = Type::kFloat32;
    tensor.shape = {1};
    region.tensors.push_back(tensor);
  }
  region.tensors[1].constant = &kOne;
  Operator add;
  add.kind = Kind::kAdd;
  add.inputs = {0, 1};
  add.outputs = {2};
  add.index = 4;
  Operator relu;
  relu.kind = Kind::kRelu;
  relu.inputs = {2};
  relu.outputs = {3};
  region.operators = {add, relu};
  region.inputs = {0};
  region.outputs = {3};
  return region;
}

TEST(Structure, IsRight) {
  EXPECT_EQ(check_structure(good()).reason(), "");
  Region region = good();
  region.operators[1].inputs.push_back(-1);  // an optional input
  EXPECT_TRUE(check_structure(region).ok());
  region.outputs = {3, 2};
  EXPECT_TRUE(check_structure(region).ok());
}

TEST(Structure, EachFaultHasAReason) {
  const std::vector<std::pair<std::function<void(Region*)>, std::string>> cases{
      {[](Region* r) { r->operators.clear(); }, "no operators"},
      {[](Region* r) { r->outputs.clear(); }, "no outputs"},
      {[](Region* r) { r->inputs = {4}; }, "input 4 is no tensor"},
      {[](Region* r) { r->inputs = {-1}; }, "input -1 is no tensor"},
      {[](Region* r) {
         r->inputs = {0, 0};
       },
       "`x` is listed twice"},
      {[](Region* r) {
         r->inputs = {0, 1};
       },
       "`c` is listed twice or is a constant"},
      {[](Region* r) { r->inputs = {}; }, "ADD #4 `sum`: its input `x` is computed by nothing"},
      {[](Region* r) {
         r->inputs = {0, 2};
       },
       "`sum` has a value already"},
      {[](Region* r) {
         r->operators[0].inputs = {0, 9};
       },
       "input 9 is no tensor"},
      {[](Region* r) { r->operators[0].inputs = {-2}; }, "input -2 is no tensor"},
      {[](Region* r) {
         r->operators[0].inputs = {3, 1};
       },
       "`y` is computed by nothing"},
      {[](Region* r) {
         r->operators[0].inputs = {2, 1};
       },
       "`sum` is computed by nothing"},
      {[](Region* r) { std::swap(r->operators[0], r->operators[1]); }, "RELU `y`: its input `sum`"},
      {[](Region* r) { r->operators[1].outputs.clear(); }, "RELU: it has no outputs"},
      {[](Region* r) { r->operators[1].outputs = {-1}; }, "output -1 is no tensor"},
      {[](Region* r) { r->operators[1].outputs = {4}; }, "output 4 is no tensor"},
      {[](Region* r) {
         r->operators[1].outputs = {3, 3};
       },
       "`y` has a value already"},
      {[](Region* r) { r->operators[1].outputs = {2}; }, "`sum` has a value already"},
      {[](Region* r) { r->operators[1].outputs = {1}; }, "`c` has a value already"},
      {[](Region* r) { r->operators[1].outputs = {0}; }, "`x` has a value already"},
      {[](Region* r) {
         r->outputs = {3, 3};
       },
       "`y` is listed twice"},
      {[](Region* r) { r->outputs = {0}; }, "`x` is listed twice or computed by nothing"},
      {[](Region* r) { r->outputs = {1}; }, "`c` is listed twice or computed by nothing"},
      {[](Region* r) { r->outputs = {77}; }, "output 77 is no tensor"},
      {[](Region* r) { r->outputs = {-1}; }, "output -1 is no tensor"},
      {[](Region* r) { r->tensors.clear(); }, "no tensor"},
  };
  for (const auto& [damage, reason] : cases) {
    Region region = good();
    damage(&region);
    const Status status = check_structure(region);
    EXPECT_FALSE(status.ok()) << reason;
    EXPECT_NE(status.reason().find(reason), std::string::npos) << status.reason() << " is not " << reason;
  }
}

// What is accepted can be walked: every read comes after what computes it.
TEST(Structure, RandomRegions) {
  std::mt19937 random(5);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    Region region = good();
    auto number = [&random]() { return static_cast<int32_t>(random() % 6) - 1; };
    for (int change = 0; change < 2; ++change) {
      Operator& op = region.operators[random() % 2];
      std::vector<int32_t>* lists[] = {&op.inputs, &op.outputs, &region.inputs, &region.outputs};
      std::vector<int32_t>& list = *lists[random() % 4];
      if (random() % 3 == 0 || list.empty()) {
        list.push_back(number());
      } else {
        list[random() % list.size()] = number();
      }
    }
    if (!check_structure(region).ok()) continue;
    ++accepted;
    std::vector<bool> known(region.tensors.size(), false);
    known[1] = true;
    for (int32_t input : region.inputs) known.at(static_cast<size_t>(input)) = true;
    for (const Operator& op : region.operators) {
      for (int32_t input : op.inputs) ASSERT_TRUE(input == -1 || known.at(static_cast<size_t>(input)));
      for (int32_t output : op.outputs) {
        ASSERT_FALSE(known.at(static_cast<size_t>(output)));
        known[static_cast<size_t>(output)] = true;
      }
    }
    for (int32_t output : region.outputs) ASSERT_TRUE(known.at(static_cast<size_t>(output)));
  }
  EXPECT_GT(accepted, 100);
}

TEST(Kinds, HaveNamesAndKernels) {
  int count = 0;
  for (int number = -10; number < 300; ++number) {
    const Kind kind = static_cast<Kind>(number);
    EXPECT_EQ(name_of(kind) != nullptr, reference_kernel(kind) != nullptr) << number;
    if (name_of(kind) == nullptr) continue;
    ++count;
    EXPECT_NE(reference_kernel(kind)(), nullptr) << number;
  }
  int listed = 0;
#define LITEFUSE_KERNEL(kind, name, make) ++listed;
#include "kernels/kernels.inc"
#undef LITEFUSE_KERNEL
  EXPECT_EQ(count, listed);
  EXPECT_STREQ(name_of(Kind::kConv2d), "CONV_2D");
}

TEST(Describe, NamesKindPlaceAndOutput) {
  const Region region = good();
  EXPECT_EQ(describe(region, region.operators[0]), "ADD #4 `sum`");
  Operator odd;
  odd.kind = static_cast<Kind>(-3);
  odd.outputs = {99};
  EXPECT_EQ(describe(region, odd), "operator of kind -3");
}

}  // namespace
}  // namespace litefuse
