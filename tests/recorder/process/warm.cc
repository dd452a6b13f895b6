// Records events on a warm thread and counts what it must not do there: allocate, lock, enter the kernel.
// Every allocation function and pthread_mutex_lock are replaced by counting ones; system calls are trapped by
// a seccomp filter that lets through only what the end of the program needs. Exit status 0 = none of it.
#include <dlfcn.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "recorder/lock.h"
#include "recorder/recorder.h"
#include "tests/recorder/process/workload.h"

namespace {

__thread bool t_counting = false;
__thread unsigned long t_allocations = 0;
__thread unsigned long t_mutexes = 0;
volatile sig_atomic_t g_system_calls = 0;
volatile sig_atomic_t g_last_system_call = -1;

}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t bytes) {
  t_allocations += t_counting;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  t_allocations += t_counting;
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  t_allocations += t_counting;
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  t_allocations += t_counting;
  return __libc_memalign(alignment, bytes);
}
void free(void* memory) {
  t_allocations += t_counting && memory != nullptr;
  __libc_free(memory);
}
}

namespace gpumemtrace::tests {
namespace {

void OnSystemCall(int, siginfo_t* info, void*) {
  g_system_calls = g_system_calls + 1;
  g_last_system_call = info->si_syscall;
}

// From now on every system call of this thread raises SIGSYS, but for these.
bool TrapSystemCalls() {
  struct sigaction action {};
  action.sa_sigaction = OnSystemCall;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(SIGSYS, &action, nullptr) != 0) return false;
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{sizeof filter / sizeof filter[0], filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

__attribute__((noinline)) void Record(uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; ++i) {
    recorder::Event event = WorkloadEvent(0, i);
    if (event.kind == recorder::EventKind::kBlockFree) event.sequence = recorder::ReserveSequence();
    recorder::Record(event);
  }
}

int Main() {
  recorder::Initialize({kDriverNames, static_cast<uint16_t>(std::size(kDriverNames))});
  constexpr uint64_t kWarmUp = 2000;
  // Fewer than fill half a ring: beyond that the writer is woken, which is one system call for thousands.
  constexpr uint64_t kEvents = 3000;
  Record(0, kWarmUp);
  if (!TrapSystemCalls()) {
    dprintf(2, "seccomp is not available here\n");
    return 77;
  }
  const uint64_t locks = recorder::t_lock_acquisitions;
  const long before = g_system_calls;
  t_counting = true;
  Record(kWarmUp, kWarmUp + kEvents);
  t_counting = false;
  // Before anything else is called.
  const uint64_t taken = recorder::t_lock_acquisitions - locks;
  const long system_calls = g_system_calls - before;
  const int last = g_last_system_call;
  dprintf(1, "%lu allocations, %llu locks, %lu mutexes, %ld system calls (last: %d)\n", t_allocations,
          static_cast<unsigned long long>(taken), t_mutexes, system_calls, last);
  _exit(t_allocations == 0 && taken == 0 && t_mutexes == 0 && system_calls == 0 ? 0 : 1);
}

}  // namespace
}  // namespace gpumemtrace::tests

// libunwind's own locks, too. Its calls bind to this one.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) {
  t_mutexes += t_counting;
  using Function = int (*)(pthread_mutex_t*);
  static Function original = nullptr;
  if (original == nullptr) {
    original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  }
  return original(mutex);
}

int main() {
  return gpumemtrace::tests::Main();
}
