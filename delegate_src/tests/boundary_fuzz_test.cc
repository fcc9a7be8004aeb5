// Damaged models at the boundary between runtime and delegate: whatever is in the file, the delegate claims what is
// sound, leaves the rest, and never fails the runtime. The sanitizers judge that nothing is read that is not there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "litefuse/litefuse.h"
#include "tests/fake_runtime.h"
#include "tests/json.h"
#include "tests/random.h"
#include "tests/sparse.h"
#include "tflite/delegate.h"

namespace litefuse {
namespace {

using fake::Bytes;
using fake::Dims;
using fake::Flex;
using fake::Graph;
using fake::Random;
using fake::Runtime;

// What of a model can be damaged without the runtime having refused it first.
struct Options {
  int graph;
  int node;
  int words;  // integers that its options begin with
};
struct Model {
  Runtime runtime;
  std::vector<Options> options;
  std::vector<int> wrapped;  // nodes of graph 0 with attributes
};

// Tensors and operators of an int8 network: convolutions, a branch, shapes as constants, a softmax.
void add_network(Model* model, int index) {
  Graph& g = model->runtime.graph(index);
  auto options = [&](int node, int words) { model->options.push_back({index, node, words}); };
  const int x = g.tensor(Type::kInt8, {1, 6, 6, 4}, "x");
  const int w = g.constant(Type::kInt8, {4, 3, 3, 4}, std::vector<int8_t>(144, 3), "w");
  const int b = g.constant(Type::kInt32, {4}, std::vector<int32_t>{1, -2, 3, -4}, "b");
  const int conv = g.tensor(Type::kInt8, {1, 6, 6, 4}, "conv");
  const int dw = g.constant(Type::kInt8, {1, 3, 3, 4}, std::vector<int8_t>(36, -2), "dw");
  const int depth = g.tensor(Type::kInt8, {1, 6, 6, 4}, "depth");
  const int sum = g.tensor(Type::kInt8, {1, 6, 6, 4}, "sum");
  const int pads = g.constant(Type::kInt32, {4, 2}, std::vector<int32_t>{0, 0, 1, 1, 1, 1, 0, 0}, "pads");
  const int padded = g.tensor(Type::kInt8, {1, 8, 8, 4}, "padded");
  const int pooled = g.tensor(Type::kInt8, {1, 4, 4, 4}, "pooled");
  const int begin = g.constant(Type::kInt32, {4}, std::vector<int32_t>{0, 1, 0, 0}, "begin");
  const int end = g.constant(Type::kInt32, {4}, std::vector<int32_t>{0, 4, 4, 0}, "end");
  const int steps = g.constant(Type::kInt32, {4}, std::vector<int32_t>{1, 1, 2, 1}, "steps");
  const int cut = g.tensor(Type::kInt8, {1, 3, 2, 4}, "cut");
  const int joined = g.tensor(Type::kInt8, {1, 3, 4, 4}, "joined");
  const int shape = g.constant(Type::kInt32, {2}, std::vector<int32_t>{-1, 48}, "shape");
  const int flat = g.tensor(Type::kInt8, {1, 48}, "flat");
  std::vector<int8_t> weights(240);
  for (size_t i = 0; i < weights.size(); i += 7) weights[i] = 1;
  const auto sparse = fake::make_sparse(weights, {5, 48}, {{1, 0, 2}, {1}, {4}, {true, false, true}});
  const int fw = g.constant(Type::kInt8, {5, 48}, sparse.values, "fw");
  g.sparsify(fw, sparse.how);
  const int full = g.tensor(Type::kInt8, {1, 5}, "full");
  const int real = g.tensor(Type::kFloat32, {1, 5}, "real");
  const int y = g.tensor(Type::kFloat32, {1, 5}, "y");
  const int where = g.constant(Type::kInt32, {2}, std::vector<int32_t>{4, 0}, "where");
  const int z = g.tensor(Type::kFloat32, {1, 2}, "z");
  const int dense = g.tensor(Type::kInt8, {5, 48}, "dense");
  for (int t : {x, conv, depth, sum, padded, pooled, cut, joined, flat, full}) g.quantize(t, {0.25f}, {-3});
  g.quantize(w, {0.01f, 0.02f, 0.03f, 0.04f}, {0, 0, 0, 0}, 0);
  g.quantize(b, {0.0025f, 0.005f, 0.0075f, 0.01f}, {0, 0, 0, 0}, 0);
  g.quantize(dw, {0.01f, 0.02f, 0.03f, 0.04f}, {0, 0, 0, 0}, 3);
  for (int t : {fw, dense}) g.quantize(t, {0.125f}, {0});
  options(g.op(Kind::kConv2d, {x, w, b}, {conv}, abi::ConvParams{1, 1, 1, 1, 1, 1}), 6);
  options(g.op(Kind::kDepthwiseConv2d, {conv, dw, -1}, {depth}, abi::DepthwiseConvParams{1, 1, 1, 1, 0, 1, 1}), 7);
  options(g.op(Kind::kAdd, {conv, depth}, {sum}, abi::AddParams{0, false}), 1);
  g.op(Kind::kPad, {sum, pads}, {padded});
  options(g.op(Kind::kAveragePool2d, {padded}, {pooled}, abi::PoolParams{2, 2, 2, 2, 2, 0}), 6);
  options(g.op(Kind::kStridedSlice, {pooled, begin, end, steps}, {cut}, abi::StridedSliceParams{9, 9, 0, 0, 0, false}),
          5);
  options(g.op(Kind::kConcatenation, {cut, cut}, {joined}, abi::ConcatenationParams{2, 0}), 2);
  options(g.op(Kind::kReshape, {joined, shape}, {flat}, abi::ReshapeParams{{0}, 0}), 9);
  g.op(Kind::kDensify, {fw}, {dense});
  options(g.op(Kind::kFullyConnected, {flat, dense, -1}, {full}, abi::FullyConnectedParams{0, 0, false, false}), 2);
  g.op(Kind::kDequantize, {full}, {real});
  options(g.op(Kind::kSoftmax, {real}, {y}, abi::SoftmaxParams{1.0f}), 1);
  options(g.op(Kind::kGather, {y, where}, {z}, abi::GatherParams{1, 0}), 2);
  g.inputs = {x};
  g.outputs = {y, z};
}

constexpr int kX = 0;
constexpr int kY = 20;
constexpr int kZ = 22;

enum class Form { kComposite, kCustom, kPlan };

int64_t fingerprint(Graph* graph, int first, int last) {
  uint64_t hash = 0xcbf29ce484222325ull;
  auto add = [&hash](uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3ull; };
  for (int index = first; index <= last; ++index) {
    const int code = graph->registration(index).builtin_code;
    for (int i = 0; i < 4; ++i) add(static_cast<uint8_t>(code >> (8 * i)));
    for (const abi::IntArray* array : {graph->node(index).inputs, graph->node(index).outputs}) {
      for (int i = 0; i < array->size; ++i) {
        const char* name = array->data[i] >= 0 ? graph->at(array->data[i]).name : "";
        for (const char* c = name != nullptr ? name : ""; *c != 0; ++c) add(static_cast<uint8_t>(*c));
        add(0);
      }
    }
  }
  return static_cast<int64_t>(hash & INT64_MAX);
}

void set_plan(Model* model) {
  std::vector<Flex> regions;
  for (const auto& [first, last] : {std::pair{0, 3}, {4, 7}, {8, 12}}) {
    std::vector<int64_t> operators;
    for (int i = first; i <= last; ++i) operators.push_back(i);
    regions.push_back(Flex::map({{"kind", "part"},
                                 {"subgraph", 0},
                                 {"operators", Flex::ints(operators)},
                                 {"fingerprint", fingerprint(&model->runtime.graph(), first, last)},
                                 {"places", Flex::ints({})},
                                 {"scratch_bytes", 0}}));
  }
  model->runtime.set_metadata("litefuse.plan",
                              fake::flexbuffer(Flex::map({{"litefuse", 1}, {"regions", Flex::vector(regions)}})));
}

void build(Form form, Model* model) {
  model->runtime.memory_limit = size_t{1} << 16;
  Graph& main = model->runtime.add_graph();
  if (form == Form::kPlan) {
    add_network(model, 0);
    set_plan(model);
    return;
  }
  const int x = main.tensor(Type::kInt8, {1, 6, 6, 4}, "outer x");
  const int y = main.tensor(Type::kFloat32, {1, 5}, "outer y");
  const int z = main.tensor(Type::kFloat32, {1, 2}, "outer z");
  const int e = main.tensor(Type::kFloat32, {1, 2}, "e");
  main.quantize(x, {0.25f}, {-3});
  main.inputs = {x};
  main.outputs = {y, e};
  const std::vector<int64_t> places{0, 0, 0, 1, 0, 192};
  if (form == Form::kComposite) {
    const Bytes bytes = fake::attributes({kX}, {kY, kZ}, places, 384);
    model->wrapped.push_back(main.composite("litefuse.network", {x}, {y, z}, 1, bytes));
  } else {
    const Bytes bytes = fake::attributes({kX}, {kY, kZ}, places, 384, 1, 1);
    model->wrapped.push_back(main.custom("litefuse.network", {x}, {y, z}, bytes));
  }
  main.op(Kind::kExp, {z}, {e});
  model->runtime.add_graph();
  add_network(model, 1);
}

void spoil_bytes(Bytes* bytes, Random* random) {
  for (int i = 0, n = random->between(1, 4); i < n; ++i) {
    const int size = static_cast<int>(bytes->size());
    if (size == 0) return;
    const auto place =
        static_cast<size_t>(random->one_in(3) ? size - 1 - random->below(std::min(size, 40)) : random->below(size));
    switch (random->below(4)) {
      case 0:
        (*bytes)[place] = static_cast<uint8_t>(random->bits());
        break;
      case 1:
        (*bytes)[place] = static_cast<uint8_t>(random->below(4));
        break;
      case 2:
        bytes->resize(place);
        break;
      default:
        (*bytes)[place] ^= static_cast<uint8_t>(1 << random->below(8));
    }
  }
}

void spoil_quantization(abi::Tensor* tensor, Random* random) {
  auto* affine = static_cast<abi::AffineQuantization*>(tensor->quantization.params);
  if (affine == nullptr || random->one_in(3)) {
    if (random->one_in(2)) {
      tensor->params.scale = random->odd_float();
    } else {
      tensor->params.zero_point = random->odd();
    }
    return;
  }
  const int scales = affine->scale->size;
  const int points = affine->zero_point->size;
  switch (random->below(6)) {
    case 0:
      if (scales > 0) affine->scale->data[random->below(scales)] = random->odd_float();
      break;
    case 1:
      if (points > 0) affine->zero_point->data[random->below(points)] = random->odd();
      break;
    case 2:
      affine->quantized_dimension = random->odd();
      break;
    case 3:
      affine->scale->size = random->below(scales + 1);
      break;
    case 4:
      affine->zero_point->size = random->below(points + 1);
      break;
    default:
      tensor->quantization.type = random->below(3);
  }
}

// Lists only become shorter, and dimensions fewer: how many there are, the runtime itself says.
void spoil_sparsity(abi::Sparsity* sparsity, Random* random) {
  abi::DimensionMetadata& level = sparsity->dim_metadata[random->below(sparsity->dim_metadata_size)];
  abi::IntArray* lists[] = {sparsity->traversal_order, sparsity->block_map, level.array_segments, level.array_indices};
  abi::IntArray* list = lists[random->below(4)];
  switch (random->below(4)) {
    case 0:
      level.format = random->between(-1, 2);
      break;
    case 1:
      level.dense_size = random->odd();
      break;
    case 2:
      if (list != nullptr && list->size > 0) list->size = random->between(-1, list->size - 1);
      break;
    default:
      if (list != nullptr && list->size > 0) list->data[random->below(list->size)] = random->odd();
  }
}

void spoil_tensor(Graph* graph, int index, Random* random) {
  abi::Tensor& tensor = graph->at(index);
  if (tensor.sparsity != nullptr && random->one_in(2)) return spoil_sparsity(tensor.sparsity, random);
  switch (random->below(8)) {
    case 0:
      tensor.type = random->between(-1, 20);
      break;
    case 1: {
      Dims dims = graph->dims(index);
      if (!dims.empty()) dims[static_cast<size_t>(random->below(static_cast<int>(dims.size())))] = random->odd();
      graph->set_dims(index, dims);
      break;
    }
    case 2: {
      Dims dims = graph->dims(index);
      if (random->one_in(2) || dims.empty()) {
        dims.insert(dims.end(), static_cast<size_t>(random->one_in(3) ? 100 : 1), 1);
      } else {
        dims.pop_back();
      }
      graph->set_dims(index, dims);
      break;
    }
    case 3:
    case 4:
      spoil_quantization(&tensor, random);
      break;
    case 5:
      if (tensor.allocation_type == abi::kMmapRo) {
        if (random->one_in(2)) {
          tensor.bytes -= std::min<size_t>(tensor.bytes, static_cast<size_t>(random->between(1, 8)));
        } else if (tensor.bytes >= 4 && tensor.data != nullptr) {
          // What the file has as a number.
          const int32_t value = random->odd();
          const int words = static_cast<int>(tensor.bytes / 4);
          std::memcpy(static_cast<char*>(tensor.data) + 4 * random->below(words), &value, 4);
        }
      } else {
        tensor.is_variable = random->one_in(2);
      }
      break;
    case 6:
      if (tensor.allocation_type == abi::kMmapRo && random->one_in(2)) tensor.data = nullptr;
      break;
    default:
      std::free(const_cast<char*>(tensor.name));
      tensor.name = nullptr;
  }
}

void spoil_node(Model* model, Graph* graph, int index, Random* random) {
  abi::Node& node = graph->node(index);
  abi::IntArray* array = random->one_in(2) ? node.inputs : node.outputs;
  switch (random->below(4)) {
    case 0:
      if (array->size > 0) {
        array->data[random->below(array->size)] =
            random->one_in(3) ? random->odd() : random->between(-1, graph->tensors());
      }
      break;
    case 1:
      array->size = random->below(array->size + 1);
      break;
    case 2:
      graph->registration(index).version = random->odd();
      break;
    default: {
      const Options& chosen =
          model->options[static_cast<size_t>(random->below(static_cast<int>(model->options.size())))];
      void* params = model->runtime.graph(chosen.graph).node(chosen.node).builtin_data;
      const int32_t value = random->odd();
      std::memcpy(static_cast<char*>(params) + 4 * random->below(chosen.words), &value, 4);
    }
  }
}

void spoil(Model* model, Random* random) {
  Runtime& runtime = model->runtime;
  const int which = random->below(runtime.graphs());
  // Mostly the graph with the operators.
  Graph& graph = runtime.graph(random->one_in(4) ? which : runtime.graphs() - 1);
  switch (random->below(5)) {
    case 0:
      if (model->wrapped.empty()) {
        spoil_bytes(&runtime.metadata("litefuse.plan"), random);
      } else {
        spoil_bytes(&runtime.graph().attributes_of(model->wrapped[0]), random);
        runtime.graph().refresh_attributes(model->wrapped[0]);
      }
      break;
    case 1:
    case 2:
      spoil_tensor(&graph, random->below(graph.tensors()), random);
      break;
    case 3:
      if (!model->wrapped.empty() && random->one_in(6) && runtime.graph().node(0).builtin_data != nullptr) {
        static_cast<abi::CompositeParams*>(runtime.graph().node(0).builtin_data)->subgraph_index = random->odd();
        break;
      }
      [[fallthrough]];
    default:
      spoil_node(model, &graph, random->below(graph.nodes()), random);
  }
}

struct Outcome {
  bool claimed = false;
  bool ran = false;
};

// A runtime checks before all else that the numbers of tensors are within bounds, in those nodes that it runs itself.
bool sound(Graph* graph) {
  for (int index : graph->plan()) {
    for (const abi::IntArray* array : {graph->node(index).inputs, graph->node(index).outputs}) {
      for (int i = 0; i < array->size; ++i) {
        if (array->data[i] < -1 || array->data[i] >= graph->tensors()) return false;
      }
    }
  }
  return true;
}

Outcome run(Model* model, Random* random) {
  Outcome outcome;
  TfLiteDelegate* delegate = tflite_plugin_create_delegate(nullptr, nullptr, 0, nullptr);
  Runtime& runtime = model->runtime;
  EXPECT_TRUE(runtime.apply(reinterpret_cast<abi::Delegate*>(delegate)));
  std::string text(1 << 16, '?');
  text.resize(litefuse_delegate_report(delegate, text.data(), text.size()));
  fake::Json json;
  EXPECT_TRUE(fake::JsonReader(text).read(&json)) << text;
  outcome.claimed = !runtime.graph().claimed().empty();
  if (outcome.claimed && sound(&runtime.graph())) {
    for (int again = 0; again < 2; ++again) {
      outcome.ran = runtime.allocate();
      if (outcome.ran) {
        Graph& main = runtime.graph();
        auto* bytes = main.data<uint8_t>(main.inputs[0]);
        for (size_t i = 0; i < main.at(main.inputs[0]).bytes; ++i) bytes[i] = static_cast<uint8_t>(random->bits());
        outcome.ran = runtime.invoke();
      }
      const bool undo = random->one_in(2);
      if (!runtime.resize_input(0, {random->between(0, 2), random->between(5, 7), 6, 4}, undo)) break;
    }
  }
  tflite_plugin_destroy_delegate(delegate);
  return outcome;
}

class BoundaryFuzz : public testing::TestWithParam<Form> {};

TEST_P(BoundaryFuzz, TheModelItselfRuns) {
  Model model;
  build(GetParam(), &model);
  Random random(0);
  const Outcome outcome = run(&model, &random);
  EXPECT_TRUE(outcome.claimed);
  EXPECT_EQ(model.runtime.graph().claimed().size(), GetParam() == Form::kPlan ? 3u : 1u);
}

TEST_P(BoundaryFuzz, DamageIsRefusedOrDoesNoHarm) {
  int claimed = 0, ran = 0;
  constexpr int kRounds = 4000;
  const uint64_t first = fake::first_seed();
  for (uint64_t seed = first; seed < first + kRounds; ++seed) {
    Random random(10 * seed + static_cast<uint64_t>(GetParam()));
    ::testing::ScopedTrace trace(__FILE__, __LINE__, std::to_string(seed));
    Model model;
    build(GetParam(), &model);
    for (int i = 0, n = random.between(1, 3); i < n; ++i) spoil(&model, &random);
    // A plan that is made for the damaged operators is claimed more often.
    if (GetParam() == Form::kPlan && random.one_in(2) && sound(&model.runtime.graph())) set_plan(&model);
    const Outcome outcome = run(&model, &random);
    claimed += outcome.claimed ? 1 : 0;
    ran += outcome.ran ? 1 : 0;
  }
  EXPECT_GT(claimed, kRounds / 20);
  EXPECT_GT(ran, kRounds / 50);
  EXPECT_LT(claimed, kRounds);
}

INSTANTIATE_TEST_SUITE_P(Forms, BoundaryFuzz, testing::Values(Form::kComposite, Form::kCustom, Form::kPlan),
                         [](const testing::TestParamInfo<Form>& info) {
                           return info.param == Form::kComposite ? "Composite"
                                  : info.param == Form::kCustom  ? "Custom"
                                                                 : "Plan";
                         });

}  // namespace
}  // namespace litefuse
