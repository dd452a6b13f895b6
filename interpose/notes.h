// Things the report should tell, found before tracing has begun: a note must not begin it, since a process
// that never touches CUDA leaves no trace.
#pragma once

namespace gpumemtrace::interpose {

// Puts `text` into the trace, now or when the first event begins it. Copied; cut at 255 bytes.
void Tell(const char* text);

// Called with every event on paths that are not hot.
void TellPending();

}  // namespace gpumemtrace::interpose
