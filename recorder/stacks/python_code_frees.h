// Counts the code objects that an interpreter frees. As long as the count stands still, a code object that
// was met at an address is still the one that lies there, and none has to be read again.
#pragma once

#include <atomic>
#include <cstdint>

#include "recorder/stacks/python_layout.h"

namespace gpumemtrace::recorder::stacks {

struct CodeFrees {
  // PyCode_Type of the interpreter that is counted for, null = none.
  std::atomic<const void*> type{nullptr};
  // Starts at 1.
  std::atomic<uint64_t> count{0};
};
extern CodeFrees g_code_frees;

// The count for code objects of this type, 0 = it is not counted. No barrier is needed: whoever runs code
// that lies where other code was freed is ordered after the free by the interpreter itself.
inline uint64_t CountOfCodeFrees(const void* code_type) {
  return g_code_frees.type.load(std::memory_order_relaxed) == code_type
             ? g_code_frees.count.load(std::memory_order_relaxed)
             : 0;
}

// Begins to count, for the first interpreter of the process that it is called for. Puts a function of ours in
// front of the one by which the type frees its objects (tp_dealloc, a word of the interpreter's data that is
// read at each free): no GIL is needed, and nothing else of the interpreter is changed. The type must be one
// that CheckPythonLayout found to be what the layout says. Takes the loader's lock.
void BeginToCountCodeFrees(const PythonLayout& layout, const void* code_type);

}  // namespace gpumemtrace::recorder::stacks
