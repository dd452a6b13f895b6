#include "recorder/stacks/libunwind_api.h"

#include <dlfcn.h>

#include <atomic>

#if GPUMEMTRACE_LIBUNWIND_STATIC
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#define UNW_LOCAL_ONLY
#include <libunwind.h>

// libunwind finds out whether memory is readable by writing it into a pipe that it keeps open. Two
// descriptors among the host's would change the numbers that its own files get, and a host that closes
// descriptors it does not know and opens a file of its own under that number would find our bytes in it. The
// archive that scripts/build_libunwind.sh makes therefore calls these in place of pipe2, read and syscall.
extern "C" {
int gpumemtrace_unwind_pipe2(int* descriptors, int flags);
ssize_t gpumemtrace_unwind_read(int descriptor, void* to, size_t size);
long gpumemtrace_unwind_syscall(long number, long a, long b, long c);
}

// There is no pipe.
int gpumemtrace_unwind_pipe2(int* descriptors, int) {
  descriptors[0] = descriptors[1] = -1;
  errno = EMFILE;
  return -1;
}

// The pipe that is not there is empty.
ssize_t gpumemtrace_unwind_read(int descriptor, void* to, size_t size) {
  if (descriptor != -1) return read(descriptor, to, size);
  errno = EAGAIN;
  return -1;
}

// Writing to the pipe: the kernel says whether it could read the memory. Where it may not tell (a container's
// filter), mincore has already said that the page is there.
long gpumemtrace_unwind_syscall(long number, long a, long b, long c) {
  if (number != SYS_write || static_cast<int>(a) != -1) return syscall(number, a, b, c);
  char copy[16];
  const auto wanted = static_cast<size_t>(c);
  const size_t size = wanted < sizeof(copy) ? wanted : sizeof(copy);
  const iovec to{copy, size};
  const iovec from{reinterpret_cast<void*>(b), size};
  errno = 0;
  const long got = syscall(SYS_process_vm_readv, getpid(), &to, 1, &from, 1, 0);
  if (got > 0) return got;
  const bool unreadable = errno == EFAULT;
  errno = 0;
  return unreadable ? -1 : c;
}
#endif

namespace gpumemtrace::recorder::stacks {

#if GPUMEMTRACE_LIBUNWIND_STATIC

namespace {

constinit std::atomic<bool> g_used{false};

}  // namespace

const char* PrepareLibunwind() {
  return nullptr;
}

bool HaveLibunwind() {
  return true;
}

int LibunwindBacktrace(std::span<void*> addresses) {
  if (!g_used.exchange(true, std::memory_order_acq_rel)) {
    // The default cache is shared and guarded by a lock with all signals blocked: two system calls for each
    // new address.
    unw_set_caching_policy(unw_local_addr_space, UNW_CACHE_PER_THREAD);
  }
  return unw_backtrace(addresses.data(), static_cast<int>(addresses.size()));
}

void LibunwindForget() {
  if (g_used.load(std::memory_order_acquire)) unw_flush_cache(unw_local_addr_space, 0, 0);
}

#else

namespace {

// Names that libunwind's own header gives to these functions on x86-64. The caching policy value is
// UNW_CACHE_PER_THREAD; an address space is an opaque pointer.
constexpr int kCachePerThread = 2;
using Backtrace = int (*)(void**, int);
using SetCachingPolicy = int (*)(void*, int);
using FlushCache = void (*)(void*, unsigned long, unsigned long);

constinit std::atomic<Backtrace> g_backtrace{nullptr};
constinit std::atomic<FlushCache> g_flush{nullptr};
constinit std::atomic<void**> g_space{nullptr};
constinit std::atomic<SetCachingPolicy> g_set_policy{nullptr};
constinit std::atomic<bool> g_used{false};

}  // namespace

const char* PrepareLibunwind() {
  if (g_backtrace.load(std::memory_order_acquire) != nullptr) return nullptr;
  void* handle = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return "libunwind.so.8 is not installed: native stacks end at code without unwind tables";
  }
  auto* space = static_cast<void**>(dlsym(handle, "_ULx86_64_local_addr_space"));
  auto set_policy = reinterpret_cast<SetCachingPolicy>(dlsym(handle, "_ULx86_64_set_caching_policy"));
  auto flush = reinterpret_cast<FlushCache>(dlsym(handle, "_Ux86_64_flush_cache"));
  auto backtrace = reinterpret_cast<Backtrace>(dlsym(handle, "unw_backtrace"));
  if (backtrace == nullptr) return "libunwind.so.8 has no unw_backtrace: native stacks may be cut short";
  g_set_policy.store(set_policy, std::memory_order_release);
  if (space != nullptr && flush != nullptr) {
    g_flush.store(flush, std::memory_order_release);
    g_space.store(space, std::memory_order_release);
  }
  g_backtrace.store(backtrace, std::memory_order_release);
  return nullptr;
}

bool HaveLibunwind() {
  return g_backtrace.load(std::memory_order_acquire) != nullptr;
}

int LibunwindBacktrace(std::span<void*> addresses) {
  const Backtrace backtrace = g_backtrace.load(std::memory_order_acquire);
  // Its first call opens a pipe, which we cannot prevent here: not before a stack needs it.
  if (backtrace != nullptr && !g_used.exchange(true, std::memory_order_acq_rel)) {
    void** space = g_space.load(std::memory_order_acquire);
    const SetCachingPolicy set_policy = g_set_policy.load(std::memory_order_acquire);
    if (space != nullptr && set_policy != nullptr) set_policy(*space, kCachePerThread);
  }
  return backtrace != nullptr ? backtrace(addresses.data(), static_cast<int>(addresses.size())) : -1;
}

void LibunwindForget() {
  void** space = g_space.load(std::memory_order_acquire);
  const FlushCache flush = g_flush.load(std::memory_order_acquire);
  if (!g_used.load(std::memory_order_acquire)) return;
  if (space != nullptr && flush != nullptr) flush(*space, 0, 0);
}

#endif

}  // namespace gpumemtrace::recorder::stacks
