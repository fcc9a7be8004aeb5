// Runs a region: section by section in fast pipelines, and in reference kernels what these do not cover.
#pragma once

#include <memory>
#include <vector>

#include "backends/backend.h"
#include "kernels/kernel.h"
#include "region/lowering.h"
#include "region/region.h"
#include "region/scratch.h"

namespace litefuse {

class Executor : public Executable {
 public:
  // Compiles a region for the shapes of the file; refuses it when any operator refuses them. Without `threads` all is
  // done in reference kernels, operator by operator.
  static Status compile(const Region& region, const CompileOptions& options, std::shared_ptr<Threads> threads,
                        std::unique_ptr<Executable>* result);

  Status prepare(const std::vector<Shape>& inputs) override;
  const Shape& output_shape(size_t i) const override;
  size_t scratch_bytes() const override { return scratch_bytes_; }
  bool follows_plan() const override { return follows_plan_; }
  Status run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs, void* scratch,
             Listener* listener) override;
  Profile* profile() const override { return profile_.get(); }
  size_t slow_operators() const override;

 private:
  // The reference kernel of an operator, which also finds shapes and says whether it can be run at all.
  struct Reference {
    Call call;
    std::unique_ptr<Kernel> kernel;
    bool once = false;     // all its inputs are constants, so that it is not run again
    bool put_off = false;  // it has not been run at all: its output is packed from `half`
    bool idle = false;     // its outputs have no elements, so that there is nothing to run
  };
  struct Step {
    Section section;
    size_t scratch_bytes = 0;
    size_t scratch_offset = 0;
  };

  Status build(const Region& region, const CompileOptions& options);
  Status fold_constants();
  Status compute(Reference* reference);
  bool is_packed_only(int32_t tensor) const;
  Status compute_for_references();
  Status divide();
  Status plan_scratch();
  bool place_as_told(const std::vector<int32_t>& piece_of, std::vector<Piece>* pieces) const;
  void run_reference(Reference& reference, void* scratch);

  Region region_;
  Advice advice_;
  int strip_ = 0;
  std::shared_ptr<Threads> threads_;
  std::vector<Reference> references_;  // of each operator
  std::vector<Step> steps_;
  std::vector<Shape> shapes_;                      // of every tensor
  std::vector<Shape> divided_for_;                 // those for which the steps were made
  std::vector<void*> data_;                        // of every tensor; set for constants, else for the time of a run
  std::vector<size_t> offsets_;                    // of intermediates in scratch memory
  std::vector<bool> internal_;                     // whether a tensor is computed here and nothing that is asked for
  std::vector<bool> stored_;                       // whether it lies in scratch memory
  std::vector<std::unique_ptr<char[]>> computed_;  // constants that operators computed
  std::vector<const float*> from_;                 // room for a pipeline's inputs and outputs
  std::vector<float*> to_;
  size_t scratch_bytes_ = 0;
  bool follows_plan_ = false;
  std::unique_ptr<Profile> profile_;
};

}  // namespace litefuse
