#include "recorder/system.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace gpumemtrace::recorder::sys {
namespace {

int64_t Result(long result) {
  return result < 0 ? -errno : result;
}

uint64_t Now(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

int Open(const char* path, int flags, mode_t mode) {
  return static_cast<int>(Result(syscall(SYS_openat, AT_FDCWD, path, flags, mode)));
}
int Close(int fd) {
  return static_cast<int>(Result(syscall(SYS_close, fd)));
}
int64_t Write(int fd, const void* data, size_t bytes) {
  return Result(syscall(SYS_write, fd, data, bytes));
}
int64_t Read(int fd, void* data, size_t bytes) {
  return Result(syscall(SYS_read, fd, data, bytes));
}
int64_t ReadAt(int fd, void* data, size_t bytes, uint64_t offset) {
  return Result(syscall(SYS_pread64, fd, data, bytes, offset));
}
int Rename(const char* from, const char* to) {
  return static_cast<int>(Result(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to)));
}
int Truncate(int fd, uint64_t bytes) {
  return static_cast<int>(Result(syscall(SYS_ftruncate, fd, bytes)));
}
int TruncateNamed(const char* path, uint64_t bytes) {
  return static_cast<int>(Result(syscall(SYS_truncate, path, bytes)));
}
int Allocate(int fd, uint64_t offset, uint64_t bytes) {
  // The system call itself: glibc's posix_fallocate emulates it by writing where a file system cannot.
  return static_cast<int>(Result(syscall(SYS_fallocate, fd, 0, offset, bytes)));
}
int Status(int fd, struct stat* status) {
  return fstat(fd, status) == 0 ? 0 : -errno;
}
int StatusNamed(const char* path, struct stat* status) {
  return static_cast<int>(Result(syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW)));
}
int Unlink(const char* path) {
  return static_cast<int>(Result(syscall(SYS_unlinkat, AT_FDCWD, path, 0)));
}
int DuplicateAbove(int fd, int lowest) {
  return static_cast<int>(Result(syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, lowest)));
}
uint32_t ThreadId() {
  return static_cast<uint32_t>(syscall(SYS_gettid));
}
bool ThreadExists(uint32_t tid) {
  return Result(syscall(SYS_tgkill, getpid(), tid, 0)) != -ESRCH;
}

void FutexWait(const uint32_t* word, uint32_t expected, uint64_t timeout_ns) {
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000u);
  timeout.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000u);
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &timeout, nullptr, 0);
}
void FutexWake(const uint32_t* word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

uint64_t MonotonicNs() {
  return Now(CLOCK_MONOTONIC);
}
uint64_t TickNs() {
  return Now(CLOCK_MONOTONIC_COARSE);
}
uint64_t NsBetweenTicks() {
  timespec between{};
  if (clock_getres(CLOCK_MONOTONIC_COARSE, &between) != 0 || between.tv_sec != 0) return 0;
  return static_cast<uint64_t>(between.tv_nsec);
}
uint64_t RealtimeNs() {
  return Now(CLOCK_REALTIME);
}

size_t ReadFile(const char* path, char* buffer, size_t capacity) {
  if (capacity == 0) return 0;
  size_t length = 0;
  const int fd = Open(path, O_RDONLY | O_CLOEXEC, 0);
  if (fd >= 0) {
    while (length < capacity - 1) {
      const int64_t got = Read(fd, buffer + length, capacity - 1 - length);
      if (got == -EINTR) continue;
      if (got <= 0) break;
      length += static_cast<size_t>(got);
    }
    Close(fd);
  }
  buffer[length] = '\0';
  return length;
}

uint64_t RandomNumber() {
  uint64_t number = 0;
  if (syscall(SYS_getrandom, &number, sizeof number, GRND_NONBLOCK) != sizeof number) {
    number = MonotonicNs() * 0x9e3779b97f4a7c15u ^ static_cast<uint64_t>(getpid()) << 40;
  }
  return number;
}

KeepErrno::KeepErrno() : saved_(errno) {}
KeepErrno::~KeepErrno() {
  errno = saved_;
}

Undisturbed::Undisturbed() {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state_);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &saved_);
  sigset_t pending;
  sigpending(&pending);
  had_size_signal_ = sigismember(&pending, SIGXFSZ) == 1;
}

Undisturbed::~Undisturbed() {
  if (!had_size_signal_) {
    // The kernel sends it to the thread whose write went over RLIMIT_FSIZE.
    sigset_t size_signal;
    sigemptyset(&size_signal);
    sigaddset(&size_signal, SIGXFSZ);
    const timespec now{};
    // The system call itself: ThreadSanitizer's sigtimedwait does not outlive its own thread-specific data,
    // and we are called in destructors that come after.
    while (syscall(SYS_rt_sigtimedwait, &size_signal, nullptr, &now, sizeof(uint64_t)) == -1 &&
           errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &saved_, nullptr);
  int ignored;
  pthread_setcancelstate(cancel_state_, &ignored);
}

}  // namespace gpumemtrace::recorder::sys
