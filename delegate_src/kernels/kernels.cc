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
