#include "analyzer/analyses/unheld.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "analyzer/symbols/names.h"

namespace gpumemtrace::analyzer {
namespace {

struct Sign {
  // Part of the name of a native function (PyTorch 2.x's own names unless said).
  const char* function;
  const char* text;
  const char* next;
  bool workspace;
  bool library = false;  // the name of a library: what else it asks for may be a tensor
};

constexpr const char* kGraph = "memory of a captured CUDA graph";
constexpr const char* kDropGraph =
    "dropping the graph: reset(), or del of the CUDAGraph and all that replays it";

// Functions of PyTorch 2.x that make a tensor (ATen/EmptyTensor.cpp, ATen/cuda/EmptyTensor.cpp,
// ATen/ops/empty*.h).
constexpr const char* kTensorMakers[] = {"empty_generic", "empty_cuda", "empty_strided", "empty_like",
                                         "at::empty",     "new_empty",  "zeros",         "full_like"};

constexpr const char* kBlasWorkspace = "a cuBLAS workspace, which PyTorch keeps for each handle and stream";
constexpr const char* kBlasLtWorkspace =
    "a cuBLASLt workspace, which PyTorch keeps for each handle and stream";
constexpr const char* kClearWorkspaces = "torch._C._cuda_clearCublasWorkspaces(), or fewer streams";
constexpr const char* kHandle =
    "destroying the handle or plan that took it, or making it once and using it again";

constexpr Sign kSigns[] = {
    {"getCUDABlasLtWorkspace", kBlasLtWorkspace, kClearWorkspaces, true},
    {"getCUDABlasWorkspace", kBlasWorkspace, kClearWorkspaces, true},
    {"getNewWorkspace", kBlasWorkspace, kClearWorkspaces, true},
    {"parseChosenWorkspaceSize", kBlasWorkspace, kClearWorkspaces, true},
    {"getCurrentCUDABlasHandle", kBlasWorkspace, kClearWorkspaces, true},
    {"CUDABlasLtHandle", kBlasLtWorkspace, kClearWorkspaces, true},
    {"cudnn", "a cuDNN workspace or plan", kHandle, true, true},
    {"cublas", "a cuBLAS handle or workspace", kHandle, true, true},
    {"cufft", "a cuFFT plan's work area", kHandle, true, true},
    {"nccl", "a buffer of NCCL", "torch.distributed.destroy_process_group(), or one group that is used again",
     true, true},
    {"DropoutState", "the state of a cuDNN dropout", "", true},
    {"CUDAGeneratorState", "the state of a random number generator", "", true},
    {"CUDAGraph", kGraph, kDropGraph, false},
};

// PyTorch's own code that shares memory with another process was seen on a stack, or a driver call that does.
bool SharesMemory(const TraceModel& model) {
  if (std::any_of(model.code_objects.begin(), model.code_objects.end(), [&](const CodeObjectInfo& code) {
        return model.String(code.file).ends_with("torch/multiprocessing/reductions.py");
      })) {
    return true;
  }
  return std::any_of(model.strings.begin(), model.strings.end(), [](const std::string& text) {
    return text == "cudaIpcGetMemHandle" || text == "cuIpcGetMemHandle";
  });
}

bool CallsPython(const TraceModel& model, StackId stack, std::initializer_list<std::string_view> names,
                 std::string_view file) {
  for (const FrameId id : model.StackFrames(stack)) {
    const FrameInfo& frame = model.Frame(id);
    if (!frame.is_python()) continue;
    const CodeObjectInfo& code = model.Code(frame.code_object);
    if (!file.empty() && !Contains(model.String(code.file), file)) continue;
    const std::string_view function = model.String(code.qualified_name);
    for (const std::string_view name : names) {
      if (Contains(function, name)) return true;
    }
  }
  return false;
}

}  // namespace

UnheldReason ReasonOfStack(std::span<const NativePlace> stack) {
  UnheldReason reason;
  // A convolution's result is born below cuDNN's wrapper as its workspace is, but by way of a tensor.
  bool tensor = false;
  for (const NativePlace& place : stack) {
    tensor |= std::any_of(std::begin(kTensorMakers), std::end(kTensorMakers),
                          [&](const char* name) { return Contains(place.function, name); });
    for (const Sign& sign : kSigns) {
      if (sign.library && tensor) continue;
      const std::string_view module = place.module;
      if (!Contains(place.function, sign.function) &&
          !(sign.library && module.starts_with("lib") && module.substr(3).starts_with(sign.function))) {
        continue;
      }
      reason.text = sign.text;
      reason.next = sign.next;
      reason.workspace = sign.workspace;
      reason.certain = true;
      return reason;
    }
  }
  return reason;
}

UnheldReason WhyNoObject(const TraceModel& model, SiteId site_id, bool one_per_stream, Symbolizer& symbols) {
  const SiteInfo& site = model.Site(site_id);
  std::vector<NativePlace> stack;
  for (const FrameId frame : model.StackFrames(site.native_stack)) {
    for (const Location& location : symbols.Resolve(frame))
      stack.push_back({location.function, location.module});
  }
  UnheldReason reason = ReasonOfStack(stack);
  if (reason.certain) return reason;
  if (one_per_stream && site.python_stack != 0) {
    reason.text =
        "one for each stream: most likely a cuBLAS workspace, which PyTorch keeps for each handle and stream";
    reason.next = kClearWorkspaces;
    reason.workspace = true;
  } else if (SharesMemory(model)) {
    reason.text =
        "probably shared with another process (CUDA IPC) and never opened or released there: PyTorch keeps "
        "the block until the receiver has counted down";
  } else if (site.forward_stack != 0) {
    reason.text = "born in backward: a gradient that Python never looked at, or held by C++";
    reason.next =
        "zero_grad(set_to_none=True) if these are gradients, else the C++ code that the stack names (-v)";
  } else if (site.python_stack == 0) {
    reason.text = "held by C or C++ code";
    reason.next = "the release in the C or C++ code that the stack names (-v)";
  } else if (CallsPython(model, site.python_stack, {"capture", "graph"}, "cuda/graphs.py")) {
    reason.text = kGraph;
    reason.next = kDropGraph;
  } else {
    reason.text =
        "held by C++: probably saved by the autograd graph of a tensor that is alive, or by an extension";
    reason.next =
        "keeping .detach() or .item() of results instead of results that have a grad_fn; where there are "
        "none, "
        "the C++ code that the stack names (-v)";
  }
  return reason;
}

}  // namespace gpumemtrace::analyzer
