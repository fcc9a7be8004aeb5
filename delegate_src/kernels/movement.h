// What the kernels that only move elements share: checks that they all make, constant operands read as numbers, and a
// copy between strided views.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/checks.h"
#include "kernels/simd/transpose.h"

namespace litefuse {

// Quantisation as TFLite's movement kernels see it: zeros for tensors that have none, or one per channel.
struct PlainQuantization {
  float scale = 0.0f;
  int32_t zero_point = 0;
  bool operator==(const PlainQuantization& other) const {
    return scale == other.scale && zero_point == other.zero_point;
  }
};

inline PlainQuantization plain_quantization(const Operand& operand) {
  const Quantization& q = operand.quantization();
  if (q.scales.size() != 1) return {};
  return {q.scale(), q.zero_point()};
}

// Whether the operator has its operands, and a known type. Inputs from `needed` on may be missing.
inline Status check_operands(const Call& call, size_t needed, size_t most, size_t outputs) {
  LITEFUSE_REQUIRE(call.inputs.size() >= needed && call.inputs.size() <= most, "it has %zu inputs instead of %zu",
                   call.inputs.size(), needed);
  for (size_t i = 0; i < needed; ++i) LITEFUSE_REQUIRE(call.has(i), "its input %zu is absent", i);
  LITEFUSE_REQUIRE(call.outputs.size() == outputs, "it has %zu outputs instead of %zu", call.outputs.size(), outputs);
  for (size_t i = 0; i < outputs; ++i) LITEFUSE_REQUIRE(call.outputs[i].present(), "its output %zu is absent", i);
  return Status();
}

// Whether elements of `from` can be copied to `to` as they are.
inline Status check_types(const Operand& from, const Operand& to) {
  LITEFUSE_REQUIRE(size_of(from.type()) > 0, "the type of its input is not one that can be moved");
  LITEFUSE_REQUIRE(from.type() == to.type(), "its input is %s where its output is %s", name_of(from.type()),
                   name_of(to.type()));
  return Status();
}

// The demand of several kernels on 8 and 16-bit tensors.
inline Status check_same_quantization(const Operand& from, const Operand& to) {
  LITEFUSE_REQUIRE(plain_quantization(from) == plain_quantization(to),
                   "its output is not quantised as its input is (scale %g, zero point %d; scale %g, zero point %d)",
                   plain_quantization(to).scale, plain_quantization(to).zero_point, plain_quantization(from).scale,
                   plain_quantization(from).zero_point);
  LITEFUSE_REQUIRE(from.type() != Type::kInt16 || plain_quantization(from).zero_point == 0,
                   "its int16 input has the zero point %d", plain_quantization(from).zero_point);
  return Status();
}

inline Status set_shape(Operand& output, const std::vector<int64_t>& dims) {
  std::array<int32_t, kMaxRank> fitting{};
  LITEFUSE_REQUIRE(dims.size() <= fitting.size(), "its output would have %zu dimensions", dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    LITEFUSE_REQUIRE(dims[i] >= 0 && dims[i] <= std::numeric_limits<int32_t>::max(),
                     "dimension %zu of its output would be %lld", i, static_cast<long long>(dims[i]));
    fitting[i] = static_cast<int32_t>(dims[i]);
  }
  LITEFUSE_REQUIRE(output.shape.assign(fitting.data(), static_cast<int>(dims.size())), "its output would be too large");
  return Status();
}

inline std::vector<int64_t> dims_of(const Shape& shape) {
  return std::vector<int64_t>(shape.data(), shape.data() + shape.rank());
}

// The product of dimensions [from, to); 1 when there are none.
inline int64_t product_of(const Shape& shape, int from, int to) {
  int64_t product = 1;
  for (int i = from; i < to; ++i) product *= shape[i];
  return product;
}

// Element `i` of a tensor of int16, int32 or int64.
inline int64_t integer_at(const Operand& operand, int64_t i) {
  const char* data = operand.get<char>();
  if (operand.type() == Type::kInt64) {
    int64_t value = 0;
    std::memcpy(&value, data + i * 8, 8);
    return value;
  }
  if (operand.type() == Type::kInt16) {
    int16_t value = 0;
    std::memcpy(&value, data + i * 2, 2);
    return value;
  }
  int32_t value = 0;
  std::memcpy(&value, data + i * 4, 4);
  return value;
}

// The numbers of input `i`, which must be a constant of int32, or of int64 where `wide`, with `rank` dimensions (-1:
// any number of them) and `count` elements. `what` names it for messages, with its verb: "paddings are".
inline Status read_integers(const Call& call, size_t i, const char* what, int rank, int64_t count, bool wide,
                            std::vector<int64_t>* numbers) {
  const Operand& operand = call.inputs[i];
  // Constants without elements have no data.
  LITEFUSE_REQUIRE(operand.constant() || (count == 0 && operand.elements() == 0), "its %s computed at run time", what);
  LITEFUSE_REQUIRE(operand.type() == Type::kInt32 || (wide && operand.type() == Type::kInt64), "its %s %s", what,
                   name_of(operand.type()));
  LITEFUSE_REQUIRE(rank < 0 || operand.shape.rank() == rank, "its %s given as a tensor of shape %s", what,
                   operand.shape.str().c_str());
  LITEFUSE_REQUIRE(operand.elements() == count, "its %s given by %lld numbers instead of %lld", what,
                   static_cast<long long>(operand.elements()), static_cast<long long>(count));
  numbers->clear();
  for (int64_t k = 0; k < count; ++k) numbers->push_back(integer_at(operand, k));
  return Status();
}

// The axis that a number names, counted from the end where it is negative.
inline Status find_axis(int64_t number, int rank, int* axis) {
  LITEFUSE_REQUIRE(number >= -rank && number < rank, "its axis %lld is not among the %d of the tensor",
                   static_cast<long long>(number), rank);
  *axis = static_cast<int>(number < 0 ? number + rank : number);
  return Status();
}

// Strides of a dense tensor, in elements.
inline std::array<int64_t, kMaxRank> dense_strides(const Shape& shape) {
  std::array<int64_t, kMaxRank> strides{};
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[static_cast<size_t>(i)] = stride;
    stride *= shape[i];
  }
  return strides;
}

// Copies bytes that are few, mostly: a call of memcpy takes longer than that.
inline void copy_run(void* to, const void* from, size_t bytes) {
  constexpr size_t kLong = 64;
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  // The last piece may overlap the one before it.
  const auto pieces = [&](auto piece) {
    constexpr size_t kSize = sizeof(piece);
    for (size_t i = 0; i + kSize < bytes; i += kSize) std::memcpy(out + i, in + i, kSize);
    std::memcpy(out + bytes - kSize, in + bytes - kSize, kSize);
  };
  if (bytes > kLong) {
    std::memcpy(out, in, bytes);
  } else if (bytes >= 16) {
    pieces(std::array<char, 16>());
  } else if (bytes >= 8) {
    pieces(uint64_t{});
  } else if (bytes >= 4) {
    pieces(uint32_t{});
  } else {
    for (size_t i = 0; i < bytes; ++i) out[i] = in[i];
  }
}

// A nest of loops that copies elements of 1, 2, 4 or 8 bytes from one strided view to another, which does not overlap
// it. No two steps write the same element, so that loops may be run in any order.
class StridedCopy {
 public:
  // Dimensions of the tensor, and as many again for kernels that split each in two.
  static constexpr int kMaxLoops = 2 * kMaxRank;

  explicit StridedCopy(size_t element_size = 1) : element_size_(static_cast<int64_t>(element_size)) {}

  // Where the first element is, in elements.
  void start_at(int64_t input, int64_t output) {
    input_start_ = input * element_size_;
    output_start_ = output * element_size_;
  }

  // Adds a loop inside those there are. Strides are in elements and may be zero (the output's may not) or negative.
  void add(int64_t count, int64_t input_stride, int64_t output_stride) {
    if (count == 1) return;
    if (count == 0) {
      empty_ = true;
      return;
    }
    const Loop inner{count, input_stride * element_size_, output_stride * element_size_};
    if (size_ > 0) {
      Loop& outer = loops_[static_cast<size_t>(size_ - 1)];
      if (outer.input_stride == count * inner.input_stride && outer.output_stride == count * inner.output_stride) {
        outer = {outer.count * count, inner.input_stride, inner.output_stride};
        return;
      }
    }
    loops_[static_cast<size_t>(size_++)] = inner;
  }

  void run(const void* input, void* output) const {
    if (empty_) return;
    const char* from = static_cast<const char*>(input) + input_start_;
    char* to = static_cast<char*>(output) + output_start_;
    switch (element_size_) {
      case 1:
        return run_as<uint8_t>(from, to);
      case 2:
        return run_as<uint16_t>(from, to);
      case 4:
        return run_as<uint32_t>(from, to);
      default:
        return run_as<uint64_t>(from, to);
    }
  }

 private:
  struct Loop {
    int64_t count = 1;
    int64_t input_stride = 0, output_stride = 0;  // in bytes
  };

  // The loops but for up to two that are taken together.
  struct Rest {
    std::array<Loop, kMaxLoops> loops{};
    int size = 0;
  };

  Rest without(int one, int other) const {
    Rest rest;
    for (int i = 0; i < size_; ++i) {
      if (i != one && i != other) rest.loops[static_cast<size_t>(rest.size++)] = loop(i);
    }
    return rest;
  }

  const Loop& loop(int i) const { return loops_[static_cast<size_t>(i)]; }

  template <typename T>
  void run_as(const char* from, char* to) const {
    constexpr int64_t kSize = sizeof(T);
    // The loops along which the elements of the input, and those of the output, lie next to each other.
    int in = -1, out = -1;
    for (int i = 0; i < size_; ++i) {
      if (loop(i).input_stride == kSize) in = i;
      if (loop(i).output_stride == kSize) out = i;
      if (in == i && out == i) break;
    }
    if (size_ == 0) {
      std::memcpy(to, from, sizeof(T));
    } else if (in >= 0 && in == out) {
      const auto bytes = static_cast<size_t>(loop(in).count) * sizeof(T);
      if (bytes == 8) return rows<8>(without(in, in), from, to);
      if (bytes == 16) return rows<16>(without(in, in), from, to);
      each(without(in, in), 0, from, to, [bytes](const char* x, char* y) { copy_run(y, x, bytes); });
    } else if (in >= 0 && out >= 0) {
      const Loop across = loop(in), down = loop(out);
      each(without(in, out), 0, from, to, [&](const char* x, char* y) { turn<T>(across, down, x, y); });
    } else {
      const int inner = out >= 0 ? out : size_ - 1;
      const Loop last = loop(inner);
      each(without(inner, inner), 0, from, to, [&last](const char* x, char* y) { single<T>(last, x, y); });
    }
  }

  // Calls f(from, to) for each step of the loops from number `depth` on.
  template <typename F>
  static void each(const Rest& rest, int depth, const char* from, char* to, const F& f) {
    if (depth == rest.size) return f(from, to);
    const Loop& loop = rest.loops[static_cast<size_t>(depth)];
    if (depth + 1 == rest.size) {
      for (int64_t i = 0; i < loop.count; ++i) f(from + i * loop.input_stride, to + i * loop.output_stride);
      return;
    }
    for (int64_t i = 0; i < loop.count; ++i) {
      each(rest, depth + 1, from + i * loop.input_stride, to + i * loop.output_stride, f);
    }
  }

  template <size_t kBytes>
  static void rows(const Rest& rest, const char* from, char* to) {
    each(rest, 0, from, to, [](const char* x, char* y) { std::memcpy(y, x, kBytes); });
  }

  // A matrix whose elements lie next to each other along `across` in the input, and along `down` in the output.
  template <typename T>
  static void turn(const Loop& across, const Loop& down, const char* from, char* to) {
    constexpr int64_t kSize = sizeof(T);
    if constexpr (kSize == sizeof(float)) {
      transpose_kernels().transpose(reinterpret_cast<const float*>(from), down.count, across.count,
                                    down.input_stride / kSize, reinterpret_cast<float*>(to),
                                    across.output_stride / kSize);
    } else {
      constexpr int64_t kTile = 16;
      for (int64_t c = 0; c < across.count; c += kTile) {
        const int64_t columns = std::min(kTile, across.count - c);
        for (int64_t r = 0; r < down.count; r += kTile) {
          const Loop part{std::min(kTile, down.count - r), down.input_stride, kSize};
          for (int64_t i = c; i < c + columns; ++i) {
            single<T>(part, from + i * kSize + r * down.input_stride, to + i * across.output_stride + r * kSize);
          }
        }
      }
    }
  }

  template <typename T>
  static void single(const Loop& loop, const char* from, char* to) {
    constexpr int64_t kSize = sizeof(T);
    if (loop.input_stride == 0) {
      T value;
      std::memcpy(&value, from, sizeof(T));
      if (loop.output_stride == kSize) {
        for (int64_t i = 0; i < loop.count; ++i) std::memcpy(to + i * kSize, &value, sizeof(T));
        return;
      }
      for (int64_t i = 0; i < loop.count; ++i) std::memcpy(to + i * loop.output_stride, &value, sizeof(T));
      return;
    }
    for (int64_t i = 0; i < loop.count; ++i) {
      std::memcpy(to + i * loop.output_stride, from + i * loop.input_stride, sizeof(T));
    }
  }

  std::array<Loop, kMaxLoops> loops_{};
  int size_ = 0;
  bool empty_ = false;
  int64_t element_size_ = 1;
  int64_t input_start_ = 0, output_start_ = 0;
};

template <typename T>
void fill_as(char* output, int64_t count, const void* value) {
  T element;
  std::memcpy(&element, value, sizeof(T));
  for (int64_t i = 0; i < count; ++i) std::memcpy(output + i * static_cast<int64_t>(sizeof(T)), &element, sizeof(T));
}

// Writes the element at `value` `count` times.
inline void fill(void* output, int64_t count, size_t element_size, const void* value) {
  if (count == 0) return;
  auto* to = static_cast<char*>(output);
  switch (element_size) {
    case 1:
      std::memset(to, *static_cast<const unsigned char*>(value), static_cast<size_t>(count));
      return;
    case 2:
      return fill_as<uint16_t>(to, count, value);
    case 4:
      return fill_as<uint32_t>(to, count, value);
    default:
      return fill_as<uint64_t>(to, count, value);
  }
}

// Copies everything, for kernels whose output differs in shape only.
inline void copy_all(const Operand& from, const Operand& to) {
  const auto bytes = static_cast<size_t>(from.elements()) * size_of(from.type());
  if (bytes > 0) std::memcpy(to.data, from.data, bytes);
}

}  // namespace litefuse
