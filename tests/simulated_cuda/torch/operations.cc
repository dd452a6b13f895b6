#include "operations.h"

#include <stdexcept>
#include <utility>

#include "libraries/cublas.h"

namespace at {
namespace {

void Attach(const TensorPtr& out, std::shared_ptr<torch::autograd::Node> node) {
  out->grad_fn = std::move(node);
  out->requires_grad = out->grad_fn != nullptr;
}

Shape Broadcast(const Shape& a, const Shape& b) {
  Shape out = a.size() >= b.size() ? a : b;
  const Shape& other = a.size() >= b.size() ? b : a;
  for (size_t i = 0; i < other.size(); ++i) {
    int64_t& d = out[out.size() - other.size() + i];
    if (d != other[i] && d != 1 && other[i] != 1) throw std::invalid_argument("shapes cannot be broadcast");
    d = d > other[i] ? d : other[i];
  }
  return out;
}

void Gemm(int device) {
  if (device != kCpu) simulatedCublasGemm(device);
}

}  // namespace

TensorPtr Unary(const char* name, const TensorPtr& x, bool save_output) {
  TensorPtr out = EmptyLike(*x);
  // Keeping the output itself in its own node would be a cycle: keep a view of it.
  TensorPtr saved = x;
  if (save_output) {
    saved = std::make_shared<Tensor>();
    saved->storage = out->storage;
    saved->shape = out->shape;
    saved->kind = out->kind;
  }
  Attach(out, torch::autograd::Record(name, {x}, {saved}));
  return out;
}

TensorPtr Binary(const char* name, const TensorPtr& a, const TensorPtr& b, bool save) {
  const Shape shape = b != nullptr ? Broadcast(a->shape, b->shape) : a->shape;
  TensorPtr out = Empty(shape, a->kind, a->device());
  std::vector<TensorPtr> saved;
  if (save) saved = b != nullptr ? std::vector<TensorPtr>{a, b} : std::vector<TensorPtr>{a};
  std::vector<TensorPtr> inputs{a};
  if (b != nullptr) inputs.push_back(b);
  Attach(out, torch::autograd::Record(name, inputs, std::move(saved)));
  return out;
}

TensorPtr Matmul(const TensorPtr& a, const TensorPtr& b) {
  if (a->shape.empty() || b->shape.size() < 2 || a->shape.back() != b->shape[b->shape.size() - 2]) {
    throw std::invalid_argument("mat1 and mat2 shapes cannot be multiplied");
  }
  Gemm(a->device());
  Shape shape = a->shape;
  shape.back() = b->shape.back();
  TensorPtr out = Empty(shape, a->kind, a->device());
  Attach(out, torch::autograd::Record("MmBackward0", {a, b}, {a, b}));
  return out;
}

TensorPtr Linear(const TensorPtr& x, const TensorPtr& weight, const TensorPtr& bias) {
  if (x->shape.empty() || x->shape.back() != weight->shape[1]) {
    throw std::invalid_argument("mat1 and mat2 shapes cannot be multiplied");
  }
  Gemm(x->device());
  Shape shape = x->shape;
  shape.back() = weight->shape[0];
  TensorPtr out = Empty(shape, x->kind, x->device());
  Attach(out, torch::autograd::Record("AddmmBackward0", {x, weight, bias}, {x, weight}));
  return out;
}

TensorPtr Reduce(const char* name, const TensorPtr& x) {
  TensorPtr out = Empty({}, x->kind, x->device());
  Attach(out, torch::autograd::Record(name, {x}, {}));
  return out;
}

TensorPtr CrossEntropy(const TensorPtr& logits, const TensorPtr& target) {
  // log_softmax, kept for backward, then the loss.
  TensorPtr log_softmax = EmptyLike(*logits);
  TensorPtr out = Empty({}, logits->kind, logits->device());
  Attach(out, torch::autograd::Record("NllLossBackward0", {logits}, {log_softmax, target}));
  return out;
}

TensorPtr Embedding(const TensorPtr& index, const TensorPtr& weight) {
  Shape shape = index->shape;
  shape.push_back(weight->shape[1]);
  TensorPtr out = Empty(shape, weight->kind, weight->device());
  Attach(out, torch::autograd::Record("EmbeddingBackward0", {weight}, {index}));
  return out;
}

TensorPtr View(const TensorPtr& x, const Shape& shape, int64_t offset) {
  auto out = std::make_shared<Tensor>();
  out->storage = x->storage;
  out->shape = shape;
  out->kind = x->kind;
  out->offset = x->offset + offset;
  Attach(out, torch::autograd::Record("ViewBackward0", {x}, {}, out->elements() == x->elements()));
  return out;
}

TensorPtr Clone(const TensorPtr& x) {
  TensorPtr out = EmptyLike(*x);
  Attach(out, torch::autograd::Record("CloneBackward0", {x}, {}));
  return out;
}

TensorPtr Cat(const std::vector<TensorPtr>& tensors, size_t dimension) {
  if (tensors.empty()) throw std::invalid_argument("expected a non-empty list of Tensors");
  Shape shape = tensors[0]->shape;
  for (size_t i = 1; i < tensors.size(); ++i) shape.at(dimension) += tensors[i]->shape.at(dimension);
  TensorPtr out = Empty(shape, tensors[0]->kind, tensors[0]->device());
  Attach(out, torch::autograd::Record("CatBackward0", tensors, {}));
  return out;
}

TensorPtr ToDevice(const TensorPtr& x, int device) {
  if (device == x->device()) return x;
  TensorPtr out = Empty(x->shape, x->kind, device);
  Attach(out, torch::autograd::Record("ToCopyBackward0", {x}, {}));
  return out;
}

TensorPtr ToKind(const TensorPtr& x, Kind kind) {
  if (kind.dtype == x->kind.dtype) return x;
  TensorPtr out = Empty(x->shape, kind, x->device());
  Attach(out, torch::autograd::Record("ToCopyBackward0", {x}, {}));
  return out;
}

}  // namespace at
