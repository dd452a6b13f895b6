#!/usr/bin/env python3
"""Runs real frameworks on this machine's GPU with and without the shim and compares the trace with the framework's
own numbers, to the byte.

    python3 tests/gpu/acceptance.py [torch] [features] [company] [jax] [cupy] [cuda] --dist dist --out OUT"""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common
import report_reader

WORKLOADS = common.HERE / "workloads"
PROGRAMS = common.HERE / "programs"
CLEAN = {"PYTORCH_CUDA_ALLOC_CONF": None, "PYTORCH_ALLOC_CONF": None, "PYTORCH_NO_CUDA_MEMORY_CACHING": None,
         "XLA_PYTHON_CLIENT_PREALLOCATE": None, "XLA_PYTHON_CLIENT_ALLOCATOR": None, "XLA_PYTHON_CLIENT_MEM_FRACTION": None}

TORCH_MODES = {
    "default": {},
    "expandable_segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "max_split+roundup": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32,roundup_power2_divisions:4"},
    "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "no_caching": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}
JAX_MODES = {
    "preallocate=false": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    "preallocate=0.1": {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1"},
    "platform": {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
    "cuda_async": {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
}
NVCC = ["nvcc", "-g", "-lineinfo", "-std=c++17", "-arch=native"]
CUDA_BUILDS = {
    "static cudart": [*NVCC, "-lcuda"],
    "shared cudart": [*NVCC, "-cudart", "shared", "-lcuda"],
    "driver only": ["nvcc", "-x", "c++", "-g", "-std=c++17", "-cudart", "none", "-DDRIVER_ONLY", "-lcuda"],
    "per-thread stream": [*NVCC, "-default-stream", "per-thread", "-lcuda"],
}


def torch_jobs():
    return [(f"torch {mode}", [sys.executable, str(WORKLOADS / "torch_mix.py")], env, torch_checks) for mode, env in TORCH_MODES.items()]


FEATURES = ("mempool", "compile", "dataloader", "graphed", "checkpoint", "spawn", "ddp", "fsdp", "libraries", "runtimes")
# Parts of the names of CuPy's modules. The one that calls cudaMalloc is cupy_backends/cuda/api/runtime.cpython-….so.
CUPY = ("cupy", "runtime.cpython", "_core", "memory.cpython")
# Others that want to watch as well: in the process, or by a preload of their own.
COMPANY = ("profiler", "history")
SPECIAL = ("graph", "pool", "ipc")


def features_jobs():
    return [(f"torch feature {f}", [sys.executable, str(WORKLOADS / "torch_features.py"), f], {}, torch_checks) for f in FEATURES]


def preload(name, work):
    """What to preload for one row: an installed allocator, or something built here. None where there is neither."""
    if name in ("jemalloc", "tcmalloc"):
        listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
        found = [line.split("=> ")[1] for line in listed.split("\n") if f"lib{name}" in line and "=> " in line]
        return found[0] if found else None
    source = {"another malloc": PROGRAMS / "malloc_preload.c",
              "another dlsym and cudaMalloc": common.ROOT / "tests/programs/edge_cases/second_preload.cc"}[name]
    library = work / (name.replace(" ", "_") + ".so")
    compiler = ["gcc", "-fno-builtin-malloc", "-fno-builtin-calloc"] if source.suffix == ".c" else ["g++", "-std=c++20"]
    built = common.run([*compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], folder=work, name=f"build {name}")
    return str(library) if built.code == 0 else None


def company_jobs(work):
    script = [sys.executable, str(WORKLOADS / "torch_features.py")]
    jobs = [(f"company {name}", [*script, name], {}, torch_checks) for name in COMPANY]
    for name in ("jemalloc", "tcmalloc", "another malloc", "another dlsym and cudaMalloc"):
        other = preload(name, work)
        for side, order in (("before", "{other}:{{shim}}"), ("after", "{{shim}}:{other}")):
            row = f"company {name} {side}"
            jobs.append((row, [*script, "steps"], {"LD_PRELOAD": order.format(other=other)}, torch_checks) if other
                        else (row, None, "not installed here, and could not be built", None))
    return jobs


def jax_jobs():
    return [(f"jax {mode}", [sys.executable, str(WORKLOADS / "jax_mix.py")], env, jax_checks) for mode, env in JAX_MODES.items()]


def cupy_jobs():
    return [(f"cupy {mode}", [sys.executable, str(WORKLOADS / "cupy_mix.py"), mode], {}, cupy_checks) for mode in ("pool", "async", "none")]


def cuda_jobs(work):
    jobs = []
    for name, command in CUDA_BUILDS.items():
        binary = work / name.replace(" ", "_")
        built = common.run([*command, "-o", str(binary), str(PROGRAMS / "mix.cu")], folder=work, name=f"build {name}", timeout=300)
        if built.code != 0:
            jobs.append((f"cuda {name}", None, built.stderr.strip()[-300:], None))
        else:
            jobs.append((f"cuda {name}", [str(binary)], {}, cuda_checks))
    binary = work / "special"
    built = common.run([*NVCC, "-o", str(binary), str(PROGRAMS / "special.cu")], folder=work, name="build special", timeout=300)
    for kind in SPECIAL:
        jobs.append((f"cuda {kind}", [str(binary), kind], {}, special_checks) if built.code == 0
                    else (f"cuda {kind}", None, built.stderr.strip()[-300:], None))
    return jobs


def torch_checks(numbers, report):
    """Yields (what, framework's number, traced number). A framework's None means that it has no such number here."""
    device = report_reader.device(report, numbers.get("device", 0))
    pick = report_reader.pick
    if numbers["no_caching"]:
        # Every tensor is one cudaMalloc; the highest moment is the hold, whose bytes the program knows by itself.
        known = numbers["phases"].get("known_hold")
        yield "peak", known if isinstance(known, int) else None, pick(device, "tensors", "peak_bytes")
    elif numbers["backend"] == "cudaMallocAsync":
        spaces = {entry.get("space"): entry for entry in report.get("spaces") or []}
        yield "peak", numbers["max_memory_allocated"], pick(spaces.get("stream_ordered", {}), "peak_bytes")
    else:
        yield "peak", numbers["max_memory_allocated"], pick(device, "blocks", "peak_bytes")
        yield "reserved at end", numbers["memory_reserved"], pick(device, "reserved", "last_bytes")
        yield "reserved peak", numbers["max_memory_reserved"], pick(device, "reserved", "peak_bytes")
        yield "block allocations", numbers["allocations"], pick(device, "blocks", "allocations")
        yield "OOMs", numbers["ooms"], len(report.get("ooms") or [])
        checked, disagree = report_reader.self_check(report)
        yield "disagreements", 0, disagree
        if numbers.get("feature") == "libraries":
            yield "cuBLAS memory with its name and the Python line", True, library_lines(report, "libcublas") > 0
        if numbers.get("feature") in ("ddp", "fsdp"):
            yield "NCCL memory with its name and the Python line", True, library_lines(report, "libnccl") > 0
        if "beside" in numbers:
            # At their highest: CuPy gives its pool back before the process ends.
            yield "bytes beside PyTorch's are CuPy's", True, library_bytes(report, *CUPY, field="peak_bytes") >= numbers["beside"]
        if "feature" not in numbers:
            yield "events checked > 20000", True, checked > 20000


def library_bytes(report, *parts, field="live_bytes"):
    return sum(report_reader.number(e.get(field), 0) for e in report.get("libraries") or []
               if any(part in str(e.get("name")) for part in parts))


def library_lines(report, library):
    """How many allocations of the driver have frames of this library and a Python line in one stack."""
    text = subprocess.run([str(report["analyzer"]), "events", str(report["trace_file"])], capture_output=True, text=True).stdout
    named, count = set(), 0
    for line in text.split("\n"):
        entry = json.loads(line) if line else {}
        if "new_place" in entry and any(library in f.get("module", "") for f in entry["stack"]) \
                and any(f.get("file", "").endswith(".py") for f in entry["stack"]):
            named.add(entry["new_place"])
        count += entry.get("place") in named and entry.get("bytes", 0) > 0 and entry.get("kind") in ("allocate", "physical create")
    return count


def jax_checks(numbers, report):
    stats = numbers["stats"]
    xla = library_bytes(report, "xla_cuda_plugin", "jax", "xla", field="peak_bytes")
    if "pool_bytes" in stats:
        # XLA also allocates a little beside its pool.
        yield "pool ≤ traced ≤ pool + 4 MiB", True, stats["pool_bytes"] <= xla <= stats["pool_bytes"] + (4 << 20)
        yield "bytes beside the pool", None, xla - stats["pool_bytes"]
    yield "known tensors ≤ traced", True, xla >= numbers["known_live"]


def cupy_checks(numbers, report):
    device = report_reader.device(report)
    own = library_bytes(report, *CUPY, field="peak_bytes")
    if numbers["mode"] == "pool":
        yield "pool bytes", numbers["pool_total"], own
    else:
        yield "known arrays ≤ traced", True, (own or report_reader.pick(device, "segments", "peak_bytes", default=0)) >= numbers["known_live"]


def cuda_checks(numbers, report):
    spaces = {entry.get("space"): entry for entry in report.get("spaces") or []}
    for ours, theirs in (("device", "device"), ("managed", "managed"), ("pinned", "pinned_host"),
                         ("stream_ordered", "stream_ordered"), ("physical", "virtual")):
        for field in ("live", "peak"):
            yield f"{ours} {field}", numbers[ours][field], report_reader.pick(spaces.get(theirs, {}), f"{field}_bytes")


def special_checks(numbers, report):
    spaces = {entry.get("space"): entry for entry in report.get("spaces") or []}
    for field in ("live", "peak"):
        for space, known in numbers[field].items():
            yield f"{space} {field}", known, report_reader.pick(spaces.get(space, {}), f"{field}_bytes", default=0)


def unattributed(report):
    return "; ".join(f"unattributed {d['unattributed_bytes'] >> 20} MiB" for d in report.get("devices") or []
                     if report_reader.number(d.get("unattributed_bytes")) is not None)


def main():
    parser = common.arguments(__doc__.split("\n\n")[0])
    parser.add_argument("part", nargs="*", help="torch, features, company, jax, cupy, cuda; all when none is named")
    options = parser.parse_args()
    shim, analyzer = common.find_products(options.dist)
    parts = options.part or ["torch", "features", "company", "jax", "cupy", "cuda"]
    work = pathlib.Path(options.work) / "acceptance"
    work.mkdir(parents=True, exist_ok=True)
    jobs, rows, missing = [], [], []
    for part in parts:
        if part == "cuda":
            jobs += cuda_jobs(work)
        elif not common.has_module("torch" if part in ("features", "company") else part):
            missing.append(part)
        elif part == "company":
            jobs += company_jobs(work)
        else:
            jobs += {"torch": torch_jobs, "features": features_jobs, "jax": jax_jobs, "cupy": cupy_jobs}[part]()
    jobs = [job for job in jobs if common.chosen(job[0], options.only)]

    def one(job):
        name, command, env, checks = job
        if command is None:
            return {"error": f"build failed: {env}"} if "not installed" not in env else {"absent": env}
        label = name.replace(" ", "_").replace("=", "-").replace("+", "-")
        place = lambda prefix: ([*command[:2], str(prefix), *command[2:]] if command[0] == sys.executable
                                else [*command, str(prefix)])
        for old in work.glob(f"{label}.numbers.*.json"):
            old.unlink()
        traced = common.run(place(work / f"{label}.numbers"), folder=work, name=label, shim=shim, env={**CLEAN, **env},
                            timeout=options.timeout)
        plain = common.run(place(work / f"{label}.plain"), folder=work, name=label + ".plain", env={**CLEAN, **env},
                           timeout=options.timeout)
        result = {"code": traced.code, "plain_code": plain.code, "same": traced.code == plain.code and traced.stdout == plain.stdout,
                  "seconds": round(traced.seconds, 1), "plain_seconds": round(plain.seconds, 1), "traces": [p.name for p in traced.traces],
                  "stderr": traced.stderr[-400:], "stdout": traced.stdout[-200:], "plain_stdout": plain.stdout[-200:], "checks": []}
        if "skipped:" in traced.stdout:
            return result
        # Every process that wrote its numbers has a trace with the same process id in its name.
        numbered = sorted(work.glob(f"{label}.numbers.*.json"))
        if not numbered:
            return dict(result, error=f"exit {traced.code}, the program wrote no numbers: {common.last_words(traced.stderr)}")
        for file in numbered:
            process = file.name.split(".")[-2]
            trace = work / f"{label}.{process}.pb"
            if not trace.is_file():
                return dict(result, error=f"process {process} left no trace")
            report, error = common.analyze_json(analyzer, trace)
            (work / f"{label}.{process}.report.txt").write_text(common.analyze(analyzer, trace)[1])
            if report is None:
                return dict(result, error=error)
            (work / f"{label}.{process}.report.json").write_text(json.dumps(report))
            report.update(analyzer=analyzer, trace_file=trace)
            result.setdefault("numbers", []).append(json.loads(file.read_text()))
            prefix = f"{process}: " if len(numbered) > 1 else ""
            result["checks"] += [(prefix + what, theirs, ours) for what, theirs, ours in checks(result["numbers"][-1], report)]
            result["note"] = f"{report_reader.pick(report, 'events', 'total', default=0)} events, {trace.stat().st_size} bytes; {unattributed(report)} {error}"
        return result

    results = dict(zip([job[0] for job in jobs], common.in_parallel(one, jobs, options.jobs)))
    bad = 0
    for name, r in results.items():
        if isinstance(r, Exception):
            r = results[name] = {"error": f"{type(r).__name__}: {r}"}
        same = {True: "yes", False: "NO", None: ""}[r.get("same")]
        if r.get("error"):
            bad += 1
            rows.append([name, "ran", "", "", "NO", same, r["error"][-120:]])
        if r.get("absent"):
            rows.append([name, "not run", "", "", "", "", r["absent"]])
        for what, theirs, ours in r.get("checks", []):
            equal = theirs is None or theirs == ours
            bad += not equal
            rows.append([name, what, theirs, ours, "yes" if equal else "NO", same, r.get("note", "")])
        bad += r.get("same") is False
    facts = common.machine()
    table = ["# Traced numbers beside the framework's own", "", "; ".join(f"{k} {v}" for k, v in facts.items() if v), "",
             common.markdown_table(["program", "what", "framework", "traced", "equal", "same output and exit", "note"], rows), "",
             f"{bad} differences." + (f" Not installed here: {', '.join(missing)}." if missing else "")]
    print("\n".join(table))
    for name, r in results.items():
        unsupported = [f"{k}: {v}" for n in r.get("numbers", []) for k, v in n.get("phases", {}).items() if str(v).startswith("not")]
        if unsupported:
            print(name, "phases:", "; ".join(unsupported))
        if r.get("same") is False:
            print(name, "codes", r["plain_code"], r["code"], "| plain:", r["plain_stdout"], "| traced:", r["stdout"], "| stderr:", r["stderr"])
    stem = "acceptance-" + "-".join(parts)
    common.write(options.out, stem + ".md", "\n".join(table) + "\n")
    common.write(options.out, stem + ".json", json.dumps({"machine": facts, "results": results}, indent=1, default=str))
    common.pack([p for pattern in ("*.pb", "*.report.txt", "*.report.json", "*.numbers.*.json") for p in work.glob(pattern)
                 if p.stat().st_size < 4 << 20], pathlib.Path(options.out) / f"{stem}.tar.gz")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
