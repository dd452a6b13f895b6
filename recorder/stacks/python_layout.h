// Where CPython keeps what a stack needs: offsets of members, per minor version (python_layout_table.h), and
// the checks that a running interpreter is what the table says.
#pragma once

#include <cstdint>

namespace gpumemtrace::recorder::stacks {

// How the position of the executing instruction is stored in a frame.
enum class InstructionKind : uint8_t {
  kByteOffset,  // int f_lasti, bytes (3.8, 3.9)
  kUnitOffset,  // int f_lasti, units of two bytes (3.10)
  kPointer,     // address of the instruction (3.11 and later)
};

// How a frame tells that C code entered the interpreter with it.
enum class EntryKind : uint8_t {
  kAlways,    // each Python frame is one run of the evaluation loop (up to 3.10)
  kIsEntry,   // a flag in the frame (3.11)
  kShimBelow  // the frame below is not a Python frame (3.12 and later)
};

// All numbers are byte offsets on x86-64 in a release build; −1 = the version has no such member.
struct PythonLayout {
  // PY_VERSION_HEX >> 16.
  uint16_t version;
  bool free_threaded;
  InstructionKind instruction_kind;
  EntryKind entry_kind;

  // PyThreadState. From `thread_frame`, a pointer to the innermost frame; when `cframe_frame` >= 0 it is
  // instead a pointer to a _PyCFrame which has the innermost frame there.
  int16_t thread_frame;
  int16_t cframe_frame;
  int16_t thread_id;

  // PyFrameObject (up to 3.10) or _PyInterpreterFrame.
  int16_t frame_previous;
  int16_t frame_code;
  int16_t frame_instruction;
  int16_t frame_owner;  // frames with an owner >= 3 belong to the interpreter itself
  int16_t frame_is_entry;
  int16_t frame_tlbc_index;

  // PyCodeObject.
  int16_t code_file;
  int16_t code_name;
  int16_t code_qualified_name;
  int16_t code_first_line;
  int16_t code_line_table;
  int16_t code_bytecode;  // 3.11 and later: the instructions themselves, at the end of the object
  int16_t code_tlbc;
  // uint32_t co_version, unique among the code objects of a process until it wraps to 0.
  int16_t code_serial;
  int16_t code_basic_size;

  // PyObject, PyVarObject, PyBytesObject, PyASCIIObject.
  int16_t object_type;
  int16_t object_size;
  int16_t variable_size;
  int16_t bytes_data;
  int16_t string_length;
  int16_t string_state;
  int16_t string_ascii_data;
  int16_t string_compact_data;
  // Lowest bit of `kind` (3 bits) in the state word; `compact` and `ascii` follow.
  int16_t string_kind_bit;
};

// The layout of this version, null when we have none.
const PythonLayout* FindPythonLayout(uint32_t version_hex, bool free_threaded);

// Compares a layout with what the interpreter says about itself in static data: sizes and member tables of
// PyCode_Type, and the debug offsets at the start of _PyRuntime (3.13 and later). `code_type` and `runtime`
// are the addresses of those symbols, `runtime` may be null before 3.13. Returns null when they agree, else
// a sentence that says what differs. Reads static data only: no lock, no GIL.
const char* CheckPythonLayout(const PythonLayout& layout, const void* code_type, const void* runtime,
                              uint32_t version_hex);

}  // namespace gpumemtrace::recorder::stacks
