#include "tests/fake_runtime.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "region/executor.h"
#include "tflite/import.h"

namespace litefuse::fake {
namespace {

constexpr int kArenaRw = 2;
constexpr int kDynamic = 4;
constexpr size_t kTensorAlignment = 64;

void* allocate_aligned(size_t bytes) {
  void* memory = nullptr;
  // Of the exact size, so that the first byte behind it is found out.
  return posix_memalign(&memory, kTensorAlignment, bytes) == 0 ? memory : nullptr;
}

size_t bytes_of(int type, const abi::IntArray* dims, bool* fits) {
  uint64_t bytes = std::max<size_t>(size_of(static_cast<Type>(type)), 1);
  *fits = true;
  for (int i = 0; i < dims->size; ++i) {
    if (dims->data[i] < 0 || bytes > (uint64_t{1} << 40)) *fits = false;
    bytes *= static_cast<uint64_t>(std::max(dims->data[i], 0));
  }
  return static_cast<size_t>(bytes);
}

void free_quantization(abi::Tensor* tensor) {
  if (auto* affine = static_cast<abi::AffineQuantization*>(tensor->quantization.params)) {
    std::free(affine->scale);
    std::free(affine->zero_point);
    std::free(affine);
  }
  tensor->quantization = {};
}

bool copy(const abi::Tensor& from, abi::Tensor* to) {
  if (from.bytes != to->bytes) return false;
  if (from.bytes == 0) return true;
  if (from.data == nullptr || to->data == nullptr) return false;
  std::memcpy(to->data, from.data, from.bytes);
  return true;
}

std::vector<int> unique(std::vector<int> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

// -- flexbuffers: everything eight bytes wide -----------------------------------------------------------------------

constexpr uint8_t kWidth = 3;  // the logarithm of eight

void put(Bytes* out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out->push_back(static_cast<uint8_t>(value >> (8 * i)));
}
void put_offset(Bytes* out, size_t target) { put(out, out->size() - target); }
void align(Bytes* out) {
  while (out->size() % 8 != 0) out->push_back(0);
}
uint8_t packed(uint8_t type) { return static_cast<uint8_t>(type << 2 | kWidth); }
uint8_t type_of(const Flex& value) {
  switch (value.sort) {
    case Flex::Sort::kInt:
      return packed(1);
    case Flex::Sort::kString:
      return packed(5);
    case Flex::Sort::kInts:
      return packed(11);
    case Flex::Sort::kVector:
      return packed(10);
    case Flex::Sort::kMap:
      return packed(9);
  }
  return 0;
}

// Writes what stands elsewhere than where it is referred to; returns where.
size_t write(const Flex& value, Bytes* out) {
  std::vector<size_t> places;
  if (value.sort == Flex::Sort::kInt) return 0;
  if (value.sort == Flex::Sort::kString) {
    align(out);
    put(out, value.text.size());
    const size_t at = out->size();
    out->insert(out->end(), value.text.begin(), value.text.end());
    out->push_back(0);
    return at;
  }
  if (value.sort == Flex::Sort::kInts) {
    align(out);
    put(out, value.integers.size());
    const size_t at = out->size();
    for (int64_t number : value.integers) put(out, static_cast<uint64_t>(number));
    return at;
  }
  for (const Flex& item : value.items) places.push_back(write(item, out));
  size_t keys = 0;
  if (value.sort == Flex::Sort::kMap) {
    std::vector<size_t> texts;
    for (const std::string& key : value.keys) {
      texts.push_back(out->size());
      out->insert(out->end(), key.begin(), key.end());
      out->push_back(0);
    }
    align(out);
    put(out, value.keys.size());
    keys = out->size();
    for (size_t text : texts) put_offset(out, text);
    put_offset(out, keys);
    put(out, 8);
  }
  align(out);
  put(out, value.items.size());
  const size_t at = out->size();
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (value.items[i].sort == Flex::Sort::kInt) {
      put(out, static_cast<uint64_t>(value.items[i].integer));
    } else {
      put_offset(out, places[i]);
    }
  }
  for (const Flex& item : value.items) out->push_back(type_of(item));
  return at;
}

int forbidden_plan(abi::Context*, abi::IntArray**) { return abi::kError; }
int forbidden_node(abi::Context*, int, abi::Node**, abi::Registration**) { return abi::kError; }
int forbidden_replace(abi::Context*, abi::Registration, const abi::IntArray*, abi::Delegate*) { return abi::kError; }
int forbidden_preview(abi::Context*, const abi::IntArray*, abi::DelegateParams**, int*) { return abi::kError; }
int forbidden_acquire(abi::Context*, int, abi::Context**) { return abi::kError; }
int forbidden_release(abi::Context*, int) { return abi::kError; }

}  // namespace

abi::IntArray* make_array(const std::vector<int>& values) {
  auto* array = static_cast<abi::IntArray*>(std::malloc(sizeof(int) * (values.size() + 1)));
  array->size = static_cast<int>(values.size());
  std::copy(values.begin(), values.end(), array->data);
  return array;
}

void Free::operator()(void* memory) const { std::free(memory); }

Flex Flex::ints(std::vector<int64_t> values) {
  Flex result;
  result.sort = Sort::kInts;
  result.integers = std::move(values);
  return result;
}
Flex Flex::vector(std::vector<Flex> items) {
  Flex result;
  result.sort = Sort::kVector;
  result.items = std::move(items);
  return result;
}
Flex Flex::map(std::vector<std::pair<std::string, Flex>> entries) {
  // Keys are sorted, as readers may search them.
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Flex result;
  result.sort = Sort::kMap;
  for (auto& [key, value] : entries) {
    result.keys.push_back(key);
    result.items.push_back(std::move(value));
  }
  return result;
}

Bytes flexbuffer(const Flex& root) {
  Bytes out;
  const size_t at = write(root, &out);
  align(&out);
  if (root.sort == Flex::Sort::kInt) {
    put(&out, static_cast<uint64_t>(root.integer));
  } else {
    put_offset(&out, at);
  }
  out.push_back(type_of(root));
  out.push_back(8);
  return out;
}

Bytes attributes(const std::vector<int64_t>& inputs, const std::vector<int64_t>& outputs,
                 const std::vector<int64_t>& places, int64_t scratch_bytes, int64_t format, int64_t subgraph) {
  std::vector<std::pair<std::string, Flex>> entries{{"litefuse", format},
                                                    {"inputs", Flex::ints(inputs)},
                                                    {"outputs", Flex::ints(outputs)},
                                                    {"places", Flex::ints(places)},
                                                    {"scratch_bytes", scratch_bytes}};
  if (subgraph >= 0) entries.emplace_back("subgraph", subgraph);
  return flexbuffer(Flex::map(std::move(entries)));
}

// -- profiler --------------------------------------------------------------------------------------------------------

uint32_t Profiler::begin_event(const char* tag, int type, int64_t metadata1, int64_t) {
  const auto handle = static_cast<uint32_t>(events.size());
  events.push_back({tag, type, metadata1});
  open.push_back(handle);
  return handle;
}
void Profiler::end_event_with_metadata(uint32_t handle, int64_t, int64_t) { end_event(handle); }
void Profiler::end_event(uint32_t handle) {
  if (open.empty() || open.back() != handle) {
    balanced = false;
  } else {
    open.pop_back();
  }
}

// -- building --------------------------------------------------------------------------------------------------------

Graph::Graph(Runtime* runtime, int) : runtime_(runtime) {
  context_.impl = this;
  context_.resize_tensor = &Graph::resize;
  context_.report_error = &Graph::report;
  context_.get_model_metadata = &Graph::metadata;
  context_.recommended_num_threads = runtime->recommended_threads;
  open_ = 1;
  close_context();
}

Graph::~Graph() {
  for (auto& entry : nodes_) clean(entry.get());
  for (abi::Tensor& tensor : tensors_) {
    std::free(tensor.dims);
    std::free(const_cast<char*>(tensor.name));
    free_quantization(&tensor);
  }
  std::free(plan_cache_);
  forget_preview();
}

void Graph::clean(Entry* entry) {
  if (entry->initialised && entry->registration.free != nullptr) {
    entry->registration.free(&context_, entry->node.user_data);
  }
  entry->initialised = false;
  entry->node.user_data = nullptr;
  for (abi::IntArray** array : {&entry->node.inputs, &entry->node.outputs}) {
    std::free(*array);
    *array = nullptr;
  }
}

// The array of tensors may move whenever the runtime has the floor.
void Graph::move_tensors() {
  std::vector<abi::Tensor> moved;
  moved.reserve(tensors_.size());
  moved = tensors_;
  std::memset(tensors_.data(), 0xff, tensors_.size() * sizeof(abi::Tensor));
  tensors_ = std::move(moved);
  context_.tensors = tensors_.data();
  context_.tensors_size = tensors_.size();
}

int Graph::tensor(Type type, const Dims& dims, const char* name) {
  abi::Tensor tensor{};
  tensor.type = static_cast<int>(type);
  tensor.dims = make_array(std::vector<int>(dims.begin(), dims.end()));
  tensor.allocation_type = kArenaRw;
  tensor.name = name != nullptr ? strdup(name) : nullptr;
  bool fits = false;
  tensor.bytes = bytes_of(tensor.type, tensor.dims, &fits);
  tensors_.push_back(tensor);
  memory_.emplace_back();
  context_.tensors = tensors_.data();
  context_.tensors_size = tensors_.size();
  return tensors() - 1;
}

int Graph::constant(Type type, const Dims& dims, const void* data, size_t bytes, const char* name) {
  const int index = tensor(type, dims, name);
  void* memory = allocate_aligned(bytes);
  if (bytes > 0) std::memcpy(memory, data, bytes);
  memory_.back().reset(memory);
  at(index).data = memory;
  at(index).bytes = bytes;
  at(index).allocation_type = abi::kMmapRo;
  return index;
}

void Graph::FreeSparsity::operator()(abi::Sparsity* sparsity) const {
  for (int i = 0; i < sparsity->dim_metadata_size; ++i) {
    std::free(sparsity->dim_metadata[i].array_segments);
    std::free(sparsity->dim_metadata[i].array_indices);
  }
  std::free(sparsity->dim_metadata);
  std::free(sparsity->traversal_order);
  std::free(sparsity->block_map);
  std::free(sparsity);
}

void Graph::sparsify(int tensor, const Sparsity& how) {
  auto* made = static_cast<abi::Sparsity*>(std::calloc(1, sizeof(abi::Sparsity)));
  made->traversal_order = make_array(how.order);
  if (!how.block_map.empty()) made->block_map = make_array(how.block_map);
  made->dim_metadata_size = static_cast<int>(how.levels.size());
  made->dim_metadata =
      static_cast<abi::DimensionMetadata*>(std::calloc(how.levels.size() + 1, sizeof(abi::DimensionMetadata)));
  for (size_t i = 0; i < how.levels.size(); ++i) {
    abi::DimensionMetadata& level = made->dim_metadata[i];
    level.format = how.levels[i].dense ? abi::kDense : abi::kSparseCsr;
    level.dense_size = how.levels[i].size;
    if (how.levels[i].dense) continue;
    level.array_segments = make_array(how.levels[i].segments);
    level.array_indices = make_array(how.levels[i].indices);
  }
  sparsities_.emplace_back(made);
  at(tensor).sparsity = made;
}

void Graph::quantize(int tensor, const std::vector<float>& scales, const std::vector<int>& zero_points, int axis) {
  abi::Tensor& t = at(tensor);
  free_quantization(&t);
  auto* affine = static_cast<abi::AffineQuantization*>(std::malloc(sizeof(abi::AffineQuantization)));
  affine->scale = static_cast<abi::FloatArray*>(std::malloc(sizeof(float) * (scales.size() + 1)));
  affine->scale->size = static_cast<int>(scales.size());
  std::copy(scales.begin(), scales.end(), affine->scale->data);
  affine->zero_point = make_array(zero_points);
  affine->quantized_dimension = axis;
  t.quantization.type = abi::kAffineQuantization;
  t.quantization.params = affine;
  if (scales.size() == 1) t.params = {scales[0], zero_points[0]};
}

int Graph::add_node(std::unique_ptr<Entry> entry, const std::vector<int>& inputs, const std::vector<int>& outputs) {
  entry->node.inputs = make_array(inputs);
  entry->node.outputs = make_array(outputs);
  nodes_.push_back(std::move(entry));
  return nodes() - 1;
}

int Graph::op(Kind kind, const std::vector<int>& inputs, const std::vector<int>& outputs) {
  return add_builtin(static_cast<int32_t>(kind), inputs, outputs, nullptr, 0);
}

int Graph::add_builtin(int32_t code, const std::vector<int>& inputs, const std::vector<int>& outputs,
                       const void* params, size_t size) {
  auto entry = std::make_unique<Entry>();
  entry->registration.builtin_code = code;
  entry->registration.version = 1;
  if (params != nullptr) {
    const char* first = static_cast<const char*>(params);
    entry->params.assign(first, first + size);
    entry->node.builtin_data = entry->params.data();
  }
  const int index = add_node(std::move(entry), inputs, outputs);
  plan_.push_back(index);
  return index;
}

int Graph::composite(const char* name, const std::vector<int>& inputs, const std::vector<int>& outputs, int subgraph,
                     const Bytes& attributes) {
  const int index = add_builtin(abi::kBuiltinComposite, inputs, outputs, nullptr, 0);
  Entry& entry = *nodes_.back();
  entry.name = name != nullptr ? name : "";
  entry.composite.name = name != nullptr ? entry.name.c_str() : nullptr;
  entry.composite.subgraph_index = subgraph;
  entry.composite.version = 1;
  entry.attributes = attributes;
  entry.node.builtin_data = &entry.composite;
  refresh_attributes(index);
  return index;
}

int Graph::custom(const char* name, const std::vector<int>& inputs, const std::vector<int>& outputs,
                  const Bytes& options) {
  const int index = add_builtin(abi::kBuiltinCustom, inputs, outputs, nullptr, 0);
  Entry& entry = *nodes_.back();
  entry.name = name != nullptr ? name : "";
  entry.registration.custom_name = name != nullptr ? entry.name.c_str() : nullptr;
  entry.attributes = options;
  refresh_attributes(index);
  return index;
}

void Graph::refresh_attributes(int node) {
  Entry& entry = *nodes_[static_cast<size_t>(node)];
  entry.attributes.shrink_to_fit();
  if (entry.registration.builtin_code == abi::kBuiltinComposite) {
    entry.composite.attributes = entry.attributes.empty() ? nullptr : entry.attributes.data();
    entry.composite.attributes_size = entry.attributes.size();
  } else {
    entry.node.custom_initial_data = entry.attributes.empty() ? nullptr : entry.attributes.data();
    entry.node.custom_initial_data_size = static_cast<int>(entry.attributes.size());
  }
}

int Graph::native(const std::vector<int>& inputs, const std::vector<int>& outputs, Native prepare, Native invoke) {
  const int index = add_builtin(abi::kBuiltinCustom, inputs, outputs, nullptr, 0);
  nodes_.back()->registration.custom_name = "Native";
  nodes_.back()->prepare = std::move(prepare);
  nodes_.back()->invoke = std::move(invoke);
  return index;
}

void Graph::set_dims(int tensor, const Dims& dims) {
  std::free(at(tensor).dims);
  at(tensor).dims = make_array(std::vector<int>(dims.begin(), dims.end()));
}

void Graph::make_dynamic(int tensor) { at(tensor).allocation_type = kDynamic; }

Dims Graph::dims(int tensor) {
  const abi::IntArray* array = at(tensor).dims;
  return Dims(array->data, array->data + array->size);
}

std::vector<std::string> Graph::claimed() {
  std::vector<std::string> names;
  for (int index : plan_) {
    const Entry& entry = *nodes_[static_cast<size_t>(index)];
    if (entry.node.delegate != nullptr) names.emplace_back(entry.registration.custom_name);
  }
  return names;
}

// -- what the delegate calls -----------------------------------------------------------------------------------------

void Graph::open_context() {
  if (open_++ != 0) return;
  context_.get_execution_plan = &Graph::get_plan;
  context_.get_node_and_registration = &Graph::get_node;
  context_.replace_node_subsets_with_delegate_kernels = &Graph::replace;
  context_.preview_delegate_partitioning = &Graph::preview;
  context_.acquire_subgraph_context = &Graph::acquire;
  context_.release_subgraph_context = &Graph::release;
}

void Graph::close_context() {
  if (--open_ != 0) return;
  context_.get_execution_plan = &forbidden_plan;
  context_.get_node_and_registration = &forbidden_node;
  context_.replace_node_subsets_with_delegate_kernels = &forbidden_replace;
  context_.preview_delegate_partitioning = &forbidden_preview;
  context_.acquire_subgraph_context = &forbidden_acquire;
  context_.release_subgraph_context = &forbidden_release;
  forget_preview();
}

int Graph::get_plan(abi::Context* context, abi::IntArray** plan) {
  Graph* graph = of(context);
  std::free(graph->plan_cache_);
  *plan = graph->plan_cache_ = make_array(graph->plan_);
  return abi::kOk;
}

int Graph::get_node(abi::Context* context, int index, abi::Node** node, abi::Registration** registration) {
  Graph* graph = of(context);
  if (index < 0 || index >= graph->nodes()) return abi::kError;
  Entry& entry = *graph->nodes_[static_cast<size_t>(index)];
  *node = &entry.node;
  *registration = &entry.registration;
  return abi::kOk;
}

int Graph::metadata(const abi::Context* context, const char* name, const char** data, size_t* bytes) {
  const auto& known = of(context)->runtime_->metadata_;
  const auto found = known.find(name);
  if (found == known.end()) return abi::kError;
  *data = reinterpret_cast<const char*>(found->second.data());
  *bytes = found->second.size();
  return abi::kOk;
}

int Graph::acquire(abi::Context* context, int index, abi::Context** acquired) {
  Runtime* runtime = of(context)->runtime_;
  if (index < 0 || index >= runtime->graphs()) return abi::kError;
  runtime->graph(index).open_context();
  *acquired = runtime->graph(index).context();
  return abi::kOk;
}

int Graph::release(abi::Context* context, int index) {
  Runtime* runtime = of(context)->runtime_;
  if (index < 0 || index >= runtime->graphs()) return abi::kError;
  runtime->graph(index).close_context();
  return abi::kOk;
}

void Graph::report(abi::Context* context, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  of(context)->runtime_->errors.emplace_back(text);
}

int Graph::resize(abi::Context* context, abi::Tensor* tensor, abi::IntArray* dims) {
  Graph* graph = of(context);
  bool fits = false;
  const size_t bytes = bytes_of(tensor->type, dims, &fits);
  if (tensor->allocation_type == abi::kMmapRo || !fits) {
    std::free(dims);
    report(context, "cannot resize");
    return abi::kError;
  }
  graph->resized_ = graph->resized_ || tensor->dims == nullptr || elements_of(tensor->dims) != elements_of(dims);
  if (tensor->dims != dims) std::free(tensor->dims);
  tensor->dims = dims;
  tensor->bytes = bytes;
  tensor->data = nullptr;
  if (tensor->allocation_type == kDynamic) {
    auto& memory = graph->memory_[static_cast<size_t>(tensor - graph->tensors_.data())];
    memory.reset(bytes <= graph->runtime_->memory_limit ? allocate_aligned(bytes) : nullptr);
    tensor->data = memory.get();
  }
  return abi::kOk;
}

// A node runs in an epoch when all that it reads is known; an epoch is either claimed or not. This is how the runtime
// splits sets that are not convex.
std::vector<Graph::Subset> Graph::partition(const abi::IntArray* wanted) const {
  constexpr int kNotReady = -1, kAlwaysReady = -2;
  std::set<int> claimed;
  for (int i = 0; i < wanted->size; ++i) claimed.insert(wanted->data[i]);
  std::vector<int> made(tensors_.size(), kAlwaysReady);
  for (int index : plan_) {
    for (int t : elements_of(nodes_[static_cast<size_t>(index)]->node.outputs)) {
      if (within(t)) made[static_cast<size_t>(t)] = kNotReady;
    }
  }
  std::vector<bool> done(plan_.size(), false);
  std::vector<Subset> subsets;
  for (size_t left = plan_.size(); left > 0;) {
    Subset subset;
    const int epoch = static_cast<int>(subsets.size());
    subsets.emplace_back();
    bool started = false;
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < plan_.size(); ++i) {
        const abi::Node& node = nodes_[static_cast<size_t>(plan_[i])]->node;
        const std::vector<int> reads = elements_of(node.inputs);
        const bool ready = std::all_of(reads.begin(), reads.end(),
                                       [&](int t) { return !within(t) || made[static_cast<size_t>(t)] != kNotReady; });
        if (done[i] || !ready) continue;
        const bool mine = claimed.count(plan_[i]) != 0;
        if (!started) subset.claimed = mine;
        started = true;
        if (mine != subset.claimed) continue;
        done[i] = changed = true;
        --left;
        subset.nodes.push_back(plan_[i]);
        for (int t : elements_of(node.outputs)) {
          if (within(t)) made[static_cast<size_t>(t)] = epoch;
        }
        for (int t : reads) {
          if (!within(t) || made[static_cast<size_t>(t)] == epoch) continue;
          subset.inputs.push_back(t);
          if (made[static_cast<size_t>(t)] >= 0) {
            subsets[static_cast<size_t>(made[static_cast<size_t>(t)])].outputs.push_back(t);
          }
        }
        if (runtime_->preserve_all_tensors) {
          for (int t : elements_of(node.outputs)) {
            if (within(t)) subset.outputs.push_back(t);
          }
        }
        if (mine && !runtime_->fuse_nodes) {
          changed = false;
          break;
        }
      }
    }
    if (!started) return {};  // operators that wait for each other
    subset.outputs.insert(subset.outputs.end(), subsets.back().outputs.begin(), subsets.back().outputs.end());
    subsets.back() = std::move(subset);
  }
  for (int t : outputs) {
    if (within(t) && made[static_cast<size_t>(t)] >= 0) {
      subsets[static_cast<size_t>(made[static_cast<size_t>(t)])].outputs.push_back(t);
    }
  }
  for (Subset& subset : subsets) {
    subset.inputs = unique(subset.inputs);
    subset.outputs = unique(subset.outputs);
  }
  return subsets;
}

void Graph::forget_preview() {
  for (abi::DelegateParams& params : preview_) {
    std::free(params.nodes_to_replace);
    std::free(params.input_tensors);
    std::free(params.output_tensors);
  }
  preview_.clear();
  preview_.shrink_to_fit();
}

int Graph::preview(abi::Context* context, const abi::IntArray* nodes, abi::DelegateParams** params, int* count) {
  Graph* graph = of(context);
  graph->forget_preview();
  for (const Subset& subset : graph->partition(nodes)) {
    if (!subset.claimed) continue;
    graph->preview_.push_back(
        {nullptr, make_array(subset.nodes), make_array(subset.inputs), make_array(subset.outputs)});
  }
  *params = graph->preview_.data();
  *count = static_cast<int>(graph->preview_.size());
  return abi::kOk;
}

int Graph::replace(abi::Context* context, abi::Registration registration, const abi::IntArray* nodes,
                   abi::Delegate* delegate) {
  Graph* graph = of(context);
  if (nodes->size == 0) return abi::kOk;
  const std::vector<Subset> subsets = graph->partition(nodes);
  if (subsets.empty()) return abi::kError;
  graph->plan_.clear();
  for (const Subset& subset : subsets) {
    if (!subset.claimed) {
      graph->plan_.insert(graph->plan_.end(), subset.nodes.begin(), subset.nodes.end());
      continue;
    }
    auto entry = std::make_unique<Entry>();
    entry->registration = registration;
    entry->registration.builtin_code = abi::kBuiltinDelegate;
    Entry* added = entry.get();
    const int index = graph->add_node(std::move(entry), subset.inputs, subset.outputs);
    // The arrays live as long as init() runs, no longer.
    abi::DelegateParams params{delegate, make_array(subset.nodes), make_array(subset.inputs),
                               make_array(subset.outputs)};
    added->node.user_data = registration.init(context, reinterpret_cast<const char*>(&params), 0);
    added->initialised = true;
    added->node.delegate = delegate;
    for (abi::IntArray* array : {params.nodes_to_replace, params.input_tensors, params.output_tensors}) {
      std::free(array);
    }
    graph->plan_.push_back(index);
    for (int t : subset.outputs) graph->at(t).delegate = delegate;
  }
  graph->ready_ = false;
  return abi::kOk;
}

// -- running ---------------------------------------------------------------------------------------------------------

bool Graph::apply(abi::Delegate* delegate) {
  if (applied_.empty()) original_plan_ = plan_;
  open_context();
  const int status = delegate->prepare(&context_, delegate);
  close_context();
  if (status != abi::kOk) return false;
  applied_.push_back(delegate);
  ready_ = false;
  return true;
}

bool Graph::undo() {
  if (original_plan_.empty()) return true;
  for (int index : plan_) {
    Entry* entry = nodes_[static_cast<size_t>(index)].get();
    if (entry->node.delegate != nullptr) clean(entry);
  }
  plan_ = original_plan_;
  original_plan_.clear();
  nodes_.resize(static_cast<size_t>(*std::max_element(plan_.begin(), plan_.end())) + 1);
  ready_ = false;
  return true;
}

bool Graph::redo() {
  std::vector<abi::Delegate*> delegates;
  delegates.swap(applied_);
  for (abi::Delegate* delegate : delegates) {
    if (!apply(delegate)) return false;
  }
  return true;
}

bool Graph::resize_tensor(int tensor, const Dims& dims) {
  const bool resized = resize(&context_, &at(tensor), make_array(std::vector<int>(dims.begin(), dims.end()))) == 0;
  ready_ = false;
  return resized;
}

Graph* Graph::decomposition(Entry* entry) {
  const int index = entry->composite.subgraph_index;
  return index >= 0 && index < runtime_->graphs() && &runtime_->graph(index) != this ? &runtime_->graph(index)
                                                                                     : nullptr;
}

// Builtin operators that nobody claimed run with the reference kernels.
bool Graph::prepare_builtin(Entry* entry, int index) {
  const std::vector<int> made = elements_of(entry->node.outputs);
  entry->executable_inputs.clear();
  entry->executable_dims.clear();
  std::vector<Shape> shapes;
  for (int t : elements_of(entry->node.inputs)) {
    if (!within(t) || at(t).allocation_type == abi::kMmapRo) continue;
    auto& known = entry->executable_inputs;
    if (std::find(known.begin(), known.end(), t) != known.end()) continue;
    known.push_back(t);
    entry->executable_dims.push_back(dims(t));
    shapes.emplace_back();
    if (!shapes.back().assign(dims(t))) return false;
  }
  Region region;
  open_context();
  Status status = import_region(&context_, {index}, entry->executable_inputs, made, &region);
  close_context();
  if (status.ok()) status = Executor::compile(region, CompileOptions(), nullptr, &entry->executable);
  if (status.ok()) status = entry->executable->prepare(shapes);
  if (!status.ok()) {
    report(&context_, "node %d: %s", index, status.reason().c_str());
    return false;
  }
  for (size_t i = 0; i < made.size(); ++i) {
    const Shape& shape = entry->executable->output_shape(i);
    abi::IntArray* array = make_array(std::vector<int>(shape.data(), shape.data() + shape.rank()));
    if (resize(&context_, &at(made[i]), array) != abi::kOk) return false;
  }
  return true;
}

bool Graph::prepare_composite(Entry* entry) {
  Graph* inner = decomposition(entry);
  const std::vector<int> given = elements_of(entry->node.inputs), made = elements_of(entry->node.outputs);
  if (inner == nullptr || inner->inputs.size() != given.size() || inner->outputs.size() != made.size()) return false;
  for (size_t i = 0; i < given.size(); ++i) {
    if (!inner->resize_tensor(inner->inputs[i], dims(given[i]))) return false;
  }
  if (!inner->allocate()) return false;
  for (size_t i = 0; i < made.size(); ++i) {
    if (!resize_tensor(made[i], inner->dims(inner->outputs[i]))) return false;
  }
  return true;
}

bool Graph::invoke_composite(Entry* entry) {
  Graph* inner = decomposition(entry);
  const std::vector<int> given = elements_of(entry->node.inputs), made = elements_of(entry->node.outputs);
  for (size_t i = 0; i < given.size(); ++i) {
    if (!copy(at(given[i]), &inner->at(inner->inputs[i]))) return false;
  }
  if (!inner->invoke()) return false;
  for (size_t i = 0; i < made.size(); ++i) {
    if (!copy(inner->at(inner->outputs[i]), &at(made[i]))) return false;
  }
  return true;
}

bool Graph::prepare_node(int index) {
  Entry& entry = *nodes_[static_cast<size_t>(index)];
  if (entry.registration.prepare != nullptr) return entry.registration.prepare(&context_, &entry.node) == abi::kOk;
  if (entry.prepare) return entry.prepare(this, &entry.node);
  if (entry.registration.builtin_code == abi::kBuiltinComposite) return prepare_composite(&entry);
  return prepare_builtin(&entry, index);
}

bool Graph::invoke_node(int index) {
  Entry& entry = *nodes_[static_cast<size_t>(index)];
  for (int t : elements_of(entry.node.inputs)) {
    if (within(t) && at(t).data == nullptr && at(t).bytes > 0) {
      report(&context_, "Input tensor %d lacks data", t);
      return false;
    }
  }
  if (entry.registration.invoke != nullptr) return entry.registration.invoke(&context_, &entry.node) == abi::kOk;
  if (entry.invoke) return entry.invoke(this, &entry.node);
  if (entry.registration.builtin_code == abi::kBuiltinComposite) return invoke_composite(&entry);
  if (entry.executable == nullptr) return false;
  std::vector<const void*> given;
  std::vector<void*> made;
  // Damaged models have several operators that write one tensor.
  for (size_t i = 0; i < entry.executable_inputs.size(); ++i) {
    const int t = entry.executable_inputs[i];
    if (dims(t) != entry.executable_dims[i]) return false;
    given.push_back(at(t).data);
  }
  for (int t : elements_of(entry.node.outputs)) {
    const Shape& shape = entry.executable->output_shape(made.size());
    if (dims(t) != Dims(shape.data(), shape.data() + shape.rank())) return false;
    made.push_back(at(t).data);
  }
  std::unique_ptr<void, Free> scratch(allocate_aligned(entry.executable->scratch_bytes()));
  return entry.executable->run(given, made, scratch.get(), nullptr).ok();
}

// Prepares nodes of the plan up to the first with dynamic outputs.
bool Graph::prepare_from(size_t position) {
  for (prepared_ = position; prepared_ < plan_.size();) {
    const int index = plan_[prepared_++];
    if (!prepare_node(index)) {
      report(&context_, "node %d failed to prepare", index);
      return false;
    }
    const std::vector<int> made = elements_of(node(index).outputs);
    if (std::any_of(made.begin(), made.end(), [&](int t) { return within(t) && at(t).allocation_type == kDynamic; }))
      break;
  }
  return give_memory();
}

// Tensors that only operators inside regions know get none.
bool Graph::give_memory() {
  std::set<int> used(inputs.begin(), inputs.end());
  used.insert(outputs.begin(), outputs.end());
  for (size_t i = 0; i < prepared_; ++i) {
    for (const abi::IntArray* array : {node(plan_[i]).inputs, node(plan_[i]).outputs}) {
      for (int t : elements_of(array)) used.insert(t);
    }
  }
  size_t total = 0;
  for (int t : used) {
    if (!within(t) || at(t).allocation_type != kArenaRw) continue;
    bool fits = false;
    const size_t bytes = bytes_of(at(t).type, at(t).dims, &fits);
    total += bytes;
    if (!fits || total > runtime_->memory_limit) {
      report(&context_, "tensor %d is too large", t);
      return false;
    }
    if (at(t).data != nullptr && at(t).bytes == bytes) continue;
    at(t).bytes = bytes;
    memory_[static_cast<size_t>(t)].reset(allocate_aligned(bytes));
    at(t).data = memory_[static_cast<size_t>(t)].get();
    if (at(t).data == nullptr) return false;
    std::memset(at(t).data, 0xa5, bytes);
  }
  return true;
}

bool Graph::allocate() {
  context_.profiler = runtime_->profiler;
  context_.recommended_num_threads = runtime_->recommended_threads;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].allocation_type != kArenaRw) continue;
    tensors_[t].data = nullptr;
    memory_[t].reset();
  }
  move_tensors();
  ready_ = prepare_from(0);
  move_tensors();
  return ready_;
}

bool Graph::invoke() {
  if (!ready_) {
    report(&context_, "not ready");
    return false;
  }
  for (size_t i = 0; i < plan_.size(); ++i) {
    if (i == prepared_ && !prepare_from(i)) return false;
    resized_ = false;
    if (!invoke_node(plan_[i])) {
      report(&context_, "node %d failed to invoke", plan_[i]);
      return false;
    }
    const std::vector<int> made = elements_of(node(plan_[i]).outputs);
    if (resized_ &&
        std::any_of(made.begin(), made.end(), [&](int t) { return within(t) && at(t).allocation_type == kDynamic; })) {
      prepared_ = i + 1;
    }
  }
  return true;
}

// -- the interpreter -------------------------------------------------------------------------------------------------

Runtime::~Runtime() {
  // In the order in which the runtime destroys them.
  for (auto& graph : graphs_) graph.reset();
}

Graph& Runtime::add_graph() {
  graphs_.push_back(std::make_unique<Graph>(this, graphs()));
  return *graphs_.back();
}

bool Runtime::apply(abi::Delegate* delegate) {
  for (auto& graph : graphs_) {
    if (!graph->apply(delegate)) return false;
  }
  return true;
}

bool Runtime::resize_input(int index, const Dims& dims, bool undo) {
  Graph& main = graph();
  if (undo && !main.undo()) return false;
  if (!main.resize_tensor(main.inputs[static_cast<size_t>(index)], dims)) return false;
  return !undo || main.redo();
}

}  // namespace litefuse::fake
