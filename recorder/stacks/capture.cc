// Capture: walk, look up, and define what is new.
#include <algorithm>
#include <atomic>
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

// Where a path of this Python stack is kept; without one, where the path is kept that followed the last
// stack.
KnownPath* PathSet(ThreadStacks& thread, uint64_t frame, uint64_t python) {
  const uint64_t key = Mix(frame ^ kSalt0, (python != 0 ? python : thread.last_number) ^ kSalt2);
  return thread.paths[key % kPathSets];
}

// The path that will be looked at next is asked for early: in a loop it is the one that came next before.
inline void PrefetchPath(const ThreadStacks& thread, uint32_t place) {
  const KnownPath* path = &thread.paths[0][0] + place % (kPathSets * kPathWays);
  __builtin_prefetch(path);
  __builtin_prefetch(reinterpret_cast<const char*>(path) + 64);
}

inline void ExpectAfterLast(ThreadStacks& thread, const KnownPath* path) {
  const auto place = static_cast<uint32_t>(path - &thread.paths[0][0]);
  KnownPath& last = (&thread.paths[0][0])[thread.last_path];
  if (last.next != place) last.next = place;
  thread.last_path = place;
}

// The number of the stack above `frame`, when it is one of the set's; else 0.
inline uint64_t FindPath(ThreadStacks& thread, const KnownPath* set, uint64_t frame, uint64_t python,
                         uint64_t salt) {
  for (size_t i = 0; i < kPathWays; ++i) {
    const KnownPath& path = set[i];
    if (path.python == python && path.number != 0 && PathIsInside(path, frame, thread) &&
        PathCheck(path, frame, salt) == path.check) {
      const uint64_t number = path.number;
      const uint32_t next = path.next;
      ExpectAfterLast(thread, set + i);
      PrefetchPath(thread, next);
      return number;
    }
  }
  return 0;
}

void RememberPath(ThreadStacks& thread, KnownPath* set, uint64_t frame, uint64_t python, uint64_t salt,
                  uint64_t number) {
  KnownPath& path = thread.path;
  if (path.count == 0 || !PathIsInside(path, frame, thread)) return;
  path.check = PathCheck(path, frame, salt);
  path.python = python;
  path.number = number;
  path.next = 0;
  std::memmove(set + 1, set, (kPathWays - 1) * sizeof(KnownPath));
  set[0] = path;
  ExpectAfterLast(thread, set);
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
  PythonWalk python;
  if (options.python && interpreter != nullptr) {
    const char* state = static_cast<const char*>(interpreter->this_thread_state());
    if (state != nullptr) {
      const std::span<RawPythonFrame> frames{thread.python, std::min(options.max_python, kMaxFrames)};
      python = interpreter->walk(state, interpreter->code_type, thread.python_memory, frames);
    }
  }
  NativeWalk native;
  KnownPath* set = nullptr;
  uint64_t salt = 0;
  const auto frame = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
  if (options.native != NativeDepth::kNone) {
    const PythonInterpreter* stop = options.native == NativeDepth::kToPython ? interpreter : nullptr;
    const size_t most = std::min(options.max_native, kMaxFrames);
    set = PathSet(thread, frame, python.hash);
    salt = PathSalt(thread, stop, most);
    if (const uint64_t number = FindPath(thread, set, frame, python.hash, salt); number != 0) {
      return thread.last_number = number;
    }
    native = WalkNativeFrom(frame, thread, stop, most);
  }
  if (native.count == 0 && python.count == 0) return 0;
  uint64_t raw = Mix(native.hash ^ kSalt0, python.hash ^ kSalt1) + generation * kSalt2;
  raw |= 1;
  uint64_t number = FindStack(thread, raw);
  if (number == 0) number = DefineWalked(thread, interpreter, native, python.count, raw, sink);
  if (set != nullptr && number != 0) {
    RememberPath(thread, set, frame, python.hash, salt, number);
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
