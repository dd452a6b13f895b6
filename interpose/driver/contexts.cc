// Contexts: their creation costs device memory that no allocation shows, and their end frees what was
// allocated in them with cuMemAlloc and the like (but not pools and not cuMemCreate).
#include "interpose/driver/handle_destroy.h"
#include "interpose/driver/wrappers.h"
#include "interpose/handle_map.h"

namespace gpumemtrace::interpose::driver {
namespace {

Result Init(Call<Result, unsigned> call, unsigned flags) {
  return call(flags);
}

void RecordCreation(const DriverScope& scope, void** context, int device, Result result) {
  RememberContext(Written(context, result), device);
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
  const auto number = reinterpret_cast<uint64_t>(context);
  const int device = result == 0 ? ForgetContext(number) : -1;
  ticket.Record(proof, {.kind = EventKind::kContextDestroy, .device = device, .address = number}, result);
  return result;
}

// A device's primary context is retained again and again; it exists from the first time on. By device + 1.
constinit HandleMap<128> primary_contexts;

Result DevicePrimaryCtxRetain(Call<Result, void**, int> call, void** context, int device) {
  const DriverScope scope(call.id);
  const Result result = call(context, device);
  const uint64_t key = static_cast<uint64_t>(device) + 1;
  if (scope.outermost() && (result != 0 || !primary_contexts.Contains(key))) {
    if (result == 0) {
      primary_contexts.Put(key, Written(context, result));
    }
    Record(scope.proof(),
           {.kind = EventKind::kContextCreate, .device = device, .address = Written(context, result)},
           result);
    SampleDevice(device, true);
  }
  return result;
}

bool PrimaryContextIsGone(int device) {
  unsigned flags = 0;
  int active = 1;
  return Driver().primary_ctx_get_state != nullptr &&
         Driver().primary_ctx_get_state(device, &flags, &active) == 0 && active == 0;
}

// The last release ends the context and what was allocated in it; the others end nothing and are no event.
Result DevicePrimaryCtxRelease(Call<Result, int> call, int device) {
  const DriverScope scope(call.id);
  if (!scope.outermost()) {
    return call(device);
  }
  const Proof proof = scope.proof();
  Ticket ticket(proof);
  const Result result = call(device);
  if (result == 0 && PrimaryContextIsGone(device)) {
    primary_contexts.Erase(static_cast<uint64_t>(device) + 1);
    ticket.Record(proof, {.kind = EventKind::kContextDestroy, .device = device, .address = 0}, result);
  }
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
  if (result == 0) {
    primary_contexts.Erase(static_cast<uint64_t>(device) + 1);
  }
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

}  // namespace
}  // namespace gpumemtrace::interpose::driver

namespace gpumemtrace::interpose {
GPUMEMTRACE_CONTEXT_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
