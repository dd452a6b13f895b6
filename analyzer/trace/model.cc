#include "analyzer/trace/model.h"

#include <array>

namespace gpumemtrace::analyzer {

#define GPUMEMTRACE_SAME(ours, theirs) \
  static_assert(static_cast<int>(ours) == static_cast<int>(gpumemtrace::theirs))
GPUMEMTRACE_SAME(EventKind::kAllocate, ALLOCATE);
GPUMEMTRACE_SAME(EventKind::kFree, FREE);
GPUMEMTRACE_SAME(EventKind::kAddressReserve, ADDRESS_RESERVE);
GPUMEMTRACE_SAME(EventKind::kAddressFree, ADDRESS_FREE);
GPUMEMTRACE_SAME(EventKind::kPhysicalCreate, PHYSICAL_CREATE);
GPUMEMTRACE_SAME(EventKind::kPhysicalRetain, PHYSICAL_RETAIN);
GPUMEMTRACE_SAME(EventKind::kPhysicalRelease, PHYSICAL_RELEASE);
GPUMEMTRACE_SAME(EventKind::kMap, MAP);
GPUMEMTRACE_SAME(EventKind::kUnmap, UNMAP);
GPUMEMTRACE_SAME(EventKind::kImport, IMPORT);
GPUMEMTRACE_SAME(EventKind::kImportClose, IMPORT_CLOSE);
GPUMEMTRACE_SAME(EventKind::kPoolCreate, POOL_CREATE);
GPUMEMTRACE_SAME(EventKind::kPoolDestroy, POOL_DESTROY);
GPUMEMTRACE_SAME(EventKind::kPoolTrim, POOL_TRIM);
GPUMEMTRACE_SAME(EventKind::kGraphAllocateNode, GRAPH_ALLOCATE_NODE);
GPUMEMTRACE_SAME(EventKind::kGraphFreeNode, GRAPH_FREE_NODE);
GPUMEMTRACE_SAME(EventKind::kGraphInstantiate, GRAPH_INSTANTIATE);
GPUMEMTRACE_SAME(EventKind::kGraphLaunch, GRAPH_LAUNCH);
GPUMEMTRACE_SAME(EventKind::kGraphDestroy, GRAPH_DESTROY);
GPUMEMTRACE_SAME(EventKind::kGraphTrim, GRAPH_TRIM);
GPUMEMTRACE_SAME(EventKind::kContextCreate, CONTEXT_CREATE);
GPUMEMTRACE_SAME(EventKind::kContextDestroy, CONTEXT_DESTROY);
GPUMEMTRACE_SAME(EventKind::kHandleCreate, HANDLE_CREATE);
GPUMEMTRACE_SAME(EventKind::kHandleDestroy, HANDLE_DESTROY);
GPUMEMTRACE_SAME(EventKind::kKernelLaunch, KERNEL_LAUNCH);
GPUMEMTRACE_SAME(EventKind::kBlockAllocate, BLOCK_ALLOCATE);
GPUMEMTRACE_SAME(EventKind::kBlockFree, BLOCK_FREE);
GPUMEMTRACE_SAME(EventKind::kBlockOutOfMemory, BLOCK_OUT_OF_MEMORY);
GPUMEMTRACE_SAME(Space::kDevice, DEVICE);
GPUMEMTRACE_SAME(Space::kManaged, MANAGED);
GPUMEMTRACE_SAME(Space::kPinnedHost, PINNED_HOST);
GPUMEMTRACE_SAME(Space::kRegisteredHost, REGISTERED_HOST);
GPUMEMTRACE_SAME(Space::kStreamOrdered, STREAM_ORDERED);
GPUMEMTRACE_SAME(Space::kVirtual, VIRTUAL);
GPUMEMTRACE_SAME(Space::kArray, ARRAY);
GPUMEMTRACE_SAME(Space::kGraph, GRAPH);
GPUMEMTRACE_SAME(Space::kAlias, ALIAS);
GPUMEMTRACE_SAME(Space::kHostPool, HOST_POOL);
#undef GPUMEMTRACE_SAME

std::string_view SpaceName(Space space) {
  static constexpr std::array<std::string_view, kSpaceCount> kNames = {
      "unspecified", "device", "managed", "pinned host", "registered host", "stream-ordered",
      "virtual",     "array",  "graph",   "alias",       "host pool"};
  const size_t index = static_cast<size_t>(space);
  return index < kNames.size() ? kNames[index] : kNames[0];
}

std::string_view EventKindName(EventKind kind) {
  switch (kind) {
    case EventKind::kUnspecified:
      return "unspecified";
    case EventKind::kAllocate:
      return "allocate";
    case EventKind::kFree:
      return "free";
    case EventKind::kAddressReserve:
      return "address reserve";
    case EventKind::kAddressFree:
      return "address free";
    case EventKind::kPhysicalCreate:
      return "physical create";
    case EventKind::kPhysicalRetain:
      return "physical retain";
    case EventKind::kPhysicalRelease:
      return "physical release";
    case EventKind::kMap:
      return "map";
    case EventKind::kUnmap:
      return "unmap";
    case EventKind::kImport:
      return "import";
    case EventKind::kImportClose:
      return "import close";
    case EventKind::kPoolCreate:
      return "pool create";
    case EventKind::kPoolDestroy:
      return "pool destroy";
    case EventKind::kPoolTrim:
      return "pool trim";
    case EventKind::kGraphAllocateNode:
      return "graph allocate node";
    case EventKind::kGraphFreeNode:
      return "graph free node";
    case EventKind::kGraphInstantiate:
      return "graph instantiate";
    case EventKind::kGraphLaunch:
      return "graph launch";
    case EventKind::kGraphDestroy:
      return "graph destroy";
    case EventKind::kGraphTrim:
      return "graph trim";
    case EventKind::kContextCreate:
      return "context create";
    case EventKind::kContextDestroy:
      return "context destroy";
    case EventKind::kHandleCreate:
      return "handle create";
    case EventKind::kHandleDestroy:
      return "handle destroy";
    case EventKind::kKernelLaunch:
      return "kernel launch";
    case EventKind::kBlockAllocate:
      return "block allocate";
    case EventKind::kBlockFree:
      return "block free";
    case EventKind::kBlockOutOfMemory:
      return "block out of memory";
  }
  return "unknown";
}

std::vector<FrameId> TraceModel::StackFrames(StackId innermost) const {
  std::vector<FrameId> frames_of_stack;
  for (StackId id = innermost; id != 0;) {
    const StackNode& node = Node(id);
    frames_of_stack.push_back(node.frame);
    if (node.parent >= id) break;  // never in a model that the reader made
    id = node.parent;
  }
  return frames_of_stack;
}

}  // namespace gpumemtrace::analyzer
