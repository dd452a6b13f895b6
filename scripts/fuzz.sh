#!/bin/sh
# Fuzzes the trace reader and the ring recovery with libFuzzer, AddressSanitizer and UBSan.
#   usage: scripts/fuzz.sh [seconds per target, default 60; 0 only builds]
#   FUZZ_BUILD names another build folder than build/fuzz, FUZZ_TARGETS fewer targets than "reader ring",
#   FUZZ_TIMEOUT the seconds after which an input counts as a hang (20; more on a machine that others use).
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
build=${FUZZ_BUILD:-build/fuzz}
targets=${FUZZ_TARGETS:-reader ring}
clang=$(command -v clang++ || command -v clang++-14 || true)
if [ -z "$clang" ]; then
  echo "fuzz.sh: clang is not installed (scripts/setup.sh installs clang and libclang-rt)" >&2
  exit 1
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" -DCMAKE_CXX_COMPILER="$clang" \
  -DCMAKE_C_COMPILER="$(echo "$clang" | sed 's/clang++/clang/')" -DGPUMEMTRACE_FUZZ=ON -DGPUMEMTRACE_UNITY=ON \
  -DGPUMEMTRACE_SANITIZE=address,undefined,fuzzer-no-link >/dev/null
ninja -C "$build" fuzz_seeds reader_fuzzer ring_fuzzer
if [ "$seconds" = 0 ]; then exit 0; fi
"$build/tests/fuzz/fuzz_seeds" "$build/seeds/reader" "$build/seeds/ring"
# Both targets at once: each is one thread, and a machine that runs this has two cores.
pids=""
for target in $targets; do
  corpus="$build/corpus/$target"
  mkdir -p "$corpus"
  # Traces of real programs, besides the small made-up ones.
  more=
  if [ "$target" = reader ]; then more=tests/fixtures/cases; fi
  echo "== $target: $seconds s, log in $build/$target.log"
  "$build/tests/fuzz/${target}_fuzzer" -max_total_time="$seconds" -timeout="${FUZZ_TIMEOUT:-20}" -rss_limit_mb=2048 \
    -max_len=65536 -print_final_stats=1 -artifact_prefix="$build/" "$corpus" "$build/seeds/$target" $more >"$build/$target.log" 2>&1 &
  pids="$pids $!"
done
code=0
for pid in $pids; do wait "$pid" || code=1; done
for target in $targets; do
  echo "== $target"
  tail -n 30 "$build/$target.log"
done
exit $code
