// What the executor asks of a kernel, and how kernels are found.
//
// A kernel serves one operator of one region. prepare() is called whenever the shapes of the inputs have become known:
// once when the region is compiled, with the shapes of the file, and again when the runtime has resized something. It
// decides whether the operator can be run at all, so it must look at everything that run() relies on: types, ranks,
// attributes, constants, quantisation. What it accepts, run() computes without failing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "region/region.h"

namespace litefuse {

// A tensor as a kernel sees it.
struct Operand {
  const Tensor* tensor = nullptr;  // type, quantisation, name; nullptr where an optional input is absent
  Shape shape;                     // of this run
  void* data = nullptr;            // in prepare() only those of constants are set

  bool present() const { return tensor != nullptr; }
  bool constant() const { return tensor != nullptr && tensor->constant != nullptr; }
  Type type() const { return tensor ? tensor->type : Type::kNone; }
  const Quantization& quantization() const { return tensor->quantization; }
  int64_t elements() const { return shape.elements(); }

  template <typename T>
  const T* get() const {
    return static_cast<const T*>(data);
  }
  template <typename T>
  T* mutable_get() const {
    return static_cast<T*>(data);
  }
};

// One operator with its operands.
class Call {
 public:
  const Operator* op = nullptr;
  std::vector<Operand> inputs;   // as many as the operator lists; absent ones have no tensor
  std::vector<Operand> outputs;  // prepare() sets their shapes
  // Bytes that run() needs besides, 64-byte aligned; prepare() sets the size.
  size_t scratch_bytes = 0;
  void* scratch = nullptr;

  // Whether input i is there.
  bool has(size_t i) const { return i < inputs.size() && inputs[i].present(); }

  // The parameters; those of a default-constructed P when the operator came without any.
  template <typename P>
  P params() const {
    const P* found = std::get_if<P>(&op->params);
    return found ? *found : P();
  }
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Sets the outputs' shapes and scratch_bytes, or refuses with a reason. May be called any number of times.
  virtual Status prepare(Call& call) = 0;
  // Computes the outputs. The shapes are those of the last prepare(). Neither fails nor allocates. No output overlaps
  // an input.
  virtual void run(const Call& call) const = 0;
};

using MakeKernel = std::unique_ptr<Kernel> (*)();

// Whether an operator only moves elements: its reference kernel is as fast as any.
bool only_moves(Kind kind);

// The reference kernel of an operator; nullptr when there is none.
MakeKernel reference_kernel(Kind kind);

}  // namespace litefuse
