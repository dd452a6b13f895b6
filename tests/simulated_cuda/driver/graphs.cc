// Graphs with memory nodes. An allocation node has a fixed address from the moment it is added; the memory
// is live from a launch until it is freed by a node, by cuMemFree(Async), or by the next launch of an
// executable made with AUTO_FREE_ON_LAUNCH. Freed bytes stay in the device's graph pool until it is trimmed.
#include <algorithm>

#include "streams.h"

using namespace simulated_cuda;

struct CUgraphNode_st {
  CUgraphNodeType type;
  uint64_t address;
  size_t size;
  int device;
  CUgraph graph;
};

struct CUgraph_st {
  std::vector<CUgraphNode> nodes;
};

struct CUgraphExec_st {
  std::vector<CUgraphNode_st> nodes;
  unsigned long long flags;
};

namespace {

constexpr size_t kUnit = 512;

uint64_t GraphAddress(int device, size_t size) {
  return DeviceAt(device).addresses.Take(RoundUp(size, kUnit), kUnit);
}

CUresult Add(CUgraph graph, CUgraphNode* out, CUgraphNode_st node) {
  auto* added = new CUgraphNode_st(node);
  added->graph = graph;
  graph->nodes.push_back(added);
  if (out != nullptr) *out = added;
  return CUDA_SUCCESS;
}

bool HasMemoryNodes(const std::vector<CUgraphNode_st>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const CUgraphNode_st& node) { return node.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC; });
}

CUresult Instantiate(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  if (out == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto* exec = new CUgraphExec_st{{}, flags};
  for (const CUgraphNode node : graph->nodes) exec->nodes.push_back(*node);
  *out = exec;
  return CUDA_SUCCESS;
}

bool GraphCharge(Device& device, size_t size) {
  const size_t wanted = device.graph_used + size;
  if (wanted > device.graph_reserved) {
    if (!Charge(device.primary.device, wanted - device.graph_reserved)) return false;
    device.graph_reserved = wanted;
    device.graph_reserved_high = std::max(device.graph_reserved_high, wanted);
  }
  device.graph_used = wanted;
  device.graph_used_high = std::max(device.graph_used_high, wanted);
  return true;
}

CUresult Launch(CUgraphExec exec, CUstream stream, uint32_t call) {
  bool valid = false;
  FindStream(stream, &valid);
  if (exec == nullptr || !valid) return CUDA_ERROR_INVALID_VALUE;
  auto& all = GetState().allocations;
  if (HasMemoryNodes(exec->nodes)) {
    const bool auto_free = (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    for (const CUgraphNode_st& node : exec->nodes) {
      if (node.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || all.count(node.address) == 0) continue;
      if (!auto_free) return CUDA_ERROR_INVALID_VALUE;
      Release(node.address);
    }
  }
  for (const CUgraphNode_st& node : exec->nodes) {
    if (node.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      if (!GraphCharge(DeviceAt(node.device), node.size)) return CUDA_ERROR_OUT_OF_MEMORY;
      Allocation allocation;
      allocation.size = node.size;
      allocation.device = node.device;
      allocation.kind = SIMULATED_CUDA_GRAPH;
      Register(node.address, allocation, call);
    } else if (node.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      Release(node.address);
    }
  }
  return CUDA_SUCCESS;
}

CUresult AddGeneric(CUgraphNode* out, CUgraph graph, CUgraphNodeParams* parameters) {
  if (graph == nullptr || parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return AddAllocateNode(graph, out, parameters->alloc.poolProps.location.id, parameters->alloc.bytesize,
                             &parameters->alloc.dptr);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return AddFreeNode(graph, out, parameters->free.dptr);
    default:
      return Add(graph, out, {parameters->type, 0, 0, 0, nullptr});
  }
}

}  // namespace

namespace simulated_cuda {

CUgraph NewGraph() {
  return new CUgraph_st;
}

CUresult AddAllocateNode(CUgraph graph, CUgraphNode* node, int device, size_t size, CUdeviceptr* out) {
  if (device < 0 || device >= GetState().device_count || size == 0) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t address = GraphAddress(device, size);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = address;
  return Add(graph, node, {CU_GRAPH_NODE_TYPE_MEM_ALLOC, address, size, device, nullptr});
}

CUresult AddFreeNode(CUgraph graph, CUgraphNode* node, CUdeviceptr address) {
  return Add(graph, node, {CU_GRAPH_NODE_TYPE_MEM_FREE, address, 0, 0, nullptr});
}

}  // namespace simulated_cuda

EXPORT CUresult cuGraphCreate(CUgraph* out, unsigned) {
  DRIVER_CALL();
  *out = NewGraph();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  DRIVER_CALL();
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const CUgraphNode node : graph->nodes) delete node;
  delete graph;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode*, size_t) {
  DRIVER_CALL();
  return Add(graph, out, {CU_GRAPH_NODE_TYPE_EMPTY, 0, 0, 0, nullptr});
}
EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode*, size_t,
                                       CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  DRIVER_CALL();
  return AddAllocateNode(graph, out, parameters->poolProps.location.id, parameters->bytesize,
                         &parameters->dptr);
}
EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode*, size_t,
                                      CUdeviceptr address) {
  DRIVER_CALL();
  return AddFreeNode(graph, out, address);
}
EXPORT CUresult cuGraphAddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode*, size_t,
                               CUgraphNodeParams* parameters) {
  DRIVER_CALL();
  return AddGeneric(out, graph, parameters);
}
EXPORT CUresult cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode*, const CUgraphEdgeData*,
                                  size_t, CUgraphNodeParams* parameters) {
  DRIVER_CALL();
  return AddGeneric(out, graph, parameters);
}
EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* out) {
  DRIVER_CALL();
  if (node == nullptr || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return CUDA_ERROR_INVALID_VALUE;
  *out = {};
  out->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  out->poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, node->device};
  out->bytesize = node->size;
  out->dptr = node->address;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* out) {
  DRIVER_CALL();
  if (node == nullptr || node->type != CU_GRAPH_NODE_TYPE_MEM_FREE) return CUDA_ERROR_INVALID_VALUE;
  *out = node->address;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  DRIVER_CALL();
  *type = node->type;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  DRIVER_CALL();
  if (nodes == nullptr) {
    *count = graph->nodes.size();
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i) nodes[i] = i < graph->nodes.size() ? graph->nodes[i] : nullptr;
  *count = std::min(*count, graph->nodes.size());
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, CUgraphNode*, char*, size_t) {
  DRIVER_CALL();
  return Instantiate(out, graph, 0);
}
EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode*, char*, size_t) {
  DRIVER_CALL();
  return Instantiate(out, graph, 0);
}
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  DRIVER_CALL();
  return Instantiate(out, graph, flags);
}

#define BOTH_STREAMS(name, parameters, ...) \
  EXPORT CUresult name parameters {         \
    DRIVER_CALL();                          \
    __VA_ARGS__                             \
  }                                         \
  EXPORT CUresult name##_ptsz parameters {  \
    DRIVER_CALL();                          \
    __VA_ARGS__                             \
  }

BOTH_STREAMS(cuGraphInstantiateWithParams,
             (CUgraphExec * out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters),
             { return Instantiate(out, graph, parameters->flags); })
BOTH_STREAMS(cuGraphLaunch, (CUgraphExec exec, CUstream stream), { return Launch(exec, stream, call); })
BOTH_STREAMS(cuGraphUpload, (CUgraphExec exec, CUstream),
             { return exec != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; })
EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
  DRIVER_CALL();
  delete exec;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
  DRIVER_CALL();
  if (device < 0 || device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  Device& d = DeviceAt(device);
  Uncharge(device, d.graph_reserved - d.graph_used);
  d.graph_reserved = d.graph_used;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  DRIVER_CALL();
  if (device < 0 || device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  const Device& d = DeviceAt(device);
  auto* out = static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      *out = d.graph_used;
      break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *out = d.graph_used_high;
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *out = d.graph_reserved;
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *out = d.graph_reserved_high;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphClone(CUgraph* out, CUgraph original) {
  DRIVER_CALL();
  if (out == nullptr || original == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // As the driver has it: a graph with memory nodes cannot be cloned.
  for (const CUgraphNode node : original->nodes) {
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  *out = NewGraph();
  for (const CUgraphNode node : original->nodes) Add(*out, nullptr, *node);
  return CUDA_SUCCESS;
}
