// A folded window of the trace (Folded in trace.proto): what is known of a stretch whose detail was given up.
#pragma once

#include <cstdint>
#include <vector>

#include "analyzer/trace/model.h"

namespace gpumemtrace::analyzer {

struct FoldedStack {
  SiteId site = 0;
  uint64_t births = 0;
  uint64_t born_bytes = 0;
  uint64_t least_count = 0;
  uint64_t most_count = 0;
  uint64_t least_bytes = 0;
  uint64_t most_bytes = 0;
  uint64_t count = 0;
  uint64_t bytes = 0;
  uint64_t last_birth = 0;  // its index; 0 = none in the window
};

struct FoldedPeak {
  int32_t device = -1;
  bool blocks = false;
  uint64_t bytes = 0;
  uint64_t index = 0;
  uint64_t time_us = 0;
  uint64_t least_bytes = 0;
};

struct FoldedWindow {
  uint64_t first_index = 0;
  uint64_t last_index = 0;
  uint64_t first_time_us = 0;
  uint64_t last_time_us = 0;
  uint64_t first_sequence = 0;
  uint64_t last_sequence = 0;
  // Known at its end only.
  uint64_t windows = 0;
  uint64_t events = 0;
  uint64_t events_dropped = 0;
  uint64_t totals_agreed = 0;
  uint64_t totals_disagreed = 0;
  std::vector<FoldedPeak> peaks;
  std::vector<FoldedStack> stacks;

  // About which event had this sequence number.
  uint64_t IndexAt(uint64_t sequence) const {
    if (sequence <= first_sequence || last_sequence <= first_sequence) return first_index;
    if (sequence >= last_sequence) return last_index + 1;
    const double part =
        static_cast<double>(sequence - first_sequence) / static_cast<double>(last_sequence - first_sequence);
    return first_index + static_cast<uint64_t>(part * static_cast<double>(last_index - first_index));
  }
};

}  // namespace gpumemtrace::analyzer
