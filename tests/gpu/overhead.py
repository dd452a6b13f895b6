#!/usr/bin/env python3
"""What recording costs: time of a training step and of one allocation, without us, with both stacks, with Python
stacks only, and with PyTorch's own memory history, in interleaved runs; and bytes on disk for each event.

    python3 tests/gpu/overhead.py --dist dist --out OUT [--pairs 15] [--steps 60] [--kind alloc …]

Each round runs every variant once, in an order that changes, each in a process of its own; what is compared is the
median over the rounds of (variant ÷ plain run of the same round)."""
import json
import pathlib
import random
import statistics
import sys

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
KINDS = ("alloc", "steady", "shapes", "gpu_bound")


def main():
    parser = common.arguments(__doc__.split("\n\n")[0])
    parser.add_argument("--kind", action="append", choices=KINDS, help="may be repeated; all when none is named")
    parser.add_argument("--pairs", type=int, default=15, help="rounds")
    parser.add_argument("--steps", type=int, default=60, help="timed steps in one run")
    parser.add_argument("--seconds", type=int, default=420, help="no new round is begun after this long")
    options = parser.parse_args()
    shim, analyzer = common.find_products(options.dist)
    work = pathlib.Path(options.work) / "overhead"
    kinds = options.kind or KINDS
    import time
    begun = time.monotonic()
    readings = {kind: {name: [] for name in VARIANTS} for kind in kinds}
    sizes = {}
    rng = random.Random(1)
    rounds = 0
    for rounds in range(1, options.pairs + 1):
        if time.monotonic() - begun > options.seconds:
            rounds -= 1
            break
        for kind in kinds:
            order = list(VARIANTS)
            rng.shuffle(order)
            for name in order:
                with_shim, env, history = VARIANTS[name]
                label = f"{kind}-{list(VARIANTS).index(name)}-{rounds}"
                result = work / f"{label}.json"
                command = [sys.executable, str(WORKLOAD), str(result), str(options.steps), kind, *([history] if history else [])]
                done = common.run(command, folder=work, name=label, shim=shim if with_shim else None, env=env, timeout=options.timeout)
                if done.code != 0 or not result.is_file():
                    print(f"{label} ({name}): exit {done.code} {done.stderr.strip()[-200:]}")
                    readings[kind][name].append(None)
                    continue
                numbers = json.loads(result.read_text())
                readings[kind][name].append(numbers)
                if done.trace:
                    if name not in sizes.setdefault(kind, {}):
                        report, _ = common.analyze_json(analyzer, done.trace)
                        events = report_reader.pick(report or {}, "events", "total", default=0)
                        sizes[kind][name] = (done.trace.stat().st_size, events)
                    for trace in done.traces:
                        trace.unlink(missing_ok=True)
                elif "snapshot_bytes" in numbers and name not in sizes.setdefault(kind, {}):
                    sizes[kind][name] = (numbers["snapshot_bytes"], numbers["block_events"])
    rows = []
    for kind in kinds:
        field, unit = ("ns", "ns/alloc+free") if kind == "alloc" else ("ms", "ms/step")
        plain = readings[kind]["plain"]
        for name, values in readings[kind].items():
            pairs = [(v[field], p[field]) for v, p in zip(values, plain) if v and p]
            if not pairs:
                rows.append([kind, name, "failed", "", "", "", "", ""])
                continue
            ratios = sorted(v / p for v, p in pairs)
            differences = sorted(v - p for v, p in pairs)
            quarter = len(ratios) // 4
            size, events = sizes.get(kind, {}).get(name, (None, None))
            rows.append([kind, name, f"{statistics.median(v for v, _ in pairs):.3f} {unit}",
                         "" if name == "plain" else f"{(statistics.median(ratios) - 1) * 100:+.2f} %",
                         "" if name == "plain" else f"{(ratios[quarter] - 1) * 100:+.2f} … {(ratios[-1 - quarter] - 1) * 100:+.2f} %",
                         "" if name == "plain" else f"{statistics.median(differences):+.3f}", len(pairs),
                         "" if not events else f"{size / events:.2f} ({events} events)"])
    facts = common.machine()
    some = next((v for kind in kinds for v in readings[kind]["plain"] if v and "allocations_per_step" in v), {})
    table = ["# Cost of recording", "", "; ".join(f"{k} {v}" for k, v in facts.items() if v), "",
             f"{rounds} rounds; {options.steps} steps in each run; {some.get('allocations_per_step', 0):.0f} allocations a step.", "",
             common.markdown_table(["workload", "variant", "median", "against plain", "middle half", "difference", "pairs", "bytes/event"], rows)]
    print("\n".join(table))
    name = "overhead" + ("" if len(kinds) == len(KINDS) else "-" + "-".join(kinds))
    common.write(options.out, name + ".md", "\n".join(table) + "\n")
    common.write(options.out, name + ".json", json.dumps({"machine": facts, "readings": readings, "sizes": sizes}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
