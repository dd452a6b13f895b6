#include "cuda_stream.h"

namespace c10::cuda {
namespace {
thread_local int64_t t_current[16];
}

void setCurrentCUDAStream(CUDAStream stream) {
  t_current[stream.stream.device.index] = stream.stream.id;
}

CUDAStream getCurrentCUDAStream(int8_t device) {
  return {{{DeviceType::CUDA, device}, t_current[device]}};
}

}  // namespace c10::cuda
