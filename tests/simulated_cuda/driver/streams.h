// Streams, events and what a capturing stream remembers.
#pragma once

#include "state.h"

struct CUstream_st {
  int device;
  CUcontext context;
  CUstreamCaptureStatus capture;
  CUgraph graph;
  cuuint64_t capture_id;
};

namespace simulated_cuda {

// The stream behind a handle; the legacy and per-thread default streams are not objects and give null,
// `valid` tells whether the handle may be used.
CUstream_st* FindStream(CUstream handle, bool* valid);
// Ordinal of the device that a stream belongs to, -1 without a context or with a bad handle.
int StreamDevice(CUstream handle);
// The graph that the stream is being captured into, or null.
CUgraph CapturingGraph(CUstream handle);

// graphs.cc
CUgraph NewGraph();
CUresult AddAllocateNode(CUgraph graph, CUgraphNode* node, int device, size_t size, CUdeviceptr* out);
CUresult AddFreeNode(CUgraph graph, CUgraphNode* node, CUdeviceptr address);

}  // namespace simulated_cuda
