// The Python module litefuse.arena._native: packing.h for Python.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "packing.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace litefuse::arena {
namespace {

using Row = std::tuple<int64_t, int64_t, int64_t>;  // lower, upper, size

std::vector<Buffer> to_buffers(const std::vector<Row>& rows) {
  std::vector<Buffer> buffers;
  buffers.reserve(rows.size());
  for (const auto& [lower, upper, size] : rows) buffers.push_back({lower, upper, size});
  return buffers;
}

const char* name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kFound:
      return "found";
    case Outcome::kInfeasible:
      return "infeasible";
    case Outcome::kLimit:
    case Outcome::kInterrupted:
      return "limit";
  }
  return "limit";
}

// A Packer that Python may share between threads: one runs at a time.
class PyPacker {
 public:
  PyPacker(const std::vector<Row>& rows, int64_t capacity) : packer_(to_buffers(rows), capacity) {}

  const char* run(int64_t nodes, double seconds) {
    refuse_if_running();
    running_ = true;
    Outcome outcome = Outcome::kLimit;
    std::string failure;
    {
      nb::gil_scoped_release release;
      const auto interrupted = [] {
        nb::gil_scoped_acquire acquire;
        return PyErr_CheckSignals() != 0;
      };
      try {
        outcome = packer_.run(nodes, seconds, interrupted);
      } catch (const std::exception& error) {
        failure = error.what();
      }
    }
    running_ = false;
    if (outcome == Outcome::kInterrupted) throw nb::python_error();
    if (!failure.empty()) throw std::runtime_error(failure);
    return name(outcome);
  }

  const std::vector<int64_t>& offsets() const {
    refuse_if_running();
    return packer_.offsets();
  }
  int64_t nodes() const {
    refuse_if_running();
    return packer_.nodes();
  }

 private:
  void refuse_if_running() const {
    if (running_) throw std::runtime_error("the packer is running in another thread");
  }

  Packer packer_;
  bool running_ = false;  // guarded by the GIL
};

}  // namespace
}  // namespace litefuse::arena

NB_MODULE(_native, m) {
  using litefuse::arena::PyPacker;
  using litefuse::arena::Row;
  m.doc() = "Exact search for packings of buffers with known lifetimes; use litefuse.arena.packing.";
  m.attr("MAX_BUFFERS") = litefuse::arena::kMaxBuffers;
  m.attr("MAX_TOTAL_SIZE") = litefuse::arena::kMaxTotalSize;
  nb::class_<PyPacker>(m, "Packer")
      .def(nb::init<const std::vector<Row>&, int64_t>(), "buffers"_a, "capacity"_a,
           "Takes (lower, upper, size) of each buffer. Raises ValueError for a lifetime that is empty, a negative size, "
           "more than MAX_BUFFERS buffers or sizes whose sum is larger than MAX_TOTAL_SIZE.")
      .def("run", &PyPacker::run, "nodes"_a, "seconds"_a,
           "Searches for at most so many decisions and seconds; can be called again to go on. Returns \"found\", "
           "\"infeasible\" (proved) or \"limit\".")
      .def_prop_ro("offsets", &PyPacker::offsets, "One offset for each buffer once run() has returned \"found\".")
      .def_prop_ro("nodes", &PyPacker::nodes, "Decisions made so far.");
}
