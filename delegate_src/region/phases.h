// From units to phases: which units run together as one pipeline, in which order, which image each tensor is there, and
// which tensors have to be whole because others read them.
#pragma once

#include <vector>

#include "region/units.h"

namespace litefuse {

// Units that become one pipeline.
struct Phase {
  std::vector<Unit> units;
  bool other = false;       // a single one that no stage covers
  bool flat = false;        // all images may be columns of single pixels
  bool flat_batch = false;  // also the images of a batch one behind the other
};

struct Phases {
  std::vector<Phase> all;     // in an order in which they can run
  std::vector<Image> images;  // of tensors that units compute
  std::vector<bool> escapes;  // tensors that are read outside of the phase that computes them

  // Whether a unit only shows what another has computed, so that nothing has to be done.
  bool is_view(const Unit& unit) const { return unit.type == Unit::Type::kView && !escapes[at(unit.outputs[0])]; }
  // How often each tensor is read in a phase, where what is read through a view counts for what the view shows, and the
  // other way round.
  std::vector<int> uses(const Phase& phase) const;
};

// Puts the units of a region into phases.
Phases divide(const Region& region, const std::vector<Shape>& shapes, std::vector<Unit> units);

}  // namespace litefuse
