#!/usr/bin/env python3
"""What recording costs a CPU-bound training step, told more exactly than by the times of two processes, whose layouts in memory alone
make percents of a step: the `steady` step of torch_steps.py,

- in one process, with recording and past it in turn (programs/routed_calls.c): the cost to the step;
- with the processor's counter read before and after each call of a hook (programs/timed_calls.c): the cost of the calls themselves, in
  the caches as the step leaves them. What the first is more than the second is what recording does to the program's caches.

    python3 tests/gpu/call_costs.py --dist dist --out OUT [--seconds 120] [--beside NAME=OTHER.so …] [--only NAME …]        about 170 s

--beside adds another build of the shim, measured in the same rounds. Each process, the plain one too, has the same two cores
(lockstep.py). Needs a C compiler."""
import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common
import lockstep
from step_parts import compile_preload

WORKLOAD = common.HERE / "workloads" / "torch_steps.py"
STEPS, PAIRS = 3, 5  # of a block
STACKS = {"no stacks": "none", "native": "native", "Python": "python", "both": "both"}


def variants(preload, shim, beside, stacks_beside):
    """{name: (shim or None, environment)}"""
    alone, in_front = {"LD_PRELOAD": str(preload)}, {"LD_PRELOAD": f"{preload}:{{shim}}"}
    found = {lockstep.PLAIN: (None, alone), "switched off": (shim, in_front | {"GPUMEMTRACE": "0"})}
    for build, library in [("", shim), *((f"{name}: ", pathlib.Path(path).resolve()) for name, path in beside)]:
        for name, stacks in STACKS.items():
            if not build or name in stacks_beside:
                found[build + name] = (library, in_front | {"GPUMEMTRACE_STACKS": stacks})
    return found


def measure(work, chosen, request, rounds, seconds):
    """The rounds of one process for each variant, pinned to the same two cores."""
    work.mkdir(parents=True, exist_ok=True)
    workers = [lockstep.Worker(WORKLOAD, work, name, library, env, []) for name, (library, env) in chosen.items()]
    cores = sorted(os.sched_getaffinity(0))
    common.in_parallel(lambda w: w.ask("steady 12", timeout=150), workers, len(workers))
    for worker in workers:
        worker.ask(lockstep.pin_request(cores))
    taken = lockstep.rounds(workers, request, rounds, seconds, time.monotonic)
    failures = [f"{w.label}: exit {w.process.returncode}: {w.last_words()}" for w in workers if w.end() != 0]
    return taken, failures


def table_of_steps(taken, names):
    rows = []
    for name in names:
        pairs = [pair for r in taken for a in r.get(name, []) for pair in a["pairs"]]
        if len(pairs) < 3:
            rows.append([name, "failed"])
            continue
        ratios, differences = [(a / b - 1) * 100 for a, b in pairs], [(a - b) * 1e3 for a, b in pairs]
        low, high = lockstep.interval_of_median(ratios)
        rows.append([name, f"{statistics.median(b for _, b in pairs):.3f}", f"{statistics.median(ratios):+.2f} % ({low:+.2f} … {high:+.2f})",
                     f"{statistics.median(differences):+.0f}", len(pairs)])
    return common.markdown_table(["variant", "step past the shim, ms", "recorded step (95 %)", "µs", "pairs"], rows)


def added(taken, name, kind):
    """(calls a step, median of the ns that a call takes more than in the plain process of its round, its 95 % interval), or None."""
    pairs = [(a["calls"][kind], b["calls"][kind]) for r in taken for a, b in zip(r.get(name, []), r.get(lockstep.PLAIN, []))
             if kind in a["calls"] and kind in b["calls"]]
    if len(pairs) < 3:
        return None
    differences = [a[1] - b[1] for a, b in pairs]
    return statistics.median(a[0] for a, _ in pairs), statistics.median(differences), lockstep.interval_of_median(differences)


def table_of_calls(taken, names):
    kinds = sorted({kind for r in taken for a in r.get(lockstep.PLAIN, []) for kind in a["calls"]})
    counted = {kind: (added(taken, lockstep.PLAIN, kind) or [0])[0] for kind in kinds}
    plain = {kind: statistics.median(a["calls"][kind][1] for r in taken for a in r[lockstep.PLAIN] if kind in a["calls"]) for kind in kinds}
    rows = [["calls a step", *(f"{counted[kind]:.0f}" for kind in kinds), ""],
            [lockstep.PLAIN, *(f"{plain[kind]:.0f} ns" for kind in kinds), ""]]
    for name in names:
        if name == lockstep.PLAIN:
            continue
        found = {kind: added(taken, name, kind) for kind in kinds}
        rows.append([name, *("" if f is None else f"{f[1]:+.0f} ({f[2][0]:+.0f} … {f[2][1]:+.0f})" for f in found.values()),
                     f"{sum(f[0] * f[1] for f in found.values() if f is not None) / 1e3:+.0f}"])
    return common.markdown_table(["variant", *kinds, "µs a step"], rows)


def main():
    parser = common.arguments(__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=int, default=120, help="for the rounds of both parts together, without start and end")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=PATH", type=lambda text: text.split("=", 1))
    parser.add_argument("--beside-stacks", action="append", choices=[*STACKS], help="with which stacks those run; may be repeated; all but native")
    options = parser.parse_args()
    shim, _ = common.find_products(options.dist)
    work = pathlib.Path(options.work) / "call_costs"
    work.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    facts = common.machine()
    output = ["# What recording costs a step, and what its calls take", "", "; ".join(f"{k} {v}" for k, v in facts.items() if v), ""]
    say = lambda text: (output.append(text), print(text, flush=True))
    print("\n".join(output), flush=True)

    raw = {}
    for program, request, share, table in (("routed_calls", f"in_turn {PAIRS}", 0.6, table_of_steps), ("timed_calls", f"timed {STEPS}", 0.4, table_of_calls)):
        preload = compile_preload(work, program)
        if preload is None:
            sys.exit(f"call_costs.py: no C compiler (cc, gcc, clang) could make programs/{program}.c")
        found = variants(preload, shim, options.beside, options.beside_stacks or ["no stacks", "Python", "both"])
        chosen = {n: v for n, v in found.items() if n == lockstep.PLAIN or common.chosen(n, options.only)}
        taken, failures = measure(work / program, chosen, request, options.rounds, options.seconds * share)
        raw[program] = taken
        say("\n".join([table(taken, chosen), *failures, f"\n{len(taken)} rounds; {time.monotonic() - begun:.0f} s so far.\n"]))
    common.write(options.out, "call_costs.md", "\n".join(output) + "\n")
    common.write(options.out, "call_costs.json", json.dumps({"machine": facts, "rounds": raw}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
