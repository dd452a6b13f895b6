// Virtual memory management: physical allocations with their references, address ranges, mappings, imports.
// Physical memory dies when the last handle reference and the last mapping are gone; the analyzer counts
// both, so every step is an event of its own.
#include <cuda.h>

#include "interpose/driver/wrappers.h"
#include "interpose/handle_map.h"

namespace gpumemtrace::interpose::driver {
namespace {

constexpr int kDeviceLocation = 1;  // CU_MEM_LOCATION_TYPE_DEVICE

// Device + 1 of handles that we saw created. Released handles stay until their place is needed: a release
// need not be the last one. For a handle that is not here the current device is taken.
constinit HandleMap<16384> handle_devices;

int DeviceOfHandle(uint64_t handle) {
  uint64_t value = 0;
  return handle_devices.Get(handle, &value) ? static_cast<int>(value) - 1 : CurrentDevice();
}

Result MemAddressReserve(Call<Result, uint64_t*, size_t, size_t, uint64_t, uint64_t> call, uint64_t* pointer,
                         size_t size, size_t alignment, uint64_t address, uint64_t flags) {
  const DriverScope scope(call.id);
  const Result result = call(pointer, size, alignment, address, flags);
  if (scope.outermost()) {
    Record(scope.proof(),
           {.kind = EventKind::kAddressReserve,
            .space = Space::kVirtual,
            .address = Written(pointer, result),
            .size = size},
           result);
  }
  return result;
}

Result MemAddressFree(Call<Result, uint64_t, size_t> call, uint64_t pointer, size_t size) {
  const DriverScope scope(call.id);
  if (!scope.outermost()) {
    return call(pointer, size);
  }
  const Proof proof = scope.proof();
  Ticket ticket(proof);
  const Result result = call(pointer, size);
  ticket.Record(proof,
                {.kind = EventKind::kAddressFree, .space = Space::kVirtual, .address = pointer, .size = size},
                result);
  return result;
}

Result MemCreate(Call<Result, uint64_t*, size_t, const CUmemAllocationProp*, uint64_t> call, uint64_t* handle,
                 size_t size, const CUmemAllocationProp* prop, uint64_t flags) {
  const DriverScope scope(call.id);
  const Result result = call(handle, size, prop, flags);
  if (scope.outermost()) {
    const bool on_device = prop == nullptr || static_cast<int>(prop->location.type) == kDeviceLocation;
    const int device = on_device && prop != nullptr ? prop->location.id : -1;
    const uint64_t created = Written(handle, result);
    if (created != 0) {
      handle_devices.PutOver(created, static_cast<uint64_t>(device + 1));
    }
    Record(scope.proof(),
           {.kind = EventKind::kPhysicalCreate,
            .space = on_device ? Space::kVirtual : Space::kHostPool,
            .device = device,
            .address = created,
            .size = size},
           result);
    SampleDevice(device, true);
  }
  return result;
}

Result MemRelease(Call<Result, uint64_t> call, uint64_t handle) {
  const DriverScope scope(call.id);
  if (!scope.outermost()) {
    return call(handle);
  }
  const Proof proof = scope.proof();
  const int device = DeviceOfHandle(handle);
  Ticket ticket(proof);
  const Result result = call(handle);
  ticket.Record(
      proof,
      {.kind = EventKind::kPhysicalRelease, .space = Space::kVirtual, .device = device, .address = handle},
      result);
  SampleDevice(device, true);
  return result;
}

Result MemRetainAllocationHandle(Call<Result, uint64_t*, void*> call, uint64_t* handle, void* address) {
  const DriverScope scope(call.id);
  const Result result = call(handle, address);
  if (scope.outermost()) {
    const uint64_t retained = Written(handle, result);
    Record(scope.proof(),
           {.kind = EventKind::kPhysicalRetain,
            .space = Space::kVirtual,
            .device = DeviceOfHandle(retained),
            .address = retained,
            .argument = {reinterpret_cast<uint64_t>(address), 0}},
           result);
  }
  return result;
}

Result MemMap(Call<Result, uint64_t, size_t, size_t, uint64_t, uint64_t> call, uint64_t pointer, size_t size,
              size_t offset, uint64_t handle, uint64_t flags) {
  const DriverScope scope(call.id);
  const Result result = call(pointer, size, offset, handle, flags);
  if (scope.outermost()) {
    Record(scope.proof(),
           {.kind = EventKind::kMap,
            .space = Space::kVirtual,
            .device = DeviceOfHandle(handle),
            .address = pointer,
            .size = size,
            .argument = {handle, offset}},
           result);
  }
  return result;
}

Result MemUnmap(Call<Result, uint64_t, size_t> call, uint64_t pointer, size_t size) {
  const DriverScope scope(call.id);
  if (!scope.outermost()) {
    return call(pointer, size);
  }
  const Proof proof = scope.proof();
  const int device = DeviceOfPointer(pointer);
  Ticket ticket(proof);
  const Result result = call(pointer, size);
  ticket.Record(proof,
                {.kind = EventKind::kUnmap,
                 .space = Space::kVirtual,
                 .device = device,
                 .address = pointer,
                 .size = size},
                result);
  SampleDevice(device, true);
  return result;
}

// The size of an imported handle shows when it is mapped.
Result MemImportFromShareableHandle(Call<Result, uint64_t*, void*, int> call, uint64_t* handle,
                                    void* os_handle, int type) {
  const DriverScope scope(call.id);
  const Result result = call(handle, os_handle, type);
  if (scope.outermost()) {
    const int device = CurrentDevice();
    const uint64_t imported = Written(handle, result);
    if (imported != 0) {
      handle_devices.PutOver(imported, static_cast<uint64_t>(device + 1));
    }
    Record(scope.proof(),
           {.kind = EventKind::kImport, .space = Space::kAlias, .device = device, .address = imported},
           result);
  }
  return result;
}

// A multicast object is a window on memory that is bound to it and counted where it was made: an alias with
// the size of the window. It is mapped and released like any handle. CUmulticastObjectProp begins with
// `unsigned numDevices; size_t size` (cuda.h 12.1).
struct MulticastProp {
  unsigned device_count;
  size_t size;
};

Result MulticastCreate(Call<Result, uint64_t*, const MulticastProp*> call, uint64_t* handle,
                       const MulticastProp* prop) {
  const DriverScope scope(call.id);
  const Result result = call(handle, prop);
  if (scope.outermost()) {
    Record(scope.proof(),
           {.kind = EventKind::kImport,
            .space = Space::kAlias,
            .device = CurrentDevice(),
            .address = Written(handle, result),
            .size = prop != nullptr ? prop->size : 0},
           result);
  }
  return result;
}

}  // namespace
}  // namespace gpumemtrace::interpose::driver

namespace gpumemtrace::interpose {
GPUMEMTRACE_VIRTUAL_MEMORY_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
