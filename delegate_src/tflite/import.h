// Reads operators of a runtime's graph into a Region.
#pragma once

#include <vector>

#include "region/region.h"
#include "tflite/abi.h"

namespace litefuse {

// Reads the operators at `nodes` (in that order) with their tensors. `inputs` and `outputs` are tensors of the graph;
// they become the region's in the same order. Refuses operators, types and sizes that regions do not know. Constants
// are referred to, not copied.
Status import_region(abi::Context* context, const std::vector<int>& nodes, const std::vector<int>& inputs,
                     const std::vector<int>& outputs, Region* region);

// The elements of an array of the runtime; none for nullptr.
std::vector<int> elements_of(const abi::IntArray* array);

}  // namespace litefuse
