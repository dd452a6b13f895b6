// A program that loads an interpreter where the global scope does not show it, runs Python in it and looks at
// the stacks from inside: no extension module is needed, a signal handler is called in the middle of Python.
//
// usage: embedding_host PROBE.so LIBPYTHON.so SCRIPT_TEXT
#include <dlfcn.h>
#include <signal.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

uint64_t (*g_capture)(int native, int most_native, int most_python);
size_t (*g_text)(uint64_t number, char* out, size_t size);

template <typename Function>
void Find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) {
    std::fprintf(stderr, "%s: %s\n", name, dlerror());
    std::exit(2);
  }
}

void Look(int) {
  const uint64_t number = g_capture(2, 128, 256);
  std::vector<char> text(g_text(number, nullptr, 0) + 1);
  g_text(number, text.data(), text.size());
  std::printf("stack\n%s", text.data());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  void* probe = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (probe == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  int (*prepare)();
  int (*supported)();
  void (*modules_changed)();
  Find(probe, "probe_prepare", prepare);
  Find(probe, "probe_supported", supported);
  Find(probe, "probe_modules_changed", modules_changed);
  Find(probe, "probe_capture", g_capture);
  Find(probe, "probe_text", g_text);
  int changed = prepare();
  std::printf("without interpreter: changed %d, supported %d\n", changed, supported());

  void* python = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
  if (python == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  modules_changed();
  changed = prepare();
  std::printf("with interpreter: changed %d, supported %d\n", changed, supported());
  std::printf("again: changed %d\n", prepare());
  signal(SIGUSR1, Look);
  Look(0);  // before Py_Initialize
  void (*initialize)();
  int (*run)(const char*);
  int (*finalize)();
  Find(python, "Py_Initialize", initialize);
  Find(python, "PyRun_SimpleString", run);
  Find(python, "Py_FinalizeEx", finalize);
  initialize();
  const int status = run(argv[3]);
  finalize();
  Look(0);  // after it
  std::printf("status %d\n", status);
  return 0;
}
