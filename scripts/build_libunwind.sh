#!/usr/bin/env bash
# Builds a static, position-independent libunwind with hidden symbols from the distribution's source package
# into .cache/libunwind, where cmake/Libunwind.cmake finds it. (The packaged libunwind.a is not position
# independent and cannot be linked into the shim.) For Debian 12 and Ubuntu 24.04.
#
# Needs no root: the package lists and the source go to a private folder, through apt sources derived from
# the configured ones; the system's own apt state is left as it is. Only missing build tools are installed
# with apt-get, as root or through sudo.
#
# Usage: scripts/build_libunwind.sh [--force]
#   --force  build again although the result is there
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prefix=${GPUMEMTRACE_LIBUNWIND_PREFIX:-$root/.cache/libunwind}
work=$root/.cache/libunwind-build

say() { printf 'build_libunwind: %s\n' "$*"; }
fail() { printf 'build_libunwind: %s\n' "$*" >&2; exit 1; }

# Changes with what is built and how, so that an older build is replaced.
recipe=2
if [ "${1:-}" != --force ] && [ -f "$prefix/lib/libunwind.a" ] &&
  [ "$(cat "$prefix/recipe" 2>/dev/null)" = "$recipe" ]; then
  say "already in $prefix"
  exit 0
fi
[ "$(uname -m)" = x86_64 ] || fail "only x86-64 is supported, this is $(uname -m)"
command -v apt-get >/dev/null || fail "apt-get is needed to get the source package"

# Packages for commands that are missing.
install_tools() {
  local missing=()
  command -v gcc >/dev/null || missing+=(gcc libc6-dev)
  command -v make >/dev/null || missing+=(make)
  command -v dpkg-source >/dev/null || missing+=(dpkg-dev)
  [ ${#missing[@]} -eq 0 ] && return 0
  say "installing ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "please install: ${missing[*]}"
    as_root=(sudo)
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "${missing[@]}"
}

# Prints the stanzas of a deb822 file that belong to the distribution, as sources of source packages.
derive_deb822() {
  awk -v codename="$codename" '
    BEGIN { RS = ""; FS = "\n" }
    {
      text = ""; suites = ""; binary = 0; enabled = 1
      for (i = 1; i <= NF; ++i) {
        line = $i
        if (line ~ /^#/) continue
        if (line ~ /^[Tt]ypes:/) { binary = line ~ /[: \t]deb([ \t]|$)/ || line ~ /deb-src/; line = "Types: deb-src" }
        if (line ~ /^[Ee]nabled:[ \t]*([Nn]o|[Ff]alse|0|[Oo]ff)/) enabled = 0
        if (line ~ /^[Aa]rchitectures:/) continue
        if (line ~ /^[Ss]uites:/) {
          n = split(substr(line, 8), word, /[ \t]+/)
          for (j = 1; j <= n; ++j)
            if (word[j] == codename || index(word[j], codename "-") == 1) suites = suites " " word[j]
          line = "Suites:" suites
        }
        text = text line "\n"
      }
      if (binary && enabled && suites != "") printf "%s\n", text
    }' "$1"
}

# The same for a file of one-line sources.
derive_one_line() {
  awk -v codename="$codename" '
    /^[ \t]*deb[ \t]/ {
      line = $0
      sub(/^[ \t]*deb[ \t]+/, "", line)
      options = ""
      if (match(line, /^\[[^]]*\][ \t]*/)) {
        options = substr(line, 1, RLENGTH)
        line = substr(line, RLENGTH + 1)
        gsub(/arch=[^] \t]*/, "", options)
        if (options ~ /^\[[ \t]*\]/) options = ""
      }
      split(line, word, /[ \t]+/)
      suite = word[2]
      if (suite == codename || index(suite, codename "-") == 1) print "deb-src " options line
    }' "$1"
}

derive_sources() {
  mkdir -p "$work/sources"
  local file name
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -r "$file" ] || continue
    name=$(basename "$file" .list)
    derive_one_line "$file" >"$work/sources/$name.list"
  done
  for file in /etc/apt/sources.list.d/*.sources; do
    [ -r "$file" ] || continue
    name=$(basename "$file" .sources)
    derive_deb822 "$file" >"$work/sources/$name.sources"
  done
  find "$work/sources" -type f -empty -delete
  [ -n "$(ls "$work/sources")" ] || fail "no package source of $codename is configured"
}

private_apt() {
  apt-get -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources" \
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o Dir::Cache::Archives="$work/cache/archives" \
    -o APT::Sandbox::User=root -o APT::Get::List-Cleanup=0 -o Acquire::Languages=none \
    -o Acquire::Retries=3 "$@"
}

codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
[ -n "$codename" ] || fail "/etc/os-release names no VERSION_CODENAME"

install_tools
rm -rf "$work"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/source" "$work/build"
derive_sources
say "getting the source package of libunwind for $codename"
private_apt -qq update
(cd "$work/source" && private_apt -qq --download-only source libunwind)
dsc=$(find "$work/source" -name 'libunwind_*.dsc' | head -n 1)
[ -n "$dsc" ] || fail "apt-get source brought no libunwind"
(cd "$work/source" && dpkg-source --no-check -x "$dsc" tree >/dev/null)

tree=$work/source/tree
if [ -x "$tree/configure" ]; then
  # Patches change timestamps; what autotools generated is up to date all the same.
  (cd "$tree" && touch aclocal.m4 && find . -name Makefile.in -exec touch {} + &&
    find . -name config.h.in -exec touch {} + && touch configure)
else
  command -v autoreconf >/dev/null || fail "this source package has no configure; please install autoconf automake libtool"
  (cd "$tree" && autoreconf -fi >/dev/null 2>&1)
fi

say "building $(basename "$dsc" .dsc)"
log=$work/build.log
(
  cd "$work/build"
  "$tree/configure" --prefix="$work/install" --with-pic --enable-static --disable-shared --disable-tests \
    --disable-documentation --disable-cxx-exceptions --disable-minidebuginfo --disable-coredump \
    --disable-ptrace --disable-setjmp CFLAGS="-O2 -g -fPIC -fvisibility=hidden -ftls-model=initial-exec"
  make -j"$(nproc)"
  make install
) >"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "the build failed; all of it is in $log"; }

# How it finds out whether memory is readable takes a pipe; recorder/stacks/libunwind_api.cc has other means.
for archive in "$work"/install/lib/lib*.a; do
  [ -L "$archive" ] && continue
  objcopy --redefine-sym pipe2=gpumemtrace_unwind_pipe2 --redefine-sym read=gpumemtrace_unwind_read \
    --redefine-sym syscall=gpumemtrace_unwind_syscall "$archive"
done
printf '%s\n' "$recipe" >"$work/install/recipe"

# In place at once, so that an interrupted build leaves nothing half done.
[ -f "$work/install/lib/libunwind.a" ] || fail "the build made no libunwind.a; see $log"
rm -rf "$prefix"
mkdir -p "$(dirname "$prefix")"
mv "$work/install" "$prefix"
rm -rf "$work"
say "installed in $prefix"
