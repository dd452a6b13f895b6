// Where the stack of the calling thread lies, so that an unwinder that follows a wrong rule stays inside it.
#pragma once

#include <cstdint>

namespace gpumemtrace::recorder::stacks {

struct StackBounds {
  uint64_t low = 0;
  uint64_t high = 0;
  bool Contains(uint64_t address) const { return address - low < high - low; }
};

// Finds out, on a thread that is not the main one, where the C library keeps the bounds of a thread's stack,
// so that FindStackBounds does not have to allocate: its first call on a thread may come from a signal
// handler.
// False: still not known.
bool LearnWhereBoundsAre();

// The stack that `stack_pointer`, of the calling thread, lies on; empty when it is one that the C library
// does not know (a coroutine's). Makes system calls; may allocate before LearnWhereBoundsAre.
StackBounds FindStackBounds(uint64_t stack_pointer);

// The alternate signal stack of the calling thread when it contains `stack_pointer`. One system call.
StackBounds FindSignalStack(uint64_t stack_pointer);

}  // namespace gpumemtrace::recorder::stacks
