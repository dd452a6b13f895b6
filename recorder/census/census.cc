#include "recorder/census/census.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "recorder/census/growth.h"
#include "recorder/census/heap_walk.h"
#include "recorder/census/parts.h"
#include "recorder/census/python_api.h"
#include "recorder/census/sources.h"
#include "recorder/recorder.h"

namespace gpumemtrace::recorder::census {
namespace {

// Values of Census.Trigger; 0 = attach only.
constexpr long kAttach = 0;
constexpr long kGrowth = 3;
constexpr long kRequest = 5;
// Between two attempts to attach: PyTorch may not be imported yet.
constexpr uint64_t kRetryNs = 1'000'000'000;
constexpr int kMostAttempts = 200;

CensusOptions options;
PythonApi api;
std::atomic<bool> api_found{false};
// A pending call in the interpreter's queue. From 3.9 to 3.11 a thread without the GIL adds it to whatever
// interpreter holds it. A subinterpreter that ends takes the call with it, and nobody tells. So one that has
// waited this long is added again, each time after four times as long, and a few times only: the main thread
// may just be busy, and the queue is the host's too. One too many does nothing.
constexpr uint64_t kPatienceNs = 100'000'000;
constexpr uint32_t kMostAdded = 5;
struct PendingCall {
  std::atomic<bool> waits{false};
  std::atomic<uint64_t> since_ns{0};
  std::atomic<uint32_t> added{0};
};
// The writer's, and that of requests, who hold the GIL when they come through gpumemtrace.py: theirs does not
// get lost, and does not wait for one that did.
PendingCall writers_call;
PendingCall requests_call;
// What it is to do: a bit for each trigger.
std::atomic<uint32_t> wanted{0};
// It ran in another interpreter than the main one: Observe asks again.
std::atomic<bool> misplaced{false};
std::atomic<bool> complete{false};
// Spent on censuses in all, and on the last one.
std::atomic<uint64_t> spent_ns{0};
std::atomic<uint64_t> last_ns{0};
GrowthWatch growth;
uint64_t next_attempt_ns = 0;
// When to ask again for what was misplaced.
uint64_t next_call_ns = 0;
int attempts = 0;

// Touched with the GIL only.
PyObject* space = nullptr;  // globals of the census, kept for ever
uint32_t census_number = 0;
PartHeader part_header;
uint64_t begun_ns = 0;

uint64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Numbers are given out in order, so one that is taken and returned tells the present.
uint64_t PresentSequence() {
  const uint64_t sequence = ReserveSequence();
  CancelSequence(sequence);
  return sequence;
}

// In 3.8 the collector is shared by all interpreters, and with it the callback that install.py gives to it.
bool InMainInterpreter() {
  return api.interpreter_get == nullptr || api.interpreter_get() == api.interpreter_main();
}

PyObject* Begin(PyObject*, PyObject*) {
  if (!Active() || !InMainInterpreter()) return api.bool_from_long(0);
  part_header.first_sequence = PresentSequence();
  begun_ns = Now();
  part_header.time_us = begun_ns / 1000;
  return api.bool_from_long(1);
}

PyObject* Emit(PyObject*, PyObject* bytes) {
  char* data = nullptr;
  std::ptrdiff_t size = 0;
  if (api.bytes_as_string_and_size(bytes, &data, &size) != 0) return nullptr;
  part_header.census = ++census_number;
  part_header.last_sequence = PresentSequence();
  if (!RecordParts(part_header, {reinterpret_cast<const uint8_t*>(data), static_cast<size_t>(size)})) {
    RecordNote(NoteSeverity::kWarning, "census: it could not be recorded in full");
  }
  const uint64_t took = Now() - begun_ns;
  last_ns.store(took, std::memory_order_relaxed);
  spent_ns.fetch_add(took, std::memory_order_relaxed);
  return api.bool_from_long(1);
}

PyObject* Failed(PyObject*, PyObject* name) {
  PyObject* utf8 = api.unicode_encode_utf8(name);
  char* text = nullptr;
  std::ptrdiff_t size = 0;
  if (utf8 == nullptr || api.bytes_as_string_and_size(utf8, &text, &size) != 0) {
    api.error_clear();
  } else {
    char line[160];
    snprintf(line, sizeof line, "census: it could not be taken (%.80s)", text);
    RecordNote(NoteSeverity::kWarning, line);
  }
  if (utf8 != nullptr) api.decref(utf8);
  return api.bool_from_long(0);
}

// Bytes of memory that the process has in RAM, 0 when it is not to be found out. Any argument.
PyObject* Resident(PyObject*, PyObject*) {
  long pages = 0;
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    char text[128];
    const ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    text[size < 0 ? 0 : size] = 0;
    const char* second = strchr(text, ' ');
    if (second != nullptr) pages = strtol(second, nullptr, 10);
  }
  return api.long_from_long(pages * sysconf(_SC_PAGESIZE));
}

// sys._current_frames(), or False when there are subinterpreters: it makes frame objects for the threads of
// all of them (Python/pystate.c), out of this one's memory, which since 3.12 crashes the interpreter whose
// frames they are. Looked up and called without a bytecode in between, so that nobody makes one meanwhile.
// Any argument.
PyObject* Frames(PyObject*, PyObject*) {
  if (api.interpreter_next(api.interpreter_head()) != nullptr) return api.bool_from_long(0);
  PyObject* function = api.sys_get_object("_current_frames");
  return function == nullptr ? api.bool_from_long(0) : api.call_object(function, nullptr);
}

PyMethod begin_method = {"_native_begin", Begin, kOneArgument, nullptr};
PyMethod emit_method = {"_native_emit", Emit, kOneArgument, nullptr};
PyMethod failed_method = {"_native_failed", Failed, kOneArgument, nullptr};
PyMethod frames_method = {"_native_frames", Frames, kOneArgument, nullptr};
PyMethod resident_method = {"_native_resident", Resident, kOneArgument, nullptr};
PyMethod select_method = {"_native_select", SelectObjects, kOneArgument, nullptr};
PyMethod walk_method = {"_native_walk", WalkHeap, kOneArgument, nullptr};
PyMethod hidden_method = {"_native_hidden", HiddenObjects, kOneArgument, nullptr};

// Stores a new reference under `name`; false when it is null or could not be stored.
bool Put(PyObject* dict, const char* name, PyObject* value) {
  if (value == nullptr) return false;
  const bool stored = api.dict_set_item_string(dict, name, value) == 0;
  api.decref(value);
  return stored;
}

// Without these the census walks in Python.
bool PutHeap(PyObject* dict) {
  if (!PrepareHeap(api)) return true;
  return Put(dict, "_native_select", api.cfunction_new(&select_method, nullptr, nullptr)) &&
         Put(dict, "_native_walk", api.cfunction_new(&walk_method, nullptr, nullptr)) &&
         Put(dict, "_native_hidden", api.cfunction_new(&hidden_method, nullptr, nullptr));
}

PyObject* SourceList() {
  PyObject* list = api.list_new(0);
  for (size_t i = 0; list != nullptr && i < kSourceCount; ++i) {
    PyObject* pair = api.tuple_new(2);
    PyObject* name = api.unicode_from_string(kSources[i].name);
    PyObject* text = api.unicode_from_string(kSources[i].text);
    bool done = pair != nullptr && name != nullptr && text != nullptr;
    if (done) {
      api.tuple_set_item(pair, 0, name);
      api.tuple_set_item(pair, 1, text);
      done = api.list_append(list, pair) == 0;
    } else {
      if (name != nullptr) api.decref(name);
      if (text != nullptr) api.decref(text);
    }
    if (pair != nullptr) api.decref(pair);
    if (!done) {
      api.decref(list);
      return nullptr;
    }
  }
  return list;
}

// The namespace in which the census lives: not a module, so that nobody finds it in sys.modules.
PyObject* MakeSpace() {
  PyObject* dict = api.dict_new();
  if (dict == nullptr) return nullptr;
  PyObject* code = nullptr;
  PyObject* result = nullptr;
  if (Put(dict, "__name__", api.unicode_from_string("gpumemtrace_census")) &&
      api.dict_set_item_string(dict, "__builtins__", api.eval_get_builtins()) == 0 &&
      Put(dict, "_native_begin", api.cfunction_new(&begin_method, nullptr, nullptr)) &&
      Put(dict, "_native_emit", api.cfunction_new(&emit_method, nullptr, nullptr)) &&
      Put(dict, "_native_failed", api.cfunction_new(&failed_method, nullptr, nullptr)) &&
      Put(dict, "_native_resident", api.cfunction_new(&resident_method, nullptr, nullptr)) &&
      Put(dict, "_native_frames", api.cfunction_new(&frames_method, nullptr, nullptr)) && PutHeap(dict) &&
      Put(dict, "_sources", SourceList()) &&
      Put(dict, "_budget", api.float_from_double(static_cast<double>(options.budget_ms) / 1000)) &&
      Put(dict, "_signal", api.long_from_long(options.signal)) &&
      Put(dict, "_automatic", api.long_from_long(options.mode == Mode::kAuto ? 1 : 0)) &&
      (code = api.compile_string(kInstallSource.text, kInstallSource.name, kFileInput)) != nullptr) {
    result = api.eval_code(code, dict, dict);
  }
  if (code != nullptr) api.decref(code);
  if (result == nullptr) {
    api.decref(dict);
    return nullptr;
  }
  api.decref(result);
  return dict;
}

// Calls a function of the census with no argument or one number.
PyObject* Call(const char* name, const long* argument) {
  PyObject* function = api.dict_get_item_string(space, name);
  if (function == nullptr) return nullptr;
  PyObject* arguments = nullptr;
  if (argument != nullptr) {
    arguments = api.tuple_new(1);
    PyObject* number = arguments == nullptr ? nullptr : api.long_from_long(*argument);
    if (number == nullptr) {
      if (arguments != nullptr) api.decref(arguments);
      return nullptr;
    }
    api.tuple_set_item(arguments, 0, number);
  }
  PyObject* result = api.call_object(function, arguments);
  if (arguments != nullptr) api.decref(arguments);
  return result;
}

// Forgets an error of ours, but not one that the host must see: KeyboardInterrupt raised by the handler of a
// signal that arrived meanwhile. Returns what a pending call returns.
int EndCall() {
  if (api.error_occurred() == nullptr) return 0;
  if (api.error_matches(*api.exception) == 0) return -1;
  api.error_clear();
  return 0;
}

// Run by the interpreter in its main thread, between two bytecodes, with the GIL.
int OnPendingCall(void* call) {
  // In this order: who wants something from here on adds a call of its own.
  static_cast<PendingCall*>(call)->waits.exchange(false, std::memory_order_acq_rel);
  const uint32_t triggers = wanted.exchange(0, std::memory_order_acq_rel);
  if (triggers == 0 || !Active()) return 0;
  if (!InMainInterpreter()) {
    // Until 3.11 the main thread runs such calls in whatever interpreter it is in. A call that adds itself
    // again would run after every bytecode there.
    wanted.fetch_or(triggers, std::memory_order_acq_rel);
    misplaced.store(true, std::memory_order_release);
    return 0;
  }
  if (space == nullptr) {
    space = MakeSpace();
    if (space == nullptr) {
      complete.store(true, std::memory_order_relaxed);
      if (api.error_occurred() != nullptr)
        RecordNote(NoteSeverity::kWarning, "census: it could not be installed");
      return EndCall();
    }
  }
  PyObject* installed = Call("install", nullptr);
  if (installed != nullptr) api.decref(installed);
  if (const int failed = EndCall(); failed != 0) return failed;
  // One census answers all who asked.
  const long trigger = (triggers >> kRequest & 1) != 0  ? kRequest
                       : (triggers >> kGrowth & 1) != 0 ? kGrowth
                                                        : kAttach;
  if (trigger != kAttach) {
    PyObject* seconds = Call("report", &trigger);
    if (seconds != nullptr) api.decref(seconds);
  }
  return EndCall();
}

// Adds the call that does what is wanted, if none waits already, or if that one seems lost. False: the queue
// is full.
bool Add(PendingCall& call) {
  const uint64_t now = Now();
  const bool waits = call.waits.exchange(true, std::memory_order_acq_rel);
  const uint32_t added = waits ? call.added.load(std::memory_order_relaxed) : 0;
  const uint64_t waited = now - call.since_ns.load(std::memory_order_relaxed);
  const uint64_t patience = kPatienceNs << 2 * added >> 2;
  if (waits && (added >= kMostAdded || waited < patience)) return true;
  call.since_ns.store(now, std::memory_order_relaxed);
  call.added.store(added + 1, std::memory_order_relaxed);
  if (api.add_pending_call(OnPendingCall, &call) == 0 || waits) return true;
  call.waits.store(false, std::memory_order_release);
  return false;
}

bool Schedule(long trigger, PendingCall& call) {
  if (!api_found.load(std::memory_order_acquire) || !MayAddPendingCall(api)) return false;
  const uint32_t bit = uint32_t{1} << trigger;
  wanted.fetch_or(bit, std::memory_order_acq_rel);
  if (Add(call)) return true;
  wanted.fetch_and(~bit, std::memory_order_acq_rel);
  return false;
}

}  // namespace

void Configure(const CensusOptions& given) {
  options = given;
  writers_call.waits.store(false, std::memory_order_relaxed);
  requests_call.waits.store(false, std::memory_order_relaxed);
  wanted.store(0, std::memory_order_relaxed);
  misplaced.store(false, std::memory_order_relaxed);
  complete.store(false, std::memory_order_relaxed);
  growth = GrowthWatch(given.mode == Mode::kAuto, given.growth);
  next_attempt_ns = 0;
  next_call_ns = 0;
  attempts = 0;
}

void Observe(uint64_t now_ns, uint64_t live_blocks, uint64_t live_bytes) {
  if (options.mode == Mode::kOff) return;
  if (!api_found.load(std::memory_order_relaxed)) {
    if (now_ns < next_attempt_ns || attempts >= kMostAttempts) return;
    next_attempt_ns = now_ns + kRetryNs;
    ++attempts;
    if (!FindPython(&api)) return;
    api_found.store(true, std::memory_order_release);
    next_attempt_ns = 0;
  }
  if (now_ns >= next_call_ns && misplaced.exchange(false, std::memory_order_acq_rel)) {
    next_call_ns = now_ns + kRetryNs;
    if (MayAddPendingCall(api) && !Add(writers_call)) misplaced.store(true, std::memory_order_release);
  } else if (MayAddPendingCall(api)) {
    for (PendingCall* call : {&writers_call, &requests_call}) {
      if (call->waits.load(std::memory_order_relaxed)) Add(*call);
    }
  }
  const Cost cost = {spent_ns.load(std::memory_order_relaxed), last_ns.load(std::memory_order_relaxed)};
  if (growth.Look(now_ns, live_blocks, live_bytes, cost)) {
    if (Schedule(kGrowth, writers_call)) return;
    growth.Retry();
  }
  if (!complete.load(std::memory_order_relaxed) && now_ns >= next_attempt_ns && attempts < kMostAttempts) {
    ++attempts;
    // PyTorch may be imported late, and the program's outermost function may change.
    next_attempt_ns = now_ns + kRetryNs * static_cast<uint64_t>(attempts < 10 ? 1 : attempts / 4);
    Schedule(kAttach, writers_call);
  }
}

bool Request() {
  if (options.mode == Mode::kOff) return false;
  if (!api_found.load(std::memory_order_acquire)) return false;
  return Schedule(kRequest, requests_call);
}

}  // namespace gpumemtrace::recorder::census
