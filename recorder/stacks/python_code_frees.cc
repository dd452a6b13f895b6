// See python_code_frees.h.
#include "recorder/stacks/python_code_frees.h"

#include <dlfcn.h>

namespace gpumemtrace::recorder::stacks {

constinit CodeFrees g_code_frees;

namespace {

using FreeFunction = void (*)(void* object);

// tp_dealloc is the fourth word after the object's header and size (Include/cpython/object.h, 3.8 … 3.14).
constexpr long kTypeDealloc = 48;
constexpr long kFreeThreadedShift = 16;

constinit std::atomic<FreeFunction> g_free{nullptr};

// Counted first: whoever gets the memory next must find the new count.
void FreeCode(void* object) {
  g_code_frees.count.fetch_add(1, std::memory_order_seq_cst);
  g_free.load(std::memory_order_relaxed)(object);
}

bool InOneObject(const void* a, const void* b) {
  Dl_info of_a;
  Dl_info of_b;
  return dladdr(a, &of_a) != 0 && dladdr(b, &of_b) != 0 && of_a.dli_fbase == of_b.dli_fbase;
}

}  // namespace

void BeginToCountCodeFrees(const PythonLayout& layout, const void* code_type) {
  if (g_free.load(std::memory_order_relaxed) != nullptr) return;
  auto* slot = reinterpret_cast<FreeFunction*>(reinterpret_cast<uintptr_t>(code_type) + kTypeDealloc +
                                               (layout.free_threaded ? kFreeThreadedShift : 0));
  const FreeFunction free = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  // Another's function there would mean that somebody else plays the same game, by rules that we do not know.
  if (free == nullptr || !InOneObject(reinterpret_cast<const void*>(free), code_type)) return;
  FreeFunction none = nullptr;
  if (!g_free.compare_exchange_strong(none, free)) return;
  g_code_frees.count.store(1, std::memory_order_relaxed);
  __atomic_store_n(slot, &FreeCode, __ATOMIC_RELEASE);
  g_code_frees.type.store(code_type, std::memory_order_release);
}

}  // namespace gpumemtrace::recorder::stacks
