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
inline constexpr size_t kStackSets = 4096;

// Numbers of code objects that were defined in this thread's ring; 0 = empty.
inline constexpr size_t kCodeWays = 4;
inline constexpr size_t kCodeSets = 1024;

// Modules already defined, by serial modulo this; emptied whenever something is unloaded.
inline constexpr size_t kModuleBits = 65536;

// A native frame of the last stack: the registers that unwinding started from there, and what it read.
struct UnwoundFrame {
  uint64_t pc;
  uint64_t sp;
  uint64_t bp;
  // The word that held the caller's rbp, 0 = rbp was unchanged.
  uint64_t saved_bp_at;
  // The frame was interrupted at `pc` itself, rather than being in a call that returns there.
  bool exact;
  // Unwinding from here read other words than the return address below the caller's frame and saved_bp_at.
  bool unusual;
  // The shim's own: no part of the stack.
  bool own;
};

// The same, once the frames outside of it are known.
struct RememberedFrame : UnwoundFrame {
  // Of the frames from the outermost to this, without the shim's own.
  uint64_t hash;
  uint32_t kept;
};

struct ThreadStacks {
  // UnloadGeneration() for which all that follows holds.
  uint64_t generation;

  // Thread pointer of the thread that the next three belong to, and its stack.
  uint64_t owner;
  uint64_t stack_low;
  uint64_t stack_high;
  // Identifies the rule by which the remembered stack ends; a stack that ends elsewhere is of no use.
  uint64_t stop;
  // The last stack, outermost frame first. Empty when it was cut or came from libunwind.
  uint32_t remembered_count;
  // `native` holds the last stack, which came from libunwind; else it is in `remembered`.
  bool native_filled;
  // Frames to ask libunwind for, a guess by the last stack.
  uint32_t native_hint;
  // The last stack was cut at the limit, so that its outermost frames are missing.
  bool cut;

  RememberedFrame remembered[kMaxFrames];
  UnwoundFrame fresh[kMaxFrames];
  alignas(64) uint64_t native[kMaxFrames];
  PythonMemory python_memory;
  RawPythonFrame python[kMaxFrames];
  PythonFrame defined_python[kMaxFrames];
  uint64_t codes[kCodeSets][kCodeWays];
  uint64_t modules[kModuleBits / 64];
  CodeText text;
  alignas(64) KnownStack stacks[kStackSets][kStackWays];
};

}  // namespace gpumemtrace::recorder::stacks
