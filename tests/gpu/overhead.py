#!/usr/bin/env python3
"""What recording costs: time of a training step and of one allocation, without us, with both stacks, with Python
stacks only, and with PyTorch's own memory history; and bytes on disk for each event.

    python3 tests/gpu/overhead.py --dist dist --out OUT [--kind alloc …] [--rounds 150] [--seconds 72]        about 145 s

How it is measured: lockstep.py. The variants that matter run in two processes each; the distance of the two plain ones is
told with each table, because a difference below it could be the processes'. Prints each table as soon as it is known."""
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common
import lockstep
import report_reader

WORKLOAD = common.HERE / "workloads" / "torch_steps.py"
VARIANTS = {  # name: (processes, shim?, environment, PyTorch history)
    lockstep.PLAIN: (2, False, {}, ""),
    "both stacks": (2, True, {}, ""),
    "Python stacks": (2, True, {"GPUMEMTRACE_STACKS": "python"}, ""),
    "torch history, python": (1, False, {}, "python"),
    "torch history, all": (1, False, {}, "all"),
}
COUNTS = {"alloc": 12, "steady": 3, "shapes": 3, "gpu_bound": 2}  # what one block runs
SHARES = {"alloc": 0.18, "steady": 0.4, "shapes": 0.25, "gpu_bound": 0.17}  # of --seconds
SIZED = [  # what runs, shim?, history, kind, count
    ("gpumemtrace", True, "", "steady", 1000),
    ("gpumemtrace", True, "", "shapes", 250),
    ("gpumemtrace", True, "", "random", 1000),
    ("torch history, all", False, "all", "steady", 400),
    ("torch history, all", False, "all", "shapes", 150),
]


def table_of(kind, taken):
    keys = ["alloc", "free", "value"] if kind == "alloc" else ["value"]
    rows = []
    for key in keys:
        what = kind if key == "value" else key
        what, unit, digits = ("alloc + free" if what == "alloc" and key == "value" else what,
                              "ns" if kind == "alloc" else "ms", 0 if kind == "alloc" else 3)
        for name in VARIANTS:
            found = lockstep.compare(taken, name, key)
            if found is None:
                rows.append([what, name, "failed", "", "", "", ""])
            elif name == lockstep.PLAIN:
                rows.append([what, name, f"{found['median']:,.{digits}f} {unit}", "", "", "", found["rounds"]])
            else:
                low, high = found["ratio_interval"]
                below, above = found["difference_interval"]
                rows.append([what, name, f"{found['median']:,.{digits}f} {unit}", f"{found['ratio'] * 100:+.2f} % ({low * 100:+.2f} … {high * 100:+.2f})",
                             f"{found['difference']:+,.{digits}f} {unit}", f"{below:+,.{digits}f} … {above:+,.{digits}f}", found["rounds"]])
    spread = lockstep.spread_of_processes(taken, "value")
    foot = "" if spread is None else f"\n\nThe two plain processes differ by {spread * 100:+.2f} %."
    return common.markdown_table(["what", "variant", "median", "against plain (95 % of the median)", "difference", "95 %", "rounds"], rows) + foot


def weigh(work, shim, analyzer, item, timeout):
    """The row of one run: how many events there were and what they take on disk."""
    name, with_shim, history, kind, count = item
    snapshot = work / f"{kind}.pickle"
    worker = lockstep.Worker(WORKLOAD, work, f"size {name} {kind}", shim if with_shim else None, {},
                             [history, str(snapshot)] if history else [])
    what = f"{kind}, {count * 1000:,} operations" if kind == "random" else f"{kind}, {count:,} steps"
    begun = time.monotonic()
    if not worker.ask(f"{kind} {count}", timeout=timeout):
        worker.process.kill()
        worker.end()
        return [name, what, "not done in time", "", ""]
    if history:
        worker.process.stdin.write("quit\n")
        worker.process.stdin.flush()
        snapshot = worker.answer(max(5, timeout - (time.monotonic() - begun)))
        worker.end()
        if not snapshot:
            return [name, what, "no snapshot in time", "", ""]
        return [name, what, snapshot["events"], snapshot["bytes"], f"{snapshot['bytes'] / snapshot['events']:.1f}"]
    worker.end()
    trace = worker.trace()
    report, error = common.analyze_json(analyzer, trace) if trace else (None, "no trace")
    events = report_reader.pick(report or {}, "events", "total", default=0)
    size = trace.stat().st_size if trace else 0
    return [name, what, events or error, size, f"{size / events:.3f}" if events else ""]


def main():
    parser = common.arguments(__doc__.split("\n\n")[0])
    parser.add_argument("--kind", action="append", choices=[*COUNTS, "size"], help="may be repeated; all when none is named")
    parser.add_argument("--rounds", type=int, default=150, help="most rounds of one kind")
    parser.add_argument("--seconds", type=int, default=72, help="for all timed kinds together, without start and sizes")
    parser.add_argument("--size-seconds", type=int, default=60, help="longest time of the runs whose traces are weighed")
    options = parser.parse_args()
    shim, analyzer = common.find_products(options.dist)
    work = pathlib.Path(options.work) / "overhead"
    work.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    facts = common.machine()
    output = ["# Cost of recording", "", "; ".join(f"{k} {v}" for k, v in facts.items() if v), ""]
    say = lambda text: (output.append(text), print(text, flush=True))
    print("\n".join(output), flush=True)
    kinds = [k for k in (options.kind or [*COUNTS, "size"]) if k != "size"]
    raw = {}

    workers = []
    if kinds:
        workers = [lockstep.Worker(WORKLOAD, work, name, shim if with_shim else None, env, [history] if history else [], number)
                   for name, (processes, with_shim, env, history) in VARIANTS.items() for number in range(processes)]
        cores = sorted(os.sched_getaffinity(0))
        common.in_parallel(lambda w: [w.ask(f"{kind} 12", timeout=90) for kind in kinds], workers, len(workers))
        for worker in workers:
            worker.ask(lockstep.pin_request(cores))
        say(f"{len(workers)} processes on the same two cores, the measured threads on one and all others (plain: PyTorch's, ours: the writer, too) on "
            f"the other, warm after {time.monotonic() - begun:.0f} s.\n")
    whole = sum(SHARES[kind] for kind in kinds) or 1
    for kind in kinds:
        taken = lockstep.rounds(workers, f"{kind} {COUNTS[kind]}", options.rounds, options.seconds * SHARES[kind] / whole, time.monotonic)
        raw[kind] = taken
        per_step = next((a["allocations"] for answers in taken for a in answers.get(lockstep.PLAIN, []) if "allocations" in a), None)
        say(table_of(kind, taken) + (f" {per_step:.0f} allocations a step." if per_step else "") + "\n")
    for worker in workers:
        if worker.end() != 0:
            say(f"{worker.label}: exit {worker.process.returncode}: {worker.last_words()}")

    if not options.kind or "size" in options.kind:
        rows = common.in_parallel(lambda item: weigh(work, shim, analyzer, item, options.size_seconds), SIZED, len(SIZED))
        rows = [r if not isinstance(r, Exception) else [str(r)[:80], "", "", "", ""] for r in rows]
        say(common.markdown_table(["what", "workload", "events", "bytes on disk", "bytes/event"], rows))
        raw["size"] = rows
    say(f"\n{time.monotonic() - begun:.0f} s in all.")
    common.write(options.out, "overhead.md", "\n".join(output) + "\n")
    common.write(options.out, "overhead.json", json.dumps({"machine": facts, "rounds": raw}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
