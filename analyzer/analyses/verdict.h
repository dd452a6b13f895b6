// One headline for a trace: leak, fragmentation, peak or clean, with the lines to look at.
#pragma once

#include <string>
#include <vector>

#include "analyzer/analyses/findings.h"

namespace gpumemtrace::analyzer {

// From everything else in `findings`. `gaps`: lost parts of the trace.
Verdict MakeVerdict(const Findings& findings, uint64_t changes, uint64_t gaps);

// The lines that the headline of a leak is about: one, or all that one keeper keeps.
struct LeakOfHeadline {
  double bytes_per_step = 0;
  std::vector<std::string> places;  // of birth, Place::Short(), worst first
  std::string keeper;               // in words, where a census saw it; else empty
  std::string stores;               // "train.py:28", where the keeper is filled; empty = not known
};
// "LEAK: 8 MiB/step, kept by train.kept[…] (list, 24 items), stored at train.py:28; born at train.py:27".
// What the verdict knows of other leaks is added.
std::string LeakHeadline(const Verdict& verdict, const Findings& findings, const LeakOfHeadline& leak);

}  // namespace gpumemtrace::analyzer
