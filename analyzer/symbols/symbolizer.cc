#include "analyzer/symbols/symbolizer.h"

#include <cxxabi.h>

#include <cstdlib>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "analyzer/symbols/elf_module.h"
#include "analyzer/symbols/names.h"

namespace gpumemtrace::analyzer {
namespace {

std::string Demangle(const std::string& name) {
  if (!name.starts_with("_Z")) return name;
  // Versions ("@@GLIBC_2.2.5") and suffixes (".cold", ".part.0") are not part of the mangled name.
  const size_t suffix = name.find_first_of(".@");
  int status = 0;
  char* text = abi::__cxa_demangle(name.substr(0, suffix).c_str(), nullptr, nullptr, &status);
  if (text == nullptr) return name;
  std::string demangled = text;
  std::free(text);
  return demangled;
}

// The function that runs Python bytecode; since 3.14 there is an interpreter made of tail calls.
bool IsEvaluationLoop(const Location& location) {
  return location.named &&
         (location.function.starts_with("_PyEval_EvalFrame") || location.function.starts_with("_TAIL_CALL_"));
}

}  // namespace

class Symbolizer::Implementation {
 public:
  Implementation(const TraceModel& model, SymbolizerOptions options)
      : model_(model), options_(std::move(options)) {}

  std::span<const Location> Resolve(FrameId frame) {
    const auto [it, added] = frames_.try_emplace(frame);
    if (added) it->second = std::make_unique<std::vector<Location>>(Make(model_.Frame(frame)));
    return *it->second;
  }

  std::string_view ModuleName(FrameId frame) const {
    return BaseName(model_.String(model_.Module(model_.Frame(frame).module).path));
  }

  std::vector<MergedFrame> Merge(const SiteInfo& site) {
    std::vector<MergedFrame> merged;
    const std::vector<FrameId> python = model_.StackFrames(site.python_stack);
    size_t next_python = 0;
    for (const FrameId frame : model_.StackFrames(site.native_stack)) {
      if (next_python >= python.size() || !IsEvaluationLoop(Resolve(frame).back())) {
        merged.push_back({frame, false});
        continue;
      }
      // One run of the loop executes Python frames up to the one that was entered from C.
      while (next_python < python.size()) {
        const FrameId python_frame = python[next_python++];
        merged.push_back({python_frame, false});
        if (model_.Frame(python_frame).entry) break;
      }
    }
    while (next_python < python.size()) merged.push_back({python[next_python++], false});
    for (const FrameId frame : model_.StackFrames(site.forward_stack)) merged.push_back({frame, true});
    return merged;
  }

  std::vector<std::string> MissingModules() const {
    std::vector<std::string> missing;
    for (const auto& [path, why] : missing_) missing.push_back(absl::StrCat(path, " (", why, ")"));
    return missing;
  }

 private:
  std::vector<Location> Make(const FrameInfo& frame) {
    if (frame.is_python()) {
      const CodeObjectInfo& code = model_.Code(frame.code_object);
      Location location;
      location.python = true;
      location.function = model_.String(code.qualified_name);
      location.named = !location.function.empty();
      if (!location.named) location.function = "?";
      location.file = model_.String(code.file);
      location.line = PythonLine(code, frame.instruction);
      return {location};
    }
    Location unknown;
    unknown.module = BaseName(model_.String(model_.Module(frame.module).path));
    unknown.function = frame.module != 0 ? absl::StrCat(unknown.module, "+0x", absl::Hex(frame.offset))
                                         : absl::StrCat("0x", absl::Hex(frame.offset));
    ElfModule* module = options_.native && frame.module != 0 ? Open(frame.module) : nullptr;
    // Frames hold return addresses; the call is the instruction before.
    if (module == nullptr || frame.offset == 0) return {unknown};
    std::vector<Location> locations;
    for (const NativeLocation& native : module->Locate(frame.offset - 1)) {
      Location location = unknown;
      if (!native.function.empty()) {
        location.function = Demangle(native.function);
        location.named = true;
      }
      location.file = native.file;
      location.line = native.line;
      location.inlined = native.inlined;
      locations.push_back(std::move(location));
    }
    if (locations.empty()) locations.push_back(unknown);
    return locations;
  }

  ElfModule* Open(ModuleId id) {
    const ModuleInfo& module = model_.Module(id);
    const std::string path(model_.String(module.path));
    const auto [it, added] = files_.try_emplace({path, module.build_id});
    if (added) {
      std::string why;
      it->second = ElfModule::Find(path, module.build_id, options_.symbol_paths, why);
      if (it->second == nullptr && !path.empty()) missing_.try_emplace(path, why);
    }
    return it->second.get();
  }

  const TraceModel& model_;
  const SymbolizerOptions options_;
  // Stable addresses: Resolve hands out spans.
  absl::flat_hash_map<FrameId, std::unique_ptr<std::vector<Location>>> frames_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<ElfModule>> files_;
  std::map<std::string, std::string> missing_;
};

Symbolizer::Symbolizer(const TraceModel& model, SymbolizerOptions options)
    : implementation_(std::make_unique<Implementation>(model, std::move(options))) {}
Symbolizer::~Symbolizer() = default;

std::span<const Location> Symbolizer::Resolve(FrameId frame) {
  return implementation_->Resolve(frame);
}
std::string_view Symbolizer::ModuleName(FrameId frame) {
  return implementation_->ModuleName(frame);
}
std::vector<MergedFrame> Symbolizer::Merge(const SiteInfo& site) {
  return implementation_->Merge(site);
}
std::vector<std::string> Symbolizer::MissingModules() const {
  return implementation_->MissingModules();
}

std::string Symbolizer::Describe(const Location& location) {
  const std::string place =
      location.file.empty()
          ? std::string()
          : absl::StrCat(location.file, location.line != 0 ? absl::StrCat(":", location.line) : "");
  if (location.python) return absl::StrCat(place.empty() ? "?" : place, " ", location.function);
  std::string text = location.function;
  // An unnamed frame already says its module.
  if (location.named && !location.module.empty()) absl::StrAppend(&text, " (", location.module, ")");
  if (!place.empty()) absl::StrAppend(&text, " ", place);
  return text;
}

}  // namespace gpumemtrace::analyzer
