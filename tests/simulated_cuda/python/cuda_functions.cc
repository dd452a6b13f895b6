// torch.cuda: statistics, streams, graphs, pools.
#include "c10/allocator.h"
#include "module.h"
#include "newest_cuda_runtime.h"

namespace simulated_torch {
namespace {

namespace allocator = c10::cuda::allocator;

PyObject* DeviceCount(PyObject*, PyObject*) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  return PyLong_FromLong(count);
}
PyObject* SetDevice(PyObject*, PyObject* argument) {
  int device = 0;
  if (!ParseDevice(argument, &device)) return nullptr;
  if (cudaSetDevice(device) != cudaSuccess) {
    PyErr_SetString(PyExc_RuntimeError, "CUDA error: invalid device ordinal");
    return nullptr;
  }
  Py_RETURN_NONE;
}
PyObject* CurrentDevice(PyObject*, PyObject*) {
  int device = 0;
  cudaGetDevice(&device);
  return PyLong_FromLong(device);
}
PyObject* Statistics(PyObject*, PyObject* argument) {
  const allocator::Statistics s = allocator::GetStatistics(static_cast<int>(PyLong_AsLong(argument)));
  return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n}", "allocated_bytes.all.current",
                       static_cast<Py_ssize_t>(s.allocated), "allocated_bytes.all.peak",
                       static_cast<Py_ssize_t>(s.allocated_peak), "reserved_bytes.all.current",
                       static_cast<Py_ssize_t>(s.reserved), "reserved_bytes.all.peak",
                       static_cast<Py_ssize_t>(s.reserved_peak), "requested_bytes.all.current",
                       static_cast<Py_ssize_t>(s.requested), "segment.all.current",
                       static_cast<Py_ssize_t>(s.segments), "num_ooms",
                       static_cast<Py_ssize_t>(s.out_of_memory), "num_alloc_retries",
                       static_cast<Py_ssize_t>(s.retries));
}
PyObject* ResetPeak(PyObject*, PyObject* argument) {
  allocator::ResetPeak(static_cast<int>(PyLong_AsLong(argument)));
  Py_RETURN_NONE;
}
PyObject* EmptyCache(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS allocator::EmptyCache();
  Py_END_ALLOW_THREADS Py_RETURN_NONE;
}
PyObject* Synchronize(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS cudaDeviceSynchronize();
  Py_END_ALLOW_THREADS Py_RETURN_NONE;
}
PyObject* MemGetInfo(PyObject*, PyObject*) {
  size_t free_bytes = 0;
  size_t total = 0;
  cudaMemGetInfo(&free_bytes, &total);
  return Py_BuildValue("nn", static_cast<Py_ssize_t>(free_bytes), static_cast<Py_ssize_t>(total));
}
PyObject* BackendName(PyObject*, PyObject*) {
  return PyUnicode_FromString(allocator::BackendName());
}
PyObject* HostAllocate(PyObject*, PyObject* argument) {
  void* pointer = nullptr;
  if (cudaHostAlloc(&pointer, PyLong_AsSize_t(argument), 0) != cudaSuccess) return PyErr_NoMemory();
  return PyLong_FromVoidPtr(pointer);
}

PyObject* StreamCreate(PyObject*, PyObject*) {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
    PyErr_SetString(PyExc_RuntimeError, "CUDA error: cannot create a stream");
    return nullptr;
  }
  return PyLong_FromVoidPtr(stream);
}
PyObject* SetStream(PyObject*, PyObject* arguments) {
  long long stream = 0;
  int device = 0;
  if (!PyArg_ParseTuple(arguments, "Li", &stream, &device)) return nullptr;
  c10::cuda::setCurrentCUDAStream({{{c10::DeviceType::CUDA, static_cast<int8_t>(device)}, stream}});
  Py_RETURN_NONE;
}
PyObject* CurrentStream(PyObject*, PyObject* argument) {
  const auto device = static_cast<int8_t>(PyLong_AsLong(argument));
  return PyLong_FromLongLong(c10::cuda::getCurrentCUDAStream(device).stream.id);
}
PyObject* StreamSynchronize(PyObject*, PyObject* argument) {
  const auto stream = reinterpret_cast<cudaStream_t>(PyLong_AsLongLong(argument));
  Py_BEGIN_ALLOW_THREADS cudaStreamSynchronize(stream);
  Py_END_ALLOW_THREADS Py_RETURN_NONE;
}
PyObject* RecordStream(PyObject*, PyObject* arguments) {
  PyObject* tensor = nullptr;
  long long stream = 0;
  if (!PyArg_ParseTuple(arguments, "OL", &tensor, &stream)) return nullptr;
  allocator::RecordStream(Get(tensor)->storage->data, stream);
  Py_RETURN_NONE;
}

PyObject* GraphBegin(PyObject*, PyObject* arguments) {
  unsigned long long pool = 0;
  long long stream = 0;
  int device = 0;
  if (!PyArg_ParseTuple(arguments, "KLi", &pool, &stream, &device)) return nullptr;
  allocator::BeginPrivatePool(device, pool, stream);
  cudaStreamBeginCapture(reinterpret_cast<cudaStream_t>(stream), cudaStreamCaptureModeGlobal);
  Py_RETURN_NONE;
}
PyObject* GraphEnd(PyObject*, PyObject* arguments) {
  unsigned long long pool = 0;
  long long stream = 0;
  int device = 0;
  if (!PyArg_ParseTuple(arguments, "KLi", &pool, &stream, &device)) return nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaStreamEndCapture(reinterpret_cast<cudaStream_t>(stream), &graph);
  allocator::EndPrivatePool(device, pool);
  if (graph == nullptr || cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
    PyErr_SetString(PyExc_RuntimeError, "CUDA graph capture failed");
    return nullptr;
  }
  cudaGraphDestroy(graph);
  return PyLong_FromVoidPtr(exec);
}
PyObject* GraphLaunch(PyObject*, PyObject* arguments) {
  long long exec = 0;
  long long stream = 0;
  if (!PyArg_ParseTuple(arguments, "LL", &exec, &stream)) return nullptr;
  cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(exec), reinterpret_cast<cudaStream_t>(stream));
  Py_RETURN_NONE;
}
PyObject* GraphReset(PyObject*, PyObject* arguments) {
  unsigned long long pool = 0;
  long long exec = 0;
  int device = 0;
  if (!PyArg_ParseTuple(arguments, "KLi", &pool, &exec, &device)) return nullptr;
  cudaGraphExecDestroy(reinterpret_cast<cudaGraphExec_t>(exec));
  allocator::ReleasePrivatePool(device, pool);
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef kCudaFunctions[] = {{"_cuda_getDeviceCount", DeviceCount, METH_NOARGS, nullptr},
                                {"_cuda_setDevice", SetDevice, METH_O, nullptr},
                                {"_cuda_getDevice", CurrentDevice, METH_NOARGS, nullptr},
                                {"_cuda_memoryStats", Statistics, METH_O, nullptr},
                                {"_cuda_resetPeakMemoryStats", ResetPeak, METH_O, nullptr},
                                {"_cuda_emptyCache", EmptyCache, METH_NOARGS, nullptr},
                                {"_cuda_synchronize", Synchronize, METH_NOARGS, nullptr},
                                {"_cuda_memGetInfo", MemGetInfo, METH_NOARGS, nullptr},
                                {"_cuda_getAllocatorBackend", BackendName, METH_NOARGS, nullptr},
                                {"_cuda_hostAlloc", HostAllocate, METH_O, nullptr},
                                {"_cuda_streamCreate", StreamCreate, METH_NOARGS, nullptr},
                                {"_cuda_setStream", SetStream, METH_VARARGS, nullptr},
                                {"_cuda_getCurrentStream", CurrentStream, METH_O, nullptr},
                                {"_cuda_streamSynchronize", StreamSynchronize, METH_O, nullptr},
                                {"_cuda_recordStream", RecordStream, METH_VARARGS, nullptr},
                                {"_cuda_graphBegin", GraphBegin, METH_VARARGS, nullptr},
                                {"_cuda_graphEnd", GraphEnd, METH_VARARGS, nullptr},
                                {"_cuda_graphLaunch", GraphLaunch, METH_VARARGS, nullptr},
                                {"_cuda_graphReset", GraphReset, METH_VARARGS, nullptr},
                                {nullptr, nullptr, 0, nullptr}};

}  // namespace simulated_torch
