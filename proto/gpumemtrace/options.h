// Every option of the recorder: the one source of what it parses, of what `gpumem-analyze options` prints
// and of docs/options.md. Options are environment variables. Plain data, no includes of ours.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumemtrace::options {

enum class Type : uint8_t {
  // 0 or 1 (also off, on, no, yes, false, true).
  kSwitch,
  // A whole number between `least` and `greatest`.
  kNumber,
  // A number of bytes between `least` and `greatest`; K, M, G, T (powers of 1024) may follow.
  kBytes,
  // One of the words in `choices`, separated by '|'.
  kChoice,
  // Any of the words in `choices`, separated by ','; empty or "all" = all of them.
  kSet,
  // Any text.
  kText,
};

struct Option {
  const char* name;
  Type type;
  // As the user would write it.
  const char* default_value;
  const char* choices;
  uint64_t least;
  uint64_t greatest;
  // One paragraph, for people.
  const char* text;
};

// The place of an option in kOptions.
enum Id : size_t {
  kEnabled,
  kOut,
  kStacks,
  kNativeDepth,
  kMaxNativeFrames,
  kMaxPythonFrames,
  kMinSize,
  kSpaces,
  kFlushMs,
  kRings,
  kRingBytes,
  kMaxBytes,
  kCommandLine,
  kQuiet,
  kCensus,
  kCensusBudgetMs,
  kCensusGrowth,
  kCensusSignal,
  kOptionCount,
};

inline constexpr Option kOptions[kOptionCount] = {
    {"GPUMEMTRACE", Type::kSwitch, "1", "", 0, 0,
     "0 makes the preloaded library inert: every call goes straight to the original."},
    {"GPUMEMTRACE_OUT", Type::kText, "", "", 0, 0,
     "Where the trace goes. %p is replaced by the process id, %h by the host name, %r by the rank (0 outside "
     "a "
     "multi-process job), %% by a percent sign. An existing file is never overwritten: a number is put "
     "before "
     "the extension (trace.2.pb). Without this option: trace.pb in the working directory, or "
     "trace.rank<R>.pb in a multi-process job."},
    {"GPUMEMTRACE_STACKS", Type::kChoice, "both", "both|python|native|none", 0, 0,
     "Which stacks are captured for allocations."},
    {"GPUMEMTRACE_NATIVE_DEPTH", Type::kChoice, "python", "python|full", 0, 0,
     "How far native stacks go: down to the innermost Python frame, below which the Python stack tells the "
     "story (threads without Python: all of it), or always to the end."},
    {"GPUMEMTRACE_MAX_NATIVE_FRAMES", Type::kNumber, "128", "", 1, 1024,
     "Native frames kept of one stack, innermost first."},
    {"GPUMEMTRACE_MAX_PYTHON_FRAMES", Type::kNumber, "256", "", 1, 1024,
     "Python frames kept of one stack, innermost first."},
    {"GPUMEMTRACE_MIN_SIZE", Type::kBytes, "0", "", 0, uint64_t{1} << 50,
     "Allocations smaller than this are recorded without stacks. They still count in every sum."},
    {"GPUMEMTRACE_SPACES", Type::kSet, "all",
     "device,managed,pinned_host,registered_host,stream_ordered,virtual,array,graph,alias,host_pool", 0, 0,
     "Which kinds of memory are recorded. Leaving one out makes the account of the device incomplete, and "
     "the "
     "report says so."},
    {"GPUMEMTRACE_FLUSH_MS", Type::kNumber, "1000", "", 10, 60000,
     "Events are written to the trace at least this often, in milliseconds. Nothing is lost in between when "
     "the "
     "process is killed: events wait in the ring file."},
    {"GPUMEMTRACE_RINGS", Type::kChoice, "auto", "auto|shm|trace|private", 0, 0,
     "Where events wait until they are written: a file in /dev/shm, a file beside the trace, or private "
     "memory, "
     "which does not survive when the process is killed. auto takes the first that has room."},
    {"GPUMEMTRACE_RING_BYTES", Type::kBytes, "1M", "", uint64_t{256} << 10, uint64_t{64} << 20,
     "Bytes of memory for each thread's waiting events, rounded up to a power of two."},
    {"GPUMEMTRACE_MAX_BYTES", Type::kBytes, "2G", "", uint64_t{1} << 20, uint64_t{1} << 50,
     "Bytes that the trace may take on disk. Before it gets there the oldest part is folded: memory that was "
     "allocated and freed within one of its windows is only counted by stack; everything that outlived its "
     "window, every window's peak and all of the highest moment stay. Needs the permission to make a file "
     "beside the trace."},
    {"GPUMEMTRACE_COMMAND_LINE", Type::kSwitch, "1", "", 0, 0,
     "0 leaves the program's arguments out of the trace."},
    {"GPUMEMTRACE_QUIET", Type::kSwitch, "0", "", 0, 0,
     "1 leaves out the line on stderr at exit that says what was written. Problems are still reported."},
    {"GPUMEMTRACE_CENSUS", Type::kChoice, "auto", "auto|exit|off", 0, 0,
     "When the Python heap is searched for live device tensors and the names that keep them: auto = before "
     "exit, "
     "when PyTorch runs out of memory, and ever more seldom while memory grows (at most 1 % of the time); "
     "exit = before exit and when PyTorch runs out of memory; off = never."},
    {"GPUMEMTRACE_CENSUS_BUDGET_MS", Type::kNumber, "2000", "", 10, 600000,
     "Longest time for one such search, in milliseconds. What could not be finished is said in the report."},
    {"GPUMEMTRACE_CENSUS_GROWTH", Type::kBytes, "0", "", 0, uint64_t{1} << 50,
     "Search also whenever the memory of tensors has grown by so many bytes since the last time; 0 = no such "
     "limit."},
    {"GPUMEMTRACE_CENSUS_SIGNAL", Type::kNumber, "0", "", 0, 64,
     "Number of a signal (12 = SIGUSR2) on which to search; 0 = none. A handler that the program has "
     "installed "
     "itself is never replaced."},
};

}  // namespace gpumemtrace::options
