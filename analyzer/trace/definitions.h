// Puts the definitions of a packet into the model, refusing what cannot be: the file may be damaged or
// hostile.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "analyzer/trace/model.h"

namespace gpumemtrace::analyzer {

// What only the rings of a killed process refer to.
struct RingNames {
  struct Stacks {
    StackId native = 0;
    StackId python = 0;
  };
  absl::flat_hash_map<uint64_t, Stacks> stacks;  // StackRecord::number
  absl::flat_hash_map<uint64_t, CodeId> code;    // CodeRecord::number
  struct Position {
    uint64_t consumed = 0;
    ThreadId thread = 0;
  };
  absl::flat_hash_map<uint32_t, Position> positions;  // by ring
};

// `bytes_read` bounds ids: a definition takes at least one byte, so no id can be greater than the number of
// bytes before it. Returns the number of definitions refused.
uint64_t ApplyDefinitions(const Content& content, uint64_t bytes_read, TraceModel& model, RingNames& names);

}  // namespace gpumemtrace::analyzer
