// System calls as the recorder makes them: without errno, without cancellation points, without passing
// through functions that the host or another preload may have replaced.
#pragma once

#include <sys/stat.h>

#include <csignal>
#include <cstddef>
#include <cstdint>

namespace gpumemtrace::recorder::sys {

// Each returns what the kernel returned: a result, or −errno.
int Open(const char* path, int flags, mode_t mode);
int Close(int fd);
int64_t Write(int fd, const void* data, size_t bytes);
int64_t Read(int fd, void* data, size_t bytes);
// At an offset, without moving the descriptor's position.
int64_t ReadAt(int fd, void* data, size_t bytes, uint64_t offset);
int Rename(const char* from, const char* to);
int Truncate(int fd, uint64_t bytes);
int Allocate(int fd, uint64_t offset, uint64_t bytes);
int TruncateNamed(const char* path, uint64_t bytes);
int Status(int fd, struct stat* status);
// Of a symbolic link itself.
int StatusNamed(const char* path, struct stat* status);
int Unlink(const char* path);
int DuplicateAbove(int fd, int lowest);
uint32_t ThreadId();
// False when no such thread exists in this process.
bool ThreadExists(uint32_t tid);

// Waits while *word == expected, at most timeout_ns. Returns at a wake-up, a time-out or for no reason.
void FutexWait(const uint32_t* word, uint32_t expected, uint64_t timeout_ns);
void FutexWake(const uint32_t* word, int count);

uint64_t MonotonicNs();
// The same clock at the kernel's last tick, 1 to 10 ms ago at most; a fifth of the price.
uint64_t TickNs();
// How far two ticks are apart; 0 = unknown.
uint64_t NsBetweenTicks();
uint64_t RealtimeNs();

// Reads a small file, zero-terminates it. Returns the length without the terminator, 0 on failure.
size_t ReadFile(const char* path, char* buffer, size_t capacity);
uint64_t RandomNumber();

// Restores errno at the end of the scope.
class KeepErrno {
 public:
  KeepErrno();
  ~KeepErrno();
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int saved_;
};

// While one lives, no signal handler runs on this thread and no cancellation acts on it; a SIGXFSZ that our
// own writing caused is swallowed.
class Undisturbed {
 public:
  Undisturbed();
  ~Undisturbed();
  Undisturbed(const Undisturbed&) = delete;
  Undisturbed& operator=(const Undisturbed&) = delete;

 private:
  sigset_t saved_;
  bool had_size_signal_;
  int cancel_state_;
};

}  // namespace gpumemtrace::recorder::sys
