#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over our sources, with the compile commands of build/release.
#   scripts/tidy.sh          the rooms that run inside the host: interpose/ and recorder/
#   scripts/tidy.sh all      the analyzer too (its headers are heavy: some minutes more); a build/release that was
#                            configured without GPUMEMTRACE_UNITY, which leaves single files of it no compile command
#   scripts/tidy.sh FILE…    these files
set -euo pipefail
cd "$(dirname "$0")/.."
tidy=$(command -v clang-tidy-14 || command -v clang-tidy)
[ -f build/release/compile_commands.json ] || { echo "configure first: cmake --preset release" >&2; exit 1; }
if [ "${1:-}" = all ] && grep -q '^GPUMEMTRACE_UNITY:BOOL=ON' build/release/CMakeCache.txt; then
  echo "build/release compiles several files as one: configure it with -DGPUMEMTRACE_UNITY=OFF and build once, then again" >&2
  exit 1
fi
case "${1:-rooms}" in
  rooms) files=$(find interpose recorder -name '*.cc' -not -path '*/benchmarks/*' | sort) ;;
  all) files=$(find interpose recorder analyzer -name '*.cc' -not -path '*/benchmarks/*' | sort) ;;
  *) files=$* ;;
esac
# Only what the build compiles: a file for another processor, say, has no compile command.
files=$(python3 - $files <<'PY'
import json, os, sys
known = {os.path.realpath(os.path.join(e["directory"], e["file"])) for e in json.load(open("build/release/compile_commands.json"))}
print(*(f for f in sys.argv[1:] if os.path.realpath(f) in known), sep="\n")
PY
)
printf '%s\n' $files | xargs -P "$(nproc)" -n 4 "$tidy" --quiet -p build/release --warnings-as-errors='*'
