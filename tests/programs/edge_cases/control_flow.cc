// Exceptions, longjmp, signals, alternate stacks, errno.
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>

#include "cases.h"
#include "tests/simulated_cuda/newest_cuda_runtime.h"

using namespace edge_cases;

namespace {

__attribute__((noinline)) void ThrowAt(int depth, std::vector<void*>& kept) {
  kept.push_back(Allocate(1000 + static_cast<size_t>(depth)));
  struct Guard {
    std::vector<void*>& kept;
    // Freed while the exception is on its way.
    ~Guard() {
      Release(kept.back());
      kept.pop_back();
    }
  } guard{kept};
  if (depth == 0) throw std::runtime_error("thrown");
  ThrowAt(depth - 1, kept);
}

jmp_buf g_jump;

__attribute__((noinline)) void JumpAt(int depth, std::vector<void*>& kept) {
  if (depth < 0) return;
  kept.push_back(Allocate(2000));
  if (depth == 0) longjmp(g_jump, 1);
  JumpAt(depth - 1, kept);
}

volatile sig_atomic_t g_handled = 0;
void* g_from_handler = nullptr;

void AllocateInHandler(int) {
  cudaMalloc(&g_from_handler, 4096);
  g_handled = g_handled + 1;
}

void Count(int) {
  g_handled = g_handled + 1;
}

}  // namespace

EDGE_CASE(throw_through_frames) {
  std::vector<void*> kept;
  int caught = 0;
  for (int i = 0; i < 200; ++i) {
    try {
      ThrowAt(i % 40, kept);
    } catch (const std::runtime_error&) {
      ++caught;
    }
  }
  printf("caught %d, kept %zu\n", caught, kept.size());
  return 0;
}

EDGE_CASE(longjmp_over_frames) {
  // Not touched between setjmp and longjmp other than through its contents.
  static auto* const kept = new std::vector<void*>;
  static int jumps = 0;
  if (setjmp(g_jump) != 0) ++jumps;
  if (jumps < 100) JumpAt(jumps % 20, *kept);
  printf("%d jumps, %zu blocks\n", jumps, kept->size());
  for (void* p : *kept) Release(p);
  return 0;
}

EDGE_CASE(alternate_signal_stack) {
  Release(Allocate(1));
  constexpr size_t kSize = 64 * 1024;
  void* memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  stack_t stack{};
  stack.ss_sp = memory;
  stack.ss_size = kSize;
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = AllocateInHandler;
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR1, &action, nullptr);
  for (int i = 0; i < 50; ++i) {
    raise(SIGUSR1);
    Release(g_from_handler);
  }
  printf("handled %d\n", static_cast<int>(g_handled));
  return 0;
}

// What the program sees of signals and errno is its own.
EDGE_CASE(signal_state_and_errno) {
  sigset_t before;
  sigset_t after;
  sigemptyset(&before);
  sigaddset(&before, SIGUSR2);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  signal(SIGUSR1, Count);
  int kept = 0;
  for (int i = 0; i < 2000; ++i) {
    errno = 1234 + i;
    void* p = nullptr;
    cudaMalloc(&p, 512);
    kept += errno == 1234 + i;
    errno = 77;
    cudaFree(p);
    kept += errno == 77;
    if (i % 100 == 0) kill(getpid(), SIGUSR1);
  }
  sigprocmask(SIG_SETMASK, nullptr, &after);
  int different = 0;
  for (int s = 1; s < NSIG; ++s) different += sigismember(&before, s) != sigismember(&after, s);
  struct sigaction action {};
  int handlers = 0;
  for (int s = 1; s < NSIG; ++s) {
    if (sigaction(s, nullptr, &action) == 0 && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) {
      handlers += s == SIGUSR1 ? 1 : 1000;
    }
  }
  printf("errno kept %d, mask differs in %d, handlers %d, handled %d\n", kept, different, handlers,
         static_cast<int>(g_handled));
  return 0;
}

EDGE_CASE(die) {
  for (int i = 0; i < 100; ++i) Allocate(4096);
  const std::string& how = arguments.at(0);
  printf("about to die of %s\n", how.c_str());
  fflush(stdout);
  if (how == "_exit") _exit(7);
  if (how == "exit") return 9;
  if (how == "abort") abort();
  if (how == "SIGTERM") raise(SIGTERM);
  if (how == "SIGINT") raise(SIGINT);
  if (how == "SIGKILL") raise(SIGKILL);
  if (how == "SIGSEGV") {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
  if (how == "exec") execl("/bin/echo", "echo", "after exec", nullptr);
  return 64;
}
