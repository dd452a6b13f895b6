#include "recorder/stacks/eh_frame.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstddef>
#include <cstring>

namespace gpumemtrace::recorder::stacks {
namespace {

// DWARF numbers of the registers that rules are made of.
constexpr uint64_t kRbp = 6;
constexpr uint64_t kRsp = 7;
constexpr uint64_t kReturnAddress = 16;

// DW_EH_PE_*: how a pointer in .eh_frame is written.
constexpr uint8_t kPointerOmitted = 0xff;
constexpr uint8_t kPointerFormatMask = 0x0f;
constexpr uint8_t kPointerBaseMask = 0x70;
constexpr uint8_t kPointerPcRelative = 0x10;
constexpr uint8_t kPointerIndirect = 0x80;
// The search table's entries: offsets from the start of .eh_frame_hdr in four signed bytes.
constexpr uint8_t kSearchTableEncoding = 0x3b;

// A position in a table. Reads past `end` give zeros and make it bad.
class Cursor {
 public:
  Cursor(const uint8_t* at, const uint8_t* end) : at_(at), end_(end) {}

  bool ok() const { return ok_; }
  bool done() const { return at_ >= end_; }
  const uint8_t* at() const { return at_; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }

  template <typename T>
  T Read() {
    T value{};
    if (left() < sizeof(T)) {
      ok_ = false;
      at_ = end_;
      return value;
    }
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  uint64_t Uleb() {
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = Read<uint8_t>();
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
  }

  int64_t Sleb() {
    uint64_t value = 0;
    for (unsigned shift = 0;;) {
      const auto byte = Read<uint8_t>();
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      shift += 7;
      if ((byte & 0x80) != 0) continue;
      if ((byte & 0x40) != 0 && shift < 64) value |= ~uint64_t{0} << shift;
      return static_cast<int64_t>(value);
    }
  }

  // A pointer, or a length when `encoding` has no base.
  uint64_t Pointer(uint8_t encoding) {
    const auto place = reinterpret_cast<uint64_t>(at_);
    uint64_t value = 0;
    switch (encoding & kPointerFormatMask) {
      case 0x00:  // native
      case 0x04:  // udata8
      case 0x0c:  // sdata8
        value = Read<uint64_t>();
        break;
      case 0x01:
        value = Uleb();
        break;
      case 0x02:
        value = Read<uint16_t>();
        break;
      case 0x03:
        value = Read<uint32_t>();
        break;
      case 0x09:
        value = static_cast<uint64_t>(Sleb());
        break;
      case 0x0a:
        value = static_cast<uint64_t>(static_cast<int64_t>(Read<int16_t>()));
        break;
      case 0x0b:
        value = static_cast<uint64_t>(static_cast<int64_t>(Read<int32_t>()));
        break;
      default:
        ok_ = false;
    }
    const uint8_t base = encoding & kPointerBaseMask;
    if (base == kPointerPcRelative) {
      value += place;
    } else if (base != 0) {
      ok_ = false;
    }
    if ((encoding & kPointerIndirect) != 0) ok_ = false;
    return value;
  }

  void Skip(uint64_t bytes) {
    if (bytes > left()) {
      ok_ = false;
      at_ = end_;
      return;
    }
    at_ += bytes;
  }

  // The next `bytes` bytes as a table of their own.
  Cursor Part(uint64_t bytes) {
    const uint8_t* start = at_;
    Skip(bytes);
    return {start, at_};
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
  bool ok_ = true;
};

// What a common information entry says.
struct Common {
  uint64_t code_alignment = 1;
  int64_t data_alignment = 1;
  uint8_t pointer_encoding = 0;
  bool has_augmentation_data = false;
  bool signal_frame = false;
  Cursor instructions{nullptr, nullptr};
};

struct Entry {
  Common common;
  uint64_t start = 0;
  uint64_t end = 0;
  Cursor instructions{nullptr, nullptr};
};

// The content of a CIE or FDE at `record`, without its length.
Cursor RecordContent(const uint8_t* record) {
  uint32_t length;
  std::memcpy(&length, record, sizeof(length));
  if (length == 0xffffffff) {
    uint64_t long_length;
    std::memcpy(&long_length, record + 4, sizeof(long_length));
    return {record + 12, record + 12 + long_length};
  }
  return {record + 4, record + 4 + length};
}

bool ParseCommon(const uint8_t* record, Common& common) {
  Cursor cursor = RecordContent(record);
  if (cursor.Read<uint32_t>() != 0) return false;  // not a CIE
  const auto version = cursor.Read<uint8_t>();
  if (version != 1 && version != 3) return false;
  const char* augmentation = reinterpret_cast<const char*>(cursor.at());
  while (cursor.Read<char>() != '\0') {
  }
  if (!cursor.ok()) return false;
  common.code_alignment = cursor.Uleb();
  common.data_alignment = cursor.Sleb();
  const uint64_t return_register = version == 1 ? cursor.Read<uint8_t>() : cursor.Uleb();
  if (return_register != kReturnAddress) return false;
  if (*augmentation == 'z') {
    common.has_augmentation_data = true;
    Cursor data = cursor.Part(cursor.Uleb());
    for (const char* letter = augmentation + 1; *letter != '\0'; ++letter) {
      switch (*letter) {
        case 'R':
          common.pointer_encoding = data.Read<uint8_t>();
          break;
        case 'P': {
          // A personality routine: only its length matters.
          const auto encoding = data.Read<uint8_t>();
          if (encoding != kPointerOmitted) data.Pointer(encoding & kPointerFormatMask);
          break;
        }
        case 'L':
          data.Read<uint8_t>();
          break;
        case 'S':
          common.signal_frame = true;
          break;
        case 'B':
          break;
        default:
          return false;
      }
    }
    if (!data.ok()) return false;
  } else if (*augmentation != '\0') {
    return false;
  }
  common.instructions = cursor;
  return cursor.ok();
}

// `address` lies in the function when the result is true.
bool ParseEntry(const uint8_t* record, uint64_t address, Entry& entry) {
  Cursor cursor = RecordContent(record);
  const uint8_t* place = cursor.at();
  const auto distance = cursor.Read<uint32_t>();
  if (!cursor.ok() || distance == 0) return false;
  if (!ParseCommon(place - distance, entry.common)) return false;
  entry.start = cursor.Pointer(entry.common.pointer_encoding);
  entry.end = entry.start + cursor.Pointer(entry.common.pointer_encoding & kPointerFormatMask);
  if (entry.common.has_augmentation_data) cursor.Skip(cursor.Uleb());
  entry.instructions = cursor;
  return cursor.ok() && address >= entry.start && address < entry.end;
}

// How a register's value in the caller is found.
struct RegisterRule {
  enum Kind : uint8_t { kUnspecified, kUndefined, kSame, kOffset, kExpression, kOther } kind = kUnspecified;
  int64_t offset = 0;
  // kExpression: the DWARF expression that gives the address.
  const uint8_t* expression = nullptr;
  uint32_t expression_bytes = 0;
};

// One row of the table that the instructions describe, with the columns that we need.
struct Row {
  uint64_t cfa_register = kRsp;
  int64_t cfa_offset = 8;
  const uint8_t* cfa_expression = nullptr;
  uint32_t cfa_expression_bytes = 0;
  RegisterRule rbp;
  RegisterRule return_address;

  RegisterRule* Register(uint64_t number) {
    if (number == kRbp) return &rbp;
    return number == kReturnAddress ? &return_address : nullptr;
  }
  void Set(uint64_t number, RegisterRule::Kind kind, int64_t offset = 0) {
    if (RegisterRule* rule = Register(number)) *rule = {kind, offset, nullptr, 0};
  }
};

// Runs the instructions of a CIE and of an FDE up to an address.
class Program {
 public:
  Program(const Entry& entry, uint64_t address) : entry_(entry), address_(address), location_(entry.start) {}

  bool Run(Row& row) {
    if (!Execute(entry_.common.instructions, row)) return false;
    initial_ = row;
    has_initial_ = true;
    return Execute(entry_.instructions, row);
  }

 private:
  // Compilers nest remembered rows once; assembly twice.
  static constexpr size_t kMostRemembered = 4;

  // False when an instruction is not understood. Stops at the first row beyond the address.
  bool Execute(Cursor cursor, Row& row) {
    while (!cursor.done()) {
      const auto byte = cursor.Read<uint8_t>();
      const uint64_t low = byte & 0x3f;
      switch (byte & 0xc0) {
        case 0x40:  // DW_CFA_advance_loc
          if (!Advance(low)) return true;
          continue;
        case 0x80:  // DW_CFA_offset
          row.Set(low, RegisterRule::kOffset, Scaled(cursor.Uleb()));
          continue;
        case 0xc0:  // DW_CFA_restore
          Restore(low, row);
          continue;
        default:
          break;
      }
      switch (byte) {
        case 0x00:  // DW_CFA_nop
          break;
        case 0x01:  // DW_CFA_set_loc
          location_ = cursor.Pointer(entry_.common.pointer_encoding);
          if (location_ > address_) return true;
          break;
        case 0x02:  // DW_CFA_advance_loc1
          if (!Advance(cursor.Read<uint8_t>())) return true;
          break;
        case 0x03:  // DW_CFA_advance_loc2
          if (!Advance(cursor.Read<uint16_t>())) return true;
          break;
        case 0x04:  // DW_CFA_advance_loc4
          if (!Advance(cursor.Read<uint32_t>())) return true;
          break;
        case 0x05: {  // DW_CFA_offset_extended
          const uint64_t number = cursor.Uleb();
          row.Set(number, RegisterRule::kOffset, Scaled(cursor.Uleb()));
          break;
        }
        case 0x06:  // DW_CFA_restore_extended
          Restore(cursor.Uleb(), row);
          break;
        case 0x07:  // DW_CFA_undefined
          row.Set(cursor.Uleb(), RegisterRule::kUndefined);
          break;
        case 0x08:  // DW_CFA_same_value
          row.Set(cursor.Uleb(), RegisterRule::kSame);
          break;
        case 0x09: {  // DW_CFA_register
          const uint64_t number = cursor.Uleb();
          cursor.Uleb();
          row.Set(number, RegisterRule::kOther);
          break;
        }
        case 0x0a:  // DW_CFA_remember_state
          if (remembered_ == kMostRemembered) return false;
          rows_[remembered_++] = row;
          break;
        case 0x0b:  // DW_CFA_restore_state
          if (remembered_ == 0) return false;
          row = rows_[--remembered_];
          break;
        case 0x0c:  // DW_CFA_def_cfa
          row.cfa_register = cursor.Uleb();
          row.cfa_offset = static_cast<int64_t>(cursor.Uleb());
          row.cfa_expression = nullptr;
          break;
        case 0x0d:  // DW_CFA_def_cfa_register
          row.cfa_register = cursor.Uleb();
          row.cfa_expression = nullptr;
          break;
        case 0x0e:  // DW_CFA_def_cfa_offset
          row.cfa_offset = static_cast<int64_t>(cursor.Uleb());
          break;
        case 0x0f: {  // DW_CFA_def_cfa_expression
          const uint64_t bytes = cursor.Uleb();
          row.cfa_expression = cursor.at();
          row.cfa_expression_bytes = static_cast<uint32_t>(bytes);
          cursor.Skip(bytes);
          break;
        }
        case 0x10: {  // DW_CFA_expression
          const uint64_t number = cursor.Uleb();
          const uint64_t bytes = cursor.Uleb();
          if (RegisterRule* rule = row.Register(number)) {
            *rule = {RegisterRule::kExpression, 0, cursor.at(), static_cast<uint32_t>(bytes)};
          }
          cursor.Skip(bytes);
          break;
        }
        case 0x11: {  // DW_CFA_offset_extended_sf
          const uint64_t number = cursor.Uleb();
          row.Set(number, RegisterRule::kOffset, cursor.Sleb() * entry_.common.data_alignment);
          break;
        }
        case 0x12:  // DW_CFA_def_cfa_sf
          row.cfa_register = cursor.Uleb();
          row.cfa_offset = cursor.Sleb() * entry_.common.data_alignment;
          row.cfa_expression = nullptr;
          break;
        case 0x13:  // DW_CFA_def_cfa_offset_sf
          row.cfa_offset = cursor.Sleb() * entry_.common.data_alignment;
          break;
        case 0x14:  // DW_CFA_val_offset
        case 0x15:  // DW_CFA_val_offset_sf
        {
          const uint64_t number = cursor.Uleb();
          cursor.Uleb();
          row.Set(number, RegisterRule::kOther);
          break;
        }
        case 0x16: {  // DW_CFA_val_expression
          const uint64_t number = cursor.Uleb();
          cursor.Skip(cursor.Uleb());
          row.Set(number, RegisterRule::kOther);
          break;
        }
        case 0x2e:  // DW_CFA_GNU_args_size
          cursor.Uleb();
          break;
        case 0x2f: {  // DW_CFA_GNU_negative_offset_extended
          const uint64_t number = cursor.Uleb();
          row.Set(number, RegisterRule::kOffset, -Scaled(cursor.Uleb()));
          break;
        }
        default:
          return false;
      }
    }
    return cursor.ok();
  }

  int64_t Scaled(uint64_t value) const { return static_cast<int64_t>(value) * entry_.common.data_alignment; }

  // False when the next row begins beyond the address.
  bool Advance(uint64_t units) {
    location_ += units * entry_.common.code_alignment;
    return location_ <= address_;
  }

  void Restore(uint64_t number, Row& row) {
    if (!has_initial_) return;
    if (RegisterRule* rule = row.Register(number)) *rule = *initial_.Register(number);
  }

  const Entry& entry_;
  uint64_t address_;
  uint64_t location_;
  Row initial_;
  bool has_initial_ = false;
  Row rows_[kMostRemembered];
  size_t remembered_ = 0;
};

// An expression of the form "register + offset", followed by what is left of it.
bool ReadRegisterTerm(Cursor& expression, bool& from_rbp, int64_t& offset) {
  const auto operation = expression.Read<uint8_t>();
  if (operation != 0x70 + kRbp && operation != 0x70 + kRsp) return false;  // DW_OP_breg6, DW_OP_breg7
  from_rbp = operation == 0x70 + kRbp;
  offset = expression.Sleb();
  return expression.ok();
}

struct Cfa {
  RuleKind kind = RuleKind::kUnknown;
  bool from_rbp = false;
  int64_t offset = 0;
  int64_t addend = 0;
};

// The CFA in a procedure linkage table, as the linkers write it: it depends on how far into its 16 bytes a
// slot has been executed. After DW_OP_breg7 8: DW_OP_breg16 0, DW_OP_lit15, DW_OP_and, DW_OP_lit<n>,
// DW_OP_ge, DW_OP_lit3, DW_OP_shl, DW_OP_plus.
bool ReadLinkageTableTerm(Cursor expression, uint64_t address, int64_t& addend) {
  constexpr uint8_t kBefore[] = {0x80, 0x00, 0x3f, 0x1a};
  constexpr uint8_t kAfter[] = {0x2a, 0x33, 0x24, 0x22};
  if (expression.left() != sizeof(kBefore) + 1 + sizeof(kAfter)) return false;
  const uint8_t* bytes = expression.at();
  if (std::memcmp(bytes, kBefore, sizeof(kBefore)) != 0) return false;
  const uint8_t literal = bytes[sizeof(kBefore)];
  if (literal < 0x30 || literal > 0x3f) return false;
  if (std::memcmp(bytes + sizeof(kBefore) + 1, kAfter, sizeof(kAfter)) != 0) return false;
  addend = (address & 15) >= static_cast<uint64_t>(literal - 0x30) ? 8 : 0;
  return true;
}

Cfa ReadCfa(const Row& row, uint64_t address) {
  Cfa cfa;
  if (row.cfa_expression == nullptr) {
    if (row.cfa_register != kRbp && row.cfa_register != kRsp) return cfa;
    cfa.kind = RuleKind::kPlain;
    cfa.from_rbp = row.cfa_register == kRbp;
    cfa.offset = row.cfa_offset;
    return cfa;
  }
  Cursor expression(row.cfa_expression, row.cfa_expression + row.cfa_expression_bytes);
  if (!ReadRegisterTerm(expression, cfa.from_rbp, cfa.offset)) return cfa;
  int64_t linkage = 0;
  if (expression.done()) {
    cfa.kind = RuleKind::kPlain;
  } else if (ReadLinkageTableTerm(expression, address, linkage)) {
    cfa.offset += linkage;
    cfa.kind = RuleKind::kPlain;
  } else if (expression.Read<uint8_t>() == 0x06) {  // DW_OP_deref
    if (!expression.done()) {
      if (expression.Read<uint8_t>() != 0x23) return cfa;  // DW_OP_plus_uconst
      cfa.addend = static_cast<int64_t>(expression.Uleb());
    }
    if (expression.ok() && expression.done()) cfa.kind = RuleKind::kIndirect;
  }
  return cfa;
}

// The instructions of the kernel's return trampoline as the C libraries have it: mov $15, %rax; syscall.
bool IsSignalReturn(uint64_t address) {
  constexpr uint8_t kCode[] = {0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05};
  return std::memcmp(reinterpret_cast<const void*>(address), kCode, sizeof(kCode)) == 0;
}

UnwindRule RuleOf(const Row& row, uint64_t lookup) {
  if (row.return_address.kind == RegisterRule::kUndefined) return UnwindRule(RuleKind::kEnd);
  if (row.return_address.kind != RegisterRule::kOffset || row.return_address.offset != -8) {
    return UnwindRule(RuleKind::kUnknown);
  }
  const Cfa cfa = ReadCfa(row, lookup);
  if (cfa.kind == RuleKind::kUnknown) return UnwindRule(RuleKind::kUnknown);
  SavedBase saved = SavedBase::kUnchanged;
  int64_t base_offset = 0;
  switch (row.rbp.kind) {
    case RegisterRule::kUnspecified:
    case RegisterRule::kSame:
    // Undefined rbp: the caller cannot use it, so any value does.
    case RegisterRule::kUndefined:
      break;
    case RegisterRule::kOffset:
      saved = SavedBase::kAtCfa;
      base_offset = row.rbp.offset;
      break;
    case RegisterRule::kExpression: {
      Cursor expression(row.rbp.expression, row.rbp.expression + row.rbp.expression_bytes);
      bool from_rbp = false;
      if (!ReadRegisterTerm(expression, from_rbp, base_offset) || !from_rbp || !expression.done()) {
        return UnwindRule(RuleKind::kUnknown);
      }
      saved = SavedBase::kAtBase;
      break;
    }
    case RegisterRule::kOther:
      return UnwindRule(RuleKind::kUnknown);
  }
  return UnwindRule::Make(cfa.kind, cfa.from_rbp, cfa.offset, cfa.addend, saved, base_offset);
}

// The FDE that may cover `address`, by the binary search table in .eh_frame_hdr; null when there is none.
const uint8_t* SearchTable(const uint8_t* header, uint64_t address) {
  if (header[0] != 1 || header[3] != kSearchTableEncoding) return nullptr;
  // The table ends where its count says; nothing else bounds it.
  Cursor cursor(header + 4, header + 4 + 32);
  cursor.Pointer(header[1]);
  const uint64_t count = cursor.Pointer(header[2]);
  if (!cursor.ok() || count == 0) return nullptr;
  const uint8_t* table = cursor.at();
  const auto entry = [&](uint64_t index, size_t word) {
    int32_t value;
    std::memcpy(&value, table + index * 8 + word * 4, sizeof(value));
    return reinterpret_cast<uint64_t>(header) + static_cast<uint64_t>(static_cast<int64_t>(value));
  };
  if (address < entry(0, 0)) return nullptr;
  uint64_t low = 0;
  uint64_t high = count;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (address < entry(middle, 0) ? high : low) = middle;
  }
  return reinterpret_cast<const uint8_t*>(entry(low, 1));
}

// glibc's struct dl_find_object (dlfcn.h since 2.35), declared here so that older headers do.
struct FoundObject {
  unsigned long long flags;
  void* map_start;
  void* map_end;
  void* link_map;
  // The PT_GNU_EH_FRAME segment.
  void* eh_frame;
  unsigned long long reserved[7];
};
using FindObjectFunction = int (*)(void*, FoundObject*);
constinit std::atomic<FindObjectFunction> g_find_object{nullptr};

// Runs `use` on the FDE for `address`. Where the loader has no lock-free lookup, its lock is held meanwhile.
template <typename Use>
void WithEntry(uint64_t address, Use&& use) {
  const auto examine = [&](const void* header) {
    if (header == nullptr) return;
    const uint8_t* record = SearchTable(static_cast<const uint8_t*>(header), address);
    Entry entry;
    if (record != nullptr && ParseEntry(record, address, entry)) use(entry);
  };
  if (const FindObjectFunction find = g_find_object.load(std::memory_order_acquire)) {
    FoundObject object{};
    if (find(reinterpret_cast<void*>(address), &object) == 0) examine(object.eh_frame);
    return;
  }
  struct Search {
    uint64_t address;
    const decltype(examine)* found;
  } search{address, &examine};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        const auto* wanted = static_cast<const Search*>(data);
        bool covers = false;
        const void* header = nullptr;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = info->dlpi_phdr[i];
          const uint64_t start = info->dlpi_addr + segment.p_vaddr;
          if (segment.p_type == PT_LOAD && wanted->address - start < segment.p_memsz) covers = true;
          if (segment.p_type == PT_GNU_EH_FRAME) header = reinterpret_cast<const void*>(start);
        }
        if (!covers) return 0;
        (*wanted->found)(header);
        return 1;
      },
      &search);
}

}  // namespace

void PrepareEhFrame() {
  g_find_object.store(reinterpret_cast<FindObjectFunction>(dlsym(RTLD_DEFAULT, "_dl_find_object")),
                      std::memory_order_release);
}

void ForgetLoaderLookup() {
  g_find_object.store(nullptr, std::memory_order_release);
}

UnwindRule FindUnwindRule(uint64_t address, bool exact) {
  UnwindRule rule(RuleKind::kNone);
  const uint64_t lookup = exact ? address : address - 1;
  WithEntry(lookup, [&](const Entry& entry) {
    rule = UnwindRule(RuleKind::kUnknown);
    if (entry.common.signal_frame) {
      if (IsSignalReturn(address)) rule = UnwindRule(RuleKind::kSignal);
      return;
    }
    Row row;
    Program program(entry, lookup);
    if (program.Run(row)) rule = RuleOf(row, lookup);
  });
  return rule;
}

CodeRange FindFunction(uint64_t address) {
  CodeRange range;
  WithEntry(address, [&](const Entry& entry) { range = {entry.start, entry.end}; });
  return range;
}

}  // namespace gpumemtrace::recorder::stacks
