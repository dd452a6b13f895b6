#!/usr/bin/env bash
# Puts CUDA's headers (cuda.h, cuda_runtime_api.h, nvtx3) into .cache/cuda/include, for a machine without a CUDA
# toolkit. Headers only: they come out of the distribution's package nvidia-cuda-dev, which is downloaded
# (about 774 MB), unpacked in part and deleted; nothing is installed, and apt's own lists stay as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
target="$PWD/.cache/cuda"

fail() {
  cat >&2 <<TEXT
fetch_cuda_headers.sh: $1
Any of these helps: install a CUDA toolkit 11.8 or newer and set CUDA_HOME to its folder;
pip install nvidia-cuda-runtime-cu12 nvidia-nvtx-cu12 (headers only, a few MB);
or configure with -DGPUMEMTRACE_CUDA_INCLUDE_DIR=<folder of cuda.h>.
TEXT
  exit 1
}

if [ -f "$target/include/cuda.h" ]; then exit 0; fi
command -v apt-get >/dev/null || fail "no apt-get on this machine"
. /etc/os-release
case "$ID" in
  debian) components="contrib non-free" ;;
  ubuntu) components="universe multiverse" ;;
  *) fail "only Debian and Ubuntu are known to this script (this is $ID)" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial"
chmod 755 "$work"

# A private sources list: the mirrors that this system already uses for its own release, with the component added
# that holds nvidia-cuda-dev.
sources="$work/cuda.list"
shopt -s nullglob
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  if [ ! -f "$file" ]; then continue; fi
  sed -nE 's/^deb[[:space:]]+(\[[^]]*\][[:space:]]+)?([^[:space:]]+)[[:space:]]+([^[:space:]]+)[[:space:]].*$/\1|\2|\3/p' "$file"
done | while IFS='|' read -r option uri suite; do
  case "$suite" in "$VERSION_CODENAME" | "$VERSION_CODENAME"-updates) echo "deb $option $uri $suite $components" ;; esac
done > "$sources"
for file in /etc/apt/sources.list.d/*.sources; do
  awk -v components="$components" -v release="$VERSION_CODENAME" '
    function flush(  i, n, s, u, m, v, option) {
      if (types ~ /(^| )deb( |$)/) {
        option = key == "" ? "" : "[signed-by=" key "] "
        n = split(suites, s, " "); m = split(uris, u, " ")
        for (v = 1; v <= m; v++) for (i = 1; i <= n; i++)
          if (s[i] == release || s[i] == release "-updates") print "deb " option u[v] " " s[i] " " components
      }
      types = suites = uris = key = ""
    }
    /^[[:space:]]*$/ { flush(); next }
    /^#/ { next }
    { name = $1; $1 = ""; sub(/^ /, "") }
    name == "Types:" { types = $0 } name == "URIs:" { uris = $0 } name == "Suites:" { suites = $0 }
    name == "Signed-By:" { key = $0 }
    END { flush() }' "$file" >> "$sources"
done
sort -u -o "$sources" "$sources"
[ -s "$sources" ] || fail "found no mirror for $VERSION_CODENAME in /etc/apt"

options=(-qq -o "Dir::Etc::sourcelist=$sources" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::Lists=$work/lists"
  -o "Dir::Cache::archives=$work/archives" -o "Dir::Cache::pkgcache=$work/pkgcache.bin" -o "Dir::Cache::srcpkgcache=$work/srcpkgcache.bin"
  -o APT::Sandbox::User=root -o APT::Get::List-Cleanup=0)
echo "Looking for nvidia-cuda-dev in the component(s) $components …"
apt-get "${options[@]}" update || fail "the package lists of $components could not be read"
echo "Downloading nvidia-cuda-dev (about 774 MB) for its headers; only these are kept …"
(cd "$work" && apt-get "${options[@]}" download nvidia-cuda-dev) || fail "nvidia-cuda-dev could not be downloaded"
package=$(find "$work" -maxdepth 1 -name 'nvidia-cuda-dev_*.deb')
[ -n "$package" ] || fail "nvidia-cuda-dev could not be downloaded"

mkdir -p "$work/tree"
dpkg-deb --fsys-tarfile "$package" | tar -x -C "$work/tree" --wildcards './usr/include/*' './usr/share/doc/nvidia-cuda-dev/copyright' \
  './usr/lib/*/stubs/libcuda.so' 2>/dev/null || true
rm -f "$package"
[ -f "$work/tree/usr/include/cuda.h" ] || fail "the package held no cuda.h"
mkdir -p "$target"
rm -rf "$target/include"
cp -a "$work/tree/usr/include" "$target/include.new"
find "$work/tree/usr/lib" -name libcuda.so -exec sh -c 'mkdir -p "$1/stubs" && cp "$0" "$1/stubs/"' {} "$target" \; 2>/dev/null || true
cp -a "$work/tree/usr/share/doc/nvidia-cuda-dev/copyright" "$target/" 2>/dev/null || true
mv "$target/include.new" "$target/include"
echo "CUDA headers $(sed -nE 's/^#define CUDA_VERSION ([0-9]+).*/\1/p' "$target/include/cuda.h") are in .cache/cuda/include."
