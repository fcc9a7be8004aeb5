#include "kernels/kernel.h"

namespace litefuse {

#define LITEFUSE_KERNEL(kind, name, make) std::unique_ptr<Kernel> make();
#include "kernels/kernels.inc"
#undef LITEFUSE_KERNEL

MakeKernel reference_kernel(Kind kind) {
  switch (kind) {
#define LITEFUSE_KERNEL(kind, name, make) \
  case Kind::kind:                        \
    return make;
#include "kernels/kernels.inc"
#undef LITEFUSE_KERNEL
  }
  return nullptr;
}

bool only_moves(Kind kind) {
  switch (kind) {
    case Kind::kReshape:
    case Kind::kSqueeze:
    case Kind::kExpandDims:
    case Kind::kTranspose:
    case Kind::kPad:
    case Kind::kPadV2:
    case Kind::kMirrorPad:
    case Kind::kConcatenation:
    case Kind::kSplit:
    case Kind::kSplitV:
    case Kind::kSlice:
    case Kind::kStridedSlice:
    case Kind::kPack:
    case Kind::kUnpack:
    case Kind::kGather:
    case Kind::kTile:
    case Kind::kBroadcastTo:
    case Kind::kDepthToSpace:
    case Kind::kSpaceToDepth:
    case Kind::kSpaceToBatchNd:
    case Kind::kBatchToSpaceNd:
    case Kind::kReverseV2:
      return true;
    default:
      return false;
  }
}

const char* name_of(Kind kind) {
  switch (kind) {
#define LITEFUSE_KERNEL(kind, name, make) \
  case Kind::kind:                        \
    return #name;
#include "kernels/kernels.inc"
#undef LITEFUSE_KERNEL
  }
  return nullptr;
}

}  // namespace litefuse
