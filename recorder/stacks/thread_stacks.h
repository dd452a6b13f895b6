// What one thread remembers between captures. Zero bytes are a valid, empty ThreadStacks; nothing here has
// a constructor, and most of it is touched only when it is needed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "recorder/stacks/python_walk.h"
#include "recorder/stacks/stacks.h"

namespace gpumemtrace::recorder::stacks {

// A stack as it looks before anything is resolved, and the number it was given. Four to a cache line; an
// entry is empty when `raw` is 0.
struct KnownStack {
  uint64_t raw;
  uint64_t number;
};
inline constexpr size_t kStackWays = 4;
inline constexpr size_t kStackSets = 8192;

struct KnownCode {
  const char* code;
  uint64_t identity;
  // Number that was defined in this thread's ring; 0 = empty.
  uint64_t number;
};
inline constexpr size_t kCodeWays = 2;
inline constexpr size_t kCodeSets = 1024;

// Modules already defined, by serial modulo this; emptied whenever something is unloaded.
inline constexpr size_t kModuleBits = 65536;

struct ThreadStacks {
  // UnloadGeneration() for which all that follows holds.
  uint64_t generation;
  // Frames wanted at most, a guess by the last stack.
  uint32_t native_hint;

  alignas(64) uint64_t native[kMaxFrames];
  RawPythonFrame python[kMaxFrames];
  PythonFrame defined_python[kMaxFrames];
  KnownCode codes[kCodeSets][kCodeWays];
  uint64_t modules[kModuleBits / 64];
  CodeText text;
  alignas(64) KnownStack stacks[kStackSets][kStackWays];
};

}  // namespace gpumemtrace::recorder::stacks
