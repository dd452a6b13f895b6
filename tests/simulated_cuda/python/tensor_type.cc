// torch._C.TensorBase: the base class of torch.Tensor, tracked by the garbage collector.
#include "module.h"

namespace simulated_torch {
namespace {

bool VisitsType() {
  // From CPython 3.9 on an instance of a heap type visits its type.
  static const bool visits = [] {
    const char* version = Py_GetVersion();
    return !(version[0] == '3' && version[1] == '.' && version[2] == '8');
  }();
  return visits;
}

int Traverse(PyObject* self, visitproc visit, void* arg) {
  if (VisitsType()) Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  return 0;
}

void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  at::TensorPtr* tensor = reinterpret_cast<PyTensor*>(self)->tensor;
  if (tensor != nullptr) {
    if ((*tensor)->python == self) (*tensor)->python = nullptr;
    delete tensor;
  }
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

// torch.Tensor(other) and torch.nn.Parameter(data): another tensor object over the same storage.
PyObject* New(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject* data = nullptr;
  PyObject* requires_grad = Py_False;
  if (!PyArg_ParseTuple(arguments, "O|O", &data, &requires_grad)) return nullptr;
  if (!IsTensor(data)) {
    PyErr_SetString(PyExc_TypeError, "expected a Tensor");
    return nullptr;
  }
  auto tensor = std::make_shared<at::Tensor>();
  tensor->storage = Get(data)->storage;
  tensor->shape = Get(data)->shape;
  tensor->kind = Get(data)->kind;
  tensor->requires_grad = PyObject_IsTrue(requires_grad) == 1;
  return Wrap(tensor, reinterpret_cast<PyObject*>(type));
}

PyObject* Shape(PyObject* self, void*) {
  return ShapeTuple(Get(self)->shape);
}
PyObject* Dtype(PyObject* self, void*) {
  PyObject* dtype = PyList_GetItem(g_dtypes, Get(self)->kind.dtype);
  Py_XINCREF(dtype);
  return dtype;
}
PyObject* DeviceOf(PyObject* self, void*) {
  const int device = Get(self)->device();
  return device == at::kCpu ? PyObject_CallFunction(g_device, "s", "cpu")
                            : PyObject_CallFunction(g_device, "si", "cuda", device);
}
PyObject* IsCuda(PyObject* self, void*) {
  return PyBool_FromLong(Get(self)->device() != at::kCpu);
}
PyObject* IsLeaf(PyObject* self, void*) {
  return PyBool_FromLong(Get(self)->grad_fn == nullptr);
}
PyObject* RequiresGrad(PyObject* self, void*) {
  return PyBool_FromLong(Get(self)->requires_grad);
}
int SetRequiresGrad(PyObject* self, PyObject* value, void*) {
  Get(self)->requires_grad = PyObject_IsTrue(value) == 1;
  return 0;
}
PyObject* Grad(PyObject* self, void*) {
  return Wrap(Get(self)->grad);
}
int SetGrad(PyObject* self, PyObject* value, void*) {
  Get(self)->grad = value == nullptr || value == Py_None ? nullptr : Get(value);
  return 0;
}
PyObject* GradFn(PyObject* self, void*) {
  const auto& node = Get(self)->grad_fn;
  if (node == nullptr) Py_RETURN_NONE;
  return PyUnicode_FromFormat("<%s>", node->name);
}
PyObject* Data(PyObject* self, void*) {
  auto tensor = std::make_shared<at::Tensor>();
  tensor->storage = Get(self)->storage;
  tensor->shape = Get(self)->shape;
  tensor->kind = Get(self)->kind;
  return Wrap(tensor);
}

PyObject* DataPtr(PyObject* self, PyObject*) {
  const auto& tensor = Get(self);
  return PyLong_FromUnsignedLongLong(reinterpret_cast<uint64_t>(tensor->storage->data) +
                                     static_cast<uint64_t>(tensor->offset) * tensor->kind.item);
}
PyObject* StoragePtr(PyObject* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<uint64_t>(Get(self)->storage->data));
}
PyObject* StorageBytes(PyObject* self, PyObject*) {
  return PyLong_FromSize_t(Get(self)->storage->bytes);
}
PyObject* StorageOffset(PyObject* self, PyObject*) {
  return PyLong_FromLongLong(Get(self)->offset);
}
PyObject* ElementSize(PyObject* self, PyObject*) {
  return PyLong_FromSize_t(Get(self)->kind.item);
}
PyObject* Numel(PyObject* self, PyObject*) {
  return PyLong_FromLongLong(Get(self)->elements());
}
PyObject* IsPinned(PyObject* self, PyObject*) {
  return PyBool_FromLong(Get(self)->storage->pinned);
}

PyObject* Backward(PyObject* self, PyObject* arguments) {
  int retain_graph = 0;
  if (!PyArg_ParseTuple(arguments, "|p", &retain_graph)) return nullptr;
  const at::TensorPtr root = Get(self);
  if (root->grad_fn == nullptr) {
    PyErr_SetString(PyExc_RuntimeError,
                    "element 0 of tensors does not require grad and does not have a grad_fn");
    return nullptr;
  }
  return Guard([&]() -> PyObject* {
    PyThreadState* state = PyEval_SaveThread();
    std::exception_ptr error;
    try {
      torch::autograd::Backward(root, retain_graph != 0);
    } catch (...) {
      error = std::current_exception();
    }
    PyEval_RestoreThread(state);
    if (error) std::rethrow_exception(error);
    Py_RETURN_NONE;
  });
}

PyMethodDef kMethods[] = {{"data_ptr", DataPtr, METH_NOARGS, nullptr},
                          {"_storage_ptr", StoragePtr, METH_NOARGS, nullptr},
                          {"_storage_bytes", StorageBytes, METH_NOARGS, nullptr},
                          {"storage_offset", StorageOffset, METH_NOARGS, nullptr},
                          {"element_size", ElementSize, METH_NOARGS, nullptr},
                          {"numel", Numel, METH_NOARGS, nullptr},
                          {"is_pinned", IsPinned, METH_NOARGS, nullptr},
                          {"_backward", Backward, METH_VARARGS, nullptr},
                          {nullptr, nullptr, 0, nullptr}};

PyGetSetDef kProperties[] = {{"shape", Shape, nullptr, nullptr, nullptr},
                             {"dtype", Dtype, nullptr, nullptr, nullptr},
                             {"device", DeviceOf, nullptr, nullptr, nullptr},
                             {"is_cuda", IsCuda, nullptr, nullptr, nullptr},
                             {"is_leaf", IsLeaf, nullptr, nullptr, nullptr},
                             {"requires_grad", RequiresGrad, SetRequiresGrad, nullptr, nullptr},
                             {"grad", Grad, SetGrad, nullptr, nullptr},
                             {"grad_fn", GradFn, nullptr, nullptr, nullptr},
                             {"data", Data, nullptr, nullptr, nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_new, reinterpret_cast<void*>(New)},
                        {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                        {Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_getset, kProperties},
                        {0, nullptr}};

PyType_Spec kSpec = {"torch._C.TensorBase", sizeof(PyTensor), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, kSlots};

}  // namespace

bool AddTensorType(PyObject* module) {
  PyObject* type = PyType_FromSpec(&kSpec);
  if (type == nullptr) return false;
  g_base = reinterpret_cast<PyTypeObject*>(type);
  Py_INCREF(type);
  return PyModule_AddObject(module, "TensorBase", type) == 0;
}

}  // namespace simulated_torch
