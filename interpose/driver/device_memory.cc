// Synchronous device and managed memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, cuMemFree.
#include "interpose/driver/wrappers.h"

namespace gpumemtrace::interpose::driver {
namespace {

void RecordAllocation(const DriverScope& scope, Space space, uint64_t address, uint64_t size, Result result) {
  const int device = CurrentDevice();
  Record(scope.proof(),
         {.kind = EventKind::kAllocate,
          .space = space,
          .device = device,
          .address = address,
          .size = size,
          .argument = {0, CurrentOwnContext()}},
         result);
  SampleDevice(device, true);
}

Result MemAlloc(Call<Result, uint64_t*, size_t> call, uint64_t* pointer, size_t size) {
  const DriverScope scope(call.id);
  const Result result = call(pointer, size);
  if (scope.outermost()) {
    RecordAllocation(scope, Space::kDevice, Written(pointer, result), size, result);
  }
  return result;
}

Result MemAllocPitch(Call<Result, uint64_t*, size_t*, size_t, size_t, unsigned> call, uint64_t* pointer,
                     size_t* pitch, size_t width, size_t height, unsigned element_size) {
  const DriverScope scope(call.id);
  const Result result = call(pointer, pitch, width, height, element_size);
  if (scope.outermost()) {
    // The driver chooses the pitch; the memory taken is pitch × height.
    const size_t row = result == 0 && pitch != nullptr ? *pitch : width;
    RecordAllocation(scope, Space::kDevice, Written(pointer, result), row * height, result);
  }
  return result;
}

Result MemAllocManaged(Call<Result, uint64_t*, size_t, unsigned> call, uint64_t* pointer, size_t size,
                       unsigned flags) {
  const DriverScope scope(call.id);
  const Result result = call(pointer, size, flags);
  if (scope.outermost()) {
    RecordAllocation(scope, Space::kManaged, Written(pointer, result), size, result);
  }
  return result;
}

// Also frees managed, stream-ordered, graph and mapped external memory; the analyzer knows by the address.
Result MemFree(Call<Result, uint64_t> call, uint64_t pointer) {
  const DriverScope scope(call.id);
  if (!scope.outermost() || pointer == 0) {
    return call(pointer);
  }
  const Proof proof = scope.proof();
  Ticket ticket(proof);
  const Result result = call(pointer);
  const int device = CurrentDevice();
  ticket.Record(proof, {.kind = EventKind::kFree, .device = device, .address = pointer}, result);
  SampleDevice(device, true);
  return result;
}

}  // namespace
}  // namespace gpumemtrace::interpose::driver

namespace gpumemtrace::interpose {
GPUMEMTRACE_DEVICE_MEMORY_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
