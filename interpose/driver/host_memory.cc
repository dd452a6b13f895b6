// Pinned host memory: allocated by the driver, or the program's own pages registered with it.
#include "interpose/driver/wrappers.h"

namespace gpumemtrace::interpose::driver {
namespace {

Result MemAllocHost(Call<Result, void**, size_t> call, void** pointer, size_t size) {
  const DriverScope scope(call.id);
  const Result result = call(pointer, size);
  if (scope.outermost()) {
    Record(scope.proof(),
           {.kind = EventKind::kAllocate,
            .space = Space::kPinnedHost,
            .address = Written(pointer, result),
            .size = size,
            .argument = {0, CurrentOwnContext()}},
           result);
  }
  return result;
}

Result MemHostAlloc(Call<Result, void**, size_t, unsigned> call, void** pointer, size_t size,
                    unsigned flags) {
  const DriverScope scope(call.id);
  const Result result = call(pointer, size, flags);
  if (scope.outermost()) {
    Record(scope.proof(),
           {.kind = EventKind::kAllocate,
            .space = Space::kPinnedHost,
            .address = Written(pointer, result),
            .size = size,
            .argument = {0, CurrentOwnContext()}},
           result);
  }
  return result;
}

Result MemHostRegister(Call<Result, void*, size_t, unsigned> call, void* pointer, size_t size,
                       unsigned flags) {
  const DriverScope scope(call.id);
  const Result result = call(pointer, size, flags);
  if (scope.outermost()) {
    Record(scope.proof(),
           {.kind = EventKind::kAllocate,
            .space = Space::kRegisteredHost,
            .address = reinterpret_cast<uint64_t>(pointer),
            .size = size,
            .argument = {0, CurrentOwnContext()}},
           result);
  }
  return result;
}

Result Release(Call<Result, void*> call, void* pointer, Space space) {
  const DriverScope scope(call.id);
  if (!scope.outermost() || pointer == nullptr) {
    return call(pointer);
  }
  const Proof proof = scope.proof();
  Ticket ticket(proof);
  const Result result = call(pointer);
  ticket.Record(proof,
                {.kind = EventKind::kFree, .space = space, .address = reinterpret_cast<uint64_t>(pointer)},
                result);
  return result;
}

Result MemFreeHost(Call<Result, void*> call, void* pointer) {
  return Release(call, pointer, Space::kPinnedHost);
}

Result MemHostUnregister(Call<Result, void*> call, void* pointer) {
  return Release(call, pointer, Space::kRegisteredHost);
}

}  // namespace
}  // namespace gpumemtrace::interpose::driver

namespace gpumemtrace::interpose {
GPUMEMTRACE_HOST_MEMORY_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
