// A shared object that a test loads with ctypes: captures the caller's stacks through the shipped code and
// gives what was defined back as text. It plays the shim, so its own frames must not appear.
#include <sys/mman.h>

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "recorder/stacks/native.h"
#include "recorder/stacks/python_code_frees.h"
#include "recorder/stacks/python_interpreter.h"
#include "recorder/stacks/stacks.h"

namespace {

using namespace gpumemtrace::recorder;

struct Code {
  std::string file;
  std::string qualified_name;
  int32_t first_line;
  std::string line_table;
};

struct Module {
  std::string path;
  uint64_t load_bias;
  uint64_t start;
  uint64_t end;
};

struct Stack {
  std::vector<uint64_t> native;
  std::vector<stacks::PythonFrame> python;
};

// One thread's side of the contract: what its ring would hold.
class Ring final : public stacks::DefinitionSink {
 public:
  bool DefineModule(const stacks::ModuleDefinition& module) override {
    modules.push_back(
        {std::string(module.path.begin(), module.path.end()), module.load_bias, module.start, module.end});
    return true;
  }
  bool DefineCode(const stacks::CodeDefinition& code) override {
    codes[code.number] = {std::string(code.file.begin(), code.file.end()),
                          std::string(code.qualified_name.begin(), code.qualified_name.end()),
                          code.first_line, std::string(code.line_table.begin(), code.line_table.end())};
    return true;
  }
  bool DefineStack(const stacks::StackDefinition& stack) override {
    ++definitions;
    stacks[stack.number] = {{stack.native.begin(), stack.native.end()},
                            {stack.python.begin(), stack.python.end()}};
    return true;
  }

  std::vector<Module> modules;
  std::map<uint64_t, Code> codes;
  std::map<uint64_t, Stack> stacks;
  uint64_t definitions = 0;
};

struct Thread {
  stacks::ThreadStacks* stacks = nullptr;
  Ring* ring = nullptr;
};

thread_local Thread t_thread;

Thread& ThisThread() {
  if (t_thread.stacks == nullptr) {
    void* memory =
        mmap(nullptr, stacks::kThreadStacksSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::perror("mmap");
    t_thread.stacks = static_cast<stacks::ThreadStacks*>(memory);
    t_thread.ring = new Ring;  // lives as long as the process
  }
  return t_thread;
}

std::string Hex(const std::string& bytes) {
  std::string out;
  for (const char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    out += digits;
  }
  return out;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int probe_prepare() {
  return stacks::Prepare() ? 1 : 0;
}
EXPORT unsigned probe_version() {
  return stacks::Interpreter().version;
}
EXPORT int probe_supported() {
  return stacks::Interpreter().supported ? 1 : 0;
}
EXPORT int probe_free_threaded() {
  return stacks::Interpreter().free_threaded ? 1 : 0;
}
EXPORT const char* probe_reason() {
  return stacks::Interpreter().reason;
}
EXPORT void probe_modules_changed() {
  stacks::ModulesChanged();
}
EXPORT void probe_after_fork() {
  stacks::AfterForkInChild();
  stacks::Forget(*ThisThread().stacks);
}

// native: 0 none, 1 to Python, 2 full.
EXPORT uint64_t probe_capture(int native, int most_native, int most_python) {
  Thread& thread = ThisThread();
  stacks::CaptureOptions options;
  options.native = static_cast<stacks::NativeDepth>(native);
  options.python = most_python != 0;
  options.max_native = static_cast<uint16_t>(most_native);
  options.max_python = static_cast<uint16_t>(most_python);
  return stacks::Capture(*thread.stacks, options, *thread.ring);
}

// The median over batches of what one capture of the same stack costs, in nanoseconds of this thread.
EXPORT double probe_benchmark(int batches, int native, int most_python) {
  Thread& thread = ThisThread();
  stacks::CaptureOptions options;
  options.native = static_cast<stacks::NativeDepth>(native);
  options.python = most_python != 0;
  constexpr int kBatch = 200;
  std::vector<double> costs;
  for (int i = 0; i < batches; ++i) {
    timespec begin{};
    timespec end{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (int j = 0; j < kBatch; ++j) stacks::Capture(*thread.stacks, options, *thread.ring);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    costs.push_back((static_cast<double>(end.tv_sec - begin.tv_sec) * 1e9 +
                     static_cast<double>(end.tv_nsec - begin.tv_nsec)) /
                    kBatch);
  }
  std::sort(costs.begin(), costs.end());
  return costs[costs.size() / 2];
}

// Whether libunwind gives the same native stack as our unwinding.
EXPORT int probe_native_equals_libunwind(int to_python) {
  stacks::ThreadStacks& stacks = *ThisThread().stacks;
  const stacks::PythonInterpreter* stop = to_python != 0 ? stacks::CurrentInterpreter() : nullptr;
  const stacks::NativeWalk ours = stacks::WalkNative(stacks, stop, 900);
  const auto span = stacks::NativeAddresses(stacks, ours);
  const std::vector<uint64_t> addresses(span.begin(), span.end());
  const stacks::NativeWalk theirs = stacks::WalkByLibunwind(stacks, stop, 900, 0);
  const auto other = stacks::NativeAddresses(stacks, theirs);
  return std::equal(addresses.begin(), addresses.end(), other.begin(), other.end()) ? 1 : 0;
}
EXPORT uint64_t probe_libunwind_walks() {
  return stacks::LibunwindWalks();
}

// Code objects that were freed since it is counted, + 1; 0 = they are not counted.
EXPORT uint64_t probe_code_frees() {
  const stacks::PythonInterpreter* interpreter = stacks::CurrentInterpreter();
  return interpreter != nullptr ? stacks::CountOfCodeFrees(interpreter->code_type) : 0;
}

EXPORT uint64_t probe_definitions() {
  return ThisThread().ring->definitions;
}

// The stack with this number as lines of text; the result is the text's full length.
EXPORT size_t probe_text(uint64_t number, char* out, size_t size) {
  const Ring& ring = *ThisThread().ring;
  std::string text;
  const auto found = ring.stacks.find(number);
  if (found == ring.stacks.end()) {
    text = "unknown\n";
  } else {
    for (const stacks::PythonFrame& frame : found->second.python) {
      const auto code = ring.codes.find(frame.code);
      if (code == ring.codes.end()) {
        text += "code not defined\n";
        continue;
      }
      text += "python " + Hex(code->second.file) + "." + " " + Hex(code->second.qualified_name) + ". " +
              std::to_string(code->second.first_line) + " " + std::to_string(frame.instruction) + " " +
              (frame.entry ? "1" : "0") + " " + Hex(code->second.line_table) + ".\n";
    }
    for (const uint64_t address : found->second.native) {
      std::string path = "?";
      uint64_t offset = address;
      for (const Module& module : ring.modules) {
        if (address < module.start || address >= module.end) continue;
        path = module.path;
        offset = address - module.load_bias;
      }
      text += "native " + path + " " + std::to_string(offset) + "\n";
    }
  }
  if (size != 0) {
    const size_t copied = text.size() < size - 1 ? text.size() : size - 1;
    std::memcpy(out, text.data(), copied);
    out[copied] = '\0';
  }
  return text.size();
}

// Calls back, so that Python runs below C below Python.
EXPORT void probe_call(void (*function)()) {
  function();
}

// Captures when the thread's specific data are destroyed and when the process has finalized Python.
namespace {

struct AtThreadEnd {
  bool wanted = false;
  ~AtThreadEnd() {
    if (wanted) probe_capture(2, 128, 256);
  }
};
thread_local AtThreadEnd t_at_thread_end;

}  // namespace

EXPORT void probe_capture_at_thread_end() {
  t_at_thread_end.wanted = true;
}

static bool g_capture_at_exit = false;
EXPORT void probe_capture_at_exit() {
  g_capture_at_exit = true;
}
__attribute__((destructor)) static void AtUnload() {
  if (!g_capture_at_exit) return;
  const uint64_t number = probe_capture(2, 128, 256);
  static char text[65536];
  probe_text(number, text, sizeof(text));
  const bool python = std::strstr(text, "python ") != nullptr;
  std::printf("after finalization: %s python frames, %s\n", python ? "with" : "without",
              number != 0 ? "native stack" : "no stack");
  std::fflush(stdout);
}
