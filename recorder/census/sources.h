// The Python files of the census, embedded when the shim is built (embed.cmake).
#pragma once

#include <cstddef>

namespace gpumemtrace::recorder::census {

struct Source {
  const char* name;  // "<gpumemtrace objects.py>"
  const char* text;  // null-terminated
};

// Compiled and executed when the census attaches itself.
extern const Source kInstallSource;
// Compiled when the first census is taken.
extern const Source kSources[];
extern const size_t kSourceCount;

}  // namespace gpumemtrace::recorder::census
