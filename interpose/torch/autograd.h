// Ties what autograd's threads allocate to the Python line whose forward made the running node.
#pragma once

#include <cstdint>

namespace gpumemtrace::interpose::torch {

// The Python stack that created the autograd node which the calling thread is running; 0 when none runs, or
// when it is not known for sure.
uint64_t ForwardStackOfRunningNode();

}  // namespace gpumemtrace::interpose::torch
