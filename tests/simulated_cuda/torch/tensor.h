// Tensors without contents: storage on a device that is really allocated, a shape, and a place in the
// autograd graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#define TORCH_API __attribute__((visibility("default"), noinline))
#define TORCH_API_TYPE __attribute__((visibility("default")))

namespace torch::autograd {
struct Node;
}

namespace at {

inline constexpr int kCpu = -1;

// Memory that is given back when the last tensor over it is gone.
struct TORCH_API_TYPE Storage {
  Storage(size_t bytes, int device, bool pinned);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data = nullptr;
  size_t bytes;
  int device;
  bool pinned;
};

using Shape = std::vector<int64_t>;

struct Kind {
  int dtype = 0;  // index into the list that Python gave
  size_t item = 4;
};

struct Tensor {
  std::shared_ptr<Storage> storage;
  Shape shape;
  Kind kind;
  int64_t offset = 0;
  bool requires_grad = false;
  std::shared_ptr<torch::autograd::Node> grad_fn;
  // The node that fills `grad` of a leaf; made on first use, kept by the nodes that need it.
  std::weak_ptr<torch::autograd::Node> accumulator;
  std::shared_ptr<Tensor> grad;
  // The Python object of this tensor while there is one; not owned.
  void* python = nullptr;

  int device() const { return storage->device; }
  int64_t elements() const {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
  }
};
using TensorPtr = std::shared_ptr<Tensor>;

TORCH_API TensorPtr Empty(const Shape& shape, Kind kind, int device, bool pinned = false);
inline TensorPtr EmptyLike(const Tensor& t) {
  return Empty(t.shape, t.kind, t.device());
}

TORCH_API bool GradEnabled();
TORCH_API bool SetGradEnabled(bool enabled);

struct RecordFunction {
  // Counted from 1, one per thread, never reused.
  TORCH_API static uint64_t currentThreadId();
};

namespace sequence_number {
// As in PyTorch: one number per autograd node, counted per thread.
TORCH_API uint64_t peek();
TORCH_API uint64_t get_and_increment();
}  // namespace sequence_number

}  // namespace at
