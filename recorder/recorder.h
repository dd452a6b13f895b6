// The one way into the recorder. `interpose` calls these functions from inside CUDA and allocator
// hooks; nothing here throws, logs per call, changes errno, calls CUDA, or takes the Python GIL.
//
// All functions are safe from any thread at any time, also before Start, after the process began to
// exit, in a forked child and from a thread that is being torn down: what cannot be recorded is
// counted as lost.
#pragma once

#include <cstdint>
#include <span>

#include "recorder/event.h"

namespace gpumemtrace::recorder {

// What the interposer knows about itself and tells once. Pointers must stay valid for ever.
struct Host {
  // Names of API functions, indexed by Event::api; names[0] is "".
  const char* const* api_names = nullptr;
  uint16_t api_count = 0;
};

// Tells the recorder who feeds it. Cheap, does not touch files or threads. Call once, early.
void Initialize(const Host& host);

// True once tracing is on, which happens at the first Record/Mark (the first touch of CUDA), and false
// with GPUMEMTRACE=0 or when the output cannot be written.
bool Active();

// Starts tracing now (file, rings, writer thread) when the options allow it. Idempotent; returns Active().
bool Activate();

// Records one event together with the caller's stacks. Never blocks on I/O while its ring has room.
void Record(const Event& event);

// Takes a sequence number before a call that will be recorded after it returns (frees), so that the
// order of events is the order of the calls. Give it to Event::sequence, or to CancelSequence.
// At most one reservation per thread at a time is ordered exactly; a nested one is only numbered.
uint64_t ReserveSequence();
void CancelSequence(uint64_t sequence);

// Captures the Python stack of the calling thread as a stack of its own, to be attached to later
// events of other threads (Event::forward_stack). 0 when there are no Python frames.
uint64_t CaptureForwardStack();

// A point or a range named by the program. `text` and `domain` are copied; domain may be null.
enum class MarkKind : uint8_t {
  kInstant = 1,
  kPush = 2,
  kPop = 3,
  kStep = 4,
  kRangeStart = 5,
  kRangeEnd = 6
};
enum class MarkSource : uint8_t { kApi = 1, kNvtx = 2 };
void RecordMark(MarkKind kind, MarkSource source, const char* text, const char* domain, uint64_t number);

// A reading of the device's own free and total bytes.
void RecordDeviceMemory(int device, uint64_t free_bytes, uint64_t total_bytes);

// A device that is in use. `uuid` has 16 bytes. Recorded once per ordinal; later calls are ignored.
void RecordDevice(int device, const char* name, const unsigned char* uuid, uint64_t total_bytes,
                  uint32_t driver_version, uint32_t runtime_version);

// Something the report should tell the user; recorded once per distinct text.
enum class NoteSeverity : uint8_t { kInfo = 0, kWarning = 1 };
void RecordNote(NoteSeverity severity, const char* text);

// Serialized fields of a Content message (proto/gpumemtrace/trace.proto) that go into the trace as they are,
// after everything that this thread recorded before. False when it was lost; at most 64 KiB.
bool RecordContent(std::span<const unsigned char> content);

// The set of loaded objects changed (dlopen, dlclose): caches of unwind tables and modules are stale.
void ModulesChanged();

// Drains, writes the final packet and the line on stderr. Called at exit; recording may go on after it
// (static destructors) and then appends again.
void Finish();

}  // namespace gpumemtrace::recorder
