#include "region/region.h"

namespace litefuse {
namespace {

bool within(int32_t index, size_t size) { return index >= 0 && static_cast<size_t>(index) < size; }

}  // namespace

Status check_structure(const Region& region) {
  const size_t count = region.tensors.size();
  LITEFUSE_REQUIRE(!region.operators.empty(), "it has no operators");
  LITEFUSE_REQUIRE(!region.outputs.empty(), "it has no outputs");
  enum class State : uint8_t { kUnknown, kKnown, kComputed, kGivenAway };
  std::vector<State> states(count, State::kUnknown);
  for (size_t i = 0; i < count; ++i) {
    const Tensor& tensor = region.tensors[i];
    if (tensor.constant != nullptr) states[i] = State::kKnown;
    LITEFUSE_REQUIRE(tensor.sparsity == nullptr || tensor.constant != nullptr, "tensor `%s` is sparse and not constant",
                     tensor.name.c_str());
  }
  for (int32_t input : region.inputs) {
    LITEFUSE_REQUIRE(within(input, count), "input %d is no tensor", input);
    auto& state = states[static_cast<size_t>(input)];
    LITEFUSE_REQUIRE(state == State::kUnknown, "input `%s` is listed twice or is a constant",
                     region.tensors[static_cast<size_t>(input)].name.c_str());
    state = State::kKnown;
  }
  for (const Operator& op : region.operators) {
    for (int32_t input : op.inputs) {
      if (input == -1) continue;
      LITEFUSE_REQUIRE(within(input, count), "%s: input %d is no tensor", describe(region, op).c_str(), input);
      LITEFUSE_REQUIRE(states[static_cast<size_t>(input)] != State::kUnknown,
                       "%s: its input `%s` is computed by nothing", describe(region, op).c_str(),
                       region.tensors[static_cast<size_t>(input)].name.c_str());
      LITEFUSE_REQUIRE(region.tensors[static_cast<size_t>(input)].sparsity == nullptr || op.kind == Kind::kDensify,
                       "%s: its input `%s` is sparse, which only DENSIFY reads", describe(region, op).c_str(),
                       region.tensors[static_cast<size_t>(input)].name.c_str());
    }
    LITEFUSE_REQUIRE(!op.outputs.empty(), "%s: it has no outputs", describe(region, op).c_str());
    for (int32_t output : op.outputs) {
      LITEFUSE_REQUIRE(within(output, count), "%s: output %d is no tensor", describe(region, op).c_str(), output);
      auto& state = states[static_cast<size_t>(output)];
      LITEFUSE_REQUIRE(state == State::kUnknown, "%s: its output `%s` has a value already",
                       describe(region, op).c_str(), region.tensors[static_cast<size_t>(output)].name.c_str());
      state = State::kComputed;
    }
  }
  for (int32_t output : region.outputs) {
    LITEFUSE_REQUIRE(within(output, count), "output %d is no tensor", output);
    auto& state = states[static_cast<size_t>(output)];
    LITEFUSE_REQUIRE(state == State::kComputed, "output `%s` is listed twice or computed by nothing",
                     region.tensors[static_cast<size_t>(output)].name.c_str());
    state = State::kGivenAway;
  }
  return Status();
}

std::string describe(const Region& region, const Operator& op) {
  const char* kind = name_of(op.kind);
  std::string text = kind != nullptr ? kind : "operator of kind " + std::to_string(static_cast<int>(op.kind));
  if (op.index >= 0) text += " #" + std::to_string(op.index);
  if (!op.outputs.empty() && within(op.outputs[0], region.tensors.size())) {
    text += " `" + region.tensors[static_cast<size_t>(op.outputs[0])].name + "`";
  }
  return text;
}

}  // namespace litefuse
