// Driver functions that the shim itself calls to learn more about an event. Queries only: none of them
// synchronizes, allocates device memory or changes the state of the program. Any may be null (older driver).
#pragma once

#include <cstddef>
#include <cstdint>

#include "interpose/hooks.h"

namespace gpumemtrace::interpose {

struct DriverFunctions {
  Result (*ctx_get_device)(int* device);
  Result (*ctx_get_current)(void** context);
  Result (*mem_get_info)(size_t* free, size_t* total);
  // cuStreamGetCaptureInfo_v2 (CUDA 11.3): status, id, graph, dependencies.
  Result (*stream_get_capture_info)(void* stream, int* status, uint64_t* id, void** graph,
                                    void* const** nodes, size_t* node_count);
  Result (*stream_is_capturing)(void* stream, int* status);
  Result (*pointer_get_attribute)(void* value, int attribute, uint64_t pointer);
  Result (*device_get_count)(int* count);
  Result (*device_get)(int* device, int ordinal);
  Result (*device_get_name)(char* name, int length, int device);
  Result (*device_get_uuid)(unsigned char* uuid, int device);
  Result (*device_total_mem)(size_t* bytes, int device);
  Result (*driver_get_version)(int* version);
  Result (*mem_get_address_range)(uint64_t* base, size_t* size, uint64_t pointer);
  Result (*device_get_mem_pool)(void** pool, int device);
  Result (*array_3d_get_descriptor)(void* descriptor, void* array);
  Result (*mipmapped_array_get_level)(void** array, void* mipmap, unsigned level);
  Result (*primary_ctx_get_state)(int device, unsigned* flags, int* active);
  Result (*graph_get_nodes)(void* graph, void** nodes, size_t* count);
  Result (*graph_node_get_type)(void* node, int* type);
  Result (*graph_child_get_graph)(void* node, void** graph);
};

// All null until the driver is loaded.
const DriverFunctions& Driver();

// The CUDA ordinal of the calling thread's current context, −1 without one.
int CurrentDevice();

// Contexts that the program made itself (cuCtxCreate). Memory dies with its context, so allocations carry it.
void RememberContext(uint64_t context, int device);
// The device of a context made by the program, −1 when it is not one; forgets it.
int ForgetContext(uint64_t context);
// The calling thread's current context when the program made it, 0 when it is a device's primary one.
uint64_t CurrentOwnContext();

// The CUDA ordinal that owns the memory at `pointer`, −1 when the driver does not know.
int DeviceOfPointer(uint64_t pointer);

// The state of stream capture of one stream, asked of that stream only: a question about another stream
// could disturb a capture.
struct Capture {
  bool active = false;
  uint64_t graph = 0;
  // The last node that the capture added.
  uint64_t node = 0;
};
Capture CaptureOf(void* stream, Variant variant);

// The stream as a number: 0 for the legacy default stream, 2 (CU_STREAM_PER_THREAD) for the per-thread one.
uint64_t StreamNumber(void* stream, Variant variant);

}  // namespace gpumemtrace::interpose
