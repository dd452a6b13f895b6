#include "recorder/stacks/python_interpreter.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "recorder/stacks/eh_frame.h"
#include "recorder/stacks/lock.h"
#include "recorder/stacks/python_code_frees.h"

namespace gpumemtrace::recorder::stacks {
namespace {

// What one loaded object exports of the interpreter.
struct Symbols {
  void* this_thread_state = nullptr;
  void* code_type = nullptr;
  void* version = nullptr;      // Py_Version, 3.11 and later
  void* get_version = nullptr;  // Py_GetVersion
  void* runtime = nullptr;
  void* evaluate = nullptr;
};

Symbols Lookup(void* handle) {
  Symbols symbols;
  symbols.this_thread_state = dlsym(handle, "PyGILState_GetThisThreadState");
  if (symbols.this_thread_state == nullptr) return symbols;
  symbols.code_type = dlsym(handle, "PyCode_Type");
  symbols.version = dlsym(handle, "Py_Version");
  symbols.get_version = dlsym(handle, "Py_GetVersion");
  symbols.runtime = dlsym(handle, "_PyRuntime");
  symbols.evaluate = dlsym(handle, "_PyEval_EvalFrameDefault");
  return symbols;
}

// Paths of loaded objects whose file name says Python: an application may load libpython RTLD_LOCAL, and
// then the global scope does not show it.
struct Candidates {
  static constexpr int kMost = 16;
  char path[kMost][PATH_MAX];
  int count = 0;
};

int CollectCandidate(dl_phdr_info* info, size_t, void* data) {
  auto* candidates = static_cast<Candidates*>(data);
  const char* path = info->dlpi_name;
  if (path == nullptr || *path == '\0' || candidates->count == Candidates::kMost) return 0;
  const char* slash = std::strrchr(path, '/');
  const char* name = slash != nullptr ? slash + 1 : path;
  const size_t length = std::strlen(path);
  if (std::strstr(name, "python") == nullptr || length >= PATH_MAX) return 0;
  std::memcpy(candidates->path[candidates->count++], path, length + 1);
  return 0;
}

Symbols LookupInLocalObjects() {
  // Too large for the stack of a small thread.
  auto* candidates = static_cast<Candidates*>(std::malloc(sizeof(Candidates)));
  Symbols symbols;
  if (candidates == nullptr) return symbols;
  candidates->count = 0;
  dl_iterate_phdr(CollectCandidate, candidates);
  for (int i = 0; i < candidates->count && symbols.this_thread_state == nullptr; ++i) {
    void* handle = dlopen(candidates->path[i], RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    symbols = Lookup(handle);
    // The handle of the interpreter is kept: its code must stay where we call it.
    if (symbols.this_thread_state == nullptr) dlclose(handle);
  }
  std::free(candidates);
  return symbols;
}

// PY_VERSION_HEX from the text that Py_GetVersion returns ("3.8.18 (default, …"); 0 = not understood.
uint32_t ParseVersion(const char* text) {
  unsigned part[3] = {0, 0, 0};
  for (unsigned& number : part) {
    if (*text < '0' || *text > '9') return 0;
    while (*text >= '0' && *text <= '9') number = number * 10 + static_cast<unsigned>(*text++ - '0');
    if (number > 255) return 0;
    if (*text == '.') ++text;
  }
  return part[0] << 24 | part[1] << 16 | part[2] << 8 | 0xf0;
}

PythonInterpreter Examine(const Symbols& symbols) {
  PythonInterpreter found;
  if (symbols.this_thread_state == nullptr) return found;
  const char* text = nullptr;
  if (symbols.get_version != nullptr) {
    text = reinterpret_cast<const char* (*)()>(symbols.get_version)();
  }
  uint32_t version = 0;
  if (symbols.version != nullptr) {
    unsigned long value;
    std::memcpy(&value, symbols.version, sizeof(value));
    version = static_cast<uint32_t>(value);
  } else if (text != nullptr) {
    version = ParseVersion(text);
  }
  found.facts.version = version;
  if (version == 0 || text == nullptr) {
    found.facts.reason = "the interpreter does not tell its version";
    return found;
  }
  if (std::strstr(text, "PyPy") != nullptr || std::strstr(text, "Graal") != nullptr) {
    found.facts.reason = "the interpreter is not CPython";
    return found;
  }
  found.facts.free_threaded = std::strstr(text, "free-threading build") != nullptr;
  const PythonLayout* layout = FindPythonLayout(version, found.facts.free_threaded);
  if (layout == nullptr) {
    found.facts.reason = "this version of CPython is not one whose frames we know (3.8 to 3.14)";
    return found;
  }
  if (symbols.code_type == nullptr) {
    found.facts.reason = "the interpreter does not export PyCode_Type";
    return found;
  }
  if (const char* problem = CheckPythonLayout(*layout, symbols.code_type, symbols.runtime, version)) {
    found.facts.reason = problem;
    return found;
  }
  found.facts.supported = true;
  found.layout = layout;
  found.walk = FindPythonWalk(*layout);
  found.this_thread_state = reinterpret_cast<void* (*)()>(symbols.this_thread_state);
  found.code_type = symbols.code_type;
  if (symbols.evaluate != nullptr) {
    const CodeRange loop = FindFunction(reinterpret_cast<uint64_t>(symbols.evaluate));
    found.evaluation_start = loop.start;
    found.evaluation_end = loop.end;
  }
  return found;
}

bool Same(const PythonInterpreter& a, const PythonInterpreter& b) {
  return a.facts.version == b.facts.version && a.facts.free_threaded == b.facts.free_threaded &&
         a.facts.supported == b.facts.supported && a.this_thread_state == b.this_thread_state &&
         a.code_type == b.code_type && a.evaluation_start == b.evaluation_start;
}

// Published interpreters are never changed or freed, since a thread may be walking with them. A process
// that replaces its interpreter more often than this keeps the last.
constexpr int kMostInterpreters = 8;
PythonInterpreter g_interpreters[kMostInterpreters];
int g_used = 0;
constinit std::atomic<const PythonInterpreter*> g_current{nullptr};
constinit ColdLock g_lock;

}  // namespace

bool FindInterpreter() {
  Symbols symbols = Lookup(RTLD_DEFAULT);
  if (symbols.this_thread_state == nullptr) symbols = LookupInLocalObjects();
  const PythonInterpreter found = Examine(symbols);
  // Takes the loader's lock, so not with ours.
  if (found.facts.supported) BeginToCountCodeFrees(*found.layout, found.code_type);
  const ColdLockGuard guard(g_lock);
  const PythonInterpreter* current = g_current.load(std::memory_order_acquire);
  if (current == nullptr ? found.facts.version == 0 && found.facts.reason[0] == '\0'
                         : Same(found, *current)) {
    return false;
  }
  if (g_used == kMostInterpreters) return false;
  g_interpreters[g_used] = found;
  g_current.store(&g_interpreters[g_used++], std::memory_order_release);
  return true;
}

void ResetInterpreterAfterFork() {
  g_lock.ResetAfterFork();
}

const PythonInterpreter* CurrentInterpreter() {
  const PythonInterpreter* current = g_current.load(std::memory_order_acquire);
  return current != nullptr && current->facts.supported ? current : nullptr;
}

InterpreterFacts CurrentInterpreterFacts() {
  const PythonInterpreter* current = g_current.load(std::memory_order_acquire);
  return current != nullptr ? current->facts : InterpreterFacts{};
}

}  // namespace gpumemtrace::recorder::stacks
