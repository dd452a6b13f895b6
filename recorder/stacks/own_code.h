// Which addresses are the shim's own code: frames there are never part of a stack.
#pragma once

#include <cstdint>

namespace gpumemtrace::recorder::stacks {

struct CodeRange {
  uint64_t start = 0;
  uint64_t end = 0;
  bool Contains(uint64_t address) const { return address - start < end - start; }
};

// The shared object that contains this function. Empty before FindOwnCode.
CodeRange OwnCode();

void FindOwnCode();

// For tests that link the recorder into a program whose own frames they want to see.
void SetOwnCode(CodeRange range);

}  // namespace gpumemtrace::recorder::stacks
