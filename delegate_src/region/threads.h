// Threads that share the work of one region.
//
// Why not a library: what is needed is one loop over a few bands, with the caller as one of the workers and a wait of
// microseconds; pthreadpool does it well, but is in no package manager of Android's or Python's, has no release since
// 2021, and would be the delegate's only dependency that has to be compiled along. The runtime's own pool cannot be had
// through its C interface.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace litefuse {

class Threads {
 public:
  // Threads are started when they are first needed.
  explicit Threads(int count) : count_(count < 1 ? 1 : count) {}
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return count_; }

  // Calls work(task, worker) for each task from 0 to tasks - 1 and returns when all are done. Tasks are taken one by one
  // by whoever is free; `worker` tells those apart that work at the same time, from 0 to count() - 1. When the threads
  // are busy with another caller's work, or from inside of work, this thread does all by itself, as worker 0.
  template <typename F>
  void run(int tasks, const F& work) {
    run(
        tasks, [](const void* f, int task, int worker) { (*static_cast<const F*>(f))(task, worker); }, &work);
  }

 private:
  using Function = void (*)(const void* context, int task, int worker);
  void run(int tasks, Function function, const void* context);
  void start();
  void loop(int worker);
  void take_tasks(int worker);

  int count_;
  std::mutex busy_;  // held by the caller whose work is being done
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
  std::atomic<uint32_t> round_{0};  // counts what run() has given out
  std::atomic<int> next_{0};        // the next task
  std::atomic<int> working_{0};     // workers that have not finished this round
  int tasks_ = 0;
  Function function_ = nullptr;
  const void* context_ = nullptr;
  bool stop_ = false;
};

}  // namespace litefuse
