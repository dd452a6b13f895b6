// The few lines that the recorder writes to stderr.
#pragma once

namespace gpumemtrace::recorder {

// Remembers what stderr is now, so that a later line never goes to a file that the host opened at its number.
void RememberStderr();

// One line that begins with "gpumemtrace: ". Dropped when stderr is not what it was.
__attribute__((format(printf, 1, 2))) void Message(const char* format, ...);
// A complete line without its end.
void MessageLine(const char* line);

const char* ErrorText(int error);

}  // namespace gpumemtrace::recorder
