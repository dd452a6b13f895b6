#!/usr/bin/env python3
"""What it takes to read a recording: gpumem-analyze on a trace beside PyTorch's own loader on its memory snapshot of
the same run, recorded by both at once.

    python3 tests/gpu/loader_compare.py --dist dist --out OUT [--steps 800]

One training run under the shim with PyTorch's history switched on for all its events; then, each in a process of its
own, twice in turn: pickle.load of the snapshot; pickle.load and the page that torch.cuda._memory_viz makes of it
(trace_plot); gpumem-analyze with all analyses. Time is wall time of the process, its own start included and told
beside it; memory is the largest resident set that the kernel saw. PyTorch cuts each stack's names out at dump time, we
at reading time, so the dump's time is told as well."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common

RUN = r"""
import json, sys, time, torch
steps, snapshot = int(sys.argv[1]), sys.argv[2]
torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=10**8)
net = torch.nn.Sequential(*[m for _ in range(6) for m in (torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256))]).cuda()
optimizer = torch.optim.Adam(net.parameters(), foreach=False)
kept = []
start = time.monotonic()
for step in range(steps):
    x = torch.randn(32 + step % 7, 256, device="cuda")
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        kept.append(loss.detach())
torch.cuda.synchronize()
ran = time.monotonic() - start
start = time.monotonic()
torch.cuda.memory._dump_snapshot(snapshot)
print(json.dumps({"seconds": ran, "dump_seconds": time.monotonic() - start}))
"""
LOAD = r"""
import pickle, sys
with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
print(sum(len(trace) for trace in snapshot["device_traces"]))
"""
PAGE = r"""
import pickle, sys
import torch.cuda._memory_viz as viz
with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
page = viz.trace_plot(snapshot)
print(len(page))
"""
IMPORT = "import torch.cuda._memory_viz\n"


def measure(command):
    """(seconds, peak resident bytes, stdout) of one process."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return time.monotonic() - start, usage.ru_maxrss * 1024, process.returncode, out.decode(errors="replace")


def main():
    parser = common.arguments(__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    shim, analyzer = common.find_products(options.dist)
    work = pathlib.Path(options.work) / "loader"
    work.mkdir(parents=True, exist_ok=True)
    snapshot = work / "snapshot.pickle"
    done = common.run([sys.executable, "-c", RUN, str(options.steps), str(snapshot)], folder=work, name="both", shim=shim,
                      timeout=options.timeout)
    if done.code != 0 or not done.trace or not snapshot.exists():
        raise SystemExit(f"the recorded run failed ({done.code}): {common.last_words(done.stderr)}")
    ran = json.loads(done.stdout.strip().split("\n")[-1])
    ways = {
        "pickle.load of the snapshot": [sys.executable, "-c", LOAD, str(snapshot)],
        "pickle.load and trace_plot": [sys.executable, "-c", PAGE, str(snapshot)],
        "import of torch alone": [sys.executable, "-c", IMPORT],
        "gpumem-analyze, all analyses": [str(analyzer), "report", "--json", "-o", "/dev/null", str(done.trace)],
    }
    seconds = {name: [] for name in ways}
    memory = dict.fromkeys(ways, 0)
    says = {}
    for _ in range(options.rounds):
        for name, command in ways.items():
            took, peak, code, out = measure(command)
            if code != 0:
                says[name] = f"exit {code}"
            seconds[name].append(took)
            memory[name] = max(memory[name], peak)
            if name.startswith("pickle.load of"):
                says[name] = f"{out.strip()} entries"
    report, error = common.analyze_json(analyzer, done.trace)
    events = (report or {}).get("events", {})
    says["gpumem-analyze, all analyses"] = says.get("gpumem-analyze, all analyses") or error or f"events {json.dumps(events)}"
    sizes = {"pickle.load of the snapshot": snapshot.stat().st_size, "pickle.load and trace_plot": snapshot.stat().st_size,
             "gpumem-analyze, all analyses": done.trace.stat().st_size}
    rows = [[name, f"{sizes[name] / 1e6:.2f} MB" if name in sizes else "", f"{statistics.median(seconds[name]):.3f}",
             f"{min(seconds[name]):.3f}", f"{memory[name] / 2**20:.0f} MiB", says.get(name, "")] for name in ways]
    facts = common.machine()
    text = "\n".join(["# Reading a recording, beside PyTorch's own loader", "", "; ".join(f"{k} {v}" for k, v in facts.items() if v), "",
                      f"{options.steps} training steps, recorded by both at once in {ran['seconds']:.2f} s; PyTorch's dump of its "
                      f"snapshot took {ran['dump_seconds']:.2f} s more.", "",
                      common.markdown_table(["way", "file", "median s", "least s", "peak memory", "what it says"], rows)])
    print(text)
    common.write(options.out, "loader.md", text + "\n")
    common.write(options.out, "loader.json", json.dumps({"machine": facts, "run": ran, "seconds": seconds, "memory": memory,
                                                         "sizes": sizes, "says": says}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
