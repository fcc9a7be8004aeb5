#include <map>
#include <mutex>

#include "backends/backend.h"
#include "kernels/simd/simd.h"
#include "region/executor.h"

namespace litefuse {
namespace {

// The fast kernels, with the reference kernels for what they do not cover.
class Cpu : public Backend {
 public:
  const char* name() const override { return "cpu"; }
  std::string description() const override { return "vector kernels for " + simd_name(); }
  Status compile(const Region& region, const CompileOptions& options, std::unique_ptr<Executable>* result) override {
    return Executor::compile(region, options, threads(options.threads), result);
  }

 private:
  // Regions that want as many threads share them.
  std::shared_ptr<Threads> threads(int count) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Threads> found = threads_[count].lock();
    if (found == nullptr) threads_[count] = found = std::make_shared<Threads>(count);
    return found;
  }

  std::mutex mutex_;
  std::map<int, std::weak_ptr<Threads>> threads_;
};

// The reference kernels alone: slow, and equal to TFLite's own reference kernels to the bit.
class ReferenceCpu : public Backend {
 public:
  const char* name() const override { return "reference"; }
  std::string description() const override { return "reference kernels"; }
  Status compile(const Region& region, const CompileOptions& options, std::unique_ptr<Executable>* result) override {
    return Executor::compile(region, options, nullptr, result);
  }
};

}  // namespace

std::unique_ptr<Backend> make_backend(const std::string& name) {
  if (name == "cpu") return std::make_unique<Cpu>();
  if (name == "reference") return std::make_unique<ReferenceCpu>();
  return nullptr;
}

}  // namespace litefuse
