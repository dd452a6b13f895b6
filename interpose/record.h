// Turns what a wrapper learned into the recorder's events. Every function here needs a Proof, keeps errno,
// and never calls anything that changes the program's state.
#pragma once

#include <cstdint>

#include "interpose/reentrancy.h"
#include "recorder/event.h"

namespace gpumemtrace::interpose {

using recorder::Event;
using recorder::EventKind;
using recorder::Space;

// What differs between events; the rest comes from the proof and the result of the call.
struct Facts {
  EventKind kind = EventKind::kUnspecified;
  Space space = Space::kUnspecified;
  int device = -1;
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t argument[2] = {0, 0};
  uint64_t stream = 0;
  uint16_t flags = recorder::kNoFlags;
};

// Records a call that has just returned.
void Record(const Proof& proof, const Facts& facts, Result result);

// A call that gives something back: its place in the order of events is taken before the call, because
// another thread can get the same address before we have written the event.
class Ticket {
 public:
  // Under a runtime function it takes over the number that the runtime's wrapper reserved.
  explicit Ticket(const Proof& proof);
  // Reserves without a driver scope: for the runtime's wrapper, which hands the number down.
  struct HandDown {};
  explicit Ticket(HandDown);
  ~Ticket();
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  void Record(const Proof& proof, const Facts& facts, Result result);

 private:
  void Register();
  void Unregister();

  bool hands_down_ = false;
  uint64_t sequence_ = 0;
};

// Tells the recorder about the device once, and how much memory it says is free: at most every 10 ms, or
// every second where `often` is false (stream-ordered allocation can be as frequent as tensors).
void SampleDevice(int device, bool often);

// What the device says is free, for a comparison within one call; false while a stream is being captured and
// without a current context.
bool ReadFreeMemory(int device, uint64_t* free_bytes);

// Counts the events of this file's functions: two equal readings mean that nothing was recorded in between.
uint64_t RecordedSegments();

// Number of stream captures begun and not ended. While it is not 0 the device is not asked anything.
void CaptureBegan();
void CaptureEnded();

}  // namespace gpumemtrace::interpose
