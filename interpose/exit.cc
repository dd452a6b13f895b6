// The ends of a process that we can see: exit (our destructor), and _exit, _Exit and quick_exit, by which
// multiprocessing's children and many a shell-like program leave without running destructors. What ends
// otherwise is read from the rings.
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "interpose/activation.h"
#include "interpose/original.h"
#include "recorder/recorder.h"

namespace gpumemtrace::interpose {
namespace {

// The process whose trace this is. A child of vfork shares our memory and must not touch the trace when it
// leaves by _exit after a failed exec.
std::atomic<pid_t> owner{0};

void SetOwner() {
  owner.store(getpid(), std::memory_order_relaxed);
}

// Looked up early: _exit must work in a signal handler and in the child of a threaded process.
constinit NextFunction next_exit("_exit");
constinit NextFunction next_Exit("_Exit");
constinit NextFunction next_quick_exit("quick_exit");

__attribute__((constructor)) void RememberOwner() {
  next_exit.Get();
  next_Exit.Get();
  next_quick_exit.Get();
  if (Enabled()) {
    SetOwner();
    pthread_atfork(nullptr, nullptr, SetOwner);
  }
}

void FinishHere() {
  if (owner.load(std::memory_order_relaxed) == getpid() && recorder::Active()) {
    recorder::Finish();
  }
}

__attribute__((destructor)) void FinishAtExit() {
  FinishHere();
}

// _exit is also what a crash handler calls, on a signal stack that may be too small to finish a trace on. The
// rings hold everything then.
bool OnSignalStack() {
  stack_t stack{};
  return sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_ONSTACK) != 0;
}

[[noreturn]] void Leave(NextFunction& function, int status) {
  if (!OnSignalStack()) {
    FinishHere();
  }
  if (void* next = function.Get(); next != nullptr) {
    reinterpret_cast<void (*)(int)>(next)(status);
  }
  for (;;) {
    syscall(SYS_exit_group, status);
  }
}

}  // namespace
}  // namespace gpumemtrace::interpose

#define GPUMEMTRACE_EXPORTED extern "C" __attribute__((visibility("default"), noreturn))

GPUMEMTRACE_EXPORTED void _exit(int status) {
  gpumemtrace::interpose::Leave(gpumemtrace::interpose::next_exit, status);
}
GPUMEMTRACE_EXPORTED void _Exit(int status) {
  gpumemtrace::interpose::Leave(gpumemtrace::interpose::next_Exit, status);
}
GPUMEMTRACE_EXPORTED void quick_exit(int status) {
  gpumemtrace::interpose::Leave(gpumemtrace::interpose::next_quick_exit, status);
}
