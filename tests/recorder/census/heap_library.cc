// The walk in C as a library that the tests load into each interpreter (load.py): what the recorder puts into
// the census's namespace, without the recorder. Called through ctypes.PyDLL, with the GIL.
#include "recorder/census/heap_walk.h"

namespace {

using gpumemtrace::recorder::census::PyObject;
using gpumemtrace::recorder::census::PythonApi;

PythonApi api;

}  // namespace

#define GPUMEMTRACE_TEST_EXPORT extern "C" __attribute__((visibility("default")))

GPUMEMTRACE_TEST_EXPORT int gpumemtrace_test_prepare() {
  return FindPython(&api) && PrepareHeap(api) ? 1 : 0;
}

GPUMEMTRACE_TEST_EXPORT PyObject* gpumemtrace_test_select(PyObject* arguments) {
  return gpumemtrace::recorder::census::SelectObjects(nullptr, arguments);
}

GPUMEMTRACE_TEST_EXPORT PyObject* gpumemtrace_test_walk(PyObject* arguments) {
  return gpumemtrace::recorder::census::WalkHeap(nullptr, arguments);
}

GPUMEMTRACE_TEST_EXPORT PyObject* gpumemtrace_test_hidden(PyObject* arguments) {
  return gpumemtrace::recorder::census::HiddenObjects(nullptr, arguments);
}
