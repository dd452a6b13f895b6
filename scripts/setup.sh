#!/usr/bin/env bash
# Makes a fresh Debian 12 or Ubuntu 24.04 box able to build gpumemtrace and to run its tests: installs the packages
# that are missing (root or sudo), builds the position-independent libunwind and fetches CUDA's headers when the
# machine has none. Quiet, may be run again at any time, and quick when all is there.
#   scripts/setup.sh
#   scripts/setup.sh --libunwind-later   leaves scripts/build_libunwind.sh to the caller, who has work beside it
set -euo pipefail
libunwind=now
case "${1:-}" in
  "") ;;
  --libunwind-later) libunwind=later ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 64 ;;
esac
cd "$(dirname "$0")/.."

# Build tools · libraries · tests and checks · what builds libunwind from the distribution's source package.
packages=(
  build-essential cmake ninja-build ccache pkg-config git ca-certificates
  protobuf-compiler libprotobuf-dev libprotozero-dev libabsl-dev libdw-dev libelf-dev libzstd-dev
  libcli11-dev nlohmann-json3-dev zlib1g-dev liblzma-dev libbz2-dev
  libgtest-dev libgmock-dev libbenchmark-dev python3 python3-dev binutils
  clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev
  dpkg-dev
)

say() { echo "setup: $*"; }
fail() {
  echo "setup: $*" >&2
  exit 1
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo --preserve-env=DEBIAN_FRONTEND "$@"
  else
    fail "needs root or sudo to run: $*"
  fi
}

install_missing_packages() {
  local missing=() package
  local -A installed=()
  while read -r package; do installed[$package]=1; done < <(
    dpkg-query -W -f '${db:Status-Abbrev}${binary:Package}\n' "${packages[@]}" 2>/dev/null | sed -nE 's/^ii +([^:]+)(:.*)?$/\1/p')
  for package in "${packages[@]}"; do
    [ -n "${installed[$package]:-}" ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  local log
  log=$(mktemp)
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  local apt=(apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
  # The machine's own lists are refreshed only when they do not know a package or have gone stale.
  if ! as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
    as_root "${apt[@]}" update >>"$log" 2>&1 || true
    if ! as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
      tail -n 20 "$log" >&2
      rm -f "$log"
      fail "apt-get could not install the packages above. On Ubuntu the component 'universe' must be enabled."
    fi
  fi
  rm -f "$log"
}

# Other allocators, which jobs preload beside ours; their tests are skipped where the distribution has none.
install_other_allocators() {
  local package
  for package in libjemalloc2 libtcmalloc-minimal4; do
    # Ubuntu 24.04 calls the second one libtcmalloc-minimal4t64.
    if ! dpkg-query -W -f '${db:Status-Abbrev}' "$package" "${package}t64" 2>/dev/null | grep -q '^ii'; then
      as_root apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$package" >/dev/null 2>&1 ||
        as_root apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${package}t64" >/dev/null 2>&1 ||
        say "$package is not to be had; tests beside it are skipped"
    fi
  done
}

# The shim wants a position-independent libunwind; without it the build still works (see cmake/Libunwind.cmake).
build_libunwind() {
  [ -f .cache/libunwind/lib/libunwind.a ] || say "building libunwind from the distribution's source package (a minute)"
  local log
  log=$(mktemp)
  if ! scripts/build_libunwind.sh >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    say "libunwind could not be built; the shim will open libunwind.so.8 with RTLD_LOCAL instead"
    as_root apt-get -qq -y install --no-install-recommends libunwind8 >/dev/null 2>&1 || true
  fi
  rm -f "$log"
}

find_cuda_headers() {
  local folder
  for folder in "${CUDA_HOME:-}/include" "${CUDA_PATH:-}/include" /usr/local/cuda/include "$PWD/.cache/cuda/include" /usr/include; do
    if [ -f "$folder/cuda.h" ] && [ -f "$folder/cuda_runtime_api.h" ]; then return 0; fi
  done
  # Header packages of pip: nvidia-cuda-runtime-cu12 (nvidia/cuda_runtime/include) or cu13 (nvidia/cu13/include).
  # They are gathered into one folder of links, because nvtx is a package of its own.
  local site found=""
  for site in $(python3 -c 'import site, sys; print(*site.getsitepackages(), site.getusersitepackages(), *sys.path)' 2>/dev/null); do
    for folder in "$site"/nvidia/cuda_runtime/include "$site"/nvidia/cu1[3-9]/include; do
      if [ -f "$folder/cuda.h" ] && [ -f "$folder/cuda_runtime_api.h" ]; then found="$folder"; fi
    done
    [ -n "$found" ] || continue
    mkdir -p .cache/cuda/include
    for folder in "$found" "$site"/nvidia/nvtx/include; do
      if [ -d "$folder" ]; then ln -sfn "$folder"/* .cache/cuda/include/; fi
    done
    say "CUDA headers: $found"
    return 0
  done
  scripts/fetch_cuda_headers.sh
}

command -v apt-get >/dev/null || fail "only Debian 12 and Ubuntu 24.04 are set up by this script (no apt-get here); see docs/building.md for what is needed"
install_missing_packages
install_other_allocators
if [ "$libunwind" = now ]; then build_libunwind; fi
find_cuda_headers
