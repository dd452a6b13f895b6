// Operations of the simulated torch: each allocates what the real one allocates and saves what it saves.
#pragma once

#include "autograd.h"

namespace at {

// Same shape as the input; the input or the output is kept for backward.
TORCH_API TensorPtr Unary(const char* name, const TensorPtr& x, bool save_output);
// Broadcasts; a null `b` stands for a Python number.
TORCH_API TensorPtr Binary(const char* name, const TensorPtr& a, const TensorPtr& b, bool save);
TORCH_API TensorPtr Matmul(const TensorPtr& a, const TensorPtr& b);
TORCH_API TensorPtr Linear(const TensorPtr& x, const TensorPtr& weight, const TensorPtr& bias);
// To a scalar.
TORCH_API TensorPtr Reduce(const char* name, const TensorPtr& x);
TORCH_API TensorPtr CrossEntropy(const TensorPtr& logits, const TensorPtr& target);
TORCH_API TensorPtr Embedding(const TensorPtr& index, const TensorPtr& weight);
TORCH_API TensorPtr View(const TensorPtr& x, const Shape& shape, int64_t offset);
TORCH_API TensorPtr Clone(const TensorPtr& x);
TORCH_API TensorPtr Cat(const std::vector<TensorPtr>& tensors, size_t dimension);
TORCH_API TensorPtr ToDevice(const TensorPtr& x, int device);
TORCH_API TensorPtr ToKind(const TensorPtr& x, Kind kind);

}  // namespace at
