#include "tflite/delegate.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "region/scratch.h"
#include "region/weights.h"
#include "tflite/flexbuffer.h"
#include "tflite/import.h"

namespace litefuse {
namespace {

constexpr char kPrefix[] = "litefuse.";
constexpr char kPlan[] = "litefuse.plan";
// The layout of attributes and plans that this delegate reads.
constexpr int64_t kFormat = 1;
constexpr int kMaxThreads = 256;

struct FreeArray {
  void operator()(abi::IntArray* array) const { std::free(array); }
};
using Array = std::unique_ptr<abi::IntArray, FreeArray>;

// The runtime frees arrays with free().
Array make_array(const std::vector<int>& values) {
  void* memory = std::malloc(sizeof(int) * (values.size() + 1));
  if (memory == nullptr) return nullptr;
  Array array(static_cast<abi::IntArray*>(memory));
  array->size = static_cast<int>(values.size());
  if (!values.empty()) std::memcpy(array->data, values.data(), sizeof(int) * values.size());
  return array;
}

uint64_t hash_bytes(uint64_t hash, const void* data, size_t size) {
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3ull;
  return hash;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      result += escaped;
    } else {
      result += c;
    }
  }
  return result + "\"";
}

// What attributes and plans say about how a region is to be run: where its intermediates lie, and whether Winograd's
// algorithm may be used (it may unless `winograd` is there and false).
Advice read_advice(const FlexValue& value) {
  Advice advice;
  advice.winograd = value.get("winograd").integer(1) != 0;
  const std::vector<int64_t> numbers = value.get("places").integers();
  const int64_t bytes = value.get("scratch_bytes").integer(0);
  if (numbers.size() % 3 != 0 || bytes < 0) return advice;
  std::vector<Advice::Place> places;
  for (size_t i = 0; i < numbers.size(); i += 3) {
    const bool fits = numbers[i] >= 0 && numbers[i] <= INT32_MAX && numbers[i + 1] >= 0 &&
                      numbers[i + 1] <= INT32_MAX && numbers[i + 2] >= 0;
    if (!fits) return advice;
    places.push_back(
        {static_cast<int32_t>(numbers[i]), static_cast<int32_t>(numbers[i + 1]), static_cast<size_t>(numbers[i + 2])});
  }
  advice.places = std::move(places);
  advice.scratch_bytes = static_cast<size_t>(bytes);
  return advice;
}

Status to_ints(const std::vector<int64_t>& values, std::vector<int>* result) {
  for (int64_t value : values) {
    LITEFUSE_REQUIRE(value >= 0 && value <= INT32_MAX, "its attributes name tensor or operator %lld",
                     static_cast<long long>(value));
    result->push_back(static_cast<int>(value));
  }
  return Status();
}

// The number by which a plan recognises the operators it was made for: FNV-1a over their kinds and the names of their
// tensors, without the sign bit.
Status fingerprint(abi::Context* context, const std::vector<int>& nodes, int64_t* result) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (int index : nodes) {
    abi::Node* node = nullptr;
    abi::Registration* registration = nullptr;
    LITEFUSE_REQUIRE(context->get_node_and_registration(context, index, &node, &registration) == abi::kOk,
                     "operator #%d does not exist", index);
    const int32_t kind = registration->builtin_code;
    const uint8_t bytes[4] = {static_cast<uint8_t>(kind), static_cast<uint8_t>(kind >> 8),
                              static_cast<uint8_t>(kind >> 16), static_cast<uint8_t>(kind >> 24)};
    hash = hash_bytes(hash, bytes, sizeof bytes);
    for (const abi::IntArray* array : {node->inputs, node->outputs}) {
      for (int tensor : elements_of(array)) {
        const char* name = "";
        if (tensor >= 0 && static_cast<size_t>(tensor) < context->tensors_size) name = context->tensors[tensor].name;
        if (name == nullptr) name = "";
        hash = hash_bytes(hash, name, std::strlen(name) + 1);
      }
    }
  }
  *result = static_cast<int64_t>(hash & ~(uint64_t{1} << 63));
  return Status();
}

// Events of the operators inside a region, for the runtime's own profiler.
class RuntimeListener : public Listener {
 public:
  explicit RuntimeListener(void* profiler) : profiler_(static_cast<abi::Profiler*>(profiler)) {}
  uint32_t begin(const char* name, int32_t index) override {
    return profiler_->begin_event(name, abi::kDelegateOperatorInvokeEvent, index, 0);
  }
  void end(uint32_t handle) override { profiler_->end_event(handle); }

 private:
  abi::Profiler* profiler_;
};

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

}  // namespace

// -- options -------------------------------------------------------------------------------------------------------

Status Options::parse(const char* const* keys, const char* const* values, size_t count, Options* options) {
  for (size_t i = 0; i < count; ++i) {
    const std::string key = keys[i] != nullptr ? keys[i] : "";
    const std::string value = values[i] != nullptr ? values[i] : "";
    if (key == "threads") {
      char* end = nullptr;
      const long number = std::strtol(value.c_str(), &end, 10);
      LITEFUSE_REQUIRE(!value.empty() && *end == 0 && number >= 0 && number <= kMaxThreads,
                       "option `threads` wants a number from 0 (as the runtime recommends) to %d, not `%s`",
                       kMaxThreads, value.c_str());
      options->threads = static_cast<int>(number);
    } else if (key == "backend") {
      options->backend = value;
    } else if (key == "verbose" || key == "profile" || key == "winograd") {
      const bool on = value == "1" || value == "true" || value == "True";
      LITEFUSE_REQUIRE(on || value == "0" || value == "false" || value == "False", "option `%s` wants 0 or 1, not `%s`",
                       key.c_str(), value.c_str());
      (key == "verbose" ? options->verbose : key == "profile" ? options->profile : options->winograd) = on;
    } else {
      return refuse("there is no option `%s`; the options are threads, backend, winograd, verbose and profile",
                    key.c_str());
    }
  }
  return Status();
}

// -- what is passed from claiming to kernels -----------------------------------------------------------------------

// Scratch memory that all regions of a graph share, since they run one after the other.
struct LitefuseDelegate::Scratch {
  std::unique_ptr<char[]> memory;
  char* base = nullptr;
  size_t bytes = 0;

  bool reserve(size_t wanted) {
    if (wanted <= bytes && base != nullptr) return true;
    memory.reset(new (std::nothrow) char[wanted + kAlignment]);
    base = nullptr;
    bytes = 0;
    if (memory == nullptr) return false;
    const auto number = reinterpret_cast<uintptr_t>(memory.get());
    base = memory.get() + (aligned(number) - number);
    bytes = wanted;
    return true;
  }
};

// Something that is to become one node.
struct LitefuseDelegate::Claim {
  std::string kind;
  std::vector<int> nodes;   // of the graph; one, except in plans
  std::vector<int> inputs;  // tensors of the graph, in the order of the executable's
  std::vector<int> outputs;
  std::unique_ptr<Executable> executable;
  std::shared_ptr<const Region> region;
  abi::Context* decomposition = nullptr;  // where the operators are, if not in the graph itself
  std::vector<int> inner_inputs;          // tensors of the decomposition
  std::vector<int> inner_outputs;
  Advice advice;
  bool dormant = false;
  RegionKernel* kernel = nullptr;  // that was made for it
};

// -- the kernel of one region --------------------------------------------------------------------------------------

// One that holds the operators of a claimed decomposition is dormant: they are claimed only to keep other delegates
// from packing their weights. Should the runtime prepare it all the same, because something else refers to the
// decomposition too, it is compiled then.

class RegionKernel {
 public:
  RegionKernel(LitefuseDelegate* owner, abi::Context* context, LitefuseDelegate::Claim* claim)
      : owner_(owner->shared_from_this()),
        name_(std::string(kPrefix) + claim->kind),
        position_(claim->nodes.front()),
        inputs_(claim->inputs),
        outputs_(claim->outputs),
        executable_(std::move(claim->executable)),
        region_(claim->region),
        winograd_(claim->advice.winograd),
        dormant_(claim->dormant),
        decomposition_(claim->decomposition),
        scratch_(owner->scratch_of(context)) {
    owner_->kernels_.insert(this);
  }

  ~RegionKernel() {
    std::lock_guard<std::recursive_mutex> lock(owner_->mutex_);
    owner_->kernels_.erase(this);
    const auto found = owner_->decompositions_.find(decomposition_);
    if (found != owner_->decompositions_.end() && --found->second.users == 0) owner_->decompositions_.erase(found);
  }

  const std::string& name() const { return name_; }
  // The (first) operator of the graph that it took the place of.
  int position() const { return position_; }
  const std::shared_ptr<const Region>& region() const { return region_; }
  bool dormant() const { return dormant_; }
  const std::vector<int>& inputs() const { return inputs_; }
  const std::vector<int>& outputs() const { return outputs_; }
  // Nullptr while the kernel sleeps.
  Executable* executable() const { return executable_.get(); }

  int prepare(abi::Context* context) {
    const Status status = resize(context);
    if (status.ok()) return abi::kOk;
    context->report_error(context, "%s: %s", name_.c_str(), status.reason().c_str());
    return abi::kError;
  }

  int invoke(abi::Context* context) {
    Status status;
    // The runtime prepares again what it resizes; this is for those that do not.
    if (!shapes_are_those_of(context)) status = resize(context);
    if (status.ok()) status = run(context);
    if (status.ok()) return abi::kOk;
    context->report_error(context, "%s: %s", name_.c_str(), status.reason().c_str());
    return abi::kError;
  }

 private:
  bool shapes_are_those_of(abi::Context* context) const {
    if (shapes_.size() != inputs_.size()) return false;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const abi::IntArray* dims = context->tensors[inputs_[i]].dims;
      if (dims == nullptr || dims->size != shapes_[i].rank()) return false;
      if (!std::equal(dims->data, dims->data + dims->size, shapes_[i].data())) return false;
    }
    return true;
  }

  Status resize(abi::Context* context) {
    // Others may be reading the report.
    std::lock_guard<std::recursive_mutex> lock(owner_->mutex_);
    std::vector<Shape> shapes(inputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const abi::IntArray* dims = context->tensors[inputs_[i]].dims;
      LITEFUSE_REQUIRE(dims != nullptr && shapes[i].assign(dims->data, dims->size),
                       "input %zu has a shape that regions cannot have", i);
    }
    shapes_.clear();
    if (executable_ == nullptr) {
      Advice advice;
      advice.winograd = winograd_;
      LITEFUSE_RETURN_IF_REFUSED(
          owner_->backend_->compile(*region_, owner_->compile_options(context, advice), &executable_));
    }
    LITEFUSE_RETURN_IF_REFUSED(executable_->prepare(shapes));
    LITEFUSE_REQUIRE(scratch_->reserve(executable_->scratch_bytes()), "there is no memory for its %zu bytes of scratch",
                     executable_->scratch_bytes());
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Shape& shape = executable_->output_shape(i);
      Array dims = make_array(std::vector<int>(shape.data(), shape.data() + shape.rank()));
      LITEFUSE_REQUIRE(dims != nullptr, "out of memory");
      LITEFUSE_REQUIRE(context->resize_tensor(context, &context->tensors[outputs_[i]], dims.release()) == abi::kOk,
                       "the runtime cannot resize output %zu to %s", i, shape.str().c_str());
    }
    shapes_ = std::move(shapes);
    return Status();
  }

  Status run(abi::Context* context) {
    std::vector<const void*>& inputs = input_data_;
    std::vector<void*>& outputs = output_data_;
    inputs.resize(inputs_.size());
    outputs.resize(outputs_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs[i] = context->tensors[inputs_[i]].data;
      LITEFUSE_REQUIRE(inputs[i] != nullptr || shapes_[i].elements() == 0, "input %zu has no data", i);
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const abi::Tensor& tensor = context->tensors[outputs_[i]];
      const Shape& shape = executable_->output_shape(i);
      const size_t wanted = static_cast<size_t>(shape.elements()) * size_of(static_cast<Type>(tensor.type));
      LITEFUSE_REQUIRE(wanted == 0 || (tensor.data != nullptr && tensor.bytes >= wanted), "output %zu has no memory",
                       i);
      outputs[i] = tensor.data;
    }
    // Another region of the graph may have moved the memory they share.
    LITEFUSE_REQUIRE(scratch_->reserve(executable_->scratch_bytes()), "there is no memory for its scratch");
    RuntimeListener listener(context->profiler);
    const bool listen = owner_->options_.profile && context->profiler != nullptr;
    return executable_->run(inputs, outputs, scratch_->base, listen ? &listener : nullptr);
  }

  std::shared_ptr<LitefuseDelegate> owner_;
  std::string name_;
  int position_;
  std::vector<int> inputs_;
  std::vector<int> outputs_;
  std::unique_ptr<Executable> executable_;
  std::shared_ptr<const Region> region_;
  bool winograd_;  // whether the file lets Winograd's algorithm be used
  bool dormant_;
  const abi::Context* decomposition_;  // nullptr if the operators are in the graph itself
  std::shared_ptr<LitefuseDelegate::Scratch> scratch_;
  std::vector<Shape> shapes_;  // for which the executable is prepared; empty when it is not
  std::vector<const void*> input_data_;
  std::vector<void*> output_data_;
};

// -- claiming ------------------------------------------------------------------------------------------------------

LitefuseDelegate::LitefuseDelegate(const Options& options, std::unique_ptr<Backend> backend)
    : options_(options), backend_(std::move(backend)) {
  native_.data = this;
  native_.prepare = &LitefuseDelegate::prepare;
  native_.flags = abi::kAllowDynamicTensors;
}

Status LitefuseDelegate::create(const Options& options, LitefuseDelegate** result) {
  auto backend = make_backend(options.backend);
  LITEFUSE_REQUIRE(backend != nullptr, "there is no backend `%s`; there are cpu and reference",
                   options.backend.c_str());
  std::shared_ptr<LitefuseDelegate> made(new LitefuseDelegate(options, std::move(backend)));
  made->self_ = made;
  *result = made.get();
  (*result)->log("backend %s (%s)", (*result)->backend_->name(), (*result)->backend_->description().c_str());
  return Status();
}

void LitefuseDelegate::release() {
  // Kernels that are still there keep the rest alive; without any, this was the last owner.
  const std::shared_ptr<LitefuseDelegate> last = std::move(self_);
}

void LitefuseDelegate::log(const char* format, ...) const {
  if (!options_.verbose) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "litefuse: %s\n", text);
}

void LitefuseDelegate::refused(const std::string& what, const Status& why) {
  log("%s is left to the runtime: %s", what.c_str(), why.reason().c_str());
  std::pair<std::string, std::string> refusal(what, why.reason());
  if (std::find(refusals_.begin(), refusals_.end(), refusal) == refusals_.end()) {
    refusals_.push_back(std::move(refusal));
  }
}

const char* LitefuseDelegate::keep(const std::string& name) { return names_.insert(name).first->c_str(); }

int LitefuseDelegate::prepare(abi::Context* context, abi::Delegate* delegate) {
  auto* self = static_cast<LitefuseDelegate*>(delegate->data);
  return self->claim(context);
}

CompileOptions LitefuseDelegate::compile_options(abi::Context* context, const Advice& advice) const {
  CompileOptions options;
  options.threads = options_.threads > 0 ? options_.threads : std::max(context->recommended_num_threads, 1);
  options.profile = options_.profile;
  options.advice = advice;
  options.advice.winograd = advice.winograd && options_.winograd;
  return options;
}

std::shared_ptr<LitefuseDelegate::Scratch> LitefuseDelegate::scratch_of(abi::Context* context) {
  std::shared_ptr<Scratch> scratch = scratches_[context].lock();
  if (scratch == nullptr) {
    for (auto it = scratches_.begin(); it != scratches_.end();) {
      it = it->second.expired() && it->first != context ? scratches_.erase(it) : std::next(it);
    }
    scratch = std::make_shared<Scratch>();
    scratches_[context] = scratch;
  }
  return scratch;
}

int LitefuseDelegate::claim(abi::Context* context) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  abi::IntArray* plan = nullptr;
  if (context->get_execution_plan(context, &plan) != abi::kOk || plan == nullptr) return abi::kError;
  // The runtime's own array changes with each claim.
  const std::vector<int> nodes = elements_of(plan);
  if (decompositions_.count(context) != 0) {
    const Status status = claim_decomposition(context, nodes);
    if (!status.ok()) refused("a decomposition", status);
    return abi::kOk;
  }
  std::vector<Claim> claims;
  for (int node : nodes) {
    Claim claim;
    const Status status = compile_wrapped(context, node, &claim);
    if (claim.kind.empty()) continue;  // not ours
    if (!status.ok()) {
      refused(std::string(kPrefix) + claim.kind + " #" + std::to_string(node), status);
      continue;
    }
    claims.push_back(std::move(claim));
  }
  for (Claim& claim : read_plan(context)) claims.push_back(std::move(claim));
  for (Claim& claim : claims) {
    const std::string what = std::string(kPrefix) + claim.kind + " #" + std::to_string(claim.nodes.front());
    const Status status = replace(context, claim.nodes, &claim);
    if (!status.ok()) refused(what, status);
  }
  if (!claims.empty()) log("%zu regions claimed", claims.size());
  return abi::kOk;
}

// Compiles the composite or custom operator at `node`; claim->kind stays empty when it is none of ours.
Status LitefuseDelegate::compile_wrapped(abi::Context* context, int node, Claim* claim) {
  abi::Node* op = nullptr;
  abi::Registration* registration = nullptr;
  if (context->get_node_and_registration(context, node, &op, &registration) != abi::kOk) return Status();
  std::string name;
  FlexValue attributes;
  int64_t subgraph = -1;
  if (registration->builtin_code == abi::kBuiltinComposite && op->builtin_data != nullptr) {
    const auto* params = static_cast<const abi::CompositeParams*>(op->builtin_data);
    name = params->name != nullptr ? params->name : "";
    attributes = FlexValue::root(params->attributes, params->attributes_size);
    subgraph = params->subgraph_index;
  } else if (registration->builtin_code == abi::kBuiltinCustom && registration->custom_name != nullptr) {
    name = registration->custom_name;
    if (op->custom_initial_data_size > 0) {
      attributes = FlexValue::root(static_cast<const uint8_t*>(op->custom_initial_data),
                                   static_cast<size_t>(op->custom_initial_data_size));
    }
    subgraph = attributes.get("subgraph").integer(-1);
  }
  if (!starts_with(name, kPrefix) || name.size() == sizeof kPrefix - 1) return Status();
  claim->kind = name.substr(sizeof kPrefix - 1);
  claim->nodes = {node};
  claim->inputs = elements_of(op->inputs);
  claim->outputs = elements_of(op->outputs);
  claim->advice = read_advice(attributes);
  const int64_t format = attributes.get("litefuse").integer(0);
  LITEFUSE_REQUIRE(format == kFormat, "its attributes are of format %lld, and this delegate reads format %lld",
                   static_cast<long long>(format), static_cast<long long>(kFormat));
  LITEFUSE_REQUIRE(context->acquire_subgraph_context != nullptr, "the runtime does not show its decomposition");
  LITEFUSE_REQUIRE(subgraph >= 0 && subgraph <= INT32_MAX, "it names subgraph %lld", static_cast<long long>(subgraph));
  abi::Context* inner = nullptr;
  LITEFUSE_REQUIRE(
      context->acquire_subgraph_context(context, static_cast<int>(subgraph), &inner) == abi::kOk && inner != nullptr,
      "its decomposition, subgraph %lld, does not exist", static_cast<long long>(subgraph));
  struct Release {
    abi::Context* context;
    int index;
    ~Release() {
      if (context->release_subgraph_context != nullptr) context->release_subgraph_context(context, index);
    }
  } release{context, static_cast<int>(subgraph)};
  LITEFUSE_REQUIRE(inner != context, "it contains itself");
  abi::IntArray* plan = nullptr;
  LITEFUSE_REQUIRE(inner->get_execution_plan(inner, &plan) == abi::kOk && plan != nullptr && plan->size > 0,
                   "its decomposition has no operators");
  const std::vector<int> nodes = elements_of(plan);
  LITEFUSE_RETURN_IF_REFUSED(to_ints(attributes.get("inputs").integers(), &claim->inner_inputs));
  LITEFUSE_RETURN_IF_REFUSED(to_ints(attributes.get("outputs").integers(), &claim->inner_outputs));
  // If it was claimed already, before the runtime resized the graph, the dormant kernel knows what it was.
  if (const RegionKernel* dormant = dormant_kernel(inner, nodes)) {
    LITEFUSE_REQUIRE(dormant->inputs() == claim->inner_inputs && dormant->outputs() == claim->inner_outputs,
                     "its decomposition was claimed with other inputs and outputs");
    claim->region = dormant->region();
  } else {
    auto region = std::make_shared<Region>();
    region->kind = claim->kind;
    LITEFUSE_RETURN_IF_REFUSED(import_region(inner, nodes, claim->inner_inputs, claim->inner_outputs, region.get()));
    LITEFUSE_RETURN_IF_REFUSED(check_structure(*region));
    claim->region = std::move(region);
  }
  const Region& region = *claim->region;
  LITEFUSE_REQUIRE(region.inputs.size() == claim->inputs.size() && region.outputs.size() == claim->outputs.size(),
                   "it has %zu inputs and %zu outputs, its decomposition %zu and %zu", claim->inputs.size(),
                   claim->outputs.size(), region.inputs.size(), region.outputs.size());
  auto same_types = [&](const std::vector<int>& outside, const std::vector<int32_t>& inside) -> Status {
    for (size_t i = 0; i < outside.size(); ++i) {
      LITEFUSE_REQUIRE(outside[i] >= 0 && static_cast<size_t>(outside[i]) < context->tensors_size,
                       "one of its tensors does not exist");
      const Tensor& tensor = region.tensors[static_cast<size_t>(inside[i])];
      LITEFUSE_REQUIRE(context->tensors[outside[i]].type == static_cast<int>(tensor.type),
                       "`%s` is of another type in the decomposition", tensor.name.c_str());
    }
    return Status();
  };
  LITEFUSE_RETURN_IF_REFUSED(same_types(claim->inputs, region.inputs));
  LITEFUSE_RETURN_IF_REFUSED(same_types(claim->outputs, region.outputs));
  claim->decomposition = inner;
  return backend_->compile(region, compile_options(context, claim->advice), &claim->executable);
}

// The groups of a plan, compiled; none if it was made for other operators than these.
std::vector<LitefuseDelegate::Claim> LitefuseDelegate::read_plan(abi::Context* context) {
  const char* data = nullptr;
  size_t size = 0;
  if (context->get_model_metadata == nullptr || context->get_model_metadata(context, kPlan, &data, &size) != abi::kOk ||
      data == nullptr) {
    return {};
  }
  const FlexValue plan = FlexValue::root(reinterpret_cast<const uint8_t*>(data), size);
  if (plan.get("litefuse").integer(0) != kFormat) {
    refused(kPlan, refuse("it is of a format that this delegate does not read"));
    return {};
  }
  const FlexValue regions = plan.get("regions");
  std::vector<Claim> claims;
  for (size_t i = 0; i < regions.size(); ++i) {
    const FlexValue region = regions.element(i);
    const int64_t subgraph = region.get("subgraph").integer(0);
    abi::Context* itself = nullptr;
    if (context->acquire_subgraph_context == nullptr || subgraph < 0 || subgraph > INT32_MAX ||
        context->acquire_subgraph_context(context, static_cast<int>(subgraph), &itself) != abi::kOk) {
      continue;
    }
    if (context->release_subgraph_context != nullptr) {
      context->release_subgraph_context(context, static_cast<int>(subgraph));
    }
    if (itself != context) continue;  // it is about another graph
    Claim claim;
    claim.kind = region.get("kind").string("region");
    claim.advice = read_advice(region);
    int64_t found = 0;
    Status status = to_ints(region.get("operators").integers(), &claim.nodes);
    if (status.ok() && claim.nodes.empty()) status = refuse("region %zu has no operators", i);
    if (status.ok()) status = fingerprint(context, claim.nodes, &found);
    if (status.ok() && found != region.get("fingerprint").integer(-1)) {
      status = refuse("it was made for other operators, or another delegate took them first");
    }
    if (!status.ok()) {
      // A plan that does not fit in one place fits in none.
      refused(kPlan, status);
      return {};
    }
    status = compile_planned(context, &claim);
    if (!status.ok()) {
      refused(std::string(kPrefix) + claim.kind + " #" + std::to_string(claim.nodes.front()), status);
      continue;
    }
    claims.push_back(std::move(claim));
  }
  return claims;
}

Status LitefuseDelegate::compile_planned(abi::Context* context, Claim* claim) {
  LITEFUSE_REQUIRE(context->preview_delegate_partitioning != nullptr, "the runtime does not show partitions");
  Array nodes = make_array(claim->nodes);
  abi::DelegateParams* parts = nullptr;
  int count = 0;
  LITEFUSE_REQUIRE(
      nodes != nullptr && context->preview_delegate_partitioning(context, nodes.get(), &parts, &count) == abi::kOk,
      "the runtime refuses to partition its operators");
  LITEFUSE_REQUIRE(count == 1 && parts != nullptr, "the runtime would make %d nodes of its operators", count);
  claim->inputs.clear();
  claim->outputs = elements_of(parts->output_tensors);
  for (int tensor : elements_of(parts->input_tensors)) {
    LITEFUSE_REQUIRE(tensor >= 0 && static_cast<size_t>(tensor) < context->tensors_size, "tensor %d does not exist",
                     tensor);
    if (context->tensors[tensor].allocation_type != abi::kMmapRo) claim->inputs.push_back(tensor);
  }
  auto region = std::make_shared<Region>();
  region->kind = claim->kind;
  LITEFUSE_RETURN_IF_REFUSED(import_region(context, claim->nodes, claim->inputs, claim->outputs, region.get()));
  claim->region = region;
  return backend_->compile(*region, compile_options(context, claim->advice), &claim->executable);
}

namespace {

int prepare_region(abi::Context* context, abi::Node* node) {
  return node->user_data == nullptr ? abi::kError : static_cast<RegionKernel*>(node->user_data)->prepare(context);
}

int invoke_region(abi::Context* context, abi::Node* node) {
  return static_cast<RegionKernel*>(node->user_data)->invoke(context);
}

void free_region(abi::Context*, void* kernel) { delete static_cast<RegionKernel*>(kernel); }

const char* name_region(const abi::Context*, const abi::Node* node) {
  return node->user_data == nullptr ? nullptr : static_cast<const RegionKernel*>(node->user_data)->name().c_str();
}

}  // namespace

// Has the runtime replace `nodes` by one node. It asks for the kernel while it does so.
Status LitefuseDelegate::replace(abi::Context* context, const std::vector<int>& nodes, Claim* claim) {
  abi::Registration registration{};
  registration.init = [](abi::Context* inner, const char* buffer, size_t) -> void* {
    const auto* params = reinterpret_cast<const abi::DelegateParams*>(buffer);
    auto* self = static_cast<LitefuseDelegate*>(params->delegate->data);
    Claim* pending = self->pending_;
    // A second kernel would mean that the runtime split what is one: nothing was compiled for that.
    if (pending == nullptr || pending->kernel != nullptr) return nullptr;
    pending->kernel = new (std::nothrow) RegionKernel(self, inner, pending);
    if (pending->kernel != nullptr && pending->decomposition != nullptr) {
      Decomposition& known = self->decompositions_[pending->decomposition];
      if (known.users++ == 0) {
        known = {1, pending->region, pending->inner_inputs, pending->inner_outputs, pending->advice.winograd};
      }
    }
    return pending->kernel;
  };
  registration.free = free_region;
  registration.prepare = prepare_region;
  registration.invoke = invoke_region;
  registration.profiling_string = name_region;
  registration.builtin_code = abi::kBuiltinDelegate;
  registration.custom_name = keep(std::string(kPrefix) + claim->kind);
  registration.version = 1;
  Array array = make_array(nodes);
  LITEFUSE_REQUIRE(array != nullptr, "out of memory");
  // Claims made since this one was compiled may have taken some of its operators, or split it.
  if (context->preview_delegate_partitioning != nullptr) {
    abi::DelegateParams* parts = nullptr;
    int count = 0;
    LITEFUSE_REQUIRE(context->preview_delegate_partitioning(context, array.get(), &parts, &count) == abi::kOk,
                     "the runtime refuses to partition its operators");
    LITEFUSE_REQUIRE(count == 1 && parts != nullptr, "the runtime would make %d nodes of its operators", count);
    std::vector<int> taken = elements_of(parts->nodes_to_replace);
    std::vector<int> wanted = nodes;
    std::sort(taken.begin(), taken.end());
    std::sort(wanted.begin(), wanted.end());
    LITEFUSE_REQUIRE(taken == wanted, "another region has taken some of its operators");
  }
  pending_ = claim;
  const int status = context->replace_node_subsets_with_delegate_kernels(context, registration, array.get(), &native_);
  pending_ = nullptr;
  LITEFUSE_REQUIRE(status == abi::kOk, "the runtime does not replace its operators");
  return Status();
}

// The dormant kernel that holds all operators of a graph; nullptr when they are not held by one.
const RegionKernel* LitefuseDelegate::dormant_kernel(abi::Context* context, const std::vector<int>& nodes) const {
  abi::Node* node = nullptr;
  abi::Registration* registration = nullptr;
  if (nodes.size() != 1 || context->get_node_and_registration(context, nodes[0], &node, &registration) != abi::kOk ||
      node->delegate != &native_ || registration->builtin_code != abi::kBuiltinDelegate) {
    return nullptr;
  }
  const auto* kernel = static_cast<const RegionKernel*>(node->user_data);
  return kernels_.count(const_cast<RegionKernel*>(kernel)) != 0 && kernel->dormant() ? kernel : nullptr;
}

Status LitefuseDelegate::claim_decomposition(abi::Context* context, const std::vector<int>& nodes) {
  if (dormant_kernel(context, nodes) != nullptr) return Status();  // from before the runtime resized the graph
  const Decomposition& known = decompositions_[context];
  Claim claim;
  claim.kind = known.region->kind;
  claim.nodes = nodes;
  claim.inputs = known.inputs;
  claim.outputs = known.outputs;
  claim.region = known.region;
  claim.advice.winograd = known.winograd;
  claim.dormant = true;
  return replace(context, nodes, &claim);
}

// -- reporting -----------------------------------------------------------------------------------------------------

std::string LitefuseDelegate::report() const {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  std::string text =
      "{\"backend\": " + quoted(backend_->name()) + ", \"description\": " + quoted(backend_->description());
  const PackingReport packing = packing_report();
  char milliseconds[32];
  std::snprintf(milliseconds, sizeof milliseconds, "%llu.%06llu",
                static_cast<unsigned long long>(packing.nanoseconds / 1000000),
                static_cast<unsigned long long>(packing.nanoseconds % 1000000));
  text += ", \"packing\": {\"bytes\": " + std::to_string(packing.packed_bytes) + ", \"milliseconds\": " + milliseconds +
          ", \"packed\": " + std::to_string(packing.packed) + ", \"shared\": " + std::to_string(packing.shared) +
          "}, \"regions\": [";
  bool first = true;
  for (const RegionKernel* kernel : kernels_) {
    const Executable* executable = kernel->executable();
    if (executable == nullptr || kernel->dormant()) continue;
    text += std::string(first ? "" : ", ") + "{\"name\": " + quoted(kernel->name()) +
            ", \"position\": " + std::to_string(kernel->position()) +
            ", \"operators\": " + std::to_string(kernel->region()->operators.size()) +
            ", \"slow_operators\": " + std::to_string(executable->slow_operators()) +
            ", \"scratch_bytes\": " + std::to_string(executable->scratch_bytes()) +
            ", \"follows_plan\": " + (executable->follows_plan() ? "true" : "false");
    first = false;
    if (const Profile* profile = executable->profile()) {
      text += ", \"runs\": " + std::to_string(profile->runs()) + ", \"times\": [";
      for (size_t i = 0; i < profile->names().size(); ++i) {
        text += std::string(i ? ", " : "") + "{\"operator\": " + quoted(profile->names()[i]) +
                ", \"nanoseconds\": " + std::to_string(profile->nanoseconds(i)) + "}";
      }
      text += "]";
    }
    text += "}";
  }
  text += "], \"refused\": [";
  for (size_t i = 0; i < refusals_.size(); ++i) {
    text += std::string(i ? ", " : "") + "{\"what\": " + quoted(refusals_[i].first) +
            ", \"reason\": " + quoted(refusals_[i].second) + "}";
  }
  return text + "]}";
}

void LitefuseDelegate::clear_profile() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  for (RegionKernel* kernel : kernels_) {
    if (kernel->executable() != nullptr && kernel->executable()->profile() != nullptr) {
      kernel->executable()->profile()->clear();
    }
  }
}

}  // namespace litefuse
