// DENSIFY: sparse constants of all forms against what they were made from, and such as no converter writes.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel.h"
#include "region/executor.h"
#include "tests/random.h"
#include "tests/sparse.h"

namespace litefuse {
namespace {

using fake::make_sparse;
using fake::Random;
using fake::random_form;
using fake::Sparse;
using fake::SparseForm;
using Dims = std::vector<int32_t>;

Tensor tensor(Type type, const Dims& dims, const char* name) {
  Tensor made;
  made.name = name;
  made.type = type;
  EXPECT_TRUE(made.shape.assign(dims));
  return made;
}

Operator op(Kind kind, std::vector<int32_t> inputs, std::vector<int32_t> outputs) {
  Operator made;
  made.kind = kind;
  made.inputs = std::move(inputs);
  made.outputs = std::move(outputs);
  return made;
}

// A region of DENSIFY alone.
Region alone(Type type, const Dims& dims, const Sparsity& how, const void* values) {
  Region region;
  region.tensors = {tensor(type, dims, "sparse"), tensor(type, {}, "dense")};
  region.tensors[0].constant = values;
  region.tensors[0].sparsity = std::make_shared<Sparsity>(how);
  region.operators = {op(Kind::kDensify, {0}, {1})};
  region.outputs = {1};
  return region;
}

template <typename T>
std::vector<T> densified(Type type, const Dims& dims, const Sparse<T>& sparse) {
  // No vector has an address when it is empty, but a constant always has one.
  std::vector<T> values = sparse.values;
  values.reserve(1);
  std::unique_ptr<Executable> executable;
  const Region region = alone(type, dims, sparse.how, values.data());
  const Status status = Executor::compile(region, CompileOptions(), nullptr, &executable);
  EXPECT_TRUE(status.ok()) << status.reason();
  if (!status.ok()) return {};
  EXPECT_EQ(executable->output_shape(0), region.tensors[0].shape);
  std::vector<T> result(static_cast<size_t>(region.tensors[0].shape.elements()), T(7));
  std::vector<char> scratch(executable->scratch_bytes() + kAlignment);
  void* memory = scratch.data() + aligned(reinterpret_cast<uintptr_t>(scratch.data())) -
                 reinterpret_cast<uintptr_t>(scratch.data());
  EXPECT_TRUE(executable->run({}, {result.data()}, memory, nullptr).ok());
  return result;
}

template <typename T>
void check_random(Type type, uint64_t seed) {
  Random random(seed);
  Dims dims;
  for (int i = 0, rank = random.between(0, 5); i < rank; ++i) dims.push_back(random.between(1, 6));
  Shape shape;
  ASSERT_TRUE(shape.assign(dims));
  const int rarity = random.between(1, 6);
  std::vector<T> all(static_cast<size_t>(shape.elements()));
  for (T& x : all) x = random.one_in(rarity) ? static_cast<T>(random.between(1, 100)) : T(0);
  const Sparse<T> sparse = make_sparse(all, dims, random_form(dims, &random));
  EXPECT_EQ(densified(type, dims, sparse), all) << "seed " << seed << ", shape " << shape.str();
}

TEST(Densify, GivesBackWhatWasMadeSparse) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    check_random<float>(Type::kFloat32, seed);
    check_random<uint16_t>(Type::kFloat16, seed);
    check_random<int8_t>(Type::kInt8, seed);
  }
}

TEST(Densify, ByHand) {
  // Blocks of 2x3 in a matrix of 4x6: the second in the upper half, the first in the lower.
  Sparse<float> sparse;
  sparse.how.order = {0, 1, 2, 3};
  sparse.how.block_map = {0, 1};
  sparse.how.levels = {{true, 2, {}, {}}, {false, 0, {0, 1, 2}, {1, 0}}, {true, 2, {}, {}}, {true, 3, {}, {}}};
  sparse.how.values = 12;
  for (int i = 1; i <= 12; ++i) sparse.values.push_back(static_cast<float>(i));
  const std::vector<float> expected{0, 0, 0, 1, 2, 3, 0, 0, 0, 4, 5, 6, 7, 8, 9, 0, 0, 0, 10, 11, 12, 0, 0, 0};
  EXPECT_EQ(densified(Type::kFloat32, {4, 6}, sparse), expected);
}

// A matrix of 4x6 by columns, with blocks of 3 in a row.
struct Example {
  Sparse<int8_t> sparse;
  Region region;

  Example() {
    std::vector<int8_t> all(24);
    for (int i : {0, 5, 9, 20}) all[static_cast<size_t>(i)] = static_cast<int8_t>(i + 1);
    sparse = make_sparse(all, {4, 6}, SparseForm{{1, 0, 2}, {1}, {3}, {true, false, true}});
    region = alone(Type::kInt8, {4, 6}, sparse.how, sparse.values.data());
  }
  std::string refusal() {
    region.tensors[0].sparsity = std::make_shared<Sparsity>(sparse.how);
    return compile();
  }
  std::string compile() const {
    std::unique_ptr<Executable> executable;
    const Status status = Executor::compile(region, CompileOptions(), nullptr, &executable);
    return status.ok() ? "" : status.reason();
  }
};

TEST(Densify, RefusesDescriptionsThatContradictThemselves) {
  constexpr int32_t kMax = INT32_MAX;
  const std::vector<std::pair<std::function<void(Sparsity*)>, std::string>> cases{
      {[](Sparsity* s) {
         s->order = {1, 0};
       },
       "traversal order of 2"},
      {[](Sparsity* s) {
         s->order = {1, 1, 2};
       },
       "traversal order is none"},
      {[](Sparsity* s) {
         s->order = {1, 2, 0};
       },
       "traversal order is none"},
      {[](Sparsity* s) {
         s->order = {1, 0, 3};
       },
       "traversal order is none"},
      {[](Sparsity* s) {
         s->order = {1, -1, 2};
       },
       "traversal order is none"},
      {[](Sparsity* s) { s->block_map = {}; }, "0 blocks"},
      {[](Sparsity* s) {
         s->block_map = {0, 1, 1};
       },
       "3 blocks"},
      {[](Sparsity* s) { s->block_map = {2}; }, "block map"},
      {[](Sparsity* s) { s->block_map = {-1}; }, "block map"},
      {[](Sparsity* s) { s->levels.pop_back(); }, "2 levels"},
      {[](Sparsity* s) { s->levels[2].size = 4; }, "do not divide"},
      {[](Sparsity* s) { s->levels[2].size = 0; }, "do not divide"},
      {[](Sparsity* s) { s->levels[2].size = -3; }, "do not divide"},
      {[](Sparsity* s) { s->levels[2].dense = false; }, "do not divide"},
      {[](Sparsity* s) { s->levels[0].size = 3; }, "has size 3 instead of 2"},
      {[](Sparsity* s) { s->levels[0].size = kMax; }, "instead of 2"},
      {[](Sparsity* s) { s->levels[0].size = -1; }, "instead of 2"},
      {[](Sparsity* s) { s->levels[1].segments.pop_back(); }, "segments for 2 rows"},
      {[](Sparsity* s) { s->levels[1].segments.clear(); }, "0 segments"},
      {[](Sparsity* s) { s->levels[1].segments[0] = 1; }, "do not rise"},
      {[](Sparsity* s) { s->levels[1].segments[1] = -1; }, "do not rise"},
      {[](Sparsity* s) { s->levels[1].segments[1] = kMax; }, "do not rise"},
      {[](Sparsity* s) { s->levels[1].segments[2] += 1; }, "do not rise"},
      {[](Sparsity* s) { s->levels[1].indices[0] = 4; }, "index 4 is not below 4"},
      {[](Sparsity* s) { s->levels[1].indices[0] = -1; }, "index -1"},
      {[](Sparsity* s) { s->levels[1].indices.push_back(0); }, "do not rise"},
      {[](Sparsity* s) { s->values -= 1; }, "values where"},
      {[](Sparsity* s) { *s = Sparsity(); }, "0 levels"},
  };
  EXPECT_EQ(Example().refusal(), "");
  for (const auto& [change, words] : cases) {
    Example example;
    change(&example.sparse.how);
    EXPECT_NE(example.refusal().find(words), std::string::npos) << example.refusal() << " without " << words;
  }
}

TEST(Densify, RefusesBlocksWhoseOrderIsAmbiguous) {
  // Three blocks in a circle: the runtime takes the sizes of other blocks for them.
  std::vector<int8_t> all(2 * 3 * 4, 1);
  const SparseForm form{{0, 1, 2, 4, 5, 3}, {0, 1, 2}, {2, 3, 4}, std::vector<bool>(6, true)};
  const Sparse<int8_t> sparse = make_sparse(all, {2, 3, 4}, form);
  const Region region = alone(Type::kInt8, {2, 3, 4}, sparse.how, sparse.values.data());
  std::unique_ptr<Executable> executable;
  const Status status = Executor::compile(region, CompileOptions(), nullptr, &executable);
  EXPECT_NE(status.reason().find("ambiguous"), std::string::npos) << status.reason();
}

TEST(Densify, RefusesOtherInputsAndTypes) {
  Example dense;
  dense.region.tensors[0].sparsity = nullptr;
  EXPECT_NE(dense.compile().find("no sparse constant"), std::string::npos) << dense.compile();
  Example open;
  open.region.tensors[0].constant = nullptr;
  open.region.inputs = {0};
  EXPECT_NE(open.compile().find("sparse and not constant"), std::string::npos) << open.compile();
  Example other;
  other.region.tensors[1].type = Type::kUInt8;
  EXPECT_NE(other.compile().find("uint8 instead of int8"), std::string::npos) << other.compile();
  Example wide;
  wide.region.tensors[0].type = wide.region.tensors[1].type = Type::kInt32;
  EXPECT_NE(wide.compile().find("not supported"), std::string::npos) << wide.compile();
  Example reader;
  reader.region.tensors[1].shape = reader.region.tensors[0].shape;
  reader.region.operators = {op(Kind::kNeg, {0}, {1})};
  EXPECT_NE(reader.compile().find("only DENSIFY reads"), std::string::npos) << reader.compile();
}

// Weights that are sparse and float16, as pruned models have them, cost nothing in a run.
TEST(Densify, ChainsAreFolded) {
  const std::vector<uint16_t> all{0x3c00, 0, 0, 0xc000, 0, 0};  // 1 and -2
  const Sparse<uint16_t> sparse = make_sparse(all, {2, 3}, SparseForm{{0, 1}, {}, {}, {true, false}});
  ASSERT_EQ(sparse.values.size(), 2u);
  Region region = alone(Type::kFloat16, {2, 3}, sparse.how, sparse.values.data());
  region.tensors.push_back(tensor(Type::kFloat32, {2, 3}, "wide"));
  region.tensors.push_back(tensor(Type::kFloat32, {1, 3}, "x"));
  region.tensors.push_back(tensor(Type::kFloat32, {1, 2}, "y"));
  region.operators.push_back(op(Kind::kDequantize, {1}, {2}));
  region.operators.push_back(op(Kind::kFullyConnected, {3, 2, -1}, {4}));
  region.operators.back().params = FullyConnectedParams();
  region.inputs = {3};
  region.outputs = {4};
  for (const auto& threads : {std::shared_ptr<Threads>(), std::make_shared<Threads>(1)}) {
    std::unique_ptr<Executable> executable;
    const Status status = Executor::compile(region, CompileOptions(), threads, &executable);
    ASSERT_TRUE(status.ok()) << status.reason();
    const float x[] = {3, 4, 5};
    float y[] = {0, 0};
    std::vector<char> scratch(executable->scratch_bytes() + kAlignment);
    void* memory = scratch.data() + aligned(reinterpret_cast<uintptr_t>(scratch.data())) -
                   reinterpret_cast<uintptr_t>(scratch.data());
    ASSERT_TRUE(executable->run({x}, {y}, memory, nullptr).ok());
    EXPECT_EQ(y[0], 3.0f);
    EXPECT_EQ(y[1], -6.0f);
  }
}

TEST(Densify, SpoiledOnesAreRefusedOrStayInTheirMemory) {
  int accepted = 0, refused = 0;
  const uint64_t first = fake::first_seed();
  for (uint64_t seed = first; seed < first + 20000; ++seed) {
    Random random(seed);
    Example example;
    for (int i = 0, n = random.between(1, 3); i < n; ++i) fake::spoil(&example.sparse.how, &random);
    if (!example.refusal().empty()) {
      ++refused;
      continue;
    }
    ++accepted;
    densified(Type::kInt8, {4, 6}, example.sparse);
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace litefuse
