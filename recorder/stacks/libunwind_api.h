// The few functions of libunwind that we call, from the archive linked into the shim or, without one, from
// the system's libunwind.so.8, opened so that its symbols stay invisible to the host.
#pragma once

#include <span>

namespace gpumemtrace::recorder::stacks {

// Opens libunwind where it is not linked in. Takes the loader's lock. Returns null, or why there is none.
const char* PrepareLibunwind();

bool HaveLibunwind();

// Return addresses of the calling thread, innermost first; the first lies in this function's caller's
// caller or further in, so callers drop frames of their own. −1 when there is no libunwind.
int LibunwindBacktrace(std::span<void*> addresses);

// After code was unloaded: its unwind tables may not be used again.
void LibunwindForget();

}  // namespace gpumemtrace::recorder::stacks
