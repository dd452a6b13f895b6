// The functions of CPython's C interface that the census calls, found in the process at run time: the shim
// links no libpython. All are part of the stable ABI or unchanged from 3.8 to 3.14.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumemtrace::recorder::census {

struct PyObject;  // opaque

using PyFunction = PyObject* (*)(PyObject* self, PyObject* argument);

// PyMethodDef of methodobject.h.
struct PyMethod {
  const char* name;
  PyFunction function;
  int flags;
  const char* doc;
};
constexpr int kOneArgument = 0x0008;  // METH_O
constexpr int kFileInput = 257;       // Py_file_input

// What the walk in C needs besides (heap_walk.h); not part of the stable ABI throughout, so optional.
struct HeapApi {
  bool found = false;
  std::ptrdiff_t (*list_size)(PyObject* list);
  PyObject* (*list_get_item)(PyObject* list, std::ptrdiff_t place);    // borrowed
  PyObject* (*tuple_get_item)(PyObject* tuple, std::ptrdiff_t place);  // borrowed
  PyObject* (*bytes_from_string_and_size)(const char* data, std::ptrdiff_t size);
  int (*type_is_subtype)(const PyObject* type, const PyObject* base);
  unsigned long (*type_get_flags)(const PyObject* type);
  void* (*type_get_slot)(const PyObject* type, int slot);
  PyObject* (*no_memory)();  // sets MemoryError
  const char* (*get_version)();
  const PyObject* type_type;
  const PyObject* dict_type;
  const PyObject* list_type;
  const PyObject* tuple_type;
  // Null before 3.9.
  int (*gc_is_tracked)(PyObject* object);
};

struct PythonApi {
  int (*is_initialized)();
  int (*add_pending_call)(int (*function)(void*), void* argument);
  PyObject* (*dict_new)();
  int (*dict_set_item_string)(PyObject* dict, const char* key, PyObject* value);
  PyObject* (*dict_get_item_string)(PyObject* dict, const char* key);  // borrowed
  PyObject* (*eval_get_builtins)();                                    // borrowed
  PyObject* (*compile_string)(const char* source, const char* file, int start);
  PyObject* (*eval_code)(PyObject* code, PyObject* globals, PyObject* locals);
  PyObject* (*cfunction_new)(PyMethod* method, PyObject* self, PyObject* module);
  PyObject* (*long_from_long)(long value);
  long (*long_as_long)(PyObject* value);
  PyObject* (*float_from_double)(double value);
  double (*float_as_double)(PyObject* value);
  PyObject* (*bool_from_long)(long value);
  int (*object_is_true)(PyObject* value);
  int (*bytes_as_string_and_size)(PyObject* bytes, char** data, std::ptrdiff_t* size);
  PyObject* (*unicode_from_string)(const char* text);
  PyObject* (*unicode_encode_utf8)(PyObject* text);
  PyObject* (*list_new)(std::ptrdiff_t size);
  int (*list_append)(PyObject* list, PyObject* value);
  PyObject* (*tuple_new)(std::ptrdiff_t size);
  int (*tuple_set_item)(PyObject* tuple, std::ptrdiff_t place, PyObject* value);  // steals
  PyObject* (*call_object)(PyObject* function, PyObject* arguments);
  PyObject* (*error_occurred)();  // borrowed
  int (*error_matches)(PyObject* type);
  void (*error_clear)();
  void (*decref)(PyObject* value);
  PyObject** exception;  // &PyExc_Exception
  // Null when one of them is missing. 3.8 has the first under another name.
  void* (*interpreter_get)();
  void* (*interpreter_main)();
  void* (*interpreter_head)();
  void* (*interpreter_next)(void* interpreter);
  PyObject* (*sys_get_object)(const char* name);  // borrowed
  // 3.8 only, else null: &_PyRuntime.
  const void* runtime_3_8 = nullptr;
  HeapApi heap;
};

// Fills `api` from whatever interpreter the process has loaded; false when there is none or one without
// something that is needed, or one without a GIL. Takes the loader's lock: not for the warm path.
bool FindPython(PythonApi* api);

// False when the interpreter is on its way down. From any thread, without the GIL.
//
// Py_AddPendingCall of 3.8 must not be called then: it wants to raise an error, in whatever thread holds the
// GIL, and reads through a null pointer when none does (Python/ceval.c, _PyEval_AddPendingCall; gone in 3.9).
bool MayAddPendingCall(const PythonApi& api);

}  // namespace gpumemtrace::recorder::census
