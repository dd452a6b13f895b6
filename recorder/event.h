// What crosses from `interpose` into `recorder`: one plain struct per thing that happened. It names
// no CUDA type, so that the recorder can be built and tested without CUDA.
#pragma once

#include <cstdint>

namespace gpumemtrace::recorder {

// Values equal gpumemtrace.EventKind in proto/gpumemtrace/trace.proto (a test compares them).
// For each kind: the meaning of `address`, `size`, `argument[0]`, `argument[1]`; "-" is unused.
enum class EventKind : uint8_t {
  kUnspecified = 0,
  // Segments: what the driver gave or took.
  kAllocate = 1,            // start, bytes, pool handle or 0, -
  kFree = 2,                // start, -, -, -
  kAddressReserve = 3,      // start of the virtual range, bytes, -, -
  kAddressFree = 4,         // start, bytes, -, -
  kPhysicalCreate = 5,      // the handle, bytes, -, -
  kPhysicalRetain = 6,      // the handle, -, address it was retained from, -
  kPhysicalRelease = 7,     // the handle, -, -, -
  kMap = 8,                 // start, bytes, the handle, offset in the handle
  kUnmap = 9,               // start, bytes, -, -
  kImport = 10,             // start or handle, bytes (0 = unknown), hash of the shared handle, -
  kImportClose = 11,        // start or handle, -, -, -
  kPoolCreate = 12,         // pool handle, -, -, -
  kPoolDestroy = 13,        // pool handle, -, -, -
  kPoolTrim = 14,           // pool handle, bytes to keep, -, -
  kGraphAllocateNode = 15,  // start, bytes, graph handle, node handle
  kGraphFreeNode = 16,      // start, -, graph handle, node handle
  kGraphInstantiate = 17,   // executable handle, -, graph handle, instantiate flags
  kGraphLaunch = 18,        // executable handle, -, -, -
  kGraphDestroy = 19,       // graph or executable handle, -, -, -
  kGraphTrim = 20,          // -, -, -, -
  kContextCreate = 21,      // context handle, -, -, -
  kContextDestroy = 22,     // context handle (0 = the device's primary context), -, -, -
  kHandleCreate = 23,       // handle, -, -, - (the API name tells which sort)
  kHandleDestroy = 24,      // handle, -, -, -
  // A clock for programs whose allocator sits above the driver: thinned out, and silent once blocks are seen.
  kKernelLaunch = 25,  // function or executable handle, -, device bytes that its first launch took, -
  // Blocks: what a caching allocator gave to the program. argument[0] and [1] are the allocator's own
  // totals after the event: allocated bytes and reserved bytes of this device.
  kBlockAllocate = 40,     // start, bytes
  kBlockFree = 41,         // start, bytes
  kBlockOutOfMemory = 42,  // -, bytes asked for
};

// Values equal gpumemtrace.Space in trace.proto.
enum class Space : uint8_t {
  kUnspecified = 0,
  kDevice = 1,
  kManaged = 2,
  kPinnedHost = 3,
  kRegisteredHost = 4,
  kStreamOrdered = 5,
  kVirtual = 6,
  kArray = 7,
  kGraph = 8,
  kAlias = 9,
  kHostPool = 10,
};

// Bits of Event::flags.
enum EventFlags : uint16_t {
  kNoFlags = 0,
  // The size was computed by us and the driver may have taken more (arrays).
  kEstimatedSize = 1u << 0,
  // The call failed; `result` says how and nothing changed.
  kFailed = 1u << 1,
  // Do not capture stacks for this event.
  kWithoutStack = 1u << 2,
  // BLOCK_*: the allocator did not tell its totals (PyTorch before 1.10); both arguments are 0.
  kWithoutTotals = 1u << 3,
};

// One event. Trivially copyable; the caller owns it and the recorder copies what it needs.
struct Event {
  EventKind kind = EventKind::kUnspecified;
  Space space = Space::kUnspecified;
  uint16_t flags = kNoFlags;
  // Index into the names given to recorder::Start: the outermost API function.
  uint16_t api = 0;
  // CUDA ordinal, −1 = host or unknown.
  int16_t device = -1;
  // CUresult or cudaError_t; 0 = success.
  int32_t result = 0;
  // 0: the recorder takes a number now. Else one from recorder::ReserveSequence().
  uint64_t sequence = 0;
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t argument[2] = {0, 0};
  // CUstream as a number, 0 = default stream or none.
  uint64_t stream = 0;
  // A stack from recorder::CaptureForwardStack() that belongs to this event besides its own, 0 = none.
  uint64_t forward_stack = 0;
};

// Bytes in this kind of event belong to a caching allocator inside a segment.
constexpr bool IsBlock(EventKind kind) {
  return kind >= EventKind::kBlockAllocate;
}

}  // namespace gpumemtrace::recorder
