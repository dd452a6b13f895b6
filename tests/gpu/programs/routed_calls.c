// Preloaded in front of the shim: hands the calls of PyTorch's allocator, autograd and streams to the shim,
// or past it to the library behind, as route_past_shim() says; so one process can be measured with and
// without recording in turn, and two processes' layouts in memory, which differ by percents of a step, do not
// come into it. Called through ctypes by tests/gpu/workloads/torch_steps.py. Kernel launches go through the
// shim either way.
//   cc -shared -fPIC -O2 -o routed_calls.so routed_calls.c -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  int64_t a;
  int64_t b;
} Two;
typedef void Report(void* pointer, int64_t size, uint64_t allocated, uint64_t reserved, uint16_t device);
typedef uint64_t Next(void);
typedef void SetStream(Two stream);

#define REPORT "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
#define NEXT "_ZN2at15sequence_number17get_and_incrementEv"
#define SET_STREAM "_ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE"

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

static void find(Routes* routes, const char* symbol, const char* library) {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  routes->definition[1] = handle != NULL ? dlsym(handle, symbol) : NULL;
  routes->definition[0] = dlsym(RTLD_NEXT, symbol);
  if (routes->definition[0] == NULL) routes->definition[0] = routes->definition[1];
}

void report(void* pointer, int64_t size, uint64_t allocated, uint64_t reserved,
            uint16_t device) __asm__(REPORT);
void report(void* pointer, int64_t size, uint64_t allocated, uint64_t reserved, uint16_t device) {
  static Routes routes;
  if (routes.definition[0] == NULL) find(&routes, REPORT, "libc10.so");
  ((Report*)routes.definition[past])(pointer, size, allocated, reserved, device);
}

uint64_t next(void) __asm__(NEXT);
uint64_t next(void) {
  static Routes routes;
  if (routes.definition[0] == NULL) find(&routes, NEXT, "libtorch_cpu.so");
  return ((Next*)routes.definition[past])();
}

void set_stream(Two stream) __asm__(SET_STREAM);
void set_stream(Two stream) {
  static Routes routes;
  if (routes.definition[0] == NULL) find(&routes, SET_STREAM, "libc10_cuda.so");
  ((SetStream*)routes.definition[past])(stream);
}
