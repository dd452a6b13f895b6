#include "recorder/stacks/python_layout.h"

#include <cstddef>
#include <cstring>

namespace gpumemtrace::recorder::stacks {
namespace {

// Sources: `offsetof` compiled against the headers of CPython 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1 and
// 3.13.0 (the free-threaded columns with Py_GIL_DISABLED=1); 3.14 from Include/cpython/{code,pystate}.h,
// Include/internal/pycore_interpframe_structs.h and Include/cpython/unicodeobject.h of v3.14.0. The layouts
// are frozen within a minor version; CheckPythonLayout refuses a build that differs.
constexpr PythonLayout kLayouts[] = {
    {.version = 0x0308,
     .free_threaded = false,
     .instruction_kind = InstructionKind::kByteOffset,
     .entry_kind = EntryKind::kAlways,
     .thread_frame = 24,
     .cframe_frame = -1,
     .thread_id = 176,
     .frame_previous = 24,
     .frame_code = 32,
     .frame_instruction = 104,
     .frame_owner = -1,
     .frame_is_entry = -1,
     .frame_tlbc_index = -1,
     .code_file = 104,
     .code_name = 112,
     .code_qualified_name = -1,
     .code_first_line = 40,
     .code_line_table = 120,
     .code_bytecode = -1,
     .code_tlbc = -1,
     .code_serial = -1,
     .code_basic_size = 176,
     .object_type = 8,
     .object_size = 16,
     .variable_size = 16,
     .bytes_data = 32,
     .string_length = 16,
     .string_state = 32,
     .string_ascii_data = 48,
     .string_compact_data = 72,
     .string_kind_bit = 2},
    {.version = 0x0309,
     .free_threaded = false,
     .instruction_kind = InstructionKind::kByteOffset,
     .entry_kind = EntryKind::kAlways,
     .thread_frame = 24,
     .cframe_frame = -1,
     .thread_id = 176,
     .frame_previous = 24,
     .frame_code = 32,
     .frame_instruction = 104,
     .frame_owner = -1,
     .frame_is_entry = -1,
     .frame_tlbc_index = -1,
     .code_file = 104,
     .code_name = 112,
     .code_qualified_name = -1,
     .code_first_line = 40,
     .code_line_table = 120,
     .code_bytecode = -1,
     .code_tlbc = -1,
     .code_serial = -1,
     .code_basic_size = 176,
     .object_type = 8,
     .object_size = 16,
     .variable_size = 16,
     .bytes_data = 32,
     .string_length = 16,
     .string_state = 32,
     .string_ascii_data = 48,
     .string_compact_data = 72,
     .string_kind_bit = 2},
    {.version = 0x030a,
     .free_threaded = false,
     .instruction_kind = InstructionKind::kUnitOffset,
     .entry_kind = EntryKind::kAlways,
     .thread_frame = 24,
     .cframe_frame = -1,
     .thread_id = 176,
     .frame_previous = 24,
     .frame_code = 32,
     .frame_instruction = 96,
     .frame_owner = -1,
     .frame_is_entry = -1,
     .frame_tlbc_index = -1,
     .code_file = 104,
     .code_name = 112,
     .code_qualified_name = -1,
     .code_first_line = 40,
     .code_line_table = 120,
     .code_bytecode = -1,
     .code_tlbc = -1,
     .code_serial = -1,
     .code_basic_size = 176,
     .object_type = 8,
     .object_size = 16,
     .variable_size = 16,
     .bytes_data = 32,
     .string_length = 16,
     .string_state = 32,
     .string_ascii_data = 48,
     .string_compact_data = 72,
     .string_kind_bit = 2},
    {.version = 0x030b,
     .free_threaded = false,
     .instruction_kind = InstructionKind::kPointer,
     .entry_kind = EntryKind::kIsEntry,
     .thread_frame = 56,
     .cframe_frame = 8,
     .thread_id = 152,
     .frame_previous = 48,
     .frame_code = 32,
     .frame_instruction = 56,
     .frame_owner = 69,
     .frame_is_entry = 68,
     .frame_tlbc_index = -1,
     .code_file = 112,
     .code_name = 120,
     .code_qualified_name = 128,
     .code_first_line = 72,
     .code_line_table = 136,
     .code_bytecode = 184,
     .code_tlbc = -1,
     .code_serial = -1,
     .code_basic_size = 184,
     .object_type = 8,
     .object_size = 16,
     .variable_size = 16,
     .bytes_data = 32,
     .string_length = 16,
     .string_state = 32,
     .string_ascii_data = 48,
     .string_compact_data = 72,
     .string_kind_bit = 2},
    {.version = 0x030c,
     .free_threaded = false,
     .instruction_kind = InstructionKind::kPointer,
     .entry_kind = EntryKind::kShimBelow,
     .thread_frame = 56,
     .cframe_frame = 0,
     .thread_id = 136,
     .frame_previous = 8,
     .frame_code = 0,
     .frame_instruction = 56,
     .frame_owner = 70,
     .frame_is_entry = -1,
     .frame_tlbc_index = -1,
     .code_file = 112,
     .code_name = 120,
     .code_qualified_name = 128,
     .code_first_line = 68,
     .code_line_table = 136,
     .code_bytecode = 192,
     .code_tlbc = -1,
     .code_serial = 92,
     .code_basic_size = 192,
     .object_type = 8,
     .object_size = 16,
     .variable_size = 16,
     .bytes_data = 32,
     .string_length = 16,
     .string_state = 32,
     .string_ascii_data = 40,
     .string_compact_data = 56,
     .string_kind_bit = 2},
    {.version = 0x030d,
     .free_threaded = false,
     .instruction_kind = InstructionKind::kPointer,
     .entry_kind = EntryKind::kShimBelow,
     .thread_frame = 72,
     .cframe_frame = -1,
     .thread_id = 152,
     .frame_previous = 8,
     .frame_code = 0,
     .frame_instruction = 56,
     .frame_owner = 70,
     .frame_is_entry = -1,
     .frame_tlbc_index = -1,
     .code_file = 112,
     .code_name = 120,
     .code_qualified_name = 128,
     .code_first_line = 68,
     .code_line_table = 136,
     .code_bytecode = 200,
     .code_tlbc = -1,
     .code_serial = 92,
     .code_basic_size = 200,
     .object_type = 8,
     .object_size = 16,
     .variable_size = 16,
     .bytes_data = 32,
     .string_length = 16,
     .string_state = 32,
     .string_ascii_data = 40,
     .string_compact_data = 56,
     .string_kind_bit = 2},
    {.version = 0x030d,
     .free_threaded = true,
     .instruction_kind = InstructionKind::kPointer,
     .entry_kind = EntryKind::kShimBelow,
     .thread_frame = 72,
     .cframe_frame = -1,
     .thread_id = 152,
     .frame_previous = 8,
     .frame_code = 0,
     .frame_instruction = 56,
     .frame_owner = 70,
     .frame_is_entry = -1,
     .frame_tlbc_index = -1,
     .code_file = 128,
     .code_name = 136,
     .code_qualified_name = 144,
     .code_first_line = 84,
     .code_line_table = 152,
     .code_bytecode = 216,
     .code_tlbc = -1,
     .code_serial = 108,
     .code_basic_size = 216,
     .object_type = 24,
     .object_size = 32,
     .variable_size = 32,
     .bytes_data = 48,
     .string_length = 32,
     .string_state = 48,
     .string_ascii_data = 56,
     .string_compact_data = 72,
     .string_kind_bit = 2},
    {.version = 0x030e,
     .free_threaded = false,
     .instruction_kind = InstructionKind::kPointer,
     .entry_kind = EntryKind::kShimBelow,
     .thread_frame = 72,
     .cframe_frame = -1,
     .thread_id = 152,
     .frame_previous = 8,
     .frame_code = 0,
     .frame_instruction = 56,
     .frame_owner = 74,
     .frame_is_entry = -1,
     .frame_tlbc_index = -1,
     .code_file = 112,
     .code_name = 120,
     .code_qualified_name = 128,
     .code_first_line = 68,
     .code_line_table = 136,
     .code_bytecode = 208,
     .code_tlbc = -1,
     .code_serial = 92,
     .code_basic_size = 208,
     .object_type = 8,
     .object_size = 16,
     .variable_size = 16,
     .bytes_data = 32,
     .string_length = 16,
     .string_state = 32,
     .string_ascii_data = 40,
     .string_compact_data = 56,
     .string_kind_bit = 2},
    {.version = 0x030e,
     .free_threaded = true,
     .instruction_kind = InstructionKind::kPointer,
     .entry_kind = EntryKind::kShimBelow,
     .thread_frame = 72,
     .cframe_frame = -1,
     .thread_id = 152,
     .frame_previous = 8,
     .frame_code = 0,
     .frame_instruction = 56,
     .frame_owner = 78,
     .frame_is_entry = -1,
     .frame_tlbc_index = 72,
     .code_file = 128,
     .code_name = 136,
     .code_qualified_name = 144,
     .code_first_line = 84,
     .code_line_table = 152,
     .code_bytecode = 232,
     .code_tlbc = 224,
     .code_serial = 108,
     .code_basic_size = 232,
     .object_type = 24,
     .object_size = 32,
     .variable_size = 32,
     .bytes_data = 48,
     .string_length = 32,
     .string_state = 48,
     .string_ascii_data = 56,
     .string_compact_data = 72,
     .string_kind_bit = 8},
};

template <typename T>
T Load(const void* base, long offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + offset, sizeof(value));
  return value;
}

// PyTypeObject and PyMemberDef have not moved since 3.8 but for the larger object header of free-threaded
// builds: after the PyVarObject come tp_name and tp_basicsize; tp_members is the 30th word.
constexpr long kTypeBasicSize = 32;
constexpr long kTypeMembers = 240;
constexpr long kFreeThreadedShift = 16;
constexpr long kMemberStride = 40;
constexpr long kMemberOffset = 16;
// A table of members without an end would be damaged; CPython's have about 20 rows.
constexpr int kMostMembers = 64;

// Offset of a member of code objects by the interpreter's own table, −1 = not in the table.
long MemberOffset(const char* members, const char* name) {
  for (int i = 0; i < kMostMembers; ++i) {
    const char* member = members + i * kMemberStride;
    const char* member_name = Load<const char*>(member, 0);
    if (member_name == nullptr) break;
    if (std::strcmp(member_name, name) == 0) return Load<long>(member, kMemberOffset);
  }
  return -1;
}

const char* CheckCodeType(const PythonLayout& layout, const void* code_type) {
  const long shift = layout.free_threaded ? kFreeThreadedShift : 0;
  if (Load<long>(code_type, kTypeBasicSize + shift) != layout.code_basic_size) {
    return "code objects of this interpreter have another size than those of the releases we know";
  }
  const char* members = Load<const char*>(code_type, kTypeMembers + shift);
  if (members == nullptr) return "the interpreter's code type has no member table";
  const bool has_lnotab = layout.version <= 0x0309;
  struct Expected {
    const char* name;
    int16_t offset;
  };
  const Expected expected[] = {
      {"co_filename", layout.code_file},
      {"co_name", layout.code_name},
      {"co_firstlineno", layout.code_first_line},
      {has_lnotab ? "co_lnotab" : "co_linetable", layout.code_line_table},
      {"co_qualname", layout.code_qualified_name},
  };
  for (const Expected& member : expected) {
    if (member.offset >= 0 && MemberOffset(members, member.name) != member.offset) {
      return "members of this interpreter's code objects lie elsewhere than in the releases we know";
    }
  }
  return nullptr;
}

// Where _Py_DebugOffsets says what, as byte positions in it.
struct DebugOffsets {
  uint16_t version;
  int16_t current_frame, thread_id;
  int16_t previous, executable, instr_ptr, owner;
  int16_t file, name, qualified_name, line_table, first_line, bytecode;
  int16_t object_type, bytes_size, bytes_data, string_state, string_length, ascii_size;
};
constexpr DebugOffsets kDebugOffsets[] = {
    {0x030d, 184, 192, 232, 240, 248, 264, 280, 288, 296, 304, 312, 344, 360, 520, 528, 544, 552, 560},
    {0x030e, 208, 216, 256, 264, 272, 288, 320, 328, 336, 344, 352, 384, 408, 600, 608, 624, 632, 640},
};

const char* CheckDebugOffsets(const PythonLayout& layout, const void* runtime, uint32_t version_hex) {
  const DebugOffsets* where = nullptr;
  for (const DebugOffsets& row : kDebugOffsets) {
    if (row.version == layout.version) where = &row;
  }
  if (where == nullptr) return nullptr;
  if (runtime == nullptr) return "the interpreter does not export _PyRuntime";
  if (std::memcmp(runtime, "xdebugpy", 8) != 0 || Load<uint64_t>(runtime, 8) != version_hex) {
    return "the interpreter's debug offsets are of another version";
  }
  if ((Load<uint64_t>(runtime, 16) != 0) != layout.free_threaded) {
    return "the interpreter's debug offsets are of another build";
  }
  struct Expected {
    int16_t position;
    int16_t value;
  };
  const Expected expected[] = {
      {where->current_frame, layout.thread_frame},
      {where->thread_id, layout.thread_id},
      {where->previous, layout.frame_previous},
      {where->executable, layout.frame_code},
      {where->instr_ptr, layout.frame_instruction},
      {where->owner, layout.frame_owner},
      {where->file, layout.code_file},
      {where->name, layout.code_name},
      {where->qualified_name, layout.code_qualified_name},
      {where->line_table, layout.code_line_table},
      {where->first_line, layout.code_first_line},
      {where->bytecode, layout.code_bytecode},
      {where->object_type, layout.object_type},
      {where->bytes_size, layout.variable_size},
      {where->bytes_data, layout.bytes_data},
      {where->string_state, layout.string_state},
      {where->string_length, layout.string_length},
      {where->ascii_size, layout.string_ascii_data},
  };
  for (const Expected& member : expected) {
    if (Load<uint64_t>(runtime, member.position) != static_cast<uint64_t>(member.value)) {
      return "the interpreter's debug offsets differ from those of the releases we know";
    }
  }
  return nullptr;
}

}  // namespace

const PythonLayout* FindPythonLayout(uint32_t version_hex, bool free_threaded) {
  for (const PythonLayout& layout : kLayouts) {
    if (layout.version == version_hex >> 16 && layout.free_threaded == free_threaded) return &layout;
  }
  return nullptr;
}

const char* CheckPythonLayout(const PythonLayout& layout, const void* code_type, const void* runtime,
                              uint32_t version_hex) {
  const char* problem = CheckCodeType(layout, code_type);
  return problem != nullptr ? problem : CheckDebugOffsets(layout, runtime, version_hex);
}

}  // namespace gpumemtrace::recorder::stacks
