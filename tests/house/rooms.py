"""The rooms know each other only through their contracts: checks every #include of ours.

interpose may use of the recorder what crosses (event.h, recorder.h and the headers that they include); the recorder
uses no CUDA and nothing of interpose or analyzer; the analyzer uses neither; proto/ is open to all."""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
RECORDER_DOORS = {"recorder/event.h", "recorder/recorder.h", "recorder/census/census.h"}
CUDA = re.compile(r"^(cuda|nvtx|nvToolsExt|cu[A-Z])")
faults = []


def includes(path):
    for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if found:
            yield number, found[2]


def sources(room):
    return sorted(p for suffix in ("h", "cc", "cpp", "c", "inc") for p in (ROOT / room).rglob(f"*.{suffix}"))


for room in ("interpose", "recorder", "analyzer"):
    for path in sources(room):
        for number, name in includes(path):
            where = f"{path.relative_to(ROOT)}:{number}: includes {name}"
            if room == "interpose" and (name.startswith("analyzer/") or
                                        name.startswith("recorder/") and name not in RECORDER_DOORS):
                faults.append(f"{where}: interpose sees the recorder only through {', '.join(sorted(RECORDER_DOORS))}")
            if room == "recorder" and (name.startswith(("interpose/", "analyzer/")) or CUDA.match(name)):
                faults.append(f"{where}: the recorder knows no CUDA and no other room")
            if room == "analyzer" and (name.startswith(("interpose/", "recorder/")) or CUDA.match(name)):
                faults.append(f"{where}: the analyzer sees only proto/")
            if room != "analyzer" and name.startswith(("google/protobuf", "absl/", "nlohmann/", "CLI/")):
                faults.append(f"{where}: a preloaded library may not bring this into the host")
for folder in ("analyzer", "recorder", "interpose", "proto"):
    if not sources(folder) and folder != "proto":
        faults.append(f"{folder}: no sources found; is the tree complete?")
print("\n".join(faults) or "the rooms are separate")
sys.exit(bool(faults))
