#include "analyzer/analyses/frame_class.h"

#include <array>

#include "analyzer/symbols/names.h"

namespace gpumemtrace::analyzer {
namespace {

bool HasPrefix(std::string_view path, const std::vector<std::string>& prefixes) {
  for (const std::string& prefix : prefixes) {
    if (!prefix.empty() && path.starts_with(prefix)) return true;
  }
  return false;
}

// Packages whose frames stand between the user's line and the allocator.
constexpr std::array<std::string_view, 36> kFrameworks = {"torch",
                                                          "torchvision",
                                                          "torchaudio",
                                                          "torchtext",
                                                          "functorch",
                                                          "jax",
                                                          "jaxlib",
                                                          "flax",
                                                          "optax",
                                                          "haiku",
                                                          "equinox",
                                                          "chex",
                                                          "cupy",
                                                          "cupyx",
                                                          "cupy_backends",
                                                          "numba",
                                                          "tensorflow",
                                                          "keras",
                                                          "triton",
                                                          "lightning",
                                                          "pytorch_lightning",
                                                          "lightning_fabric",
                                                          "accelerate",
                                                          "deepspeed",
                                                          "transformers",
                                                          "peft",
                                                          "trl",
                                                          "timm",
                                                          "xformers",
                                                          "apex",
                                                          "bitsandbytes",
                                                          "diffusers",
                                                          "rmm",
                                                          "cudf",
                                                          "numpy",
                                                          "fairscale"};

// The component after the last site-packages or dist-packages, else empty.
std::string_view InstalledPackage(std::string_view file) {
  for (std::string_view folder : {std::string_view("/site-packages/"), std::string_view("/dist-packages/")}) {
    const size_t at = file.rfind(folder);
    if (at == std::string_view::npos) continue;
    std::string_view rest = file.substr(at + folder.size());
    rest = rest.substr(0, rest.find('/'));
    if (rest.ends_with(".py")) rest.remove_suffix(3);
    return rest;
  }
  return {};
}

// ".../lib/python3.11/..." and ".../lib/python3.11.zip/...".
bool InStandardLibrary(std::string_view file) {
  for (std::string_view folder : {std::string_view("/lib/python3"), std::string_view("/lib64/python3")}) {
    if (Contains(file, folder)) return true;
  }
  return false;
}

bool InSystemFolder(std::string_view path) {
  for (std::string_view prefix : {"/usr/lib", "/lib/", "/lib64/", "/usr/local/lib/", "/usr/local/cuda",
                                  "/opt/nvidia/", "/usr/local/nvidia", "linux-vdso", "[vdso]"}) {
    if (path.starts_with(prefix)) return true;
  }
  return false;
}

constexpr std::array<std::string_view, 26> kLibraryPrefixes = {
    "libcu",    "libnv",         "libtorch",    "libc10",    "libnccl",    "libpython", "libstdc++",
    "libgcc_s", "libc.so",       "libm.so",     "libdl",     "libpthread", "ld-linux",  "libgomp",
    "libiomp",  "libmkl",        "libopenblas", "libunwind", "libz.",      "libffi",    "libmpi",
    "libucx",   "libtensorflow", "xla_",        "libjax",    "librt."};

}  // namespace

CodeClass ClassifyPythonFile(std::string_view file, const std::vector<std::string>& user_code) {
  if (file.empty()) return CodeClass::kInterpreter;
  if (HasPrefix(file, user_code)) return CodeClass::kUser;
  if (file.starts_with("<frozen")) return CodeClass::kInterpreter;
  const std::string_view package = InstalledPackage(file);
  if (!package.empty()) {
    for (std::string_view name : kFrameworks) {
      if (package == name) return CodeClass::kFramework;
    }
    return CodeClass::kLibrary;
  }
  if (InStandardLibrary(file)) return CodeClass::kInterpreter;
  // "<string>", "<stdin>" and notebook cells are the user's; generated code of torch.compile and dataclasses
  // is not.
  if (file.starts_with("<eval_with_key>") || file.starts_with("<attrs generated")) {
    return CodeClass::kFramework;
  }
  // Compiled code that the inductor wrote into its cache.
  if (Contains(file, "/torchinductor_") || Contains(file, "/inductor_cache/")) {
    return CodeClass::kFramework;
  }
  // A source tree of PyTorch itself used in place.
  if (Contains(file, "/torch/nn/modules/") || Contains(file, "/torch/optim/") ||
      Contains(file, "/torch/autograd/") || Contains(file, "/torch/_ops.py")) {
    return CodeClass::kFramework;
  }
  return CodeClass::kUser;
}

bool IsCudaOrShim(std::string_view module_path) {
  const std::string_view base = BaseName(module_path);
  return base.starts_with("libcuda.so") || base.starts_with("libcudart") ||
         base.starts_with("libgpumemtrace") || base.starts_with("libcudadebugger");
}

CodeClass ClassifyModule(std::string_view path, std::string_view executable,
                         const std::vector<std::string>& user_code) {
  if (path.empty() || IsCudaOrShim(path)) return CodeClass::kSystem;
  if (HasPrefix(path, user_code)) return CodeClass::kUser;
  const std::string_view base = BaseName(path);
  const bool interpreter =
      base.starts_with("python") || base.starts_with("libpython") || base.starts_with("pypy");
  if (interpreter) return CodeClass::kInterpreter;
  if (!executable.empty() && path == executable) return CodeClass::kUser;
  if (!InstalledPackage(path).empty()) return CodeClass::kLibrary;
  if (InStandardLibrary(path)) return CodeClass::kInterpreter;  // lib-dynload
  for (std::string_view prefix : kLibraryPrefixes) {
    if (base.starts_with(prefix)) return CodeClass::kLibrary;
  }
  if (InSystemFolder(path)) return CodeClass::kSystem;
  return CodeClass::kUser;
}

std::string LibraryName(std::string_view path) {
  std::string_view base = BaseName(path);
  const size_t so = base.find(".so");
  if (so != std::string_view::npos) base = base.substr(0, so);
  return std::string(base);
}

bool IsHandleOfTheDriver(std::string_view api) {
  if (api.starts_with("cuda")) return true;
  return api.starts_with("cu") && api.size() > 2 && api[2] >= 'A' && api[2] <= 'Z';
}

}  // namespace gpumemtrace::analyzer
