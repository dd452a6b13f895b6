// The calling thread's native stack: return addresses, innermost first, without frames of the shim.
//
// Unwinding follows rules that are derived once for each address from its call frame information. The last
// stack of the thread is remembered: as soon as the registers equal those of one of its frames, the rest is
// taken over after comparing the words of the stack that unwinding it had read. Since unwinding depends on
// nothing else, the result is the one that unwinding to the end would give. What the rules cannot say
// (frames without CFI, stacks of unknown extent) is left to libunwind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "recorder/stacks/python_interpreter.h"
#include "recorder/stacks/thread_stacks.h"

namespace gpumemtrace::recorder::stacks {

struct NativeWalk {
  size_t count = 0;
  uint64_t hash = 0;
};

// Walks the caller's stack. `stop` may be null: then the stack is followed to its end, else to the innermost
// frame of that interpreter's evaluation loop. At most `most` frames are kept.
NativeWalk WalkNative(ThreadStacks& thread, const PythonInterpreter* stop, size_t most);

// The same for the stack above a frame of ours: `frame` is that function's __builtin_frame_address(0). Also
// says in thread.path by which words this stack can be known again.
NativeWalk WalkNativeFrom(uint64_t frame, ThreadStacks& thread, const PythonInterpreter* stop, size_t most);

// What else decides how a stack is walked, besides its words.
uint64_t PathSalt(const ThreadStacks& thread, const PythonInterpreter* stop, size_t most);
// The check of the words at the path's places above `frame`. Call only when the path lies within the stack
// (PathIsInside).
uint64_t PathCheck(const KnownPath& path, uint64_t frame, uint64_t salt);
bool PathIsInside(const KnownPath& path, uint64_t frame, const ThreadStacks& thread);

// The addresses of the stack that WalkNative returned last.
std::span<const uint64_t> NativeAddresses(ThreadStacks& thread, const NativeWalk& walk);

// The same as WalkNative by libunwind alone; for what the rules cannot say, and for tests. The stack begins
// with the return address `first`, or here when that is not found.
NativeWalk WalkByLibunwind(ThreadStacks& thread, const PythonInterpreter* stop, size_t most, uint64_t first);

// How often, in this process, a stack was left to libunwind. For tests and benchmarks.
uint64_t LibunwindWalks();

}  // namespace gpumemtrace::recorder::stacks
