// The loaded objects of this process, by address: what a definition of a module says, and where its unwind
// tables are. For cold paths: every call takes a lock.
#pragma once

#include <cstdint>
#include <span>

namespace gpumemtrace::recorder::stacks {

struct ModuleInfo {
  // Counts up with every object that is loaded; never 0.
  uint64_t serial = 0;
  // The same for the same file content at the same path: a hash of path and build-id.
  uint64_t content = 0;
  uint64_t load_bias = 0;
  uint64_t start = 0;
  uint64_t end = 0;
  uint8_t build_id_size = 0;
  unsigned char build_id[64] = {};
  uint16_t path_size = 0;
};

// Brings the table up to date with the loader's list. The two functions below do not look at that list.
void RefreshModules();

// The object that covers `address`. The path is copied into `path`, cut when longer. False when the address
// lies in no object.
bool FindModule(uint64_t address, ModuleInfo& info, std::span<char> path);

// Cheaper: the object's serial and what makes an address in it comparable between loads.
struct ModuleKey {
  uint64_t serial = 0;
  uint64_t content = 0;
  uint64_t load_bias = 0;
};
ModuleKey FindModuleKey(uint64_t address);

// Asks the loader whether objects were loaded or unloaded. True when some were unloaded since the last
// call: what an address means may have changed.
bool NoteModuleChanges();

// Counts how often NoteModuleChanges returned true; starts at 1. A plain atomic load.
uint64_t UnloadGeneration();

// The mapped range of the object that contains `address`; false when there is none. Asks the loader.
bool RangeOfObject(uint64_t address, uint64_t& start, uint64_t& end);

void ResetModulesAfterFork();

}  // namespace gpumemtrace::recorder::stacks
