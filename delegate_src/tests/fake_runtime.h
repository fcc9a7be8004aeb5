// A small imitation of the runtime, as far as a delegate sees it: subgraphs, partitioning, the execution plan, the
// order in which kernels are made, prepared, invoked and freed, and memory that ends where the tensor ends. It moves
// its arrays of tensors and nodes whenever the real one may, and forbids outside of the delegate's prepare what the
// real one forbids there.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "region/region.h"
#include "tflite/abi.h"

namespace litefuse::fake {

using Dims = std::vector<int32_t>;
using Bytes = std::vector<uint8_t>;

abi::IntArray* make_array(const std::vector<int>& values);

// A value that flexbuffer() writes.
struct Flex {
  enum class Sort { kInt, kString, kInts, kVector, kMap };

  Flex() = default;
  Flex(int64_t value) : integer(value) {}                        // NOLINT: literals read better
  Flex(int value) : integer(value) {}                            // NOLINT
  Flex(const char* value) : sort(Sort::kString), text(value) {}  // NOLINT
  static Flex ints(std::vector<int64_t> values);
  static Flex vector(std::vector<Flex> items);
  static Flex map(std::vector<std::pair<std::string, Flex>> entries);

  Sort sort = Sort::kInt;
  int64_t integer = 0;
  std::string text;
  std::vector<int64_t> integers;
  std::vector<Flex> items;
  std::vector<std::string> keys;  // of a map; its values are in `items`
};

Bytes flexbuffer(const Flex& root);

// What a well-made composite carries.
Bytes attributes(const std::vector<int64_t>& inputs, const std::vector<int64_t>& outputs,
                 const std::vector<int64_t>& places = {}, int64_t scratch_bytes = 0, int64_t format = 1,
                 int64_t subgraph = -1);

// Counts events, and whether they are closed in the order in which they were opened.
class Profiler : public abi::Profiler {
 public:
  uint32_t begin_event(const char* tag, int type, int64_t metadata1, int64_t metadata2) override;
  void end_event_with_metadata(uint32_t handle, int64_t metadata1, int64_t metadata2) override;
  void end_event(uint32_t handle) override;

  struct Event {
    std::string tag;
    int type;
    int64_t index;
  };
  std::vector<Event> events;
  bool balanced = true;
  std::vector<uint32_t> open;
};

struct Free {
  void operator()(void* memory) const;
};

class Runtime;

// A subgraph.
class Graph {
 public:
  Graph(Runtime* runtime, int index);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // -- building
  int tensor(Type type, const Dims& dims, const char* name = "t");
  int constant(Type type, const Dims& dims, const void* data, size_t bytes, const char* name = "c");
  template <typename T>
  int constant(Type type, const Dims& dims, const std::vector<T>& values, const char* name = "c") {
    return constant(type, dims, values.data(), values.size() * sizeof(T), name);
  }
  void quantize(int tensor, const std::vector<float>& scales, const std::vector<int>& zero_points, int axis = 0);
  // Makes a constant sparse; what the tensor tells of that can be changed through at(tensor).sparsity.
  void sparsify(int tensor, const Sparsity& how);
  int op(Kind kind, const std::vector<int>& inputs, const std::vector<int>& outputs);
  template <typename P>
  int op(Kind kind, const std::vector<int>& inputs, const std::vector<int>& outputs, const P& params) {
    return add_builtin(static_cast<int32_t>(kind), inputs, outputs, &params, sizeof params);
  }
  int add_builtin(int32_t code, const std::vector<int>& inputs, const std::vector<int>& outputs, const void* params,
                  size_t size);
  int composite(const char* name, const std::vector<int>& inputs, const std::vector<int>& outputs, int subgraph,
                const Bytes& attributes);
  int custom(const char* name, const std::vector<int>& inputs, const std::vector<int>& outputs, const Bytes& options);
  // An operator whose kernel is that function, which may resize its outputs when it is invoked.
  using Native = std::function<bool(Graph*, abi::Node*)>;
  int native(const std::vector<int>& inputs, const std::vector<int>& outputs, Native prepare, Native invoke);
  void set_dims(int tensor, const Dims& dims);
  // Memory of its own from the heap, whatever the graph's plan is.
  void make_dynamic(int tensor);

  std::vector<int> inputs;
  std::vector<int> outputs;

  // -- looking
  abi::Context* context() { return &context_; }
  abi::Tensor& at(int tensor) { return tensors_[static_cast<size_t>(tensor)]; }
  int tensors() const { return static_cast<int>(tensors_.size()); }
  abi::Node& node(int index) { return nodes_[static_cast<size_t>(index)]->node; }
  abi::Registration& registration(int index) { return nodes_[static_cast<size_t>(index)]->registration; }
  int nodes() const { return static_cast<int>(nodes_.size()); }
  const std::vector<int>& plan() const { return plan_; }
  Dims dims(int tensor);
  template <typename T>
  T* data(int tensor) {
    return static_cast<T*>(at(tensor).data);
  }
  template <typename T>
  std::vector<T> values(int tensor) {
    const T* first = data<T>(tensor);
    return std::vector<T>(first, first + at(tensor).bytes / sizeof(T));
  }
  template <typename T>
  void set(int tensor, const std::vector<T>& values) {
    std::copy(values.begin(), values.end(), data<T>(tensor));
  }
  // The names of the delegate's nodes in the plan.
  std::vector<std::string> claimed();
  Bytes& attributes_of(int node) { return nodes_[static_cast<size_t>(node)]->attributes; }
  // The attributes may have changed: tells the operator where they are.
  void refresh_attributes(int node);

  // -- running
  bool resize_tensor(int tensor, const Dims& dims);
  bool allocate();
  bool invoke();
  bool apply(abi::Delegate* delegate);
  bool undo();
  bool redo();

 private:
  friend class Runtime;
  struct Entry {
    abi::Node node{};
    abi::Registration registration{};
    std::vector<char> params;
    Bytes attributes;
    std::string name;
    abi::CompositeParams composite{};
    Native prepare;
    Native invoke;
    std::unique_ptr<Executable> executable;  // of builtin operators that nobody claimed
    std::vector<int> executable_inputs;
    std::vector<Dims> executable_dims;
    bool initialised = false;
  };
  struct Subset {
    bool claimed = false;
    std::vector<int> nodes, inputs, outputs;
  };

  int add_node(std::unique_ptr<Entry> entry, const std::vector<int>& inputs, const std::vector<int>& outputs);
  void clean(Entry* entry);
  void move_tensors();
  bool within(int tensor) const { return tensor >= 0 && tensor < tensors(); }
  std::vector<Subset> partition(const abi::IntArray* nodes) const;
  void open_context();
  void close_context();
  bool prepare_from(size_t position);
  bool give_memory();
  bool prepare_node(int index);
  bool invoke_node(int index);
  bool prepare_builtin(Entry* entry, int index);
  bool prepare_composite(Entry* entry);
  bool invoke_composite(Entry* entry);
  Graph* decomposition(Entry* entry);
  void forget_preview();

  static Graph* of(const abi::Context* context) { return static_cast<Graph*>(context->impl); }
  static int get_plan(abi::Context* context, abi::IntArray** plan);
  static int get_node(abi::Context* context, int index, abi::Node** node, abi::Registration** registration);
  static int replace(abi::Context* context, abi::Registration registration, const abi::IntArray* nodes,
                     abi::Delegate* delegate);
  static int preview(abi::Context* context, const abi::IntArray* nodes, abi::DelegateParams** params, int* count);
  static int metadata(const abi::Context* context, const char* name, const char** data, size_t* bytes);
  static int acquire(abi::Context* context, int index, abi::Context** acquired);
  static int release(abi::Context* context, int index);
  static int resize(abi::Context* context, abi::Tensor* tensor, abi::IntArray* dims);
  static void report(abi::Context* context, const char* format, ...) __attribute__((format(printf, 2, 3)));

  Runtime* runtime_;
  abi::Context context_{};
  std::vector<abi::Tensor> tensors_;
  std::vector<std::unique_ptr<void, Free>> memory_;  // of each tensor
  struct FreeSparsity {
    void operator()(abi::Sparsity* sparsity) const;
  };
  std::vector<std::unique_ptr<abi::Sparsity, FreeSparsity>> sparsities_;
  std::vector<std::unique_ptr<Entry>> nodes_;
  std::vector<int> plan_;
  std::vector<int> original_plan_;
  std::vector<abi::Delegate*> applied_;
  abi::IntArray* plan_cache_ = nullptr;
  std::vector<abi::DelegateParams> preview_;
  int open_ = 0;
  size_t prepared_ = 0;  // nodes of the plan that are prepared
  bool resized_ = false;
  bool ready_ = false;
};

// An interpreter.
class Runtime {
 public:
  Runtime() = default;
  ~Runtime();

  Graph& add_graph();
  Graph& graph(int index = 0) { return *graphs_[static_cast<size_t>(index)]; }
  int graphs() const { return static_cast<int>(graphs_.size()); }
  void set_metadata(const std::string& name, Bytes data) { metadata_[name] = std::move(data); }
  Bytes& metadata(const std::string& name) { return metadata_[name]; }

  // Applies it to all subgraphs, as the runtime does before memory is planned.
  bool apply(abi::Delegate* delegate);
  bool allocate(int graph = 0) { return this->graph(graph).allocate(); }
  bool invoke(int graph = 0) { return this->graph(graph).invoke(); }
  // With `undo`, as tflite-runtime 2.14 does it, which takes delegates off and puts them on again.
  bool resize_input(int index, const Dims& dims, bool undo = false);

  bool preserve_all_tensors = false;
  bool fuse_nodes = true;
  // Bytes that all tensors may have together.
  size_t memory_limit = size_t{1} << 30;
  Profiler* profiler = nullptr;
  int recommended_threads = 1;
  std::vector<std::string> errors;

 private:
  friend class Graph;
  std::vector<std::unique_ptr<Graph>> graphs_;
  std::map<std::string, Bytes> metadata_;
};

}  // namespace litefuse::fake
