// Whether the shim takes part in this process at all. It is inert with GPUMEMTRACE=0 and when it was not
// preloaded; everything else waits for the first touch of CUDA, which the recorder sees as the first event.
#pragma once

namespace gpumemtrace::interpose {

// Cheap; may be called before any constructor has run.
bool Enabled();

}  // namespace gpumemtrace::interpose
