// Who is on the stack: keeps one allocation from being recorded twice when a runtime function calls the
// driver, when a second interposer calls back into us, or when the driver calls itself.
//
// A wrapper makes a scope object; only a scope that finds itself outermost can hand out a Proof, and
// everything that records demands one. A scope remembers where on the stack it lives, so that one that was
// left by longjmp is recognized (a live one lies above the newcomer) and does not silence the thread for
// ever.
#pragma once

#include <cstdint>

#include "interpose/activation.h"
#include "interpose/hooks.h"

namespace gpumemtrace::interpose {

// Trivially constructed and initial-exec: usable in any thread at any time, also while it is torn down.
struct ThreadState {
  // Address of the outermost live driver scope and of the innermost live runtime scope; 0 = none.
  uintptr_t driver_scope;
  uintptr_t runtime_scope;
  // The same for functions of other libraries (cuBLAS, NCCL …).
  uintptr_t library_scope;
  // Name of the outermost runtime function.
  uint16_t runtime_api;
  // What driver scopes did under the runtime function.
  bool recorded_under_runtime;
  // A sequence number that the runtime function took for the driver function it will call.
  uint64_t handed_sequence;
  // The outermost live Ticket (record.h) and its number, which must be given back when the call is escaped
  // from.
  uintptr_t ticket;
  uint64_t ticket_sequence;
};
extern thread_local constinit ThreadState thread_state __attribute__((tls_model("initial-exec")));

// Shows that the holder is the only active hook of its kind on this thread.
class Proof {
 public:
  uint16_t api() const { return api_; }

 private:
  friend class DriverScope;
  friend class RuntimeScope;
  friend class LibraryScope;
  explicit Proof(uint16_t api) : api_(api) {}
  uint16_t api_;
};

// The call of one driver function.
class DriverScope {
 public:
  explicit DriverScope(HookId id)
      : outermost_(Enabled() && (thread_state.driver_scope == 0 ||
                                 thread_state.driver_scope <= reinterpret_cast<uintptr_t>(this))),
        id_(id) {
    if (outermost_) {
      thread_state.driver_scope = reinterpret_cast<uintptr_t>(this);
    }
  }
  ~DriverScope() {
    if (outermost_) {
      thread_state.driver_scope = 0;
    }
  }
  DriverScope(const DriverScope&) = delete;
  DriverScope& operator=(const DriverScope&) = delete;

  bool outermost() const { return outermost_; }
  // Only when outermost().
  Proof proof() const {
    ThreadState& state = thread_state;
    if (state.runtime_scope > reinterpret_cast<uintptr_t>(this)) {
      state.recorded_under_runtime = true;
      return Proof(state.runtime_api);
    }
    return Proof(ApiOf(id_));
  }

 private:
  bool outermost_;
  HookId id_;
};

// The call of one runtime function: lends its name to the driver function underneath.
class RuntimeScope {
 public:
  explicit RuntimeScope(HookId id)
      : outermost_(Enabled() && (thread_state.runtime_scope == 0 ||
                                 thread_state.runtime_scope <= reinterpret_cast<uintptr_t>(this))) {
    if (outermost_) {
      thread_state.runtime_scope = reinterpret_cast<uintptr_t>(this);
      thread_state.runtime_api = ApiOf(id);
      thread_state.recorded_under_runtime = false;
      thread_state.handed_sequence = 0;
    }
  }
  ~RuntimeScope() {
    if (outermost_) {
      thread_state.runtime_scope = 0;
    }
  }
  RuntimeScope(const RuntimeScope&) = delete;
  RuntimeScope& operator=(const RuntimeScope&) = delete;

  bool outermost() const { return outermost_; }
  // True when no driver scope recorded anything: its door is closed to us (a second interposer answered the
  // runtime's look-ups), and the runtime's wrapper must record by itself. Only when outermost().
  bool nothing_recorded() const {
    return !thread_state.recorded_under_runtime && thread_state.driver_scope == 0;
  }
  Proof proof() const { return Proof(thread_state.runtime_api); }

 private:
  bool outermost_;
};

// The call of a function of another library. What it allocates are events of their own; a handle that it
// makes inside another handle's creation is not.
class LibraryScope {
 public:
  explicit LibraryScope(HookId id)
      : outermost_(Enabled() && (thread_state.library_scope == 0 ||
                                 thread_state.library_scope <= reinterpret_cast<uintptr_t>(this))),
        id_(id) {
    if (outermost_) {
      thread_state.library_scope = reinterpret_cast<uintptr_t>(this);
    }
  }
  ~LibraryScope() {
    if (outermost_) {
      thread_state.library_scope = 0;
    }
  }
  LibraryScope(const LibraryScope&) = delete;
  LibraryScope& operator=(const LibraryScope&) = delete;

  bool outermost() const { return outermost_; }
  Proof proof() const { return Proof(ApiOf(id_)); }

 private:
  bool outermost_;
  HookId id_;
};

}  // namespace gpumemtrace::interpose
