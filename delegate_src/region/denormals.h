// Numbers below the smallest normal one count as zero while one of these lives, in the thread that made it.
//
// Processors take a hundred cycles and more for an operation with such a number, so that the time of a model would depend
// on what it is given. XNNPACK's operators do the same.
#pragma once

#include <cstdint>

#if defined(__SSE__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace litefuse {

class FlushDenormals {
 public:
  FlushDenormals() : before_(get()) {
    if ((before_ & kFlush) != kFlush) set(before_ | kFlush);
  }
  ~FlushDenormals() {
    if ((before_ & kFlush) != kFlush) set(before_);
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__SSE__) || defined(_M_X64)
  using Control = unsigned int;
  static constexpr Control kFlush = 0x8040;  // results (FTZ) and operands (DAZ)
  static Control get() { return _mm_getcsr(); }
  static void set(Control control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static constexpr Control kFlush = 1 << 24;  // FZ
  static Control get() {
    Control control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void set(Control control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
  // NEON on 32-bit Arm always does, plain code has no such switch.
  using Control = int;
  static constexpr Control kFlush = 0;
  static Control get() { return 0; }
  static void set(Control) {}
#endif

  Control before_;
};

}  // namespace litefuse
