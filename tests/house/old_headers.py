"""The simulated CUDA builds with the headers of CUDA 11.8, which a machine may have no newer ones than: checks, with
whatever headers are there, that

- its files and the programs that run on it read CUDA's headers through newest_cuda.h and newest_cuda_runtime.h alone;
- newest_cuda.h declares every driver function that came after 11.8, where CUDA_VERSION says that cuda.h has it not."""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
SIMULATED = ROOT / "tests/simulated_cuda"
OLDEST = 11080
DOORS = {SIMULATED / "newest_cuda.h", SIMULATED / "newest_cuda_runtime.h"}
faults = []

sources = [p for folder in (SIMULATED, ROOT / "tests/programs") for s in ("h", "cc", "inc") for p in folder.rglob(f"*.{s}")]
for path in sources:
    if path in DOORS:
        continue
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if re.match(r"\s*#\s*include\s*[<\"](cuda|cuda_runtime|cuda_runtime_api|driver_types)\.h[>\"]", line):
            faults.append(f"{path.relative_to(ROOT)}:{number}: reads {line.split()[1]}, not newest_cuda.h or newest_cuda_runtime.h")

# The first version that a symbol of the table belongs to.
since = {}
rows = re.findall(r"^(PLAIN|STREAM)\(\w+, (\d+), (\w+)\)", (SIMULATED / "driver/functions.inc").read_text(), re.M)
for kind, version, symbol in rows:
    for name in (symbol, symbol + "_ptsz") if kind == "STREAM" else (symbol,):
        since[name] = min(int(version), since.get(name, int(version)))

declared = {}
for version, block in re.findall(r"^#if CUDA_VERSION < (\d+)\n(.*?)^#endif", (SIMULATED / "newest_cuda.h").read_text(), re.M | re.S):
    for name in re.findall(r"^CUresult (\w+)\(", block, re.M):
        declared[name] = int(version)

for name, version in sorted(since.items()):
    if version > OLDEST and declared.get(name) != version:
        where = f"under CUDA_VERSION < {declared[name]}" if name in declared else "nowhere"
        faults.append(f"newest_cuda.h: {name}, new in {version}, is declared {where}")
for name in sorted(declared.keys() - since.keys()):
    faults.append(f"newest_cuda.h: {name} is declared, and functions.inc has no row for it")
if len(sources) < 50 or len(since) < 100:
    faults.append(f"{len(sources)} files and {len(since)} functions found; is the tree complete?")
print("\n".join(faults) or f"{sum(v > OLDEST for v in since.values())} functions are newer than {OLDEST}, each declared")
sys.exit(bool(faults))
