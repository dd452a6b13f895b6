// Makes the entry points of the shim from the list of hooks.
//
// A hook has one exported entry and a few dynamic ones. The exported entry is what the loader binds a
// caller's reference to; its original depends on who called (two CUDA runtimes of different versions can
// live in one process). A dynamic entry is handed out in place of one particular function pointer that a
// look-up (dlsym, cuGetProcAddress) returned, and always goes on to that pointer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "interpose/hook_list.h"

namespace gpumemtrace::interpose {

enum class HookId : uint16_t {
#define GPUMEMTRACE_ENUMERATE(symbol, ...) k_##symbol,
  GPUMEMTRACE_ALL_HOOKS(GPUMEMTRACE_ENUMERATE)
#undef GPUMEMTRACE_ENUMERATE
      kCount
};
inline constexpr size_t kHookCount = static_cast<size_t>(HookId::kCount);

enum class Variant : uint8_t { kLegacy, kPerThread };
// Where the original of a hook lives.
enum class Library : uint8_t { kDriver, kRuntime, kLibrary, kTorch };

// CUresult, cudaError_t, ncclResult_t and the like: enumerations of int size whose success is 0.
using Result = int;
// An argument that is only passed on. Every function that is wrapped with words takes integers or pointers
// in registers, so the widest integer carries any of them.
using Word = uintptr_t;

struct HookRow {
  const char* symbol;
  const char* base;
  int since;
  Variant variant;
  Library library;
};
extern const HookRow kHookRows[kHookCount];
// Of the rows: known when an entry is compiled, so that a call does not read the row.
inline constexpr Library kHookLibraries[kHookCount] = {
#define GPUMEMTRACE_LIBRARY(symbol, base, since, variant, library, ...) Library::library,
    GPUMEMTRACE_ALL_HOOKS(GPUMEMTRACE_LIBRARY)
#undef GPUMEMTRACE_LIBRARY
};

constexpr size_t Index(HookId id) {
  return static_cast<size_t>(id);
}
inline const HookRow& Row(HookId id) {
  return kHookRows[Index(id)];
}
// Index into the API names of the recorder; 0 is no name.
constexpr uint16_t ApiOf(HookId id) {
  return static_cast<uint16_t>(Index(id) + 1);
}

// What a wrapper gets besides its arguments: the function that it stands in front of.
template <typename R, typename... Args>
struct Call {
  R (*original)(Args...);
  HookId id;

  R operator()(Args... args) const { return original(args...); }
  Variant variant() const { return Row(id).variant; }
};

// Entry 0 is the exported one.
inline constexpr size_t kEntries = 6;

// The functions behind the dynamic entries (index 1 …), and, at 0, the only original of the hooks that have
// just one.
extern std::atomic<void*> originals[kHookCount][kEntries];

// The original for a call of the exported entry that will return to `return_address`; null when the process
// has none (a weak reference that the loader bound to us).
void* OriginalForCaller(HookId id, const void* return_address);

// What a function answers when no library stands behind it: the error that means "no driver".
uint64_t AnswerWithoutLibrary(HookId id);

template <auto wrapper, HookId id, typename Signature = decltype(wrapper)>
struct Entries;

template <auto wrapper, HookId id, typename R, typename... Args>
struct Entries<wrapper, id, R (*)(Call<R, Args...>, Args...)> {
  template <size_t entry>
  static R Function(Args... args) {
    constexpr Library kLibrary = kHookLibraries[Index(id)];
    // One driver and one PyTorch per process.
    constexpr bool kOneOriginal = kLibrary == Library::kDriver || kLibrary == Library::kTorch;
    void* original =
        entry != 0 || kOneOriginal ? originals[Index(id)][entry].load(std::memory_order_acquire) : nullptr;
    if (entry == 0 && original == nullptr) [[unlikely]] {
      original = OriginalForCaller(id, __builtin_return_address(0));
    }
    if (original == nullptr) [[unlikely]] {
      return static_cast<R>(AnswerWithoutLibrary(id));
    }
    return wrapper(Call<R, Args...>{reinterpret_cast<R (*)(Args...)>(original), id}, args...);
  }
};

// Entry points of every hook; the exported symbols jump through element 0 (exports.cc).
#define GPUMEMTRACE_DECLARE_ENTRIES(symbol, ...) \
  extern "C" __attribute__((visibility("hidden"))) void* const gpumemtrace_entries_##symbol[kEntries];
GPUMEMTRACE_ALL_HOOKS(GPUMEMTRACE_DECLARE_ENTRIES)
#undef GPUMEMTRACE_DECLARE_ENTRIES

#define GPUMEMTRACE_ENTRIES_OF(id, ...)                                                             \
  {                                                                                                 \
    reinterpret_cast<void*>(&::gpumemtrace::interpose::Entries<&__VA_ARGS__, id>::Function<0>),     \
        reinterpret_cast<void*>(&::gpumemtrace::interpose::Entries<&__VA_ARGS__, id>::Function<1>), \
        reinterpret_cast<void*>(&::gpumemtrace::interpose::Entries<&__VA_ARGS__, id>::Function<2>), \
        reinterpret_cast<void*>(&::gpumemtrace::interpose::Entries<&__VA_ARGS__, id>::Function<3>), \
        reinterpret_cast<void*>(&::gpumemtrace::interpose::Entries<&__VA_ARGS__, id>::Function<4>), \
        reinterpret_cast<void*>(&::gpumemtrace::interpose::Entries<&__VA_ARGS__, id>::Function<5>)  \
  }
static_assert(kEntries == 6);

// Put once, with a family's list, into the file that defines the family's wrappers. `symbol` must not reach
// another macro unpasted: cuda.h defines macros of such names.
#define GPUMEMTRACE_DEFINE_ENTRIES(symbol, base, since, variant, library, ...) \
  extern "C" void* const gpumemtrace_entries_##symbol[kEntries] =              \
      GPUMEMTRACE_ENTRIES_OF(::gpumemtrace::interpose::HookId::k_##symbol, __VA_ARGS__);

// The hook whose exported symbol is exactly `name`; kCount when there is none.
HookId FindBySymbol(const char* name);

// The hook for a name asked of cuGetProcAddress: the newest ABI not newer than `version`.
HookId FindByBase(const char* base, int version, Variant variant);

// A dynamic entry that goes on to `original`. Returns `original` itself when it is ours already or when no
// entry is left. Takes no lock, allocates nothing.
void* Substitute(HookId id, void* original);

}  // namespace gpumemtrace::interpose
