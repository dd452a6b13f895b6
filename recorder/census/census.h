// Who holds a tensor: asks the process's Python interpreter, at a safe point of its own, for every live
// device tensor and the names that keep it, and puts the answer into the trace (CensusPart in trace.proto).
//
// Knows Python only, nothing of CUDA. Nothing here takes the GIL or waits for it: what needs the GIL is left
// to the interpreter as a pending call.
#pragma once

#include <cstdint>

namespace gpumemtrace::recorder::census {

enum class Mode : uint8_t {
  kAuto,  // at exit, when PyTorch runs out of memory, and now and then while memory grows
  kExit,  // at exit and when PyTorch runs out of memory
  kOff,
};

struct CensusOptions {
  Mode mode = Mode::kAuto;
  uint64_t budget_ms = 2000;
  // Bytes; 0 = no limit of the user's.
  uint64_t growth = 0;
  // 0 = none.
  int signal = 0;
};

// Once, when tracing starts. Again in a forked child that traces.
void Configure(const CensusOptions& options);

// What the writer thread sees go by, at most every quarter of a second or so: it lets the census attach
// itself to the interpreter and decides whether memory grew enough to look.
void Observe(uint64_t now_ns, uint64_t live_blocks, uint64_t live_bytes);

// A census as soon as the main thread runs Python code again. False when there is no interpreter to ask.
// From any thread, with or without the GIL.
bool Request();

}  // namespace gpumemtrace::recorder::census
