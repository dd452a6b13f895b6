// Lets one shim, built on a new distribution, load on an old one: glibc 2.34 moved libpthread and libdl into
// libc under a new version, 2.33 made stat a function, and a plain link asks for these. Each function below
// stands in for its namesake in the whole shim (linked with --wrap) and calls the version that every glibc
// has had since the beginning of the architecture.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#define THREAD_NAMES "GLIBC_2.12"
#define DLINFO "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#define THREAD_NAMES "GLIBC_2.17"
#define DLINFO "GLIBC_2.17"
#else
#error "unknown architecture: which glibc version is its first?"
#endif

// clang-format off
#define FORWARD(version, result, name, parameters, arguments)                  \
  result gpumemtrace_old_##name parameters;                                    \
  __asm__(".symver gpumemtrace_old_" #name "," #name "@" version);             \
  result __wrap_##name parameters;                                             \
  result __wrap_##name parameters { return gpumemtrace_old_##name arguments; }

FORWARD(OLDEST, char*, dlerror, (void), ())
FORWARD(OLDEST, int, dladdr, (const void* address, Dl_info* info), (address, info))
FORWARD(DLINFO, int, dlinfo, (void* handle, int request, void* answer), (handle, request, answer))
FORWARD(DLINFO, int, dladdr1, (const void* address, Dl_info* info, void** extra, int flags), (address, info, extra, flags))
FORWARD(OLDEST, int, pthread_create, (pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument),
        (thread, attributes, run, argument))
FORWARD(OLDEST, int, pthread_join, (pthread_t thread, void** result), (thread, result))
FORWARD(OLDEST, int, pthread_detach, (pthread_t thread), (thread))
FORWARD(OLDEST, int, pthread_once, (pthread_once_t* once, void (*run)(void)), (once, run))
FORWARD(OLDEST, int, pthread_sigmask, (int how, const sigset_t* set, sigset_t* old), (how, set, old))
FORWARD(OLDEST, int, pthread_kill, (pthread_t thread, int signal), (thread, signal))
FORWARD(OLDEST, int, pthread_key_create, (pthread_key_t* key, void (*destroy)(void*)), (key, destroy))
FORWARD(OLDEST, int, pthread_key_delete, (pthread_key_t key), (key))
FORWARD(OLDEST, void*, pthread_getspecific, (pthread_key_t key), (key))
FORWARD(OLDEST, int, pthread_setspecific, (pthread_key_t key, const void* value), (key, value))
FORWARD(OLDEST, int, pthread_mutex_trylock, (pthread_mutex_t* mutex), (mutex))
FORWARD(OLDEST, int, pthread_getattr_np, (pthread_t thread, pthread_attr_t* attributes), (thread, attributes))
FORWARD(OLDEST, int, pthread_attr_getstack, (const pthread_attr_t* attributes, void** start, size_t* size), (attributes, start, size))
FORWARD(OLDEST, int, pthread_attr_setstacksize, (pthread_attr_t* attributes, size_t size), (attributes, size))
FORWARD(THREAD_NAMES, int, pthread_setname_np, (pthread_t thread, const char* name), (thread, name))
FORWARD(THREAD_NAMES, int, pthread_getname_np, (pthread_t thread, char* name, size_t size), (thread, name, size))
// clang-format on

// The kernel fills the same struct stat as glibc's on 64-bit machines.
int __wrap_fstatat(int folder, const char* path, struct stat* status, int flags);
int __wrap_fstatat(int folder, const char* path, struct stat* status, int flags) {
  return (int)syscall(SYS_newfstatat, folder, path, status, flags);
}
int __wrap_stat(const char* path, struct stat* status);
int __wrap_stat(const char* path, struct stat* status) {
  return __wrap_fstatat(AT_FDCWD, path, status, 0);
}
int __wrap_lstat(const char* path, struct stat* status);
int __wrap_lstat(const char* path, struct stat* status) {
  return __wrap_fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
int __wrap_fstat(int fd, struct stat* status);
int __wrap_fstat(int fd, struct stat* status) {
  return (int)syscall(SYS_fstat, fd, status);
}

int gpumemtrace_old_fcntl(int fd, int command, ...);
__asm__(".symver gpumemtrace_old_fcntl,fcntl@" OLDEST);
int __wrap_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return gpumemtrace_old_fcntl(fd, command, argument);
}

pid_t __wrap_gettid(void);
pid_t __wrap_gettid(void) {
  return (pid_t)syscall(SYS_gettid);
}
ssize_t __wrap_getrandom(void* bytes, size_t count, unsigned flags);
ssize_t __wrap_getrandom(void* bytes, size_t count, unsigned flags) {
  return syscall(SYS_getrandom, bytes, count, flags);
}
int __wrap_memfd_create(const char* name, unsigned flags);
int __wrap_memfd_create(const char* name, unsigned flags) {
  return (int)syscall(SYS_memfd_create, name, flags);
}

// libgcc asks by this name whether there are threads; libstdc++ whether there is only one. Always "there
// are".
int __wrap___pthread_key_create(pthread_key_t* key, void (*destroy)(void*));
int __wrap___pthread_key_create(pthread_key_t* key, void (*destroy)(void*)) {
  return __wrap_pthread_key_create(key, destroy);
}
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

// Part of unwinding exceptions in libgcc, which the shim never does; −1 means "not found".
int __wrap__dl_find_object(void* address, void* result);
int __wrap__dl_find_object(void* address, void* result) {
  (void)address;
  (void)result;
  return -1;
}
