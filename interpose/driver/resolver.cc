// The look-ups of the driver itself: cuGetProcAddress (both versions), cudaGetDriverEntryPoint (all), and
// cuGetExportTable.
//
// The real look-up goes first and its answer decides; only a pointer that it gave is replaced, by an entry of
// the hook with the ABI and default stream that were asked for. Nothing is initialized here: the runtime
// calls this before cuInit.
#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "interpose/activation.h"
#include "interpose/elf_image.h"
#include "interpose/hooks.h"
#include "interpose/original.h"
#include "recorder/recorder.h"

namespace gpumemtrace::interpose {
namespace {

// CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM and cudaEnablePerThreadDefaultStream; the bit before it asks
// for the legacy stream explicitly.
constexpr uint64_t kPerThreadFlag = 2;
// Beyond this toolkit a name may have an ABI that we do not know; then only the exported name of what was
// returned can tell.
constexpr int kNewestKnownVersion = 13999;

// Which hook stands for the function that the driver returned for `name`; kCount when none surely does.
HookId HookFor(const char* name, int version, Variant variant, void* returned) {
  const HookId by_name = FindByBase(name, version, variant);
  if (by_name == HookId::kCount) {
    return by_name;
  }
  // An exported function says by its name exactly which ABI it is. Several names can share one address, so
  // the names that this one may have are compared first, and the one that dladdr happens to give last.
  const ElfImage driver = ImageOf(returned);
  if (driver.valid()) {
    if (driver.FindFunction(Row(by_name).symbol) == returned) {
      return by_name;
    }
    for (size_t i = 0; i < kHookCount; ++i) {
      if (kHookRows[i].library == Library::kDriver &&
          std::strcmp(kHookRows[i].base, Row(by_name).base) == 0 &&
          driver.FindFunction(kHookRows[i].symbol) == returned) {
        return static_cast<HookId>(i);
      }
    }
  }
  Dl_info info;
  if (dladdr(returned, &info) != 0 && info.dli_sname != nullptr && info.dli_saddr == returned) {
    const HookId by_symbol = FindBySymbol(info.dli_sname);
    return by_symbol != HookId::kCount && std::strcmp(Row(by_symbol).base, Row(by_name).base) == 0
               ? by_symbol
               : HookId::kCount;
  }
  return version <= kNewestKnownVersion ? by_name : HookId::kCount;
}

void ReplaceAnswer(const char* name, void** function, int version, uint64_t flags) {
  // The runtime also asks for the empty name, as a probe.
  if (name == nullptr || name[0] == '\0' || function == nullptr || *function == nullptr || !Enabled() ||
      IsOurs(*function)) {
    return;
  }
  const int saved_errno = errno;
  const Variant variant = (flags & kPerThreadFlag) != 0 ? Variant::kPerThread : Variant::kLegacy;
  const HookId id = HookFor(name, version, variant, *function);
  if (id != HookId::kCount) {
    *function = Substitute(id, *function);
  }
  errno = saved_errno;
}

}  // namespace

namespace driver {
namespace {

Result GetProcAddress(Call<Result, const char*, void**, int, uint64_t> call, const char* name,
                      void** function, int version, uint64_t flags) {
  const Result result = call(name, function, version, flags);
  if (result == 0) {
    ReplaceAnswer(name, function, version, flags);
  }
  return result;
}

// `status` may be null and is the driver's alone to write.
Result GetProcAddressWithStatus(Call<Result, const char*, void**, int, uint64_t, int*> call, const char* name,
                                void** function, int version, uint64_t flags, int* status) {
  const Result result = call(name, function, version, flags, status);
  if (result == 0) {
    ReplaceAnswer(name, function, version, flags);
  }
  return result;
}

// Private tables of the driver; passed through. That they were asked for is noted, once for each table.
Result GetExportTable(Call<Result, const void**, const unsigned char*> call, const void** table,
                      const unsigned char* id) {
  const Result result = call(table, id);
  if (result == 0 && id != nullptr && recorder::Active()) {
    const int saved_errno = errno;
    char text[80] = "cuGetExportTable was asked for the private table ";
    size_t end = std::strlen(text);
    for (int i = 0; i < 4; ++i) {
      static constexpr char kDigits[] = "0123456789abcdef";
      text[end++] = kDigits[id[i] >> 4];
      text[end++] = kDigits[id[i] & 15];
    }
    recorder::RecordNote(recorder::NoteSeverity::kInfo, text);
    errno = saved_errno;
  }
  return result;
}

}  // namespace
}  // namespace driver

namespace runtime {
namespace {

// The fourth parameter (CUDA 12) is a register that is passed on and never looked at, so that the
// three-parameter ABI of CUDA 11 is served too. What the runtime looked up through our cuGetProcAddress is
// ours already; otherwise the exported name decides, because the version asked for is the runtime's own.
constexpr int kUnknownVersion = kNewestKnownVersion + 1;

uint64_t EffectiveFlags(uint64_t flags, Variant variant) {
  return flags == 0 && variant == Variant::kPerThread ? kPerThreadFlag : flags;
}

Result GetDriverEntryPoint(Call<Result, const char*, void**, uint64_t, Word> call, const char* name,
                           void** function, uint64_t flags, Word status) {
  const Result result = call(name, function, flags, status);
  if (result == 0) {
    ReplaceAnswer(name, function, kUnknownVersion, EffectiveFlags(flags, call.variant()));
  }
  return result;
}

Result GetDriverEntryPointByVersion(Call<Result, const char*, void**, unsigned, uint64_t, Word> call,
                                    const char* name, void** function, unsigned version, uint64_t flags,
                                    Word status) {
  const Result result = call(name, function, version, flags, status);
  if (result == 0) {
    ReplaceAnswer(name, function, static_cast<int>(version), EffectiveFlags(flags, call.variant()));
  }
  return result;
}

}  // namespace
}  // namespace runtime

GPUMEMTRACE_RESOLVER_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)

}  // namespace gpumemtrace::interpose
