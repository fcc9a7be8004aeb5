#include "region/executor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace litefuse {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory reserve(size_t bytes) {
  void* memory = nullptr;
  return Memory(posix_memalign(&memory, kAlignment, bytes) == 0 ? memory : nullptr);
}

int32_t add_tensor(Region* region, Type type, const Shape& shape, const void* constant = nullptr) {
  Tensor tensor;
  tensor.name = "t" + std::to_string(region->tensors.size());
  tensor.type = type;
  tensor.shape = shape;
  tensor.constant = constant;
  region->tensors.push_back(tensor);
  return static_cast<int32_t>(region->tensors.size()) - 1;
}

void add_operator(Region* region, Kind kind, std::vector<int32_t> inputs, std::vector<int32_t> outputs,
                  Params params = {}) {
  Operator op;
  op.kind = kind;
  op.inputs = std::move(inputs);
  op.outputs = std::move(outputs);
  op.params = std::move(params);
  op.index = static_cast<int32_t>(region->operators.size());
  region->operators.push_back(op);
}

std::unique_ptr<Executable> compile(const Region& region, const CompileOptions& options = {}) {
  std::unique_ptr<Executable> result;
  const Status status = Executor::compile(region, options, nullptr, &result);
  EXPECT_TRUE(status.ok()) << status.reason();
  return result;
}

std::string refusal(const Region& region) {
  std::unique_ptr<Executable> result;
  return Executor::compile(region, CompileOptions(), nullptr, &result).reason();
}

// Runs with float inputs and float outputs.
std::vector<std::vector<float>> run(Executable* executable, const std::vector<std::vector<float>>& inputs,
                                    size_t outputs, Listener* listener = nullptr) {
  std::vector<const void*> given;
  std::vector<void*> made;
  std::vector<std::vector<float>> results(outputs);
  for (const auto& input : inputs) given.push_back(input.data());
  for (size_t i = 0; i < outputs; ++i) {
    results[i].resize(static_cast<size_t>(executable->output_shape(i).elements()));
    made.push_back(results[i].data());
  }
  const Memory scratch = reserve(executable->scratch_bytes());
  EXPECT_TRUE(executable->run(given, made, scratch.get(), listener).ok());
  return results;
}

class Counting : public Listener {
 public:
  uint32_t begin(const char* name, int32_t index) override {
    log += std::string("<") + name + " " + std::to_string(index);
    return 7;
  }
  void end(uint32_t handle) override { log += handle == 7 ? ">" : "?"; }
  std::string log;
};

// y0 = -x, y1 = |y0|, y2 = y0 * y1; outputs y2 and y0.
Region diamond() {
  Region region;
  const int32_t x = add_tensor(&region, Type::kFloat32, {3});
  const int32_t y0 = add_tensor(&region, Type::kFloat32, {3});
  const int32_t y1 = add_tensor(&region, Type::kFloat32, {3});
  const int32_t y2 = add_tensor(&region, Type::kFloat32, {3});
  add_operator(&region, Kind::kNeg, {x}, {y0});
  add_operator(&region, Kind::kAbs, {y0}, {y1});
  add_operator(&region, Kind::kMul, {y0, y1}, {y2}, ActivationParams());
  region.inputs = {x};
  region.outputs = {y2, y0};
  return region;
}

TEST(Executor, RunsOperatorByOperator) {
  const auto executable = compile(diamond());
  ASSERT_NE(executable, nullptr);
  const auto found = run(executable.get(), {{1, -2, 3}}, 2);
  EXPECT_EQ(found[0], (std::vector<float>{-1, 4, -9}));
  EXPECT_EQ(found[1], (std::vector<float>{-1, 2, -3}));
  EXPECT_EQ(executable->scratch_bytes(), 64u);  // of y1 alone: outputs lie with the caller
  EXPECT_EQ(executable->profile(), nullptr);
}

TEST(Executor, FollowsNewShapes) {
  const auto executable = compile(diamond());
  for (const int32_t size : {1, 1000, 0, 17}) {
    ASSERT_TRUE(executable->prepare({Shape{size, 2}}).ok());
    EXPECT_EQ(executable->output_shape(0), (Shape{size, 2}));
    EXPECT_EQ(executable->output_shape(1), (Shape{size, 2}));
    std::vector<float> x(static_cast<size_t>(2 * size), -0.5f);
    const auto found = run(executable.get(), {x}, 2);
    EXPECT_EQ(found[0], std::vector<float>(x.size(), 0.25f));
  }
  EXPECT_FALSE(executable->prepare({}).ok());
  EXPECT_FALSE(executable->prepare({Shape{1}, Shape{1}}).ok());
}

// Two billion rows of nothing take no time.
TEST(Executor, DoesNothingWhereThereIsNothing) {
  Region region;
  const int32_t a = add_tensor(&region, Type::kFloat32, {2, 3});
  const int32_t b = add_tensor(&region, Type::kFloat32, {2, 4});
  const int32_t y = add_tensor(&region, Type::kFloat32, {2, 7});
  add_operator(&region, Kind::kConcatenation, {a, b}, {y}, ConcatenationParams{1, Activation::kNone});
  region.inputs = {a, b};
  region.outputs = {y};
  const auto executable = compile(region);
  ASSERT_TRUE(executable->prepare({Shape{INT32_MAX, 0}, Shape{INT32_MAX, 0}}).ok());
  EXPECT_EQ(executable->output_shape(0), (Shape{INT32_MAX, 0}));
  Counting listener;
  EXPECT_TRUE(run(executable.get(), {{}, {}}, 1, &listener)[0].empty());
  EXPECT_EQ(listener.log, "");
  ASSERT_TRUE(executable->prepare({Shape{1, 1}, Shape{1, 1}}).ok());
  EXPECT_EQ(run(executable.get(), {{1}, {2}}, 1)[0], (std::vector<float>{1, 2}));
}

TEST(Executor, RecoversFromShapesThatDoNotFit) {
  Region region;
  const int32_t a = add_tensor(&region, Type::kFloat32, {3});
  const int32_t b = add_tensor(&region, Type::kFloat32, {3});
  const int32_t y = add_tensor(&region, Type::kFloat32, {3});
  add_operator(&region, Kind::kAdd, {a, b}, {y}, ActivationParams());
  region.inputs = {a, b};
  region.outputs = {y};
  const auto executable = compile(region);
  const Status status = executable->prepare({Shape{3}, Shape{4}});
  EXPECT_NE(status.reason().find("ADD #0 `t2`: "), std::string::npos) << status.reason();
  ASSERT_TRUE(executable->prepare({Shape{2, 1}, Shape{1, 2}}).ok());
  EXPECT_EQ(run(executable.get(), {{1, 2}, {10, 20}}, 1)[0], (std::vector<float>{11, 21, 12, 22}));
}

TEST(Executor, RefusesWhatItCannotRun) {
  Region region = diamond();
  region.operators[1].kind = static_cast<Kind>(4711);
  EXPECT_NE(refusal(region).find("no kernel"), std::string::npos) << refusal(region);
  region = diamond();
  region.outputs = {};
  EXPECT_NE(refusal(region).find("no outputs"), std::string::npos);
  region = diamond();
  region.tensors[2].type = Type::kInt8;
  EXPECT_NE(refusal(region).find("ABS #1"), std::string::npos) << refusal(region);
  // 2^35 bytes of intermediates.
  region = diamond();
  for (Tensor& tensor : region.tensors) tensor.shape = {1 << 30, 8};
  EXPECT_NE(refusal(region).find("too large"), std::string::npos) << refusal(region);
}

TEST(Executor, ComputesConstantsOnce) {
  static const int32_t values[] = {1, -2, 3};
  Region region;
  const int32_t x = add_tensor(&region, Type::kFloat32, {3});
  const int32_t c = add_tensor(&region, Type::kInt32, {3}, values);
  const int32_t f = add_tensor(&region, Type::kFloat32, {9});  // the shape in the file is not believed
  const int32_t g = add_tensor(&region, Type::kFloat32, {3});
  const int32_t y = add_tensor(&region, Type::kFloat32, {3});
  const int32_t z = add_tensor(&region, Type::kFloat32, {3});
  add_operator(&region, Kind::kCast, {c}, {f});
  add_operator(&region, Kind::kNeg, {f}, {g});
  add_operator(&region, Kind::kAdd, {x, g}, {y}, ActivationParams());
  add_operator(&region, Kind::kCast, {c}, {z});  // an output: it is written in each run
  region.inputs = {x};
  region.outputs = {y, z};
  CompileOptions options;
  options.profile = true;
  const auto executable = compile(region, options);
  EXPECT_EQ(executable->scratch_bytes(), 0u);
  for (int i = 0; i < 2; ++i) {
    const auto found = run(executable.get(), {{10, 10, 10}}, 2);
    EXPECT_EQ(found[0], (std::vector<float>{9, 12, 7}));
    EXPECT_EQ(found[1], (std::vector<float>{1, -2, 3}));
  }
  EXPECT_EQ(executable->profile()->runs(), 2u);
  EXPECT_EQ(executable->profile()->nanoseconds(0), 0u);
  EXPECT_EQ(executable->profile()->nanoseconds(1), 0u);
}

// A file of a hundred bytes must not ask for gigabytes.
TEST(Executor, RefusesConstantsThatGrowTooLarge) {
  static const int32_t dims[] = {1 << 15, 1 << 15};
  static const float value = 1.0f;
  Region region;
  const int32_t x = add_tensor(&region, Type::kFloat32, {1});
  const int32_t c = add_tensor(&region, Type::kFloat32, {1}, &value);
  const int32_t d = add_tensor(&region, Type::kInt32, {2}, dims);
  const int32_t t = add_tensor(&region, Type::kFloat32, {1});
  const int32_t y = add_tensor(&region, Type::kFloat32, {1});
  add_operator(&region, Kind::kBroadcastTo, {c, d}, {t});
  add_operator(&region, Kind::kAdd, {x, t}, {y}, ActivationParams());
  region.inputs = {x};
  region.outputs = {y};
  EXPECT_NE(refusal(region).find("BROADCAST_TO #0"), std::string::npos) << refusal(region);
}

TEST(Executor, FollowsPlans) {
  Region region = diamond();
  region.outputs = {3};
  CompileOptions options;
  options.advice.places = {{0, 0, 64}, {1, 0, 0}};
  options.advice.scratch_bytes = 128;
  auto executable = compile(region, options);
  EXPECT_TRUE(executable->follows_plan());
  EXPECT_EQ(executable->scratch_bytes(), 128u);
  EXPECT_EQ(run(executable.get(), {{1, -2, 3}}, 1)[0], (std::vector<float>{-1, 4, -9}));
  options.advice.places = {{0, 0, 0}, {1, 0, 0}};
  executable = compile(region, options);
  EXPECT_FALSE(executable->follows_plan());
  EXPECT_EQ(run(executable.get(), {{1, -2, 3}}, 1)[0], (std::vector<float>{-1, 4, -9}));
  ASSERT_TRUE(compile(region)->prepare({Shape{3}}).ok());
  EXPECT_FALSE(compile(region)->follows_plan());
}

TEST(Executor, TellsListeners) {
  const auto executable = compile(diamond());
  Counting listener;
  run(executable.get(), {{1, 2, 3}}, 2, &listener);
  EXPECT_EQ(listener.log, "<NEG 0><ABS 1><MUL 2>");
}

TEST(Executor, CountsRuns) {
  CompileOptions options;
  options.profile = true;
  const auto executable = compile(diamond(), options);
  Profile* profile = executable->profile();
  ASSERT_NE(profile, nullptr);
  EXPECT_EQ(profile->names(), (std::vector<std::string>{"NEG #0 `t1`", "ABS #1 `t2`", "MUL #2 `t3`"}));
  for (int i = 0; i < 5; ++i) run(executable.get(), {{1, 2, 3}}, 2);
  EXPECT_EQ(profile->runs(), 5u);
  EXPECT_GT(profile->nanoseconds(0) + profile->nanoseconds(1) + profile->nanoseconds(2), 0u);
  profile->clear();
  EXPECT_EQ(profile->runs(), 0u);
  EXPECT_EQ(profile->nanoseconds(0), 0u);
}

TEST(Backends, AreFoundByName) {
  EXPECT_NE(make_backend("cpu"), nullptr);
  EXPECT_EQ(make_backend("CPU"), nullptr);
  EXPECT_EQ(make_backend(""), nullptr);
  const auto cpu = make_backend("cpu");
  EXPECT_STREQ(cpu->name(), "cpu");
  std::unique_ptr<Executable> executable;
  EXPECT_TRUE(cpu->compile(diamond(), CompileOptions(), &executable).ok());
  EXPECT_NE(executable, nullptr);
}

}  // namespace
}  // namespace litefuse
