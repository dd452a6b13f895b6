// See stream.h. c10::cuda::setCurrentCUDAStream takes a c10::cuda::CUDAStream by value: a c10::Stream of
// {Device, int64_t id}, two registers (c10/core/Stream.h).
#include "interpose/torch/stream.h"

#include "interpose/hooks.h"
#include "interpose/torch/allocator.h"

namespace gpumemtrace::interpose::torch {
namespace {

constexpr int kMaxDevices = 64;
thread_local constinit uint64_t current_stream[kMaxDevices] __attribute__((tls_model("initial-exec"))) = {};

struct Stream {
  Device device;
  int64_t id;
};

void SetCurrentStream(Call<void, Stream> call, Stream stream) {
  if (stream.device.type == kCuda && stream.device.index >= 0 && stream.device.index < kMaxDevices) {
    current_stream[stream.device.index] = static_cast<uint64_t>(stream.id);
  }
  call(stream);
}

}  // namespace

uint64_t CurrentStream(int device) {
  return device >= 0 && device < kMaxDevices ? current_stream[device] : 0;
}

}  // namespace gpumemtrace::interpose::torch

namespace gpumemtrace::interpose {
GPUMEMTRACE_TORCH_STREAM_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
