// See original.h.
#include "interpose/original.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "interpose/elf_image.h"
#include "recorder/recorder.h"

extern "C" const char __ehdr_start __attribute__((visibility("hidden")));
extern "C" const char _end __attribute__((visibility("hidden")));

namespace gpumemtrace::interpose {
namespace {

void* LibcLoaderFunction(const char* name);

constinit NextFunction libc_dlsym("dlsym", &LibcLoaderFunction);
constinit NextFunction libc_dlvsym("dlvsym", &LibcLoaderFunction);
constinit NextFunction next_dlsym("dlsym", &NextLoaderFunction);
constinit NextFunction next_dlvsym("dlvsym", &NextLoaderFunction);
constinit NextFunction next_dlopen("dlopen", &NextLoaderFunction);
constinit NextFunction next_dlmopen("dlmopen", &NextLoaderFunction);
constinit NextFunction next_dlclose("dlclose", &NextLoaderFunction);

// A handle of a loaded object for the length of a scope. The main program has an empty path.
class LoadedObject {
 public:
  explicit LoadedObject(const char* path)
      : handle_(RealDlopen()(path[0] != '\0' ? path : nullptr, RTLD_LAZY | RTLD_NOLOAD)) {}
  ~LoadedObject() {
    if (handle_ != nullptr) {
      RealDlclose()(handle_);
    }
  }
  LoadedObject(const LoadedObject&) = delete;
  LoadedObject& operator=(const LoadedObject&) = delete;
  void* handle() const { return handle_; }

 private:
  void* handle_;
};

// dlsym leaves a message for dlerror when it finds nothing; ours must not be taken for the host's.
void* Quiet(void* found) {
  if (found == nullptr) {
    dlerror();
  }
  return found;
}

void* LookUp(void* handle, const char* symbol, const char* version) {
  void* found = nullptr;
  if (version != nullptr) {
    found = Quiet(RealDlvsym()(handle, symbol, version));
  }
  if (found == nullptr) {
    found = Quiet(RealDlsym()(handle, symbol));
  }
  return IsOurs(found) ? nullptr : found;
}

// The function `symbol` when exactly one loaded object besides us defines it: then no scope can lead
// elsewhere. Found without the loader's lock, which dlsym takes: another thread may hold it in a dlopen whose
// constructors wait for this call, and a reference that was bound to the library itself would not have needed
// it.
void* OnlyDefinition(const char* symbol) {
  struct Search {
    const char* symbol;
    void* found;
    bool several;
  } search{symbol, nullptr, false};
  VisitImages(
      [](void* context, const ElfImage& image) {
        auto* state = static_cast<Search*>(context);
        void* found = image.Contains(&__ehdr_start) ? nullptr : image.FindFunction(state->symbol);
        state->several = found != nullptr && state->found != nullptr;
        state->found = found != nullptr ? found : state->found;
        return !state->several;
      },
      &search);
  return search.several ? nullptr : search.found;
}

// Remembers, per hook and calling object, what was found. Nodes are written once and never freed; when there
// are no more, the answer is found anew each time.
struct CallerNode {
  uintptr_t start;
  uintptr_t end;
  uint64_t unloads;
  void* original;
  CallerNode* next;
};
constexpr size_t kMaxCallerNodes = 2048;
CallerNode caller_nodes[kMaxCallerNodes];
std::atomic<size_t> used_caller_nodes{0};
std::atomic<CallerNode*> callers[kHookCount];

void* OriginalOfThisCaller(HookId id, const void* return_address) {
  const auto address = reinterpret_cast<uintptr_t>(return_address);
  const uint64_t unloads = ReadLoaderCounts().removed;
  for (const CallerNode* node = callers[Index(id)].load(std::memory_order_acquire); node != nullptr;
       node = node->next) {
    // After an unload the same addresses may belong to another library.
    if (address - node->start < node->end - node->start && node->unloads == unloads) {
      return node->original;
    }
  }
  void* original = OnlyDefinition(Row(id).symbol);
  if (original == nullptr) {
    original = FindWithoutUs(Row(id).symbol, return_address);
  }
  const ElfImage caller = ImageOf(return_address);
  if (original == nullptr || !caller.valid()) {
    return original;
  }
  const size_t index = used_caller_nodes.fetch_add(1, std::memory_order_relaxed);
  if (index >= kMaxCallerNodes) {
    used_caller_nodes.store(kMaxCallerNodes, std::memory_order_relaxed);
    return original;
  }
  CallerNode* node = &caller_nodes[index];
  node->start = caller.start();
  node->end = caller.end();
  node->unloads = unloads;
  node->original = original;
  node->next = callers[Index(id)].load(std::memory_order_relaxed);
  while (!callers[Index(id)].compare_exchange_weak(node->next, node, std::memory_order_acq_rel)) {
  }
  return original;
}

}  // namespace

void* NextDefinition(const char* name) {
  struct Search {
    const char* name;
    bool behind_us;
    void* found;
  } search{name, false, nullptr};
  VisitImages(
      [](void* context, const ElfImage& image) {
        auto* state = static_cast<Search*>(context);
        if (!state->behind_us) {
          state->behind_us = image.Contains(&__ehdr_start);
          return true;
        }
        state->found = image.FindFunction(state->name);
        return state->found == nullptr;
      },
      &search);
  if (search.found == nullptr) {
    // We were loaded late (not by LD_PRELOAD), so libc stands before us.
    VisitImages(
        [](void* context, const ElfImage& image) {
          auto* state = static_cast<Search*>(context);
          if (image.Contains(&__ehdr_start)) {
            return true;
          }
          state->found = image.FindFunction(state->name);
          return state->found == nullptr;
        },
        &search);
  }
  return search.found;
}

// The loader's list is walked without its lock. That is safe where it happens: at the latest in our
// constructor, before the program has threads or, loaded late, under the lock that dlopen holds
// (FindLoaderFunctions).
void* NextLoaderFunction(const char* name) {
  bool behind_us = false;
  for (const link_map* map = _r_debug.r_map; map != nullptr; map = map->l_next) {
    if (map->l_ld == _DYNAMIC) {
      behind_us = true;
    } else if (behind_us) {
      if (void* found = ElfImage::FromDynamicSection(*map).FindFunction(name); found != nullptr) {
        return found;
      }
    }
  }
  // We were loaded late, so libc stands before us.
  for (const link_map* map = _r_debug.r_map; map != nullptr; map = map->l_next) {
    if (map->l_ld != _DYNAMIC) {
      if (void* found = ElfImage::FromDynamicSection(*map).FindFunction(name); found != nullptr) {
        return found;
      }
    }
  }
  return nullptr;
}

namespace {

// The C library's own, which gives versions to what it defines; a preload does not. RTLD_NEXT is answered for
// the object that calls: were another preload's dlsym asked, one that calls on instead of jumping, the answer
// would be what stands behind *it*, and it would be skipped.
void* LibcLoaderFunction(const char* name) {
  for (const link_map* map = _r_debug.r_map; map != nullptr; map = map->l_next) {
    if (map->l_ld == _DYNAMIC) continue;
    const ElfImage image = ElfImage::FromDynamicSection(*map);
    if (!image.defines_versions()) continue;
    if (void* found = image.FindFunction(name); found != nullptr) return found;
  }
  return NextLoaderFunction(name);
}

}  // namespace

void FindLoaderFunctions() {
  for (NextFunction* function :
       {&libc_dlsym, &libc_dlvsym, &next_dlsym, &next_dlvsym, &next_dlopen, &next_dlmopen, &next_dlclose}) {
    function->Get();
  }
}

DlsymFunction RealDlsym() {
  return reinterpret_cast<DlsymFunction>(next_dlsym.Get());
}
DlvsymFunction RealDlvsym() {
  return reinterpret_cast<DlvsymFunction>(next_dlvsym.Get());
}
DlopenFunction RealDlopen() {
  return reinterpret_cast<DlopenFunction>(next_dlopen.Get());
}
DlmopenFunction RealDlmopen() {
  return reinterpret_cast<DlmopenFunction>(next_dlmopen.Get());
}
void* NextFunction::Get() {
  void* found = found_.load(std::memory_order_acquire);
  if (found == nullptr) [[unlikely]] {
    found = find_(name_);
    found_.store(found, std::memory_order_release);
  }
  return found;
}

DlcloseFunction RealDlclose() {
  return reinterpret_cast<DlcloseFunction>(next_dlclose.Get());
}

void* FindInTorch(const char* symbol) {
  struct Search {
    const char* symbol;
    void* found;
  } search{symbol, nullptr};
  VisitImages(
      [](void* context, const ElfImage& image) {
        auto* state = static_cast<Search*>(context);
        if (image.Contains(&__ehdr_start)) {
          return true;
        }
        const char* name = BaseName(image.path());
        if (std::strncmp(name, "libc10", 6) == 0 || std::strncmp(name, "libtorch", 8) == 0) {
          state->found = image.FindFunction(state->symbol);
        }
        return state->found == nullptr;
      },
      &search);
  return search.found;
}

bool IsOurs(const void* address) {
  return reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(&__ehdr_start) <
         static_cast<uintptr_t>(&_end - &__ehdr_start);
}

bool IsPreloaded() {
  // A preload stands before libc in load order; something opened later stands behind it.
  struct Search {
    bool found_us;
  } search{false};
  VisitImages(
      [](void* context, const ElfImage& image) {
        auto* state = static_cast<Search*>(context);
        if (image.Contains(&__ehdr_start)) {
          state->found_us = true;
          return false;
        }
        return std::strncmp(BaseName(image.path()), "libc.so", 7) != 0;
      },
      &search);
  return search.found_us;
}

void* FindWithoutUs(const char* symbol, const void* caller) {
  const ElfImage image = ImageOf(caller);
  const char* version = image.valid() ? image.NeededVersion(symbol) : nullptr;
  // First the global scope behind us. Another preload there comes first, as it would without us; but two
  // CUDA runtimes of different versions may both be global, and then the caller's version decides.
  void* next = Quiet(reinterpret_cast<DlsymFunction>(libc_dlsym.Get())(RTLD_NEXT, symbol));
  if (next != nullptr && (version == nullptr || !ImageOf(next).defines_versions())) {
    return next;
  }
  if (version != nullptr) {
    void* exact = Quiet(reinterpret_cast<DlvsymFunction>(libc_dlvsym.Get())(RTLD_NEXT, symbol, version));
    if (exact != nullptr) {
      return exact;
    }
  }
  // Then what the caller itself depends on: libraries loaded RTLD_LOCAL are outside the global scope.
  if (image.valid()) {
    const LoadedObject object(image.path());
    if (object.handle() != nullptr) {
      if (void* local = LookUp(object.handle(), symbol, version); local != nullptr) {
        return local;
      }
    }
  }
  return next;
}

void* OriginalForCaller(HookId id, const void* return_address) {
  const Library library = Row(id).library;
  if (library == Library::kRuntime || library == Library::kLibrary) {
    return OriginalOfThisCaller(id, return_address);
  }
  // One driver and one PyTorch per process.
  std::atomic<void*>& cached = originals[Index(id)][0];
  void* original = cached.load(std::memory_order_acquire);
  if (original == nullptr) [[unlikely]] {
    if (library == Library::kTorch) {
      original = FindInTorch(Row(id).symbol);
    } else {
      original = OnlyDefinition(Row(id).symbol);
      if (original == nullptr) {
        original = FindWithoutUs(Row(id).symbol, return_address);
      }
      if (original == nullptr) {
        const LoadedObject driver("libcuda.so.1");
        original = driver.handle() != nullptr ? LookUp(driver.handle(), Row(id).symbol, nullptr) : nullptr;
      }
    }
    cached.store(original, std::memory_order_release);
  }
  return original;
}

uint64_t AnswerWithoutLibrary(HookId id) {
  switch (Row(id).library) {
    case Library::kDriver:
      return 34;  // CUDA_ERROR_STUB_LIBRARY: the program is bound to something that is not a driver.
    case Library::kRuntime:
      return 35;  // cudaErrorInsufficientDriver
    case Library::kLibrary:
      // CUBLAS_, CUDNN_, CUSPARSE_, CUSOLVER_STATUS_NOT_INITIALIZED and ncclUnhandledCudaError are all 1;
      // cuFFT and cuRAND call 1 an invalid plan and 101 not initialized, and any non-zero is an error.
      return 1;
    case Library::kTorch:
      return 0;
  }
  return 0;
}

void* SubstituteUnloaded(HookId id, void* original, void* const* entries) {
  std::atomic<void*>* behind = originals[Index(id)];
  for (size_t entry = 1; entry < kEntries; ++entry) {
    void* known = behind[entry].load(std::memory_order_acquire);
    if (!ImageOf(known).valid() && behind[entry].compare_exchange_strong(known, original)) {
      return entries[entry];
    }
  }
  return original;
}

}  // namespace gpumemtrace::interpose
