// Factories and operations. They are C functions, as in PyTorch, so that the innermost Python frame of an
// allocation is the line that called them.
#include "module.h"

namespace simulated_torch {
namespace {

// factory(*shape, dtype=None, device=None, requires_grad=False, pin_memory=False)
PyObject* Factory(PyObject*, PyObject* arguments, PyObject* keywords) {
  at::Shape shape;
  if (!ParseShape(arguments, &shape)) return nullptr;
  PyObject* empty = PyTuple_New(0);
  PyObject* dtype = nullptr;
  PyObject* device = nullptr;
  PyObject* generator = nullptr;
  int requires_grad = 0;
  int pinned = 0;
  static const char* const names[] = {"dtype", "device", "requires_grad", "pin_memory", "generator", nullptr};
  const bool ok = PyArg_ParseTupleAndKeywords(empty, keywords, "|$OOppO", const_cast<char**>(names), &dtype,
                                              &device, &requires_grad, &pinned, &generator) != 0;
  Py_DECREF(empty);
  at::Kind kind;
  int where = at::kCpu;
  if (!ok || !ParseKind(dtype, &kind) || !ParseDevice(device, &where)) return nullptr;
  return Guard([&] {
    at::TensorPtr tensor = at::Empty(shape, kind, where, pinned != 0);
    tensor->requires_grad = requires_grad != 0;
    return Wrap(tensor);
  });
}

// randint(low, high, shape, …) and the like: only the shape matters.
PyObject* FactoryShape(PyObject* self, PyObject* arguments, PyObject* keywords) {
  PyObject* shape = PyTuple_GetItem(arguments, PyTuple_Size(arguments) - 1);
  if (shape == nullptr) return nullptr;
  PyObject* tuple = PyTuple_Pack(1, shape);
  PyObject* result = Factory(self, tuple, keywords);
  Py_DECREF(tuple);
  return result;
}

PyObject* FactoryLike(PyObject*, PyObject* arguments, PyObject* keywords) {
  PyObject* like = nullptr;
  PyObject* dtype = nullptr;
  PyObject* device = nullptr;
  PyObject* format = nullptr;
  int requires_grad = 0;
  static const char* const names[] = {"input", "dtype", "device", "requires_grad", "memory_format", nullptr};
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$OOpO", const_cast<char**>(names), &like, &dtype,
                                   &device, &requires_grad, &format)) {
    return nullptr;
  }
  const auto& source = Get(like);
  at::Kind kind = source->kind;
  int where = source->device();
  if (dtype != nullptr && dtype != Py_None && !ParseKind(dtype, &kind)) return nullptr;
  if (device != nullptr && device != Py_None && !ParseDevice(device, &where)) return nullptr;
  return Guard([&] {
    at::TensorPtr tensor = at::Empty(source->shape, kind, where);
    tensor->requires_grad = requires_grad != 0;
    return Wrap(tensor);
  });
}

// Tensor operands may be numbers.
at::TensorPtr Operand(PyObject* object) {
  return object != nullptr && IsTensor(object) ? Get(object) : nullptr;
}

template <const char* const& kName, bool kSaveOutput>
PyObject* UnaryOperation(PyObject*, PyObject* arguments, PyObject*) {
  PyObject* x = PyTuple_GetItem(arguments, 0);
  if (x == nullptr) return nullptr;
  return Guard([&] { return Wrap(at::Unary(kName, Get(x), kSaveOutput)); });
}

template <const char* const& kName, bool kSave>
PyObject* BinaryOperation(PyObject*, PyObject* arguments, PyObject*) {
  PyObject* a = PyTuple_GetItem(arguments, 0);
  PyObject* b = PyTuple_GetItem(arguments, 1);
  if (a == nullptr || b == nullptr) return nullptr;
  return Guard([&] {
    at::TensorPtr left = Operand(a);
    at::TensorPtr right = Operand(b);
    if (left == nullptr) std::swap(left, right);
    return Wrap(at::Binary(kName, left, right, kSave));
  });
}

template <const char* const& kName>
PyObject* ReduceOperation(PyObject*, PyObject* arguments, PyObject*) {
  PyObject* x = PyTuple_GetItem(arguments, 0);
  if (x == nullptr) return nullptr;
  return Guard([&] { return Wrap(at::Reduce(kName, Get(x))); });
}

PyObject* Matmul(PyObject*, PyObject* arguments) {
  PyObject* a = nullptr;
  PyObject* b = nullptr;
  if (!PyArg_ParseTuple(arguments, "OO", &a, &b)) return nullptr;
  return Guard([&] { return Wrap(at::Matmul(Get(a), Get(b))); });
}

PyObject* Linear(PyObject*, PyObject* arguments) {
  PyObject* x = nullptr;
  PyObject* weight = nullptr;
  PyObject* bias = Py_None;
  if (!PyArg_ParseTuple(arguments, "OO|O", &x, &weight, &bias)) return nullptr;
  return Guard([&] { return Wrap(at::Linear(Get(x), Get(weight), Operand(bias))); });
}

PyObject* CrossEntropy(PyObject*, PyObject* arguments, PyObject*) {
  PyObject* logits = nullptr;
  PyObject* target = nullptr;
  if (!PyArg_ParseTuple(arguments, "OO", &logits, &target)) return nullptr;
  return Guard([&] { return Wrap(at::CrossEntropy(Get(logits), Get(target))); });
}

PyObject* Embedding(PyObject*, PyObject* arguments) {
  PyObject* index = nullptr;
  PyObject* weight = nullptr;
  if (!PyArg_ParseTuple(arguments, "OO", &index, &weight)) return nullptr;
  return Guard([&] { return Wrap(at::Embedding(Get(index), Get(weight))); });
}

PyObject* View(PyObject*, PyObject* arguments) {
  PyObject* x = nullptr;
  PyObject* shape = nullptr;
  long long offset = 0;
  if (!PyArg_ParseTuple(arguments, "OO|L", &x, &shape, &offset)) return nullptr;
  at::Shape parsed;
  if (!ParseShape(shape, &parsed)) return nullptr;
  return Guard([&] { return Wrap(at::View(Get(x), parsed, offset)); });
}

PyObject* Clone(PyObject*, PyObject* arguments, PyObject*) {
  PyObject* x = PyTuple_GetItem(arguments, 0);
  if (x == nullptr) return nullptr;
  return Guard([&] { return Wrap(at::Clone(Get(x))); });
}

PyObject* Cat(PyObject*, PyObject* arguments, PyObject* keywords) {
  PyObject* list = nullptr;
  int dimension = 0;
  static const char* const names[] = {"tensors", "dim", nullptr};
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|i", const_cast<char**>(names), &list,
                                   &dimension)) {
    return nullptr;
  }
  std::vector<at::TensorPtr> tensors;
  const Py_ssize_t n = PySequence_Size(list);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = PySequence_GetItem(list, i);
    tensors.push_back(Get(item));
    Py_DECREF(item);
  }
  const auto rank = tensors.empty() ? 0 : static_cast<int>(tensors[0]->shape.size());
  return Guard([&] {
    return Wrap(at::Cat(tensors, static_cast<size_t>(dimension < 0 ? dimension + rank : dimension)));
  });
}

PyObject* To(PyObject*, PyObject* arguments) {
  PyObject* x = nullptr;
  PyObject* device = nullptr;
  PyObject* dtype = nullptr;
  if (!PyArg_ParseTuple(arguments, "OOO", &x, &device, &dtype)) return nullptr;
  int where = Get(x)->device();
  at::Kind kind = Get(x)->kind;
  if (device != Py_None && !ParseDevice(device, &where)) return nullptr;
  if (dtype != Py_None && !ParseKind(dtype, &kind)) return nullptr;
  return Guard([&] { return Wrap(at::ToKind(at::ToDevice(Get(x), where), kind)); });
}

PyObject* SetGradEnabled(PyObject*, PyObject* argument) {
  return PyBool_FromLong(at::SetGradEnabled(PyObject_IsTrue(argument) == 1));
}
PyObject* GradEnabled(PyObject*, PyObject*) {
  return PyBool_FromLong(at::GradEnabled());
}

// _custom(name, inputs, output, backward): `output` came out of a torch.autograd.Function; backward(gradient)
// returns a gradient or a tuple of them.
PyObject* Custom(PyObject*, PyObject* arguments) {
  const char* name = nullptr;
  PyObject* inputs = nullptr;
  PyObject* output = nullptr;
  PyObject* backward = nullptr;
  if (!PyArg_ParseTuple(arguments, "sOOO", &name, &inputs, &output, &backward)) return nullptr;
  std::vector<at::TensorPtr> tensors;
  for (Py_ssize_t i = 0; i < PyTuple_Size(inputs); ++i)
    tensors.push_back(Operand(PyTuple_GetItem(inputs, i)));
  Py_INCREF(backward);
  const std::shared_ptr<PyObject> callable(backward, [](PyObject* object) {
    // The node may die on a thread that does not hold the interpreter.
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(object);
    PyGILState_Release(state);
  });
  const size_t count = tensors.size();
  auto node = torch::autograd::RecordCustom(name, tensors, [callable, count](at::TensorPtr gradient) {
    const PyGILState_STATE state = PyGILState_Ensure();
    std::vector<at::TensorPtr> result(count);
    PyObject* wrapped = Wrap(gradient);
    gradient.reset();
    PyObject* value = PyObject_CallFunctionObjArgs(callable.get(), wrapped, nullptr);
    Py_DECREF(wrapped);
    if (value == nullptr) {
      PyErr_Print();
      PyGILState_Release(state);
      throw std::runtime_error("error in a custom backward");
    }
    if (IsTensor(value)) {
      result[0] = Get(value);
    } else if (PyTuple_Check(value)) {
      for (Py_ssize_t i = 0; i < PyTuple_Size(value) && static_cast<size_t>(i) < count; ++i) {
        result[static_cast<size_t>(i)] = Operand(PyTuple_GetItem(value, i));
      }
    }
    Py_DECREF(value);
    PyGILState_Release(state);
    return result;
  });
  const auto& tensor = Get(output);
  tensor->requires_grad = node != nullptr;
  tensor->grad_fn = std::move(node);
  Py_RETURN_NONE;
}

#define NAME(identifier, text) constexpr const char* identifier = text
NAME(kRelu, "ReluBackward0");
NAME(kGelu, "GeluBackward0");
NAME(kSquare, "PowBackward0");
NAME(kExp, "ExpBackward0");
NAME(kSoftmax, "SoftmaxBackward0");
NAME(kNorm, "NativeLayerNormBackward0");
NAME(kDropout, "NativeDropoutBackward0");
NAME(kAdd, "AddBackward0");
NAME(kSub, "SubBackward0");
NAME(kMul, "MulBackward0");
NAME(kDiv, "DivBackward0");
NAME(kMean, "MeanBackward0");
NAME(kSum, "SumBackward0");
#undef NAME

}  // namespace

#define KEYWORDS(name, function)                                                  \
  {                                                                               \
    name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&function)), \
        METH_VARARGS | METH_KEYWORDS, nullptr                                     \
  }
#define UNARY(name, label, save)                                                                     \
  {                                                                                                  \
    name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&UnaryOperation<label, save>)), \
        METH_VARARGS | METH_KEYWORDS, nullptr                                                        \
  }
#define BINARY(name, label, save)                                                                     \
  {                                                                                                   \
    name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&BinaryOperation<label, save>)), \
        METH_VARARGS | METH_KEYWORDS, nullptr                                                         \
  }

PyMethodDef kFunctions[] = {KEYWORDS("empty", Factory),
                            KEYWORDS("zeros", Factory),
                            KEYWORDS("ones", Factory),
                            KEYWORDS("rand", Factory),
                            KEYWORDS("randn", Factory),
                            KEYWORDS("randint", FactoryShape),
                            KEYWORDS("empty_like", FactoryLike),
                            KEYWORDS("zeros_like", FactoryLike),
                            KEYWORDS("ones_like", FactoryLike),
                            KEYWORDS("randn_like", FactoryLike),
                            UNARY("relu", kRelu, true),
                            UNARY("gelu", kGelu, false),
                            UNARY("square", kSquare, false),
                            UNARY("exp", kExp, true),
                            UNARY("softmax", kSoftmax, true),
                            UNARY("layer_norm", kNorm, false),
                            UNARY("dropout", kDropout, true),
                            BINARY("add", kAdd, false),
                            BINARY("sub", kSub, false),
                            BINARY("mul", kMul, true),
                            BINARY("div", kDiv, true),
                            KEYWORDS("mean", ReduceOperation<kMean>),
                            KEYWORDS("sum", ReduceOperation<kSum>),
                            {"matmul", Matmul, METH_VARARGS, nullptr},
                            {"linear", Linear, METH_VARARGS, nullptr},
                            KEYWORDS("cross_entropy", CrossEntropy),
                            {"embedding", Embedding, METH_VARARGS, nullptr},
                            {"_view", View, METH_VARARGS, nullptr},
                            KEYWORDS("clone", Clone),
                            KEYWORDS("cat", Cat),
                            {"_to", To, METH_VARARGS, nullptr},
                            {"_set_grad_enabled", SetGradEnabled, METH_O, nullptr},
                            {"is_grad_enabled", GradEnabled, METH_NOARGS, nullptr},
                            {"_custom", Custom, METH_VARARGS, nullptr},
                            {nullptr, nullptr, 0, nullptr}};

}  // namespace simulated_torch
