#include "recorder/stacks/stack_bounds.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

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

// What the C library's descriptor of a thread, which lies where the thread pointer points to, says of its
// stack.
struct Block {
  // Guard pages included.
  uint64_t low;
  uint64_t bytes;
  uint64_t guard;
};
// Where in the descriptor, in words; 0 = not known (no library has it there).
std::atomic<uint32_t> g_block_place{0};

const uint64_t* Descriptor() {
  return static_cast<const uint64_t*>(__builtin_thread_pointer());
}

// The descriptor lies in the same block as the stack, above it.
bool IsBlockOf(const Block& block, const uint64_t* descriptor) {
  return block.guard % 4096 == 0 && block.guard < block.bytes &&
         reinterpret_cast<uint64_t>(descriptor) - block.low < block.bytes;
}

// Allocates and frees.
StackBounds AskForThreadStack() {
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

StackBounds ThreadStack() {
  if (const uint32_t place = g_block_place.load(std::memory_order_relaxed); place != 0) {
    Block block;
    std::memcpy(&block, Descriptor() + place, sizeof block);
    if (IsBlockOf(block, Descriptor())) return {block.low + block.guard, block.low + block.bytes};
  }
  return AskForThreadStack();
}

}  // namespace

bool LearnWhereBoundsAre() {
  if (g_block_place.load(std::memory_order_relaxed) != 0) return true;
  if (getpid() == static_cast<pid_t>(syscall(SYS_gettid))) return false;
  const StackBounds bounds = AskForThreadStack();
  const uint64_t* descriptor = Descriptor();
  // Descriptors of today have less than 4 KiB.
  const uint64_t last = std::min(reinterpret_cast<uint64_t>(descriptor) + 4096, bounds.high);
  for (uint32_t place = 1; reinterpret_cast<uint64_t>(descriptor + place) + sizeof(Block) <= last; ++place) {
    Block block;
    std::memcpy(&block, descriptor + place, sizeof block);
    // Older libraries do not tell the guard apart.
    if (!IsBlockOf(block, descriptor) || block.low + block.bytes != bounds.high ||
        (block.low + block.guard != bounds.low && block.low != bounds.low)) {
      continue;
    }
    g_block_place.store(place, std::memory_order_relaxed);
    return true;
  }
  return false;
}

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
