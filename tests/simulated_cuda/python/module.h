// The Python side of the simulated torch, built once against the limited API of CPython 3.8 so that one file
// serves 3.8 to 3.13.
#pragma once

#define Py_LIMITED_API 0x03080000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include "torch/operations.h"

namespace simulated_torch {

struct PyTensor {
  PyObject_HEAD at::TensorPtr* tensor;
};

extern PyTypeObject* g_base;       // torch._C.TensorBase
extern PyObject* g_class;          // torch.Tensor
extern PyObject* g_dtypes;         // list of torch.dtype objects
extern PyObject* g_device;         // torch.device
extern PyObject* g_out_of_memory;  // torch.cuda.OutOfMemoryError

bool IsTensor(PyObject* object);
const at::TensorPtr& Get(PyObject* tensor);
// A new reference to the Python object of a tensor; None for null.
PyObject* Wrap(const at::TensorPtr& tensor, PyObject* type = nullptr);

// Each returns false with a Python error set.
bool ParseShape(PyObject* object, at::Shape* shape);
bool ParseDevice(PyObject* object, int* device);
bool ParseKind(PyObject* object, at::Kind* kind);
PyObject* ShapeTuple(const at::Shape& shape);

// Runs `body`, turning C++ exceptions into Python's.
void SetErrorFromException();
template <typename Body>
PyObject* Guard(Body body) {
  try {
    return body();
  } catch (...) {
    SetErrorFromException();
    return nullptr;
  }
}

// tensor_type.cc
bool AddTensorType(PyObject* module);
// functions.cc, cuda_functions.cc
extern PyMethodDef kFunctions[];
extern PyMethodDef kCudaFunctions[];

}  // namespace simulated_torch
