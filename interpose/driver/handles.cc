// Driver handles that carry device memory without an allocation call: streams, events, modules, libraries.
#include "interpose/driver/handle_destroy.h"
#include "interpose/driver/wrappers.h"

namespace gpumemtrace::interpose::driver {
namespace {

// All of these write the new handle through their first argument; the others are passed on.
template <typename... Rest>
Result Create(Call<Result, void**, Rest...> call, void** handle, Rest... rest) {
  const DriverScope scope(call.id);
  const Result result = call(handle, rest...);
  if (scope.outermost()) {
    const int device = CurrentDevice();
    Record(scope.proof(),
           {.kind = EventKind::kHandleCreate, .device = device, .address = Written(handle, result)}, result);
    SampleDevice(device, false);
  }
  return result;
}

Result HandleCreate2(Call<Result, void**, Word> call, void** handle, Word a) {
  return Create(call, handle, a);
}

Result HandleCreate3(Call<Result, void**, Word, Word> call, void** handle, Word a, Word b) {
  return Create(call, handle, a, b);
}

Result HandleCreate4(Call<Result, void**, Word, Word, Word> call, void** handle, Word a, Word b, Word c) {
  return Create(call, handle, a, b, c);
}

Result HandleCreate5(Call<Result, void**, Word, Word, Word, Word> call, void** handle, Word a, Word b, Word c,
                     Word d) {
  return Create(call, handle, a, b, c, d);
}

Result HandleCreate8(Call<Result, void**, Word, Word, Word, Word, Word, Word, Word> call, void** handle,
                     Word a, Word b, Word c, Word d, Word e, Word f, Word g) {
  return Create(call, handle, a, b, c, d, e, f, g);
}

}  // namespace
}  // namespace gpumemtrace::interpose::driver

namespace gpumemtrace::interpose {
GPUMEMTRACE_DRIVER_HANDLE_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
