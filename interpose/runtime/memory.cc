// The runtime's functions. Normally each only lends its name to the driver call underneath, which our driver
// hooks record. When that call was not seen (another preload answered the runtime's look-ups), the wrapper
// records by itself.
#include <cuda_runtime_api.h>

#include "interpose/driver_functions.h"
#include "interpose/hooks.h"
#include "interpose/record.h"
#include "interpose/reentrancy.h"

namespace gpumemtrace::interpose::runtime {
namespace {

uint64_t Number(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

// Any function with up to six word-sized arguments.
Result Named(Call<Result, Word, Word, Word, Word, Word, Word> call, Word a, Word b, Word c, Word d, Word e,
             Word f) {
  const RuntimeScope scope(call.id);
  return call(a, b, c, d, e, f);
}

// cudaLibraryLoadData and …FromFile: eight word-sized arguments.
Result NamedWide(Call<Result, Word, Word, Word, Word, Word, Word, Word, Word> call, Word a, Word b, Word c,
                 Word d, Word e, Word f, Word g, Word h) {
  const RuntimeScope scope(call.id);
  return call(a, b, c, d, e, f, g, h);
}

void RecordMissed(const RuntimeScope& scope, Space space, const void* address, uint64_t size, Result result) {
  if (!scope.outermost() || !scope.nothing_recorded()) {
    return;
  }
  const bool on_device = space == Space::kDevice || space == Space::kManaged;
  Record(scope.proof(),
         {.kind = EventKind::kAllocate,
          .space = space,
          .device = on_device ? CurrentDevice() : -1,
          .address = result == 0 ? Number(address) : 0,
          .size = size},
         result);
}

Result Malloc(Call<Result, void**, size_t> call, void** pointer, size_t size) {
  const RuntimeScope scope(call.id);
  const Result result = call(pointer, size);
  RecordMissed(scope, Space::kDevice, result == 0 && size != 0 ? *pointer : nullptr, size, result);
  return result;
}

Result MallocManaged(Call<Result, void**, size_t, unsigned> call, void** pointer, size_t size,
                     unsigned flags) {
  const RuntimeScope scope(call.id);
  const Result result = call(pointer, size, flags);
  RecordMissed(scope, Space::kManaged, result == 0 ? *pointer : nullptr, size, result);
  return result;
}

Result MallocPitch(Call<Result, void**, size_t*, size_t, size_t> call, void** pointer, size_t* pitch,
                   size_t width, size_t height) {
  const RuntimeScope scope(call.id);
  const Result result = call(pointer, pitch, width, height);
  RecordMissed(scope, Space::kDevice, result == 0 ? *pointer : nullptr,
               (result == 0 ? *pitch : width) * height, result);
  return result;
}

Result Malloc3D(Call<Result, cudaPitchedPtr*, cudaExtent> call, cudaPitchedPtr* pointer, cudaExtent extent) {
  const RuntimeScope scope(call.id);
  const Result result = call(pointer, extent);
  RecordMissed(scope, Space::kDevice, result == 0 ? pointer->ptr : nullptr,
               (result == 0 ? pointer->pitch : extent.width) * extent.height * extent.depth, result);
  return result;
}

Result MallocHost(Call<Result, void**, size_t> call, void** pointer, size_t size) {
  const RuntimeScope scope(call.id);
  const Result result = call(pointer, size);
  RecordMissed(scope, Space::kPinnedHost, result == 0 ? *pointer : nullptr, size, result);
  return result;
}

Result HostAlloc(Call<Result, void**, size_t, unsigned> call, void** pointer, size_t size, unsigned flags) {
  const RuntimeScope scope(call.id);
  const Result result = call(pointer, size, flags);
  RecordMissed(scope, Space::kPinnedHost, result == 0 ? *pointer : nullptr, size, result);
  return result;
}

Result HostRegister(Call<Result, void*, size_t, unsigned> call, void* pointer, size_t size, unsigned flags) {
  const RuntimeScope scope(call.id);
  const Result result = call(pointer, size, flags);
  RecordMissed(scope, Space::kRegisteredHost, pointer, size, result);
  return result;
}

// `rest` is what the function takes besides the pointer.
template <typename CallOriginal>
Result Release(HookId id, void* pointer, Space space, uint64_t stream, CallOriginal call_original) {
  const RuntimeScope scope(id);
  if (!scope.outermost() || pointer == nullptr) {
    return call_original();
  }
  Ticket ticket{Ticket::HandDown()};
  const Result result = call_original();
  if (scope.nothing_recorded()) {
    const bool on_device = space == Space::kUnspecified || space == Space::kStreamOrdered;
    ticket.Record(scope.proof(),
                  {.kind = EventKind::kFree,
                   .space = space,
                   .device = on_device ? CurrentDevice() : -1,
                   .address = Number(pointer),
                   .stream = stream},
                  result);
  }
  return result;
}

Result Free(Call<Result, void*> call, void* pointer) {
  return Release(call.id, pointer, Space::kUnspecified, 0, [&] { return call(pointer); });
}

Result FreeHost(Call<Result, void*> call, void* pointer) {
  return Release(call.id, pointer, Space::kPinnedHost, 0, [&] { return call(pointer); });
}

Result HostUnregister(Call<Result, void*> call, void* pointer) {
  return Release(call.id, pointer, Space::kRegisteredHost, 0, [&] { return call(pointer); });
}

Result FreeAsync(Call<Result, void*, void*> call, void* pointer, void* stream) {
  if (CaptureOf(stream, call.variant()).active) {
    const RuntimeScope scope(call.id);
    return call(pointer, stream);
  }
  return Release(call.id, pointer, Space::kStreamOrdered, StreamNumber(stream, call.variant()),
                 [&] { return call(pointer, stream); });
}

template <typename CallOriginal>
Result AllocateAsync(HookId id, void** pointer, size_t size, void* pool, void* stream,
                     CallOriginal call_original) {
  const RuntimeScope scope(id);
  const bool capturing = scope.outermost() && CaptureOf(stream, Row(id).variant).active;
  const Result result = call_original();
  if (scope.outermost() && !capturing && scope.nothing_recorded()) {
    Record(scope.proof(),
           {.kind = EventKind::kAllocate,
            .space = Space::kStreamOrdered,
            .device = result == 0 ? DeviceOfPointer(Number(*pointer)) : CurrentDevice(),
            .address = result == 0 ? Number(*pointer) : 0,
            .size = size,
            .argument = {Number(pool), 0},
            .stream = StreamNumber(stream, Row(id).variant)},
           result);
  }
  return result;
}

Result MallocAsync(Call<Result, void**, size_t, void*> call, void** pointer, size_t size, void* stream) {
  return AllocateAsync(call.id, pointer, size, nullptr, stream, [&] { return call(pointer, size, stream); });
}

Result MallocFromPoolAsync(Call<Result, void**, size_t, void*, void*> call, void** pointer, size_t size,
                           void* pool, void* stream) {
  return AllocateAsync(call.id, pointer, size, pool, stream,
                       [&] { return call(pointer, size, pool, stream); });
}

// Functions that take a structure by value, which Named cannot carry.
Result Malloc3DArray(Call<Result, void**, const void*, cudaExtent, unsigned> call, void** array,
                     const void* descriptor, cudaExtent extent, unsigned flags) {
  const RuntimeScope scope(call.id);
  return call(array, descriptor, extent, flags);
}

Result MallocMipmappedArray(Call<Result, void**, const void*, cudaExtent, unsigned, unsigned> call,
                            void** array, const void* descriptor, cudaExtent extent, unsigned levels,
                            unsigned flags) {
  const RuntimeScope scope(call.id);
  return call(array, descriptor, extent, levels, flags);
}

Result IpcOpenMemHandle(Call<Result, void**, cudaIpcMemHandle_t, unsigned> call, void** pointer,
                        cudaIpcMemHandle_t handle, unsigned flags) {
  const RuntimeScope scope(call.id);
  return call(pointer, handle, flags);
}

Result DeviceReset(Call<Result> call) {
  const RuntimeScope scope(call.id);
  if (!scope.outermost()) {
    return call();
  }
  const int device = CurrentDevice();
  Ticket ticket{Ticket::HandDown()};
  const Result result = call();
  if (scope.nothing_recorded()) {
    ticket.Record(scope.proof(), {.kind = EventKind::kContextDestroy, .device = device, .address = 0},
                  result);
  }
  return result;
}

}  // namespace
}  // namespace gpumemtrace::interpose::runtime

namespace gpumemtrace::interpose {
GPUMEMTRACE_RUNTIME_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
