// Puts units into phases one after the other: each as long as what it needs fits to what is there.
#include "region/phases.h"

#include <functional>
#include <utility>

namespace litefuse {
namespace {

bool same_pixels(const Image& a, const Image& b) {
  return a.batch == b.batch && a.height == b.height && a.width == b.width;
}

// Units in an order in which they can run: one that took operators far behind its root may have to wait.
std::vector<Unit> order(std::vector<Unit> units, size_t tensors) {
  std::vector<int32_t> maker(tensors, -1);
  for (size_t u = 0; u < units.size(); ++u) {
    for (int32_t t : units[u].outputs) maker[at(t)] = static_cast<int32_t>(u);
  }
  std::vector<Unit> result;
  std::vector<char> state(units.size(), 0);
  std::function<void(size_t)> visit = [&](size_t u) {
    if (state[u] != 0) return;
    state[u] = 1;
    for (int32_t t : units[u].inputs) {
      if (maker[at(t)] >= 0) visit(at(maker[at(t)]));
    }
    result.push_back(std::move(units[u]));
  };
  for (size_t u = 0; u < units.size(); ++u) visit(u);
  return result;
}

class Divider {
 public:
  Divider(const Region& region, const std::vector<Shape>& shapes) : region_(region), shapes_(shapes) {
    made_.images.resize(region.tensors.size());
    made_.escapes.assign(region.tensors.size(), false);
    dense_.assign(region.tensors.size(), true);
    made_in_.assign(region.tensors.size(), -1);
  }

  Phases divide(std::vector<Unit> units) {
    for (Unit& unit : order(std::move(units), region_.tensors.size())) {
      if (place(unit)) continue;
      // Its single operators go in its place, to be run by their reference kernels.
      for (int32_t i : unit.operators) {
        Unit part = single(region_, i);
        place(part);
      }
    }
    find_escapes();
    for (Phase& phase : made_.all) find_flat(&phase);
    return std::move(made_);
  }

 private:
  // Puts a unit into the last phase or a new one, and takes it away; false where it fits to none.
  bool place(Unit& unit) {
    std::vector<Phase>& phases = made_.all;
    const bool other = unit.type == Unit::Type::kOther;
    Image result;
    const bool joins = !other && !phases.empty() && !phases.back().other && fits(unit, &result);
    if (!joins) {
      phases.emplace_back();
      phases.back().other = other;
      if (!other && !fits(unit, &result)) {
        phases.pop_back();
        return false;
      }
    }
    for (int32_t t : unit.outputs) {
      made_in_[at(t)] = last();
      made_.images[at(t)] = result;
      if (unit.type == Unit::Type::kSplit) made_.images[at(t)].channels = shapes_[at(t)].last(0);
      if (!unit.strides.empty()) dense_[at(t)] = unit.strides.back().dense();
    }
    phases.back().units.push_back(std::move(unit));
    return true;
  }

  int32_t last() const { return static_cast<int32_t>(made_.all.size()) - 1; }
  bool is_inside(int32_t t) const { return made_in_[at(t)] == last(); }

  // Whether a unit can be a part of the last phase; the image of its result.
  bool fits(const Unit& unit, Image* result) const {
    *result = unit.result;
    if (unit.inherits) {
      for (size_t i = 0; i < unit.inputs.size(); ++i) {
        if (!is_inside(unit.inputs[i]) || is_fixed(unit.stretches[i])) continue;
        *result = made_.images[at(unit.inputs[i])];
        result->channels = unit.result.channels;
        break;
      }
      if (result->elements() != unit.result.elements()) return false;
    }
    // All outputs of a pipeline are of the same batch.
    const std::vector<Unit>& others = made_.all.back().units;
    if (!others.empty() && made_.images[at(others[0].outputs[0])].batch != result->batch) return false;
    for (size_t i = 0; i < unit.inputs.size(); ++i) {
      if (!fits(unit, i, *result)) return false;
    }
    return true;
  }

  // Whether an input is, or can be seen as, the image that a unit wants.
  bool fits(const Unit& unit, size_t i, const Image& result) const {
    const int32_t t = unit.inputs[i];
    const Image &is = made_.images[at(t)], &wanted = unit.wants[i];
    const bool any = any_image(wanted);
    // What does not lie row by row is there only when all of it is.
    const bool apart = is_shared(wanted) || (i < unit.strides.size() && !unit.strides[i].dense()) || !dense_[at(t)];
    if (is_inside(t) && apart) return false;
    if (is_fixed(unit.stretches[i])) {
      return is_inside(t) ? is.height == 1 && is.width == 1 : wanted.batch <= 1 || wanted.batch == result.batch;
    }
    Image want = any ? result : wanted;
    if (is_shared(wanted) || (!is_inside(t) && want.batch == 1)) {
      want.batch = 1;
      return want.pixels() * channels_of(unit, i, shapes_[at(t)]) == shapes_[at(t)].elements();
    }
    if (is_inside(t)) {
      if (any ? !same_pixels(is, want) : is != want) return false;
    } else if (want.pixels() * channels_of(unit, i, shapes_[at(t)]) != shapes_[at(t)].elements()) {
      return false;
    }
    return want.batch == result.batch;
  }

  void find_escapes() {
    for (int32_t t : region_.outputs) made_.escapes[at(t)] = true;
    for (size_t p = 0; p < made_.all.size(); ++p) {
      for (const Unit& unit : made_.all[p].units) {
        for (int32_t t : unit.inputs) {
          const int32_t from = made_in_[at(t)];
          if (from >= 0 && from != static_cast<int32_t>(p)) made_.escapes[at(t)] = true;
        }
      }
    }
  }

  static void find_flat(Phase* phase) {
    phase->flat = phase->flat_batch = true;
    for (const Unit& unit : phase->units) {
      phase->flat = phase->flat && unit.local;
      for (const Image& want : unit.wants) {
        phase->flat_batch = phase->flat_batch && want.batch <= 1 && !is_shared(want);
      }
    }
    phase->flat_batch = phase->flat_batch && phase->flat;
  }

  const Region& region_;
  const std::vector<Shape>& shapes_;
  Phases made_;
  std::vector<int32_t> made_in_;  // of tensors, the phase that computes them; -1
  std::vector<bool> dense_;       // tensors in which images lie row by row
};

}  // namespace

std::vector<int> Phases::uses(const Phase& phase) const {
  std::vector<int> uses(images.size(), 0);
  for (const Unit& unit : phase.units) {
    for (int32_t t : unit.inputs) ++uses[at(t)];
  }
  for (size_t u = phase.units.size(); u-- > 0;) {
    const Unit& unit = phase.units[u];
    if (is_view(unit)) uses[at(unit.inputs[0])] += uses[at(unit.outputs[0])] - 1;
  }
  for (const Unit& unit : phase.units) {
    if (is_view(unit)) uses[at(unit.outputs[0])] = uses[at(unit.inputs[0])];
  }
  return uses;
}

Phases divide(const Region& region, const std::vector<Shape>& shapes, std::vector<Unit> units) {
  return Divider(region, shapes).divide(std::move(units));
}

}  // namespace litefuse
