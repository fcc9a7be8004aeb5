// A plugin for qemu-user (interface version 1, from qemu 6 on): counts the instructions that a program runs between
// marks, and simulates its data accesses in three levels of cache.
//
//   qemu-aarch64 -plugin counts.so,out=FILE[,l1=KB:WAYS][,l2=KB:WAYS][,l3=KB:WAYS][,cache=off] PROGRAM
//
// The program marks with the system call getpriority(99999, tag), which does nothing: a tag above zero begins a
// measurement of that name, each mark ends the one before. For every measurement FILE gets a line of `name=value`.
//
// Caches: lines of 64 bytes, least recently used goes first, written back, allocated on writes, not inclusive, no
// prefetching, addresses as the program sees them. What is in them stays from one measurement to the next, but only
// measurements are simulated. Instruction fetches, prefetch instructions and what system calls touch are left out; so
// are lines zeroed by DC ZVA, which are counted. One thread only: the counters of several would race.
//
// qemu ships no header, so what is used of it is declared here.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t PluginId;
typedef uint32_t MemInfo;
struct qemu_info_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { kInlineAddU64 = 0, kNoRegisters = 0, kReadsAndWrites = 3, kInterface = 1 };

typedef void (*TranslateFn)(PluginId, struct qemu_plugin_tb*);
typedef void (*MemoryFn)(unsigned cpu, MemInfo, uint64_t address, void*);
typedef void (*SyscallFn)(PluginId, unsigned cpu, int64_t number, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                          uint64_t, uint64_t, uint64_t);

extern void qemu_plugin_register_vcpu_tb_trans_cb(PluginId, TranslateFn);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb*, int op, void* counter, uint64_t addend);
extern void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn*, int op, void* counter,
                                                       uint64_t addend);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn*, MemoryFn, int flags, int rw, void*);
extern void qemu_plugin_register_vcpu_syscall_cb(PluginId, SyscallFn);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
extern struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb*, size_t);
extern const void* qemu_plugin_insn_data(const struct qemu_plugin_insn*);
extern size_t qemu_plugin_insn_size(const struct qemu_plugin_insn*);
extern unsigned qemu_plugin_mem_size_shift(MemInfo);
extern bool qemu_plugin_mem_is_store(MemInfo);

EXPORT int qemu_plugin_version = kInterface;

enum { kLevels = 3, kLineBits = 6, kGetPriority = 141, kMark = 99999 };

// A set is a row of `ways` entries, the one used last in front. An entry is the line's number + 1, shifted by one, with
// the dirty bit below; 0 is empty.
typedef struct {
  uint64_t sets, ways;
  uint64_t* entries;
  uint64_t fills, writebacks;
} Cache;

static Cache g_caches[kLevels];
static bool g_simulates = true;
static bool g_running;
static uint64_t g_tag;
static uint64_t g_instructions, g_zeroed;  // since the start
static uint64_t g_instructions_before, g_zeroed_before;
static uint64_t g_read, g_written;  // bytes
static FILE* g_out;

static void touch(int level, uint64_t line, uint64_t dirty) {
  if (level == kLevels) return;
  Cache* cache = &g_caches[level];
  uint64_t* set = cache->entries + (line % cache->sets) * cache->ways;
  const uint64_t wanted = (line + 1) << 1;
  if ((set[0] & ~1ull) == wanted) {
    set[0] |= dirty;
    return;
  }
  uint64_t way = 1;
  while (way < cache->ways && (set[way] & ~1ull) != wanted) ++way;
  const bool hit = way < cache->ways;
  if (!hit) way = cache->ways - 1;
  const uint64_t old = set[way];
  memmove(set + 1, set, way * sizeof *set);
  set[0] = wanted | dirty | (hit ? old & 1 : 0);
  if (hit) return;
  if (old & 1) {
    ++cache->writebacks;
    touch(level + 1, (old >> 1) - 1, 1);
  }
  ++cache->fills;
  touch(level + 1, line, 0);
}

static void on_access(unsigned cpu, MemInfo info, uint64_t address, void* user) {
  (void)cpu;
  (void)user;
  if (!g_running) return;
  const uint64_t size = 1ull << qemu_plugin_mem_size_shift(info);
  const bool store = qemu_plugin_mem_is_store(info);
  *(store ? &g_written : &g_read) += size;
  const uint64_t first = address >> kLineBits, last = (address + size - 1) >> kLineBits;
  touch(0, first, store);
  if (last != first) touch(0, last, store);
}

static bool is_zeroing(const struct qemu_plugin_insn* instruction) {
  uint32_t code;
  if (qemu_plugin_insn_size(instruction) != sizeof code) return false;
  memcpy(&code, qemu_plugin_insn_data(instruction), sizeof code);
  return (code & ~0x1Fu) == 0xD50B7420u;  // DC ZVA, Xt
}

static void on_translation(PluginId id, struct qemu_plugin_tb* block) {
  (void)id;
  const size_t count = qemu_plugin_tb_n_insns(block);
  qemu_plugin_register_vcpu_tb_exec_inline(block, kInlineAddU64, &g_instructions, count);
  if (!g_simulates) return;
  for (size_t i = 0; i < count; ++i) {
    struct qemu_plugin_insn* instruction = qemu_plugin_tb_get_insn(block, i);
    qemu_plugin_register_vcpu_mem_cb(instruction, on_access, kNoRegisters, kReadsAndWrites, NULL);
    if (is_zeroing(instruction)) {
      qemu_plugin_register_vcpu_insn_exec_inline(instruction, kInlineAddU64, &g_zeroed, 1);
    }
  }
}

static void on_mark(PluginId id, unsigned cpu, int64_t number, uint64_t which, uint64_t tag, uint64_t a3, uint64_t a4,
                    uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
  (void)id, (void)cpu, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
  if (number != kGetPriority || (uint32_t)which != kMark) return;
  if (g_running) {
    fprintf(g_out, "tag=%llu instructions=%llu read=%llu written=%llu zeroed=%llu", (unsigned long long)g_tag,
            (unsigned long long)(g_instructions - g_instructions_before), (unsigned long long)g_read,
            (unsigned long long)g_written, (unsigned long long)(g_zeroed - g_zeroed_before) << kLineBits);
    for (int i = 0; i < kLevels; ++i) {
      fprintf(g_out, " fills%d=%llu writebacks%d=%llu", i + 1, (unsigned long long)g_caches[i].fills << kLineBits,
              i + 1, (unsigned long long)g_caches[i].writebacks << kLineBits);
    }
    fprintf(g_out, "\n");
    fflush(g_out);
  }
  for (int i = 0; i < kLevels; ++i) g_caches[i].fills = g_caches[i].writebacks = 0;
  g_read = g_written = 0;
  g_zeroed_before = g_zeroed;
  g_tag = (uint32_t)tag;
  g_running = g_tag != 0;
  g_instructions_before = g_instructions;
}

// `KB:WAYS`. Returns whether it makes whole sets.
static bool make_cache(Cache* cache, const char* text) {
  char* end;
  const uint64_t bytes = strtoull(text, &end, 10) << 10;
  if (*end != ':') return false;
  cache->ways = strtoull(end + 1, &end, 10);
  if (*end != '\0' || cache->ways == 0 || bytes == 0 || bytes % (cache->ways << kLineBits) != 0) return false;
  cache->sets = bytes / (cache->ways << kLineBits);
  free(cache->entries);
  cache->entries = calloc(cache->sets * cache->ways, sizeof *cache->entries);
  return cache->entries != NULL;
}

EXPORT int qemu_plugin_install(PluginId id, const struct qemu_info_t* info, int argc, char** argv) {
  (void)info;
  static const char* const kUsual[kLevels] = {"64:4", "256:8", "2048:16"};
  for (int i = 0; i < kLevels; ++i) make_cache(&g_caches[i], kUsual[i]);
  for (int i = 0; i < argc; ++i) {
    const char* text = argv[i];
    bool good = false;
    if (strncmp(text, "out=", 4) == 0) {
      g_out = fopen(text + 4, "w");
      good = g_out != NULL;
    } else if (strcmp(text, "cache=on") == 0 || strcmp(text, "cache=off") == 0) {
      g_simulates = text[7] == 'n';
      good = true;
    } else if (text[0] == 'l' && text[1] >= '1' && text[1] < '1' + kLevels && text[2] == '=') {
      good = make_cache(&g_caches[text[1] - '1'], text + 3);
    }
    if (!good) {
      fprintf(stderr, "counts: `%s` is no argument that can be used\n", text);
      return 1;
    }
  }
  if (g_out == NULL) g_out = stderr;
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
  qemu_plugin_register_vcpu_syscall_cb(id, on_mark);
  return 0;
}
