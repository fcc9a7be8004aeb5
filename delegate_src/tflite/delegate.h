// The delegate: what of a model it claims, and the kernels that the runtime calls for what it claimed.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "region/region.h"
#include "tflite/abi.h"

namespace litefuse {

struct Options {
  int threads = 0;  // 0: as many as the runtime recommends
  std::string backend = "cpu";
  bool winograd = true;  // Winograd's algorithm may be used where the file does not say otherwise
  bool verbose = false;
  bool profile = false;

  // Reads the plugin's options. Refuses unknown ones and values that make no sense.
  static Status parse(const char* const* keys, const char* const* values, size_t count, Options* options);
};

class RegionKernel;

// One instance serves any number of interpreters, at the same time too. Its kernels share its ownership: a program that
// destroys the delegate before the interpreters is wrong, but garbage collectors do just that.
class LitefuseDelegate : public std::enable_shared_from_this<LitefuseDelegate> {
 public:
  // The delegate owns itself until release() is called.
  static Status create(const Options& options, LitefuseDelegate** result);
  void release();

  abi::Delegate* native() { return &native_; }

  // What was claimed and what was not, and the times taken if `profile` is on, as a JSON document (see
  // include/litefuse/litefuse.h).
  std::string report() const;
  void clear_profile();

 private:
  friend class RegionKernel;
  struct Claim;
  struct Scratch;
  // The decomposition of composites that are claimed.
  struct Decomposition {
    int users = 0;  // kernels that stand for one of the composites
    std::shared_ptr<const Region> region;
    std::vector<int> inputs;  // tensors of the decomposition
    std::vector<int> outputs;
    bool winograd = true;
  };

  LitefuseDelegate(const Options& options, std::unique_ptr<Backend> backend);

  static int prepare(abi::Context* context, abi::Delegate* delegate);
  int claim(abi::Context* context);
  Status claim_decomposition(abi::Context* context, const std::vector<int>& nodes);
  const RegionKernel* dormant_kernel(abi::Context* context, const std::vector<int>& nodes) const;
  Status compile_wrapped(abi::Context* context, int node, Claim* claim);
  Status compile_planned(abi::Context* context, Claim* claim);
  Status replace(abi::Context* context, const std::vector<int>& nodes, Claim* claim);
  std::vector<Claim> read_plan(abi::Context* context);
  CompileOptions compile_options(abi::Context* context, const Advice& advice) const;
  std::shared_ptr<Scratch> scratch_of(abi::Context* context);
  // A name that lives as long as the delegate.
  const char* keep(const std::string& name);
  void log(const char* format, ...) const __attribute__((format(printf, 2, 3)));
  void refused(const std::string& what, const Status& why);

  std::shared_ptr<LitefuseDelegate> self_;
  abi::Delegate native_{};
  Options options_;
  std::unique_ptr<Backend> backend_;
  mutable std::recursive_mutex mutex_;  // of all that follows
  std::set<std::string> names_;
  std::set<RegionKernel*> kernels_;
  std::map<const abi::Context*, std::weak_ptr<Scratch>> scratches_;
  std::map<const abi::Context*, Decomposition> decompositions_;  // by their own context
  std::vector<std::pair<std::string, std::string>> refusals_;    // what was left to the runtime, and why
  Claim* pending_ = nullptr;                                     // what the runtime is making a kernel for
};

}  // namespace litefuse
