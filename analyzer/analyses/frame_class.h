// Tells the user's own code from libraries, frameworks, the interpreter and the system, by file name alone,
// so that a finding can name a line that its reader can change.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpumemtrace::analyzer {

enum class CodeClass : uint8_t {
  kUser,
  kLibrary,      // installed packages that are not a framework
  kFramework,    // torch, jax, cupy, …: code that runs on behalf of the user's line
  kInterpreter,  // the standard library, frozen modules
  kSystem,       // CUDA, the loader, libc, this profiler
};

// By the file of a Python code object. `user_code`: path prefixes that are always the user's.
CodeClass ClassifyPythonFile(std::string_view file, const std::vector<std::string>& user_code);

// By the path of an ELF object. `executable` is the program's own file.
CodeClass ClassifyModule(std::string_view path, std::string_view executable,
                         const std::vector<std::string>& user_code);

// CUDA's own driver and runtime and this profiler: frames between a caller and the allocation.
bool IsCudaOrShim(std::string_view module_path);

// "libcublasLt.so.13" and "/x/libcublasLt.so.13.1" give "libcublasLt"; other names lose only their folder.
std::string LibraryName(std::string_view path);

// A handle of the driver or the runtime (cuEventCreate, cudaStreamCreate), not of a library (cublasCreate),
// which owns memory of its own.
bool IsHandleOfTheDriver(std::string_view api);

}  // namespace gpumemtrace::analyzer
