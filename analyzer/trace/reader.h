// Reads trace.pb in one pass: framing, checksums, columns, predictors; goes on after damage; and adds what a
// killed process left in its rings. Events, marks and device readings arrive in order of their sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "analyzer/trace/folded.h"
#include "analyzer/trace/model.h"

namespace gpumemtrace::analyzer {

// Receives the contents of a trace. Calls come one after another, never concurrently. All ids used in a call
// are already in the model.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // A run of events. Batches are cut so that every mark and device reading comes between the events that its
  // sequence number says.
  virtual void OnEvents(std::span<const TraceEvent> events) = 0;
  virtual void OnMark(const TraceMark&) {}
  virtual void OnDeviceReading(const DeviceReading&) {}
  // Every packet, after its definitions and before its events, for parts that the reader does not interpret.
  virtual void OnContent(const Content&) {}
  // From here to OnFolded only those events, marks and readings come that an old window has kept; only its
  // bounds are known yet.
  virtual void OnFoldedBegin(const FoldedWindow&) {}
  // Its figures; they count all of its events, also those that came.
  virtual void OnFolded(const FoldedWindow&) {}
  // A part of the trace is missing here: what was live before may have been freed in it.
  virtual void OnGap() {}
};

// Damage and loss found while reading, for the report and the exit code.
struct DamageReport {
  // The file ends in the middle of a packet (a write that was cut short, or a copy).
  bool cut = false;
  uint64_t cut_at = 0;  // file offset of the incomplete packet
  // Packets that failed their checksum or could not be decoded, and bytes skipped to find the next one.
  uint64_t packets_lost = 0;
  uint64_t bytes_skipped = 0;
  uint64_t first_damage_at = 0;  // file offset, valid when packets_lost + bytes_skipped > 0
  // Events known to be missing, from gaps in the index; those of undecodable packets included.
  uint64_t events_lost = 0;
  // One sentence on the first fault, for people.
  std::string first_fault;

  bool any() const { return cut || packets_lost != 0 || bytes_skipped != 0 || events_lost != 0; }
};

// What was found in the rings of a process that did not end in order.
struct RecoveryReport {
  enum class State : uint8_t {
    kNotNeeded,   // the trace ends in order
    kRead,        // rings were read
    kNoRingFile,  // no ring file was named or it is gone; what it held is lost (or the process runs
                  // elsewhere)
    kForeign,     // the file belongs to another run (key or boot id differ)
    kDamaged,     // rings were read in part
    kUnreadable,  // no permission, I/O error
  };
  State state = State::kNotNeeded;
  std::string path;
  std::string detail;
  uint64_t events = 0;
  uint64_t rings = 0;
  uint64_t records_damaged = 0;
  // The process of the trace still exists on this machine.
  bool process_running = false;
};

struct ReaderOptions {
  // Rings to use instead of Header.ring_file.
  std::string ring_file;
  // False: never look for rings.
  bool recover = true;
  // Called now and then with bytes read and bytes in all.
  std::function<void(uint64_t, uint64_t)> progress;
};

enum class TraceFault : uint8_t {
  kNone,
  kCannotRead,    // no such file, no permission, a directory, I/O error
  kNotATrace,     // no valid packet at all
  kNewerVersion,  // Header.format_version is greater than ours
};

struct ReadResult {
  TraceFault fault = TraceFault::kNone;
  // One line: file, place, remedy. Empty when fault is kNone.
  std::string message;
  DamageReport damage;
  RecoveryReport recovery;
  uint64_t bytes = 0;
  uint64_t packets = 0;
  uint64_t events = 0;
};

// Reads a whole trace into `model` and `sink`. The model is filled as packets come.
ReadResult ReadTrace(const std::string& path, const ReaderOptions& options, TraceModel& model,
                     TraceSink& sink);
// The same from memory (tests, fuzzing); `name` stands for the file in messages.
ReadResult ReadTraceBytes(std::span<const char> bytes, const std::string& name, const ReaderOptions& options,
                          TraceModel& model, TraceSink& sink);

}  // namespace gpumemtrace::analyzer
