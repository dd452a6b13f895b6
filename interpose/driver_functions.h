// Driver functions that the shim itself calls to learn more about an event. Queries only: none of them
// synchronizes, allocates device memory or changes the state of the program. Any may be null (older driver).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "interpose/hooks.h"

namespace gpumemtrace::interpose {

// One of them; null until it is found. Several threads may find it at once: they write the same.
template <typename Function>
class DriverFunction {
 public:
  void Set(Function* function) { function_.store(function, std::memory_order_relaxed); }
  operator Function*() const { return function_.load(std::memory_order_relaxed); }

 private:
  std::atomic<Function*> function_{nullptr};
};

struct DriverFunctions {
  DriverFunction<Result(int* device)> ctx_get_device;
  DriverFunction<Result(void** context)> ctx_get_current;
  DriverFunction<Result(size_t* free, size_t* total)> mem_get_info;
  // cuStreamGetCaptureInfo_v2 (CUDA 11.3): status, id, graph, dependencies.
  DriverFunction<Result(void* stream, int* status, uint64_t* id, void** graph, void* const** nodes,
                        size_t* node_count)>
      stream_get_capture_info;
  DriverFunction<Result(void* stream, int* status)> stream_is_capturing;
  DriverFunction<Result(void* value, int attribute, uint64_t pointer)> pointer_get_attribute;
  DriverFunction<Result(int* count)> device_get_count;
  DriverFunction<Result(int* device, int ordinal)> device_get;
  DriverFunction<Result(char* name, int length, int device)> device_get_name;
  DriverFunction<Result(unsigned char* uuid, int device)> device_get_uuid;
  DriverFunction<Result(size_t* bytes, int device)> device_total_mem;
  DriverFunction<Result(int* version)> driver_get_version;
  DriverFunction<Result(uint64_t* base, size_t* size, uint64_t pointer)> mem_get_address_range;
  DriverFunction<Result(void** pool, int device)> device_get_mem_pool;
  DriverFunction<Result(void* descriptor, void* array)> array_3d_get_descriptor;
  DriverFunction<Result(void** array, void* mipmap, unsigned level)> mipmapped_array_get_level;
  DriverFunction<Result(int device, unsigned* flags, int* active)> primary_ctx_get_state;
  DriverFunction<Result(void* graph, void** nodes, size_t* count)> graph_get_nodes;
  DriverFunction<Result(void* node, int* type)> graph_node_get_type;
  DriverFunction<Result(void* node, void** graph)> graph_child_get_graph;
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
