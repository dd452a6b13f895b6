#include "recorder/census/python_api.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

namespace gpumemtrace::recorder::census {
namespace {

template <typename T>
bool Get(void* handle, const char* name, T* pointer) {
  void* symbol = dlsym(handle, name);
  memcpy(pointer, &symbol, sizeof symbol);
  return symbol != nullptr;
}

void FillHeap(void* handle, HeapApi* heap) {
  bool all = Get(handle, "PyList_Size", &heap->list_size);
  all &= Get(handle, "PyList_GetItem", &heap->list_get_item);
  all &= Get(handle, "PyTuple_GetItem", &heap->tuple_get_item);
  all &= Get(handle, "PyBytes_FromStringAndSize", &heap->bytes_from_string_and_size);
  all &= Get(handle, "PyType_IsSubtype", &heap->type_is_subtype);
  all &= Get(handle, "PyType_GetFlags", &heap->type_get_flags);
  all &= Get(handle, "PyType_GetSlot", &heap->type_get_slot);
  all &= Get(handle, "PyErr_NoMemory", &heap->no_memory);
  all &= Get(handle, "Py_GetVersion", &heap->get_version);
  all &= Get(handle, "PyType_Type", &heap->type_type);
  all &= Get(handle, "PyDict_Type", &heap->dict_type);
  all &= Get(handle, "PyList_Type", &heap->list_type);
  all &= Get(handle, "PyTuple_Type", &heap->tuple_type);
  Get(handle, "PyObject_GC_IsTracked", &heap->gc_is_tracked);
  heap->found = all;
}

bool Fill(void* handle, PythonApi* api) {
  if (!Get(handle, "Py_IsInitialized", &api->is_initialized)) return false;
  // Only builds without a GIL have it (Include/refcount.h): other threads would change what the census reads.
  if (dlsym(handle, "_Py_MergeZeroLocalRefcount") != nullptr) return false;
  bool all = Get(handle, "Py_AddPendingCall", &api->add_pending_call);
  all &= Get(handle, "PyDict_New", &api->dict_new);
  all &= Get(handle, "PyDict_SetItemString", &api->dict_set_item_string);
  all &= Get(handle, "PyDict_GetItemString", &api->dict_get_item_string);
  all &= Get(handle, "PyEval_GetBuiltins", &api->eval_get_builtins);
  all &= Get(handle, "Py_CompileString", &api->compile_string);
  all &= Get(handle, "PyEval_EvalCode", &api->eval_code);
  all &= Get(handle, "PyCFunction_NewEx", &api->cfunction_new);
  all &= Get(handle, "PyLong_FromLong", &api->long_from_long);
  all &= Get(handle, "PyLong_AsLong", &api->long_as_long);
  all &= Get(handle, "PyFloat_FromDouble", &api->float_from_double);
  all &= Get(handle, "PyFloat_AsDouble", &api->float_as_double);
  all &= Get(handle, "PyBool_FromLong", &api->bool_from_long);
  all &= Get(handle, "PyObject_IsTrue", &api->object_is_true);
  all &= Get(handle, "PyBytes_AsStringAndSize", &api->bytes_as_string_and_size);
  all &= Get(handle, "PyUnicode_FromString", &api->unicode_from_string);
  all &= Get(handle, "PyUnicode_AsUTF8String", &api->unicode_encode_utf8);
  all &= Get(handle, "PyList_New", &api->list_new);
  all &= Get(handle, "PyList_Append", &api->list_append);
  all &= Get(handle, "PyTuple_New", &api->tuple_new);
  all &= Get(handle, "PyTuple_SetItem", &api->tuple_set_item);
  all &= Get(handle, "PyObject_CallObject", &api->call_object);
  all &= Get(handle, "PyErr_Occurred", &api->error_occurred);
  all &= Get(handle, "PyErr_ExceptionMatches", &api->error_matches);
  all &= Get(handle, "PyErr_Clear", &api->error_clear);
  all &= Get(handle, "Py_DecRef", &api->decref);
  all &= Get(handle, "PyExc_Exception", &api->exception);
  const bool current = Get(handle, "PyInterpreterState_Get", &api->interpreter_get) ||
                       Get(handle, "_PyInterpreterState_Get", &api->interpreter_get);
  if (!current || !Get(handle, "PyInterpreterState_Main", &api->interpreter_main)) {
    api->interpreter_get = nullptr;
  }
  all &= Get(handle, "PyInterpreterState_Head", &api->interpreter_head);
  all &= Get(handle, "PyInterpreterState_Next", &api->interpreter_next);
  all &= Get(handle, "PySys_GetObject", &api->sys_get_object);
  FillHeap(handle, &api->heap);
  api->runtime_3_8 = nullptr;
  const char* (*version)() = nullptr;
  if (!Get(handle, "Py_GetVersion", &version)) return false;
  if (strncmp(version(), "3.8.", 4) == 0) all &= Get(handle, "_PyRuntime", &api->runtime_3_8);
  return all;
}

// An application may load libpython RTLD_LOCAL, and then the global scope does not show it.
struct Search {
  char path[PATH_MAX];
  int skip;
};

int FindLibpython(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  const char* path = info->dlpi_name;
  const char* slash = path == nullptr ? nullptr : strrchr(path, '/');
  if (slash == nullptr || strncmp(slash, "/libpython", 10) != 0 || strlen(path) >= sizeof search->path)
    return 0;
  if (search->skip-- > 0) return 0;
  strcpy(search->path, path);
  return 1;
}

// _PyRuntime of 3.8 as far as it matters here (Include/internal/pycore_pystate.h), the same in all of 3.8.
struct Runtime38 {
  int preinitializing, preinitialized, core_initialized, initialized;
  void* finalizing;
  void* interpreters_mutex;
  void* interpreters_head;
  void* interpreters_main;
  char between[536];
  int recursion_limit, tracing_possible, eval_breaker, gil_drop_request;
  // ceval.pending.finishing: set before the first atexit callback runs.
  int finishing;
  void* lock;
};
static_assert(sizeof(void*) != 8 || offsetof(Runtime38, finishing) == 600);

}  // namespace

bool MayAddPendingCall(const PythonApi& api) {
  if (api.is_initialized() == 0) return false;
  if (api.runtime_3_8 == nullptr) return true;
  const volatile auto* runtime = static_cast<const volatile Runtime38*>(api.runtime_3_8);
  // Looks like what it should be, and nothing is over.
  return runtime->initialized == 1 && runtime->interpreters_main != nullptr && runtime->recursion_limit > 0 &&
         runtime->lock != nullptr && runtime->finalizing == nullptr && runtime->finishing == 0;
}

bool FindPython(PythonApi* api) {
  if (Fill(RTLD_DEFAULT, api)) return true;
  for (int nth = 0; nth < 8; ++nth) {
    Search search;
    search.skip = nth;
    if (dl_iterate_phdr(FindLibpython, &search) == 0) return false;
    // The handle is kept: what it names must stay loaded while we may call it.
    void* handle = dlopen(search.path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    if (Fill(handle, api)) return true;
    dlclose(handle);
  }
  return false;
}

}  // namespace gpumemtrace::recorder::census
