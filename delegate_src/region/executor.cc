#include "region/executor.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <new>

namespace litefuse {
namespace {

size_t at(int32_t index) { return static_cast<size_t>(index); }

uint64_t now() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

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

Status Executor::compile(const Region& region, const CompileOptions& options, std::unique_ptr<Executable>* result) {
  auto executor = std::make_unique<Executor>();
  LITEFUSE_RETURN_IF_REFUSED(executor->build(region, options));
  *result = std::move(executor);
  return Status();
}

Status Executor::build(const Region& region, const CompileOptions& options) {
  LITEFUSE_RETURN_IF_REFUSED(check_structure(region));
  region_ = region;
  advice_ = options.advice;
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
    Step step;
    step.kernel = make();
    step.call.op = &op;
    for (int32_t input : op.inputs) {
      Operand operand;
      if (input >= 0) operand.tensor = &region_.tensors[at(input)];
      step.call.inputs.push_back(operand);
    }
    for (int32_t output : op.outputs) {
      Operand operand;
      operand.tensor = &region_.tensors[at(output)];
      step.call.outputs.push_back(operand);
    }
    steps_.push_back(std::move(step));
    names.push_back(describe(region_, op));
  }
  for (int32_t output : region_.outputs) internal_[at(output)] = false;
  LITEFUSE_RETURN_IF_REFUSED(fold_constants());
  if (options.profile) profile_ = std::make_unique<Profile>(std::move(names));
  std::vector<Shape> inputs;
  for (int32_t input : region_.inputs) inputs.push_back(region_.tensors[at(input)].shape);
  return prepare(inputs);
}

// Operators that only constants feed, such as the DEQUANTIZE of float16 weights, are run once.
Status Executor::fold_constants() {
  for (Step& step : steps_) {
    Call& call = step.call;
    const Operator& op = *call.op;
    const bool constant = std::all_of(op.inputs.begin(), op.inputs.end(), [this](int32_t input) {
      return input < 0 || region_.tensors[at(input)].constant != nullptr;
    });
    const bool inner =
        std::all_of(op.outputs.begin(), op.outputs.end(), [this](int32_t output) { return internal_[at(output)]; });
    if (!constant || !inner || op.inputs.empty()) continue;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] < 0) continue;
      call.inputs[i].shape = shapes_[at(op.inputs[i])];
      call.inputs[i].data = data_[at(op.inputs[i])];
    }
    LITEFUSE_RETURN_IF_REFUSED(step.kernel->prepare(call).at(describe(region_, op)));
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
    if (!makes_nothing(call)) step.kernel->run(call);
    for (size_t i = 0; i < op.outputs.size(); ++i) region_.tensors[at(op.outputs[i])].constant = call.outputs[i].data;
    computed_.erase(computed_.begin() + static_cast<std::ptrdiff_t>(scratch_at));
    step.once = true;
  }
  return Status();
}

Status Executor::prepare(const std::vector<Shape>& inputs) {
  LITEFUSE_REQUIRE(inputs.size() == region_.inputs.size(), "%zu shapes were given for %zu inputs", inputs.size(),
                   region_.inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) shapes_[at(region_.inputs[i])] = inputs[i];
  for (Step& step : steps_) {
    if (step.once) continue;
    Call& call = step.call;
    const Operator& op = *call.op;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] < 0) continue;
      call.inputs[i].shape = shapes_[at(op.inputs[i])];
      call.inputs[i].data = const_cast<void*>(region_.tensors[at(op.inputs[i])].constant);
    }
    call.scratch_bytes = 0;
    LITEFUSE_RETURN_IF_REFUSED(step.kernel->prepare(call).at(describe(region_, op)));
    for (size_t i = 0; i < op.outputs.size(); ++i) shapes_[at(op.outputs[i])] = call.outputs[i].shape;
    step.idle = makes_nothing(call);
  }
  return plan_scratch();
}

Status Executor::plan_scratch() {
  const auto last_step = static_cast<int32_t>(steps_.size()) - 1;
  // Pieces of tensors first, then those that kernels asked for.
  std::vector<Piece> pieces;
  std::vector<size_t> tensor_of;
  std::vector<int32_t> piece_of(region_.tensors.size(), -1);
  uint64_t sum = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Operator& op = *steps_[s].call.op;
    for (int32_t input : op.inputs) {
      if (input >= 0 && piece_of[at(input)] >= 0) pieces[at(piece_of[at(input)])].last = static_cast<int32_t>(s);
    }
    for (int32_t output : op.outputs) {
      if (!internal_[at(output)]) continue;
      const uint64_t bytes = bytes_of(region_.tensors[at(output)], shapes_[at(output)]);
      sum += bytes;
      LITEFUSE_REQUIRE(bytes <= kMaxScratch && sum <= kMaxScratch, "its intermediates are too large");
      piece_of[at(output)] = static_cast<int32_t>(pieces.size());
      tensor_of.push_back(at(output));
      const auto step = static_cast<int32_t>(s);
      pieces.push_back(Piece{static_cast<size_t>(bytes), step, step, 0});
    }
  }
  const size_t tensors = pieces.size();
  // The file's plan holds for the tensors, if it fits the shapes of this run.
  follows_plan_ = advice_.places.size() == tensors;
  if (follows_plan_) {
    for (const Advice::Place& place : advice_.places) {
      const bool known = place.op >= 0 && place.op <= last_step && place.output >= 0 &&
                         at(place.output) < region_.operators[at(place.op)].outputs.size();
      const int32_t piece = known ? piece_of[at(region_.operators[at(place.op)].outputs[at(place.output)])] : -1;
      if (piece < 0) {
        follows_plan_ = false;
        break;
      }
      pieces[at(piece)].offset = place.offset;
    }
    // A plan that needs more memory than all tensors side by side is none.
    size_t enough = 0;
    for (const Piece& piece : pieces) enough += aligned(piece.bytes);
    follows_plan_ = follows_plan_ && advice_.scratch_bytes <= enough && placed_well(pieces, advice_.scratch_bytes);
  }
  size_t total = follows_plan_ ? advice_.scratch_bytes : place(&pieces);
  for (size_t i = 0; i < tensors; ++i) offsets_[tensor_of[i]] = pieces[i].offset;
  // What kernels need for themselves lies behind; it is needed for one step only.
  size_t own = 0;
  for (Step& step : steps_) {
    if (step.once) continue;
    LITEFUSE_REQUIRE(step.call.scratch_bytes <= kMaxScratch, "%s: it needs too much memory",
                     describe(region_, *step.call.op).c_str());
    step.scratch_offset = aligned(total);
    own = std::max(own, step.call.scratch_bytes);
  }
  scratch_bytes_ = own > 0 ? aligned(total) + own : total;
  LITEFUSE_REQUIRE(scratch_bytes_ <= kMaxScratch, "its intermediates are too large");
  return Status();
}

const Shape& Executor::output_shape(size_t i) const { return shapes_[at(region_.outputs[i])]; }

Status Executor::run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs, void* scratch,
                     Listener* listener) {
  for (size_t i = 0; i < inputs.size(); ++i) data_[at(region_.inputs[i])] = const_cast<void*>(inputs[i]);
  for (size_t i = 0; i < outputs.size(); ++i) data_[at(region_.outputs[i])] = outputs[i];
  char* base = static_cast<char*>(scratch);
  for (size_t t = 0; t < internal_.size(); ++t) {
    if (internal_[t]) data_[t] = base + offsets_[t];
  }
  for (size_t s = 0; s < steps_.size(); ++s) {
    Step& step = steps_[s];
    if (step.once || step.idle) continue;
    Call& call = step.call;
    const Operator& op = *call.op;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] >= 0) call.inputs[i].data = data_[at(op.inputs[i])];
    }
    for (size_t i = 0; i < op.outputs.size(); ++i) call.outputs[i].data = data_[at(op.outputs[i])];
    call.scratch = base + step.scratch_offset;
    const uint32_t handle = listener != nullptr ? listener->begin(name_of(op.kind), op.index) : 0;
    const uint64_t start = profile_ ? now() : 0;
    step.kernel->run(call);
    if (profile_) profile_->add(s, now() - start);
    if (listener != nullptr) listener->end(handle);
  }
  if (profile_) profile_->add_run();
  return Status();
}

}  // namespace litefuse
