// One traced process: its options, file, rings and writer thread. Made at the first use of CUDA and never
// destroyed; the child of a fork makes its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "recorder/file/trace_file.h"
#include "recorder/fold/folding.h"
#include "recorder/lock.h"
#include "recorder/options.h"
#include "recorder/rings/ring_memory.h"
#include "recorder/rings/ring_table.h"
#include "recorder/writer/writer.h"

namespace gpumemtrace::recorder {

class Session {
 public:
  // Opens the trace, makes the rings and starts the writer thread. Null when tracing is switched off or
  // impossible; one line on stderr has said why. Call with signals blocked, and after stacks::Prepare, which
  // is not called here: other threads wait for the session, and the loader's lock may be theirs.
  static Session* Create(std::span<const char* const> api_names);

  const Options& options() const { return options_; }
  RingTable& rings() { return rings_; }
  Losses& losses() { return losses_; }

  uint64_t NextSequence() { return next_sequence_.fetch_add(1, std::memory_order_seq_cst); }
  // The next number to be given out; a lower bound of all later ones.
  uint64_t LeastSequence() const { return next_sequence_.load(std::memory_order_relaxed); }

  // Asks the writer thread to drain soon.
  void Wake() {
    if (wake_.exchange(1, std::memory_order_relaxed) == 0) sys::FutexWake(WakeWord(), 1);
  }
  // The calling thread, whose ring cannot take `bytes` more, drains; or waits while the trace is folded and
  // must not grow.
  void MakeRoom(Ring& ring, uint64_t bytes);
  // After Finish there may be no writer thread for long: drains at once.
  void DrainNow();

  // The set of loaded modules changed; the writer thread looks at it.
  void ModulesChanged() { modules_changed_.store(true, std::memory_order_relaxed); }

  // After Create, when other threads can have the session: attaches to a Python interpreter. Takes the
  // loader's lock.
  void Attach();

  // Drains, writes the last packet, removes the ring file and says so on stderr (the first time).
  void Finish();
  bool finished() const { return finished_.load(std::memory_order_relaxed); }
  bool has_writer_thread() const { return has_writer_thread_; }

  // True the first time it is called with this text.
  bool IsNew(const char* text);
  bool IsNewDevice(int device);

 private:
  explicit Session(std::span<const char* const> api_names);

  bool Open(std::span<const char* const> api_names);
  int CreateFile(const char* host_name);
  void StartThread();
  [[noreturn]] void RunWriter();
  // With the drain lock.
  int DrainWithinLimit();
  // Waits until the trace may grow again. False: nothing happens any more.
  bool WaitForFold(uint32_t gate);
  void OpenGate();
  static void* WriterThread(void* session);
  // Takes the loader's lock, under which constructors of the host run: never with a lock of ours, for which
  // such a constructor may wait. What it found, TellOfModules puts into the trace.
  void LookAtModules();
  // With the drain lock.
  void TellOfModules();
  // GPUMEMTRACE_MAX_BYTES, or the limit on file sizes when that is less.
  uint64_t Bound() const;
  void SayGoodbye(int error);
  const uint32_t* WakeWord() const { return reinterpret_cast<const uint32_t*>(&wake_); }
  const uint32_t* GateWord() const { return reinterpret_cast<const uint32_t*>(&gate_); }

  Options options_;
  TraceFile file_;
  RingMemory memory_;
  RingTable rings_;
  Losses losses_;
  // What every event touches of this, in one cache line.
  alignas(64) std::atomic<uint64_t> next_sequence_{1};
  std::atomic<bool> finished_{false};
  alignas(64) std::atomic<uint32_t> wake_{0};
  std::atomic<bool> modules_changed_{false};
  // The file is so slow that a thread waited in vain: do not wait again until a drain is through.
  std::atomic<bool> stalled_{false};
  // Drains that ended, so that who waits for the lock can tell a queue from a stall.
  std::atomic<uint64_t> drains_{0};
  // Changes when a pass over the trace ends and it may grow again; and who waits for that.
  std::atomic<uint32_t> gate_{0};
  std::atomic<uint32_t> waiting_{0};
  // Of who calls LookAtModules and TellOfModules: the thread that makes the session, then the writer thread.
  bool looked_at_modules_ = false;
  bool interpreter_changed_ = false;
  bool has_writer_thread_ = false;
  bool said_goodbye_ = false;

  // Held by whoever uses the writer.
  Lock drain_lock_;
  Writer writer_;
  // Made when the options are known.
  Folding* folding_ = nullptr;

  Lock once_lock_;
  Array<uint64_t> notes_seen_;
  std::atomic<uint64_t> devices_seen_{0};
};

}  // namespace gpumemtrace::recorder
