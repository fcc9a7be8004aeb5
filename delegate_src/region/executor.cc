#include "region/executor.h"

#include <algorithm>
#include <limits>
#include <new>

namespace litefuse {
namespace {

size_t at(int32_t index) { return static_cast<size_t>(index); }

char* align(char* address) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  return address + (aligned(number) - number);
}

// Scratch memory that no real region needs: more is refused rather than asked of the system.
constexpr uint64_t kMaxScratch = uint64_t{1} << 34;
// The same for constants that operators compute once.
constexpr uint64_t kMaxComputed = uint64_t{1} << 30;

uint64_t bytes_of(const Tensor& tensor, const Shape& shape) {
  return static_cast<uint64_t>(shape.elements()) * size_of(tensor.type);
}

// Whether no output has an element. Kernels would walk through all the rows of a shape such as [2147483647,0].
bool makes_nothing(const Call& call) {
  return std::all_of(call.outputs.begin(), call.outputs.end(),
                     [](const Operand& output) { return output.elements() == 0; });
}

}  // namespace

Status Executor::compile(const Region& region, const CompileOptions& options, std::shared_ptr<Threads> threads,
                         std::unique_ptr<Executable>* result) {
  auto executor = std::make_unique<Executor>();
  executor->threads_ = std::move(threads);
  LITEFUSE_RETURN_IF_REFUSED(executor->build(region, options));
  *result = std::move(executor);
  return Status();
}

Status Executor::build(const Region& region, const CompileOptions& options) {
  LITEFUSE_RETURN_IF_REFUSED(check_structure(region));
  region_ = region;
  advice_ = options.advice;
  strip_ = options.strip;
  const size_t count = region_.tensors.size();
  shapes_.resize(count);
  data_.assign(count, nullptr);
  offsets_.assign(count, 0);
  internal_.assign(count, false);
  for (size_t i = 0; i < count; ++i) {
    const Tensor& tensor = region_.tensors[i];
    shapes_[i] = tensor.shape;
    // Kernels see all data through pointers that are not const, and never write to inputs.
    data_[i] = const_cast<void*>(tensor.constant);
  }
  std::vector<std::string> names;
  for (const Operator& op : region_.operators) {
    for (int32_t output : op.outputs) internal_[at(output)] = true;
    MakeKernel make = reference_kernel(op.kind);
    LITEFUSE_REQUIRE(make != nullptr, "%s: no kernel runs this operator", describe(region_, op).c_str());
    Reference reference;
    reference.kernel = make();
    reference.call.op = &op;
    for (int32_t input : op.inputs) {
      Operand operand;
      if (input >= 0) operand.tensor = &region_.tensors[at(input)];
      reference.call.inputs.push_back(operand);
    }
    for (int32_t output : op.outputs) {
      Operand operand;
      operand.tensor = &region_.tensors[at(output)];
      reference.call.outputs.push_back(operand);
    }
    references_.push_back(std::move(reference));
    names.push_back(describe(region_, op));
  }
  for (int32_t output : region_.outputs) internal_[at(output)] = false;
  LITEFUSE_RETURN_IF_REFUSED(fold_constants());
  if (options.profile) profile_ = std::make_unique<Profile>(std::move(names));
  std::vector<Shape> inputs;
  for (int32_t input : region_.inputs) inputs.push_back(region_.tensors[at(input)].shape);
  return prepare(inputs);
}

// Operators that only constants feed are run once, or not at all: what DEQUANTIZE makes of float16 weights is not needed
// where these are packed as they are.
Status Executor::fold_constants() {
  for (Reference& reference : references_) {
    const Operator& op = *reference.call.op;
    const bool constant = std::all_of(op.inputs.begin(), op.inputs.end(), [this](int32_t input) {
      return input < 0 || region_.tensors[at(input)].constant != nullptr;
    });
    const bool inner =
        std::all_of(op.outputs.begin(), op.outputs.end(), [this](int32_t output) { return internal_[at(output)]; });
    if (!constant || !inner || op.inputs.empty()) continue;
    reference.once = true;
    if (op.kind == Kind::kDequantize && op.inputs[0] >= 0 && region_.tensors[at(op.inputs[0])].type == Type::kFloat16 &&
        threads_ != nullptr && is_packed_only(op.outputs[0])) {
      region_.tensors[at(op.outputs[0])].half = region_.tensors[at(op.inputs[0])].constant;
      internal_[at(op.outputs[0])] = false;
      reference.put_off = true;
      continue;
    }
    LITEFUSE_RETURN_IF_REFUSED(compute(&reference));
  }
  return Status();
}

// Whether nothing reads a tensor but convolutions and matrix products, as their weights.
bool Executor::is_packed_only(int32_t tensor) const {
  for (const Operator& op : region_.operators) {
    const bool packs = op.kind == Kind::kConv2d || op.kind == Kind::kDepthwiseConv2d ||
                       op.kind == Kind::kTransposeConv || op.kind == Kind::kFullyConnected;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] == tensor && !(packs && i == 1)) return false;
    }
  }
  return true;
}

Status Executor::compute(Reference* reference) {
  Call& call = reference->call;
  const Operator& op = *call.op;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (op.inputs[i] < 0) continue;
    call.inputs[i].shape = shapes_[at(op.inputs[i])];
    call.inputs[i].data = data_[at(op.inputs[i])];
  }
  LITEFUSE_RETURN_IF_REFUSED(reference->kernel->prepare(call).at(describe(region_, op)));
  auto reserve = [this](uint64_t bytes) -> char* {
    if (bytes > kMaxComputed) return nullptr;
    computed_.emplace_back(new (std::nothrow) char[static_cast<size_t>(bytes) + kAlignment]);
    return computed_.back() ? align(computed_.back().get()) : nullptr;
  };
  call.scratch = reserve(call.scratch_bytes);
  LITEFUSE_REQUIRE(call.scratch != nullptr, "%s: there is no memory for it", describe(region_, op).c_str());
  const size_t scratch_at = computed_.size() - 1;
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const size_t t = at(op.outputs[i]);
    Tensor& tensor = region_.tensors[t];
    char* data = reserve(bytes_of(tensor, call.outputs[i].shape));
    LITEFUSE_REQUIRE(data != nullptr, "%s: there is no memory for it", describe(region_, op).c_str());
    call.outputs[i].data = data_[t] = data;
    shapes_[t] = tensor.shape = call.outputs[i].shape;
    internal_[t] = false;
  }
  if (!makes_nothing(call)) reference->kernel->run(call);
  for (size_t i = 0; i < op.outputs.size(); ++i) region_.tensors[at(op.outputs[i])].constant = call.outputs[i].data;
  computed_.erase(computed_.begin() + static_cast<std::ptrdiff_t>(scratch_at));
  return Status();
}

// What was put off although a reference kernel reads it.
Status Executor::compute_for_references() {
  for (Reference& reference : references_) {
    if (!reference.put_off) continue;
    const int32_t made = reference.call.op->outputs[0];
    const bool read = std::any_of(steps_.begin(), steps_.end(), [&](const Step& step) {
      if (step.section.pipeline != nullptr) return false;
      const std::vector<int32_t>& inputs = region_.operators[at(step.section.operators[0])].inputs;
      return std::find(inputs.begin(), inputs.end(), made) != inputs.end();
    });
    if (!read) continue;
    LITEFUSE_RETURN_IF_REFUSED(compute(&reference));
    reference.put_off = false;
  }
  return Status();
}

Status Executor::prepare(const std::vector<Shape>& inputs) {
  LITEFUSE_REQUIRE(inputs.size() == region_.inputs.size(), "%zu shapes were given for %zu inputs", inputs.size(),
                   region_.inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) shapes_[at(region_.inputs[i])] = inputs[i];
  for (Reference& reference : references_) {
    if (reference.once) continue;
    Call& call = reference.call;
    const Operator& op = *call.op;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] < 0) continue;
      call.inputs[i].shape = shapes_[at(op.inputs[i])];
      call.inputs[i].data = const_cast<void*>(region_.tensors[at(op.inputs[i])].constant);
    }
    call.scratch_bytes = 0;
    LITEFUSE_RETURN_IF_REFUSED(reference.kernel->prepare(call).at(describe(region_, op)));
    LITEFUSE_REQUIRE(call.scratch_bytes <= kMaxScratch, "%s: it needs too much memory", describe(region_, op).c_str());
    for (size_t i = 0; i < op.outputs.size(); ++i) shapes_[at(op.outputs[i])] = call.outputs[i].shape;
    reference.idle = makes_nothing(call);
  }
  if (divided_for_ != shapes_) {
    divided_for_.clear();
    LITEFUSE_RETURN_IF_REFUSED(divide());
    divided_for_ = shapes_;
  }
  return plan_scratch();
}

// Makes the steps for the shapes that there are now.
Status Executor::divide() {
  steps_.clear();
  std::vector<Section> sections;
  if (threads_ != nullptr) {
    LoweringOptions options;
    options.threads = threads_->count();
    options.winograd = advice_.winograd;
    options.strip = strip_;
    std::vector<bool> done;
    for (const Reference& reference : references_) done.push_back(reference.once || reference.idle);
    LITEFUSE_RETURN_IF_REFUSED(lower(region_, shapes_, done, options, &sections));
  } else {
    for (size_t i = 0; i < references_.size(); ++i) {
      if (references_[i].once || references_[i].idle) continue;
      Section section;
      section.operators = {static_cast<int32_t>(i)};
      for (int32_t input : region_.operators[i].inputs) {
        if (input >= 0) section.inputs.push_back(input);
      }
      section.outputs = region_.operators[i].outputs;
      sections.push_back(std::move(section));
    }
  }
  for (Section& section : sections) {
    Step step;
    step.scratch_bytes = section.pipeline != nullptr ? section.pipeline->scratch_bytes()
                                                     : references_[at(section.operators[0])].call.scratch_bytes;
    step.section = std::move(section);
    steps_.push_back(std::move(step));
  }
  return compute_for_references();
}

Status Executor::plan_scratch() {
  // Pieces of tensors first, then what steps need for themselves.
  std::vector<Piece> pieces;
  std::vector<size_t> tensor_of;
  std::vector<int32_t> piece_of(region_.tensors.size(), -1);
  stored_.assign(region_.tensors.size(), false);
  uint64_t sum = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    const auto step = static_cast<int32_t>(s);
    for (int32_t input : steps_[s].section.inputs) {
      if (piece_of[at(input)] >= 0) pieces[at(piece_of[at(input)])].last = step;
    }
    for (int32_t output : steps_[s].section.outputs) {
      if (!internal_[at(output)]) continue;
      const uint64_t bytes = bytes_of(region_.tensors[at(output)], shapes_[at(output)]);
      sum += bytes;
      LITEFUSE_REQUIRE(bytes <= kMaxScratch && sum <= kMaxScratch, "its intermediates are too large");
      piece_of[at(output)] = static_cast<int32_t>(pieces.size());
      tensor_of.push_back(at(output));
      stored_[at(output)] = true;
      pieces.push_back(Piece{static_cast<size_t>(bytes), step, step, 0});
    }
  }
  const size_t tensors = pieces.size();
  size_t own = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    own = std::max(own, steps_[s].scratch_bytes);
    pieces.push_back(Piece{steps_[s].scratch_bytes, static_cast<int32_t>(s), static_cast<int32_t>(s), 0});
  }
  scratch_bytes_ = place(&pieces);
  std::vector<Piece> planned(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(tensors));
  // What steps need for themselves lies behind.
  const size_t behind = aligned(advice_.scratch_bytes);
  const size_t total = own > 0 ? behind + own : advice_.scratch_bytes;
  if (place_as_told(piece_of, &planned) && (own == 0 || total <= scratch_bytes_)) {
    std::copy(planned.begin(), planned.end(), pieces.begin());
    for (size_t i = tensors; i < pieces.size(); ++i) pieces[i].offset = behind;
    scratch_bytes_ = total;
    follows_plan_ = true;
  } else {
    follows_plan_ = tensors == 0 && !advice_.places.empty() && scratch_bytes_ <= advice_.scratch_bytes;
  }
  for (size_t i = 0; i < tensors; ++i) offsets_[tensor_of[i]] = pieces[i].offset;
  for (size_t s = 0; s < steps_.size(); ++s) steps_[s].scratch_offset = pieces[tensors + s].offset;
  LITEFUSE_REQUIRE(scratch_bytes_ <= kMaxScratch, "its intermediates are too large");
  return Status();
}

// Gives the tensors' pieces the offsets of the file's plan; false if these do not fit them.
bool Executor::place_as_told(const std::vector<int32_t>& piece_of, std::vector<Piece>* pieces) const {
  const auto operators = static_cast<int32_t>(region_.operators.size());
  size_t enough = 0;
  std::vector<bool> placed(pieces->size(), false);
  for (const Advice::Place& place : advice_.places) {
    const bool known = place.op >= 0 && place.op < operators && place.output >= 0 &&
                       at(place.output) < region_.operators[at(place.op)].outputs.size();
    if (!known) return false;
    // What pipelines keep in rings has no piece.
    const int32_t piece = piece_of[at(region_.operators[at(place.op)].outputs[at(place.output)])];
    if (piece < 0) continue;
    if (placed[at(piece)]) return false;
    (*pieces)[at(piece)].offset = place.offset;
    placed[at(piece)] = true;
  }
  // A plan that needs more memory than all tensors side by side is none.
  for (size_t i = 0; i < region_.tensors.size(); ++i) {
    if (internal_[i]) enough += aligned(static_cast<size_t>(bytes_of(region_.tensors[i], shapes_[i])));
  }
  const bool all = std::all_of(placed.begin(), placed.end(), [](bool it) { return it; });
  return !advice_.places.empty() && all && advice_.scratch_bytes <= enough &&
         placed_well(*pieces, advice_.scratch_bytes);
}

const Shape& Executor::output_shape(size_t i) const { return shapes_[at(region_.outputs[i])]; }

size_t Executor::slow_operators() const {
  size_t count = 0;
  for (const Step& step : steps_) {
    if (step.section.pipeline != nullptr) continue;
    const Operator& op = region_.operators[at(step.section.operators[0])];
    const bool moves = only_moves(op.kind) && region_.tensors[at(op.outputs[0])].type == Type::kFloat32;
    count += moves ? 0 : step.section.operators.size();
  }
  return count;
}

void Executor::run_reference(Reference& reference, void* scratch) {
  Call& call = reference.call;
  const Operator& op = *call.op;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (op.inputs[i] >= 0) call.inputs[i].data = data_[at(op.inputs[i])];
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) call.outputs[i].data = data_[at(op.outputs[i])];
  call.scratch = scratch;
  reference.kernel->run(call);
}

Status Executor::run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs, void* scratch,
                     Listener* listener) {
  for (size_t i = 0; i < inputs.size(); ++i) data_[at(region_.inputs[i])] = const_cast<void*>(inputs[i]);
  for (size_t i = 0; i < outputs.size(); ++i) data_[at(region_.outputs[i])] = outputs[i];
  char* base = static_cast<char*>(scratch);
  for (size_t t = 0; t < stored_.size(); ++t) {
    if (stored_[t]) data_[t] = base + offsets_[t];
  }
  for (Step& step : steps_) {
    const Section& section = step.section;
    const Operator& first = region_.operators[at(section.operators[0])];
    const uint32_t handle = listener != nullptr ? listener->begin(name_of(first.kind), first.index) : 0;
    if (section.pipeline != nullptr) {
      from_.clear();
      to_.clear();
      for (int32_t t : section.inputs) from_.push_back(static_cast<const float*>(data_[at(t)]));
      for (int32_t t : section.outputs) to_.push_back(static_cast<float*>(data_[at(t)]));
      section.pipeline->run(from_.data(), to_.data(), base + step.scratch_offset, threads_.get(), profile_.get());
    } else {
      const uint64_t start = profile_ ? now() : 0;
      run_reference(references_[at(section.operators[0])], base + step.scratch_offset);
      if (profile_) profile_->add(at(section.operators[0]), now() - start);
    }
    if (listener != nullptr) listener->end(handle);
  }
  if (profile_) profile_->add_run();
  return Status();
}

}  // namespace litefuse
