// Reads what a process that was killed left in its ring file (proto/gpumemtrace/ring_file.h) and appends it
// to the trace: definitions to the model, events to the decoder, in the order of their sequence numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "analyzer/trace/definitions.h"
#include "analyzer/trace/event_decoder.h"
#include "analyzer/trace/reader.h"

namespace gpumemtrace::analyzer {

// Fills the span from the given offset of the ring file; false when that part does not exist.
using RingBytes = std::function<bool(uint64_t, std::span<char>)>;

// Rings that belong to no trace read before (key 0) are accepted when `any_key` is set.
void RecoverRings(const RingBytes& bytes, uint64_t file_size, bool any_key, const RingNames& names,
                  TraceModel& model, EventDecoder& decoder, TraceSink& sink, RecoveryReport& report);

// Finds the ring file of the trace in `model` (or `explicit_path`), checks that it is a leftover of this very
// process, and reads it.
RecoveryReport RecoverFromFile(const std::string& explicit_path, const RingNames& names, TraceModel& model,
                               EventDecoder& decoder, TraceSink& sink);

}  // namespace gpumemtrace::analyzer
