// Functions of many shapes that call back, so that a test can build random stacks of them.
#pragma once

#include <cstddef>
#include <cstdint>

struct Plan {
  // What every shape calls in its middle.
  void (*next)(Plan& plan) = nullptr;
  uint64_t random = 1;
  int depth = 0;

  uint64_t Random() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }
};

using Shape = void (*)(Plan& plan);

// The same source compiled with and without frame pointers, and once more as a shared object.
namespace with_frame_pointers {
size_t Shapes(const Shape** shapes);
}
namespace without_frame_pointers {
size_t Shapes(const Shape** shapes);
}
