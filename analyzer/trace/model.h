// What a trace says, in the analyzer's own terms: the interned tables (strings, modules, code objects,
// frames, stack nodes, threads, sites) and one decoded event. Plain data; bounded by the number of distinct
// stacks and sizes, never by the number of events.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpumemtrace/trace.pb.h"

namespace gpumemtrace::analyzer {

// Ids of the tables below. 0 means "none" everywhere.
using StringId = uint32_t;
using ModuleId = uint32_t;
using CodeId = uint32_t;
using FrameId = uint32_t;
// A stack is named by its innermost node.
using StackId = uint32_t;
using ThreadId = uint32_t;
using SiteId = uint32_t;

// Values of gpumemtrace.EventKind in trace.proto.
enum class EventKind : uint8_t {
  kUnspecified = 0,
  kAllocate = 1,
  kFree = 2,
  kAddressReserve = 3,
  kAddressFree = 4,
  kPhysicalCreate = 5,
  kPhysicalRetain = 6,
  kPhysicalRelease = 7,
  kMap = 8,
  kUnmap = 9,
  kImport = 10,
  kImportClose = 11,
  kPoolCreate = 12,
  kPoolDestroy = 13,
  kPoolTrim = 14,
  kGraphAllocateNode = 15,
  kGraphFreeNode = 16,
  kGraphInstantiate = 17,
  kGraphLaunch = 18,
  kGraphDestroy = 19,
  kGraphTrim = 20,
  kContextCreate = 21,
  kContextDestroy = 22,
  kHandleCreate = 23,
  kHandleDestroy = 24,
  kKernelLaunch = 25,
  kBlockAllocate = 40,
  kBlockFree = 41,
  kBlockOutOfMemory = 42,
};

constexpr bool IsBlock(EventKind kind) {
  return kind >= EventKind::kBlockAllocate;
}

// Values of gpumemtrace.Space in trace.proto.
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
constexpr int kSpaceCount = 11;
// "device", "managed", "pinned host", …
std::string_view SpaceName(Space space);
std::string_view EventKindName(EventKind kind);

// Bits of Site::flags, as EventFlags in the recorder.
constexpr uint32_t kSiteEstimatedSize = 1u << 0;
constexpr uint32_t kSiteWithoutTotals = 1u << 3;
constexpr uint32_t kSiteFailed = 1u << 1;

struct ModuleInfo {
  StringId path = 0;
  std::string build_id;  // bytes, not hexadecimal
  uint64_t load_bias = 0;
  uint64_t start = 0;
  uint64_t end = 0;
};

struct CodeObjectInfo {
  StringId file = 0;
  StringId qualified_name = 0;
  uint32_t first_line = 0;
  uint32_t python_version = 0;  // PY_VERSION_HEX >> 16
  std::string line_table;
};

struct FrameInfo {
  ModuleId module = 0;
  CodeId code_object = 0;
  uint64_t offset = 0;
  int32_t instruction = -1;
  bool entry = false;

  bool is_python() const { return code_object != 0; }
};

struct StackNode {
  StackId parent = 0;
  FrameId frame = 0;
};

struct ThreadInfo {
  uint64_t tid = 0;
  std::string name;
};

struct SiteInfo {
  EventKind kind = EventKind::kUnspecified;  // kUnspecified: this id was never defined (a lost packet)
  Space space = Space::kUnspecified;
  uint8_t address_shift = 0;
  // The size differs from event to event and stands in TraceEvent::size only.
  bool size_varies = false;
  uint32_t flags = 0;
  int32_t device = -1;
  int32_t result = 0;
  StringId api = 0;
  ThreadId thread = 0;
  StackId native_stack = 0;
  StackId python_stack = 0;
  StackId forward_stack = 0;
  uint64_t stream = 0;
  uint64_t size = 0;

  bool failed() const { return (flags & kSiteFailed) != 0 || result != 0; }
};

// Everything that a trace defines once. Tables are indexed by id; entry 0 is the "none" entry.
struct TraceModel {
  bool has_header = false;
  Header header;
  std::vector<std::string> strings{1};
  std::vector<ModuleInfo> modules{1};
  std::vector<CodeObjectInfo> code_objects{1};
  std::vector<FrameInfo> frames{1};
  std::vector<StackNode> stack_nodes{1};
  std::vector<ThreadInfo> threads{1};
  std::vector<SiteInfo> sites{1};
  std::vector<Device> devices;
  std::vector<Interpreter> interpreters;
  std::vector<Note> notes;
  // The last one read.
  bool has_statistics = false;
  Statistics statistics;
  bool has_end = false;
  End end;

  // All of these answer the "none" entry for an id that is not defined.
  std::string_view String(StringId id) const { return id < strings.size() ? strings[id] : strings[0]; }
  const ModuleInfo& Module(ModuleId id) const { return modules[id < modules.size() ? id : 0]; }
  const CodeObjectInfo& Code(CodeId id) const { return code_objects[id < code_objects.size() ? id : 0]; }
  const FrameInfo& Frame(FrameId id) const { return frames[id < frames.size() ? id : 0]; }
  const StackNode& Node(StackId id) const { return stack_nodes[id < stack_nodes.size() ? id : 0]; }
  const ThreadInfo& Thread(ThreadId id) const { return threads[id < threads.size() ? id : 0]; }
  const SiteInfo& Site(SiteId id) const { return sites[id < sites.size() ? id : 0]; }

  // Frames of a stack, innermost first. Parents are smaller than children, so this ends.
  std::vector<FrameId> StackFrames(StackId innermost) const;
};

// "No such object" for TraceEvent::birth_index.
constexpr uint64_t kNoIndex = UINT64_MAX;
// "No such object" for TraceEvent::object and for slots of the ledger.
constexpr uint32_t kNoSlot = UINT32_MAX;

// One event, decoded: predictors undone, references to births resolved.
struct TraceEvent {
  uint64_t index = 0;     // position in the trace
  uint64_t sequence = 0;  // order of the calls in the process
  uint64_t time_us = 0;   // CLOCK_MONOTONIC
  uint64_t address = 0;
  // Kinds that end an object carry its size when the birth is known.
  uint64_t size = 0;
  // Blocks: totals reported by the allocator (allocated, reserved). Others: see recorder/event.h.
  uint64_t argument[2] = {0, 0};
  // Kinds that end an object: index of the event that made it; kNoIndex = not in the trace.
  uint64_t birth_index = kNoIndex;
  // Dense number of the object that this event makes or ends, reused after its end; kNoSlot = none.
  uint32_t object = kNoSlot;
  SiteId site = 0;
  EventKind kind = EventKind::kUnspecified;
  // Blocks: false when the totals follow from the size of an allocation whose birth was lost.
  bool totals_known = true;
};

// A point or range that the program named.
struct TraceMark {
  Mark::Kind kind = Mark::MARK_UNSPECIFIED;
  Mark::Source source = Mark::SOURCE_UNSPECIFIED;
  ThreadId thread = 0;
  StringId text = 0;
  StringId domain = 0;
  uint64_t sequence = 0;
  uint64_t time_us = 0;
  uint64_t number = 0;
};

// A reading of cuMemGetInfo.
struct DeviceReading {
  int32_t device = -1;
  uint64_t sequence = 0;
  uint64_t time_us = 0;
  uint64_t free = 0;
  uint64_t total = 0;
};

}  // namespace gpumemtrace::analyzer
