// Memory owned elsewhere: IPC handles of other processes and external memory (Vulkan, DMA-BUF …). Recorded
// as aliases, so that sums over ranks do not count it twice.
#include <cuda.h>

#include "interpose/driver/wrappers.h"

namespace gpumemtrace::interpose::driver {
namespace {

// By value in the call, as the driver's ABI has it.
struct IpcHandle {
  unsigned char bytes[CU_IPC_HANDLE_SIZE];
};

// FNV-1a, so that the same handle seen in two ranks is recognized.
uint64_t HashOf(const IpcHandle& handle) {
  uint64_t hash = 14695981039346656037u;
  for (const unsigned char byte : handle.bytes) {
    hash = (hash ^ byte) * 1099511628211u;
  }
  return hash;
}

uint64_t SizeAt(uint64_t pointer) {
  uint64_t base = 0;
  size_t size = 0;
  if (Driver().mem_get_address_range == nullptr ||
      Driver().mem_get_address_range(&base, &size, pointer) != 0) {
    return 0;
  }
  return size;
}

Result IpcOpenMemHandle(Call<Result, uint64_t*, IpcHandle, unsigned> call, uint64_t* pointer,
                        IpcHandle handle, unsigned flags) {
  const DriverScope scope(call.id);
  const Result result = call(pointer, handle, flags);
  if (scope.outermost()) {
    const uint64_t address = Written(pointer, result);
    Record(scope.proof(),
           {.kind = EventKind::kImport,
            .space = Space::kAlias,
            .device = CurrentDevice(),
            .address = address,
            .size = result == 0 ? SizeAt(address) : 0,
            .argument = {HashOf(handle), 0}},
           result);
  }
  return result;
}

Result IpcCloseMemHandle(Call<Result, uint64_t> call, uint64_t pointer) {
  const DriverScope scope(call.id);
  if (!scope.outermost()) {
    return call(pointer);
  }
  const Proof proof = scope.proof();
  const int device = CurrentDevice();
  Ticket ticket(proof);
  const Result result = call(pointer);
  ticket.Record(
      proof, {.kind = EventKind::kImportClose, .space = Space::kAlias, .device = device, .address = pointer},
      result);
  return result;
}

// The object itself takes no address space; the buffers mapped from it are the aliases.
Result ImportExternalMemory(Call<Result, void**, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC*> call, void** memory,
                            const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* descriptor) {
  const DriverScope scope(call.id);
  const Result result = call(memory, descriptor);
  if (scope.outermost()) {
    Record(scope.proof(),
           {.kind = EventKind::kHandleCreate,
            .space = Space::kAlias,
            .device = CurrentDevice(),
            .address = Written(memory, result)},
           result);
  }
  return result;
}

Result DestroyExternalMemory(Call<Result, void*> call, void* memory) {
  const DriverScope scope(call.id);
  if (!scope.outermost()) {
    return call(memory);
  }
  const Proof proof = scope.proof();
  const int device = CurrentDevice();
  Ticket ticket(proof);
  const Result result = call(memory);
  ticket.Record(proof,
                {.kind = EventKind::kHandleDestroy,
                 .space = Space::kAlias,
                 .device = device,
                 .address = reinterpret_cast<uint64_t>(memory)},
                result);
  return result;
}

// Given back with cuMemFree.
Result ExternalMemoryGetMappedBuffer(
    Call<Result, uint64_t*, void*, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC*> call, uint64_t* pointer,
    void* memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* descriptor) {
  const DriverScope scope(call.id);
  const Result result = call(pointer, memory, descriptor);
  if (scope.outermost()) {
    Record(scope.proof(),
           {.kind = EventKind::kImport,
            .space = Space::kAlias,
            .device = CurrentDevice(),
            .address = Written(pointer, result),
            .size = descriptor != nullptr ? descriptor->size : 0,
            .argument = {reinterpret_cast<uint64_t>(memory), 0}},
           result);
  }
  return result;
}

// Given back with cuMipmappedArrayDestroy.
Result ExternalMemoryGetMappedMipmappedArray(Call<Result, void**, void*, const void*> call, void** array,
                                             void* memory, const void* descriptor) {
  const DriverScope scope(call.id);
  const Result result = call(array, memory, descriptor);
  if (scope.outermost()) {
    Record(scope.proof(),
           {.kind = EventKind::kImport,
            .space = Space::kAlias,
            .device = CurrentDevice(),
            .address = Written(array, result),
            .argument = {reinterpret_cast<uint64_t>(memory), 0}},
           result);
  }
  return result;
}

}  // namespace
}  // namespace gpumemtrace::interpose::driver

namespace gpumemtrace::interpose {
GPUMEMTRACE_SHARING_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
