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
inline constexpr size_t kStackSets = 2048;

// Numbers of code objects that were defined in this thread's ring; 0 = empty.
inline constexpr size_t kCodeWays = 4;
inline constexpr size_t kCodeSets = 512;

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
  // The caller's frame was found through rbp.
  bool through_bp;
  // The shim's own: no part of the stack.
  bool own;
};

// The same, once the frames outside of it are known.
struct RememberedFrame : UnwoundFrame {
  // Of the frames from the outermost to this, without the shim's own.
  uint64_t hash;
  uint32_t kept;
};

// A pair of stacks that was met before, and the words by which the native one is known again: the return
// addresses, and the saved frame pointers through which frames are found. `places` says where they lie, in
// words from the frame of Capture; kRelativePlace is set where the word is an address on the stack, of which
// only the distance counts, and kWithBase where the word below is such a one besides. As long as the words
// from the innermost on are those that were met, unwinding finds the next one in the same place: so a stack
// whose words are all the same is the same stack. The first 48 places lie in
// two cache lines; stacks of backward passes, which have no Python to end at, have some 60.
struct alignas(64) KnownPath {
  // Of all these words; also of what else decides how a stack is walked.
  uint64_t check;
  // Of the Python stack.
  uint64_t python;
  // The stack's number, 0 = empty.
  uint64_t number;
  // Place among the paths of the one that came after this the last time; a guess.
  uint32_t next;
  uint16_t count;
  // The greatest place.
  uint16_t last;
  static constexpr size_t kMost = 112;
  uint16_t places[kMost];
};
inline constexpr uint16_t kRelativePlace = uint16_t{1} << 15;
inline constexpr uint16_t kWithBase = uint16_t{1} << 14;
inline constexpr uint16_t kPlaceMask = kWithBase - 1;
inline constexpr size_t kPathWays = 2;
inline constexpr size_t kPathSets = 512;
static_assert(sizeof(KnownPath) == 256);

struct ThreadStacks {
  // UnloadGeneration() for which all that follows holds.
  uint64_t generation;

  // Thread pointer of the thread that the next three belong to, and its stack.
  uint64_t owner;
  uint64_t stack_low;
  uint64_t stack_high;
  // Number of the last stack that was captured natively, which tells what to expect next.
  uint64_t last_number;
  // Places among the paths: of the last one that was met, and of the one that is expected next.
  uint32_t last_path;
  uint32_t expected_path;

  // All above is in one cache line and enough where the expected path is met.

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

  // The places of the last native stack that was walked; path.count is 0 when it cannot be known again by
  // them.
  KnownPath path;

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
  KnownPath paths[kPathSets][kPathWays];
};

}  // namespace gpumemtrace::recorder::stacks
