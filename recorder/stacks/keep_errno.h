// Restores errno at the end of a scope: system calls on cold paths must not show in the host.
#pragma once

#include <cerrno>

namespace gpumemtrace::recorder::stacks {

class KeepErrno {
 public:
  KeepErrno() : saved_(errno) {}
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int saved_;
};

}  // namespace gpumemtrace::recorder::stacks
