#!/usr/bin/env bash
# Installs what is missing, builds, runs every test, and ends with one line "N passed, N failed, N skipped".
#   scripts/test.sh           everything (some 20 minutes on 2 cores, from nothing; 18 to 24 were measured)
#   scripts/test.sh --quick   the release build and its tests only, for the hour of writing
# Logs are under build/test-logs. A test counts once for each build that it runs in.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
quick=0
case "${1:-}" in
  "") ;;
  --quick) quick=1 ;;
  *) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 64 ;;
esac

passed=0 failed=0 skipped=0
logs="$PWD/build/test-logs"
mkdir -p "$logs"
# One more than there are processors: many tests wait for a process now and then.
jobs=$(($(nproc) + 1))
started=$SECONDS
# A run that stops in the middle still ends with the line, and never as a success.
finish() {
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ] && [ "$passed" != 0 ]
  exit
}

say() { printf '%s  [%d min %02d s]\n' "$*" $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)); }

# step NAME COMMAND…: one check that counts as one test.
step() {
  local name=$1
  shift
  if "$@" >"$logs/$name.log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name (see build/test-logs/$name.log)"
    tail -n 40 "$logs/$name.log"
  fi
  say "$name"
}

configure() {
  local preset=$1 more=(-DGPUMEMTRACE_UNITY=ON)
  if [ "$preset" != release ]; then
    more+=("-DGPUMEMTRACE_TEST_ANALYZER=$PWD/build/release/analyzer/gpumem-analyze" "-DGPUMEMTRACE_TEST_PROGRAMS_FROM=$PWD/build/release")
  fi
  cmake --preset "$preset" "${more[@]}"
}

# build NAME PRESET TARGET…: a build that fails counts as one failure.
build() {
  local name=$1 preset=$2
  shift 2
  if configure "$preset" >"$logs/$name.log" 2>&1 && ninja -C "build/$preset" "$@" >>"$logs/$name.log" 2>&1; then
    say "built $name"
    return 0
  fi
  failed=$((failed + 1))
  echo "FAILED: build $name (see build/test-logs/$name.log)"
  grep -E -A 12 'FAILED|error:|Error' "$logs/$name.log" | head -n 60
  return 1
}

# tests NAME FOLDER [ctest options]: runs one folder's tests and counts them.
tests() {
  local name=$1 folder=$2 log ran bad left_out
  shift 2
  log="$logs/$name.log"
  ctest --test-dir "$folder" --output-on-failure --no-tests=error --timeout 300 -j "$jobs" "$@" >"$log" 2>&1
  local code=$?
  ran=$(sed -nE 's/^[0-9]+% tests passed, [0-9]+ tests? failed out of ([0-9]+)$/\1/p' "$log" | tail -n 1)
  bad=$(sed -nE 's/^[0-9]+% tests passed, ([0-9]+) tests? failed out of [0-9]+$/\1/p' "$log" | tail -n 1)
  left_out=$(grep -cE '^ *[0-9]+/[0-9]+ +Test .*\*\*\*Skipped' "$log")
  if [ -z "$ran" ]; then
    failed=$((failed + 1))
    echo "FAILED: $name ran no test (see build/test-logs/$name.log)"
    tail -n 20 "$log"
  else
    passed=$((passed + ran - bad - left_out))
    failed=$((failed + bad))
    skipped=$((skipped + left_out))
    if [ "$bad" != 0 ]; then
      sed -n '/The following tests FAILED/,$p' "$log"
      grep -E '^ *[0-9]+: |^\[  FAILED|Failure|^(FAIL|ERROR): |^  File "|Error: |WARNING: ThreadSanitizer|runtime error' "$log" | head -n 60
    elif [ "$code" != 0 ]; then
      failed=$((failed + 1))
      echo "FAILED: ctest of $name ended with $code"
    fi
  fi
  say "$name: ${ran:-0} tests"
}

our_sources() { git ls-files -- '*.cc' '*.h' '*.c' '*.cu' 2>/dev/null || find interpose recorder analyzer proto tests -name '*.cc' -o -name '*.h'; }

check_format() { our_sources | grep -v '\.cu$' | xargs "$(command -v clang-format-14 || echo clang-format)" --dry-run --Werror; }

# The rooms that run inside the host are read by clang-tidy whole; of the analyzer, whose headers are heavy, only what
# fits the time: `scripts/tidy.py all` reads it too.
check_tidy() { scripts/tidy.py --quick; }

# libunwind is built by one process at a time, and the fuzzers do not need it. CMake's own part of a build is one, too.
if ! scripts/setup.sh --libunwind-later; then
  failed=1
  finish
fi
say "set up"
scripts/setup.sh >"$logs/setup.log" 2>&1 &
libunwind=$!
if [ "$quick" = 0 ]; then
  scripts/fuzz.sh 0 >"$logs/fuzz.log" 2>&1 || true # said where they run
  say "built fuzzers"
fi
wait "$libunwind"
cat "$logs/setup.log"
if [ "$quick" = 0 ]; then
  for sanitizer in asan tsan; do configure "$sanitizer"; done >"$logs/configure.log" 2>&1 &
fi

if build release release all; then
  tests release build/release
fi
step format check_format
if [ "$quick" = 1 ]; then finish; fi

wait
# The rooms that run inside the host, under the sanitizers, and the sanitized shim under the release build's edge cases.
for sanitizer in asan tsan; do
  if build "$sanitizer" "$sanitizer" tests/recorder/all tests/interpose/all end_to_end_programs; then
    for room in recorder interpose end_to_end; do
      tests "$sanitizer-$room" "build/$sanitizer/tests/$room"
    done
  fi
done
# Two minutes of fuzzing, two targets side by side; more of it (scripts/fuzz.sh 3600) belongs beside CI.
step fuzz-smoke scripts/fuzz.sh 60
step tidy check_tidy
finish
