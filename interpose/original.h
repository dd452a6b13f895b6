// Finds the functions that the shim stands in front of, without changing what anybody else finds.
#pragma once

#include <atomic>
#include <cstddef>

#include "interpose/hooks.h"

namespace gpumemtrace::interpose {

// The loader's own functions behind the ones that we export: the next definition after ours in load order,
// so that another preload that also hooks dlsym is asked and not skipped. Never null in a running process.
using DlsymFunction = void* (*)(void* handle, const char* name);
using DlvsymFunction = void* (*)(void* handle, const char* name, const char* version);
using DlopenFunction = void* (*)(const char* file, int mode);
using DlmopenFunction = void* (*)(long space, const char* file, int mode);
using DlcloseFunction = int (*)(void* handle);
DlsymFunction RealDlsym();
DlvsymFunction RealDlvsym();
DlopenFunction RealDlopen();
DlmopenFunction RealDlmopen();
DlcloseFunction RealDlclose();

// Finds all of the above now.
void FindLoaderFunctions();

// The next definition of dlsym and its kin, without calling anything at all: a sanitizer's first act in a
// process is a dlsym, at a time when its own interceptors of libc's functions jump to null.
void* NextLoaderFunction(const char* name);

// The next definition of any function of libc after ours, null when there is none.
void* NextDefinition(const char* name);

// The same, remembered. Found at first use, because the function may be called before our constructor has
// run.
class NextFunction {
 public:
  using Find = void* (*)(const char* name);
  constexpr explicit NextFunction(const char* name, Find find = &NextDefinition) : name_(name), find_(find) {}
  void* Get();

 private:
  const char* name_;
  Find find_;
  std::atomic<void*> found_{nullptr};
};

// Whether `address` is inside the shim.
bool IsOurs(const void* address);

// Whether the shim was loaded before the program started (LD_PRELOAD), and not, say, by NVTX in a child
// process that inherited only the environment variable.
bool IsPreloaded();

// What `symbol` would be for the object that contains `caller` if the shim were not there; null when nothing.
void* FindWithoutUs(const char* symbol, const void* caller);

// A function of libc10*.so or libtorch*.so, whatever the distribution adds to the names; null when there is
// none. Without dlsym: it is called while the allocator's mutex is held, and dlsym waits for a dlopen in
// another thread.
void* FindInTorch(const char* symbol);

// Substitute() when all entries are taken: reuses one whose library was unloaded, else gives up and returns
// `original`, once with a note.
void* SubstituteUnloaded(HookId id, void* original, void* const* entries);

}  // namespace gpumemtrace::interpose
