// Threads: thousands of them, with small stacks, with destructors that allocate.
#include <pthread.h>
#include <stdio.h>

#include <atomic>
#include <latch>
#include <thread>

#include "cases.h"

using namespace edge_cases;

namespace {

struct AllocatesWhenDestroyed {
  bool armed = false;
  void* kept = nullptr;
  ~AllocatesWhenDestroyed() {
    if (!armed) return;
    Release(kept);
    Release(Allocate(777));
  }
};

thread_local AllocatesWhenDestroyed t_object;

pthread_key_t g_key;

void KeyDestructor(void* value) {
  Release(value);
  // Runs again until the limit of rounds: the last allocations come very late in the thread's life.
  static thread_local int rounds = 0;
  if (++rounds < 4) pthread_setspecific(g_key, Allocate(333));
}

std::atomic<int> g_done{0};

void* UseLittleStack(void*) {
  for (int i = 0; i < 5; ++i) Release(Allocate(4096));
  g_done.fetch_add(1);
  return nullptr;
}

}  // namespace

EDGE_CASE(thread_local_destructors) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([] {
        t_object.armed = true;
        t_object.kept = Allocate(555);
      });
    }
    for (auto& t : threads) t.join();
  }
  puts("joined");
  return 0;
}

EDGE_CASE(thread_key_destructors) {
  pthread_key_create(&g_key, KeyDestructor);
  for (int i = 0; i < 100; ++i) std::thread([] { pthread_setspecific(g_key, Allocate(222)); }).join();
  puts("joined");
  return 0;
}

EDGE_CASE(small_stacks) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 * 1024);
  for (int round = 0; round < 10; ++round) {
    pthread_t threads[16];
    for (auto& t : threads) {
      if (pthread_create(&t, &attributes, UseLittleStack, nullptr) != 0) return 1;
    }
    for (auto& t : threads) pthread_join(t, nullptr);
  }
  printf("%d threads\n", g_done.load());
  return 0;
}

EDGE_CASE(many_threads) {
  const int count = arguments.empty() ? 2000 : std::stoi(arguments[0]);
  for (int i = 0; i < count; i += 8) {
    std::vector<std::thread> threads;
    for (int j = 0; j < 8; ++j) threads.emplace_back([] { UseLittleStack(nullptr); });
    for (auto& t : threads) t.join();
  }
  printf("%d threads\n", g_done.load());
  return 0;
}

EDGE_CASE(all_at_once) {
  std::vector<std::thread> threads;
  // The process's first use of CUDA, by all of them together.
  std::latch begin(64);
  for (int i = 0; i < 64; ++i) {
    threads.emplace_back([i, &begin] {
      begin.arrive_and_wait();
      std::vector<void*> kept;
      for (int j = 0; j < 200; ++j) {
        kept.push_back(Allocate(512 + static_cast<size_t>(i)));
        if (j % 3 == 2) {
          Release(kept.back());
          kept.pop_back();
        }
      }
      for (size_t k = 1; k < kept.size(); ++k) Release(kept[k]);
    });
  }
  for (auto& t : threads) t.join();
  puts("64 blocks left");
  return 0;
}

EDGE_CASE(detached_at_exit) {
  // Threads that are still allocating while main returns.
  for (int i = 0; i < 4; ++i) {
    std::thread([] {
      for (;;) Release(Allocate(4096));
    }).detach();
  }
  for (int i = 0; i < 1000; ++i) Release(Allocate(512));
  puts("main returns");
  return 0;
}
