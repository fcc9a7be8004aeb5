#include "region/threads.h"

#include <chrono>

namespace litefuse {
namespace {

// How long a worker waits for more work before it sleeps: regions follow one another within microseconds.
constexpr auto kPatience = std::chrono::microseconds(100);

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace

Threads::~Threads() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    round_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Threads::start() {
  if (!workers_.empty()) return;
  workers_.reserve(static_cast<size_t>(count_ - 1));
  for (int i = 1; i < count_; ++i) workers_.emplace_back([this, i] { loop(i); });
}

void Threads::run(int tasks, Function function, const void* context) {
  std::unique_lock<std::mutex> busy(busy_, std::defer_lock);
  if (tasks < 2 || count_ < 2 || !busy.try_lock()) {
    for (int task = 0; task < tasks; ++task) function(context, task, 0);
    return;
  }
  start();
  function_ = function;
  context_ = context;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  working_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    round_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  take_tasks(0);
  // Every worker has to have seen this round, since the next one overwrites what they read.
  while (working_.load(std::memory_order_acquire) > 0) pause();
}

void Threads::take_tasks(int worker) {
  for (int task = next_.fetch_add(1, std::memory_order_relaxed); task < tasks_;
       task = next_.fetch_add(1, std::memory_order_relaxed)) {
    function_(context_, task, worker);
  }
}

void Threads::loop(int worker) {
  uint32_t seen = 0;
  for (;;) {
    const auto patience = std::chrono::steady_clock::now() + kPatience;
    while (round_.load(std::memory_order_acquire) == seen && std::chrono::steady_clock::now() < patience) pause();
    if (round_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != seen; });
    }
    ++seen;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stop_) return;
    }
    take_tasks(worker);
    working_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace litefuse
