#include "recorder/stacks/libunwind_api.h"

#include <dlfcn.h>

#include <atomic>

#if GPUMEMTRACE_LIBUNWIND_STATIC
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#endif

namespace gpumemtrace::recorder::stacks {

#if GPUMEMTRACE_LIBUNWIND_STATIC

const char* PrepareLibunwind() {
  // The default cache is shared and guarded by a lock with all signals blocked: two system calls for each
  // new address.
  unw_set_caching_policy(unw_local_addr_space, UNW_CACHE_PER_THREAD);
  return nullptr;
}

int LibunwindBacktrace(std::span<void*> addresses) {
  return unw_backtrace(addresses.data(), static_cast<int>(addresses.size()));
}

void LibunwindForget() {
  unw_flush_cache(unw_local_addr_space, 0, 0);
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
  if (space != nullptr && set_policy != nullptr) set_policy(*space, kCachePerThread);
  if (space != nullptr && flush != nullptr) {
    g_flush.store(flush, std::memory_order_release);
    g_space.store(space, std::memory_order_release);
  }
  g_backtrace.store(backtrace, std::memory_order_release);
  return nullptr;
}

int LibunwindBacktrace(std::span<void*> addresses) {
  const Backtrace backtrace = g_backtrace.load(std::memory_order_acquire);
  return backtrace != nullptr ? backtrace(addresses.data(), static_cast<int>(addresses.size())) : -1;
}

void LibunwindForget() {
  void** space = g_space.load(std::memory_order_acquire);
  const FlushCache flush = g_flush.load(std::memory_order_acquire);
  if (space != nullptr && flush != nullptr) flush(*space, 0, 0);
}

#endif

}  // namespace gpumemtrace::recorder::stacks
