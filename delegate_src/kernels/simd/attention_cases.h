// Rows of scores that tests and the benchmark of the kernels run.
#pragma once

#include <cstdint>

namespace litefuse {

struct AttentionCase {
  const char* name;
  int32_t rows;
  int32_t channels;
  bool masked;
};

// A strip of rows for so many tokens.
constexpr AttentionCase kAttentions[] = {
    {"tokens/49", 24, 49, false},         {"tokens/64", 24, 64, false},       {"tokens/128", 24, 128, false},
    {"tokens/196", 24, 196, false},       {"tokens/256", 24, 256, false},     {"tokens/577", 24, 577, false},
    {"tokens+mask/128", 24, 128, true},   {"tokens+mask/256", 24, 256, true}, {"tokens/1024", 24, 1024, false},
    {"tokens+mask/1024", 24, 1024, true},
};

}  // namespace litefuse
