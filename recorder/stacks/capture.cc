// Capture: walk, look up, and define what is new.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "recorder/stacks/eh_frame.h"
#include "recorder/stacks/hash.h"
#include "recorder/stacks/keep_errno.h"
#include "recorder/stacks/libunwind_api.h"
#include "recorder/stacks/modules.h"
#include "recorder/stacks/native.h"
#include "recorder/stacks/own_code.h"
#include "recorder/stacks/python_interpreter.h"
#include "recorder/stacks/python_walk.h"
#include "recorder/stacks/stack_bounds.h"
#include "recorder/stacks/stacks.h"
#include "recorder/stacks/thread_stacks.h"

namespace gpumemtrace::recorder::stacks {
namespace {

constinit std::atomic<const char*> g_native_problem{nullptr};

// The number of a stack that this thread defined before, 0 = none.
uint64_t FindStack(const ThreadStacks& thread, uint64_t raw) {
  const KnownStack* set = thread.stacks[raw % kStackSets];
  for (size_t i = 0; i < kStackWays; ++i) {
    if (set[i].raw == raw) return set[i].number;
  }
  return 0;
}

void RememberStack(ThreadStacks& thread, uint64_t raw, uint64_t number) {
  KnownStack* set = thread.stacks[raw % kStackSets];
  std::memmove(set + 1, set, (kStackWays - 1) * sizeof(KnownStack));
  set[0] = {raw, number};
}

// Where a path of this Python stack is kept.
KnownPath* PathsOfPython(ThreadStacks& thread, uint64_t frame, uint64_t python) {
  return thread.paths[Mix(frame ^ kSalt0, python ^ kSalt2) % kPathSets];
}

// Where a path is kept that followed the last stack: one Python line, or none, can lead to many native stacks
// (a backward pass, an optimizer's step).
KnownPath* PathsAfterLast(ThreadStacks& thread, uint64_t frame, uint64_t python) {
  return thread.paths[Mix(frame ^ kSalt1, python ^ std::rotl(thread.last_number, 32)) % kPathSets];
}

// The path that will be looked at first is asked for early, after an event and again when the next begins,
// before the Python stack is walked: the program may have displaced it in between.
inline void PrefetchExpected(const ThreadStacks& thread) {
  const KnownPath* path = &thread.paths[0][0] + thread.expected_path;
  __builtin_prefetch(path);
  __builtin_prefetch(reinterpret_cast<const char*>(path) + 64);
}

inline bool IsPath(const ThreadStacks& thread, const KnownPath& path, uint64_t frame, uint64_t python,
                   uint64_t salt) {
  return path.python == python && path.number != 0 && PathIsInside(path, frame, thread) &&
         PathCheck(path, frame, salt) == path.check;
}

// This path was met. In a loop the next is the one that came after it before.
inline void MetPath(ThreadStacks& thread, const KnownPath& path) {
  thread.last_path = static_cast<uint32_t>(&path - &thread.paths[0][0]);
  thread.expected_path = path.next % (kPathSets * kPathWays);
  PrefetchExpected(thread);
}

// Something else was met than was expected.
inline void ExpectAfterLast(ThreadStacks& thread, const KnownPath& path) {
  (&thread.paths[0][0])[thread.last_path].next = static_cast<uint32_t>(&path - &thread.paths[0][0]);
}

// The number of the stack above `frame`, when its path is known; else 0.
__attribute__((noinline)) uint64_t FindUnexpectedPath(ThreadStacks& thread, uint64_t frame, uint64_t python,
                                                      uint64_t salt) {
  const KnownPath* sets[] = {PathsOfPython(thread, frame, python), PathsAfterLast(thread, frame, python)};
  for (const KnownPath* set : sets) {
    for (size_t i = 0; i < kPathWays; ++i) {
      if (!IsPath(thread, set[i], frame, python, salt)) continue;
      ExpectAfterLast(thread, set[i]);
      MetPath(thread, set[i]);
      return set[i].number;
    }
  }
  return 0;
}

inline uint64_t FindPath(ThreadStacks& thread, uint64_t frame, uint64_t python, uint64_t salt) {
  const KnownPath& expected = (&thread.paths[0][0])[thread.expected_path];
  if (!IsPath(thread, expected, frame, python, salt)) [[unlikely]] {
    return FindUnexpectedPath(thread, frame, python, salt);
  }
  const uint64_t number = expected.number;
  MetPath(thread, expected);
  return number;
}

// A free place, if there is one. Else it takes the place of a path of another Python stack, or, where one
// Python line leads to many native stacks, of one that followed the last. Nothing is moved: paths name each
// other by place.
KnownPath& PlaceForPath(ThreadStacks& thread, uint64_t frame, uint64_t python, uint64_t number) {
  KnownPath* by_python = PathsOfPython(thread, frame, python);
  KnownPath* after_last = PathsAfterLast(thread, frame, python);
  for (KnownPath* set : {by_python, after_last}) {
    for (size_t i = 0; i < kPathWays; ++i) {
      if (set[i].number == 0) return set[i];
    }
  }
  static_assert(kPathWays == 2);
  KnownPath& first = by_python[number & 1];
  KnownPath& second = by_python[~number & 1];
  if (first.python != python) return first;
  if (second.python != python) return second;
  return after_last[number & 1];
}

void RememberPath(ThreadStacks& thread, uint64_t frame, uint64_t python, uint64_t salt, uint64_t number) {
  KnownPath& path = thread.path;
  if (path.count == 0 || !PathIsInside(path, frame, thread)) return;
  path.check = PathCheck(path, frame, salt);
  path.python = python;
  path.number = number;
  path.next = 0;
  KnownPath& place = PlaceForPath(thread, frame, python, number);
  place = path;
  ExpectAfterLast(thread, place);
  MetPath(thread, place);
}

// The same stack by its number, in the table of raw stacks: different raw stacks can be one stack, when a
// program compiles the same text again and again.
uint64_t KeyOfNumber(uint64_t number) {
  return Mix(number, kSalt2) | 1;
}

// Everything below is cold: it runs once for each thing that is new to the thread.

bool DefineModule(ThreadStacks& thread, uint64_t address, uint64_t serial, DefinitionSink& sink) {
  const size_t bit = serial % kModuleBits;
  uint64_t& word = thread.modules[bit / 64];
  const uint64_t mask = uint64_t{1} << bit % 64;
  if ((word & mask) != 0) return true;
  ModuleInfo info;
  // The text buffers are free here: code objects are defined later.
  if (!FindModule(address, info, thread.text.file)) return true;
  const ModuleDefinition definition{.path = {thread.text.file, info.path_size},
                                    .build_id = {info.build_id, info.build_id_size},
                                    .load_bias = info.load_bias,
                                    .start = info.start,
                                    .end = info.end};
  if (!sink.DefineModule(definition)) return false;
  word |= mask;
  return true;
}

// The number of a code object that has been defined in this thread's ring, 0 when there was no room.
uint64_t DefineCode(ThreadStacks& thread, const PythonLayout& layout, const char* code,
                    DefinitionSink& sink) {
  const CodeDefinition definition = ReadCode(layout, code, thread.text);
  uint64_t* set = thread.codes[definition.number % kCodeSets];
  for (size_t i = 0; i < kCodeWays; ++i) {
    if (set[i] == definition.number) return definition.number;
  }
  if (!sink.DefineCode(definition)) return 0;
  std::memmove(set + 1, set, (kCodeWays - 1) * sizeof(uint64_t));
  set[0] = definition.number;
  return definition.number;
}

uint64_t DefineStack(ThreadStacks& thread, const PythonInterpreter* interpreter,
                     std::span<const uint64_t> native, size_t python_count, uint64_t raw,
                     DefinitionSink& sink) {
  const KeepErrno keep_errno;
  // Also notices code that was unloaded behind our back, so that the next capture distrusts old rules.
  if (!native.empty()) RefreshModules();
  uint64_t hash = Extend(kSalt1, native.size() << 32 | python_count);
  for (const uint64_t address : native) {
    const ModuleKey module = FindModuleKey(address);
    if (module.serial != 0 && !DefineModule(thread, address, module.serial, sink)) return 0;
    hash = Extend(hash, module.content);
    // Not relative to the module: the ring names frames by address.
    hash = Extend(hash, address);
  }
  for (size_t i = 0; i < python_count; ++i) {
    const RawPythonFrame& frame = thread.python[i];
    const uint64_t code = DefineCode(thread, *interpreter->layout, frame.code, sink);
    if (code == 0) return 0;
    thread.defined_python[i] = {code, frame.instruction, frame.entry};
    hash = Extend(hash, code);
    hash = Extend(
        hash, static_cast<uint64_t>(static_cast<uint32_t>(frame.instruction)) << 1 | (frame.entry ? 1 : 0));
  }
  const uint64_t number = hash != 0 ? hash : 1;
  const uint64_t key = KeyOfNumber(number);
  if (FindStack(thread, key) != number) {
    const StackDefinition definition{
        .number = number, .native = native, .python = {thread.defined_python, python_count}};
    if (!sink.DefineStack(definition)) return 0;
    RememberStack(thread, key, number);
  }
  RememberStack(thread, raw, number);
  return number;
}

// The stacks that were walked last are new to the thread.
__attribute__((noinline)) uint64_t DefineWalked(ThreadStacks& thread, const PythonInterpreter* interpreter,
                                                const NativeWalk& native, size_t python_count, uint64_t raw,
                                                DefinitionSink& sink) {
  if (interpreter != nullptr) {
    WritePythonFrames(thread.python_memory, {thread.python, python_count});
  }
  return DefineStack(thread, interpreter, NativeAddresses(thread, native), python_count, raw, sink);
}

}  // namespace

const size_t kThreadStacksSize = sizeof(ThreadStacks);

bool Prepare() {
  const KeepErrno keep_errno;
  FindOwnCode();
  PrepareEhFrame();
  LearnWhereBoundsAre();
  NoteModuleChanges();
  g_native_problem.store(PrepareLibunwind(), std::memory_order_release);
  return FindInterpreter();
}

InterpreterFacts Interpreter() {
  return CurrentInterpreterFacts();
}

const char* NativeProblem() {
  return g_native_problem.load(std::memory_order_acquire);
}

[[gnu::hot]] uint64_t Capture(ThreadStacks& thread, const CaptureOptions& options, DefinitionSink& sink) {
  const uint64_t generation = UnloadGeneration();
  if (thread.generation != generation) {
    thread.remembered_count = 0;
    std::memset(thread.modules, 0, sizeof(thread.modules));
    thread.generation = generation;
  }
  const PythonInterpreter* interpreter = CurrentInterpreter();
  if (options.native != NativeDepth::kNone) PrefetchExpected(thread);
  PythonWalk python;
  if (options.python && interpreter != nullptr) {
    const char* state = static_cast<const char*>(interpreter->this_thread_state());
    if (state != nullptr) {
      const std::span<RawPythonFrame> frames{thread.python, std::min(options.max_python, kMaxFrames)};
      python = interpreter->walk(state, interpreter->code_type, thread.python_memory, frames);
    }
  }
  NativeWalk native;
  uint64_t salt = 0;
  const auto frame = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
  if (options.native != NativeDepth::kNone) {
    const PythonInterpreter* stop = options.native == NativeDepth::kToPython ? interpreter : nullptr;
    const size_t most = std::min(options.max_native, kMaxFrames);
    salt = PathSalt(thread, stop, most);
    if (const uint64_t number = FindPath(thread, frame, python.hash, salt); number != 0) {
      return thread.last_number = number;
    }
    native = WalkNativeFrom(frame, thread, stop, most);
  }
  if (native.count == 0 && python.count == 0) return 0;
  uint64_t raw = Mix(native.hash ^ kSalt0, python.hash ^ kSalt1) + generation * kSalt2;
  raw |= 1;
  uint64_t number = FindStack(thread, raw);
  if (number == 0) number = DefineWalked(thread, interpreter, native, python.count, raw, sink);
  if (options.native != NativeDepth::kNone && number != 0) {
    RememberPath(thread, frame, python.hash, salt, number);
    thread.last_number = number;
  }
  return number;
}

void ModulesChanged() {
  if (NoteModuleChanges()) LibunwindForget();
}

void Forget(ThreadStacks& thread) {
  std::memset(thread.modules, 0, sizeof(thread.modules));
  std::memset(thread.codes, 0, sizeof(thread.codes));
  std::memset(thread.stacks, 0, sizeof(thread.stacks));
  std::memset(thread.paths, 0, sizeof(thread.paths));
}

void AfterForkInChild() {
  ResetModulesAfterFork();
  ResetInterpreterAfterFork();
}

}  // namespace gpumemtrace::recorder::stacks
