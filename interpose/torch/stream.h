// The stream that PyTorch will allocate on, per thread and device: the allocator's report does not say it.
#pragma once

#include <cstdint>

namespace gpumemtrace::interpose::torch {

// PyTorch's stream id (c10::StreamId), 0 = the device's default stream.
uint64_t CurrentStream(int device);

}  // namespace gpumemtrace::interpose::torch
