#include "recorder/stacks/python_walk.h"

#include <pthread.h>

#include "recorder/stacks/hash.h"
#include "recorder/stacks/memory.h"

namespace gpumemtrace::recorder::stacks {
namespace {

// Owners from here on are frames of the interpreter itself (FRAME_OWNED_BY_CSTACK in 3.12 and 3.13,
// FRAME_OWNED_BY_INTERPRETER in 3.14).
constexpr uint8_t kFirstInternalOwner = 3;
// References in frames carry tags in their low bits since 3.14 (_PyStackRef); objects are aligned to 8.
constexpr uint64_t kTagMask = ~uint64_t{3};

// The members that every walk needs, held in registers.
struct Chain {
  const PythonLayout& layout;
  const char* code_type;

  GPUMEMTRACE_READS_HOST_MEMORY const char* Code(const char* frame) const {
    return reinterpret_cast<const char*>(GPUMEMTRACE_READ(uint64_t, frame + layout.frame_code) & kTagMask);
  }
  GPUMEMTRACE_READS_HOST_MEMORY bool IsPython(const char* frame, const char* code) const {
    if (layout.frame_owner >= 0 &&
        GPUMEMTRACE_READ(uint8_t, frame + layout.frame_owner) >= kFirstInternalOwner) {
      return false;
    }
    return code != nullptr && GPUMEMTRACE_READ(const char*, code + layout.object_type) == code_type;
  }
};

// 3.14t runs copies of the bytecode, one per thread. The array of copies can be replaced by another thread
// at any moment, so only its own entry is trusted, and only when the instruction lies in it.
GPUMEMTRACE_READS_HOST_MEMORY int64_t OffsetInThreadBytecode(const PythonLayout& layout, const char* frame,
                                                             const char* code, const char* instruction,
                                                             int64_t bytes) {
  if (layout.code_tlbc < 0) return -1;
  const char* array = GPUMEMTRACE_READ(const char*, code + layout.code_tlbc);
  const int32_t index = GPUMEMTRACE_READ(int32_t, frame + layout.frame_tlbc_index);
  if (array == nullptr || index < 0) return -1;
  const int64_t size = GPUMEMTRACE_READ(int64_t, array);
  if (index >= size) return -1;
  const char* start = GPUMEMTRACE_READ(const char*, array + 8 + 8 * static_cast<int64_t>(index));
  const int64_t offset = instruction - start;
  return start != nullptr && offset >= 0 && offset < bytes ? offset : -1;
}

GPUMEMTRACE_READS_HOST_MEMORY inline int32_t InstructionOffset(const PythonLayout& layout, const char* frame,
                                                               const char* code) {
  switch (layout.instruction_kind) {
    case InstructionKind::kByteOffset:
      return GPUMEMTRACE_READ(int32_t, frame + layout.frame_instruction);
    case InstructionKind::kUnitOffset: {
      const int32_t units = GPUMEMTRACE_READ(int32_t, frame + layout.frame_instruction);
      return units < 0 ? -1 : units * 2;
    }
    case InstructionKind::kPointer:
      break;
  }
  const char* instruction = GPUMEMTRACE_READ(const char*, frame + layout.frame_instruction);
  const int64_t bytes = GPUMEMTRACE_READ(int64_t, code + layout.variable_size) * 2;
  int64_t offset = instruction - (code + layout.code_bytecode);
  if (offset < 0 || offset >= bytes) {
    offset = OffsetInThreadBytecode(layout, frame, code, instruction, bytes);
  }
  return static_cast<int32_t>(offset);
}

// A few words of `size` bytes at `data`: the first, the last, the size. Objects end with a zero byte and are
// padded to 8, so that a word at their start stays inside.
GPUMEMTRACE_READS_HOST_MEMORY inline uint64_t Sample(const char* data, int64_t size) {
  uint64_t sample = GPUMEMTRACE_READ(uint64_t, data);
  if (size < 8) {
    sample = size > 0 ? sample << (64 - 8 * size) : 0;
  } else {
    sample = Mix(sample ^ kSalt0, kSalt1 ^ GPUMEMTRACE_READ(uint64_t, data + size - 8));
  }
  return sample + static_cast<uint64_t>(size) * kSalt2;
}

GPUMEMTRACE_READS_HOST_MEMORY uint64_t WholeContent(const char* data, int64_t size) {
  uint64_t hash = static_cast<uint64_t>(size);
  for (; size >= 8; data += 8, size -= 8) hash = Extend(hash, GPUMEMTRACE_READ(uint64_t, data));
  for (; size > 0; ++data, --size) hash = Extend(hash, GPUMEMTRACE_READ(uint8_t, data));
  return hash;
}

struct Text {
  const char* data = nullptr;
  int64_t bytes = 0;
};

GPUMEMTRACE_READS_HOST_MEMORY inline Text TextOf(const PythonLayout& layout, const char* object) {
  Text text;
  if (object == nullptr) return text;
  const int64_t length = GPUMEMTRACE_READ(int64_t, object + layout.string_length);
  const uint32_t state = GPUMEMTRACE_READ(uint32_t, object + layout.string_state) >> layout.string_kind_bit;
  // Bits 0–2 = bytes per character, 3 = compact, 4 = ASCII.
  if ((state & 8) == 0) return text;
  text.data = object + ((state & 16) != 0 ? layout.string_ascii_data : layout.string_compact_data);
  text.bytes = length * (state & 7);
  return text;
}

// What the strings and tables of a code object contain, for versions without a serial number: all its
// pointers come back after it was freed, in a loop that compiles much the same text again and again. Code
// that was made from a string (its file is called "<string>" or the like) is looked at as a whole; for code
// of files, which such loops do not make, some words tell.
GPUMEMTRACE_READS_HOST_MEMORY uint64_t Content(const PythonLayout& layout, const char* code, const char* name,
                                               const char* table) {
  constexpr int64_t kShortPath = 16;
  const Text file = TextOf(layout, GPUMEMTRACE_READ(const char*, code + layout.code_file));
  const Text name_text = TextOf(layout, name);
  Text lines;
  if (table != nullptr) {
    lines = {table + layout.bytes_data, GPUMEMTRACE_READ(int64_t, table + layout.variable_size)};
  }
  const bool from_file = file.bytes >= kShortPath && GPUMEMTRACE_READ(char, file.data) != '<';
  uint64_t hash = kSalt2;
  for (const Text& text : {file, name_text, lines}) {
    if (text.data == nullptr) continue;
    hash = Extend(hash, from_file ? Sample(text.data, text.bytes) : WholeContent(text.data, text.bytes));
  }
  return hash;
}

GPUMEMTRACE_READS_HOST_MEMORY inline uint64_t Identity(const PythonLayout& layout, const char* code) {
  const uint64_t file = GPUMEMTRACE_READ(uint64_t, code + layout.code_file);
  const int16_t name_offset = layout.code_qualified_name >= 0 ? layout.code_qualified_name : layout.code_name;
  const uint64_t name = GPUMEMTRACE_READ(uint64_t, code + name_offset);
  const uint64_t table = GPUMEMTRACE_READ(uint64_t, code + layout.code_line_table);
  uint64_t rest = GPUMEMTRACE_READ(uint32_t, code + layout.code_first_line);
  uint64_t serial = 0;
  if (layout.code_serial >= 0) serial = GPUMEMTRACE_READ(uint32_t, code + layout.code_serial);
  rest |= serial << 32;
  if (serial == 0) {
    rest ^= Content(layout, code, reinterpret_cast<const char*>(name), reinterpret_cast<const char*>(table));
  }
  return Mix(file ^ (name << 20) ^ (name >> 44) ^ kSalt0, table ^ kSalt1) ^ Mix(rest ^ kSalt2, kSalt0);
}

}  // namespace

uint64_t CodeIdentity(const PythonLayout& layout, const char* code) {
  return Identity(layout, code);
}

GPUMEMTRACE_READS_HOST_MEMORY PythonWalk WalkPython(const PythonInterpreter& interpreter,
                                                    std::span<RawPythonFrame> frames) {
  PythonWalk walk;
  const char* thread = static_cast<const char*>(interpreter.this_thread_state());
  if (thread == nullptr) return walk;
  const PythonLayout& layout = *interpreter.layout;
  // A slot that another thread left behind is not ours.
  if (GPUMEMTRACE_READ(uint64_t, thread + layout.thread_id) != static_cast<uint64_t>(pthread_self()))
    return walk;
  const char* frame = GPUMEMTRACE_READ(const char*, thread + layout.thread_frame);
  if (layout.cframe_frame >= 0 && frame != nullptr) {
    frame = GPUMEMTRACE_READ(const char*, frame + layout.cframe_frame);
  }
  const Chain chain{layout, static_cast<const char*>(interpreter.code_type)};
  uint64_t hash = kSalt2;
  size_t count = 0;
  // The frame that was written last, when whether it is an entry depends on what lies below it.
  while (frame != nullptr) {
    const char* code = chain.Code(frame);
    const char* previous = GPUMEMTRACE_READ(const char*, frame + layout.frame_previous);
    if (!chain.IsPython(frame, code)) {
      frame = previous;
      continue;
    }
    if (count == frames.size()) break;
    bool entry = true;
    if (layout.entry_kind == EntryKind::kIsEntry) {
      entry = GPUMEMTRACE_READ(uint8_t, frame + layout.frame_is_entry) != 0;
    } else if (layout.entry_kind == EntryKind::kShimBelow && previous != nullptr) {
      entry = !chain.IsPython(previous, chain.Code(previous));
    }
    const int32_t instruction = InstructionOffset(layout, frame, code);
    frames[count++] = {code, instruction, entry};
    const uint64_t place = static_cast<uint64_t>(static_cast<uint32_t>(instruction)) << 1 | (entry ? 1 : 0);
    hash = Extend(hash, Identity(layout, code) ^ Mix(reinterpret_cast<uint64_t>(code), place ^ kSalt1));
    frame = previous;
  }
  walk.count = count;
  walk.hash = count != 0 ? hash : 0;
  return walk;
}

}  // namespace gpumemtrace::recorder::stacks
