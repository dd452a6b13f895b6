// Graphs: memory nodes, instantiation, launch, destruction, and the begin and end of stream capture.
//
// An allocation node is an address without memory; the memory exists from a launch of an executable of its
// graph until a free node, a cuMemFree, the next launch with AUTO_FREE_ON_LAUNCH, or a trim. Launches are
// frequent and most graphs own no memory, so a launch is recorded only when its graph does.
#include <cuda.h>

#include <atomic>

#include "interpose/driver/graph_memory.h"
#include "interpose/driver/launches.h"
#include "interpose/driver/wrappers.h"
#include "interpose/handle_map.h"

namespace gpumemtrace::interpose::driver {
namespace {

// CUgraphNodeType in cuda.h.
constexpr int kNodeGraph = 4;
constexpr int kNodeMemAlloc = 10;
constexpr int kNodeMemFree = 11;
constexpr int kNodeConditional = 13;

// Graphs and executables that own memory nodes. When a map is full, every launch is recorded.
constinit HandleMap<4096> memory_graphs;
constinit HandleMap<4096> memory_executables;
// Graphs that the program made before it captured into them: their capture's end makes no new one.
constinit HandleMap<256> captured_into;
std::atomic<bool> any_memory_node{false};
std::atomic<bool> record_all_launches{false};

void RememberGraph(uint64_t graph) {
  any_memory_node.store(true, std::memory_order_relaxed);
  if (graph == 0 || !memory_graphs.Put(graph, 1)) {
    record_all_launches.store(true, std::memory_order_relaxed);
  }
}

// Whether the graph, or a graph inside it, has memory nodes; asks the driver, since nodes can come from
// clones, child graphs and captures that we did not see.
bool OwnsMemory(void* graph, int depth) {
  if (graph == nullptr || !any_memory_node.load(std::memory_order_relaxed)) {
    return false;
  }
  if (memory_graphs.Contains(reinterpret_cast<uint64_t>(graph))) {
    return true;
  }
  const DriverFunctions& functions = Driver();
  constexpr size_t kMaxNodes = 512;
  constexpr int kMaxDepth = 4;
  void* nodes[kMaxNodes];
  size_t count = 0;
  if (functions.graph_get_nodes == nullptr || functions.graph_node_get_type == nullptr ||
      functions.graph_get_nodes(graph, nullptr, &count) != 0) {
    return true;
  }
  if (count > kMaxNodes || depth >= kMaxDepth) {
    return true;  // Too big to look through here: its launches are recorded, which is harmless.
  }
  if (functions.graph_get_nodes(graph, nodes, &count) != 0) {
    return true;
  }
  for (size_t i = 0; i < count; ++i) {
    int type = 0;
    if (functions.graph_node_get_type(nodes[i], &type) != 0) {
      continue;
    }
    if (type == kNodeMemAlloc || type == kNodeMemFree || type == kNodeConditional) {
      return true;
    }
    void* child = nullptr;
    if (type == kNodeGraph && functions.graph_child_get_graph != nullptr &&
        functions.graph_child_get_graph(nodes[i], &child) == 0 && OwnsMemory(child, depth + 1)) {
      return true;
    }
  }
  return false;
}

void RecordHandle(const DriverScope& scope, uint64_t handle, Result result) {
  Record(scope.proof(),
         {.kind = EventKind::kHandleCreate,
          .space = Space::kGraph,
          .device = CurrentDevice(),
          .address = handle},
         result);
}

Result GraphCreate(Call<Result, void**, unsigned> call, void** graph, unsigned flags) {
  const DriverScope scope(call.id);
  const Result result = call(graph, flags);
  if (scope.outermost()) {
    RecordHandle(scope, Written(graph, result), result);
  }
  return result;
}

Result GraphClone(Call<Result, void**, void*> call, void** clone, void* original) {
  const DriverScope scope(call.id);
  const Result result = call(clone, original);
  if (scope.outermost()) {
    if (result == 0 && memory_graphs.Contains(reinterpret_cast<uint64_t>(original))) {
      RememberGraph(Written(clone, result));
    }
    RecordHandle(scope, Written(clone, result), result);
  }
  return result;
}

Result Destroy(Call<Result, void*> call, void* handle, bool executable) {
  const DriverScope scope(call.id);
  if (!scope.outermost() || handle == nullptr) {
    return call(handle);
  }
  const Proof proof = scope.proof();
  Ticket ticket(proof);
  const auto number = reinterpret_cast<uint64_t>(handle);
  const Result result = call(handle);
  if (result == 0) {
    if (executable) {
      memory_executables.Erase(number);
    } else {
      memory_graphs.Erase(number);
    }
  }
  ticket.Record(proof,
                {.kind = executable ? EventKind::kGraphDestroy : EventKind::kHandleDestroy,
                 .space = Space::kGraph,
                 .device = CurrentDevice(),
                 .address = number},
                result);
  return result;
}

Result GraphDestroy(Call<Result, void*> call, void* graph) {
  return Destroy(call, graph, false);
}
Result GraphExecDestroy(Call<Result, void*> call, void* executable) {
  return Destroy(call, executable, true);
}

Result GraphAddMemAllocNode(
    Call<Result, void**, void*, void* const*, size_t, CUDA_MEM_ALLOC_NODE_PARAMS*> call, void** node,
    void* graph, void* const* dependencies, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  const DriverScope scope(call.id);
  const Result result = call(node, graph, dependencies, count, params);
  if (scope.outermost() && result == 0 && params != nullptr) {
    RecordGraphAllocation(scope.proof(), params->dptr, params->bytesize, reinterpret_cast<uint64_t>(graph),
                          Written(node, result), params->poolProps.location.id);
  }
  return result;
}

Result GraphAddMemFreeNode(Call<Result, void**, void*, void* const*, size_t, uint64_t> call, void** node,
                           void* graph, void* const* dependencies, size_t count, uint64_t pointer) {
  const DriverScope scope(call.id);
  const Result result = call(node, graph, dependencies, count, pointer);
  if (scope.outermost() && result == 0) {
    RecordGraphFree(scope.proof(), pointer, reinterpret_cast<uint64_t>(graph), Written(node, result));
  }
  return result;
}

// CUgraphNodeParams (cuda.h 12.2): the type, then at byte 16 the parameters of that type.
struct NodeParams {
  int type;
  int reserved[3];
  union {
    CUDA_MEM_ALLOC_NODE_PARAMS allocate;
    uint64_t free_pointer;
  };
};

void RecordAddedNode(const DriverScope& scope, void* graph, uint64_t node, const NodeParams* params) {
  if (params == nullptr) {
    return;
  }
  if (params->type == kNodeMemAlloc) {
    RecordGraphAllocation(scope.proof(), params->allocate.dptr, params->allocate.bytesize,
                          reinterpret_cast<uint64_t>(graph), node, params->allocate.poolProps.location.id);
  } else if (params->type == kNodeMemFree) {
    RecordGraphFree(scope.proof(), params->free_pointer, reinterpret_cast<uint64_t>(graph), node);
  }
}

Result GraphAddNode(Call<Result, void**, void*, void* const*, size_t, NodeParams*> call, void** node,
                    void* graph, void* const* dependencies, size_t count, NodeParams* params) {
  const DriverScope scope(call.id);
  const Result result = call(node, graph, dependencies, count, params);
  if (scope.outermost() && result == 0) {
    RecordAddedNode(scope, graph, Written(node, result), params);
  }
  return result;
}

Result GraphAddNodeWithEdges(Call<Result, void**, void*, void* const*, void*, size_t, NodeParams*> call,
                             void** node, void* graph, void* const* dependencies, void* edges, size_t count,
                             NodeParams* params) {
  const DriverScope scope(call.id);
  const Result result = call(node, graph, dependencies, edges, count, params);
  if (scope.outermost() && result == 0) {
    RecordAddedNode(scope, graph, Written(node, result), params);
  }
  return result;
}

void RecordInstantiate(const DriverScope& scope, void** executable, void* graph, uint64_t flags,
                       Result result) {
  const uint64_t created = Written(executable, result);
  if (created != 0 && OwnsMemory(graph, 0) && !memory_executables.Put(created, 1)) {
    record_all_launches.store(true, std::memory_order_relaxed);
  }
  const int device = CurrentDevice();
  Record(scope.proof(),
         {.kind = EventKind::kGraphInstantiate,
          .space = Space::kGraph,
          .device = device,
          .address = created,
          .argument = {reinterpret_cast<uint64_t>(graph), flags}},
         result);
  SampleDevice(device, true);
}

Result GraphInstantiate(Call<Result, void**, void*, void**, char*, size_t> call, void** executable,
                        void* graph, void** error_node, char* log, size_t log_size) {
  const DriverScope scope(call.id);
  const Result result = call(executable, graph, error_node, log, log_size);
  if (scope.outermost()) {
    RecordInstantiate(scope, executable, graph, 0, result);
  }
  return result;
}

Result GraphInstantiateWithFlags(Call<Result, void**, void*, uint64_t> call, void** executable, void* graph,
                                 uint64_t flags) {
  const DriverScope scope(call.id);
  const Result result = call(executable, graph, flags);
  if (scope.outermost()) {
    RecordInstantiate(scope, executable, graph, flags, result);
  }
  return result;
}

// CUDA_GRAPH_INSTANTIATE_PARAMS (cuda.h 12.0) begins with the flags.
Result GraphInstantiateWithParams(Call<Result, void**, void*, uint64_t*> call, void** executable, void* graph,
                                  uint64_t* params) {
  const DriverScope scope(call.id);
  const uint64_t flags = params != nullptr ? *params : 0;
  const Result result = call(executable, graph, params);
  if (scope.outermost()) {
    RecordInstantiate(scope, executable, graph, flags, result);
  }
  return result;
}

Result GraphLaunch(Call<Result, void*, void*> call, void* executable, void* stream) {
  const bool owns_memory = record_all_launches.load(std::memory_order_relaxed) ||
                           (any_memory_node.load(std::memory_order_relaxed) &&
                            memory_executables.Contains(reinterpret_cast<uint64_t>(executable)));
  if (!owns_memory) [[likely]] {
    const Result result = call(executable, stream);
    if (result == 0) {
      NoticeLaunch(call.id, executable, StreamNumber(stream, call.variant()));
    }
    return result;
  }
  const DriverScope scope(call.id);
  const Result result = call(executable, stream);
  if (scope.outermost()) {
    const int device = CurrentDevice();
    Record(scope.proof(),
           {.kind = EventKind::kGraphLaunch,
            .space = Space::kGraph,
            .device = device,
            .address = reinterpret_cast<uint64_t>(executable),
            .stream = StreamNumber(stream, call.variant())},
           result);
    SampleDevice(device, false);
  }
  return result;
}

Result DeviceGraphMemTrim(Call<Result, int> call, int device) {
  const DriverScope scope(call.id);
  const Result result = call(device);
  if (scope.outermost()) {
    Record(scope.proof(), {.kind = EventKind::kGraphTrim, .space = Space::kGraph, .device = device}, result);
    SampleDevice(device, true);
  }
  return result;
}

// Captures are only counted, so that nobody asks the device for its memory meanwhile.
Result StreamBeginCapture(Call<Result, void*> call, void* stream) {
  const Result result = call(stream);
  if (result == 0) {
    CaptureBegan();
  }
  return result;
}

Result StreamBeginCaptureMode(Call<Result, void*, int> call, void* stream, int mode) {
  const Result result = call(stream, mode);
  if (result == 0) {
    CaptureBegan();
  }
  return result;
}

Result StreamBeginCaptureToGraph(Call<Result, void*, void*, void* const*, void*, size_t, int> call,
                                 void* stream, void* graph, void* const* dependencies, void* edges,
                                 size_t count, int mode) {
  const Result result = call(stream, graph, dependencies, edges, count, mode);
  if (result == 0) {
    CaptureBegan();
    if (graph != nullptr) {
      captured_into.Put(reinterpret_cast<uint64_t>(graph), 1);
    }
  }
  return result;
}

Result StreamEndCapture(Call<Result, void*, void**> call, void* stream, void** graph) {
  const DriverScope scope(call.id);
  const Result result = call(stream, graph);
  const uint64_t captured = Written(graph, result);
  if (scope.outermost() && captured != 0 && !captured_into.Erase(captured)) {
    RecordHandle(scope, captured, result);
  }
  // Of the errors, only these two leave a capture running.
  constexpr int kIllegalState = 401;  // CUDA_ERROR_ILLEGAL_STATE: this stream was not capturing
  constexpr int kWrongThread = 908;   // CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
  if (result != kIllegalState && result != kWrongThread) {
    CaptureEnded();
  }
  return result;
}

}  // namespace

void RecordGraphAllocation(const Proof& proof, uint64_t address, uint64_t size, uint64_t graph, uint64_t node,
                           int device) {
  RememberGraph(graph);
  Record(proof,
         {.kind = EventKind::kGraphAllocateNode,
          .space = Space::kGraph,
          .device = device,
          .address = address,
          .size = size,
          .argument = {graph, node}},
         0);
}

void RecordGraphFree(const Proof& proof, uint64_t address, uint64_t graph, uint64_t node) {
  RememberGraph(graph);
  Record(proof,
         {.kind = EventKind::kGraphFreeNode,
          .space = Space::kGraph,
          .device = CurrentDevice(),
          .address = address,
          .argument = {graph, node}},
         0);
}

}  // namespace gpumemtrace::interpose::driver

namespace gpumemtrace::interpose {
GPUMEMTRACE_GRAPH_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
