#include "region/threads.h"

#include <chrono>

#include "region/denormals.h"

namespace litefuse {
namespace {

// How long a worker waits for more work before it sleeps: regions follow one another within microseconds.
constexpr auto kPatience = std::chrono::microseconds(100);
constexpr int kSpins = 2000;
constexpr int kMostTasks = 0xffff;

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
    stop_.store(true, std::memory_order_release);
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
  if (tasks < 2 || tasks > kMostTasks || count_ < 2 || busy_.exchange(true, std::memory_order_acquire)) {
    for (int task = 0; task < tasks; ++task) function(context, task, 0);
    return;
  }
  start();
  function_ = function;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  // Sequential order: either a worker that is about to sleep sees the new round, or it is seen to be asleep here.
  ticket_.store(packed({round() + 1, static_cast<uint32_t>(tasks), 0}), std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  take_tasks(0);
  for (int spins = 0; done_.load(std::memory_order_acquire) < tasks; ++spins) {
    // Whoever has the last task may have lost its core.
    if (spins > kSpins) std::this_thread::yield();
    pause();
  }
  busy_.store(false, std::memory_order_release);
}

void Threads::take_tasks(int worker) {
  uint64_t word = ticket_.load(std::memory_order_acquire);
  for (;;) {
    Ticket ticket = unpacked(word);
    if (ticket.next >= ticket.tasks) return;
    const auto task = static_cast<int>(ticket.next++);
    if (!ticket_.compare_exchange_weak(word, packed(ticket), std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    function_(context_, task, worker);
    done_.fetch_add(1, std::memory_order_release);
    word = ticket_.load(std::memory_order_acquire);
  }
}

void Threads::loop(int worker) {
  const FlushDenormals flush;  // as the thread does whose work this is
  uint32_t seen = 0;
  while (!stop_.load(std::memory_order_acquire)) {
    const auto patience = std::chrono::steady_clock::now() + kPatience;
    while (round() == seen && !stop_.load(std::memory_order_relaxed) && std::chrono::steady_clock::now() < patience) {
      pause();
    }
    if (round() == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] {
        return unpacked(ticket_.load(std::memory_order_seq_cst)).round != seen || stop_.load(std::memory_order_acquire);
      });
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    seen = round();
    take_tasks(worker);
  }
}

}  // namespace litefuse
