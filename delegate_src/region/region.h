// A region: the operators that become one node, with their tensors. It is read from the operators of the file
// themselves (tflite/import.h) or, in tests, built by hand; a backend compiles it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "region/status.h"
#include "region/types.h"

namespace litefuse {

// The numbers are those of TFLite's BuiltinOperator. Only what regions may contain is here.
enum class Kind : int32_t {
  kAdd = 0,
  kAveragePool2d = 1,
  kConcatenation = 2,
  kConv2d = 3,
  kDepthwiseConv2d = 4,
  kDepthToSpace = 5,
  kDequantize = 6,
  kFullyConnected = 9,
  kL2Normalization = 11,
  kLogistic = 14,
  kMaxPool2d = 17,
  kMul = 18,
  kRelu = 19,
  kReluN1To1 = 20,
  kRelu6 = 21,
  kReshape = 22,
  kResizeBilinear = 23,
  kSoftmax = 25,
  kSpaceToDepth = 26,
  kTanh = 28,
  kPad = 34,
  kGather = 36,
  kBatchToSpaceNd = 37,
  kSpaceToBatchNd = 38,
  kTranspose = 39,
  kMean = 40,
  kSub = 41,
  kDiv = 42,
  kSqueeze = 43,
  kStridedSlice = 45,
  kExp = 47,
  kSplit = 49,
  kLogSoftmax = 50,
  kCast = 53,
  kPrelu = 54,
  kMaximum = 55,
  kMinimum = 57,
  kLess = 58,
  kNeg = 59,
  kPadV2 = 60,
  kGreater = 61,
  kGreaterEqual = 62,
  kLessEqual = 63,
  kSelect = 64,
  kSlice = 65,
  kSin = 66,
  kTransposeConv = 67,
  kTile = 69,
  kExpandDims = 70,
  kEqual = 71,
  kNotEqual = 72,
  kLog = 73,
  kSum = 74,
  kSqrt = 75,
  kRsqrt = 76,
  kPow = 78,
  kReduceProd = 81,
  kReduceMax = 82,
  kPack = 83,
  kLogicalOr = 84,
  kLogicalAnd = 86,
  kLogicalNot = 87,
  kUnpack = 88,
  kReduceMin = 89,
  kFloorDiv = 90,
  kSquare = 92,
  kFloor = 8,
  kFloorMod = 95,
  kResizeNearestNeighbor = 97,
  kLeakyRelu = 98,
  kSquaredDifference = 99,
  kMirrorPad = 100,
  kAbs = 101,
  kSplitV = 102,
  kCeil = 104,
  kReverseV2 = 105,
  kCos = 108,
  kElu = 111,
  kRound = 116,
  kHardSwish = 117,
  kQuantize = 114,
  kSelectV2 = 123,
  kDensify = 124,
  kBatchMatmul = 126,
  kBroadcastTo = 130,
  kGelu = 150,
  kRelu0To1 = 152,
  kSign = 158,
};

// Nullptr for numbers that are not in Kind.
const char* name_of(Kind kind);

enum class Activation : int32_t {
  kNone = 0,
  kRelu = 1,
  kReluN1To1 = 2,
  kRelu6 = 3,
  kTanh = 4,
  kSignBit = 5,
  kSigmoid = 6
};
enum class Padding : int32_t { kUnknown = 0, kSame = 1, kValid = 2 };

// What operators have besides their inputs. Lengths are in elements; names follow the schema.
struct Conv2dParams {  // also of depthwise and transposed convolutions
  Padding padding = Padding::kValid;
  int32_t stride_w = 1, stride_h = 1;
  int32_t dilation_w_factor = 1, dilation_h_factor = 1;
  int32_t depth_multiplier = 1;  // of depthwise convolutions, and not to be believed: files have it wrong
  Activation activation = Activation::kNone;
};
struct PoolParams {
  Padding padding = Padding::kValid;
  int32_t stride_w = 1, stride_h = 1;
  int32_t filter_width = 1, filter_height = 1;
  Activation activation = Activation::kNone;
};
struct FullyConnectedParams {
  Activation activation = Activation::kNone;
  bool shuffled_weights = false;  // of a format that no kernel here reads
  bool keep_num_dims = false;
  bool asymmetric_quantize_inputs = false;
};
struct BatchMatmulParams {
  bool adj_x = false, adj_y = false;
  bool asymmetric_quantize_inputs = false;
};
struct ActivationParams {  // ADD, SUB, MUL, DIV, L2_NORMALIZATION
  Activation activation = Activation::kNone;
  bool pot_scale_int16 = false;  // of ADD and SUB: int16 operands whose scales are powers of two
};
struct SoftmaxParams {
  float beta = 1.0f;
};
struct LeakyReluParams {
  float alpha = 0.0f;
};
struct GeluParams {
  bool approximate = false;
};
struct ConcatenationParams {
  int32_t axis = 0;
  Activation activation = Activation::kNone;
};
struct AxisParams {  // PACK, UNPACK, GATHER
  int32_t axis = 0;
  int32_t batch_dims = 0;
};
struct SplitParams {
  int32_t num_splits = 0;
};
struct ReducerParams {
  bool keep_dims = false;
};
struct ResizeParams {
  bool align_corners = false;
  bool half_pixel_centers = false;
};
struct ReshapeParams {
  std::vector<int32_t> new_shape;  // used where there is no second input
};
struct SqueezeParams {
  std::vector<int32_t> squeeze_dims;
};
struct StridedSliceParams {
  int32_t begin_mask = 0, end_mask = 0, ellipsis_mask = 0, new_axis_mask = 0, shrink_axis_mask = 0;
  bool offset = false;
};
struct MirrorPadParams {
  bool reflect = true;  // symmetric otherwise
};
struct BlockParams {  // DEPTH_TO_SPACE, SPACE_TO_DEPTH
  int32_t block_size = 1;
};

using Params = std::variant<std::monostate, Conv2dParams, PoolParams, FullyConnectedParams, BatchMatmulParams,
                            ActivationParams, SoftmaxParams, LeakyReluParams, GeluParams, ConcatenationParams,
                            AxisParams, SplitParams, ReducerParams, ResizeParams, ReshapeParams, SqueezeParams,
                            StridedSliceParams, MirrorPadParams, BlockParams>;

// How the values of a sparse constant lie: a tree of levels, one for each dimension and then one for each blocked
// dimension, with the values as its leaves. (Chou et al., "Format abstraction for sparse tensor algebra compilers",
// 2018; SparsityParameters in TFLite's schema.) Nothing of it is checked but by the kernel of DENSIFY.
struct Sparsity {
  struct Level {
    bool dense = true;
    int32_t size = 0;               // of a dense one, which has all coordinates below every node of the level above
    std::vector<int32_t> segments;  // otherwise: node p above has those from indices[segments[p]] ...
    std::vector<int32_t> indices;   // ... up to before indices[segments[p + 1]]
  };
  std::vector<int32_t> order;      // of each level, the dimension; rank + i where it counts inside the blocks of i
  std::vector<int32_t> block_map;  // the dimensions that are divided into blocks
  std::vector<Level> levels;
  int64_t values = 0;  // stored elements
};

struct Tensor {
  std::string name;
  Type type = Type::kNone;
  Shape shape;  // as in the file; the executor finds the real ones from those of the region's inputs
  Quantization quantization;
  const void* constant = nullptr;  // the value, where the file holds it: shape.elements() elements, not owned
  // Of sparse constants, which only DENSIFY may read: `constant` has sparsity->values elements then.
  std::shared_ptr<const Sparsity> sparsity{};
  const void* half = nullptr;  // the same value as float16, of weights that are packed from there (see Executor)
};

struct Operator {
  Kind kind = Kind::kAdd;
  int32_t version = 1;
  std::vector<int32_t> inputs;  // indices into Region::tensors; -1 where an optional one is absent
  std::vector<int32_t> outputs;
  Params params;
  int32_t index = -1;  // in the file's (sub)graph, for messages and profiles
};

struct Region {
  std::string kind;  // such as "conv_epilogue"
  std::vector<Tensor> tensors;
  std::vector<Operator> operators;  // in an order in which they can run
  std::vector<int32_t> inputs;      // tensors that are given; none is constant
  std::vector<int32_t> outputs;     // tensors that are to be computed
};

// Whether a region can be walked safely: indices within bounds, constants where they are needed, each tensor computed
// once and before it is read, no output that nothing computes, sparse constants at DENSIFY alone.
Status check_structure(const Region& region);

// "CONV_2D #3 `name`", for messages.
std::string describe(const Region& region, const Operator& op);

}  // namespace litefuse
