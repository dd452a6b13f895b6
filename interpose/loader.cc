// See loader.h.
//
// dlsym and dlopen act for their caller (RTLD_NEXT, RUNPATH, namespaces), whom the loader knows by the return
// address. Hence every call that we do not answer ourselves is passed on by a jump that leaves registers and
// stack as they were. Nothing here locks, allocates or logs: the driver and its tools call dlsym from inside
// their own initialization.
#include "interpose/loader.h"

#include <dlfcn.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>

#include "interpose/activation.h"
#include "interpose/elf_image.h"
#include "interpose/hooks.h"
#include "interpose/original.h"
#include "interpose/out_of_reach.h"
#include "recorder/recorder.h"

namespace gpumemtrace::interpose {
namespace {

// What the entry stubs below do: jump to `jump` with the caller's arguments, or, if that is null, return
// `value`. Two registers.
struct Decision {
  void* value;
  void* jump;
};

// Calls of NoticeLoads since something was opened. The load happens after the door has let it through, while
// other threads look already, and nobody tells when it is done: so the first calls look, and then ever fewer.
constexpr uint32_t kCallsThatLook = 16;
constexpr uint32_t kMostCalls = 1u << 20;
std::atomic<uint32_t> calls_since_load{kMostCalls};
std::atomic<uint64_t> seen_adds{0};

// All hooked names that are looked up by name begin so; the rest must cost nothing.
bool MayBeHooked(const char* name) {
  return (name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'c');
}

bool CalledByDriver(const void* caller) {
  return std::strncmp(BaseName(ImageOf(caller).path()), "libcuda.so", 10) == 0;
}

// `look_up(handle)` asks the real dlsym or dlvsym. RTLD_NEXT is left alone: whoever asks for the next
// definition gets what stands behind it, and the shim is in that chain by itself.
template <typename LookUp>
Decision Decide(void* handle, const char* name, const void* caller, void* real, LookUp look_up) {
  const Decision pass{nullptr, real};
  if (handle == RTLD_NEXT || name == nullptr || !MayBeHooked(name)) {
    return pass;
  }
  const HookId id = FindBySymbol(name);
  if (id == HookId::kCount || CalledByDriver(caller)) {
    return pass;
  }
  void* found = look_up(handle);
  if (found == nullptr || !IsOurs(found)) {
    if (handle == RTLD_DEFAULT) {
      return pass;  // Only the jump sees the caller's own scope.
    }
    return {Enabled() ? Substitute(id, found) : found, nullptr};
  }
  // The global scope answered with our symbol. Without us it might have nothing.
  if (FindWithoutUs(name, caller) != nullptr) {
    return pass;
  }
  return {look_up(RTLD_NEXT), nullptr};  // null, and says so to dlerror
}

}  // namespace

extern "C" {

__attribute__((visibility("hidden"), used)) Decision gpumemtrace_decide_dlsym(void* handle, const char* name,
                                                                              const void* caller) {
  const DlsymFunction real = RealDlsym();
  return Decide(handle, name, caller, reinterpret_cast<void*>(real),
                [&](void* where) { return real(where, name); });
}

__attribute__((visibility("hidden"), used)) Decision gpumemtrace_decide_dlvsym(void* handle, const char* name,
                                                                               const char* version,
                                                                               const void* caller) {
  const DlvsymFunction real = RealDlvsym();
  return Decide(handle, name, caller, reinterpret_cast<void*>(real),
                [&](void* where) { return real(where, name, version); });
}

// The same for a namespace of its own (dlmopen), with the functions of the caller's namespace behind it.
__attribute__((visibility("hidden"), used)) Decision gpumemtrace_decide_private_dlsym(void* handle,
                                                                                      const char* name,
                                                                                      const void* caller) {
  const DlsymFunction real = PrivateDlsym(caller);
  return Decide(handle, name, caller, reinterpret_cast<void*>(real),
                [&](void* where) { return real(where, name); });
}

// A load is only remembered, since it happens after the jump; except where the new objects will not see our
// symbols and their references must be changed after it. Then the call is made here, which is allowed if the
// caller has no search path of its own that the loader would follow.
__attribute__((visibility("hidden"), used)) Decision gpumemtrace_decide_dlopen(const char* file, int mode,
                                                                               const void* caller) {
  calls_since_load.store(0, std::memory_order_relaxed);
  const DlopenFunction real = RealDlopen();
  const bool out_of_reach =
      (mode & RTLD_DEEPBIND) != 0 && (mode & RTLD_NOLOAD) == 0 && file != nullptr && Enabled();
  if (!out_of_reach) [[likely]] {
    return {nullptr, reinterpret_cast<void*>(real)};
  }
  if (ImageOf(caller).has_search_path()) {
    NoteOutOfReach("RTLD_DEEPBIND", file);
    return {nullptr, reinterpret_cast<void*>(real)};
  }
  const LoadedObjects before;
  void* handle = real(file, mode);
  if (handle != nullptr) {
    const int saved_errno = errno;
    PatchNewObjects(before, handle);
    errno = saved_errno;
  }
  return {handle, nullptr};
}

__attribute__((visibility("hidden"), used)) Decision gpumemtrace_decide_dlmopen(long space, const char* file,
                                                                                int mode,
                                                                                const void* caller) {
  calls_since_load.store(0, std::memory_order_relaxed);
  const DlmopenFunction real = RealDlmopen();
  if (file == nullptr || space == LM_ID_BASE || (mode & RTLD_NOLOAD) != 0 || !Enabled()) {
    return {nullptr, reinterpret_cast<void*>(real)};
  }
  if (ImageOf(caller).has_search_path()) {
    NoteOutOfReach("dlmopen", file);
    return {nullptr, reinterpret_cast<void*>(real)};
  }
  void* handle = real(space, file, mode);
  if (handle != nullptr) {
    const int saved_errno = errno;
    PatchNamespace(handle, file);
    errno = saved_errno;
  }
  return {handle, nullptr};
}

// The loader does not look at dlclose's caller, so this may be an ordinary call.
__attribute__((visibility("default"))) int dlclose(void* handle) {
  const int result = RealDlclose()(handle);
  const int saved_errno = errno;
  if (recorder::Active()) {
    recorder::ModulesChanged();
  }
  errno = saved_errno;
  return result;
}

}  // extern "C"

void NoticeLoads() {
  uint32_t call = calls_since_load.load(std::memory_order_relaxed);
  if (call == kMostCalls) {
    return;
  }
  // Not over the zero of a load that begins at this moment.
  calls_since_load.compare_exchange_strong(call, call + 1, std::memory_order_relaxed);
  if (call > kCallsThatLook && !std::has_single_bit(call)) {
    return;
  }
  const uint64_t adds = ReadLoaderCounts().added;
  if (seen_adds.exchange(adds, std::memory_order_relaxed) != adds) {
    recorder::ModulesChanged();
  }
}

// Entry stubs: two-argument and three-argument forms.
#if defined(__x86_64__)
#define GPUMEMTRACE_DOOR_2(symbol)                                                                 \
  asm(".pushsection .text\n.p2align 4\n.globl " #symbol "\n.type " #symbol ", @function\n" #symbol \
      ":\n.hidden gpumemtrace_door_" #symbol "\n.globl gpumemtrace_door_" #symbol                  \
      "\ngpumemtrace_door_" #symbol                                                                \
      ":\n.cfi_startproc\nendbr64\n"                                                               \
      "pushq %rdi\n.cfi_adjust_cfa_offset 8\npushq %rsi\n.cfi_adjust_cfa_offset 8\n"               \
      "subq $8, %rsp\n.cfi_adjust_cfa_offset 8\n"                                                  \
      "movq 24(%rsp), %rdx\ncall gpumemtrace_decide_" #symbol                                      \
      "\n"                                                                                         \
      "addq $8, %rsp\n.cfi_adjust_cfa_offset -8\n"                                                 \
      "popq %rsi\n.cfi_adjust_cfa_offset -8\npopq %rdi\n.cfi_adjust_cfa_offset -8\n"               \
      "testq %rdx, %rdx\njne 1f\nret\n1: jmp *%rdx\n"                                              \
      ".cfi_endproc\n.size " #symbol ", .-" #symbol "\n.popsection\n")
#define GPUMEMTRACE_DOOR_3(symbol)                                                                 \
  asm(".pushsection .text\n.p2align 4\n.globl " #symbol "\n.type " #symbol ", @function\n" #symbol \
      ":\n.hidden gpumemtrace_door_" #symbol "\n.globl gpumemtrace_door_" #symbol                  \
      "\ngpumemtrace_door_" #symbol                                                                \
      ":\n.cfi_startproc\nendbr64\n"                                                               \
      "pushq %rdi\n.cfi_adjust_cfa_offset 8\npushq %rsi\n.cfi_adjust_cfa_offset 8\n"               \
      "pushq %rdx\n.cfi_adjust_cfa_offset 8\n"                                                     \
      "movq 24(%rsp), %rcx\ncall gpumemtrace_decide_" #symbol                                      \
      "\nmovq %rdx, %r11\n"                                                                        \
      "popq %rdx\n.cfi_adjust_cfa_offset -8\n"                                                     \
      "popq %rsi\n.cfi_adjust_cfa_offset -8\npopq %rdi\n.cfi_adjust_cfa_offset -8\n"               \
      "testq %r11, %r11\njne 1f\nret\n1: jmp *%r11\n"                                              \
      ".cfi_endproc\n.size " #symbol ", .-" #symbol "\n.popsection\n")
#elif defined(__aarch64__)
#define GPUMEMTRACE_DOOR_N(symbol, caller_register)                                                   \
  asm(".pushsection .text\n.p2align 4\n.globl " #symbol "\n.type " #symbol ", @function\n" #symbol    \
      ":\n.hidden gpumemtrace_door_" #symbol "\n.globl gpumemtrace_door_" #symbol                     \
      "\ngpumemtrace_door_" #symbol                                                                   \
      ":\n.cfi_startproc\nhint #34\n"                                                                 \
      "stp x29, x30, [sp, #-48]!\n.cfi_def_cfa_offset 48\n.cfi_offset 29, -48\n.cfi_offset 30, -40\n" \
      "stp x0, x1, [sp, #16]\nstr x2, [sp, #32]\nmov " caller_register                                \
      ", x30\n"                                                                                       \
      "bl gpumemtrace_decide_" #symbol                                                                \
      "\nmov x16, x1\ncbnz x16, 1f\n"                                                                 \
      ".cfi_remember_state\nldp x29, x30, [sp], #48\n"                                                \
      ".cfi_restore 29\n.cfi_restore 30\n.cfi_def_cfa_offset 0\nret\n.cfi_restore_state\n"            \
      "1: ldp x0, x1, [sp, #16]\nldr x2, [sp, #32]\nldp x29, x30, [sp], #48\n"                        \
      ".cfi_restore 29\n.cfi_restore 30\n.cfi_def_cfa_offset 0\nbr x16\n"                             \
      ".cfi_endproc\n.size " #symbol ", .-" #symbol "\n.popsection\n")
#define GPUMEMTRACE_DOOR_2(symbol) GPUMEMTRACE_DOOR_N(symbol, "x2")
#define GPUMEMTRACE_DOOR_3(symbol) GPUMEMTRACE_DOOR_N(symbol, "x3")
#endif

GPUMEMTRACE_DOOR_2(dlsym);
GPUMEMTRACE_DOOR_2(private_dlsym);
GPUMEMTRACE_DOOR_3(dlvsym);
GPUMEMTRACE_DOOR_2(dlopen);
GPUMEMTRACE_DOOR_3(dlmopen);

}  // namespace gpumemtrace::interpose
