// The calling thread's native stack: return addresses, innermost first, without frames of the shim.
#pragma once

#include <cstddef>
#include <cstdint>

#include "recorder/stacks/python_interpreter.h"
#include "recorder/stacks/thread_stacks.h"

namespace gpumemtrace::recorder::stacks {

struct NativeWalk {
  size_t count = 0;
  uint64_t hash = 0;
};

// Fills thread.native. `stop` may be null: then the stack is followed to its end, else to the innermost
// frame of that interpreter's evaluation loop.
NativeWalk WalkNative(ThreadStacks& thread, const PythonInterpreter* stop, size_t most);

}  // namespace gpumemtrace::recorder::stacks
