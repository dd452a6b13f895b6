// Libraries opened with RTLD_DEEPBIND or by dlmopen look up their symbols without seeing ours. After such a
// load their references to hooked functions are pointed at our entries, as if the look-up had found them.
// What cannot be reached is named in the trace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "interpose/original.h"

namespace gpumemtrace::interpose {

// Which objects are loaded at one moment.
class LoadedObjects {
 public:
  LoadedObjects();
  bool Contains(uintptr_t base) const;

 private:
  static constexpr size_t kMax = 1024;
  uintptr_t bases_[kMax];
  size_t count_ = 0;
};

// Objects of the base namespace that were not there `before`; `handle` is what dlopen gave.
void PatchNewObjects(const LoadedObjects& before, void* handle);

// All objects of the namespace of `handle`, which dlmopen gave for `file`.
void PatchNamespace(void* handle, const char* file);

// dlsym of the namespace, changed by PatchNamespace, that `caller` is in.
DlsymFunction PrivateDlsym(const void* caller);

// Puts into the trace that `file`, opened `how`, is not seen.
void NoteOutOfReach(const char* how, const char* file);

}  // namespace gpumemtrace::interpose
