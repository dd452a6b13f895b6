// Streams, events and stream capture. Work is instantaneous: a recorded event is complete unless
// simulatedCudaHoldEvents(1) is in force.
#include "streams.h"

#include <atomic>

using namespace simulated_cuda;

struct CUevent_st {
  bool recorded;
};

namespace {

std::set<CUstream>& Streams() {
  static auto* const streams = new std::set<CUstream>;
  return *streams;
}

// The per-thread and legacy streams of the handle values 0, 1 and 2 cannot be captured by value, except
// that CU_STREAM_PER_THREAD can; frameworks capture on streams of their own.
bool IsDefault(CUstream stream) {
  return reinterpret_cast<uint64_t>(stream) <= 2;
}

std::atomic<bool> g_hold_events{false};
cuuint64_t g_next_capture = 1;

CUresult NewStream(CUstream* out) {
  const CUcontext context = CurrentContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  auto* stream = new CUstream_st{context->device, context, CU_STREAM_CAPTURE_STATUS_NONE, nullptr, 0};
  Streams().insert(stream);
  *out = stream;
  return CUDA_SUCCESS;
}

CUresult DestroyStream(CUstream stream) {
  if (Streams().erase(stream) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete stream;
  return CUDA_SUCCESS;
}

CUresult Begin(CUstream handle, CUgraph into = nullptr) {
  bool valid = false;
  CUstream_st* stream = FindStream(handle, &valid);
  if (stream == nullptr) return valid ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  stream->graph = into != nullptr ? into : NewGraph();
  stream->capture_id = g_next_capture++;
  return CUDA_SUCCESS;
}

CUresult End(CUstream handle, CUgraph* out) {
  bool valid = false;
  CUstream_st* stream = FindStream(handle, &valid);
  if (stream == nullptr || stream->capture == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capture = CU_STREAM_CAPTURE_STATUS_NONE;
  *out = stream->graph;
  stream->graph = nullptr;
  return CUDA_SUCCESS;
}

CUresult Status(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                size_t* count) {
  bool valid = false;
  const CUstream_st* stream = FindStream(handle, &valid);
  if (!valid) return CUDA_ERROR_INVALID_HANDLE;
  if (status != nullptr) *status = stream != nullptr ? stream->capture : CU_STREAM_CAPTURE_STATUS_NONE;
  if (stream == nullptr || stream->capture == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_SUCCESS;
  if (id != nullptr) *id = stream->capture_id;
  if (graph != nullptr) *graph = stream->graph;
  if (count != nullptr) *count = 0;
  return CUDA_SUCCESS;
}

CUresult Synchronize(CUstream handle) {
  bool valid = false;
  FindStream(handle, &valid);
  if (!valid) return CUDA_ERROR_INVALID_HANDLE;
  if (CapturingGraph(handle) != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  PoolsReleaseUnused();
  return CUDA_SUCCESS;
}

}  // namespace

namespace simulated_cuda {

CUstream_st* FindStream(CUstream handle, bool* valid) {
  *valid = IsDefault(handle) || Streams().count(handle) != 0;
  return IsDefault(handle) || !*valid ? nullptr : handle;
}

int StreamDevice(CUstream handle) {
  bool valid = false;
  if (const CUstream_st* stream = FindStream(handle, &valid)) return stream->device;
  const CUcontext context = CurrentContext();
  return valid && context != nullptr ? context->device : -1;
}

CUgraph CapturingGraph(CUstream handle) {
  bool valid = false;
  const CUstream_st* stream = FindStream(handle, &valid);
  return stream != nullptr && stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE ? stream->graph : nullptr;
}

}  // namespace simulated_cuda

extern "C" void simulatedCudaHoldEvents(int hold) {
  g_hold_events = hold != 0;
}

EXPORT CUresult cuStreamCreate(CUstream* out, unsigned) {
  DRIVER_CALL();
  return NewStream(out);
}
EXPORT CUresult cuStreamCreateWithPriority(CUstream* out, unsigned, int) {
  DRIVER_CALL();
  return NewStream(out);
}
EXPORT CUresult cuStreamDestroy(CUstream stream) {
  DRIVER_CALL();
  return DestroyStream(stream);
}
EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  DRIVER_CALL();
  return DestroyStream(stream);
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

BOTH_STREAMS(cuStreamSynchronize, (CUstream stream), { return Synchronize(stream); })
BOTH_STREAMS(cuStreamQuery, (CUstream), { return CUDA_SUCCESS; })
BOTH_STREAMS(cuStreamWaitEvent, (CUstream, CUevent, unsigned), { return CUDA_SUCCESS; })
BOTH_STREAMS(cuStreamBeginCapture, (CUstream stream), { return Begin(stream); })
BOTH_STREAMS(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode), { return Begin(stream); })
BOTH_STREAMS(cuStreamBeginCaptureToGraph,
             (CUstream stream, CUgraph graph, const CUgraphNode*, const CUgraphEdgeData*, size_t,
              CUstreamCaptureMode),
             { return Begin(stream, graph); })
BOTH_STREAMS(cuStreamEndCapture, (CUstream stream, CUgraph* graph), { return End(stream, graph); })
BOTH_STREAMS(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus* status),
             { return Status(stream, status, nullptr, nullptr, nullptr); })
BOTH_STREAMS(cuStreamGetCaptureInfo, (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id),
             { return Status(stream, status, id, nullptr, nullptr); })
BOTH_STREAMS(cuStreamGetCaptureInfo_v2,
             (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
              const CUgraphNode**, size_t* count),
             { return Status(stream, status, id, graph, count); })
BOTH_STREAMS(cuStreamGetCaptureInfo_v3,
             (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
              const CUgraphNode**, const CUgraphEdgeData**, size_t* count),
             { return Status(stream, status, id, graph, count); })
EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  DRIVER_CALL();
  static thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::swap(*mode, current);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent* out, unsigned) {
  DRIVER_CALL();
  if (CurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *out = new CUevent_st{false};
  return CUDA_SUCCESS;
}
BOTH_STREAMS(cuEventRecord, (CUevent event, CUstream), {
  event->recorded = true;
  return CUDA_SUCCESS;
})
EXPORT CUresult cuEventQuery(CUevent event) {
  DRIVER_CALL();
  return event->recorded && g_hold_events ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
EXPORT CUresult cuEventSynchronize(CUevent) {
  DRIVER_CALL();
  PoolsReleaseUnused();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventDestroy(CUevent event) {
  DRIVER_CALL();
  delete event;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  DRIVER_CALL();
  delete event;
  return CUDA_SUCCESS;
}
