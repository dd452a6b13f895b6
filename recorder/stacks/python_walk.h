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

// Writes the frames of a PyThreadState, innermost first, at most frames.size() of them.
using PythonWalkFunction = PythonWalk (*)(const char* thread, const void* code_type,
                                          std::span<RawPythonFrame> frames);

// The walk for one of the layouts in the table.
PythonWalkFunction FindPythonWalk(const PythonLayout& layout);

// Room for texts that have to be converted.
struct CodeText {
  char file[4096];
  char qualified_name[4096];
};

// Describes a code object on the calling thread's chain. Its number is a hash of all that it contains.
CodeDefinition ReadCode(const PythonLayout& layout, const char* code, CodeText& text);

}  // namespace gpumemtrace::recorder::stacks
