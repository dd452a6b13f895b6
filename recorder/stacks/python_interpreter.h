// Finds the CPython of this process and proves that we know its layout.
#pragma once

#include <cstdint>

#include "recorder/stacks/python_layout.h"
#include "recorder/stacks/python_walk.h"
#include "recorder/stacks/stacks.h"

namespace gpumemtrace::recorder::stacks {

// All that a walk needs. Immutable once published, lives for ever.
struct PythonInterpreter {
  InterpreterFacts facts;
  const PythonLayout* layout = nullptr;
  // PyGILState_GetThisThreadState: reads a thread-specific slot; needs no GIL.
  void* (*this_thread_state)() = nullptr;
  const void* code_type = nullptr;
  PythonWalkFunction walk = nullptr;
  // Code of _PyEval_EvalFrameDefault; empty when it is not exported.
  uint64_t evaluation_start = 0;
  uint64_t evaluation_end = 0;
};

// Looks again; true when what CurrentInterpreter returns has changed. Takes the loader's lock.
bool FindInterpreter();

// In a forked child, where a thread that was looking does not exist.
void ResetInterpreterAfterFork();

// Null when there is none or when its stacks cannot be read.
const PythonInterpreter* CurrentInterpreter();
// What is known, supported or not.
InterpreterFacts CurrentInterpreterFacts();

}  // namespace gpumemtrace::recorder::stacks
