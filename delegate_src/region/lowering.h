// From the operators of a region to what runs them: pipelines of fast stages where these cover them, else the reference
// kernels one by one.
#pragma once

#include <memory>
#include <vector>

#include "region/region.h"
#include "region/strips.h"

namespace litefuse {

// Some operators of a region that run as one.
struct Section {
  std::vector<int32_t> operators;      // positions; the last one computes an output of the section
  std::vector<int32_t> inputs;         // tensors that it reads, constants among them
  std::vector<int32_t> outputs;        // tensors that others need
  std::unique_ptr<Pipeline> pipeline;  // nullptr: the only operator runs in its reference kernel
};

struct LoweringOptions {
  int threads = 1;
  bool winograd = true;  // Winograd's algorithm may be used, with its larger error
  int32_t strip = 0;     // for tests: the height of strips, unless 0
};

// Divides the operators of a region into sections, in an order in which they can run. Operators in `done` have been
// computed already. `shapes` are those of all tensors.
Status lower(const Region& region, const std::vector<Shape>& shapes, const std::vector<bool>& done,
             const LoweringOptions& options, std::vector<Section>* sections);

}  // namespace litefuse
