// Contexts: their creation costs device memory that no allocation shows, and their end frees what was
// allocated in them with cuMemAlloc and the like (but not pools and not cuMemCreate).
#include "interpose/driver/wrappers.h"

namespace gpumemtrace::interpose::driver {
namespace {

Result Init(Call<Result, unsigned> call, unsigned flags) {
  return call(flags);
}

void RecordCreation(const DriverScope& scope, void** context, int device, Result result) {
  Record(scope.proof(),
         {.kind = EventKind::kContextCreate, .device = device, .address = Written(context, result)}, result);
  SampleDevice(device, true);
}

Result CtxCreate(Call<Result, void**, unsigned, int> call, void** context, unsigned flags, int device) {
  const DriverScope scope(call.id);
  const Result result = call(context, flags, device);
  if (scope.outermost()) {
    RecordCreation(scope, context, device, result);
  }
  return result;
}

Result CtxCreateWithAffinity(Call<Result, void**, void*, int, unsigned, int> call, void** context,
                             void* params, int count, unsigned flags, int device) {
  const DriverScope scope(call.id);
  const Result result = call(context, params, count, flags, device);
  if (scope.outermost()) {
    RecordCreation(scope, context, device, result);
  }
  return result;
}

Result CtxCreateWithParams(Call<Result, void**, void*, unsigned, int> call, void** context, void* params,
                           unsigned flags, int device) {
  const DriverScope scope(call.id);
  const Result result = call(context, params, flags, device);
  if (scope.outermost()) {
    RecordCreation(scope, context, device, result);
  }
  return result;
}

Result CtxDestroy(Call<Result, void*> call, void* context) {
  const DriverScope scope(call.id);
  if (!scope.outermost() || context == nullptr) {
    return call(context);
  }
  const Proof proof = scope.proof();
  Ticket ticket(proof);
  const Result result = call(context);
  ticket.Record(proof, {.kind = EventKind::kContextDestroy, .address = reinterpret_cast<uint64_t>(context)},
                result);
  return result;
}

Result DevicePrimaryCtxRetain(Call<Result, void**, int> call, void** context, int device) {
  const DriverScope scope(call.id);
  const Result result = call(context, device);
  if (scope.outermost()) {
    RecordCreation(scope, context, device, result);
  }
  return result;
}

// A release frees nothing while others still hold the context: recorded as the end of one handle. The last
// one is told by the reset, or by the end of the process.
Result DevicePrimaryCtxRelease(Call<Result, int> call, int device) {
  const DriverScope scope(call.id);
  if (!scope.outermost()) {
    return call(device);
  }
  const Proof proof = scope.proof();
  Ticket ticket(proof);
  const Result result = call(device);
  ticket.Record(proof, {.kind = EventKind::kHandleDestroy, .device = device}, result);
  return result;
}

Result DevicePrimaryCtxReset(Call<Result, int> call, int device) {
  const DriverScope scope(call.id);
  if (!scope.outermost()) {
    return call(device);
  }
  const Proof proof = scope.proof();
  Ticket ticket(proof);
  const Result result = call(device);
  ticket.Record(proof, {.kind = EventKind::kContextDestroy, .device = device, .address = 0}, result);
  return result;
}

Result GreenCtxCreate(Call<Result, void**, void*, int, unsigned> call, void** context, void* descriptor,
                      int device, unsigned flags) {
  const DriverScope scope(call.id);
  const Result result = call(context, descriptor, device, flags);
  if (scope.outermost()) {
    Record(scope.proof(),
           {.kind = EventKind::kHandleCreate, .device = device, .address = Written(context, result)}, result);
  }
  return result;
}

Result HandleDestroy(Call<Result, void*> call, void* handle) {
  const DriverScope scope(call.id);
  if (!scope.outermost() || handle == nullptr) {
    return call(handle);
  }
  const Proof proof = scope.proof();
  const int device = CurrentDevice();
  Ticket ticket(proof);
  const Result result = call(handle);
  ticket.Record(
      proof,
      {.kind = EventKind::kHandleDestroy, .device = device, .address = reinterpret_cast<uint64_t>(handle)},
      result);
  return result;
}

}  // namespace
}  // namespace gpumemtrace::interpose::driver

namespace gpumemtrace::interpose {
GPUMEMTRACE_CONTEXT_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
