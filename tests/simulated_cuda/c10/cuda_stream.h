// The current stream of each thread and device. CUDAStream travels in two registers, as PyTorch's does.
#pragma once

#include "reporting.h"

namespace c10 {

struct Stream {
  Device device;
  int64_t id;  // the cudaStream_t as a number
};

namespace cuda {

struct CUDAStream {
  Stream stream;
};

C10_API void setCurrentCUDAStream(CUDAStream stream);
C10_API CUDAStream getCurrentCUDAStream(int8_t device);

}  // namespace cuda
}  // namespace c10
