#!/usr/bin/env bash
# Runs real frameworks on this machine's GPU under the shim and compares what was traced with the frameworks' own
# numbers. Needs Python 3 with PyTorch, JAX, CuPy and nvcc as far as they are to be covered, and two files:
# libgpumemtrace.so and gpumem-analyze (scripts/package.sh makes them; they may be copied here without a build).
#
#   scripts/gpu_acceptance.sh [part …] [-- options]
#     parts:   torch features company jax cupy cuda   traced bytes against the framework's own, same output with and
#                                    without the shim (company: with other tools in the process)
#              lines                 forward lines of backward allocations, against anomaly mode
#              cases                 programs with ground truth: verdict, bytes per step, line, holder
#              overhead              what the shim costs a training step, beside PyTorch's own history
#              all                   (default) every part
#     options: --dist DIR  --out DIR  --jobs N  --timeout S  --only NAME; cases: --cases DIR  --truth FILE  --compare;
#              overhead: --rounds N  --seconds S  --size-seconds S  --kind alloc|steady|shapes|gpu_bound|size
# Tables (Markdown), JSON and packed traces go to the folder of --out (gpu-acceptance). The exit code is 0 when
# everything agreed, else 1.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

parts=() cases=() overhead=() options=()
while [ $# -gt 0 ]; do
  case "$1" in
    torch | features | company | jax | cupy | cuda | lines | cases | overhead) parts+=("$1") ;;
    all) parts+=(torch features company jax cupy cuda lines cases overhead) ;;
    --) ;;
    --cases | --truth) cases+=("$1" "$2"); shift ;;
    --compare) cases+=("$1") ;;
    --rounds | --seconds | --size-seconds | --kind) overhead+=("$1" "$2"); shift ;;
    --dist | --out | --work | --jobs | --timeout | --only) options+=("$1" "$2"); shift ;;
    *) sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 64 ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(torch features company jax cupy cuda lines cases overhead)

failed=0
frameworks=()
for part in "${parts[@]}"; do
  case "$part" in torch | features | company | jax | cupy | cuda) frameworks+=("$part") ;; esac
done
if [ ${#frameworks[@]} -gt 0 ]; then
  python3 tests/gpu/acceptance.py "${frameworks[@]}" ${options[@]+"${options[@]}"} || failed=1
fi
for part in "${parts[@]}"; do
  case "$part" in
    lines) python3 tests/gpu/backward_lines.py ${options[@]+"${options[@]}"} || failed=1 ;;
    cases) python3 tests/gpu/cases.py ${cases[@]+"${cases[@]}"} ${options[@]+"${options[@]}"} || failed=1 ;;
    overhead) python3 tests/gpu/overhead.py ${overhead[@]+"${overhead[@]}"} ${options[@]+"${options[@]}"} || failed=1 ;;
  esac
done
exit $failed
