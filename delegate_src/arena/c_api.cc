// packing.h as C functions, for litefuse/arena/_native.py.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "packing.h"

#if defined(_WIN32)
#define LITEFUSE_EXPORT extern "C" __declspec(dllexport)
#else
#define LITEFUSE_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

using litefuse::arena::Buffer;
using litefuse::arena::Outcome;

struct Search {
  Search(const std::vector<Buffer>& buffers, int64_t capacity) : packer(buffers, capacity) {}
  litefuse::arena::Packer packer;
  std::atomic<bool> stopped{false};
};

void tell(const std::exception& error, char* text, size_t size) { std::snprintf(text, size, "%s", error.what()); }

}  // namespace

// `rows` holds lower, upper and size of each buffer. NULL, with the reason in `text`, for buffers that packing.h refuses.
LITEFUSE_EXPORT void* litefuse_packer_create(const int64_t* rows, int64_t count, int64_t capacity, char* text,
                                             size_t size) {
  try {
    std::vector<Buffer> buffers;
    for (int64_t i = 0; i < count; ++i) buffers.push_back({rows[3 * i], rows[3 * i + 1], rows[3 * i + 2]});
    return new Search(buffers, capacity);
  } catch (const std::exception& error) {
    tell(error, text, size);
    return nullptr;
  }
}

LITEFUSE_EXPORT void litefuse_packer_destroy(void* search) { delete static_cast<Search*>(search); }

// 0 found, 1 infeasible, 2 out of nodes or time, 3 stopped; -1 for a failure, with the reason in `text`.
LITEFUSE_EXPORT int litefuse_packer_run(void* search, int64_t nodes, double seconds, char* text, size_t size) {
  auto* self = static_cast<Search*>(search);
  try {
    switch (self->packer.run(nodes, seconds, [self] { return self->stopped.exchange(false); })) {
      case Outcome::kFound:
        return 0;
      case Outcome::kInfeasible:
        return 1;
      case Outcome::kLimit:
        return 2;
      case Outcome::kInterrupted:
        return 3;
    }
    return 2;
  } catch (const std::exception& error) {
    tell(error, text, size);
    return -1;
  }
}

// Ends a run in another thread soon.
LITEFUSE_EXPORT void litefuse_packer_stop(void* search) { static_cast<Search*>(search)->stopped = true; }

// Copies the offsets, one for each buffer, if there are any; returns how many there are.
LITEFUSE_EXPORT int64_t litefuse_packer_offsets(void* search, int64_t* offsets) {
  const std::vector<int64_t>& found = static_cast<Search*>(search)->packer.offsets();
  for (size_t i = 0; i < found.size(); ++i) offsets[i] = found[i];
  return static_cast<int64_t>(found.size());
}

LITEFUSE_EXPORT int64_t litefuse_packer_nodes(void* search) { return static_cast<Search*>(search)->packer.nodes(); }

LITEFUSE_EXPORT int64_t litefuse_packer_max_buffers() { return litefuse::arena::kMaxBuffers; }

LITEFUSE_EXPORT int64_t litefuse_packer_max_total_size() { return litefuse::arena::kMaxTotalSize; }
