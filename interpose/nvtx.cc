// NVTX ranges and marks as phases of the trace. Every library that uses NVTX (a header) has tables of its own
// and calls InitializeInjectionNvtx2 once; we put our functions into them.
//
// Layouts and numbers from nvtx3/nvtxDetail/nvtxTypes.h and nvtx3/nvToolsExt.h (NVTX 3). The headers are not
// included: they would bring NVTX's own state into the shim.
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "interpose/activation.h"
#include "interpose/elf_image.h"
#include "interpose/notes.h"
#include "recorder/recorder.h"

namespace gpumemtrace::interpose {
namespace {

using recorder::MarkKind;
using recorder::MarkSource;

// NVTX_NO_PUSH_POP_TRACKING: what push and pop answer without a tool, too.
constexpr int kNoTracking = -2;

enum MessageType : int32_t { kAscii = 1, kWide = 2, kRegistered = 3 };

// nvtxEventAttributes_v2 up to the message.
struct EventAttributes {
  uint16_t version;
  uint16_t size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type;
  int32_t reserved;
  uint64_t payload;
  int32_t message_type;
  const void* message;
};

// What a domain handle or a registered string handle points to. Never freed: the program keeps handles.
struct Name {
  char text[1];
};
Name no_name = {{'\0'}};

const Name* KeepName(const char* text) {
  if (text == nullptr) {
    return &no_name;
  }
  const size_t length = std::strlen(text);
  auto* name = static_cast<Name*>(std::malloc(length + 1));
  if (name == nullptr) {
    return &no_name;
  }
  std::memcpy(name->text, text, length + 1);
  return name;
}

// A wide string (UTF-32 on Linux) as UTF-8, cut where the room ends.
class Narrow {
 public:
  explicit Narrow(const wchar_t* wide) {
    size_t length = 0;
    for (; wide != nullptr && *wide != L'\0' && length + 5 < sizeof(text_); ++wide) {
      const auto code = static_cast<uint32_t>(*wide);  // NOLINT(bugprone-signed-char-misuse): 32 bits, not 8
      const auto put = [&](uint32_t byte) { text_[length++] = static_cast<char>(byte); };
      if (code < 0x80) {
        put(code);
      } else if (code < 0x800) {
        put(0xc0 | code >> 6);
        put(0x80 | (code & 0x3f));
      } else if (code < 0x10000) {
        put(0xe0 | code >> 12);
        put(0x80 | (code >> 6 & 0x3f));
        put(0x80 | (code & 0x3f));
      } else {
        put(0xf0 | (code >> 18 & 7));
        put(0x80 | (code >> 12 & 0x3f));
        put(0x80 | (code >> 6 & 0x3f));
        put(0x80 | (code & 0x3f));
      }
    }
    text_[length] = '\0';
  }
  const char* text() const { return text_; }

 private:
  char text_[512];
};

void Mark(MarkKind kind, const char* text, const Name* domain, uint64_t number) {
  const int saved_errno = errno;
  recorder::RecordMark(kind, MarkSource::kNvtx, text != nullptr ? text : "",
                       domain != nullptr ? domain->text : nullptr, number);
  errno = saved_errno;
}

void MarkWithAttributes(MarkKind kind, const EventAttributes* attributes, const Name* domain,
                        uint64_t number) {
  constexpr size_t kSizeWithMessage = sizeof(EventAttributes);
  if (attributes == nullptr || attributes->size < kSizeWithMessage || attributes->message == nullptr) {
    Mark(kind, "", domain, number);
    return;
  }
  switch (attributes->message_type) {
    case kAscii:
      Mark(kind, static_cast<const char*>(attributes->message), domain, number);
      break;
    case kWide:
      Mark(kind, Narrow(static_cast<const wchar_t*>(attributes->message)).text(), domain, number);
      break;
    case kRegistered:
      Mark(kind, static_cast<const Name*>(attributes->message)->text, domain, number);
      break;
    default:
      Mark(kind, "", domain, number);
  }
}

std::atomic<uint64_t> next_range{1};
uint64_t NewRange() {
  return next_range.fetch_add(1, std::memory_order_relaxed);
}

void MarkEx(const EventAttributes* attributes) {
  MarkWithAttributes(MarkKind::kInstant, attributes, nullptr, 0);
}
void MarkA(const char* text) {
  Mark(MarkKind::kInstant, text, nullptr, 0);
}
void MarkW(const wchar_t* text) {
  Mark(MarkKind::kInstant, Narrow(text).text(), nullptr, 0);
}
uint64_t RangeStartEx(const EventAttributes* attributes) {
  const uint64_t range = NewRange();
  MarkWithAttributes(MarkKind::kRangeStart, attributes, nullptr, range);
  return range;
}
uint64_t RangeStartA(const char* text) {
  const uint64_t range = NewRange();
  Mark(MarkKind::kRangeStart, text, nullptr, range);
  return range;
}
uint64_t RangeStartW(const wchar_t* text) {
  return RangeStartA(Narrow(text).text());
}
void RangeEnd(uint64_t range) {
  Mark(MarkKind::kRangeEnd, nullptr, nullptr, range);
}
int RangePushEx(const EventAttributes* attributes) {
  MarkWithAttributes(MarkKind::kPush, attributes, nullptr, 0);
  return kNoTracking;
}
int RangePushA(const char* text) {
  Mark(MarkKind::kPush, text, nullptr, 0);
  return kNoTracking;
}
int RangePushW(const wchar_t* text) {
  return RangePushA(Narrow(text).text());
}
int RangePop() {
  Mark(MarkKind::kPop, nullptr, nullptr, 0);
  return kNoTracking;
}

// XLA's domain is "TSL" (xla/tsl/profiler/backends/cpu/nvtx_utils.cc). Besides one range for each run of a
// compiled program ("XlaModule:") it opens one around every kernel ("Thunk:") and every pass of the compiler
// ("Pass:"). Those would bury the program's own ranges and say nothing about memory that the stacks do not.
bool IsXla(const Name* domain) {
  return domain != nullptr && std::strcmp(domain->text, "TSL") == 0;
}

bool IsOfEveryKernel(const EventAttributes* attributes) {
  if (attributes == nullptr || attributes->size < sizeof(EventAttributes) || attributes->message == nullptr) {
    return false;
  }
  const char* text = nullptr;
  if (attributes->message_type == kAscii) {
    text = static_cast<const char*>(attributes->message);
  } else if (attributes->message_type == kRegistered) {
    text = static_cast<const Name*>(attributes->message)->text;
  }
  return text != nullptr && (std::strncmp(text, "Thunk:", 6) == 0 || std::strncmp(text, "Pass:", 5) == 0);
}

void TellOfThinning() {
  static std::atomic<bool> told{false};
  if (!told.load(std::memory_order_relaxed) && !told.exchange(true, std::memory_order_relaxed)) {
    const int saved_errno = errno;
    Tell(
        "XLA opens an NVTX range around every kernel and compiler pass (domain TSL, Thunk and Pass): these "
        "are left "
        "out of the phases, its other ranges and everyone else's are kept");
    errno = saved_errno;
  }
}

// Which of this thread's open ranges of XLA's domain were left out, so that their ends are, too: one bit for
// each of the innermost 64, the innermost lowest. Ranges further out than that are ended as if they had been
// recorded, which the analyzer takes for the end of nothing.
thread_local uint64_t left_out = 0;

void DomainMarkEx(const Name* domain, const EventAttributes* attributes) {
  MarkWithAttributes(MarkKind::kInstant, attributes, domain, 0);
}
uint64_t DomainRangeStartEx(const Name* domain, const EventAttributes* attributes) {
  const uint64_t range = NewRange();
  MarkWithAttributes(MarkKind::kRangeStart, attributes, domain, range);
  return range;
}
void DomainRangeEnd(const Name* domain, uint64_t range) {
  Mark(MarkKind::kRangeEnd, nullptr, domain, range);
}
int DomainRangePushEx(const Name* domain, const EventAttributes* attributes) {
  if (IsXla(domain)) {
    const bool leave_out = IsOfEveryKernel(attributes);
    left_out = left_out << 1 | (leave_out ? 1 : 0);
    if (leave_out) {
      TellOfThinning();
      return kNoTracking;
    }
  }
  MarkWithAttributes(MarkKind::kPush, attributes, domain, 0);
  return kNoTracking;
}
int DomainRangePop(const Name* domain) {
  if (IsXla(domain)) {
    const bool leave_out = (left_out & 1) != 0;
    left_out >>= 1;
    if (leave_out) {
      return kNoTracking;
    }
  }
  Mark(MarkKind::kPop, nullptr, domain, 0);
  return kNoTracking;
}
const Name* DomainRegisterStringA(const Name*, const char* text) {
  return KeepName(text);
}
const Name* DomainRegisterStringW(const Name*, const wchar_t* text) {
  return KeepName(Narrow(text).text());
}
const Name* DomainCreateA(const char* text) {
  return KeepName(text);
}
const Name* DomainCreateW(const wchar_t* text) {
  return KeepName(Narrow(text).text());
}

using Function = void (*)();
struct Callback {
  uint32_t index;
  Function function;
};

template <typename F>
Function Erase(F* function) {
  return reinterpret_cast<Function>(function);
}

// NvtxCallbackIdCore.
const Callback kCore[] = {
    {1, Erase(MarkEx)},      {2, Erase(MarkA)},       {3, Erase(MarkW)},     {4, Erase(RangeStartEx)},
    {5, Erase(RangeStartA)}, {6, Erase(RangeStartW)}, {7, Erase(RangeEnd)},  {8, Erase(RangePushEx)},
    {9, Erase(RangePushA)},  {10, Erase(RangePushW)}, {11, Erase(RangePop)},
};
// NvtxCallbackIdCore2.
const Callback kCore2[] = {
    {1, Erase(DomainMarkEx)},           {2, Erase(DomainRangeStartEx)}, {3, Erase(DomainRangeEnd)},
    {4, Erase(DomainRangePushEx)},      {5, Erase(DomainRangePop)},     {10, Erase(DomainRegisterStringA)},
    {11, Erase(DomainRegisterStringW)}, {12, Erase(DomainCreateA)},     {13, Erase(DomainCreateW)},
};

constexpr uint32_t kCallbacksTable = 1;  // NVTX_ETID_CALLBACKS
constexpr int kModuleCore = 1;
constexpr int kModuleCore2 = 5;

struct ExportTableCallbacks {
  size_t struct_size;
  int (*get_module_function_table)(int module, Function*** table, unsigned* size);
};

template <size_t count>
void Install(const ExportTableCallbacks& callbacks, int module, const Callback (&functions)[count]) {
  Function** table = nullptr;
  unsigned size = 0;
  if (callbacks.get_module_function_table(module, &table, &size) == 0 || table == nullptr) {
    return;
  }
  for (const Callback& callback : functions) {
    if (callback.index < size && table[callback.index] != nullptr) {
      *table[callback.index] = callback.function;
    }
  }
}

// NVIDIA's own libraries open a range in every call; their names are on the stacks already, so they stay
// switched off as they are without a tool.
bool IsChattyLibrary(const void* address) {
  const char* name = BaseName(ImageOf(address).path());
  for (const char* prefix :
       {"libcublas", "libcudnn", "libcusparse", "libcusolver", "libcufft", "libcurand", "libnccl"}) {
    if (std::strncmp(name, prefix, std::strlen(prefix)) == 0) {
      return true;
    }
  }
  return false;
}

}  // namespace
}  // namespace gpumemtrace::interpose

// 0 tells NVTX that there is no tool; all its functions then return at once.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    const void* (*get_export_table)(uint32_t)) {
  using namespace gpumemtrace::interpose;
  if (get_export_table == nullptr || !Enabled() ||
      IsChattyLibrary(reinterpret_cast<void*>(get_export_table))) {
    return 0;
  }
  const auto* callbacks = static_cast<const ExportTableCallbacks*>(get_export_table(kCallbacksTable));
  if (callbacks == nullptr || callbacks->struct_size < sizeof(ExportTableCallbacks)) {
    return 0;
  }
  Install(*callbacks, kModuleCore, kCore);
  Install(*callbacks, kModuleCore2, kCore2);
  return 1;
}
