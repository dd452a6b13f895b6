// The end of a driver handle that has no arguments but itself: streams, events, modules, green contexts.
#pragma once

#include <cstdint>

#include "interpose/driver/wrappers.h"

namespace gpumemtrace::interpose::driver {

inline Result HandleDestroy(Call<Result, void*> call, void* handle) {
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

}  // namespace gpumemtrace::interpose::driver
