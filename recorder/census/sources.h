// The Python files of the census, embedded when the shim is built (embed.cmake).
#pragma once

#include <cstddef>

namespace gpumemtrace::recorder::census {

struct Source {
  // "<frozen importlib.gpumemtrace objects.py>": torch.compile leaves functions of the import system alone
  // (SKIP_DIRS in torch/_dynamo/trace_rules.py, since 2.0). A census may begin between two bytecodes of a
  // region that it compiles, and would be compiled, too.
  const char* name;
  const char* text;  // null-terminated
};

// Compiled and executed when the census attaches itself.
extern const Source kInstallSource;
// Compiled when the first census is taken.
extern const Source kSources[];
extern const size_t kSourceCount;

}  // namespace gpumemtrace::recorder::census
