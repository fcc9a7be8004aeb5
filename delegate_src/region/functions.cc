// Tables from operators to the functions of the kernels.
#include "region/functions.h"

#include <optional>

namespace litefuse {
namespace {

// Functions without parameters.
std::optional<Unary> plain_unary(Kind kind) {
  switch (kind) {
    case Kind::kElu:
      return Unary::kElu;
    case Kind::kLogistic:
      return Unary::kSigmoid;
    case Kind::kTanh:
      return Unary::kTanh;
    case Kind::kHardSwish:
      return Unary::kHardSwish;
    case Kind::kExp:
      return Unary::kExp;
    case Kind::kLog:
      return Unary::kLog;
    case Kind::kSqrt:
      return Unary::kSqrt;
    case Kind::kRsqrt:
      return Unary::kRsqrt;
    case Kind::kSquare:
      return Unary::kSquare;
    case Kind::kAbs:
      return Unary::kAbs;
    case Kind::kNeg:
      return Unary::kNeg;
    case Kind::kSign:
      return Unary::kSign;
    case Kind::kFloor:
      return Unary::kFloor;
    case Kind::kCeil:
      return Unary::kCeil;
    case Kind::kRound:
      return Unary::kRound;
    case Kind::kSin:
      return Unary::kSin;
    case Kind::kCos:
      return Unary::kCos;
    default:
      return std::nullopt;
  }
}

std::optional<Binary> plain_binary(Kind kind) {
  switch (kind) {
    case Kind::kAdd:
      return Binary::kAdd;
    case Kind::kSub:
      return Binary::kSub;
    case Kind::kMul:
      return Binary::kMul;
    case Kind::kDiv:
      return Binary::kDiv;
    case Kind::kMaximum:
      return Binary::kMaximum;
    case Kind::kMinimum:
      return Binary::kMinimum;
    case Kind::kSquaredDifference:
      return Binary::kSquaredDifference;
    case Kind::kPow:
      return Binary::kPow;
    case Kind::kPrelu:
      return Binary::kPrelu;
    default:
      return std::nullopt;
  }
}

}  // namespace

bool clamp_of(Activation activation, float* min, float* max) {
  switch (activation) {
    case Activation::kNone:
      return true;
    case Activation::kRelu:
      *min = 0.0f;
      return true;
    case Activation::kRelu6:
      *min = 0.0f;
      *max = 6.0f;
      return true;
    case Activation::kReluN1To1:
      *min = -1.0f;
      *max = 1.0f;
      return true;
    default:
      return false;
  }
}

bool clamp_of(Kind kind, float* min, float* max) {
  switch (kind) {
    case Kind::kRelu:
      return clamp_of(Activation::kRelu, min, max);
    case Kind::kRelu6:
      return clamp_of(Activation::kRelu6, min, max);
    case Kind::kReluN1To1:
      return clamp_of(Activation::kReluN1To1, min, max);
    case Kind::kRelu0To1:
      *min = 0.0f;
      *max = 1.0f;
      return true;
    default:
      return false;
  }
}

bool unary_of(const Operator& op, Unary* function, float* a, float* b) {
  *a = *b = 0.0f;
  if (const std::optional<Unary> plain = plain_unary(op.kind)) {
    *function = *plain;
    return true;
  }
  switch (op.kind) {
    case Kind::kLeakyRelu:
      *function = Unary::kLeakyRelu;
      *a = params_of<LeakyReluParams>(op).alpha;
      return true;
    case Kind::kGelu:
      *function = params_of<GeluParams>(op).approximate ? Unary::kGeluTanh : Unary::kGelu;
      return true;
    default:
      *function = Unary::kClamp;
      *a = -kInfinity;
      *b = kInfinity;
      return clamp_of(op.kind, a, b);
  }
}

bool binary_of(const Operator& op, Binary* function, float* min, float* max) {
  *min = -kInfinity;
  *max = kInfinity;
  const std::optional<Binary> plain = plain_binary(op.kind);
  if (!plain || !clamp_of(params_of<ActivationParams>(op).activation, min, max)) return false;
  *function = *plain;
  return true;
}

}  // namespace litefuse
