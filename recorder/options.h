// The recorder's options, read once from the environment. Names, defaults and texts: the table in
// proto/gpumemtrace/options.h.
#pragma once

#include <cstdint>

#include "recorder/census/census.h"
#include "recorder/event.h"
#include "recorder/rings/ring_memory.h"
#include "recorder/stacks/stacks.h"

namespace gpumemtrace::recorder {

struct Options {
  bool enabled = true;
  // "" = the default name.
  const char* out = "";
  stacks::CaptureOptions stacks;
  bool any_stacks = true;
  uint64_t min_size = 0;
  // Bit 1 << Space.
  uint32_t spaces = ~0u;
  uint64_t flush_ns = 1'000'000'000;
  RingPlace rings = RingPlace::kAuto;
  uint64_t ring_bytes = uint64_t{1} << 20;
  uint64_t max_bytes = uint64_t{2} << 30;
  bool command_line = true;
  bool quiet = false;
  census::CensusOptions census;

  bool Records(Space space) const { return (spaces >> static_cast<unsigned>(space) & 1) != 0; }
};

// Whether GPUMEMTRACE leaves us switched on; says nothing on stderr. For the time before the first use of
// CUDA, when nothing may be visible.
bool Enabled();

// Reads an environment ("NAME=value" strings, null-terminated list). For every unknown or malformed value it
// gives one line (without a newline) to `complain`, and the default is used.
Options ParseOptions(const char* const* environment, void (*complain)(const char* line));

}  // namespace gpumemtrace::recorder
