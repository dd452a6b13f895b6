// What differs between two runs, or two moments of one run, by the code that is answerable. Lines may have
// moved between the runs: functions are matched by name, the lines in them by their order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analyzer/analyses/findings.h"

namespace gpumemtrace::analyzer {

// Figures of one line on one side.
struct LineFigures {
  Place place;
  uint64_t bytes = 0;
  uint64_t count = 0;
  double bytes_per_step = 0;
};

struct LineDifference {
  // Empty function: not there on that side.
  LineFigures before;
  LineFigures after;
  bool is_new = false;
  bool is_gone = false;

  int64_t bytes() const { return static_cast<int64_t>(after.bytes) - static_cast<int64_t>(before.bytes); }
  double growth() const { return after.bytes_per_step - before.bytes_per_step; }
};

// Largest change first.
std::vector<LineDifference> Compare(std::vector<LineFigures> before, std::vector<LineFigures> after);

// Lines at the peak of the main device, with their growth.
std::vector<LineFigures> PeakLines(const Findings& findings);
std::vector<LineFigures> SnapshotLines(const Snapshot& snapshot);

}  // namespace gpumemtrace::analyzer
