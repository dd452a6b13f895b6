# Finds cuda.h, cuda_runtime_api.h and nvtx3 as target gpumemtrace::cuda_headers. Headers only: nothing of
# CUDA is linked. scripts/setup.sh fetches them on a machine without a toolkit.
find_path(GPUMEMTRACE_CUDA_INCLUDE_DIR cuda.h
  HINTS "$ENV{CUDA_HOME}/include" "$ENV{CUDA_PATH}/include"
  PATHS /usr/local/cuda/include "${PROJECT_SOURCE_DIR}/.cache/cuda/include" /usr/include
  DOC "Folder of the CUDA Toolkit's cuda.h (11.8 or newer)")
if(NOT GPUMEMTRACE_CUDA_INCLUDE_DIR)
  message(FATAL_ERROR "cuda.h was not found. Run scripts/setup.sh, or set -DGPUMEMTRACE_CUDA_INCLUDE_DIR=<folder of cuda.h>.")
endif()

file(STRINGS "${GPUMEMTRACE_CUDA_INCLUDE_DIR}/cuda.h" cuda_version_line REGEX "^#define CUDA_VERSION [0-9]+")
string(REGEX MATCH "[0-9]+" GPUMEMTRACE_CUDA_VERSION "${cuda_version_line}")
if(GPUMEMTRACE_CUDA_VERSION LESS 11080)
  message(FATAL_ERROR "cuda.h in ${GPUMEMTRACE_CUDA_INCLUDE_DIR} is ${GPUMEMTRACE_CUDA_VERSION}; 11080 (CUDA 11.8) or newer is needed.")
endif()
message(STATUS "CUDA headers: ${GPUMEMTRACE_CUDA_INCLUDE_DIR} (${GPUMEMTRACE_CUDA_VERSION})")

add_library(gpumemtrace_cuda_headers INTERFACE)
add_library(gpumemtrace::cuda_headers ALIAS gpumemtrace_cuda_headers)
target_include_directories(gpumemtrace_cuda_headers SYSTEM INTERFACE "${GPUMEMTRACE_CUDA_INCLUDE_DIR}")
