"""The shim as a file: needs libc alone, exports the hook list and nothing else, has no symbol versions of its own,
and asks for no newer glibc than it must.

    shim_file.py libgpumemtrace.so exports.map"""
import fnmatch
import re
import subprocess
import sys

shim, exports = sys.argv[1:3]
# libc and its loader; the others are empty shells of glibc ≥ 2.34 and part of libc before.
ALLOWED_NEEDED = {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libm.so.6", "libpthread.so.0", "libdl.so.2",
                  "librt.so.1"}
NEWEST_GLIBC = (2, 17)  # far older than any system that a current framework runs on
faults = []


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


dynamic = output("readelf", "-d", "--wide", shim)
needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
if needed - ALLOWED_NEEDED:
    faults.append(f"needs {sorted(needed - ALLOWED_NEEDED)}")
if re.search(r"\((VERDEF|RPATH|RUNPATH|TEXTREL|SYMBOLIC)\)", dynamic):
    faults.append("has a VERDEF, RPATH, RUNPATH, SYMBOLIC or TEXTREL entry")

text = re.sub(r"/\*.*?\*/|#[^\n]*|//[^\n]*", "", open(exports).read(), flags=re.S)
if re.match(r"\s*\w+\s*\{", text):
    faults.append("exports.map names a version node, which would switch interposition of versioned symbols off")
listed = re.search(r"global:(.*?)local:", text, re.S)
patterns = re.findall(r'"?([\w*?]+)"?\s*;', listed[1]) if listed else []
defined, versions = set(), set()
for line in output("readelf", "--dyn-syms", "--wide", shim).split("\n"):
    fields = line.split()
    if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
        continue
    name, section = fields[7], fields[6]
    version = re.search(r"@GLIBC_(\d+)\.(\d+)", name)
    if section == "UND":
        if version:
            versions.add((int(version[1]), int(version[2]), name.split("@")[0]))
        elif "GLIBC_PRIVATE" in name:
            faults.append(f"uses glibc's private {name}")
    else:
        defined.add(name.split("@")[0])
stray = {name for name in defined if not any(fnmatch.fnmatchcase(name, p) for p in patterns)}
if stray:
    faults.append(f"exports {sorted(stray)[:10]} which exports.map does not list")
for pattern in patterns:
    if not any(fnmatch.fnmatchcase(name, pattern) for name in defined):
        faults.append(f"exports.map lists {pattern}, which the shim does not define")
if "cuMemAlloc_v2" not in defined or "dlsym" not in defined:
    faults.append("exports neither cuMemAlloc_v2 nor dlsym: is this the shim?")
too_new = sorted(v for v in versions if v[:2] > NEWEST_GLIBC)
if too_new:
    faults.append(f"needs a glibc newer than {NEWEST_GLIBC}: {too_new}")
newest = max((v[:2] for v in versions), default=(0, 0))
print(f"needed {sorted(needed)}; {len(defined)} exported; newest glibc version {newest[0]}.{newest[1]}",
      sorted(v[2] for v in versions if v[:2] == newest)[:20])
print("\n".join(faults))
sys.exit(bool(faults))
