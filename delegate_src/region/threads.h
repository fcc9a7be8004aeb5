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
  uint32_t round() const { return unpacked(ticket_.load(std::memory_order_acquire)).round; }

  // Which round it is, its number of tasks and the next of them, in one word: who takes a task by exchanging it knows
  // that the round was still open, and a worker that comes late disturbs nobody.
  struct Ticket {
    uint32_t round;
    uint32_t tasks;
    uint32_t next;
  };
  static uint64_t packed(const Ticket& t) { return uint64_t{t.round} << 32 | uint64_t{t.tasks} << 16 | t.next; }
  static Ticket unpacked(uint64_t word) {
    return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word >> 16 & 0xffff),
            static_cast<uint32_t>(word & 0xffff)};
  }

  int count_;
  std::atomic<bool> busy_{false};  // whether a caller's work is being done
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int> done_{0};      // tasks of this round that are finished
  std::atomic<int> sleepers_{0};  // workers that have to be woken
  std::atomic<bool> stop_{false};
  // Written before the ticket of a round, and read by those who have taken a task of it.
  Function function_ = nullptr;
  const void* context_ = nullptr;
};

}  // namespace litefuse
