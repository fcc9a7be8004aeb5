#include "tflite/delegate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "litefuse/litefuse.h"
#include "tests/fake_runtime.h"
#include "tests/json.h"

namespace litefuse {
namespace {

using fake::attributes;
using fake::Bytes;
using fake::Dims;
using fake::Flex;
using fake::flexbuffer;
using fake::Graph;
using fake::Json;
using fake::Runtime;
using Names = std::vector<std::string>;
using Choices = std::vector<std::pair<std::string, std::string>>;

std::string& last_error() {
  static auto* text = new std::string();
  return *text;
}
void keep_error(const char* text) { last_error() = text; }

// A delegate with options, and what it says about itself.
class Plugin {
 public:
  explicit Plugin(const Choices& options = {}) {
    std::vector<const char*> keys, values;
    for (const auto& [key, value] : options) {
      keys.push_back(key.c_str());
      values.push_back(value.c_str());
      if (key == "backend") backend_ = value;
    }
    last_error().clear();
    delegate_ = tflite_plugin_create_delegate(keys.data(), values.data(), keys.size(), keep_error);
  }
  ~Plugin() { tflite_plugin_destroy_delegate(delegate_); }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  bool made() const { return delegate_ != nullptr; }
  TfLiteDelegate* get() { return delegate_; }
  abi::Delegate* native() { return reinterpret_cast<abi::Delegate*>(delegate_); }

  std::string text() const {
    std::string text(litefuse_delegate_report(delegate_, nullptr, 0) + 1, '?');
    EXPECT_EQ(litefuse_delegate_report(delegate_, text.data(), text.size()), text.size() - 1);
    EXPECT_EQ(text.back(), '\0');
    text.pop_back();
    return text;
  }
  Json report() const {
    const std::string written = text();
    Json json;
    EXPECT_TRUE(fake::JsonReader(written).read(&json)) << written;
    EXPECT_EQ(json["backend"].text, backend_);
    EXPECT_FALSE(json["description"].text.empty());
    EXPECT_EQ(json["regions"].sort, Json::Sort::kArray);
    EXPECT_EQ(json["refused"].sort, Json::Sort::kArray);
    return json;
  }
  // All reasons for which something was left to the runtime.
  std::string reasons() const {
    std::string all;
    const Json json = report();
    for (const Json& one : json["refused"].items) all += one["what"].text + ": " + one["reason"].text + "\n";
    return all;
  }

 private:
  std::string backend_ = "cpu";
  TfLiteDelegate* delegate_;
};

// The backend that runs operator by operator, and keeps all of their tensors.
const Choices kReference{{"backend", "reference"}};

// max((x + (1, 2, 3, 4)) * 2, 0), x being [?,4].
constexpr int kX = 0, kC = 1, kSum = 2, kTwo = 3, kProduct = 4, kY = 5;

void add_operators(Graph* graph) {
  graph->tensor(Type::kFloat32, {2, 4}, "x");
  graph->constant(Type::kFloat32, {4}, std::vector<float>{1, 2, 3, 4}, "c");
  graph->tensor(Type::kFloat32, {2, 4}, "sum");
  graph->constant(Type::kFloat32, {}, std::vector<float>{2}, "two");
  graph->tensor(Type::kFloat32, {2, 4}, "product");
  graph->tensor(Type::kFloat32, {2, 4}, "y");
  graph->op(Kind::kAdd, {kX, kC}, {kSum}, abi::AddParams{0, false});
  graph->op(Kind::kMul, {kSum, kTwo}, {kProduct}, abi::ActivationParams{0});
  graph->op(Kind::kRelu, {kProduct}, {kY});
  graph->inputs = {kX};
  graph->outputs = {kY};
}

float expected(float x, size_t i) { return std::max((x + static_cast<float>(i % 4 + 1)) * 2.0f, 0.0f); }

// y = f(x), with f as subgraph 1.
void make_composite(Runtime* runtime, const Bytes& bytes, const char* name = "litefuse.test") {
  Graph& main = runtime->add_graph();
  const int x = main.tensor(Type::kFloat32, {2, 4}, "outer x");
  const int y = main.tensor(Type::kFloat32, {2, 4}, "outer y");
  main.inputs = {x};
  main.outputs = {y};
  main.composite(name, {x}, {y}, 1, bytes);
  add_operators(&runtime->add_graph());
}

Bytes good() { return attributes({kX}, {kY}); }

// Fills the input, runs, and compares every number.
void expect_right(Runtime* runtime, float start = -9.0f) {
  Graph& main = runtime->graph();
  float* x = main.data<float>(main.inputs[0]);
  const size_t count = main.at(main.inputs[0]).bytes / sizeof(float);
  std::vector<float> given(count);
  for (size_t i = 0; i < count; ++i) given[i] = start + static_cast<float>(i);
  if (count > 0) std::copy(given.begin(), given.end(), x);
  ASSERT_TRUE(runtime->invoke()) << (runtime->errors.empty() ? "" : runtime->errors.back());
  ASSERT_EQ(main.at(main.outputs[0]).bytes, count * sizeof(float));
  const float* y = main.data<float>(main.outputs[0]);
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(y[i], expected(given[i], i)) << i;
}

// -- options ---------------------------------------------------------------------------------------------------------

TEST(Options, AcceptsWhatIsDocumented) {
  EXPECT_TRUE(Plugin().made());
  EXPECT_TRUE(Plugin(Choices{{"threads", "0"}}).made());
  EXPECT_TRUE(Plugin(Choices{{"threads", "256"}, {"backend", "cpu"}, {"verbose", "0"}, {"profile", "1"}}).made());
  EXPECT_TRUE(Plugin(Choices{{"backend", "reference"}, {"winograd", "0"}}).made());
}

TEST(Options, RefusesWithAReason) {
  const std::vector<std::pair<Choices, std::string>> cases{
      {{{"thread", "1"}}, "no option `thread`; the options are threads, backend, winograd, verbose and profile"},
      {{{"", ""}}, "no option ``"},
      {{{"threads", "-1"}}, "`threads`"},
      {{{"threads", "257"}}, "`threads`"},
      {{{"threads", ""}}, "`threads`"},
      {{{"threads", "2x"}}, "`2x`"},
      {{{"threads", "99999999999999999999999"}}, "`threads`"},
      {{{"verbose", "yes"}}, "`verbose`"},
      {{{"profile", ""}}, "`profile`"},
      {{{"winograd", "maybe"}}, "`winograd`"},
      {{{"threads", "1"}, {"backend", "gpu"}}, "no backend `gpu`; there are cpu and reference"},
      {{{"backend", ""}}, "no backend ``"},
      {{{"a\"b%s%n", "%s"}}, "no option `a\"b%s%n`"},
  };
  for (const auto& [options, reason] : cases) {
    Plugin plugin(options);
    EXPECT_FALSE(plugin.made());
    EXPECT_NE(last_error().find(reason), std::string::npos) << last_error();
    EXPECT_EQ(last_error().rfind("litefuse: ", 0), 0u) << last_error();
  }
}

TEST(Options, TakesNullPointers) {
  const char* keys[] = {nullptr};
  const char* values[] = {nullptr};
  EXPECT_EQ(tflite_plugin_create_delegate(keys, values, 1, nullptr), nullptr);
  const char* verbose[] = {"verbose"};
  EXPECT_EQ(tflite_plugin_create_delegate(verbose, values, 1, nullptr), nullptr);
  TfLiteDelegate* delegate = tflite_plugin_create_delegate(nullptr, nullptr, 0, nullptr);
  EXPECT_NE(delegate, nullptr);
  tflite_plugin_destroy_delegate(delegate);
  tflite_plugin_destroy_delegate(nullptr);
  EXPECT_GT(std::strlen(litefuse_version()), 0u);
}

// -- claiming --------------------------------------------------------------------------------------------------------

TEST(Claim, TakesComposites) {
  Plugin plugin;
  Runtime runtime;
  make_composite(&runtime, good());
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_EQ(runtime.graph().claimed(), Names{"litefuse.test"});
  // The decomposition is taken too, so that nothing else packs its weights.
  EXPECT_EQ(runtime.graph(1).claimed(), Names{"litefuse.test"});
  const int node = runtime.graph().plan()[0];
  const abi::Registration& registration = runtime.graph().registration(node);
  EXPECT_STREQ(registration.profiling_string(runtime.graph().context(), &runtime.graph().node(node)), "litefuse.test");
  EXPECT_EQ(registration.version, 1);
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
  expect_right(&runtime, 3.5f);
  const Json report = plugin.report();
  ASSERT_EQ(report["regions"].items.size(), 1u);  // the dormant one runs nothing and is not listed
  const Json& region = report["regions"].items[0];
  EXPECT_EQ(region["name"].text, "litefuse.test");
  EXPECT_EQ(region["position"].number, 0);
  EXPECT_EQ(region["operators"].number, 3);
  EXPECT_LE(region["scratch_bytes"].number, 128);  // what the operators keep one by one
  EXPECT_EQ(region["follows_plan"].sort, Json::Sort::kBool);
  EXPECT_FALSE(region.has("runs"));
  EXPECT_TRUE(report["refused"].items.empty());
}

TEST(Claim, TakesCustomOperators) {
  Plugin plugin;
  Runtime runtime;
  Graph& main = runtime.add_graph();
  const int x = main.tensor(Type::kFloat32, {2, 4});
  const int y = main.tensor(Type::kFloat32, {2, 4});
  main.inputs = {x};
  main.outputs = {y};
  main.custom("litefuse.test", {x}, {y}, attributes({kX}, {kY}, {}, 0, 1, 1));
  main.custom("Somebody's", {x}, {y}, {});
  add_operators(&runtime.add_graph());
  ASSERT_TRUE(main.apply(plugin.native()));
  EXPECT_EQ(main.claimed(), Names{"litefuse.test"});
}

TEST(Claim, CustomOperatorsRun) {
  Plugin plugin;
  Runtime runtime;
  Graph& main = runtime.add_graph();
  const int x = main.tensor(Type::kFloat32, {2, 4}, nullptr);
  const int y = main.tensor(Type::kFloat32, {2, 4}, nullptr);
  main.inputs = {x};
  main.outputs = {y};
  main.custom("litefuse.test", {x}, {y}, attributes({kX}, {kY}, {}, 0, 1, 1));
  add_operators(&runtime.add_graph());
  ASSERT_TRUE(runtime.apply(plugin.native()));
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
}

TEST(Claim, LeavesOthersAlone) {
  for (const char* name : {"odml.rms_norm", "litefuse", "litefuse.", "xlitefuse.test", ""}) {
    Plugin plugin;
    Runtime runtime;
    make_composite(&runtime, good(), name);
    ASSERT_TRUE(runtime.apply(plugin.native()));
    EXPECT_TRUE(runtime.graph().claimed().empty()) << name;
    EXPECT_TRUE(runtime.graph(1).claimed().empty()) << name;
    EXPECT_EQ(plugin.reasons(), "") << name;
    ASSERT_TRUE(runtime.allocate());
    expect_right(&runtime);
  }
}

TEST(Claim, TakesTheInputsInTheOrderOfTheAttributes) {
  Plugin plugin;
  Runtime runtime;
  Graph& main = runtime.add_graph();
  const int a = main.tensor(Type::kFloat32, {3});
  const int b = main.tensor(Type::kFloat32, {3});
  const int y = main.tensor(Type::kFloat32, {3});
  main.inputs = {a, b};
  main.outputs = {y};
  main.composite("litefuse.sub", {a, b}, {y}, 1, attributes({1, 0}, {2}));
  Graph& inner = runtime.add_graph();
  for (int i = 0; i < 3; ++i) inner.tensor(Type::kFloat32, {3});
  inner.op(Kind::kSub, {0, 1}, {2}, abi::AddParams{0, false});
  inner.inputs = {1, 0};
  inner.outputs = {2};
  ASSERT_TRUE(runtime.apply(plugin.native()));
  ASSERT_EQ(main.claimed(), Names{"litefuse.sub"});
  ASSERT_TRUE(runtime.allocate());
  main.set<float>(a, {1, 2, 3});
  main.set<float>(b, {10, 20, 30});
  ASSERT_TRUE(runtime.invoke());
  EXPECT_EQ(main.values<float>(y), (std::vector<float>{9, 18, 27}));
}

// Two composites share a decomposition, and the delegate refuses one of them. The runtime runs that one through the
// decomposition, in which it finds the delegate's own dormant kernel.
TEST(Claim, DormantKernelsWakeUp) {
  Plugin plugin;
  Runtime runtime;
  make_composite(&runtime, good());
  Graph& main = runtime.graph();
  const int z = main.tensor(Type::kFloat32, {2, 4});
  main.composite("litefuse.test", {main.outputs[0]}, {z}, 1, attributes({kX}, {kY}, {}, 0, 2));
  main.outputs.push_back(z);
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_EQ(main.claimed(), Names{"litefuse.test"});
  EXPECT_NE(plugin.reasons().find("format 2"), std::string::npos);
  EXPECT_EQ(runtime.graph(1).claimed(), Names{"litefuse.test"});
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
  const auto y = main.values<float>(main.outputs[0]);
  const auto found = main.values<float>(z);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(found[i], expected(y[i], i));
  EXPECT_EQ(plugin.report()["regions"].items.size(), 1u);
  // They follow when the graph is resized.
  ASSERT_TRUE(runtime.resize_input(0, {3, 4}));
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
  EXPECT_EQ(main.values<float>(z).size(), 12u);
}

TEST(Claim, DormantKernelsStayWhereTheyAreWhenTheGraphIsClaimedAgain) {
  for (int times = 1; times < 4; ++times) {
    Plugin plugin;
    Runtime runtime;
    make_composite(&runtime, good());
    ASSERT_TRUE(runtime.apply(plugin.native()));
    for (int i = 0; i < times; ++i) {
      ASSERT_TRUE(runtime.resize_input(0, {3 + i, 4}, true));
      ASSERT_TRUE(runtime.graph(1).apply(plugin.native()));
      EXPECT_EQ(runtime.graph().claimed(), Names{"litefuse.test"});
      EXPECT_EQ(runtime.graph(1).claimed(), Names{"litefuse.test"});
      ASSERT_TRUE(runtime.allocate());
      expect_right(&runtime);
    }
  }
}

TEST(Claim, ManyCompositesOfOneDecomposition) {
  Plugin plugin;
  Runtime runtime;
  make_composite(&runtime, good());
  Graph& main = runtime.graph();
  int last = main.outputs[0];
  for (int i = 0; i < 5; ++i) {
    const int next = main.tensor(Type::kFloat32, {2, 4});
    main.composite("litefuse.test", {last}, {next}, 1, good());
    last = next;
  }
  main.outputs.push_back(last);
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_EQ(main.claimed().size(), 6u);
  EXPECT_EQ(runtime.graph(1).plan().size(), 1u);
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
}

// A runtime that makes one node of each operator cannot have the decomposition claimed; the composite can.
TEST(Claim, WithoutFusionOfNodes) {
  Plugin plugin;
  Runtime runtime;
  runtime.fuse_nodes = false;
  make_composite(&runtime, good());
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_EQ(runtime.graph().claimed(), Names{"litefuse.test"});
  EXPECT_TRUE(runtime.graph(1).claimed().empty());
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
  // What is left of the decomposition still runs.
  ASSERT_TRUE(runtime.allocate(1));
  ASSERT_TRUE(runtime.invoke(1));
}

TEST(Claim, WritesAllTensorsThatTheRuntimePreserves) {
  Plugin plugin;
  Runtime runtime;
  runtime.preserve_all_tensors = true;
  make_composite(&runtime, good());
  ASSERT_TRUE(runtime.apply(plugin.native()));
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
}

// -- plans -----------------------------------------------------------------------------------------------------------

int64_t fnv(Graph* graph, const std::vector<int>& nodes) {
  uint64_t hash = 0xcbf29ce484222325ull;
  auto add = [&hash](uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3ull; };
  for (int index : nodes) {
    const int code = graph->registration(index).builtin_code;
    for (int i = 0; i < 4; ++i) add(static_cast<uint8_t>(code >> (8 * i)));
    for (const abi::IntArray* array : {graph->node(index).inputs, graph->node(index).outputs}) {
      for (int i = 0; i < array->size; ++i) {
        for (const char* c = graph->at(array->data[i]).name; *c != 0; ++c) add(static_cast<uint8_t>(*c));
        add(0);
      }
    }
  }
  return static_cast<int64_t>(hash & INT64_MAX);
}

struct Group {
  const char* kind;
  std::vector<int> operators;
  int64_t fingerprint_error = 0;
  int subgraph = 0;
  std::vector<int64_t> places{};
  int64_t scratch_bytes = 0;
};

void set_plan(Runtime* runtime, const std::vector<Group>& groups, int64_t format = 1) {
  std::vector<Flex> regions;
  for (const Group& group : groups) {
    const int64_t print = fnv(&runtime->graph(group.subgraph), group.operators) + group.fingerprint_error;
    regions.push_back(Flex::map({{"kind", group.kind},
                                 {"subgraph", group.subgraph},
                                 {"operators", Flex::ints({group.operators.begin(), group.operators.end()})},
                                 {"fingerprint", print},
                                 {"places", Flex::ints(group.places)},
                                 {"scratch_bytes", group.scratch_bytes}}));
  }
  runtime->set_metadata("litefuse.plan",
                        flexbuffer(Flex::map({{"litefuse", format}, {"regions", Flex::vector(regions)}})));
}

TEST(Plan, TakesEachGroupAsOneNode) {
  Plugin plugin;
  Runtime runtime;
  add_operators(&runtime.add_graph());
  set_plan(&runtime, {{"a", {0, 1}}, {"b", {2}}});
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_EQ(runtime.graph().claimed(), (Names{"litefuse.a", "litefuse.b"}));
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
  for (const bool undo : {false, true}) {
    ASSERT_TRUE(runtime.resize_input(0, {5, 4}, undo));
    ASSERT_TRUE(runtime.allocate());
    EXPECT_EQ(runtime.graph().claimed(), (Names{"litefuse.a", "litefuse.b"}));
    expect_right(&runtime);
  }
}

TEST(Plan, LeavesTheRestToTheRuntime) {
  Plugin plugin;
  Runtime runtime;
  add_operators(&runtime.add_graph());
  set_plan(&runtime, {{"a", {1, 2}}});
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_EQ(runtime.graph().claimed(), Names{"litefuse.a"});
  EXPECT_EQ(runtime.graph().plan().size(), 2u);
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
}

TEST(Plan, WritesAllTensorsThatTheRuntimePreserves) {
  Plugin plugin(kReference);
  Runtime runtime;
  runtime.preserve_all_tensors = true;
  add_operators(&runtime.add_graph());
  set_plan(&runtime, {{"a", {0, 1, 2}}});
  ASSERT_TRUE(runtime.apply(plugin.native()));
  ASSERT_EQ(runtime.graph().claimed(), Names{"litefuse.a"});
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime, 1.0f);
  EXPECT_EQ(runtime.graph().values<float>(kSum), (std::vector<float>{2, 4, 6, 8, 6, 8, 10, 12}));
  EXPECT_EQ(plugin.report()["regions"].items[0]["scratch_bytes"].number, 0);
}

TEST(Plan, FitsAllGroupsOrNone) {
  Plugin plugin;
  Runtime runtime;
  add_operators(&runtime.add_graph());
  set_plan(&runtime, {{"a", {0, 1}}, {"b", {2}, 1}});
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_TRUE(runtime.graph().claimed().empty());
  EXPECT_NE(plugin.reasons().find("made for other operators"), std::string::npos) << plugin.reasons();
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
}

TEST(Plan, IsOnlyForTheGraphThatItNames) {
  Plugin plugin;
  Runtime runtime;
  add_operators(&runtime.add_graph());
  add_operators(&runtime.add_graph());
  set_plan(&runtime, {{"b", {1, 2}, 0, 1}});
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_TRUE(runtime.graph(0).claimed().empty());
  EXPECT_EQ(runtime.graph(1).claimed(), Names{"litefuse.b"});
}

TEST(Plan, OfAnotherFormatIsNotRead) {
  Plugin plugin;
  Runtime runtime;
  add_operators(&runtime.add_graph());
  set_plan(&runtime, {{"a", {0}}}, 2);
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_TRUE(runtime.graph().claimed().empty());
  EXPECT_NE(plugin.reasons().find("format"), std::string::npos);
}

TEST(Plan, GroupsThatAreNotConvexStay) {
  Plugin plugin;
  Runtime runtime;
  add_operators(&runtime.add_graph());
  set_plan(&runtime, {{"a", {0, 2}}, {"b", {1}}});
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_EQ(runtime.graph().claimed(), Names{"litefuse.b"});
  EXPECT_NE(plugin.reasons().find("2 nodes"), std::string::npos) << plugin.reasons();
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
}

// Each is convex, but both cannot be nodes: a reads from b and b from a. (The operator in front is there because the
// runtime fills the node that it can start with first.)
TEST(Plan, GroupsThatWaitForEachOtherAreNotBothTaken) {
  Plugin plugin;
  Runtime runtime;
  Graph& main = runtime.add_graph();
  for (int i = 0; i < 7; ++i) main.tensor(Type::kFloat32, {4}, ("t" + std::to_string(i)).c_str());
  main.inputs = {0, 1};
  main.outputs = {4, 5, 6};
  main.op(Kind::kNeg, {0}, {6});
  main.op(Kind::kNeg, {0}, {2});
  main.op(Kind::kAbs, {1}, {3});
  main.op(Kind::kNeg, {2}, {4});
  main.op(Kind::kAbs, {3}, {5});
  set_plan(&runtime, {{"a", {1, 4}}, {"b", {2, 3}}});
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_EQ(main.claimed(), Names{"litefuse.a"});
  EXPECT_NE(plugin.reasons().find("litefuse.b #2: the runtime would make 2 nodes"), std::string::npos)
      << plugin.reasons();
  ASSERT_TRUE(runtime.allocate()) << runtime.errors.back();
  main.set<float>(0, {1, -2, 3, -4});
  main.set<float>(1, {1, -2, 3, -4});
  ASSERT_TRUE(runtime.invoke()) << runtime.errors.back();
  EXPECT_EQ(main.values<float>(4), (std::vector<float>{1, -2, 3, -4}));
  EXPECT_EQ(main.values<float>(5), (std::vector<float>{1, 2, 3, 4}));
}

TEST(Plan, GroupsThatShareOperatorsAreNotBothTaken) {
  Plugin plugin;
  Runtime runtime;
  add_operators(&runtime.add_graph());
  set_plan(&runtime, {{"a", {0, 1}}, {"b", {1, 2}}});
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_EQ(runtime.graph().claimed(), Names{"litefuse.a"});
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
}

TEST(Plan, DamageIsNoticed) {
  const Flex one = Flex::ints({0});
  const std::vector<Bytes> plans{
      {},
      {0},
      {0, 0, 0},
      flexbuffer(1),
      flexbuffer("text"),
      flexbuffer(Flex::map({{"litefuse", 1}})),
      flexbuffer(Flex::map({{"litefuse", 1}, {"regions", 3}})),
      flexbuffer(Flex::map({{"litefuse", 1}, {"regions", Flex::ints({1, 2})}})),
      flexbuffer(Flex::map({{"litefuse", 1}, {"regions", Flex::vector({Flex::map({{"kind", "a"}})})}})),
      flexbuffer(
          Flex::map({{"litefuse", 1}, {"regions", Flex::vector({Flex::map({{"operators", Flex::ints({-1})}})})}})),
      flexbuffer(Flex::map(
          {{"litefuse", 1}, {"regions", Flex::vector({Flex::map({{"operators", Flex::ints({INT64_MAX})}})})}})),
      flexbuffer(
          Flex::map({{"litefuse", 1}, {"regions", Flex::vector({Flex::map({{"operators", Flex::ints({77})}})})}})),
      flexbuffer(
          Flex::map({{"litefuse", 1}, {"regions", Flex::vector({Flex::map({{"operators", one}, {"subgraph", 7}})})}})),
      flexbuffer(
          Flex::map({{"litefuse", 1}, {"regions", Flex::vector({Flex::map({{"operators", one}, {"subgraph", -1}})})}})),
  };
  for (size_t i = 0; i < plans.size(); ++i) {
    Plugin plugin;
    Runtime runtime;
    add_operators(&runtime.add_graph());
    runtime.set_metadata("litefuse.plan", plans[i]);
    ASSERT_TRUE(runtime.apply(plugin.native())) << i;
    EXPECT_TRUE(runtime.graph().claimed().empty()) << i;
    ASSERT_TRUE(runtime.allocate());
    expect_right(&runtime);
  }
  Runtime runtime;
  Plugin plugin;
  add_operators(&runtime.add_graph());
  for (const std::vector<int>& operators : {std::vector<int>{0, 0}, {1, 0}, {0, 1, 0}}) {
    set_plan(&runtime, {{"a", operators}});
    ASSERT_TRUE(runtime.apply(plugin.native()));
    EXPECT_TRUE(runtime.graph().claimed().empty());
  }
}

// -- what is refused -------------------------------------------------------------------------------------------------

TEST(Refusal, BrokenAttributes) {
  const std::vector<std::pair<Bytes, std::string>> cases{
      {{}, "format 0"},
      {{1, 2, 3}, "format 0"},
      {flexbuffer(1), "format 0"},
      {flexbuffer(Flex::map({{"inputs", Flex::ints({0})}})), "format 0"},
      {attributes({kX}, {kY}, {}, 0, 2), "format 2"},
      {attributes({kX}, {kY}, {}, 0, -1), "format -1"},
      {flexbuffer(Flex::map({{"litefuse", "1"}, {"inputs", Flex::ints({0})}})), "format 0"},
      {attributes({kX}, {}), "no outputs"},
      {attributes({}, {kY}), "computed by nothing"},
      {attributes({kX, kX}, {kY}), "listed twice"},
      {attributes({kX}, {kY, kY}), "listed twice"},
      {attributes({kX}, {kY, kSum}), "1 outputs"},
      {attributes({kX}, {kC}), "computed by nothing"},
      {attributes({kX}, {kX}), "computed by nothing"},
      {attributes({kC}, {kY}), "is a constant"},
      {attributes({99}, {kY}), "tensor 99"},
      {attributes({kX}, {1 << 30}), "tensor 1073741824"},
      {attributes({-1}, {kY}), "-1"},
      {attributes({INT64_MAX}, {kY}), "9223372036854775807"},
      {attributes({int64_t{1} << 32}, {kY}), "4294967296"},
      {attributes({kX, kSum}, {kY}), "has a value already"},
  };
  for (const auto& [bytes, reason] : cases) {
    Plugin plugin;
    Runtime runtime;
    make_composite(&runtime, bytes);
    ASSERT_TRUE(runtime.apply(plugin.native()));
    EXPECT_TRUE(runtime.graph().claimed().empty()) << reason;
    EXPECT_NE(plugin.reasons().find(reason), std::string::npos) << plugin.reasons() << " without " << reason;
    ASSERT_TRUE(runtime.allocate());
    expect_right(&runtime);
  }
}

TEST(Refusal, TruncatedAttributes) {
  const Bytes whole = attributes({kX}, {kY}, {0, 0, 0, 1, 0, 64}, 128);
  for (size_t size = 0; size < whole.size(); ++size) {
    Plugin plugin;
    Runtime runtime;
    make_composite(&runtime, Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
    ASSERT_TRUE(runtime.apply(plugin.native()));
    EXPECT_TRUE(runtime.graph().claimed().empty()) << size;
    EXPECT_FALSE(plugin.reasons().empty());
  }
}

TEST(Refusal, BrokenOperators) {
  const std::vector<std::pair<std::function<void(Runtime*)>, std::string>> cases{
      {[](Runtime* r) { r->graph().at(0).type = static_cast<int>(Type::kInt32); }, "of another type"},
      {[](Runtime* r) { r->graph().at(1).type = 77; }, "of another type"},
      {[](Runtime* r) { r->graph(1).at(kX).type = static_cast<int>(Type::kInt8); }, ""},
      {[](Runtime* r) { r->graph(1).at(kSum).type = 8; }, "type 8"},
      {[](Runtime* r) { r->graph(1).at(kSum).type = -1; }, "type -1"},
      {[](Runtime* r) { r->graph(1).at(kSum).type = 5; }, "type 5"},
      {[](Runtime* r) { r->graph(1).at(kX).is_variable = true; }, "variable"},
      {[](Runtime* r) { r->graph(1).sparsify(kC, Sparsity()); }, "only DENSIFY reads"},
      {[](Runtime* r) { r->graph(1).sparsify(kX, Sparsity()); }, "sparse and not constant"},
      {[](Runtime* r) {
         r->graph(1).sparsify(kC, Sparsity());
         r->graph(1).at(kC).sparsity->traversal_order->size = -1;
       },
       "lists -1 numbers"},
      {[](Runtime* r) {
         Sparsity how;
         how.order.resize(17);
         r->graph(1).sparsify(kC, how);
       },
       "lists 17 numbers where 16"},
      {[](Runtime* r) {
         Sparsity how;
         how.levels.resize(17);
         r->graph(1).sparsify(kC, how);
       },
       "describes 17 dimensions"},
      {[](Runtime* r) {
         Sparsity how;
         how.levels.resize(1);
         r->graph(1).sparsify(kC, how);
         r->graph(1).at(kC).sparsity->dim_metadata[0].format = 2;
       },
       "unknown format 2"},
      {[](Runtime* r) {
         Sparsity how;
         how.levels = {{false, 0, std::vector<int32_t>(100), {}}};
         r->graph(1).sparsify(kC, how);
       },
       "lists 100 numbers where 5"},
      {[](Runtime* r) {
         r->graph(1).set_dims(kX, {-1, 4});
       },
       "shape"},
      {[](Runtime* r) {
         r->graph(1).set_dims(kX, {INT_MAX, INT_MAX});
       },
       "shape"},
      {[](Runtime* r) { r->graph(1).set_dims(kX, {INT_MIN}); }, "shape"},
      {[](Runtime* r) { r->graph(1).set_dims(kX, Dims(100, 1)); }, "shape"},
      {[](Runtime* r) {
         r->graph(1).set_dims(kX, {0, INT_MAX, INT_MAX, INT_MAX});
       },
       "shape"},
      {[](Runtime* r) {
         std::free(r->graph(1).at(kSum).dims);
         r->graph(1).at(kSum).dims = nullptr;
       },
       "shape"},
      {[](Runtime* r) { r->graph(1).at(kC).bytes = 15; }, "15 bytes"},
      {[](Runtime* r) { r->graph(1).set_dims(kC, {5}); }, "too few"},
      {[](Runtime* r) {
         Graph& g = r->graph(1);
         g.at(kC).data = static_cast<char*>(g.at(kC).data) + 1;
         g.set_dims(kC, {1});
       },
       "aligned"},
      {[](Runtime* r) { r->graph(1).at(kC).data = nullptr; }, "computed by nothing"},
      {[](Runtime* r) { r->graph(1).node(0).builtin_data = nullptr; }, "options"},
      {[](Runtime* r) { r->graph(1).registration(0).builtin_code = 9999; }, "none that regions may contain"},
      {[](Runtime* r) { r->graph(1).registration(0).builtin_code = -1; }, "none that regions may contain"},
      {[](Runtime* r) { r->graph(1).registration(0).builtin_code = abi::kBuiltinCustom; },
       "none that regions may contain"},
      {[](Runtime* r) { r->graph(1).registration(0).builtin_code = abi::kBuiltinDelegate; },
       "none that regions may contain"},
      {[](Runtime* r) { r->graph(1).node(0).inputs->data[0] = 77; }, "tensor 77"},
      {[](Runtime* r) { r->graph(1).node(0).inputs->data[0] = -5; }, "tensor -5"},
      {[](Runtime* r) { r->graph(1).node(0).outputs->data[0] = INT_MAX; }, "does not exist"},
      {[](Runtime* r) { r->graph(1).node(0).outputs->data[0] = -1; }, "does not exist"},
      {[](Runtime* r) { r->graph(1).node(0).inputs->size = 1; }, "inputs"},
      {[](Runtime* r) { r->graph(1).node(0).outputs->size = 0; }, "no outputs"},
      {[](Runtime* r) { r->graph(1).node(0).outputs->data[0] = kX; }, "has a value already"},
      {[](Runtime* r) { r->graph(1).node(0).outputs->data[0] = kC; }, "has a value already"},
      {[](Runtime* r) { r->graph(1).node(1).outputs->data[0] = kSum; }, ""},
      {[](Runtime* r) { r->graph(1).node(0).inputs->data[0] = kProduct; }, "computed by nothing"},  // a circle
      {[](Runtime* r) { r->graph(1).node(0).inputs->data[1] = kSum; }, "computed by nothing"},      // its own output
      {[](Runtime* r) { std::swap(r->graph(1).node(0).inputs, r->graph(1).node(2).inputs); }, ""},
      {[](Runtime* r) {
         r->graph(1).quantize(kSum, {0.0f, 1.0f, 1.0f, 1.0f}, {0, 0, 0, 0}, 1);
       },
       "scale"},
      {[](Runtime* r) {
         r->graph(1).quantize(kSum, {1, 1, 1}, {0, 0, 0}, 1);
       },
       "zero points"},
      {[](Runtime* r) {
         r->graph(1).quantize(kSum, {1, 1, 1, 1}, {0, 0, 0, 0}, 9);
       },
       "zero points"},
      {[](Runtime* r) {
         r->graph(1).quantize(kSum, {1, 1, 1, 1}, {0, 0, 0, 0}, -1);
       },
       "zero points"},
      {[](Runtime* r) {
         r->graph(1).quantize(kSum, {1, 1}, {0, 0, 0, 0}, 1);
       },
       "scales"},
      {[](Runtime* r) { r->graph(1).quantize(kSum, {-1.0f}, {0}); }, "scale"},
      {[](Runtime* r) { r->graph().node(0).inputs->size = 0; }, "0 inputs"},
      {[](Runtime* r) { r->graph().node(0).inputs->data[0] = -1; }, "does not exist"},
      {[](Runtime* r) { r->graph().node(0).outputs->data[0] = 77; }, "does not exist"},
      {[](Runtime* r) { static_cast<abi::CompositeParams*>(r->graph().node(0).builtin_data)->subgraph_index = 0; },
       "contains itself"},
      {[](Runtime* r) { static_cast<abi::CompositeParams*>(r->graph().node(0).builtin_data)->subgraph_index = 2; },
       "subgraph 2"},
      {[](Runtime* r) { static_cast<abi::CompositeParams*>(r->graph().node(0).builtin_data)->subgraph_index = -1; },
       "subgraph -1"},
      {[](Runtime* r) {
         Graph& empty = r->add_graph();
         empty.tensor(Type::kFloat32, {2, 4});
         static_cast<abi::CompositeParams*>(r->graph().node(0).builtin_data)->subgraph_index = 2;
       },
       "no operators"},
      {[](Runtime* r) { static_cast<abi::CompositeParams*>(r->graph().node(0).builtin_data)->attributes = nullptr; },
       "format 0"},
      {[](Runtime* r) { static_cast<abi::AddParams*>(r->graph(1).node(0).builtin_data)->activation = 99; }, ""},
      {[](Runtime* r) { static_cast<abi::AddParams*>(r->graph(1).node(0).builtin_data)->activation = 4; }, ""},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    Plugin plugin;
    Runtime runtime;
    make_composite(&runtime, good());
    cases[i].first(&runtime);
    ASSERT_TRUE(runtime.apply(plugin.native())) << i;
    EXPECT_TRUE(runtime.graph().claimed().empty()) << "case " << i << ", " << cases[i].second;
    EXPECT_NE(plugin.reasons().find("litefuse.test #0: "), std::string::npos) << "case " << i;
    EXPECT_NE(plugin.reasons().find(cases[i].second), std::string::npos)
        << "case " << i << ": " << plugin.reasons() << "does not say " << cases[i].second;
  }
}

TEST(Refusal, MissingOptionsOfTheComposite) {
  Plugin plugin;
  Runtime runtime;
  make_composite(&runtime, good());
  runtime.graph().node(0).builtin_data = nullptr;
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_TRUE(runtime.graph().claimed().empty());
}

TEST(Refusal, NamesMayBeMissing) {
  Plugin plugin;
  Runtime runtime;
  make_composite(&runtime, good());
  for (int t = 0; t < runtime.graph(1).tensors(); ++t) {
    std::free(const_cast<char*>(runtime.graph(1).at(t).name));
    runtime.graph(1).at(t).name = nullptr;
  }
  ASSERT_TRUE(runtime.apply(plugin.native()));
  EXPECT_EQ(runtime.graph().claimed(), Names{"litefuse.test"});
  Runtime nameless;
  make_composite(&nameless, good(), nullptr);
  ASSERT_TRUE(nameless.apply(plugin.native()));
  EXPECT_TRUE(nameless.graph().claimed().empty());
}

// -- resizing --------------------------------------------------------------------------------------------------------

TEST(Resize, InBothManners) {
  for (const bool undo : {false, true}) {
    Plugin plugin;
    Runtime runtime;
    make_composite(&runtime, good());
    ASSERT_TRUE(runtime.apply(plugin.native()));
    ASSERT_TRUE(runtime.allocate());
    for (const Dims& dims : std::vector<Dims>{{7, 4}, {1, 4}, {0, 4}, {2, 3, 4}, {100, 4}, {4}, {2, 4}}) {
      ASSERT_TRUE(runtime.resize_input(0, dims, undo));
      ASSERT_TRUE(runtime.allocate()) << runtime.errors.back();
      EXPECT_EQ(runtime.graph().dims(runtime.graph().outputs[0]), dims);
      EXPECT_EQ(runtime.graph().claimed(), Names{"litefuse.test"});
      expect_right(&runtime);
    }
  }
}

// 4 does not broadcast with 5, and what the runtime can do about it is to say so.
TEST(Resize, ToAShapeThatDoesNotFit) {
  Plugin plugin;
  Runtime runtime;
  make_composite(&runtime, good());
  ASSERT_TRUE(runtime.apply(plugin.native()));
  ASSERT_TRUE(runtime.allocate());
  for (const Dims& dims : std::vector<Dims>{{2, 5}, Dims(9, 1), Dims(100, 1)}) {
    runtime.errors.clear();
    ASSERT_TRUE(runtime.resize_input(0, dims));
    EXPECT_FALSE(runtime.allocate());
    ASSERT_FALSE(runtime.errors.empty());
    EXPECT_EQ(runtime.errors[0].rfind("litefuse.test: ", 0), 0u) << runtime.errors[0];
  }
  ASSERT_TRUE(runtime.resize_input(0, {2, 4}));
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
}

TEST(Resize, BehindTheBackOfTheKernel) {
  Plugin plugin;
  Runtime runtime;
  make_composite(&runtime, good());
  ASSERT_TRUE(runtime.apply(plugin.native()));
  ASSERT_TRUE(runtime.allocate());
  Graph& main = runtime.graph();
  main.set_dims(main.inputs[0], {1, 4});
  // The output loses its memory when the kernel resizes it, and nobody gives it another.
  EXPECT_FALSE(runtime.invoke());
  EXPECT_NE(runtime.errors[0].find("no memory"), std::string::npos) << runtime.errors[0];
  std::free(main.at(main.inputs[0]).dims);
  main.at(main.inputs[0]).dims = nullptr;
  EXPECT_FALSE(runtime.invoke());
  main.at(main.inputs[0]).dims = fake::make_array({1, 4});
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
}

// An operator in front decides in each run how large its output is.
TEST(Resize, OfDynamicTensorsInEachRun) {
  Plugin plugin;
  Runtime runtime;
  Graph& main = runtime.add_graph();
  const int count = main.tensor(Type::kInt32, {1});
  const int x = main.tensor(Type::kFloat32, {2, 4});
  const int y = main.tensor(Type::kFloat32, {2, 4});
  const int z = main.tensor(Type::kFloat32, {2, 4});
  main.inputs = {count};
  main.outputs = {z};
  main.make_dynamic(x);
  main.native(
      {count}, {x}, [](Graph*, abi::Node*) { return true; },
      [count, x](Graph* graph, abi::Node*) {
        const int rows = *graph->data<int32_t>(count);
        if (!graph->context()->resize_tensor) return false;
        graph->context()->resize_tensor(graph->context(), &graph->at(x), fake::make_array({rows, 4}));
        for (int i = 0; i < 4 * rows; ++i) graph->data<float>(x)[i] = static_cast<float>(i);
        return true;
      });
  main.composite("litefuse.test", {x}, {y}, 1, good());
  main.composite("litefuse.test", {y}, {z}, 1, good());
  add_operators(&runtime.add_graph());
  ASSERT_TRUE(runtime.apply(plugin.native()));
  ASSERT_EQ(main.claimed().size(), 2u);
  ASSERT_TRUE(runtime.allocate());
  for (const int rows : {3, 1, 0, 9, 9, 2}) {
    main.set<int32_t>(count, {rows});
    ASSERT_TRUE(runtime.invoke()) << runtime.errors.back();
    const auto found = main.values<float>(z);
    ASSERT_EQ(found.size(), static_cast<size_t>(4 * rows));
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], expected(expected(static_cast<float>(i), i), i));
  }
}

TEST(Resize, ErrorsOfTheRuntimeAreReported) {
  Plugin plugin;
  Runtime runtime;
  make_composite(&runtime, good());
  ASSERT_TRUE(runtime.apply(plugin.native()));
  runtime.graph().context()->resize_tensor = [](abi::Context*, abi::Tensor*, abi::IntArray* dims) -> int {
    std::free(dims);
    return abi::kError;
  };
  EXPECT_FALSE(runtime.allocate());
  EXPECT_NE(runtime.errors[0].find("cannot resize output 0"), std::string::npos);
}

// -- scratch memory --------------------------------------------------------------------------------------------------

TEST(ScratchPlan, IsFollowedIfItIsSafe) {
  struct Case {
    std::vector<int64_t> places;  // operator, output, offset
    int64_t bytes;
    bool followed;
  };
  const std::vector<Case> cases{
      {{0, 0, 0, 1, 0, 64}, 128, true},
      {{0, 0, 64, 1, 0, 0}, 128, true},
      {{1, 0, 0, 0, 0, 64}, 128, true},
      {{}, 0, false},
      {{}, 128, false},
      {{0, 0, 0, 1, 0, 0}, 128, false},   // overlap
      {{0, 0, 0, 1, 0, 32}, 128, false},  // not aligned, and too near
      {{0, 0, 4, 1, 0, 68}, 128, false},  // not aligned
      {{0, 0, 0, 1, 0, 64}, 64, false},   // too little
      {{0, 0, 0, 1, 0, 64}, 0, false},
      {{0, 0, 0, 1, 0, 64}, -1, false},
      {{0, 0, 0, 1, 0, 64}, INT64_MAX, false},  // too much
      {{0, 0, 0, 1, 0, 64}, int64_t{1} << 33, false},
      {{0, 0, 0, 1, 0, int64_t{1} << 33}, int64_t{1} << 34, false},
      {{0, 0, 0, 1, 0, INT64_MAX - 63}, INT64_MAX, false},
      {{0, 0, 0}, 128, false},                       // one is missing
      {{0, 0, 0, 0, 0, 0}, 128, false},              // one twice
      {{0, 0, 0, 1, 0, 64, 2, 0, 128}, 192, false},  // the output is none
      {{0, 0, 0, 1, 0}, 128, false},
      {{0, 0, 0, 1, 1, 64}, 128, false},
      {{0, 0, 0, 7, 0, 64}, 128, false},
      {{0, 0, 0, -1, 0, 64}, 128, false},
      {{0, 0, 0, int64_t{1} << 32, 0, 64}, 128, false},
      {{0, 0, -64, 1, 0, 64}, 128, false},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    Plugin plugin(kReference);
    Runtime runtime;
    make_composite(&runtime, attributes({kX}, {kY}, cases[i].places, cases[i].bytes));
    ASSERT_TRUE(runtime.apply(plugin.native()));
    ASSERT_EQ(runtime.graph().claimed(), Names{"litefuse.test"}) << "case " << i << ": " << plugin.reasons();
    ASSERT_TRUE(runtime.allocate());
    expect_right(&runtime);
    const Json report = plugin.report();
    const Json& region = report["regions"].items.at(0);
    EXPECT_EQ(region["follows_plan"].boolean, cases[i].followed) << "case " << i;
    EXPECT_EQ(region["scratch_bytes"].number, 128) << "case " << i;
  }
}

// Fast pipelines keep a few rows where the plan keeps tensors; whatever it says, the results are right.
TEST(ScratchPlan, IsOnlyAHint) {
  const std::vector<std::vector<int64_t>> plans{
      {}, {0, 0, 0, 1, 0, 64}, {0, 0, 0, 1, 0, 0}, {0, 0, 4, 1, 0, 68}, {0, 0, -64, 1, 0, 64}, {0, 0, 0, 7, 0, 64}};
  for (const auto& places : plans) {
    for (const int64_t bytes : {int64_t{-1}, int64_t{0}, int64_t{64}, int64_t{128}, INT64_MAX}) {
      Plugin plugin;
      Runtime runtime;
      make_composite(&runtime, attributes({kX}, {kY}, places, bytes));
      ASSERT_TRUE(runtime.apply(plugin.native()));
      ASSERT_TRUE(runtime.allocate());
      expect_right(&runtime);
      const Json report = plugin.report();
      const Json& region = report["regions"].items.at(0);
      if (!region["follows_plan"].boolean) continue;
      EXPECT_LE(region["scratch_bytes"].number, static_cast<double>(bytes));
    }
  }
}

TEST(ScratchPlan, IsGivenUpForShapesThatItDoesNotFit) {
  Plugin plugin(kReference);
  Runtime runtime;
  make_composite(&runtime, attributes({kX}, {kY}, {0, 0, 0, 1, 0, 64}, 128));
  ASSERT_TRUE(runtime.apply(plugin.native()));
  auto follows = [&plugin]() {
    const Json report = plugin.report();
    return report["regions"].items.at(0)["follows_plan"].boolean;
  };
  ASSERT_TRUE(runtime.allocate());
  EXPECT_TRUE(follows());
  for (const int rows : {50, 2, 5}) {
    ASSERT_TRUE(runtime.resize_input(0, {rows, 4}));
    ASSERT_TRUE(runtime.allocate());
    EXPECT_EQ(follows(), rows == 2);
    expect_right(&runtime);
  }
}

// -- profiles --------------------------------------------------------------------------------------------------------

TEST(Profiling, TellsTheRuntimeAndTheReport) {
  Plugin plugin(Choices{{"profile", "1"}, {"backend", "reference"}});
  fake::Profiler profiler;
  Runtime runtime;
  runtime.profiler = &profiler;
  make_composite(&runtime, good());
  ASSERT_TRUE(runtime.apply(plugin.native()));
  ASSERT_TRUE(runtime.allocate());
  for (int i = 0; i < 3; ++i) expect_right(&runtime);
  ASSERT_EQ(profiler.events.size(), 9u);
  EXPECT_TRUE(profiler.balanced);
  EXPECT_TRUE(profiler.open.empty());
  const char* names[] = {"ADD", "MUL", "RELU"};
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(profiler.events[i].tag, names[i % 3]);
    EXPECT_EQ(profiler.events[i].index, static_cast<int64_t>(i % 3));
    EXPECT_EQ(profiler.events[i].type, abi::kDelegateOperatorInvokeEvent);
  }
  Json report = plugin.report();
  const Json& region = report["regions"].items.at(0);
  EXPECT_EQ(region["runs"].number, 3);
  ASSERT_EQ(region["times"].items.size(), 3u);
  EXPECT_EQ(region["times"].items[0]["operator"].text, "ADD #0 `sum`");
  EXPECT_EQ(region["times"].items[2]["operator"].text, "RELU #2 `y`");
  double total = 0;
  for (const Json& time : region["times"].items) total += time["nanoseconds"].number;
  EXPECT_GT(total, 0);
  litefuse_delegate_clear_profile(plugin.get());
  report = plugin.report();
  EXPECT_EQ(report["regions"].items.at(0)["runs"].number, 0);
  for (const Json& time : report["regions"].items.at(0)["times"].items) EXPECT_EQ(time["nanoseconds"].number, 0);
}

// What is computed row by row together is one event, which has the name of its first operator.
TEST(Profiling, TellsOfPipelines) {
  Plugin plugin(Choices{{"profile", "1"}});
  fake::Profiler profiler;
  Runtime runtime;
  runtime.profiler = &profiler;
  make_composite(&runtime, good());
  ASSERT_TRUE(runtime.apply(plugin.native()));
  ASSERT_TRUE(runtime.allocate());
  for (int i = 0; i < 3; ++i) expect_right(&runtime);
  ASSERT_EQ(profiler.events.size(), 3u);
  EXPECT_TRUE(profiler.balanced);
  EXPECT_TRUE(profiler.open.empty());
  for (const auto& event : profiler.events) {
    EXPECT_EQ(event.tag, "ADD");
    EXPECT_EQ(event.index, 0);
    EXPECT_EQ(event.type, abi::kDelegateOperatorInvokeEvent);
  }
  const Json report = plugin.report();
  const Json& region = report["regions"].items.at(0);
  EXPECT_EQ(region["runs"].number, 3);
  ASSERT_EQ(region["times"].items.size(), 3u);
  double total = 0;
  for (const Json& time : region["times"].items) total += time["nanoseconds"].number;
  EXPECT_GT(total, 0);
}

TEST(Profiling, IsOffByDefault) {
  Plugin plugin;
  fake::Profiler profiler;
  Runtime runtime;
  runtime.profiler = &profiler;
  make_composite(&runtime, good());
  ASSERT_TRUE(runtime.apply(plugin.native()));
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
  EXPECT_TRUE(profiler.events.empty());
  litefuse_delegate_clear_profile(plugin.get());
}

TEST(Report, QuotesWhatNamesContain) {
  Plugin plugin(Choices{{"profile", "1"}});
  Runtime runtime;
  make_composite(&runtime, good(), "litefuse.\"\\\x01\n%s");
  ASSERT_TRUE(runtime.apply(plugin.native()));
  const Json report = plugin.report();
  EXPECT_EQ(report["regions"].items.at(0)["name"].text, "litefuse.\"\\\x01\n%s");
}

TEST(Report, IsCutToTheSizeOfTheBuffer) {
  Plugin plugin;
  const std::string whole = plugin.text();
  for (size_t size = 0; size < whole.size() + 3; ++size) {
    std::vector<char> text(size, '?');
    EXPECT_EQ(litefuse_delegate_report(plugin.get(), text.data(), size), whole.size());
    const size_t length = std::min(size - 1, whole.size());
    if (size > 0) {
      EXPECT_EQ(std::string(text.data()), whole.substr(0, length));
    }
  }
}

// The same model again and again leaves the list as long as it is.
TEST(Report, ListsARefusalOnce) {
  Plugin plugin;
  for (int i = 0; i < 3; ++i) {
    Runtime runtime;
    make_composite(&runtime, {});
    ASSERT_TRUE(runtime.apply(plugin.native()));
  }
  EXPECT_EQ(plugin.report()["refused"].items.size(), 1u);
}

// -- lives -----------------------------------------------------------------------------------------------------------

TEST(Life, KernelsGoWithTheirInterpreters) {
  Plugin plugin;
  auto first = std::make_unique<Runtime>();
  auto second = std::make_unique<Runtime>();
  auto third = std::make_unique<Runtime>();
  for (Runtime* runtime : {first.get(), second.get(), third.get()}) {
    make_composite(runtime, good());
    ASSERT_TRUE(runtime->apply(plugin.native()));
  }
  ASSERT_TRUE(first->allocate());
  ASSERT_TRUE(second->allocate());
  EXPECT_EQ(plugin.report()["regions"].items.size(), 3u);
  first.reset();
  EXPECT_EQ(plugin.report()["regions"].items.size(), 2u);
  expect_right(second.get());
  ASSERT_TRUE(second->graph().undo());
  EXPECT_EQ(plugin.report()["regions"].items.size(), 1u);
  second.reset();
  third.reset();
  EXPECT_TRUE(plugin.report()["regions"].items.empty());
}

// Garbage collectors destroy in any order.
TEST(Life, TheDelegateMayGoFirst) {
  auto runtime = std::make_unique<Runtime>();
  auto plugin = std::make_unique<Plugin>();
  make_composite(runtime.get(), good());
  ASSERT_TRUE(runtime->apply(plugin->native()));
  ASSERT_TRUE(runtime->allocate());
  plugin.reset();
  expect_right(runtime.get());
  ASSERT_TRUE(runtime->resize_input(0, {3, 4}));
  ASSERT_TRUE(runtime->allocate());
  expect_right(runtime.get());
}

TEST(Life, TheSameAddressesAgain) {
  Plugin plugin;
  for (int i = 0; i < 50; ++i) {
    Runtime runtime;
    if (i % 3 == 0) {
      add_operators(&runtime.add_graph());
    } else {
      make_composite(&runtime, i % 3 == 1 ? good() : Bytes());
    }
    ASSERT_TRUE(runtime.apply(plugin.native()));
    EXPECT_EQ(runtime.graph().claimed().size(), i % 3 == 1 ? 1u : 0u);
    ASSERT_TRUE(runtime.allocate());
    expect_right(&runtime);
  }
}

TEST(Life, TwoDelegatesForOneInterpreter) {
  Plugin first;
  Plugin second;
  Runtime runtime;
  make_composite(&runtime, good());
  ASSERT_TRUE(runtime.apply(first.native()));
  ASSERT_TRUE(runtime.apply(second.native()));
  EXPECT_EQ(runtime.graph().claimed(), Names{"litefuse.test"});
  ASSERT_TRUE(runtime.allocate());
  expect_right(&runtime);
  EXPECT_EQ(first.report()["regions"].items.size(), 1u);
  EXPECT_TRUE(second.report()["regions"].items.empty());
}

TEST(Life, OneDelegateInManyThreads) {
  Plugin plugin(Choices{{"profile", "1"}});
  std::atomic<int> wrong{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 4; ++worker) {
    threads.emplace_back([&plugin, &wrong, worker] {
      for (int round = 0; round < 8; ++round) {
        Runtime runtime;
        if (worker % 2 == 0) {
          make_composite(&runtime, good());
        } else {
          add_operators(&runtime.add_graph());
          set_plan(&runtime, {{"a", {0, 1}}, {"b", {2}}});
        }
        bool right = runtime.apply(plugin.native()) && runtime.allocate() && !runtime.graph().claimed().empty();
        for (int i = 0; right && i < 4; ++i) {
          const int rows = 1 + (worker + round + i) % 5;
          right = runtime.resize_input(0, {rows, 4}, i % 2 == 1) && runtime.allocate();
          if (!right) break;
          Graph& main = runtime.graph();
          std::vector<float> x(static_cast<size_t>(4 * rows));
          for (size_t k = 0; k < x.size(); ++k) x[k] = static_cast<float>(k) - static_cast<float>(worker);
          main.set<float>(main.inputs[0], x);
          right = runtime.invoke();
          if (!right) break;
          const auto y = main.values<float>(main.outputs[0]);
          for (size_t k = 0; k < x.size(); ++k) right = right && y[k] == expected(x[k], k);
        }
        if (!right) ++wrong;
      }
    });
  }
  // Others look on.
  std::thread watcher([&plugin, &stop] {
    while (!stop) {
      Json json;
      // Large enough, for the report may have grown since its size was asked for.
      std::string text(100000, '?');
      text.resize(litefuse_delegate_report(plugin.get(), text.data(), text.size()));
      EXPECT_TRUE(fake::JsonReader(text).read(&json)) << text;
      litefuse_delegate_clear_profile(plugin.get());
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  watcher.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(plugin.report()["regions"].items.empty());
}

}  // namespace
}  // namespace litefuse
