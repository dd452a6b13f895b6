// Reads the calling thread's chain of Python frames without the GIL.
//
// The chain is stable while we look: only its own thread changes it. Frames pin their code objects, and
// those their strings, so nothing that is reached from the chain can be freed meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "recorder/stacks/python_layout.h"
#include "recorder/stacks/stacks.h"

namespace gpumemtrace::recorder::stacks {

struct RawPythonFrame {
  const char* code;
  int32_t instruction;
  bool entry;
};

struct PythonWalk {
  size_t count = 0;
  // Of all frames: code object, what proves that it is still the same one, instruction, entry.
  uint64_t hash = 0;
};

// One frame of the chain as it was when it was last read: what is compared to know that it is still the same.
// Two to a cache line.
struct RememberedPythonFrame {
  const char* frame;
  const char* code;
  // As it stands in the frame; the highest bit is set in a frame that says of itself that C entered it.
  uint64_t raw_instruction;
  // Of the code object: no two objects of a process have the same, wherever they lie. Or stands for the count
  // of freed code objects, where code objects have no such number.
  uint32_t serial;
  // False: one of the interpreter's own, which is no part of the stack.
  bool python;
};

// What follows from it and from the frames outside of it.
struct PythonFrameSum {
  // Of the frames from the outermost to this.
  uint64_t hash;
  int32_t instruction;
  // Python frames from the outermost to this.
  uint16_t kept;
  bool entry;
};

// A place in a code object that was met before, so that the object need not be read again but for its serial
// number, if it has one.
struct KnownPythonPlace {
  const char* code;
  uint64_t raw_instruction;
  // See Walker::Identity.
  uint64_t identity;
  // 0 = empty.
  uint32_t serial;
  int32_t instruction;
};

// What a thread knows of its chain of frames. Zero bytes are a valid one, which knows nothing.
struct PythonMemory {
  // `remembered` holds nothing of the last stack, which was written to the caller's frames.
  bool written;
  uint32_t count;
  // Of CountOfCodeFrees at the last walk: while it stands, the objects of `remembered` need no look.
  uint64_t code_frees;
  // Places in `remembered` by frame address; only a guess.
  static constexpr size_t kHints = 256;
  uint16_t hints[kHints];
  static constexpr size_t kPlaces = 512;
  alignas(64) KnownPythonPlace places[kPlaces];
  // Outermost first.
  alignas(64) RememberedPythonFrame remembered[kMaxFrames];
  PythonFrameSum sums[kMaxFrames];
  // Of the frames that were read anew: the innermost first.
  RememberedPythonFrame fresh[kMaxFrames];
  KnownPythonPlace fresh_places[kMaxFrames];
};

// Reads the chain of a PyThreadState, and leaves its frames in `memory` (see WritePythonFrames) or writes
// them to `frames`, innermost first, at most frames.size() of them. Most of a stack is the stack of the last
// event: frames are read from the innermost on until one is met that is known, and from there outwards it is
// only checked, without following pointers, that each is still what it was. Where neither the frees of code
// objects are counted nor these have serial numbers, one that was freed could be taken for its successor, and
// the whole chain is read.
using PythonWalkFunction = PythonWalk (*)(const char* thread, const void* code_type, PythonMemory& memory,
                                          std::span<RawPythonFrame> frames);

// The walk for one of the layouts in the table.
PythonWalkFunction FindPythonWalk(const PythonLayout& layout);

// Writes the frames of the last walk, innermost first, if it has not done so itself.
void WritePythonFrames(PythonMemory& memory, std::span<RawPythonFrame> frames);

// Room for texts that have to be converted.
struct CodeText {
  char file[4096];
  char qualified_name[4096];
};

// Describes a code object on the calling thread's chain. Its number is a hash of all that it contains.
CodeDefinition ReadCode(const PythonLayout& layout, const char* code, CodeText& text);

}  // namespace gpumemtrace::recorder::stacks
