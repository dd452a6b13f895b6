#include "recorder/process_facts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/utsname.h>

#include <cstdio>

#include "recorder/system.h"

namespace gpumemtrace::recorder {
namespace {

std::optional<uint32_t> Number(const char* name) {
  const char* text = getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  uint64_t number = 0;
  for (; *text != '\0'; ++text) {
    if (*text < '0' || *text > '9') return std::nullopt;
    number = number * 10 + static_cast<uint64_t>(*text - '0');
    if (number > UINT32_MAX) return std::nullopt;
  }
  return static_cast<uint32_t>(number);
}

}  // namespace

uint64_t ProcessStartTicks() {
  char text[1024];
  sys::ReadFile("/proc/self/stat", text, sizeof text);
  // The second field is the program's name in parentheses and may hold anything.
  const char* p = strrchr(text, ')');
  if (p == nullptr) return 0;
  for (int field = 2; field < 22; ++field) {
    p = strchr(p + 1, ' ');
    if (p == nullptr) return 0;
  }
  return strtoull(p + 1, nullptr, 10);
}

void BootId(char (&id)[40]) {
  sys::ReadFile("/proc/sys/kernel/random/boot_id", id, sizeof id);
  id[strcspn(id, "\n")] = '\0';
}

void HostName(char (&name)[256]) {
  utsname facts;
  snprintf(name, sizeof name, "%s", uname(&facts) == 0 ? facts.nodename : "");
}

void ThreadName(char (&name)[16]) {
  if (prctl(PR_GET_NAME, name) != 0) name[0] = '\0';
  name[sizeof name - 1] = '\0';
}

Job ReadJob() {
  // Pairs that belong together; the first launcher that is there wins. Slurm sets SLURM_PROCID for every
  // job step, also of one process; that is no multi-process job.
  static constexpr const char* kLaunchers[][2] = {
      {"RANK", "WORLD_SIZE"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMIX_RANK", "PMIX_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
      {"SLURM_PROCID", "SLURM_NTASKS"},
  };
  Job job;
  for (const auto& [rank, size] : kLaunchers) {
    job.rank = Number(rank);
    if (!job.rank.has_value()) continue;
    job.world_size = Number(size);
    if (job.world_size == 1u && strcmp(rank, "SLURM_PROCID") == 0) return {};
    return job;
  }
  return job;
}

bool IsRecordedVariable(const char* name, uint64_t length) {
  // Exact names, or with '*' at the end all names that begin so. Reviewed for secrets: no credentials, no
  // paths of users' data.
  static constexpr const char* kAllowed[] = {
      "PYTORCH_CUDA_ALLOC_CONF",
      "PYTORCH_ALLOC_CONF",
      "PYTORCH_NO_CUDA_MEMORY_CACHING",
      "PYTORCH_NVML_BASED_CUDA_CHECK",
      "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
      "TORCH_NCCL_*",
      "CUBLAS_WORKSPACE_CONFIG",
      "CUBLASLT_WORKSPACE_SIZE",
      "CUDA_VISIBLE_DEVICES",
      "CUDA_DEVICE_ORDER",
      "CUDA_DEVICE_MAX_CONNECTIONS",
      "CUDA_LAUNCH_BLOCKING",
      "CUDA_MODULE_LOADING",
      "CUDA_MODULE_DATA_LOADING",
      "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
      "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
      "CUPY_GPU_MEMORY_LIMIT",
      "NVIDIA_VISIBLE_DEVICES",
      "NCCL_ALGO",
      "NCCL_BUFFSIZE",
      "NCCL_CUMEM_ENABLE",
      "NCCL_CUMEM_HOST_ENABLE",
      "NCCL_LL_BUFFSIZE",
      "NCCL_LL128_BUFFSIZE",
      "NCCL_MAX_NCHANNELS",
      "NCCL_MIN_NCHANNELS",
      "NCCL_NTHREADS",
      "NCCL_NVLS_ENABLE",
      "NCCL_P2P_DISABLE",
      "NCCL_PROTO",
      "NCCL_SHM_DISABLE",
      "XLA_FLAGS",
      "XLA_PYTHON_CLIENT_ALLOCATOR",
      "XLA_PYTHON_CLIENT_MEM_FRACTION",
      "XLA_PYTHON_CLIENT_PREALLOCATE",
      "XLA_CLIENT_MEM_FRACTION",
      "TF_GPU_ALLOCATOR",
      "TF_FORCE_GPU_ALLOW_GROWTH",
      "TF_CUDA_HOST_MEM_LIMIT_IN_MB",
      "RANK",
      "LOCAL_RANK",
      "WORLD_SIZE",
      "LOCAL_WORLD_SIZE",
      "SLURM_PROCID",
      "SLURM_LOCALID",
      "SLURM_NTASKS",
      "OMPI_COMM_WORLD_RANK",
      "OMPI_COMM_WORLD_LOCAL_RANK",
      "OMPI_COMM_WORLD_SIZE",
  };
  for (const char* allowed : kAllowed) {
    const size_t allowed_length = strlen(allowed);
    if (allowed[allowed_length - 1] == '*') {
      if (length >= allowed_length - 1 && strncmp(name, allowed, allowed_length - 1) == 0) return true;
    } else if (length == allowed_length && strncmp(name, allowed, length) == 0) {
      return true;
    }
  }
  return false;
}

}  // namespace gpumemtrace::recorder
