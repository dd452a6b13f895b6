#!/usr/bin/env bash
# Makes the two files that are copied to a training box: dist/libgpumemtrace.so (needs libc only) and
# dist/gpumem-analyze (statically linked). scripts/package.sh [folder]
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-dist}
cmake -S . -B build/package -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGPUMEMTRACE_STATIC_ANALYZER=ON \
  -DGPUMEMTRACE_TESTS=OFF -DGPUMEMTRACE_UNITY=ON --log-level=WARNING >/dev/null
cmake --build build/package --target gpumemtrace gpumem-analyze -- --quiet
mkdir -p "$target"
for file in libgpumemtrace.so gpumem-analyze; do
  built=$(find build/package -name "$file" -type f | head -n 1)
  # Debug information goes, the symbol tables of functions stay: a crash report still names them.
  objcopy --strip-debug "$built" "$target/$file"
  chmod 755 "$target/$file"
done
ls -l "$target"
