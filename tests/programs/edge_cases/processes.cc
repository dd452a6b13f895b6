// fork, vfork, exec and spawn, before and after CUDA is up.
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "cases.h"
#include "tests/simulated_cuda/newest_cuda_runtime.h"

extern char** environ;

using namespace edge_cases;

namespace {

int Wait(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int Spawn(const char* program, const char* argument) {
  char* const arguments[] = {const_cast<char*>(program), const_cast<char*>(argument), nullptr};
  pid_t child = 0;
  if (posix_spawn(&child, program, nullptr, nullptr, arguments, environ) != 0) return -1;
  return Wait(child);
}

}  // namespace

EDGE_CASE(fork_before_cuda) {
  std::vector<pid_t> children;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      for (int j = 0; j <= i; ++j) Allocate(1024);
      // Every second one leaves by exit with its destructors.
      i % 2 == 0 ? exit(i) : _exit(i);
    }
    children.push_back(child);
  }
  int sum = 0;
  for (const pid_t child : children) sum += Wait(child);
  Release(Allocate(100));
  printf("children's codes add up to %d\n", sum);
  return 0;
}

EDGE_CASE(fork_after_cuda) {
  void* kept = Allocate(4096);
  int refused = 0;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      void* p = nullptr;
      const cudaError_t error = cudaMalloc(&p, 100);
      i % 2 == 0 ? exit(error == cudaErrorInitializationError) : _exit(error == cudaErrorInitializationError);
    }
    refused += Wait(child);
    Release(Allocate(static_cast<size_t>(i) + 1));
  }
  Release(kept);
  printf("%d children were refused\n", refused);
  return 0;
}

// Forks while other threads are inside the driver and the recorder.
EDGE_CASE(fork_storm) {
  Release(Allocate(1));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&stop] {
      while (!stop) {
        Release(Allocate(2048));
        std::this_thread::yield();
      }
    });
  }
  int sum = 0;
  for (int i = 0; i < 40; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      void* p = nullptr;
      _exit(cudaMalloc(&p, 100) == cudaErrorInitializationError ? 1 : 2);
    }
    sum += Wait(child);
  }
  stop = true;
  for (auto& t : threads) t.join();
  printf("children's codes add up to %d\n", sum);
  return 0;
}

EDGE_CASE(fork_grandchildren) {
  const pid_t child = fork();
  if (child == 0) {
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      Allocate(3000);
      exit(3);
    }
    exit(10 + Wait(grandchild));
  }
  printf("%d\n", Wait(child));
  return 0;
}

EDGE_CASE(spawn_and_exec) {
  Allocate(8192);
  printf("true: %d\n", Spawn("/bin/true", nullptr));
  printf("false: %d\n", Spawn("/bin/false", nullptr));
  fflush(stdout);
  printf("system: %d\n", system("exit 5") >> 8);
  fflush(stdout);
  const pid_t child = vfork();
  if (child == 0) {
    execl("/bin/echo", "echo", "from a vforked child", nullptr);
    _exit(127);
  }
  printf("vfork: %d\n", Wait(child));
  return 0;
}
