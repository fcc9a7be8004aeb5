// Matrices that tests and the benchmark of the kernels turn.
#pragma once

#include <cstdint>

namespace litefuse {

struct TransposeCase {
  const char* name;
  int64_t batch;  // matrices one behind the other
  int64_t rows;
  int64_t columns;
};

// Heads of attention, images with few and with many channels, and matrices whose rows fight for places in the cache.
constexpr TransposeCase kTransposes[] = {
    {"head/196x32", 8, 196, 32},    {"head/32x196", 8, 32, 196},    {"head/128x64", 12, 128, 64},
    {"image/50176x3", 1, 50176, 3}, {"image/3x50176", 1, 3, 50176}, {"image/50176x2", 1, 50176, 2},
    {"image/4x50176", 1, 4, 50176}, {"image/3136x64", 1, 3136, 64}, {"image/64x3136", 1, 64, 3136},
    {"square/512", 1, 512, 512},    {"square/1000", 1, 1000, 1000},
};

}  // namespace litefuse
