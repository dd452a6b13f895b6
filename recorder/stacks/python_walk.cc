#include "recorder/stacks/python_walk.h"

#include <pthread.h>

#include <array>
#include <bit>
#include <iterator>
#include <utility>

#include "recorder/stacks/hash.h"
#include "recorder/stacks/memory.h"
#include "recorder/stacks/python_code_frees.h"
#include "recorder/stacks/python_layout_table.h"

namespace gpumemtrace::recorder::stacks {
namespace {

// Owners from here on are frames of the interpreter itself (FRAME_OWNED_BY_CSTACK in 3.12 and 3.13,
// FRAME_OWNED_BY_INTERPRETER in 3.14).
constexpr uint8_t kFirstInternalOwner = 3;
// References in frames carry tags in their low bits since 3.14 (_PyStackRef); objects are aligned to 8.
constexpr uint64_t kTagMask = ~uint64_t{3};
constexpr uint16_t kFirstTagged = 0x030e;

// What pthread_self() returns, without a call: glibc's threads are known by their thread pointer.
inline uint64_t ThisThread() {
#if defined(__x86_64__) && defined(__GLIBC__)
  uint64_t pointer;
  __asm__("movq %%fs:16, %0" : "=r"(pointer));
  return pointer;
#else
  return static_cast<uint64_t>(pthread_self());
#endif
}

// Odd, so that multiplying by one loses nothing.
constexpr uint64_t kFactor0 = 0x9e3779b97f4a7c15;
constexpr uint64_t kFactor1 = 0xc2b2ae3d27d4eb4f;

// Everything below is compiled once for each layout, whose index is the parameter.
template <size_t kIndex>
struct Walker {
  static constexpr const PythonLayout& kLayout = kPythonLayouts[kIndex];
  static constexpr bool kTaggedReferences = kLayout.version >= kFirstTagged || kLayout.free_threaded;

  GPUMEMTRACE_READS_HOST_MEMORY static const char* Code(const char* frame) {
    return reinterpret_cast<const char*>(GPUMEMTRACE_READ(uint64_t, frame + kLayout.frame_code) & kTagMask);
  }

  GPUMEMTRACE_READS_HOST_MEMORY static bool IsPython(const char* frame, const char* code,
                                                     const void* code_type) {
    if constexpr (kLayout.frame_owner >= 0) {
      if (GPUMEMTRACE_READ(uint8_t, frame + kLayout.frame_owner) >= kFirstInternalOwner) return false;
    }
    return code != nullptr && GPUMEMTRACE_READ(const void*, code + kLayout.object_type) == code_type;
  }

  // 3.14t runs copies of the bytecode, one per thread. The array of copies can be replaced by another thread
  // at any moment, so only its own entry is trusted, and only when the instruction lies in it.
  GPUMEMTRACE_READS_HOST_MEMORY static int64_t OffsetInThreadBytecode(const char* frame, const char* code,
                                                                      const char* instruction,
                                                                      int64_t bytes) {
    if constexpr (kLayout.code_tlbc >= 0) {
      const char* array = GPUMEMTRACE_READ(const char*, code + kLayout.code_tlbc);
      const int32_t index = GPUMEMTRACE_READ(int32_t, frame + kLayout.frame_tlbc_index);
      if (array == nullptr || index < 0 || index >= GPUMEMTRACE_READ(int64_t, array)) return -1;
      const char* start = GPUMEMTRACE_READ(const char*, array + 8 + 8 * static_cast<int64_t>(index));
      const int64_t offset = instruction - start;
      if (start != nullptr && offset >= 0 && offset < bytes) return offset;
    }
    return -1;
  }

  GPUMEMTRACE_READS_HOST_MEMORY static int32_t Instruction(const char* frame, const char* code) {
    if constexpr (kLayout.instruction_kind == InstructionKind::kPointer) {
      const char* instruction = GPUMEMTRACE_READ(const char*, frame + kLayout.frame_instruction);
      const int64_t bytes = GPUMEMTRACE_READ(int64_t, code + kLayout.variable_size) * 2;
      int64_t offset = instruction - (code + kLayout.code_bytecode);
      if (offset < 0 || offset >= bytes) [[unlikely]] {
        offset = OffsetInThreadBytecode(frame, code, instruction, bytes);
      }
      return static_cast<int32_t>(offset);
    } else {
      const int32_t last = GPUMEMTRACE_READ(int32_t, frame + kLayout.frame_instruction);
      if constexpr (kLayout.instruction_kind == InstructionKind::kByteOffset) return last;
      return last < 0 ? -1 : last * 2;
    }
  }

  struct Text {
    const char* data = nullptr;
    int64_t bytes = 0;
  };

  GPUMEMTRACE_READS_HOST_MEMORY static Text TextOf(const char* object) {
    Text text;
    if (object == nullptr) return text;
    const int64_t length = GPUMEMTRACE_READ(int64_t, object + kLayout.string_length);
    const uint32_t state =
        GPUMEMTRACE_READ(uint32_t, object + kLayout.string_state) >> kLayout.string_kind_bit;
    // Bits 0–2 = bytes per character, 3 = compact, 4 = ASCII.
    if ((state & 8) == 0) return text;
    text.data = object + ((state & 16) != 0 ? kLayout.string_ascii_data : kLayout.string_compact_data);
    text.bytes = length * (state & 7);
    return text;
  }

  // The first word, the last word and the size. Objects end with a zero byte and are padded to 8, so that a
  // word at their start stays inside.
  GPUMEMTRACE_READS_HOST_MEMORY static uint64_t Sample(uint64_t hash, Text text) {
    uint64_t first = GPUMEMTRACE_READ(uint64_t, text.data);
    if (text.bytes < 8) {
      first = text.bytes > 0 ? first << (64 - 8 * text.bytes) : 0;
      return (hash ^ first ^ static_cast<uint64_t>(text.bytes)) * kFactor0;
    }
    const uint64_t last = GPUMEMTRACE_READ(uint64_t, text.data + text.bytes - 8);
    hash = (hash ^ first) * kFactor0;
    return (std::rotl(hash, 29) ^ last ^ static_cast<uint64_t>(text.bytes)) * kFactor1;
  }

  GPUMEMTRACE_READS_HOST_MEMORY __attribute__((noinline)) static uint64_t Whole(uint64_t hash, Text text) {
    hash = Extend(hash, static_cast<uint64_t>(text.bytes));
    for (; text.bytes >= 8; text.data += 8, text.bytes -= 8) {
      hash = Extend(hash, GPUMEMTRACE_READ(uint64_t, text.data));
    }
    for (; text.bytes > 0; ++text.data, --text.bytes) {
      hash = Extend(hash, GPUMEMTRACE_READ(uint8_t, text.data));
    }
    return hash;
  }

  // What the strings and tables of a code object contain, for versions without a serial number: all its
  // pointers come back after it was freed, in a loop that compiles much the same text again and again. Code
  // that was made from a string (its file is called "<string>" or the like) is looked at as a whole; for
  // code of files, which such loops do not make, some words tell.
  GPUMEMTRACE_READS_HOST_MEMORY static uint64_t Content(const char* file_object, const char* name_object,
                                                        const char* table) {
    constexpr int64_t kShortPath = 16;
    // With the zero byte behind it.
    constexpr uint32_t kSuffix = '.' | 'p' << 8 | 'y' << 16;
    const Text file = TextOf(file_object);
    const Text name = TextOf(name_object);
    Text lines;
    if (table != nullptr) {
      lines = {table + kLayout.bytes_data, GPUMEMTRACE_READ(int64_t, table + kLayout.variable_size)};
    }
    // A script in the working directory has a short name.
    const bool from_file =
        file.data != nullptr && GPUMEMTRACE_READ(char, file.data) != '<' &&
        (file.bytes >= kShortPath ||
         (file.bytes > 3 && GPUMEMTRACE_READ(uint32_t, file.data + file.bytes - 3) == kSuffix));
    uint64_t hash = kSalt2;
    if (from_file) [[likely]] {
      hash = Sample(hash, file);
      if (name.data != nullptr) hash ^= Sample(kSalt0, name);
      if (lines.data != nullptr) hash ^= Sample(kSalt1, lines);
      return hash;
    }
    for (const Text& text : {file, name, lines}) {
      if (text.data != nullptr) hash = Whole(hash, text);
    }
    return hash;
  }

  // What tells a code object from any other: the pointers too, so that an object which lies where another lay
  // is told from it even when the serial number has wrapped.
  GPUMEMTRACE_READS_HOST_MEMORY static uint64_t Identity(const char* code) {
    const auto file = GPUMEMTRACE_READ(uint64_t, code + kLayout.code_file);
    constexpr int16_t kName =
        kLayout.code_qualified_name >= 0 ? kLayout.code_qualified_name : kLayout.code_name;
    const auto name = GPUMEMTRACE_READ(uint64_t, code + kName);
    const auto table = GPUMEMTRACE_READ(uint64_t, code + kLayout.code_line_table);
    uint64_t identity = file ^ std::rotl(name, 21) ^ std::rotl(table, 42) ^
                        GPUMEMTRACE_READ(uint32_t, code + kLayout.code_first_line) * kFactor1;
    uint64_t serial = 0;
    if constexpr (kLayout.code_serial >= 0) serial = GPUMEMTRACE_READ(uint32_t, code + kLayout.code_serial);
    if (kLayout.code_serial >= 0 && serial != 0) [[likely]] {
      identity ^= serial * kFactor0;
    } else {
      identity ^= Content(reinterpret_cast<const char*>(file), reinterpret_cast<const char*>(name),
                          reinterpret_cast<const char*>(table));
    }
    return identity;
  }

  // One word for a frame's code object and place.
  static uint64_t Frame(const char* code, uint64_t identity, int32_t instruction, bool entry) {
    const uint64_t place = static_cast<uint64_t>(static_cast<uint32_t>(instruction)) << 1 | (entry ? 1 : 0);
    return Mix(reinterpret_cast<uint64_t>(code) ^ place << 48 ^ place << 12 ^ kSalt0, identity ^ kSalt1);
  }

  GPUMEMTRACE_READS_HOST_MEMORY static PythonWalk Walk(const char* thread, const void* code_type,
                                                       std::span<RawPythonFrame> frames) {
    PythonWalk walk;
    // A slot that another thread left behind is not ours.
    if (GPUMEMTRACE_READ(uint64_t, thread + kLayout.thread_id) != ThisThread()) {
      return walk;
    }
    const char* frame = GPUMEMTRACE_READ(const char*, thread + kLayout.thread_frame);
    if constexpr (kLayout.cframe_frame >= 0) {
      if (frame != nullptr) frame = GPUMEMTRACE_READ(const char*, frame + kLayout.cframe_frame);
    }
    uint64_t hash = kSalt2;
    size_t count = 0;
    while (frame != nullptr) {
      const char* code = Code(frame);
      const char* previous = GPUMEMTRACE_READ(const char*, frame + kLayout.frame_previous);
      if (!IsPython(frame, code, code_type)) {
        frame = previous;
        continue;
      }
      if (count == frames.size()) break;
      bool entry = true;
      if constexpr (kLayout.entry_kind == EntryKind::kIsEntry) {
        entry = GPUMEMTRACE_READ(uint8_t, frame + kLayout.frame_is_entry) != 0;
      } else if constexpr (kLayout.entry_kind == EntryKind::kShimBelow) {
        if (previous != nullptr) entry = !IsPython(previous, Code(previous), code_type);
      }
      const int32_t instruction = Instruction(frame, code);
      frames[count++] = {code, instruction, entry};
      hash = (hash ^ Frame(code, Identity(code), instruction, entry)) * kFactor0;
      frame = previous;
    }
    walk.count = count;
    walk.hash = count != 0 ? hash ^ hash >> 32 : 0;
    return walk;
  }

  // --- the incremental walk ---

  static size_t Hint(const char* frame) { return reinterpret_cast<uint64_t>(frame) * kFactor0 >> 56; }
  static_assert(PythonMemory::kHints == 256);

  static size_t Place(const char* code, uint64_t raw_instruction) {
    return (raw_instruction + reinterpret_cast<uint64_t>(code)) * kFactor0 >> 55;
  }
  static_assert(PythonMemory::kPlaces == 512);

  static constexpr bool kHasSerial = kLayout.code_serial >= 0;
  static constexpr uint64_t kEntryBit = uint64_t{1} << 63;

  // Never 0 where it stands for the count of freed code objects; that many are not freed while a place is
  // known.
  GPUMEMTRACE_READS_HOST_MEMORY static uint32_t Serial(const char* code, uint64_t code_frees) {
    if constexpr (kHasSerial) return GPUMEMTRACE_READ(uint32_t, code + kLayout.code_serial);
    return static_cast<uint32_t>(code_frees) | uint32_t{1} << 31;
  }

  GPUMEMTRACE_READS_HOST_MEMORY static uint64_t RawInstruction(const char* frame) {
    if constexpr (kLayout.instruction_kind != InstructionKind::kPointer) {
      return GPUMEMTRACE_READ(uint32_t, frame + kLayout.frame_instruction);
    } else if constexpr (kLayout.entry_kind == EntryKind::kIsEntry) {
      const auto entry =
          static_cast<uint64_t>(GPUMEMTRACE_READ(uint8_t, frame + kLayout.frame_is_entry) != 0);
      return GPUMEMTRACE_READ(uint64_t, frame + kLayout.frame_instruction) | entry << 63;
    } else {
      return GPUMEMTRACE_READ(uint64_t, frame + kLayout.frame_instruction);
    }
  }

  // The place from which the frames outwards are no longer what they were, 0 = all are.
  template <bool kLookAtCode>
  GPUMEMTRACE_READS_HOST_MEMORY static uint32_t Unchanged(const PythonMemory& memory, uint32_t place) {
    const RememberedPythonFrame* known = &memory.remembered[place];
    for (; place > 0; --place, --known) {
      if (Differs<kLookAtCode>(*known, known[-1].frame)) return place + 1;
    }
    return Differs<kLookAtCode>(*known, nullptr) ? 1 : 0;
  }

  // `known.frame` must be in the chain: the frame within it says so. Few branches: most of an event's time on
  // a Python stack is spent here.
  template <bool kLookAtCode>
  GPUMEMTRACE_READS_HOST_MEMORY static bool Differs(const RememberedPythonFrame& known, const char* caller) {
    const char* frame = known.frame;
    uint64_t code = GPUMEMTRACE_READ(uint64_t, frame + kLayout.frame_code);
    if constexpr (kTaggedReferences) code &= kTagMask;
    const uint64_t link =
        (code ^ reinterpret_cast<uint64_t>(known.code)) |
        (GPUMEMTRACE_READ(uint64_t, frame + kLayout.frame_previous) ^ reinterpret_cast<uint64_t>(caller));
    if (!known.python) [[unlikely]] {
      return link != 0 || !IsInternal(frame);
    }
    // The code object is read only where the frame still holds it.
    const uint64_t moved = link | (RawInstruction(frame) ^ known.raw_instruction);
    if constexpr (!kLookAtCode) return moved != 0;
    return moved != 0 || Serial(known.code, 0) != known.serial;
  }

  GPUMEMTRACE_READS_HOST_MEMORY static bool IsInternal(const char* frame) {
    if constexpr (kLayout.frame_owner >= 0) {
      return GPUMEMTRACE_READ(uint8_t, frame + kLayout.frame_owner) >= kFirstInternalOwner;
    }
    return false;
  }

  [[gnu::hot]] GPUMEMTRACE_READS_HOST_MEMORY static PythonWalk WalkIncrementally(
      const char* thread, const void* code_type, PythonMemory& memory, std::span<RawPythonFrame> frames) {
    if (GPUMEMTRACE_READ(uint64_t, thread + kLayout.thread_id) != ThisThread()) {
      memory.count = 0;
      memory.written = true;
      return {};
    }
    const char* frame = GPUMEMTRACE_READ(const char*, thread + kLayout.thread_frame);
    if constexpr (kLayout.cframe_frame >= 0) {
      if (frame != nullptr) frame = GPUMEMTRACE_READ(const char*, frame + kLayout.cframe_frame);
    }
    const uint64_t code_frees = CountOfCodeFrees(code_type);
    const bool same_code = code_frees != 0 && memory.code_frees == code_frees;
    memory.code_frees = code_frees;
    if constexpr (!kHasSerial) {
      if (code_frees == 0) return WalkAll(thread, code_type, memory, frames);
      if (!same_code) memory.count = 0;
    }
    // Candidates for the rest of the stack are remembered[0 … candidates).
    uint32_t candidates = memory.count;
    uint32_t count = 0;
    size_t fresh = 0;
    for (; frame != nullptr; frame = GPUMEMTRACE_READ(const char*, frame + kLayout.frame_previous)) {
      const uint32_t place = memory.hints[Hint(frame)];
      if (place < candidates && memory.remembered[place].frame == frame) {
        const uint32_t changed =
            !kHasSerial || same_code ? Unchanged<false>(memory, place) : Unchanged<kHasSerial>(memory, place);
        if (changed == 0) {
          count = place + 1;
          break;
        }
        // Every frame from here to that one leads to the same difference.
        candidates = changed - 1;
      }
      if (fresh == std::size(memory.fresh)) return WalkAll(thread, code_type, memory, frames);
      RememberedPythonFrame& found = memory.fresh[fresh];
      KnownPythonPlace& known = memory.fresh_places[fresh];
      ++fresh;
      found.frame = frame;
      found.code = Code(frame);
      found.python = !IsInternal(frame);
      if (!found.python) continue;
      if (found.code == nullptr) return WalkAll(thread, code_type, memory, frames);
      found.raw_instruction = RawInstruction(frame);
      found.serial = Serial(found.code, code_frees);
      KnownPythonPlace& place_before = memory.places[Place(found.code, found.raw_instruction)];
      if (place_before.raw_instruction == found.raw_instruction && place_before.code == found.code &&
          place_before.serial == found.serial && found.serial != 0) [[likely]] {
        known = place_before;
        continue;
      }
      // A frame that is neither the interpreter's own nor of code may not stay what it is.
      if (found.serial == 0 || !IsPython(frame, found.code, code_type)) {
        return WalkAll(thread, code_type, memory, frames);
      }
      known = {found.code, found.raw_instruction, Identity(found.code), found.serial,
               Instruction(frame, found.code)};
      // Copies of the bytecode that each thread has of its own come and go without the object.
      if (kLayout.code_tlbc < 0 || reinterpret_cast<const char*>(found.raw_instruction) ==
                                       found.code + kLayout.code_bytecode + known.instruction) {
        place_before = known;
      }
    }
    if (count + fresh > std::size(memory.remembered)) return WalkAll(thread, code_type, memory, frames);
    uint64_t hash = count != 0 ? memory.sums[count - 1].hash : kSalt2;
    uint16_t kept = count != 0 ? memory.sums[count - 1].kept : 0;
    // Entered from C: the frame outside is none of Python's.
    bool entry =
        count == 0 || kLayout.entry_kind != EntryKind::kShimBelow || !memory.remembered[count - 1].python;
    while (fresh > 0) {
      const RememberedPythonFrame& found = memory.fresh[--fresh];
      const KnownPythonPlace& known = memory.fresh_places[fresh];
      PythonFrameSum& sum = memory.sums[count];
      if constexpr (kLayout.entry_kind == EntryKind::kIsEntry) {
        entry = (found.raw_instruction & kEntryBit) != 0;
      }
      if (found.python) {
        hash = (hash ^ Frame(found.code, known.identity, known.instruction, entry)) * kFactor0;
        ++kept;
        sum.instruction = known.instruction;
        sum.entry = entry;
      }
      sum.hash = hash;
      sum.kept = kept;
      if constexpr (kLayout.entry_kind == EntryKind::kShimBelow) entry = !found.python;
      memory.hints[Hint(found.frame)] = static_cast<uint16_t>(count);
      memory.remembered[count++] = found;
    }
    memory.count = count;
    memory.written = false;
    // A stack that is cut is another one for every place of the cut.
    if (kept > frames.size()) return WalkAll(thread, code_type, memory, frames);
    return {kept, kept != 0 ? hash ^ hash >> 32 : 0};
  }

  __attribute__((noinline)) static PythonWalk WalkAll(const char* thread, const void* code_type,
                                                      PythonMemory& memory,
                                                      std::span<RawPythonFrame> frames) {
    memory.count = 0;
    memory.written = true;
    return Walk(thread, code_type, frames);
  }
};

template <size_t... kIndices>
constexpr auto Walks(std::index_sequence<kIndices...>) {
  return std::array{&Walker<kIndices>::WalkIncrementally...};
}
constexpr std::array kWalks = Walks(std::make_index_sequence<std::size(kPythonLayouts)>());

}  // namespace

PythonWalkFunction FindPythonWalk(const PythonLayout& layout) {
  for (size_t i = 0; i < std::size(kPythonLayouts); ++i) {
    if (&layout == &kPythonLayouts[i]) return kWalks[i];
  }
  return nullptr;
}

void WritePythonFrames(PythonMemory& memory, std::span<RawPythonFrame> frames) {
  if (memory.written) return;
  size_t count = 0;
  for (uint32_t i = memory.count; i-- > 0 && count < frames.size();) {
    if (!memory.remembered[i].python) continue;
    frames[count++] = {memory.remembered[i].code, memory.sums[i].instruction, memory.sums[i].entry};
  }
  memory.written = true;
}

}  // namespace gpumemtrace::recorder::stacks
