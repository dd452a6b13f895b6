// Turns frames into functions, files and lines: native ones with the modules' debug information and symbol
// tables found on this machine (build-ids must match), Python ones with the line tables in the trace.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "analyzer/trace/model.h"

namespace gpumemtrace::analyzer {

struct Location {
  // Demangled. When nothing is known: "module.so+0x1234" for native frames.
  std::string function;
  // Empty when unknown.
  std::string file;
  // 0 when unknown.
  uint32_t line = 0;
  // Base name of the ELF object; empty for Python frames.
  std::string module;
  bool python = false;
  // This function was inlined into the next one of the same frame.
  bool inlined = false;
  // `function` is a real name, not an offset.
  bool named = false;
};

struct SymbolizerOptions {
  // Folders to look in for modules and debug files, by build-id and by base name, before the usual places.
  std::vector<std::string> symbol_paths;
  // False: Python frames only; native frames as module+offset.
  bool native = true;
};

// Which stack of a site.
struct MergedFrame {
  FrameId frame = 0;
  // The frame is of the forward stack that a backward allocation belongs to.
  bool forward = false;
};

// Answers are cached per frame; not thread-safe. The model must outlive the symbolizer and may grow.
class Symbolizer {
 public:
  Symbolizer(const TraceModel& model, SymbolizerOptions options);
  ~Symbolizer();
  Symbolizer(const Symbolizer&) = delete;
  Symbolizer& operator=(const Symbolizer&) = delete;

  // Innermost (inlined) function first; never empty.
  std::span<const Location> Resolve(FrameId frame);

  // Base name of the ELF object of a native frame, "" for Python; needs no files.
  std::string_view ModuleName(FrameId frame);

  // The stacks of a site as one, innermost first: native frames down to the evaluation loop, then Python
  // frames, the way a debugger shows mixed stacks; then, marked, the forward stack.
  std::vector<MergedFrame> Merge(const SiteInfo& site);

  // "file.py:12 function" or "function (module.so) file.cc:34".
  static std::string Describe(const Location& location);

  // Modules that were wanted but not found here or differ in build-id, for the report.
  std::vector<std::string> MissingModules() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Line of the instruction at byte offset `instruction` in a Python code object; 0 when the table gives none,
// the first line of the function when the instruction or the table is unknown. Understands the tables of
// CPython 3.8 to 3.14.
uint32_t PythonLine(const CodeObjectInfo& code, int32_t instruction);

}  // namespace gpumemtrace::analyzer
