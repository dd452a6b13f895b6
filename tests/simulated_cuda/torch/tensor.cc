#include "tensor.h"

#include <stdlib.h>
#include <atomic>

#include "c10/allocator.h"
#include "newest_cuda_runtime.h"

namespace at {
namespace {
thread_local bool t_grad_enabled = true;
thread_local uint64_t t_sequence = 0;
}  // namespace

Storage::Storage(size_t size, int where, bool is_pinned) : bytes(size), device(where), pinned(is_pinned) {
  if (device != kCpu) {
    data = c10::cuda::allocator::Allocate(device, bytes);
  } else if (pinned) {
    if (bytes != 0 && cudaHostAlloc(&data, bytes, 0) != cudaSuccess) data = nullptr;
  } else {
    data = bytes != 0 ? malloc(bytes) : nullptr;
  }
}

Storage::~Storage() {
  if (device != kCpu) {
    c10::cuda::allocator::Free(data);
  } else if (pinned) {
    cudaFreeHost(data);
  } else {
    free(data);
  }
}

TensorPtr Empty(const Shape& shape, Kind kind, int device, bool pinned) {
  auto tensor = std::make_shared<Tensor>();
  tensor->shape = shape;
  tensor->kind = kind;
  tensor->storage =
      std::make_shared<Storage>(static_cast<size_t>(tensor->elements()) * kind.item, device, pinned);
  return tensor;
}

bool GradEnabled() {
  return t_grad_enabled;
}

bool SetGradEnabled(bool enabled) {
  const bool before = t_grad_enabled;
  t_grad_enabled = enabled;
  return before;
}

uint64_t RecordFunction::currentThreadId() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t id = ++last;
  return id;
}

namespace sequence_number {
uint64_t peek() {
  return t_sequence;
}
uint64_t get_and_increment() {
  return t_sequence++;
}
}  // namespace sequence_number

}  // namespace at
