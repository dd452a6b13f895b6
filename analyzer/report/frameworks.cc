#include "analyzer/report/frameworks.h"

#include <array>
#include <set>

#include "analyzer/symbols/names.h"

namespace gpumemtrace::analyzer {
namespace {

struct FrameworkSign {
  std::string_view part;  // of the path of a module or of a Python file
  Framework framework;
};
// Packages of Python where installers put them (a program or an environment may lie in a folder "torch"), and
// the libraries that ask the driver for memory.
constexpr std::array<FrameworkSign, 13> kFrameworkSigns = {{
    {"-packages/cupy/", Framework::kCuPy},
    {"-packages/cupy_backends/", Framework::kCuPy},
    {"-packages/torch/", Framework::kPyTorch},
    {"libc10_cuda", Framework::kPyTorch},
    {"libtorch_cuda", Framework::kPyTorch},
    {"libtorch_python", Framework::kPyTorch},
    {"-packages/jax/", Framework::kJax},
    {"-packages/jaxlib/", Framework::kJax},
    {"-packages/jax_plugins/", Framework::kJax},
    {"xla_cuda_plugin", Framework::kJax},
    {"libjax_common", Framework::kJax},
    {"xla_extension", Framework::kJax},
    {"pjrt_c_api_gpu", Framework::kJax},
}};

Framework FrameworkOfPath(std::string_view path) {
  for (const FrameworkSign& sign : kFrameworkSigns) {
    if (Contains(path, sign.part)) return sign.framework;
  }
  return Framework::kOther;
}

Framework FrameworkOfStack(const TraceModel& model, StackId stack) {
  for (const FrameId id : model.StackFrames(stack)) {
    const FrameInfo& frame = model.Frame(id);
    const StringId path =
        frame.is_python() ? model.Code(frame.code_object).file : model.Module(frame.module).path;
    const Framework framework = FrameworkOfPath(model.String(path));
    if (framework != Framework::kOther) return framework;
  }
  return Framework::kOther;
}

std::set<Framework> FrameworksLoaded(const TraceModel& model) {
  std::set<Framework> loaded;
  for (const ModuleInfo& module : model.modules) loaded.insert(FrameworkOfPath(model.String(module.path)));
  loaded.erase(Framework::kOther);
  return loaded;
}

}  // namespace

Framework FrameworkOf(const AnalyzedTrace& trace, const GrowthFinding& growth) {
  const Framework library = FrameworkOfPath(growth.library);
  if (library != Framework::kOther) return library;
  const std::vector<OriginSummary>& origins = trace.analyses.findings().origins;
  for (const OriginId origin : growth.origins) {
    if (origin >= origins.size()) continue;
    const SiteInfo& site = trace.model.Site(origins[origin].site);
    for (const StackId stack : {site.native_stack, site.python_stack}) {
      const Framework framework = FrameworkOfStack(trace.model, stack);
      if (framework != Framework::kOther) return framework;
    }
  }
  const std::set<Framework> loaded = FrameworksLoaded(trace.model);
  return loaded.size() == 1 ? *loaded.begin() : Framework::kOther;
}

std::string_view TensorNoun(const TraceModel& model) {
  const std::set<Framework> loaded = FrameworksLoaded(model);
  return loaded.empty() || loaded.contains(Framework::kPyTorch) ? "tensor" : "array";
}

}  // namespace gpumemtrace::analyzer
