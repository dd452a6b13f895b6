// In the wholly static gpumem-analyze, dlopen finds nothing: libdw would open libdebuginfod when it is
// loaded, and with it the machine's own glibc beside ours, which crashes where the versions differ. Linked
// with --wrap=dlopen.
#include <stddef.h>

void* __wrap_dlopen(const char* file, int mode);

void* __wrap_dlopen(const char* file, int mode) {
  (void)file;
  (void)mode;
  return NULL;
}
