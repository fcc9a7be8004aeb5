#include "backends/backend.h"
#include "backends/cpu/simd.h"
#include "region/executor.h"

namespace litefuse {
namespace {

class Cpu : public Backend {
 public:
  const char* name() const override { return "cpu"; }
  std::string description() const override { return "reference kernels; the processor has " + best_simd_target(); }
  Status compile(const Region& region, const CompileOptions& options, std::unique_ptr<Executable>* result) override {
    return Executor::compile(region, options, result);
  }
};

}  // namespace

std::unique_ptr<Backend> make_backend(const std::string& name) {
  if (name == "cpu") return std::make_unique<Cpu>();
  return nullptr;
}

}  // namespace litefuse
