// Captures the calling thread's native and Python stacks and gives each distinct pair a 64-bit number.
//
// The warm path takes no lock, allocates nothing and makes no system call. A stack, code object or module
// that this thread has not met before is described once through a DefinitionSink, before its number is
// returned.
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
  uint64_t start;
  uint64_t end;
};

struct StackDefinition {
  uint64_t number;
  // Return addresses, innermost first; frames of the shim itself are left out.
  std::span<const uint64_t> native;
  // Innermost first.
  std::span<const PythonFrame> python;
};

// Where definitions go; the recorder appends them to the calling thread's ring. A call returns false when
// there was no room; the capture then returns 0 and tries again next time.
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
  // Frames kept of each kind, innermost first.
  uint16_t max_native = 128;
  uint16_t max_python = 256;
};

// What a thread remembers between captures: the numbers it has already defined, its code objects, depth
// hints. Lives in memory that the recorder gives, zero-filled, kSize bytes, aligned to 64; it may be handed
// to another thread after the first one has died, together with the ring the definitions went to.
struct ThreadStacks;
extern const size_t kThreadStacksSize;

// Looks for a Python interpreter and for libunwind; called when tracing starts and again whenever modules
// changed. Takes the loader's lock for reading; never call it on the warm path.
void Prepare();

// Captures both stacks of the caller. Returns the stack's number, 0 when nothing could be captured.
uint64_t Capture(ThreadStacks& thread, const CaptureOptions& options, DefinitionSink& sink);

// Must be called after dlopen or dlclose: addresses may mean other code now.
void ModulesChanged();

}  // namespace gpumemtrace::recorder::stacks
