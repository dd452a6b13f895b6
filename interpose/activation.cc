// See activation.h. Also the shim's constructor: what must be done before the program's main starts threads.
#include "interpose/activation.h"

#include <stdlib.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "interpose/elf_image.h"
#include "interpose/hooks.h"
#include "interpose/notes.h"
#include "interpose/original.h"
#include "recorder/recorder.h"

extern "C" const char __ehdr_start __attribute__((visibility("hidden")));

namespace gpumemtrace::interpose {
namespace {

enum State : int { kUnknown, kOff, kOn };
std::atomic<int> state{kUnknown};

constexpr const char* kApiNames[kHookCount + 1] = {"",
#define GPUMEMTRACE_API_NAME(symbol, base, ...) base,
                                                   GPUMEMTRACE_ALL_HOOKS(GPUMEMTRACE_API_NAME)
#undef GPUMEMTRACE_API_NAME
};

State FindState() {
  const char* option = getenv("GPUMEMTRACE");
  if (option != nullptr && std::strcmp(option, "0") == 0) {
    return kOff;
  }
  return IsPreloaded() ? kOn : kOff;
}

// NVTX asks this variable, in every library that uses it, which object to give its calls to. A tool that is
// already set keeps its place. Children inherit the variable together with LD_PRELOAD; one that inherits it
// alone opens the shim late, which then stays inert (InitializeInjectionNvtx2 returns 0).
void OfferNvtxInjection() {
  const ElfImage self = ImageOf(&__ehdr_start);
  if (!self.valid() || self.path()[0] != '/') {
    return;
  }
  const char* taken = getenv("NVTX_INJECTION64_PATH");
  if (taken == nullptr) {
    setenv("NVTX_INJECTION64_PATH", self.path(), 0);
  } else if (std::strcmp(BaseName(taken), BaseName(self.path())) != 0) {
    Tell("NVTX ranges are not in this trace: another tool has set NVTX_INJECTION64_PATH");
  }
}

__attribute__((constructor)) void Construct() {
  const int saved_errno = errno;
  FindLoaderFunctions();
  if (Enabled()) {
    recorder::Initialize({kApiNames, static_cast<uint16_t>(kHookCount + 1)});
    OfferNvtxInjection();
  }
  errno = saved_errno;
}

}  // namespace

bool Enabled() {
  int known = state.load(std::memory_order_relaxed);
  if (known == kUnknown) [[unlikely]] {
    known = FindState();
    state.store(known, std::memory_order_relaxed);
  }
  return known == kOn;
}

}  // namespace gpumemtrace::interpose
