// A process for each way in which programs make life hard for a preloaded library. Each case prints what
// happened, in words that do not depend on addresses or timing, so that a test can compare a run under the
// shim with a run without it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace edge_cases {

struct Case {
  const char* name;
  int (*run)(const std::vector<std::string>& arguments);
};

std::vector<Case>& Cases();

struct Registration {
  Registration(const char* name, int (*run)(const std::vector<std::string>&)) {
    Cases().push_back({name, run});
  }
};

#define EDGE_CASE(name)                                                            \
  static int Run_##name(const std::vector<std::string>& arguments);                \
  static const ::edge_cases::Registration registration_##name(#name, &Run_##name); \
  static int Run_##name([[maybe_unused]] const std::vector<std::string>& arguments)

// Device memory through the runtime this binary is linked with; abort on failure.
void* Allocate(size_t size);
void Release(void* pointer);

// Folder of the test plug-ins, from the command line.
extern std::string g_plugin;

}  // namespace edge_cases
