#include "module.h"

#include <stdexcept>

#include "c10/allocator.h"

namespace simulated_torch {

PyTypeObject* g_base = nullptr;
PyObject* g_class = nullptr;
PyObject* g_dtypes = nullptr;
PyObject* g_device = nullptr;
PyObject* g_out_of_memory = nullptr;

PyObject* g_observers = nullptr;  // a list of callables

// As PyTorch does: before the error is raised, while the frames that lead to it are alive.
static void TellObservers() {
  for (Py_ssize_t i = 0; g_observers != nullptr && i < PyList_Size(g_observers); ++i) {
    PyObject* result = PyObject_CallFunction(PyList_GetItem(g_observers, i), "iiii", 0, 0, 0, 0);
    if (result == nullptr) return;
    Py_DECREF(result);
  }
}

// A Python error that is already set travels through the engine as this.
void SetErrorFromException() {
  if (PyErr_Occurred()) return;
  try {
    throw;
  } catch (const c10::cuda::allocator::OutOfMemoryError& error) {
    TellObservers();
    if (PyErr_Occurred()) return;
    PyErr_SetString(g_out_of_memory != nullptr ? g_out_of_memory : PyExc_RuntimeError, error.what());
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

bool IsTensor(PyObject* object) {
  return PyObject_IsInstance(object, reinterpret_cast<PyObject*>(g_base)) == 1;
}

const at::TensorPtr& Get(PyObject* tensor) {
  return *reinterpret_cast<PyTensor*>(tensor)->tensor;
}

PyObject* Wrap(const at::TensorPtr& tensor, PyObject* type) {
  if (tensor == nullptr) Py_RETURN_NONE;
  if (tensor->python != nullptr && type == nullptr) {
    auto* object = static_cast<PyObject*>(tensor->python);
    Py_INCREF(object);
    return object;
  }
  auto* cls = reinterpret_cast<PyTypeObject*>(type != nullptr ? type : g_class);
  const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(cls, Py_tp_alloc));
  PyObject* object = allocate(cls, 0);
  if (object == nullptr) return nullptr;
  reinterpret_cast<PyTensor*>(object)->tensor = new at::TensorPtr(tensor);
  tensor->python = object;
  return object;
}

bool ParseShape(PyObject* object, at::Shape* shape) {
  shape->clear();
  if (PyLong_Check(object)) {
    shape->push_back(PyLong_AsLongLong(object));
    return !PyErr_Occurred();
  }
  const Py_ssize_t n = PySequence_Size(object);
  if (n < 0) return false;
  // f((2, 3)) means f(2, 3).
  if (n == 1) {
    PyObject* only = PySequence_GetItem(object, 0);
    if (only == nullptr) return false;
    const bool nested = !PyLong_Check(only);
    const bool ok = !nested || ParseShape(only, shape);
    Py_DECREF(only);
    if (nested) return ok;
  }
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = PySequence_GetItem(object, i);
    if (item == nullptr) return false;
    shape->push_back(PyLong_AsLongLong(item));
    Py_DECREF(item);
    if (PyErr_Occurred()) return false;
  }
  return true;
}

bool ParseDevice(PyObject* object, int* device) {
  *device = at::kCpu;
  if (object == nullptr || object == Py_None) return true;
  if (PyLong_Check(object)) {
    *device = static_cast<int>(PyLong_AsLong(object));
    return !PyErr_Occurred();
  }
  PyObject* text = PyObject_Str(object);
  if (text == nullptr) return false;
  PyObject* bytes = PyUnicode_AsUTF8String(text);
  Py_DECREF(text);
  if (bytes == nullptr) return false;
  const std::string name = PyBytes_AsString(bytes);
  Py_DECREF(bytes);
  if (name == "cpu") return true;
  if (name.rfind("cuda", 0) == 0) {
    *device = name.size() > 5 ? std::stoi(name.substr(5)) : 0;
    return true;
  }
  PyErr_Format(PyExc_RuntimeError, "invalid device %s", name.c_str());
  return false;
}

bool ParseKind(PyObject* object, at::Kind* kind) {
  if (object == nullptr || object == Py_None) {
    *kind = {};
    return true;
  }
  PyObject* number = PyObject_GetAttrString(object, "_number");
  PyObject* size = number != nullptr ? PyObject_GetAttrString(object, "itemsize") : nullptr;
  if (size == nullptr) {
    Py_XDECREF(number);
    return false;
  }
  kind->dtype = static_cast<int>(PyLong_AsLong(number));
  kind->item = PyLong_AsSize_t(size);
  Py_DECREF(number);
  Py_DECREF(size);
  return !PyErr_Occurred();
}

PyObject* ShapeTuple(const at::Shape& shape) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(shape.size()));
  for (size_t i = 0; tuple != nullptr && i < shape.size(); ++i) {
    PyTuple_SetItem(tuple, static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i]));
  }
  return tuple;
}

namespace {

PyObject* SetClasses(PyObject*, PyObject* arguments) {
  if (!PyArg_ParseTuple(arguments, "OOOO", &g_class, &g_device, &g_dtypes, &g_out_of_memory)) return nullptr;
  for (PyObject* object : {g_class, g_device, g_dtypes, g_out_of_memory}) Py_INCREF(object);
  Py_RETURN_NONE;
}

PyObject* AttachObserver(PyObject*, PyObject* observer) {
  if (g_observers == nullptr) g_observers = PyList_New(0);
  if (g_observers == nullptr || PyList_Append(g_observers, observer) != 0) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef kMethods[] = {{"_cuda_attach_out_of_memory_observer", AttachObserver, METH_O, nullptr},
                          {"_set_classes", SetClasses, METH_VARARGS, nullptr},
                          {nullptr, nullptr, 0, nullptr}};
PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, "torch._C", nullptr, -1, kMethods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace simulated_torch

PyMODINIT_FUNC PyInit__C() {
  using namespace simulated_torch;
  PyObject* module = PyModule_Create(&kModule);
  if (module == nullptr || !AddTensorType(module) || PyModule_AddFunctions(module, kFunctions) != 0 ||
      PyModule_AddFunctions(module, kCudaFunctions) != 0) {
    return nullptr;
  }
  return module;
}
