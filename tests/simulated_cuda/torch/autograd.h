// Nodes and the engine that runs them on a thread of its own, which has no Python frames.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensor.h"

namespace torch::autograd {

// The vtable pointer, then the base with the weak pointer, then the members that the shim reads in the order
// that PyTorch has them: the sequence number at offset 24 and the creating thread at 48.
struct TORCH_API_TYPE Node : std::enable_shared_from_this<Node> {
  explicit Node(uint64_t sequence_nr);
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Gradients of the inputs, null where none is wanted.
  virtual std::vector<at::TensorPtr> apply(at::TensorPtr gradient) = 0;
  // Drops what was saved for backward.
  virtual void release() {}

  uint64_t sequence_nr_;
  uint64_t topological_nr_ = 0;
  bool has_parent_ = false;
  uint64_t thread_id_ = 0;
  const char* name = "";
  std::vector<std::shared_ptr<Node>> next;  // per input; null where none is wanted
};

// The node being run on this thread; null outside backward.
TORCH_API std::shared_ptr<Node> get_current_node();

// A node for an operation over `inputs`, or null when no gradient is wanted. Takes a sequence number.
// `saved` stays alive until the node has run.
TORCH_API std::shared_ptr<Node> Record(const char* name, const std::vector<at::TensorPtr>& inputs,
                                       std::vector<at::TensorPtr> saved, bool gradient_is_view = false);
// For operations whose backward is code of somebody else (Python).
TORCH_API std::shared_ptr<Node> RecordCustom(
    const char* name, const std::vector<at::TensorPtr>& inputs,
    std::function<std::vector<at::TensorPtr>(at::TensorPtr)> backward);

// Runs backward from `root` to its end; the caller must not hold the GIL. Throws what a node threw.
TORCH_API void Backward(const at::TensorPtr& root, bool retain_graph);

}  // namespace torch::autograd
