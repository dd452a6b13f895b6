#include "recorder/session.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "recorder/census/census.h"
#include "recorder/file/output_path.h"
#include "recorder/header.h"
#include "recorder/memory/pages.h"
#include "recorder/message.h"
#include "recorder/process_facts.h"
#include "recorder/system.h"

namespace gpumemtrace::recorder {
namespace {

// Taken names that are tried before giving up.
constexpr unsigned kMostNames = 10000;
constexpr size_t kWriterStack = size_t{256} << 10;
// How long a thread waits for another one that is draining. Storage that is slower costs events, which are
// counted, not the host's time.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
// A sanitizer makes the drain itself an order of magnitude slower.
constexpr uint64_t kMostPatienceNs = 10'000'000'000;
#else
constexpr uint64_t kMostPatienceNs = 1'000'000'000;
#endif
constexpr uint64_t kShortestIntervalNs = 2'000'000;
// While old windows are folded: bytes of the trace in one turn (a few milliseconds), and the pause after it.
constexpr size_t kFoldBytes = size_t{64} << 10;
constexpr uint64_t kFoldPauseNs = 1'000'000;

uint64_t MemoryBytes() {
  return MappedPages();
}

}  // namespace

Session::Session(std::span<const char* const> api_names)
    : rings_(memory_),
      writer_({file_, rings_, losses_, next_sequence_, api_names, sys::MonotonicNs, MemoryBytes}) {}

Session* Session::Create(std::span<const char* const> api_names) {
  void* memory = MapPages(sizeof(Session));
  if (memory == nullptr) return nullptr;
  auto* session = new (memory) Session(api_names);
  if (session->Open(api_names)) return session;
  session->~Session();
  UnmapPages(memory, sizeof(Session));
  return nullptr;
}

int Session::CreateFile(const char* host_name) {
  OutputName name;
  name.pattern = options_.out;
  name.host_name = host_name;
  name.process_id = getpid();
  name.rank = ReadJob().rank;
  char path[4096];
  for (unsigned attempt = 1; attempt <= kMostNames; ++attempt) {
    if (!OutputPath(name, attempt, path, sizeof path)) return -ENAMETOOLONG;
    const int error = file_.Create(path);
    // A symbolic link is somebody's, too.
    if (error != -EEXIST && error != -ELOOP) {
      if (error < 0)
        Message("%s cannot be created (%s); this process is not traced", path, ErrorText(-error));
      return error;
    }
  }
  Message("no free name like %s; this process is not traced", path);
  return -EEXIST;
}

bool Session::Open(std::span<const char* const> api_names) {
  options_ = ParseOptions(environ, [](const char* line) { MessageLine(line); });
  if (!options_.enabled) return false;
  char host_name[256];
  HostName(host_name);
  char boot_id[40];
  BootId(boot_id);
  if (CreateFile(host_name) < 0) return false;

  RingMemoryOptions memory;
  memory.place = options_.rings;
  memory.capacity = options_.ring_bytes;
  memory.trace_path = file_.path();
  memory.ring_key = sys::RandomNumber();
  memory.boot_id = boot_id;
  memory.api_names = api_names;
  memory_.Create(memory);

  ByteBuffer header;
  AppendHeader({options_, environ, host_name, boot_id, memory_.path(), memory.ring_key}, header);
  if (memory_.path()[0] == '\0' && options_.rings != RingPlace::kPrivate) {
    char text[700];
    snprintf(text, sizeof text,
             "Events wait in private memory, so the last ones are lost if the process is killed: %s",
             memory_.problem());
    writer_.AddNote(1, text);
  } else if (memory_.problem()[0] != '\0') {
    char text[700];
    snprintf(text, sizeof text, "The ring file is %s: %s", memory_.path(), memory_.problem());
    writer_.AddNote(0, text);
  }
  looked_at_modules_ = interpreter_changed_ = true;
  TellOfModules();
  // What can only be found out on a thread that is not the main one.
  modules_changed_.store(true, std::memory_order_relaxed);
  const int error = writer_.Start(header.span());
  if (error < 0) {
    Message("%s cannot be written (%s); this process is not traced", file_.path(), ErrorText(-error));
    sys::Unlink(file_.path());
    file_.Close();
    memory_.RemoveFile();
    return false;
  }
  writer_.SetBound(Bound());
  if (void* place = MapPages(sizeof(Folding)); place != nullptr) {
    folding_ = new (place) Folding(writer_, file_, SystemFileLayer(), Bound());
  }
  census::Configure(options_.census);
  StartThread();
  return true;
}

void Session::Attach() {
  // A program may end before the writer thread first wakes.
  census::Observe(sys::MonotonicNs(), 0, 0);
}

void Session::LookAtModules() {
  if (!modules_changed_.exchange(false, std::memory_order_relaxed)) return;
  looked_at_modules_ = true;
  interpreter_changed_ |= stacks::Prepare();
}

void Session::TellOfModules() {
  if (!looked_at_modules_) return;
  looked_at_modules_ = false;
  const bool changed = std::exchange(interpreter_changed_, false);
  if (const char* problem = stacks::NativeProblem(); problem != nullptr && IsNew(problem)) {
    writer_.AddNote(1, problem);
  }
  if (!changed) return;
  const stacks::InterpreterFacts facts = stacks::Interpreter();
  if (facts.version == 0) return;
  writer_.AddInterpreter(facts.version, facts.free_threaded, facts.supported,
                         {facts.reason, strlen(facts.reason)});
}

uint64_t Session::Bound() const {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return options_.max_bytes;
  return std::min<uint64_t>(options_.max_bytes, limit.rlim_cur);
}

void Session::StartThread() {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kWriterStack);
  // It inherits our mask, in which every signal is blocked: no handler of the host ever runs on it.
  pthread_t thread;
  has_writer_thread_ = pthread_create(&thread, &attributes, WriterThread, this) == 0;
  pthread_attr_destroy(&attributes);
  if (!has_writer_thread_) {
    writer_.AddNote(0, "No writer thread could be started; threads write their own events.");
  }
}

void* Session::WriterThread(void* session) {
  prctl(PR_SET_NAME, "gpumemtrace");
  static_cast<Session*>(session)->RunWriter();
}

void Session::RunWriter() {
  uint64_t interval = options_.flush_ns;
  bool hurried = false;
  for (;;) {
    if (!hurried) sys::FutexWait(WakeWord(), 0, interval);
    wake_.store(0, std::memory_order_relaxed);
    LookAtModules();
    drain_lock_.Acquire();
    TellOfModules();
    const int error = DrainWithinLimit();
    bool opened = false;
    if (folding_ != nullptr) {
      if (folding_->ready()) {
        folding_->Complete();
        opened = !folding_->running();
      }
      if (error == 0) folding_->Begin();
      hurried = folding_->Crowded() || folding_->Hurried();
    }
    const uint32_t fullest = writer_.fullest();
    const uint64_t live_blocks = writer_.live_blocks();
    const uint64_t live_bytes = writer_.live_block_bytes();
    drains_.fetch_add(1, std::memory_order_relaxed);
    drain_lock_.Release();
    if (opened) OpenGate();
    census::Observe(sys::MonotonicNs(), live_blocks, live_bytes);
    if (error == 0) stalled_.store(false, std::memory_order_relaxed);
    // Aim at rings between a quarter and a half full, so that packets are large and nobody has to wake us.
    if (fullest > 128) {
      interval = std::max(interval / 2, kShortestIntervalNs);
    } else if (fullest < 64) {
      interval = std::min(interval * 2, options_.flush_ns);
    }
    interval = std::min(interval, options_.flush_ns);
    // Without the lock: a thread that finds its ring full can drain it meanwhile.
    if (folding_ != nullptr && folding_->running()) {
      folding_->Work(kFoldBytes);
      interval = std::min(interval, kFoldPauseNs);
    }
  }
}

int Session::DrainWithinLimit() {
  if (folding_ != nullptr) writer_.SetLimit(folding_->Limit());
  return writer_.Drain(Writer::Order::kExact);
}

bool Session::WaitForFold(uint32_t gate) {
  waiting_.fetch_add(1, std::memory_order_seq_cst);
  bool open = false;
  for (bool alive = true; alive && !open;) {
    const uint64_t before = drains_.load(std::memory_order_relaxed);
    sys::FutexWait(GateWord(), gate, kMostPatienceNs);
    open = gate_.load(std::memory_order_seq_cst) != gate;
    alive = drains_.load(std::memory_order_relaxed) != before;
  }
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  return open;
}

void Session::OpenGate() {
  gate_.fetch_add(1, std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_seq_cst) != 0) sys::FutexWake(GateWord(), INT_MAX);
}

void Session::MakeRoom(Ring& ring, uint64_t bytes) {
  const sys::KeepErrno keep_errno;
  const sys::Undisturbed undisturbed;
  RingCounters::Add(ring.counters.full, 1);
  for (bool may_wait = true;;) {
    const uint64_t before = drains_.load(std::memory_order_relaxed);
    if (!(stalled_.load(std::memory_order_relaxed) ? drain_lock_.TryAcquire()
                                                   : drain_lock_.AcquireFor(kMostPatienceNs))) {
      // Many threads may be in the queue; only a drain that does not end is a stall.
      if (drains_.load(std::memory_order_relaxed) != before) continue;
      stalled_.store(true, std::memory_order_relaxed);
      return;
    }
    stalled_.store(false, std::memory_order_relaxed);
    const uint32_t gate = gate_.load(std::memory_order_seq_cst);
    bool wait = false;
    // Somebody may have drained while we waited for the lock.
    if (ring.Reserve(bytes) == nullptr) {
      DrainWithinLimit();
      if (ring.Reserve(bytes) == nullptr) {
        wait = may_wait && folding_ != nullptr && folding_->Crowded();
        // Rather a trace that is too large than a loss.
        if (!wait) writer_.Drain(Writer::Order::kEverything);
      }
    }
    drains_.fetch_add(1, std::memory_order_relaxed);
    drain_lock_.Release();
    if (!wait) return;
    may_wait = WaitForFold(gate);
  }
}

void Session::DrainNow() {
  const sys::KeepErrno keep_errno;
  const sys::Undisturbed undisturbed;
  if (!drain_lock_.AcquireFor(kMostPatienceNs)) return;
  writer_.Drain(Writer::Order::kEverything);
  drain_lock_.Release();
}

void Session::Finish() {
  const sys::KeepErrno keep_errno;
  const sys::Undisturbed undisturbed;
  // Longer patience than elsewhere: this is the last chance.
  if (!drain_lock_.AcquireFor(10 * kMostPatienceNs)) return;
  finished_.store(true, std::memory_order_seq_cst);
  if (folding_ != nullptr) {
    folding_->Cancel();
    OpenGate();
  }
  const int error = writer_.Finish();
  memory_.RemoveFile();
  if (!said_goodbye_) SayGoodbye(error);
  said_goodbye_ = true;
  drain_lock_.Release();
}

void Session::SayGoodbye(int error) {
  char folder[4096];
  const char* path = file_.path();
  const size_t length = getcwd(folder, sizeof folder) == nullptr ? 0 : strlen(folder);
  if (length > 1 && strncmp(path, folder, length) == 0 && path[length] == '/') path += length + 1;
  uint64_t lost = 0;
  for (const std::atomic<uint64_t>& cause : losses_.events) lost += cause.load(std::memory_order_relaxed);
  if (error < 0) {
    Message("%s is incomplete (%s, %llu events lost); read it with: gpumem-analyze %s", path,
            ErrorText(-error), static_cast<unsigned long long>(lost), path);
  } else if (lost != 0) {
    Message("%llu events written to %s, %llu lost; read them with: gpumem-analyze %s",
            static_cast<unsigned long long>(writer_.events_written()), path,
            static_cast<unsigned long long>(lost), path);
  } else if (!options_.quiet) {
    Message("%llu events written to %s; read them with: gpumem-analyze %s",
            static_cast<unsigned long long>(writer_.events_written()), path, path);
  }
}

bool Session::IsNew(const char* text) {
  uint64_t hash = 1;
  for (const char* p = text; *p != '\0'; ++p) hash = Combine(hash, static_cast<unsigned char>(*p));
  LockGuard guard(once_lock_);
  for (const uint64_t seen : notes_seen_) {
    if (seen == hash) return false;
  }
  // A program that makes up texts without end does not get us to grow without end.
  return notes_seen_.size() < 1024 && notes_seen_.Push(hash);
}

bool Session::IsNewDevice(int device) {
  if (device < 0 || device >= 64) return true;
  const uint64_t bit = uint64_t{1} << device;
  return (devices_seen_.fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
}

}  // namespace gpumemtrace::recorder
