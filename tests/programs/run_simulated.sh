#!/bin/sh
# Runs a Python program on the simulated CUDA and torch of a build folder, optionally under the shim:
#   tests/programs/run_simulated.sh <build folder> <libgpumemtrace.so or ""> program.py [arguments]
# PYTHON selects the interpreter (default python3); SIMULATED_CUDA_* are described in
# tests/simulated_cuda/driver/simulated_cuda.h.
set -eu
build=$(cd "$1" && pwd)
shim=$2
shift 2
simulated="$build/tests/simulated_cuda"
PYTHONPATH="$simulated/python/site-packages${PYTHONPATH:+:$PYTHONPATH}"
LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$simulated/lib"
export PYTHONPATH LD_LIBRARY_PATH
if [ -n "$shim" ]; then
  exec env LD_PRELOAD="$shim${LD_PRELOAD:+:$LD_PRELOAD}" "${PYTHON:-python3}" "$@"
fi
exec "${PYTHON:-python3}" "$@"
