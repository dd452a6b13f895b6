#include "recorder/stacks/stack_bounds.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

// The dynamic loader's record of where the main thread's stack began.
extern "C" void* __libc_stack_end __attribute__((weak));

namespace gpumemtrace::recorder::stacks {
namespace {

// pthread_getattr_np would read /proc/self/maps for the main thread, and allocate.
StackBounds MainStack() {
  if (&__libc_stack_end == nullptr || __libc_stack_end == nullptr) return {};
  // The kernel leaves at least this much room below the start, and lets nothing else be mapped there.
  constexpr uint64_t kLeast = uint64_t{8} << 20;
  constexpr uint64_t kMost = uint64_t{1} << 32;
  uint64_t room = kLeast;
  rlimit limit;
  if (getrlimit(RLIMIT_STACK, &limit) == 0) {
    room = limit.rlim_cur == RLIM_INFINITY ? kMost : limit.rlim_cur;
    if (room < kLeast) room = kLeast;
    if (room > kMost) room = kMost;
  }
  const uint64_t high = reinterpret_cast<uint64_t>(__libc_stack_end) + sizeof(void*);
  return {high - room, high};
}

StackBounds ThreadStack() {
  StackBounds bounds;
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return bounds;
  void* address = nullptr;
  size_t size = 0;
  if (pthread_attr_getstack(&attributes, &address, &size) == 0) {
    bounds.low = reinterpret_cast<uint64_t>(address);
    bounds.high = bounds.low + size;
  }
  pthread_attr_destroy(&attributes);
  return bounds;
}

}  // namespace

StackBounds FindStackBounds(uint64_t stack_pointer) {
  if (getpid() == static_cast<pid_t>(syscall(SYS_gettid))) {
    const StackBounds main = MainStack();
    if (main.Contains(stack_pointer)) return main;
  }
  // Also for the only thread of a forked child, when another thread than the main one forked.
  const StackBounds bounds = ThreadStack();
  return bounds.Contains(stack_pointer) ? bounds : StackBounds{};
}

StackBounds FindSignalStack(uint64_t stack_pointer) {
  stack_t stack{};
  if (sigaltstack(nullptr, &stack) != 0 || (stack.ss_flags & SS_DISABLE) != 0) return {};
  const auto low = reinterpret_cast<uint64_t>(stack.ss_sp);
  const StackBounds bounds{low, low + stack.ss_size};
  return bounds.Contains(stack_pointer) ? bounds : StackBounds{};
}

}  // namespace gpumemtrace::recorder::stacks
