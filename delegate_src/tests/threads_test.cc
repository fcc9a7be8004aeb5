#include "region/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace litefuse {
namespace {

TEST(Threads, DoEachTaskOnce) {
  for (const int count : {-1, 0, 1, 2, 3, 8}) {
    Threads threads(count);
    EXPECT_EQ(threads.count(), count < 1 ? 1 : count);
    for (const int tasks : {0, 1, 2, 3, 7, 64}) {
      std::vector<std::atomic<int>> done(static_cast<size_t>(tasks));
      for (int round = 0; round < 20; ++round) {
        threads.run(tasks, [&](int task, int) { done[static_cast<size_t>(task)].fetch_add(1); });
        for (const auto& times : done) ASSERT_EQ(times.load(), round + 1);
      }
    }
  }
}

// What the workers wrote is there when run() returns, and what the caller wrote is there for them, without any lock.
TEST(Threads, SeeWhatTheOthersWrote) {
  Threads threads(3);
  std::vector<int> values(48, 1), sums(48, 0);
  for (int round = 0; round < 2000; ++round) {
    const int tasks = 1 + round % 48;
    threads.run(tasks, [&](int task, int) { sums[static_cast<size_t>(task)] += values[static_cast<size_t>(task)]; });
    for (int task = 0; task < tasks; ++task) {
      ASSERT_EQ(sums[static_cast<size_t>(task)], values[static_cast<size_t>(task)]);
      sums[static_cast<size_t>(task)] = 0;
      ++values[static_cast<size_t>(task)];
    }
  }
}

TEST(Threads, WorkTogether) {
  // Each of two tasks waits for the other: only possible on two threads at once.
  Threads threads(2);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> arrived{0};
    threads.run(2, [&](int, int) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
    });
    ASSERT_EQ(arrived.load(), 2);
  }
}

TEST(Threads, WakeUpAfterAPause) {
  Threads threads(3);
  std::atomic<int> done{0};
  for (int round = 0; round < 10; ++round) {
    threads.run(5, [&](int, int) { done.fetch_add(1); });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(done.load(), 50);
}

TEST(Threads, RunFromInsideOfWork) {
  Threads threads(3);
  std::vector<std::atomic<int>> done(5 * 7);
  for (int round = 0; round < 50; ++round) {
    threads.run(5, [&](int outer, int) {
      threads.run(7, [&](int inner, int) { done[static_cast<size_t>(outer * 7 + inner)].fetch_add(1); });
    });
  }
  for (const auto& times : done) EXPECT_EQ(times.load(), 50);
}

TEST(Threads, RunForSeveralCallers) {
  Threads threads(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      std::vector<int> done(11, 0);
      for (int round = 0; round < 300; ++round) {
        threads.run(11, [&](int task, int) { ++done[static_cast<size_t>(task)]; });
        for (const int times : done) wrong += times != round + 1;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Threads, StopAtAnyTime) {
  for (int round = 0; round < 100; ++round) {
    auto threads = std::make_unique<Threads>(1 + round % 4);
    std::atomic<int> done{0};
    for (int i = 0; i < round % 3; ++i) threads->run(4, [&](int, int) { done.fetch_add(1); });
    threads.reset();
    ASSERT_EQ(done.load(), round % 3 * 4);
  }
}

}  // namespace
}  // namespace litefuse
