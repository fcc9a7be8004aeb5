#include "kernels/simd/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/elementwise.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace litefuse {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Vectors side by side; one of functions that may call libm.
constexpr size_t kMany = 4;
constexpr size_t kSingle = 1;

// Fewer floats than a vector has, through memory that may be read and written as a whole. The rest is zero.
HWY_INLINE V load_some(D d, const float* x, size_t count) {
  HWY_ALIGN float lanes[hn::MaxLanes(D())] = {};
  for (size_t i = 0; i < count; ++i) lanes[i] = x[i];
  return hn::Load(d, lanes);
}

HWY_INLINE void store_some(D d, V x, float* y, size_t count) {
  HWY_ALIGN float lanes[hn::MaxLanes(D())];
  hn::Store(x, d, lanes);
  for (size_t i = 0; i < count; ++i) y[i] = lanes[i];
}

// An operand of a row: floats, or one float for all.
template <bool kRow>
struct Source {
  static constexpr bool kIsRow = kRow;
  const float* data;
  HWY_INLINE V get(D d, size_t i) const {
    if constexpr (kRow) {
      return hn::LoadU(d, data + i);
    } else {
      return hn::Set(d, *data);
    }
  }
  // Several vectors, or the one for all.
  template <size_t kCount>
  HWY_INLINE auto wide(D d, size_t i) const {
    if constexpr (kRow) {
      Wide<V, kCount> x;
      HWY_UNROLL(4)
      for (size_t k = 0; k < kCount; ++k) x.v[k] = hn::LoadU(d, data + i + k * hn::Lanes(d));
      return x;
    } else {
      return hn::Set(d, *data);
    }
  }
  HWY_INLINE V some(D d, size_t count) const {
    if constexpr (kRow) {
      return load_some(d, data, count);
    } else {
      return hn::Set(d, *data);
    }
  }
};

// y[i] = f(sources[i]...) for i < count. The last vector overlaps the one before; it is read before anything is
// written, since y may be one of the sources.
template <size_t kUnroll, class F, class... Sources>
HWY_INLINE void each_vector(const F& f, float* y, size_t count, const Sources&... sources) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  if (HWY_UNLIKELY(count < lanes)) {
    if (count > 0) store_some(d, f(d, sources.some(d, count)...), y, count);
    return;
  }
  const size_t whole = count / lanes * lanes;  // lanes is a power of two that the compiler knows
  const V last = whole == count ? hn::Zero(d) : f(d, sources.get(d, count - lanes)...);
  size_t i = 0;
  if constexpr (kUnroll > 1 && (Sources::kIsRow || ...)) {
    for (; i + kUnroll * lanes <= whole; i += kUnroll * lanes) {
      const Wide<V, kUnroll> wide = f(d, sources.template wide<kUnroll>(d, i)...);
      HWY_UNROLL(4)
      for (size_t k = 0; k < kUnroll; ++k) hn::StoreU(wide.v[k], d, y + i + k * lanes);
    }
  }
  for (; i < whole; i += lanes) hn::StoreU(f(d, sources.get(d, i)...), d, y + i);
  if (whole != count) hn::StoreU(last, d, y + count - lanes);
}

// ---- Functions of one operand. Each has its parameters and says how many vectors it wants in flight.

struct Clamp {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return clamp_keeping_nan(d, hn::Set(d, a), hn::Set(d, b), x);
  }
};

struct LeakyRelu {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return op::IfThenElse(op::Gt(x, hn::Zero(d)), x, op::Mul(x, hn::Set(d, a)));
  }
};

struct Elu {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return vec_elu(d, x);
  }
};

struct Sigmoid {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return vec_sigmoid(d, x);
  }
};

struct Silu {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return op::Mul(x, vec_sigmoid(d, x));
  }
};

struct Tanh {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return vec_tanh(d, x);
  }
};

struct Gelu {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return op::Mul(x, vec_normal_cdf(d, x));
  }
};

// (1 + tanh(u)) / 2 = sigmoid(2 u), which does not cancel for negative x. For powers of two, 2 u is divided by ln 2.
struct GeluTanh {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    // The limits give 2^-127 and 2^36.
    const T z = clamp_keeping_nan(d, hn::Set(d, -10.03f), hn::Set(d, 6.0f), x);
    // sqrt(8 / pi) / ln 2 and 0.044715 of it
    const T factor = op::MulAdd(op::Mul(z, z), hn::Set(d, 0.102943240f), hn::Set(d, 2.30220820f));
    return op::Mul(x, vec_sigmoid2(d, z, factor));
  }
};

struct QuickGelu {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    const float factor = a * 1.44269504f;  // 1 / ln 2
    const float limit = 127.0f / std::fabs(factor);
    const T z = clamp_keeping_nan(d, hn::Set(d, -limit), hn::Set(d, limit), x);
    return op::Mul(x, vec_sigmoid2(d, z, hn::Set(d, factor)));
  }
};

struct HardSwish {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    const T gate = clamp_keeping_nan(d, hn::Zero(d), hn::Set(d, 6.0f), op::Add(x, hn::Set(d, 3.0f)));
    return op::Mul(x, op::Mul(gate, hn::Set(d, 1.0f / 6.0f)));
  }
};

struct HardSigmoid {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return clamp_keeping_nan(d, hn::Zero(d), hn::Set(d, 1.0f), op::MulAdd(x, hn::Set(d, a), hn::Set(d, b)));
  }
};

// tanh(log(1 + e)) = w / (w + 2) with w = e (e + 2). It is 1 where e = e^20.
struct Mish {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    const auto two = hn::Set(d, 2.0f);
    const T e = vec_exp_bounded(d, min_keeping_nan(d, hn::Set(d, 20.0f), x));
    const T w = op::Mul(e, op::Add(e, two));
    return op::Mul(x, vec_quotient(d, w, op::Add(w, two)));
  }
};

struct Softplus {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return vec_softplus(d, x);
  }
};

struct Exp {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return vec_exp(d, x);
  }
};

struct Log {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return vec_log(d, x);
  }
};

struct Sqrt {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D, T x) const {
    return op::Sqrt(x);
  }
};

struct Rsqrt {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return vec_rsqrt(d, x);
  }
};

struct Square {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D, T x) const {
    return op::Mul(x, x);
  }
};

struct Abs {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D, T x) const {
    return op::Abs(x);
  }
};

struct Neg {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D, T x) const {
    return op::Neg(x);
  }
};

// 1 and -1; zeros of both signs give 0, a NaN stays.
struct Sign {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    const auto zero = hn::Zero(d);
    const auto one = hn::Set(d, 1.0f);
    const T y = op::IfThenElse(op::Gt(x, zero), one, op::IfThenElse(op::Lt(x, zero), op::Neg(one), x));
    return op::IfThenElse(op::Eq(x, zero), zero, y);
  }
};

// Zeros keep their sign with one instruction of the processor, but not as Highway makes up for it.
template <class T>
HWY_INLINE T with_sign_of(T y, T x) {
  return kFused ? y : op::CopySign(y, x);
}

struct Floor {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D, T x) const {
    return with_sign_of(op::Floor(x), x);
  }
};

struct Ceil {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D, T x) const {
    return with_sign_of(op::Ceil(x), x);
  }
};

struct Round {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D, T x) const {
    return with_sign_of(op::Round(x), x);
  }
};

struct Sin {
  static constexpr size_t kUnroll = kSingle;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return vec_sin(d, x);
  }
};

struct Cos {
  static constexpr size_t kUnroll = kSingle;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return vec_cos(d, x);
  }
};

struct Affine {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return op::MulAdd(x, hn::Set(d, a), hn::Set(d, b));
  }
};

struct Reciprocal {
  static constexpr size_t kUnroll = kMany;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return op::Div(hn::Set(d, a), x);
  }
};

struct Power {
  static constexpr size_t kUnroll = kSingle;
  float a, b;
  template <class T>
  HWY_INLINE T operator()(D d, T x) const {
    return vec_pow(d, x, hn::Set(d, a));
  }
};

template <class F>
void run_unary(float a, float b, const float* x, float* y, size_t count) {
  each_vector<F::kUnroll>(F{a, b}, y, count, Source<true>{x});
}

void unary(Unary f, float a, float b, const float* x, float* y, size_t count) {
  switch (f) {
    case Unary::kClamp:
      return run_unary<Clamp>(a, b, x, y, count);
    case Unary::kLeakyRelu:
      return run_unary<LeakyRelu>(a, b, x, y, count);
    case Unary::kElu:
      return run_unary<Elu>(a, b, x, y, count);
    case Unary::kSigmoid:
      return run_unary<Sigmoid>(a, b, x, y, count);
    case Unary::kSilu:
      return run_unary<Silu>(a, b, x, y, count);
    case Unary::kTanh:
      return run_unary<Tanh>(a, b, x, y, count);
    case Unary::kGelu:
      return run_unary<Gelu>(a, b, x, y, count);
    case Unary::kGeluTanh:
      return run_unary<GeluTanh>(a, b, x, y, count);
    case Unary::kQuickGelu:
      return run_unary<QuickGelu>(a, b, x, y, count);
    case Unary::kHardSwish:
      return run_unary<HardSwish>(a, b, x, y, count);
    case Unary::kHardSigmoid:
      return run_unary<HardSigmoid>(a, b, x, y, count);
    case Unary::kMish:
      return run_unary<Mish>(a, b, x, y, count);
    case Unary::kSoftplus:
      return run_unary<Softplus>(a, b, x, y, count);
    case Unary::kExp:
      return run_unary<Exp>(a, b, x, y, count);
    case Unary::kLog:
      return run_unary<Log>(a, b, x, y, count);
    case Unary::kSqrt:
      return run_unary<Sqrt>(a, b, x, y, count);
    case Unary::kRsqrt:
      return run_unary<Rsqrt>(a, b, x, y, count);
    case Unary::kSquare:
      return run_unary<Square>(a, b, x, y, count);
    case Unary::kAbs:
      return run_unary<Abs>(a, b, x, y, count);
    case Unary::kNeg:
      return run_unary<Neg>(a, b, x, y, count);
    case Unary::kSign:
      return run_unary<Sign>(a, b, x, y, count);
    case Unary::kFloor:
      return run_unary<Floor>(a, b, x, y, count);
    case Unary::kCeil:
      return run_unary<Ceil>(a, b, x, y, count);
    case Unary::kRound:
      return run_unary<Round>(a, b, x, y, count);
    case Unary::kSin:
      return run_unary<Sin>(a, b, x, y, count);
    case Unary::kCos:
      return run_unary<Cos>(a, b, x, y, count);
    case Unary::kAffine:
      return run_unary<Affine>(a, b, x, y, count);
    case Unary::kReciprocal:
      return run_unary<Reciprocal>(a, b, x, y, count);
    case Unary::kPower:
      // Those of which the product, and the quotient, are what the function of libm gives.
      if (a == 1.0f) return run_unary<Affine>(1.0f, -0.0f, x, y, count);
      if (a == 2.0f) return run_unary<Square>(a, b, x, y, count);
      if (a == -1.0f) return run_unary<Reciprocal>(1.0f, b, x, y, count);
      return run_unary<Power>(a, b, x, y, count);
  }
}

// ---- Functions of several operands

// At most so many floats of an operand that is repeated are laid out for rows of several pixels.
constexpr size_t kRepeated = 512;
constexpr size_t kFewChannels = 128;
// Below this, one float for each pixel is worth being laid out too.
constexpr size_t kVeryFewChannels = 32;

// Cuts a block into rows, as long as possible, and calls row(p, kinds, y, count) for each: p are where the operands of
// the row begin, bit i of kinds says whether the operand has a float for each of y, or one for all.
template <size_t kCount, class Row>
HWY_INLINE void for_rows(const Block& block, const BlockOperand (&given)[kCount], float* y, ptrdiff_t y_pixel,
                         const Row& row) {
  if (block.pixels <= 0 || block.channels <= 0) return;
  const auto pixels = static_cast<size_t>(block.pixels);
  const auto channels = static_cast<size_t>(block.channels);
  const auto dense = static_cast<ptrdiff_t>(channels);

  BlockOperand operands[kCount];
  bool flat = pixels == 1 || y_pixel == dense;
  bool repeated_channels = false, repeated_pixels = false;
  for (size_t i = 0; i < kCount; ++i) {
    BlockOperand& x = operands[i];
    x = given[i];
    if (x.stretch == Stretch::kChannel && channels == 1) x.stretch = Stretch::kScalar;
    if (x.stretch == Stretch::kChannel && pixels == 1) x.stretch = Stretch::kNone;
    if (x.stretch == Stretch::kPixel && pixels == 1) x.stretch = Stretch::kScalar;
    if (x.stretch == Stretch::kPixel && channels == 1) x.stretch = Stretch::kNone;
    if (x.stretch == Stretch::kNone) flat = flat && (pixels == 1 || x.pixel == dense);
    repeated_channels = repeated_channels || x.stretch == Stretch::kChannel;
    repeated_pixels = repeated_pixels || x.stretch == Stretch::kPixel;
  }

  size_t group = 1;  // pixels of a row
  if (flat && !repeated_channels && !repeated_pixels) {
    group = pixels;
  } else if (flat && channels <= (repeated_pixels ? kVeryFewChannels : kFewChannels)) {
    group = std::min(pixels, kRepeated / channels);
  }

  const D d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float repeated[kCount][kRepeated + hn::MaxLanes(D())];
  const float* p[kCount];
  unsigned kinds = 0;
  for (size_t i = 0; i < kCount; ++i) {
    const BlockOperand& x = operands[i];
    p[i] = x.data;
    const bool laid_out = group > 1 && (x.stretch == Stretch::kChannel || x.stretch == Stretch::kPixel);
    if (x.stretch == Stretch::kNone || x.stretch == Stretch::kChannel || laid_out) kinds |= 1u << i;
    if (!laid_out) continue;
    p[i] = repeated[i];
    if (x.stretch == Stretch::kPixel) continue;
    for (size_t k = 0; k < channels; ++k) repeated[i][k] = x.data[k];
    // What is there already is copied behind itself.
    for (size_t have = channels; have < group * channels;) {
      const size_t more = std::min(have, group * channels - have);
      std::memcpy(repeated[i] + have, repeated[i], more * sizeof(float));
      have += more;
    }
  }

  for (size_t first = 0; first < pixels; first += group) {
    const size_t count = std::min(group, pixels - first);
    for (size_t i = 0; i < kCount; ++i) {
      const BlockOperand& x = operands[i];
      const float* here = x.data + static_cast<ptrdiff_t>(first) * x.pixel;
      if (x.stretch == Stretch::kNone) {
        p[i] = here;
      } else if (x.stretch == Stretch::kPixel) {
        if (group == 1) {
          p[i] = here;
          continue;
        }
        float* to = repeated[i];
        for (size_t k = 0; k < count; ++k, here += x.pixel) {
          // Whole vectors, of which the next pixel overwrites what is too much.
          const V value = hn::Set(d, *here);
          for (size_t c = 0; c < channels; c += lanes) hn::StoreU(value, d, to + c);
          to += channels;
        }
      }
    }
    row(p, kinds, y + static_cast<ptrdiff_t>(first) * y_pixel, count * channels);
  }
}

struct Add {
  static constexpr size_t kUnroll = kMany;
  template <class X, class Z>
  HWY_INLINE auto operator()(D, X x, Z z) const {
    return op::Add(x, z);
  }
};

struct Sub {
  static constexpr size_t kUnroll = kMany;
  template <class X, class Z>
  HWY_INLINE auto operator()(D, X x, Z z) const {
    return op::Sub(x, z);
  }
};

struct Mul {
  static constexpr size_t kUnroll = kMany;
  template <class X, class Z>
  HWY_INLINE auto operator()(D, X x, Z z) const {
    return op::Mul(x, z);
  }
};

struct Div {
  static constexpr size_t kUnroll = kMany;
  template <class X, class Z>
  HWY_INLINE auto operator()(D, X x, Z z) const {
    return op::Div(x, z);
  }
};

// As TFLite: x > z ? x : z, which is what one instruction of x86 does.
struct Maximum {
  static constexpr size_t kUnroll = kMany;
  template <class X, class Z>
  HWY_INLINE auto operator()(D, X x, Z z) const {
    if constexpr (HWY_ARCH_X86 && !kEmulated) {
      return op::Max(x, z);
    } else {
      return op::IfThenElse(op::Gt(x, z), x, z);
    }
  }
};

struct Minimum {
  static constexpr size_t kUnroll = kMany;
  template <class X, class Z>
  HWY_INLINE auto operator()(D, X x, Z z) const {
    if constexpr (HWY_ARCH_X86 && !kEmulated) {
      return op::Min(x, z);
    } else {
      return op::IfThenElse(op::Lt(x, z), x, z);
    }
  }
};

struct SquaredDifference {
  static constexpr size_t kUnroll = kMany;
  template <class X, class Z>
  HWY_INLINE auto operator()(D, X x, Z z) const {
    const auto difference = op::Sub(x, z);
    return op::Mul(difference, difference);
  }
};

struct Pow {
  static constexpr size_t kUnroll = kSingle;
  template <class X, class Z>
  HWY_INLINE auto operator()(D d, X x, Z z) const {
    return vec_pow(d, x, z);
  }
};

struct Prelu {
  static constexpr size_t kUnroll = kMany;
  template <class X, class Z>
  HWY_INLINE auto operator()(D d, X x, Z z) const {
    return op::IfThenElse(op::Ge(x, hn::Zero(d)), x, op::Mul(x, z));
  }
};

struct MulSigmoid {
  static constexpr size_t kUnroll = kMany;
  template <class X, class Z>
  HWY_INLINE auto operator()(D d, X x, Z z) const {
    return op::Mul(x, vec_sigmoid(d, z));
  }
};

template <class F>
struct Clamped {
  float min, max;
  template <class X, class Z>
  HWY_INLINE auto operator()(D d, X x, Z z) const {
    return clamp_keeping_nan(d, hn::Set(d, min), hn::Set(d, max), F()(d, x, z));
  }
};

using BinaryRow = void (*)(const float* const* p, float* y, size_t count, float min, float max);

template <class F, unsigned kKinds>
void binary_row(const float* const* p, float* y, size_t count, float min, float max) {
  each_vector<F::kUnroll>(Clamped<F>{min, max}, y, count, Source<(kKinds & 1) != 0>{p[0]},
                          Source<(kKinds & 2) != 0>{p[1]});
}

template <class F>
struct BinaryRows {
  static constexpr BinaryRow kRows[4] = {binary_row<F, 0>, binary_row<F, 1>, binary_row<F, 2>, binary_row<F, 3>};
};

const BinaryRow* binary_rows(Binary f) {
  switch (f) {
    case Binary::kAdd:
      return BinaryRows<Add>::kRows;
    case Binary::kSub:
      return BinaryRows<Sub>::kRows;
    case Binary::kMul:
      return BinaryRows<Mul>::kRows;
    case Binary::kDiv:
      return BinaryRows<Div>::kRows;
    case Binary::kMaximum:
      return BinaryRows<Maximum>::kRows;
    case Binary::kMinimum:
      return BinaryRows<Minimum>::kRows;
    case Binary::kSquaredDifference:
      return BinaryRows<SquaredDifference>::kRows;
    case Binary::kPow:
      return BinaryRows<Pow>::kRows;
    case Binary::kPrelu:
      return BinaryRows<Prelu>::kRows;
    case Binary::kMulSigmoid:
      return BinaryRows<MulSigmoid>::kRows;
  }
  return BinaryRows<Add>::kRows;
}

void binary(Binary f, const Block& block, const BlockOperand& x, const BlockOperand& z, float* y, ptrdiff_t y_pixel,
            float min, float max) {
  if (f == Binary::kPow && z.stretch == Stretch::kScalar && *z.data == 2.0f) {
    return binary(Binary::kMul, block, x, x, y, y_pixel, min, max);
  }
  const BinaryRow* rows = binary_rows(f);
  const BlockOperand operands[2] = {x, z};
  for_rows(block, operands, y, y_pixel, [=](const float* const* p, unsigned kinds, float* to, size_t count) {
    rows[kinds](p, to, count, min, max);
  });
}

struct ScaleShift {
  float min, max;
  template <class X, class S, class T>
  HWY_INLINE auto operator()(D d, X x, S s, T t) const {
    return clamp_keeping_nan(d, hn::Set(d, min), hn::Set(d, max), op::MulAdd(x, s, t));
  }
};

struct ScaleShiftPrelu {
  float min, max;
  template <class X, class S, class T, class P>
  HWY_INLINE auto operator()(D d, X x, S s, T t, P slope) const {
    return Prelu()(d, ScaleShift{min, max}(d, x, s, t), slope);
  }
};

// kKinds without those of slopes, which are a row or missing.
template <unsigned kKinds>
void scale_shift_row(const float* const* p, float* y, size_t count, float min, float max, bool with_slopes,
                     bool slopes_are_row) {
  const Source<(kKinds & 1) != 0> x{p[0]};
  const Source<(kKinds & 2) != 0> s{p[1]};
  const Source<(kKinds & 4) != 0> t{p[2]};
  if (!with_slopes) {
    each_vector<kMany>(ScaleShift{min, max}, y, count, x, s, t);
  } else if (slopes_are_row) {
    each_vector<kMany>(ScaleShiftPrelu{min, max}, y, count, x, s, t, Source<true>{p[3]});
  } else {
    each_vector<kMany>(ScaleShiftPrelu{min, max}, y, count, x, s, t, Source<false>{p[3]});
  }
}

using ScaleShiftRow = void (*)(const float* const* p, float* y, size_t count, float min, float max, bool with_slopes,
                               bool slopes_are_row);
constexpr ScaleShiftRow kScaleShiftRows[8] = {scale_shift_row<0>, scale_shift_row<1>, scale_shift_row<2>,
                                              scale_shift_row<3>, scale_shift_row<4>, scale_shift_row<5>,
                                              scale_shift_row<6>, scale_shift_row<7>};

void scale_shift(const Block& block, const BlockOperand& x, const BlockOperand& s, const BlockOperand& t, float* y,
                 ptrdiff_t y_pixel, float min, float max, const float* slopes) {
  // Adding -0 changes nothing, not even the sign of a zero.
  static constexpr float kOne = 1.0f, kNothing = -0.0f;
  const BlockOperand operands[4] = {
      x, s.data != nullptr ? s : BlockOperand{&kOne, 0, Stretch::kScalar},
      t.data != nullptr ? t : BlockOperand{&kNothing, 0, Stretch::kScalar},
      slopes != nullptr ? BlockOperand{slopes, 0, Stretch::kChannel} : BlockOperand{&kOne, 0, Stretch::kScalar}};
  for_rows(block, operands, y, y_pixel, [=](const float* const* p, unsigned kinds, float* to, size_t count) {
    kScaleShiftRows[kinds & 7](p, to, count, min, max, slopes != nullptr, (kinds & 8) != 0);
  });
}

// Neither tensor is read where the other one is written.
template <size_t kChannels>
void copy_narrow(size_t pixels, const float* x, ptrdiff_t x_pixel, float* y, ptrdiff_t y_pixel) {
  for (size_t p = 0; p < pixels; ++p, x += x_pixel, y += y_pixel) std::memcpy(y, x, kChannels * sizeof(float));
}

void copy(const Block& block, const float* x, ptrdiff_t x_pixel, float* y, ptrdiff_t y_pixel) {
  if (block.pixels <= 0 || block.channels <= 0) return;
  const auto pixels = static_cast<size_t>(block.pixels);
  const auto channels = static_cast<size_t>(block.channels);
  if (pixels == 1 || (x_pixel == block.channels && y_pixel == block.channels)) {
    std::memcpy(y, x, pixels * channels * sizeof(float));
    return;
  }
  switch (channels) {
    case 1:
      return copy_narrow<1>(pixels, x, x_pixel, y, y_pixel);
    case 2:
      return copy_narrow<2>(pixels, x, x_pixel, y, y_pixel);
    case 3:
      return copy_narrow<3>(pixels, x, x_pixel, y, y_pixel);
    case 4:
      return copy_narrow<4>(pixels, x, x_pixel, y, y_pixel);
    default:
      break;
  }
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t p = 0; p < pixels; ++p, x += x_pixel, y += y_pixel) {
    if (channels >= lanes) {
      size_t c = 0;
      for (; c + lanes <= channels; c += lanes) hn::StoreU(hn::LoadU(d, x + c), d, y + c);
      if (c < channels) hn::StoreU(hn::LoadU(d, x + channels - lanes), d, y + channels - lanes);
    } else {
      size_t c = 0;
      for (; c + 4 <= channels; c += 4) std::memcpy(y + c, x + c, 4 * sizeof(float));
      for (; c < channels; ++c) y[c] = x[c];
    }
  }
}

constexpr ElementwiseKernels kKernels = {unary, binary, scale_shift, copy};

}  // namespace

const ElementwiseKernels* elementwise_table() { return &kKernels; }

}  // namespace HWY_NAMESPACE
}  // namespace litefuse
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace litefuse {
namespace {

// The reference: float64, rounded once.

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double clamp(double x, double min, double max) {
  if (x < min) x = min;
  return x > max ? max : x;
}

double reference_of(Unary f, double a, double b, double x) {
  switch (f) {
    case Unary::kClamp:
      return clamp(x, a, b);
    case Unary::kLeakyRelu:
      return x > 0 ? x : a * x;
    case Unary::kElu:
      return x < 0 ? std::expm1(x) : x;
    case Unary::kSigmoid:
      return sigmoid(x);
    case Unary::kSilu:
      return x * sigmoid(x);
    case Unary::kTanh:
      return std::tanh(x);
    case Unary::kGelu:
      return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
    case Unary::kGeluTanh:
      return x * sigmoid(2.0 * std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x));
    case Unary::kQuickGelu:
      return x * sigmoid(a * x);
    case Unary::kHardSwish:
      return x * clamp(x + 3.0, 0.0, 6.0) / 6.0;
    case Unary::kHardSigmoid:
      return clamp(x * a + b, 0.0, 1.0);
    case Unary::kMish:
      return x * std::tanh(x > 40.0 ? x : std::log1p(std::exp(x)));
    case Unary::kSoftplus:
      return x > 40.0 ? x : std::log1p(std::exp(x));
    case Unary::kExp:
      return std::exp(x);
    case Unary::kLog:
      return std::log(x);
    case Unary::kSqrt:
      return std::sqrt(x);
    case Unary::kRsqrt:
      return 1.0 / std::sqrt(x);
    case Unary::kSquare:
      return x * x;
    case Unary::kAbs:
      return std::fabs(x);
    case Unary::kNeg:
      return -x;
    case Unary::kSign:
      return std::isnan(x) ? x : static_cast<double>((x > 0) - (x < 0));
    case Unary::kFloor:
      return std::floor(x);
    case Unary::kCeil:
      return std::ceil(x);
    case Unary::kRound:
      return std::nearbyint(x);
    case Unary::kSin:
      return std::sin(x);
    case Unary::kCos:
      return std::cos(x);
    case Unary::kAffine:
      return a * x + b;
    case Unary::kReciprocal:
      return a / x;
    case Unary::kPower:
      return std::pow(x, a);
  }
  return x;
}

double reference_of(Binary f, double x, double z) {
  switch (f) {
    case Binary::kAdd:
      return x + z;
    case Binary::kSub:
      return x - z;
    case Binary::kMul:
      return x * z;
    case Binary::kDiv:
      return x / z;
    case Binary::kMaximum:
      return x > z ? x : z;
    case Binary::kMinimum:
      return x < z ? x : z;
    case Binary::kSquaredDifference:
      return (x - z) * (x - z);
    case Binary::kPow:
      return std::pow(x, z);
    case Binary::kPrelu:
      return x >= 0 ? x : x * z;
    case Binary::kMulSigmoid:
      return x * sigmoid(z);
  }
  return x;
}

float at(const BlockOperand& x, int32_t pixel, int32_t channel) {
  switch (x.stretch) {
    case Stretch::kNone:
      return x.data[pixel * x.pixel + channel];
    case Stretch::kChannel:
      return x.data[channel];
    case Stretch::kPixel:
      return x.data[pixel * x.pixel];
    case Stretch::kScalar:
      return x.data[0];
  }
  return 0.0f;
}

void unary_reference(Unary f, float a, float b, const float* x, float* y, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    y[i] = static_cast<float>(reference_of(f, a, b, x[i]));
  }
}

void binary_reference(Binary f, const Block& block, const BlockOperand& x, const BlockOperand& z, float* y,
                      ptrdiff_t y_pixel, float min, float max) {
  for (int32_t p = 0; p < block.pixels; ++p) {
    for (int32_t c = 0; c < block.channels; ++c) {
      y[p * y_pixel + c] = static_cast<float>(clamp(reference_of(f, at(x, p, c), at(z, p, c)), min, max));
    }
  }
}

void scale_shift_reference(const Block& block, const BlockOperand& x, const BlockOperand& s, const BlockOperand& t,
                           float* y, ptrdiff_t y_pixel, float min, float max, const float* slopes) {
  for (int32_t p = 0; p < block.pixels; ++p) {
    for (int32_t c = 0; c < block.channels; ++c) {
      const double scale = s.data != nullptr ? at(s, p, c) : 1.0;
      const double shift = t.data != nullptr ? at(t, p, c) : -0.0;
      const auto value = static_cast<float>(clamp(at(x, p, c) * scale + shift, min, max));
      y[p * y_pixel + c] = slopes != nullptr && !(value >= 0) ? value * slopes[c] : value;
    }
  }
}

void copy_reference(const Block& block, const float* x, ptrdiff_t x_pixel, float* y, ptrdiff_t y_pixel) {
  for (int32_t p = 0; p < block.pixels; ++p) {
    for (int32_t c = 0; c < block.channels; ++c) y[p * y_pixel + c] = x[p * x_pixel + c];
  }
}

constexpr ElementwiseKernels kReference = {unary_reference, binary_reference, scale_shift_reference, copy_reference};

HWY_EXPORT(elementwise_table);

}  // namespace

const ElementwiseKernels& elementwise_kernels() { return *HWY_DYNAMIC_DISPATCH(elementwise_table)(); }
const ElementwiseKernels& elementwise_reference() { return kReference; }

}  // namespace litefuse
#endif  // HWY_ONCE
