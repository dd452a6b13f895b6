// The public functions: the way of an event from the caller into its thread's ring.
#include "recorder/recorder.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <bit>
#include <new>

#include "proto/gpumemtrace/ring_file.h"
#include "recorder/clock.h"
#include "recorder/memory/pages.h"
#include "recorder/message.h"
#include "recorder/options.h"
#include "recorder/process_facts.h"
#include "recorder/session.h"
#include "recorder/stacks/stacks.h"
#include "recorder/system.h"

namespace gpumemtrace::recorder {
namespace {

using ring_file::RecordKind;

enum State : uint32_t { kIdle, kStarting, kActive, kOff };

// A page that the kernel wipes in the child of a fork, so that also a child made by a bare clone() notices
// that it is another process. Besides, what every event looks at, in one cache line: between two events the
// program has used the caches for itself.
struct alignas(64) ProcessPage {
  // 0 = not the process that made the session.
  std::atomic<uint64_t> generation{0};
  Session* session = nullptr;
  // Of the session's options.
  uint64_t min_size = 0;
  uint32_t spaces = 0;
  bool any_stacks = false;
  stacks::CaptureOptions stacks;

  bool Records(Space space) const { return (spaces >> static_cast<unsigned>(space) & 1) != 0; }
};
constinit ProcessPage g_no_page;

struct alignas(64) Hot {
  std::atomic<ProcessPage*> page{&g_no_page};
  std::atomic<Session*> session{nullptr};
  std::atomic<uint32_t> state{kIdle};
  CounterRate rate;
};
constinit Hot g_hot;
constinit uint64_t g_generations = 0;
constinit std::span<const char* const> g_api_names;
constinit pthread_key_t g_thread_key = 0;
constinit bool g_prepared_process = false;
constinit bool g_remembers_stderr = false;

// What a thread knows; constant initializers, so that no code runs when a thread starts.
constexpr uint64_t kNoGeneration = ~uint64_t{0};
struct ThreadState {
  uint64_t generation;
  // Of that generation.
  const ProcessPage* page;
  ThreadSlot* slot;
  // A function of the recorder runs on this thread: what a signal handler calls now is not recorded.
  bool inside;
};
__thread ThreadState t_state = {kNoGeneration, &g_no_page, nullptr, false};

class Inside {
 public:
  Inside() : entered_(!t_state.inside) {
    t_state.inside = true;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~Inside() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (entered_) t_state.inside = false;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  bool entered() const { return entered_; }

 private:
  const bool entered_;
};

void CountLost(LossCause cause) {
  Session* session = g_hot.session.load(std::memory_order_acquire);
  if (session != nullptr) session->losses().Add(cause, 1);
}

// The child of a fork has only a copy of the parent's memory and none of its rings.
void ResetInChild() {
  g_hot.session.store(nullptr, std::memory_order_relaxed);
  g_hot.page.store(&g_no_page, std::memory_order_relaxed);
  g_hot.state.store(kIdle, std::memory_order_relaxed);
  t_state = {kNoGeneration, &g_no_page, nullptr, t_state.inside};
  stacks::AfterForkInChild();
  ForgetSharedInChild();
}

void AfterFork() {
  if (g_hot.state.load(std::memory_order_relaxed) == kOff) return;
  ResetInChild();
  t_state.inside = false;
}

void ThreadEnds(void* value) {
  auto* slot = static_cast<ThreadSlot*>(value);
  const Inside inside;
  Session* session = g_hot.session.load(std::memory_order_acquire);
  if (session == nullptr || t_state.slot != slot ||
      t_state.generation !=
          g_hot.page.load(std::memory_order_relaxed)->generation.load(std::memory_order_relaxed)) {
    return;
  }
  t_state.generation = kNoGeneration;
  t_state.slot = nullptr;
  session->rings().Release(slot);
}

const uint32_t* StateWord() {
  return reinterpret_cast<const uint32_t*>(&g_hot.state);
}

// Once in a process, and best before it has threads: the child of a fork that comes between the first thread
// that starts and this would wait for a thread that it does not have.
void PrepareProcess() {
  if (g_prepared_process) return;
  g_prepared_process = true;
  pthread_key_create(&g_thread_key, ThreadEnds);
  pthread_atfork(nullptr, nullptr, AfterFork);
}

// Makes the session, or waits for the thread that does. True when there is one.
bool Start() {
  uint32_t state = g_hot.state.load(std::memory_order_acquire);
  if (state == kActive &&
      g_hot.page.load(std::memory_order_relaxed)->generation.load(std::memory_order_relaxed) == 0) {
    // fork() without its handlers.
    ResetInChild();
    state = kIdle;
  }
  while (state == kStarting) {
    sys::FutexWait(StateWord(), kStarting, 10'000'000);
    state = g_hot.state.load(std::memory_order_acquire);
  }
  if (state != kIdle) return state == kActive;

  const sys::KeepErrno keep_errno;
  const sys::Undisturbed undisturbed;
  const bool enabled = Enabled();
  // Takes the loader's lock. A constructor of a library that is being loaded may have it and wait for us, so
  // nobody may have to wait yet.
  if (enabled) stacks::Prepare();
  if (!g_hot.state.compare_exchange_strong(state, kStarting, std::memory_order_acq_rel)) return Start();
  bool started = false;
  if (enabled) {
    PrepareProcess();
    if (!g_remembers_stderr) RememberStderr();
    g_remembers_stderr = true;
    g_hot.rate.Prepare();
    auto* page = static_cast<ProcessPage*>(MapPages(sizeof(ProcessPage)));
    Session* session = page == nullptr ? nullptr : Session::Create(g_api_names);
    if (session != nullptr) {
      new (page) ProcessPage;
      madvise(page, sizeof(ProcessPage), MADV_WIPEONFORK);
      const Options& options = session->options();
      page->session = session;
      page->min_size = options.min_size;
      page->spaces = options.spaces;
      page->any_stacks = options.any_stacks;
      page->stacks = options.stacks;
      page->generation.store(++g_generations, std::memory_order_relaxed);
      g_hot.session.store(session, std::memory_order_release);
      g_hot.page.store(page, std::memory_order_release);
      started = true;
    }
  }
  g_hot.state.store(started ? kActive : kOff, std::memory_order_release);
  sys::FutexWake(StateWord(), INT32_MAX);
  if (started) g_hot.session.load(std::memory_order_relaxed)->Attach();
  return started;
}

// Room for a record; the owner drains when there is none. Null: the record is lost.
void* MakeRecord(Session& session, ThreadSlot& slot, uint64_t bytes) {
  Ring& ring = slot.ring;
  void* record = ring.Reserve(bytes);
  if (record != nullptr) [[likely]] {
    return record;
  }
  if (bytes > ring.longest_record()) return nullptr;
  session.MakeRoom(ring, bytes);
  return ring.Reserve(bytes);
}

template <typename Record>
Record* MakeRecord(Session& session, ThreadSlot& slot, RecordKind kind, size_t variable) {
  const size_t bytes = ring_file::RecordBytes(sizeof(Record), variable);
  auto* record = static_cast<Record*>(MakeRecord(session, slot, bytes));
  if (record == nullptr) return nullptr;
  // Padding is part of the file: never memory of the past.
  reinterpret_cast<uint64_t*>(record)[bytes / 8 - 1] = 0;
  memset(static_cast<void*>(record), 0, sizeof(Record));
  record->header.bytes = static_cast<uint32_t>(bytes);
  record->header.kind = kind;
  return record;
}

// The warm path does not come here: the thread's first event, or none is wanted.
__attribute__((noinline)) ThreadSlot* FindSlot() {
  if (g_hot.state.load(std::memory_order_relaxed) == kOff || !Start()) return nullptr;
  const sys::KeepErrno keep_errno;
  // Making the ring file longer may go over RLIMIT_FSIZE.
  const sys::Undisturbed undisturbed;
  Session& session = *g_hot.session.load(std::memory_order_acquire);
  const uint32_t tid = sys::ThreadId();
  ThreadSlot* slot = session.rings().Acquire(tid);
  if (slot == nullptr) {
    session.losses().Add(LossCause::kNoRing, 1);
    return nullptr;
  }
  if (auto* record = MakeRecord<ring_file::ThreadRecord>(session, *slot, RecordKind::kThread, 0)) {
    record->tid = tid;
    ThreadName(record->name);
    slot->ring.Publish();
  }
  t_state.slot = slot;
  t_state.page = g_hot.page.load(std::memory_order_acquire);
  t_state.generation = t_state.page->generation.load(std::memory_order_relaxed);
  pthread_setspecific(g_thread_key, slot);
  return slot;
}

inline ThreadSlot* Slot() {
  const ThreadState& state = t_state;
  if (state.generation == state.page->generation.load(std::memory_order_relaxed)) [[likely]] {
    return state.slot;
  }
  return FindSlot();
}

// Holds back, while it lives, the writer's watermark: a record of this thread may still come below it.
class Ordered {
 public:
  Ordered(Session& session, ThreadSlot& slot) : slot_(slot), mine_(slot.reservation == 0) {
    // Whoever sees that the number was taken (it reads what NextSequence's read-modify-write, or a later one,
    // released) also sees this store; it needs no barrier of its own.
    if (mine_) slot.ring.Pending().store(session.LeastSequence(), std::memory_order_release);
    sequence_ = session.NextSequence();
  }
  ~Ordered() {
    if (mine_) slot_.ring.Pending().store(kNothingPending, std::memory_order_release);
  }
  Ordered(const Ordered&) = delete;
  Ordered& operator=(const Ordered&) = delete;
  uint64_t sequence() const { return sequence_; }

 private:
  ThreadSlot& slot_;
  const bool mine_;
  uint64_t sequence_;
};

void EndReservation(ThreadSlot& slot, uint64_t sequence) {
  if (slot.reservation != sequence) return;
  slot.reservation = 0;
  slot.ring.Pending().store(kNothingPending, std::memory_order_release);
}

// After a record is visible.
void AfterRecord(Session& session, ThreadSlot& slot) {
  if (session.finished()) [[unlikely]] {
    session.DrainNow();
  } else if (slot.ring.HalfFull()) [[unlikely]] {
    const sys::KeepErrno keep_errno;
    if (session.has_writer_thread()) {
      session.Wake();
    } else {
      session.DrainNow();
    }
  }
}

class RingSink final : public stacks::DefinitionSink {
 public:
  RingSink(Session& session, ThreadSlot& slot) : session_(session), slot_(slot) {}

  bool DefineModule(const stacks::ModuleDefinition& module) override {
    auto* record = MakeRecord<ring_file::ModuleRecord>(session_, slot_, RecordKind::kModule,
                                                       module.path.size() + module.build_id.size());
    if (record == nullptr) return false;
    record->load_bias = module.load_bias;
    record->start = module.start;
    record->end = module.end;
    record->path_bytes = static_cast<uint32_t>(module.path.size());
    record->build_id_bytes = static_cast<uint32_t>(module.build_id.size());
    char* to = reinterpret_cast<char*>(record + 1);
    to = Append(to, module.path);
    Append(to, module.build_id);
    slot_.ring.Publish();
    return true;
  }

  bool DefineCode(const stacks::CodeDefinition& code) override {
    std::span<const unsigned char> table = code.line_table;
    const size_t names = code.file.size() + code.qualified_name.size();
    // Without its table a function still has its first line.
    if (sizeof(ring_file::CodeRecord) + names + table.size() + 8 > slot_.ring.longest_record()) table = {};
    auto* record =
        MakeRecord<ring_file::CodeRecord>(session_, slot_, RecordKind::kCode, names + table.size());
    if (record == nullptr) return false;
    record->number = code.number;
    record->first_line = code.first_line;
    record->python_version = code.python_version;
    record->file_bytes = static_cast<uint32_t>(code.file.size());
    record->qualified_name_bytes = static_cast<uint32_t>(code.qualified_name.size());
    record->line_table_bytes = static_cast<uint32_t>(table.size());
    char* to = reinterpret_cast<char*>(record + 1);
    to = Append(to, code.file);
    to = Append(to, code.qualified_name);
    Append(to, table);
    slot_.ring.Publish();
    return true;
  }

  bool DefineStack(const stacks::StackDefinition& stack) override {
    ++stacks_defined;
    const size_t native_bytes = stack.native.size_bytes();
    const size_t python_bytes = stack.python.size() * sizeof(ring_file::PythonFrame);
    auto* record =
        MakeRecord<ring_file::StackRecord>(session_, slot_, RecordKind::kStack, native_bytes + python_bytes);
    if (record == nullptr) return false;
    record->number = stack.number;
    record->native_count = static_cast<uint32_t>(stack.native.size());
    record->python_count = static_cast<uint32_t>(stack.python.size());
    char* to = reinterpret_cast<char*>(record + 1);
    to = Append(to, stack.native);
    auto* frame = reinterpret_cast<ring_file::PythonFrame*>(to);
    for (const stacks::PythonFrame& from : stack.python) {
      *frame++ = {from.code, from.instruction, from.entry ? 1u : 0u};
    }
    slot_.ring.Publish();
    return true;
  }

  uint64_t stacks_defined = 0;

 private:
  template <typename T>
  static char* Append(char* to, std::span<const T> bytes) {
    if (!bytes.empty()) memcpy(to, bytes.data(), bytes.size_bytes());
    return to + bytes.size_bytes();
  }

  Session& session_;
  ThreadSlot& slot_;
};

[[gnu::hot]] uint64_t CaptureStack(Session& session, ThreadSlot& slot,
                                   const stacks::CaptureOptions& options) {
  RingSink sink(session, slot);
  const uint64_t number = stacks::Capture(*slot.stacks, options, sink);
  RingCounters::Add(
      sink.stacks_defined == 0 ? slot.ring.counters.stack_hits : slot.ring.counters.stack_misses, 1);
  return number;
}

bool WantsStack(const ProcessPage& options, const Event& event) {
  if (!options.any_stacks || (event.flags & kWithoutStack) != 0 || event.kind == EventKind::kBlockFree) {
    return false;
  }
  if (options.min_size == 0 || event.size >= options.min_size) return true;
  return event.kind != EventKind::kAllocate && event.kind != EventKind::kBlockAllocate;
}

[[gnu::hot]] void RecordInto(const ProcessPage& page, ThreadSlot& slot, const Event& event) {
  Session& session = *page.session;
  Ring& ring = slot.ring;
  // One of 1021 events of a thread is timed, but not its first, which does what is done once. A prime: with
  // 1024 a loop of 512 events was timed at one and the same event always.
  const bool timed = ++slot.since_timed == 1021;
  if (timed) [[unlikely]] {
    slot.since_timed = 0;
  }
  const uint64_t began = timed ? sys::MonotonicNs() : 0;

  const uint64_t stack = WantsStack(page, event) ? CaptureStack(session, slot, page.stacks) : 0;

  const uint64_t optional[] = {event.argument[0], event.argument[1], event.stream, event.forward_stack,
                               static_cast<uint64_t>(int64_t{event.result})};
  unsigned present = 0;
  unsigned count = 0;
#pragma GCC unroll 5
  for (unsigned i = 0; i < std::size(optional); ++i) {
    present |= static_cast<unsigned>(optional[i] != 0) << i;
    count += optional[i] != 0;
  }
  const uint64_t bytes = sizeof(ring_file::EventRecord) + 8 * count;

  auto write = [&](uint64_t sequence) {
    auto* record = static_cast<ring_file::EventRecord*>(MakeRecord(session, slot, bytes));
    if (record == nullptr) [[unlikely]] {
      session.losses().Add(LossCause::kStorage, 1);
      return;
    }
    record->header = {static_cast<uint32_t>(bytes), RecordKind::kEvent, static_cast<uint8_t>(event.kind),
                      event.flags};
    record->space = static_cast<uint8_t>(event.space);
    record->present = static_cast<uint8_t>(present);
    record->api = event.api;
    record->device = event.device;
    record->reserved = 0;
    record->sequence = sequence;
    record->time_ns =
        event.kind == EventKind::kBlockFree ? slot.clock.Recent(g_hot.rate) : slot.clock.Now(g_hot.rate);
    record->stack = stack;
    record->address = event.address;
    record->size = event.size;
    auto* word = reinterpret_cast<uint64_t*>(record + 1);
#pragma GCC unroll 5
    for (unsigned i = 0; i < std::size(optional); ++i) {
      if (optional[i] != 0) *word++ = optional[i];
    }
    ring.Publish();
    ring.PrefetchNext();
    RingCounters::Add(ring.counters.events, 1);
  };
  if (event.sequence != 0) {
    write(event.sequence);
    EndReservation(slot, event.sequence);
  } else {
    const Ordered ordered(session, slot);
    write(ordered.sequence());
  }
  AfterRecord(session, slot);
  if (timed) {
    RingCounters::Add(ring.counters.timed_events, 1);
    RingCounters::Add(ring.counters.timed_ns, sys::MonotonicNs() - began);
    g_hot.rate.Observe();
  }
}

}  // namespace

void Initialize(const Host& host) {
  if (host.api_names != nullptr) g_api_names = {host.api_names, host.api_count};
  PrepareProcess();
}

bool Active() {
  return g_hot.state.load(std::memory_order_relaxed) == kActive;
}

bool Activate() {
  if (Active()) return true;
  const Inside inside;
  return inside.entered() ? Slot() != nullptr : false;
}

[[gnu::hot]] void Record(const Event& event) {
  const Inside inside;
  if (!inside.entered()) [[unlikely]] {
    CountLost(LossCause::kReentered);
    return;
  }
  ThreadSlot* slot = Slot();
  if (slot == nullptr) [[unlikely]] {
    return;
  }
  const ProcessPage& page = *t_state.page;
  if (!page.Records(event.space)) [[unlikely]] {
    if (event.sequence != 0) EndReservation(*slot, event.sequence);
    return;
  }
  RecordInto(page, *slot, event);
}

uint64_t ReserveSequence() {
  const Inside inside;
  ThreadSlot* slot = inside.entered() ? Slot() : nullptr;
  Session* session = g_hot.session.load(std::memory_order_acquire);
  if (session == nullptr) return 0;
  if (slot == nullptr) return session->NextSequence();
  if (slot->reservation != 0) return session->NextSequence();
  slot->ring.Pending().store(session->LeastSequence(), std::memory_order_release);
  slot->reservation = session->NextSequence();
  return slot->reservation;
}

void CancelSequence(uint64_t sequence) {
  const Inside inside;
  if (sequence == 0 || !inside.entered()) return;
  ThreadSlot* slot = Slot();
  if (slot != nullptr) EndReservation(*slot, sequence);
}

[[gnu::hot]] uint64_t CaptureForwardStack() {
  const Inside inside;
  if (!inside.entered()) return 0;
  ThreadSlot* slot = Slot();
  if (slot == nullptr) return 0;
  const ProcessPage& page = *t_state.page;
  stacks::CaptureOptions options = page.stacks;
  if (!options.python) return 0;
  options.native = stacks::NativeDepth::kNone;
  return CaptureStack(*page.session, *slot, options);
}

void RecordMark(MarkKind kind, MarkSource source, const char* text, const char* domain, uint64_t number) {
  const Inside inside;
  if (!inside.entered()) return CountLost(LossCause::kReentered);
  ThreadSlot* slot = Slot();
  if (slot == nullptr) return;
  Session& session = *g_hot.session.load(std::memory_order_relaxed);
  constexpr size_t kLongest = 4096;
  const size_t text_bytes = text == nullptr ? 0 : strnlen(text, kLongest);
  const size_t domain_bytes = domain == nullptr ? 0 : strnlen(domain, kLongest);
  {
    const Ordered ordered(session, *slot);
    auto* record =
        MakeRecord<ring_file::MarkRecord>(session, *slot, RecordKind::kMark, text_bytes + domain_bytes);
    if (record == nullptr) return session.losses().Add(LossCause::kStorage, 1);
    record->header.detail = static_cast<uint8_t>(kind);
    record->header.flags = static_cast<uint16_t>(source);
    record->sequence = ordered.sequence();
    record->time_ns = sys::MonotonicNs();
    record->number = number;
    record->text_bytes = static_cast<uint32_t>(text_bytes);
    record->domain_bytes = static_cast<uint32_t>(domain_bytes);
    char* to = reinterpret_cast<char*>(record + 1);
    if (text_bytes != 0) memcpy(to, text, text_bytes);
    if (domain_bytes != 0) memcpy(to + text_bytes, domain, domain_bytes);
    slot->ring.Publish();
  }
  AfterRecord(session, *slot);
}

void RecordDeviceMemory(int device, uint64_t free_bytes, uint64_t total_bytes) {
  const Inside inside;
  if (!inside.entered()) return CountLost(LossCause::kReentered);
  ThreadSlot* slot = Slot();
  if (slot == nullptr) return;
  Session& session = *g_hot.session.load(std::memory_order_relaxed);
  {
    const Ordered ordered(session, *slot);
    auto* record = MakeRecord<ring_file::DeviceMemoryRecord>(session, *slot, RecordKind::kDeviceMemory, 0);
    if (record == nullptr) return session.losses().Add(LossCause::kStorage, 1);
    record->sequence = ordered.sequence();
    record->time_ns = sys::MonotonicNs();
    record->device = device;
    record->free_bytes = free_bytes;
    record->total_bytes = total_bytes;
    slot->ring.Publish();
  }
  AfterRecord(session, *slot);
}

void RecordDevice(int device, const char* name, const unsigned char* uuid, uint64_t total_bytes,
                  uint32_t driver_version, uint32_t runtime_version) {
  const Inside inside;
  if (!inside.entered()) return CountLost(LossCause::kReentered);
  ThreadSlot* slot = Slot();
  if (slot == nullptr) return;
  Session& session = *g_hot.session.load(std::memory_order_relaxed);
  if (!session.IsNewDevice(device)) return;
  const size_t name_bytes = name == nullptr ? 0 : strnlen(name, 256);
  auto* record = MakeRecord<ring_file::DeviceRecord>(session, *slot, RecordKind::kDevice, name_bytes);
  if (record == nullptr) return session.losses().Add(LossCause::kStorage, 1);
  record->device = device;
  record->driver_version = driver_version;
  record->runtime_version = runtime_version;
  record->name_bytes = static_cast<uint32_t>(name_bytes);
  record->total_bytes = total_bytes;
  if (uuid != nullptr) memcpy(record->uuid, uuid, sizeof record->uuid);
  if (name_bytes != 0) memcpy(record + 1, name, name_bytes);
  slot->ring.Publish();
  AfterRecord(session, *slot);
}

void RecordNote(NoteSeverity severity, const char* text) {
  const Inside inside;
  if (!inside.entered() || text == nullptr) return;
  ThreadSlot* slot = Slot();
  if (slot == nullptr) return;
  Session& session = *g_hot.session.load(std::memory_order_relaxed);
  if (!session.IsNew(text)) return;
  const size_t text_bytes = strnlen(text, 4096);
  auto* record = MakeRecord<ring_file::NoteRecord>(session, *slot, RecordKind::kNote, text_bytes);
  if (record == nullptr) return;
  record->header.detail = static_cast<uint8_t>(severity);
  record->time_ns = sys::MonotonicNs();
  record->text_bytes = static_cast<uint32_t>(text_bytes);
  memcpy(record + 1, text, text_bytes);
  slot->ring.Publish();
  AfterRecord(session, *slot);
}

bool RecordContent(std::span<const unsigned char> content) {
  const Inside inside;
  if (!inside.entered()) return false;
  ThreadSlot* slot = Slot();
  if (slot == nullptr) return false;
  Session& session = *g_hot.session.load(std::memory_order_relaxed);
  {
    const Ordered ordered(session, *slot);
    auto* record = MakeRecord<ring_file::ContentRecord>(session, *slot, RecordKind::kContent, content.size());
    if (record == nullptr) return false;
    record->sequence = ordered.sequence();
    record->content_bytes = static_cast<uint32_t>(content.size());
    if (!content.empty()) memcpy(record + 1, content.data(), content.size());
    slot->ring.Publish();
  }
  AfterRecord(session, *slot);
  return true;
}

void ModulesChanged() {
  Session* session = g_hot.session.load(std::memory_order_acquire);
  if (session == nullptr || g_hot.page.load(std::memory_order_relaxed)->generation.load() == 0) return;
  const sys::KeepErrno keep_errno;
  stacks::ModulesChanged();
  session->ModulesChanged();
}

void Finish() {
  const Inside inside;
  Session* session = g_hot.session.load(std::memory_order_acquire);
  // In the child of a bare clone() the session is the parent's.
  if (session == nullptr || g_hot.page.load(std::memory_order_relaxed)->generation.load() == 0) return;
  session->Finish();
}

}  // namespace gpumemtrace::recorder
