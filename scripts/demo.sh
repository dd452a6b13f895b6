#!/usr/bin/env bash
# Shows the whole path once: sets up, builds, records a training loop under LD_PRELOAD and prints the report. With an
# NVIDIA GPU and PyTorch the loop is PyTorch's own, on the card; else it runs on the simulated CUDA of this repository,
# whose training loop has the same shape. It says which.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
echo "building …"
cmake --preset release -DGPUMEMTRACE_UNITY=ON --log-level=WARNING >/dev/null
mkdir -p build/demo

has_gpu_and_torch() {
  command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 &&
    python3 -c 'import torch; raise SystemExit(not torch.cuda.is_available())' >/dev/null 2>&1
}

shim=$PWD/build/release/interpose/libgpumemtrace.so
analyzer=$PWD/build/release/analyzer/gpumem-analyze
trace=build/demo/trace.pb
rm -f build/demo/trace*.pb
if has_gpu_and_torch; then
  ninja -C build/release gpumemtrace gpumem-analyze --quiet
  echo "recording a PyTorch training loop on $(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)"
  GPUMEMTRACE_OUT=$trace LD_PRELOAD=$shim python3 tests/gpu/workloads/torch_demo.py
else
  ninja -C build/release gpumemtrace gpumem-analyze simulated_torch --quiet
  echo "no NVIDIA GPU with PyTorch here: recording the training loop on the simulated CUDA (tests/simulated_cuda)"
  GPUMEMTRACE_OUT=$trace tests/programs/run_simulated.sh build/release "$shim" tests/programs/train.py
fi
echo
echo "\$ gpumem-analyze $trace"
"$analyzer" "$trace"
