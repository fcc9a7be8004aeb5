// The reference executor: runs any region operator by operator in scratch memory.
#pragma once

#include <memory>
#include <vector>

#include "backends/backend.h"
#include "kernels/kernel.h"
#include "region/region.h"
#include "region/scratch.h"

namespace litefuse {

class Executor : public Executable {
 public:
  // Compiles a region for the shapes of the file; refuses it when any operator refuses them.
  static Status compile(const Region& region, const CompileOptions& options, std::unique_ptr<Executable>* result);

  Status prepare(const std::vector<Shape>& inputs) override;
  const Shape& output_shape(size_t i) const override;
  size_t scratch_bytes() const override { return scratch_bytes_; }
  bool follows_plan() const override { return follows_plan_; }
  Status run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs, void* scratch,
             Listener* listener) override;
  Profile* profile() const override { return profile_.get(); }

 private:
  struct Step {
    Call call;
    std::unique_ptr<Kernel> kernel;
    size_t scratch_offset = 0;
    bool once = false;  // all its inputs are constants, so that it was run when the region was compiled
    bool idle = false;  // its outputs have no elements, so that there is nothing to run
  };

  Status build(const Region& region, const CompileOptions& options);
  Status fold_constants();
  Status plan_scratch();

  Region region_;
  Advice advice_;
  std::vector<Step> steps_;
  std::vector<Shape> shapes_;                      // of every tensor
  std::vector<void*> data_;                        // of every tensor; set for constants, else for the time of a run
  std::vector<size_t> offsets_;                    // of intermediates in scratch memory
  std::vector<bool> internal_;                     // whether a tensor lies in scratch memory
  std::vector<std::unique_ptr<char[]>> computed_;  // constants that operators computed
  size_t scratch_bytes_ = 0;
  bool follows_plan_ = false;
  std::unique_ptr<Profile> profile_;
};

}  // namespace litefuse
