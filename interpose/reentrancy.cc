// See reentrancy.h.
#include "interpose/reentrancy.h"

namespace gpumemtrace::interpose {

thread_local constinit ThreadState thread_state = {};

}  // namespace gpumemtrace::interpose
