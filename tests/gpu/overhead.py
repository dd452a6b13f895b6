#!/usr/bin/env python3
"""What recording costs: time of a training step and of one allocation, without us, with both stacks, with Python
stacks only, and with PyTorch's own memory history; and bytes on disk for each event.

    python3 tests/gpu/overhead.py --dist dist --out OUT [--pairs 15] [--kind alloc …] [--seconds 140]

All variants are started once and warmed up; then they are measured in turn, in an order that changes from round to
round, one at a time. What is compared is the median over the rounds of (variant ÷ plain of the same round). Prints each
table as soon as it is known."""
import json
import pathlib
import queue
import random
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common
import report_reader

WORKLOAD = common.HERE / "workloads" / "torch_steps.py"
VARIANTS = {  # name: (shim?, environment, PyTorch history)
    "plain": (False, {}, ""),
    "gpumemtrace, both stacks": (True, {}, ""),
    "gpumemtrace, Python stacks": (True, {"GPUMEMTRACE_STACKS": "python"}, ""),
    "torch history, python": (False, {}, "python"),
    "torch history, all": (False, {}, "all"),
}
COUNTS = {"alloc": 10, "steady": 10, "shapes": 10, "gpu_bound": 4}  # what one measurement runs
SIZES = {"steady": 400, "shapes": 400}  # steps of the runs whose traces are weighed


class Worker:
    """One workload process that answers requests."""

    def __init__(self, folder, name, shim, env, arguments):
        self.name = name
        self.folder = folder
        self.label = name.replace(" ", "_").replace(",", "")
        self.trace_pattern = f"{self.label}.*.pb"
        for old in folder.glob(self.trace_pattern):
            old.unlink()
        merged = common.environment(env, shim, folder, self.label)
        self.errors = open(folder / f"{self.label}.stderr", "wb")
        self.process = subprocess.Popen([sys.executable, str(WORKLOAD), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, env=merged, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def ask(self, request, timeout=60):
        """The answer, or None when the process is gone or does not answer."""
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            return None
        return self.answer(timeout)

    def answer(self, timeout):
        try:
            line = self.lines.get(timeout=timeout)
            return json.loads(line) if line else None
        except (queue.Empty, ValueError):
            return None

    def end(self, timeout=60):
        try:
            self.process.stdin.write("quit\n")
            self.process.stdin.close()
        except (OSError, ValueError):
            pass
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()

    def trace(self):
        return max(self.folder.glob(self.trace_pattern), key=lambda p: p.stat().st_size, default=None)


def table_of(kind, readings):
    unit = "ns/alloc+free" if kind == "alloc" else "ms/step"
    rows = []
    for name, values in readings.items():
        pairs = [(v["value"], p["value"]) for v, p in zip(values, readings["plain"]) if v and p]
        if not pairs:
            rows.append([kind, name, "failed", "", "", "", 0])
            continue
        ratios = sorted(v / p for v, p in pairs)
        quarter = len(ratios) // 4
        plain = name == "plain"
        rows.append([kind, name, f"{statistics.median(v for v, _ in pairs):.3f} {unit}",
                     "" if plain else f"{(statistics.median(ratios) - 1) * 100:+.2f} %",
                     "" if plain else f"{(ratios[quarter] - 1) * 100:+.2f} … {(ratios[-1 - quarter] - 1) * 100:+.2f} %",
                     "" if plain else f"{statistics.median(v - p for v, p in pairs):+.3f}", len(pairs)])
    return common.markdown_table(["workload", "variant", "median", "against plain", "middle half", "difference", "pairs"], rows)


def main():
    parser = common.arguments(__doc__.split("\n\n")[0])
    parser.add_argument("--kind", action="append", choices=[*COUNTS, "size"], help="may be repeated; all when none is named")
    parser.add_argument("--pairs", type=int, default=15, help="rounds")
    parser.add_argument("--steps", type=int, default=0, help="steps in one measurement; 0 = the workload's own number")
    parser.add_argument("--seconds", type=int, default=140, help="no new round is begun after this long")
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
    left = lambda: options.seconds - (time.monotonic() - begun)
    raw = {}

    workers = {}
    if kinds:
        workers = {name: Worker(work, name, shim if with_shim else None, env, [history] if history else [])
                   for name, (with_shim, env, history) in VARIANTS.items()}
        common.in_parallel(lambda w: [w.ask(f"{kind} 5", timeout=90) for kind in kinds], list(workers.values()), len(workers))
        print(f"warm after {time.monotonic() - begun:.0f} s", flush=True)
    rng = random.Random(1)
    for kind in kinds:
        readings = {name: [] for name in workers}
        for worker in workers.values():
            worker.ask(f"{kind} 3")
        for round_number in range(options.pairs):
            if left() < 0 and round_number:
                break
            order = list(workers)
            rng.shuffle(order)
            taken = {name: workers[name].ask(f"{kind} {options.steps or COUNTS[kind]}") for name in order}
            for name, value in taken.items():
                readings[name].append(value)
        raw[kind] = readings
        per_step = next((v["allocations"] for v in readings["plain"] if v and "allocations" in v), None)
        say(table_of(kind, readings) + (f"\n\n{per_step:.0f} allocations a step.\n" if per_step else "\n"))
    for worker in workers.values():
        worker.end()
        if worker.process.returncode != 0:
            say(f"{worker.name}: exit {worker.process.returncode}: "
                + common.last_words((work / f"{worker.label}.stderr").read_text(errors="replace")))

    if not options.kind or "size" in options.kind:
        def weigh(item):
            name, kind, with_shim, history = item
            worker = Worker(work, f"size {name} {kind}", shim if with_shim else None, {},
                            [history, str(work / f"{kind}.pickle")] if history else [])
            asked = worker.ask(f"{kind} {SIZES[kind]}", timeout=max(30, left() + 60))
            if history:
                worker.process.stdin.write("quit\n")
                worker.process.stdin.flush()
                snapshot = worker.answer(60) or {}
            worker.end()
            if not asked:
                return [name, kind, "failed", "", ""]
            if history:
                return [name, kind, snapshot.get("events"), snapshot.get("bytes"), f"{snapshot['bytes'] / snapshot['events']:.1f}"]
            trace = worker.trace()
            report, error = common.analyze_json(analyzer, trace) if trace else (None, "no trace")
            events = report_reader.pick(report or {}, "events", "total", default=0)
            return [name, kind, events or error, trace.stat().st_size if trace else "", f"{trace.stat().st_size / events:.3f}" if events else ""]
        items = [("gpumemtrace", "steady", True, ""), ("gpumemtrace", "shapes", True, ""), ("torch history, all", "steady", False, "all")]
        rows = [r if not isinstance(r, Exception) else [str(r)[:80], "", "", "", ""] for r in common.in_parallel(weigh, items, 3)]
        say(common.markdown_table(["what", "workload", "events", "bytes on disk", "bytes/event"], rows))
        raw["size"] = rows
    say(f"\n{time.monotonic() - begun:.0f} s in all.")
    common.write(options.out, "overhead.md", "\n".join(output) + "\n")
    common.write(options.out, "overhead.json", json.dumps({"machine": facts, "readings": raw}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
