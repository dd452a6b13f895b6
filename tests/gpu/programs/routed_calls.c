// Preloaded in front of the shim: hands the calls of PyTorch's allocator, autograd and streams to the shim,
// or past it to the library behind, as route_past_shim() says; so one process can be measured with and
// without recording in turn, and two processes' layouts in memory, which differ by percents of a step, do not
// come into it. Called through ctypes by tests/gpu/workloads/torch_steps.py. Kernel launches go through the
// shim either way.
//   cc -shared -fPIC -O2 -o routed_calls.so routed_calls.c -ldl
#include "torch_calls.h"

// Which of a function's two definitions is called: the shim's (0), or the library's own (1).
static int past;

void route_past_shim(int yes);
void route_past_shim(int yes) {
  past = yes;
}

// Both definitions of a function; they are the same where there is no shim.
typedef struct {
  void* definition[2];
} Routes;

static void find(Routes* routes, const char* library, const char* symbol) {
  routes->definition[0] = find_next(library, symbol);
  routes->definition[1] = find_in(library, symbol);
}

void report(void* pointer, int64_t size, uint64_t allocated, uint64_t reserved, uint16_t device) {
  static Routes routes;
  if (routes.definition[0] == NULL) find(&routes, "libc10.so", REPORT_SYMBOL);
  ((Report*)routes.definition[past])(pointer, size, allocated, reserved, device);
}

uint64_t next(void) {
  static Routes routes;
  if (routes.definition[0] == NULL) find(&routes, "libtorch_cpu.so", NEXT_SYMBOL);
  return ((Next*)routes.definition[past])();
}

void set_stream(Stream stream) {
  static Routes routes;
  if (routes.definition[0] == NULL) find(&routes, "libc10_cuda.so", SET_STREAM_SYMBOL);
  ((SetStream*)routes.definition[past])(stream);
}
