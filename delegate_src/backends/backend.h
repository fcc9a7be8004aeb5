// What runs regions. A backend compiles a region into an executable or refuses it with a reason; what it refuses stays
// with the runtime. The CPU is one backend (backends/cpu), and the only one so far.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "region/profile.h"
#include "region/region.h"

namespace litefuse {

// What the file says about how a region is to be run. It is a hint: none of it is believed unseen.
struct Advice {
  // Offsets of intermediates in the region's scratch memory, by the position of the operator that computes the tensor
  // and the number of its output; empty when there is no plan.
  struct Place {
    int32_t op = 0;
    int32_t output = 0;
    size_t offset = 0;
  };
  std::vector<Place> places;
  size_t scratch_bytes = 0;
  bool winograd = true;  // whether Winograd's algorithm may be used, whose error is larger
};

struct CompileOptions {
  int threads = 1;
  bool profile = false;
  int strip = 0;  // the height of strips, for tests; 0 for what suits the caches
  Advice advice;
};

// A compiled region. Used by one thread at a time.
class Executable {
 public:
  virtual ~Executable() = default;

  // Tells the shapes of the inputs, in the region's order. Must be called, with success, before run() and whenever they
  // have changed.
  virtual Status prepare(const std::vector<Shape>& inputs) = 0;
  // The shape of an output for these inputs.
  virtual const Shape& output_shape(size_t i) const = 0;
  // Scratch memory that run() needs, in bytes.
  virtual size_t scratch_bytes() const = 0;
  // Whether the plan of the file was followed in the last prepare(), or nothing that it places had to lie anywhere and
  // its memory was enough.
  virtual bool follows_plan() const = 0;
  // `scratch` is aligned to kAlignment. No output overlaps an input.
  virtual Status run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs, void* scratch,
                     Listener* listener) = 0;
  // Operators for which there is no fast kernel with these shapes.
  virtual size_t slow_operators() const { return 0; }
  // Nullptr unless compiled with `profile`.
  virtual Profile* profile() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  // What it runs on, such as "AVX2", for messages.
  virtual std::string description() const = 0;
  // The region is copied; its constants must outlive the executable.
  virtual Status compile(const Region& region, const CompileOptions& options, std::unique_ptr<Executable>* result) = 0;
};

// The backend of this name; nullptr when there is none.
std::unique_ptr<Backend> make_backend(const std::string& name);

}  // namespace litefuse
