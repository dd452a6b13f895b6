// Launches of kernels and graphs, as a clock and for the memory that a first launch takes.
#pragma once

#include <cstdint>

#include "interpose/hooks.h"

namespace gpumemtrace::interpose::driver {

// A launch that succeeded. Recorded, thinned out, only while no caching allocator reports blocks: programs
// whose allocator sits above the driver (JAX, CuPy) otherwise show nothing between their warm-up and the end.
void NoticeLaunch(HookId id, const void* function, uint64_t stream);

}  // namespace gpumemtrace::interpose::driver
