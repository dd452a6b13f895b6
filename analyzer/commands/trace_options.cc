#include "analyzer/commands/trace_options.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "analyzer/report/text.h"

namespace gpumemtrace::analyzer {
namespace {

// A line on the terminal while a long trace is read; nothing when stderr is not one, or when it takes under a
// second.
class ProgressLine {
 public:
  ProgressLine() : enabled_(isatty(STDERR_FILENO) != 0) {}
  ~ProgressLine() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Update(uint64_t done, uint64_t total) {
    if (!enabled_ || total == 0) return;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    shown_ = true;
    std::fprintf(stderr, "\rreading: %3.0f %%",
                 100.0 * static_cast<double>(done) / static_cast<double>(total));
  }

 private:
  const bool enabled_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + std::chrono::seconds(1);
};

}  // namespace

void PrintError(const std::string& message) {
  std::fprintf(stderr, "gpumem-analyze: %s\n", Printable(message).c_str());
}

void TraceOptions::AddTo(CLI::App& command) {
  command
      .add_option("--rings", options_.reader.ring_file,
                  "Ring file of a killed process, when it is not where the trace says (a copy)")
      ->type_name("FILE");
  command.add_flag("--no-rings", no_rings_, "Do not look for what a killed process left in its rings");
  command
      .add_option(
          "--symbols", options_.symbols.symbol_paths,
          "Folder with copies of libraries or debug files, by name or as .build-id/xx/yyy.debug (repeatable)")
      ->type_name("DIR");
  command.add_flag("--no-symbols", no_symbols_, "Do not open libraries: native frames as module+offset");
  command
      .add_option("--user-code", options_.analyses.user_code,
                  "Path prefix of your own code, where it looks like a library's (repeatable)")
      ->type_name("PREFIX");
  command
      .add_option("--suppressions", suppressions_file_,
                  "Known leaks, one 'leak:<pattern>' a line, as for LeakSanitizer")
      ->type_name("FILE");
  command.add_option("--step-range", options_.analyses.step_range, "Take NVTX ranges of this name as steps")
      ->type_name("NAME");
}

std::unique_ptr<AnalyzedTrace> TraceOptions::Read(const std::string& path, int& exit_code,
                                                  const std::vector<uint64_t>& snapshots) const {
  AnalyzeOptions options = options_;
  options.analyses.snapshots = snapshots;
  options.symbols.native = !no_symbols_;
  options.reader.recover = !no_rings_;
  if (!suppressions_file_.empty()) {
    std::ifstream file(suppressions_file_);
    if (!file) {
      PrintError(absl::StrCat(suppressions_file_, ": cannot be read: ", std::strerror(errno)));
      exit_code = kExitCannotRead;
      return nullptr;
    }
    for (std::string line; std::getline(file, line);) options.analyses.suppressions.push_back(line);
  }
  std::unique_ptr<AnalyzedTrace> trace;
  {
    ProgressLine progress;
    options.reader.progress = [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); };
    trace = Analyze(path, options);
  }
  exit_code = ExitCodeOf(*trace);
  if (trace->read.fault != TraceFault::kNone) {
    PrintError(trace->read.message);
    return nullptr;
  }
  return trace;
}

}  // namespace gpumemtrace::analyzer
