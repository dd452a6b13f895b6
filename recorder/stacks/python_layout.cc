#include "recorder/stacks/python_layout.h"

#include <cstddef>
#include <cstring>

#include "recorder/stacks/python_layout_table.h"

namespace gpumemtrace::recorder::stacks {
namespace {

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
  for (const PythonLayout& layout : kPythonLayouts) {
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
