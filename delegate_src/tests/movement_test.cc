// Kernels that move elements, given whatever a hostile file could hold: what prepare() accepts, run() does within the
// bounds of its operands (which the address sanitiser watches), and every element of the output is written.
#include "kernels/movement.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace litefuse {
namespace {

constexpr int kRounds = 2000;
constexpr int64_t kMostBytes = 1 << 16;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int below(int end) { return static_cast<int>(engine_() % static_cast<uint64_t>(end)); }
  bool once_in(int n) { return below(n) == 0; }
  // Small numbers, and now and then one that is absurd.
  int64_t number() {
    if (!once_in(60)) return below(8) - 2;
    const int64_t extremes[] = {std::numeric_limits<int32_t>::min(),
                                std::numeric_limits<int32_t>::max(),
                                std::numeric_limits<int64_t>::min(),
                                std::numeric_limits<int64_t>::max(),
                                1 << 20,
                                -1000};
    return extremes[below(6)];
  }
  Shape shape(int rank) {
    std::vector<int32_t> dims;
    for (int i = 0; i < rank; ++i) {
      dims.push_back(once_in(40) ? 0 : once_in(80) ? 1 << below(31) : 1 + below(4));
    }
    Shape shape;
    return shape.assign(dims) ? shape : Shape().extended(rank);
  }

 private:
  std::mt19937_64 engine_;
};

// One operator with operands of its own.
struct Subject {
  std::vector<Tensor> tensors;
  std::vector<std::vector<char>> constants;
  Operator op;
  size_t inputs = 0;

  // Keeps what is pointed to where it is.
  Subject() {
    tensors.reserve(32);
    constants.reserve(32);
  }

  void add(Type type, const Shape& shape) {
    Tensor tensor;
    tensor.type = type;
    tensor.shape = shape;
    tensors.push_back(tensor);
  }

  void add_numbers(Type type, const Shape& shape, Random* random) {
    add(type, shape);
    const auto count = static_cast<size_t>(std::min<int64_t>(shape.elements(), kMostBytes));
    constants.emplace_back(count * size_of(type));
    std::vector<char>& data = constants.back();
    for (size_t i = 0; i < count; ++i) {
      const int64_t number = random->number();
      // The low bytes come first on every machine that this runs on.
      std::memcpy(data.data() + i * size_of(type), &number, size_of(type));
    }
    if (shape.elements() > 0 && shape.elements() <= kMostBytes) tensors.back().constant = data.data();
  }
};

const Kind kKinds[] = {Kind::kReshape,        Kind::kSqueeze,       Kind::kExpandDims,   Kind::kTranspose,
                       Kind::kReverseV2,      Kind::kPad,           Kind::kPadV2,        Kind::kMirrorPad,
                       Kind::kConcatenation,  Kind::kPack,          Kind::kUnpack,       Kind::kSplit,
                       Kind::kSplitV,         Kind::kSlice,         Kind::kStridedSlice, Kind::kGather,
                       Kind::kTile,           Kind::kBroadcastTo,   Kind::kDepthToSpace, Kind::kSpaceToDepth,
                       Kind::kSpaceToBatchNd, Kind::kBatchToSpaceNd};

void make(Kind kind, Random* random, Subject* subject) {
  const Type types[] = {Type::kFloat32, Type::kInt8, Type::kUInt8, Type::kInt16, Type::kInt64, Type::kBool};
  const Type type = types[random->below(6)];
  const Type index = random->once_in(3) ? Type::kInt64 : Type::kInt32;
  const bool image = kind == Kind::kDepthToSpace || kind == Kind::kSpaceToDepth || kind == Kind::kSpaceToBatchNd ||
                     kind == Kind::kBatchToSpaceNd;
  const int rank = image && !random->once_in(8) ? 4 - random->below(2) : random->below(6);
  const Shape shape = random->shape(rank);
  // Lists have the right length mostly.
  const int length = random->once_in(10) ? random->below(5) : rank;
  size_t outputs = 1;
  auto masks = [random](int bits) {
    return random->once_in(30) ? -1 : random->below(1 << bits) & random->below(1 << bits);
  };
  subject->op.kind = kind;
  switch (kind) {
    case Kind::kReshape:
      subject->add(type, shape);
      if (random->once_in(2)) {
        subject->add_numbers(Type::kInt32, Shape{1 + random->below(3)}, random);
      } else {
        ReshapeParams params;
        for (int i = random->below(4); i > 0; --i) params.new_shape.push_back(static_cast<int32_t>(random->number()));
        if (random->once_in(2)) params.new_shape.push_back(-1);
        subject->op.params = params;
      }
      break;
    case Kind::kSqueeze: {
      subject->add(type, shape);
      SqueezeParams params;
      for (int i = random->below(3); i > 0; --i) params.squeeze_dims.push_back(static_cast<int32_t>(random->number()));
      subject->op.params = params;
      break;
    }
    case Kind::kExpandDims:
      subject->add(type, shape);
      subject->add_numbers(index, Shape{1}, random);
      break;
    case Kind::kTranspose:
      subject->add(type, random->shape(random->below(4)));
      subject->add_numbers(Type::kInt32, Shape{random->below(4)}, random);
      break;
    case Kind::kReverseV2:
      subject->add(type, shape);
      subject->add_numbers(Type::kInt32, Shape{1 + random->below(2)}, random);
      break;
    case Kind::kPad:
    case Kind::kPadV2:
    case Kind::kMirrorPad: {
      const Shape small = random->shape(random->below(4));
      subject->add(type, small);
      subject->add_numbers(index, Shape{random->once_in(10) ? 2 : small.rank(), 2}, random);
      if (kind == Kind::kPadV2) subject->add(type, random->once_in(9) ? Shape{2} : Shape());
      MirrorPadParams params;
      params.reflect = random->once_in(2);
      subject->op.params = params;
      break;
    }
    case Kind::kConcatenation:
    case Kind::kPack: {
      for (int i = random->below(4); i >= 0; --i) subject->add(type, random->once_in(9) ? random->shape(rank) : shape);
      if (kind == Kind::kPack) {
        subject->op.params = AxisParams{static_cast<int32_t>(random->number()), 0};
      } else {
        subject->op.params = ConcatenationParams{static_cast<int32_t>(random->number()), Activation::kNone};
      }
      break;
    }
    case Kind::kUnpack:
      subject->add(type, shape);
      outputs = static_cast<size_t>(1 + random->below(4));
      subject->op.params = AxisParams{static_cast<int32_t>(random->number()), 0};
      break;
    case Kind::kSplit:
      subject->add_numbers(Type::kInt32, Shape(), random);
      subject->add(type, shape);
      outputs = static_cast<size_t>(1 + random->below(4));
      subject->op.params = SplitParams{static_cast<int32_t>(outputs)};
      break;
    case Kind::kSplitV:
      outputs = static_cast<size_t>(1 + random->below(3));
      subject->add(type, shape);
      subject->add_numbers(index, Shape{static_cast<int32_t>(outputs)}, random);
      subject->add_numbers(Type::kInt32, Shape(), random);
      subject->op.params = SplitParams{static_cast<int32_t>(outputs)};
      break;
    case Kind::kSlice:
      subject->add(type, random->shape(random->below(4)));
      subject->add_numbers(index, Shape{subject->tensors[0].shape.rank()}, random);
      subject->add_numbers(index, Shape{subject->tensors[0].shape.rank()}, random);
      break;
    case Kind::kStridedSlice: {
      const int count = random->once_in(20) ? 16 : random->below(rank + 2);
      subject->add(type, shape);
      for (int i = 0; i < 3; ++i) subject->add_numbers(Type::kInt32, Shape{count}, random);
      subject->op.params = StridedSliceParams{masks(4), masks(4), masks(2), masks(3), masks(4), random->once_in(4)};
      break;
    }
    case Kind::kGather:
      subject->add(type, shape);
      if (random->once_in(2)) {
        subject->add_numbers(random->once_in(4) ? Type::kInt16 : index, random->shape(random->below(2)), random);
      } else {
        subject->add(index, random->shape(random->below(3)));
      }
      subject->op.params = AxisParams{static_cast<int32_t>(random->number()), random->below(4) - 1};
      break;
    case Kind::kTile:
      subject->add(type, shape);
      subject->add_numbers(index, Shape{length}, random);
      break;
    case Kind::kBroadcastTo:
      subject->add(type, random->once_in(2) ? Shape{1, 1} : random->shape(random->below(3)));
      subject->add_numbers(index, Shape{random->below(5)}, random);
      break;
    case Kind::kDepthToSpace:
    case Kind::kSpaceToDepth:
      subject->add(type, shape);
      subject->op.params = BlockParams{static_cast<int32_t>(random->number())};
      break;
    default:  // SPACE_TO_BATCH_ND, BATCH_TO_SPACE_ND
      subject->add(type, shape);
      subject->add_numbers(Type::kInt32, Shape{random->once_in(10) ? 3 : std::max(rank - 2, 0)}, random);
      subject->add_numbers(Type::kInt32, Shape{std::max(rank - 2, 0), 2}, random);
      break;
  }
  subject->inputs = subject->tensors.size();
  for (size_t i = 0; i < outputs; ++i) subject->add(random->once_in(50) ? Type::kInt32 : type, Shape());
}

bool small(const Operand& operand) {
  return operand.elements() * static_cast<int64_t>(size_of(operand.type())) <= kMostBytes;
}

// Runs what was prepared, twice, on outputs that were filled differently: what differs after that was not written.
void run(const Kernel& kernel, Call* call, Random* random) {
  std::vector<std::unique_ptr<char[]>> memory;
  auto reserve = [&](Operand* operand, int fill) {
    const auto bytes = static_cast<size_t>(operand->elements()) * size_of(operand->type());
    memory.emplace_back(new char[bytes]);  // no more than that, so that the sanitiser sees what is beyond
    operand->data = memory.back().get();
    if (bytes > 0) std::memset(operand->data, fill, bytes);
    return bytes;
  };
  for (Operand& input : call->inputs) {
    if (!input.constant()) reserve(&input, random->below(256));
  }
  std::vector<std::pair<const char*, size_t>> first;
  for (Operand& output : call->outputs) {
    const size_t bytes = reserve(&output, 0x55);
    first.emplace_back(output.get<char>(), bytes);
  }
  kernel.run(*call);
  for (Operand& output : call->outputs) reserve(&output, 0xAA);
  kernel.run(*call);
  for (size_t i = 0; i < first.size(); ++i) {
    if (first[i].second > 0) {
      ASSERT_EQ(std::memcmp(first[i].first, call->outputs[i].data, first[i].second), 0);
    }
  }
}

TEST(Movement, SurvivesWhateverFilesHold) {
  for (const Kind kind : kKinds) {
    int accepted = 0, refused = 0;
    for (int round = 0; round < kRounds; ++round) {
      Random random(static_cast<uint64_t>(kind) * 1000003 + static_cast<uint64_t>(round));
      Subject subject;
      make(kind, &random, &subject);
      Call call;
      call.op = &subject.op;
      for (size_t i = 0; i < subject.tensors.size(); ++i) {
        Operand operand;
        operand.tensor = &subject.tensors[i];
        operand.shape = operand.tensor->shape;
        operand.data = const_cast<void*>(operand.tensor->constant);
        (i < subject.inputs ? call.inputs : call.outputs).push_back(operand);
      }
      const std::unique_ptr<Kernel> kernel = reference_kernel(kind)();
      // Again with the first input resized: nothing of the previous shapes may be left.
      for (int again = 0; again < 2; ++again) {
        if (again > 0 && !call.inputs[0].constant()) call.inputs[0].shape = random.shape(call.inputs[0].shape.rank());
        const Status status = kernel->prepare(call);
        if (!status.ok()) {
          ++refused;
          continue;
        }
        bool fits = true;
        for (const Operand& operand : call.inputs) fits = fits && small(operand);
        for (const Operand& operand : call.outputs) fits = fits && small(operand);
        if (!fits) continue;
        ++accepted;
        run(*kernel, &call, &random);
        if (HasFatalFailure()) FAIL() << name_of(kind) << " in round " << round;
      }
    }
    EXPECT_GT(accepted, 50) << name_of(kind);
    EXPECT_GT(refused, 100) << name_of(kind);
  }
}

TEST(Movement, RefusesOperatorsWithoutTheirOperands) {
  for (const Kind kind : kKinds) {
    for (size_t count = 0; count < 5; ++count) {
      Tensor tensor;
      tensor.type = Type::kFloat32;
      tensor.shape = Shape{2, 2};
      Operator op;
      op.kind = kind;
      Call call;
      call.op = &op;
      call.inputs.resize(count);  // all of them absent
      call.outputs.resize(1);
      call.outputs[0].tensor = &tensor;
      EXPECT_FALSE(reference_kernel(kind)()->prepare(call).ok()) << name_of(kind);
      call.outputs.clear();
      for (Operand& input : call.inputs) input = Operand{&tensor, tensor.shape, nullptr};
      EXPECT_FALSE(reference_kernel(kind)()->prepare(call).ok()) << name_of(kind);
    }
  }
}

TEST(StridedCopy, CopiesElementsOfEverySize) {
  for (const size_t size : {1u, 2u, 4u, 8u}) {
    std::vector<unsigned char> from(6 * size), to(6 * size, 0xEE);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i + 1);
    // The transpose of 2 x 3.
    StridedCopy copy(size);
    copy.add(3, 1, 2);
    copy.add(2, 3, 1);
    copy.run(from.data(), to.data());
    for (size_t r = 0; r < 2; ++r) {
      for (size_t c = 0; c < 3; ++c) {
        EXPECT_EQ(std::memcmp(&to[(c * 2 + r) * size], &from[(r * 3 + c) * size], size), 0) << size;
      }
    }
  }
}

// Any nest of loops against one element at a time, with runs, turned matrices, repeated and reversed elements.
TEST(StridedCopy, CopiesAnyView) {
  for (int round = 0; round < 4000; ++round) {
    Random random(static_cast<uint64_t>(round));
    const size_t size = size_t{1} << random.below(4);
    const int rank = 1 + random.below(5);
    std::vector<int64_t> counts, in(static_cast<size_t>(rank)), out(static_cast<size_t>(rank));
    for (int i = 0; i < rank; ++i) counts.push_back(1 + (random.once_in(3) ? random.below(40) : random.below(5)));
    // Both sides are dense or have gaps, each in an order of its own.
    const auto lay = [&](std::vector<int64_t>* strides) {
      std::vector<size_t> order;
      for (int i = 0; i < rank; ++i) order.insert(order.begin() + random.below(i + 1), static_cast<size_t>(i));
      int64_t stride = random.once_in(4) ? 2 : 1;
      for (size_t i : order) {
        (*strides)[i] = stride;
        stride *= counts[i] + (random.once_in(6) ? 1 : 0);
      }
      return stride;
    };
    const int64_t in_size = lay(&in), out_size = lay(&out);
    if (in_size > 20000 || out_size > 20000) continue;
    int64_t start = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (random.once_in(6)) {
        start += (counts[i] - 1) * in[i];
        in[i] = -in[i];
      } else if (random.once_in(8)) {
        in[i] = 0;
      }
    }
    std::vector<char> from(static_cast<size_t>(in_size) * size), expected(static_cast<size_t>(out_size) * size, 7);
    for (char& x : from) x = static_cast<char>(random.below(256));
    std::vector<char> found = expected;
    StridedCopy copy(size);
    copy.start_at(start, 0);
    for (size_t i = 0; i < counts.size(); ++i) copy.add(counts[i], in[i], out[i]);
    copy.run(from.data(), found.data());
    int64_t total = 1;
    for (int64_t count : counts) total *= count;
    for (int64_t k = 0; k < total; ++k) {
      int64_t x = start, y = 0, rest = k;
      for (size_t i = 0; i < counts.size(); ++i) {
        x += rest % counts[i] * in[i];
        y += rest % counts[i] * out[i];
        rest /= counts[i];
      }
      std::memcpy(&expected[static_cast<size_t>(y) * size], &from[static_cast<size_t>(x) * size], size);
    }
    ASSERT_EQ(found, expected) << "round " << round;
  }
}

TEST(CopyRun, CopiesSoManyBytes) {
  std::vector<char> from(600);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7);
  for (size_t bytes = 0; bytes < 520; ++bytes) {
    std::vector<char> to(bytes + 2, 'x'), expected = to;
    std::copy_n(from.begin(), bytes, expected.begin() + 1);
    copy_run(to.data() + 1, from.data(), bytes);
    ASSERT_EQ(to, expected) << bytes;
  }
}

TEST(StridedCopy, CopiesNothingAndSingleElements) {
  const int32_t from[2] = {7, 8};
  int32_t to[2] = {0, 0};
  StridedCopy nothing(sizeof(int32_t));
  nothing.add(2, 1, 1);
  nothing.add(0, std::numeric_limits<int64_t>::max(), 1);
  nothing.run(from, to);
  EXPECT_EQ(to[0], 0);
  StridedCopy one(sizeof(int32_t));
  one.start_at(1, 1);
  one.run(from, to);
  EXPECT_EQ(to[0], 0);
  EXPECT_EQ(to[1], 8);
}

}  // namespace
}  // namespace litefuse
