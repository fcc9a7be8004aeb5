#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again.
#include <hwy/highway.h>

#include "kernels/simd/simd.h"

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace litefuse {

HWY_EXPORT(target_name);

std::string simd_name() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

namespace {

// The first line of a file of a few bytes, as Linux gives them below /sys; empty if there is none.
struct Line {
  char text[32] = {};
};

Line read_line(int index, const char* name) {
  char path[96];
  std::snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
  Line line;
  if (std::FILE* file = std::fopen(path, "re")) {
    if (std::fgets(line.text, sizeof(line.text), file) == nullptr) line.text[0] = 0;
    std::fclose(file);
  }
  return line;
}

// "512K", "32768K" or "8M" in bytes; 0 if it is something else.
size_t parse_size(const Line& line) {
  size_t size = 0;
  const char* p = line.text;
  for (; *p >= '0' && *p <= '9' && size < (size_t{1} << 30); ++p) size = size * 10 + static_cast<size_t>(*p - '0');
  if (*p == 'K') return size << 10;
  if (*p == 'M') return size << 20;
  return size;
}

size_t from_sysconf(int level) {
  long size = 0;
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  size = sysconf(level == 1 ? _SC_LEVEL1_DCACHE_SIZE : level == 2 ? _SC_LEVEL2_CACHE_SIZE : _SC_LEVEL3_CACHE_SIZE);
#endif
  (void)level;
  return size > 0 ? static_cast<size_t>(size) : 0;
}

// Sizes out of these bounds are taken for nonsense: some virtual machines and kernels make them up.
void take(size_t size, size_t least, size_t most, size_t* to) {
  if (size >= least && size <= most) *to = size;
}

Caches read_caches() {
  size_t size[4] = {};
  for (int level = 1; level <= 3; ++level) size[level] = from_sysconf(level);
  // The C library knows nothing on Arm, where the kernel does if the firmware describes the caches.
  for (int index = 0; index < 8; ++index) {
    const char level = read_line(index, "level").text[0];
    if (level < '1' || level > '3') continue;
    if (std::strncmp(read_line(index, "type").text, "Instruction", 11) == 0) continue;
    size_t& to = size[level - '0'];
    if (to == 0) to = parse_size(read_line(index, "size"));
  }
  Caches caches;
  take(size[1], 4 << 10, 1 << 20, &caches.l1);
  take(size[2], 32 << 10, 64 << 20, &caches.l2);
  take(size[3], 256 << 10, size_t{1} << 30, &caches.l3);
  if (caches.l2 < caches.l1) caches.l2 = caches.l1;
  return caches;
}

}  // namespace

const Caches& caches() {
  static const Caches sizes = read_caches();
  return sizes;
}

}  // namespace litefuse
#endif  // HWY_ONCE
