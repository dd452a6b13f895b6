// Captures the calling thread's native and Python stacks and gives each distinct pair a 64-bit number.
//
// The warm path takes no lock, allocates nothing and makes no system call. A stack, code object or module
// that this thread has not met before is described once through a DefinitionSink, before its number is
// returned. Numbers are hashes of content: the same stack has the same number in every thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpumemtrace::recorder::stacks {

struct PythonFrame {
  // Number of a code object given to DefinitionSink::DefineCode before.
  uint64_t code;
  // Byte offset of the executing instruction, −1 = unknown.
  int32_t instruction;
  // Entered from C: the native frames of one evaluation loop end here.
  bool entry;
};

struct CodeDefinition {
  uint64_t number;
  // Bytes as the operating system would give them: UTF-8 where they are text.
  std::span<const char> file;
  std::span<const char> qualified_name;
  int32_t first_line;
  std::span<const unsigned char> line_table;
  // PY_VERSION_HEX >> 16.
  uint32_t python_version;
};

struct ModuleDefinition {
  std::span<const char> path;
  std::span<const unsigned char> build_id;
  uint64_t load_bias;
  // Lowest and one past the highest mapped address.
  uint64_t start;
  uint64_t end;
};

struct StackDefinition {
  uint64_t number;
  // Return addresses, innermost first; frames of the shim itself are left out. The module of each is the
  // last one defined in this ring that covers it; an address in no module is code without a file.
  std::span<const uint64_t> native;
  // Innermost first.
  std::span<const PythonFrame> python;
};

// Where definitions go; the recorder appends them to the calling thread's ring. A call returns false when
// there was no room; the capture then returns 0 and tries again next time. The spans live until the call
// returns. A number may be defined again (small caches forget); it then means the same.
class DefinitionSink {
 public:
  virtual bool DefineModule(const ModuleDefinition& module) = 0;
  virtual bool DefineCode(const CodeDefinition& code) = 0;
  virtual bool DefineStack(const StackDefinition& stack) = 0;

 protected:
  ~DefinitionSink() = default;
};

enum class NativeDepth : uint8_t { kNone, kToPython, kFull };

struct CaptureOptions {
  NativeDepth native = NativeDepth::kToPython;
  bool python = true;
  // Frames kept of each kind, innermost first; greater values than kMaxFrames are taken as kMaxFrames.
  uint16_t max_native = 128;
  uint16_t max_python = 256;
};
inline constexpr uint16_t kMaxFrames = 1024;

// What a thread remembers between captures: the numbers it has already defined, its code objects, the last
// stack. Lives in memory that the recorder gives, zero-filled, kThreadStacksSize bytes (most of them never
// touched: give it mmap memory), aligned to 64; it may be handed to another thread after the first one has
// died, together with the ring the definitions went to.
struct ThreadStacks;
extern const size_t kThreadStacksSize;

// What is known about the Python interpreter of this process.
struct InterpreterFacts {
  // PY_VERSION_HEX; 0 = no interpreter was found.
  uint32_t version = 0;
  bool free_threaded = false;
  // False when Python stacks cannot be read; then `reason`, a string that lives for ever, says why.
  bool supported = false;
  const char* reason = "";
};

// Looks for a Python interpreter, for libunwind and for our own code; called when tracing starts and again
// after ModulesChanged. Takes the loader's lock; never call it on the warm path, nor under a lock that a
// static constructor could want. Returns true when the answer of Interpreter() changed.
bool Prepare();

InterpreterFacts Interpreter();

// Why native stacks may be missing or cut short, a string that lives for ever; null = all is well.
const char* NativeProblem();

// Captures both stacks of the caller. Returns the stack's number, 0 when nothing could be captured. Not to
// be entered again on one ThreadStacks (from a signal handler) while a call is running.
uint64_t Capture(ThreadStacks& thread, const CaptureOptions& options, DefinitionSink& sink);

// Must be called after dlopen or dlclose: addresses may mean other code now. Cheap and lock-free but for
// the loader's own reader lock.
void ModulesChanged();

// Makes `thread` define everything again: its ring was emptied or replaced (the child of a fork).
void Forget(ThreadStacks& thread);

// In the child of a fork, before the first Capture there: locks that other threads held are free again.
void AfterForkInChild();

}  // namespace gpumemtrace::recorder::stacks
