#!/usr/bin/env python3
"""Says where the cost of a CPU-bound training step goes: the `steady` step of torch_steps.py with the shim's parts switched on one
after another, and how often each hooked function is called in a step.

    python3 tests/gpu/step_parts.py --dist dist --out OUT [--seconds 110] [--before OLD.so] [--only NAME …]        about 150 s

--before adds an older shim with both stacks and with Python stacks, measured in the same rounds. Needs a C compiler for two of its
parts (the step without the hook at autograd nodes; the counts). The comparison is lockstep.center(): most of the noise of a shared
host meets all processes of a round alike, and falls out."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common
import lockstep
import report_reader

WORKLOAD = common.HERE / "workloads" / "torch_steps.py"
STEPS = 3  # of a block
COUNTING = "counting"


def compile_preload(work, name):
    """programs/NAME.c as a library, or None."""
    target = work / f"{name}.so"
    for compiler in ("cc", "gcc", "clang"):
        try:
            subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-w", "-o", str(target), str(common.HERE / f"programs/{name}.c"), "-ldl"],
                           check=True, capture_output=True, timeout=30)
            return target
        except (OSError, subprocess.SubprocessError):
            pass
    return None


def variants(work, shim, before):
    """{name: (processes, shim or None, environment)}"""
    found = {
        lockstep.PLAIN: (2, None, {}),
        "switched off": (1, shim, {"GPUMEMTRACE": "0"}),
        "no stacks": (1, shim, {"GPUMEMTRACE_STACKS": "none"}),
        "native": (1, shim, {"GPUMEMTRACE_STACKS": "native"}),
        "Python": (2, shim, {"GPUMEMTRACE_STACKS": "python"}),
        "both": (2, shim, {}),
        "both, no census": (1, shim, {"GPUMEMTRACE_CENSUS": "off"}),
        "both, small ring": (1, shim, {"GPUMEMTRACE_RING_BYTES": "128K"}),
        "both, sleeping writer": (1, shim, {"GPUMEMTRACE_RING_BYTES": "64M", "GPUMEMTRACE_FLUSH_MS": "60000"}),
    }
    if (library := compile_preload(work, "without_autograd_tie")) is not None:
        found["both, no autograd hook"] = (1, shim, {"LD_PRELOAD": f"{library}:{{shim}}"})
        found["no stacks, no autograd hook"] = (1, shim, {"LD_PRELOAD": f"{library}:{{shim}}", "GPUMEMTRACE_STACKS": "none"})
    if before:
        found["before: both"] = (2, before, {})
        found["before: Python"] = (2, before, {"GPUMEMTRACE_STACKS": "python"})
    return found


def percent(found):
    return "" if found is None else f"{found[0] * 100:+.2f} % ({found[1] * 100:+.2f} … {found[2] * 100:+.2f})"


def row_of(taken, name, medians, least, plain):
    answers = [a for round_ in taken for a in round_.get(name, [])]
    if not answers:
        return [name, "failed"]
    steps = len(answers) * STEPS
    sum_of = lambda key: sum(a.get(key, 0) for a in answers)
    found = medians.get(name)
    return [name, f"{statistics.median(a['value'] for a in answers):.3f}", percent(found),
            f"{found[0] * plain * 1e3:+,.0f}" if found else "", percent(least.get(name)), f"{sum_of('faults') / steps:.2f}",
            f"{sum_of('switches') / steps:.2f}", f"{sum_of('writer_ms') / steps:.3f}"]


def main():
    parser = common.arguments(__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=int, default=110, help="for the rounds, without start and end")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--before", help="an older libgpumemtrace.so to measure beside this one")
    options = parser.parse_args()
    shim, analyzer = common.find_products(options.dist)
    before = pathlib.Path(options.before).resolve() if options.before else None
    work = pathlib.Path(options.work) / "step_parts"
    work.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    facts = common.machine()
    output = ["# Where the cost of a CPU-bound step goes", "", "; ".join(f"{k} {v}" for k, v in facts.items() if v), ""]
    say = lambda text: (output.append(text), print(text, flush=True))
    print("\n".join(output), flush=True)

    chosen = {n: v for n, v in variants(work, shim, before).items() if n == lockstep.PLAIN or common.chosen(n, options.only)}
    workers = [lockstep.Worker(WORKLOAD, work, name, library, env, [], number)
               for name, (processes, library, env) in chosen.items() for number in range(processes)]
    counter = compile_preload(work, "hook_counts")
    counting = lockstep.Worker(WORKLOAD, work, COUNTING, None, {"LD_PRELOAD": str(counter)} if counter else {}, [])
    cores = sorted(os.sched_getaffinity(0))
    common.in_parallel(lambda w: w.ask("steady 12", timeout=150), [*workers, counting], len(workers) + 1)
    counted = counting.ask("counts", timeout=60) or {}
    counting.end()
    say("A step calls: " + "; ".join(f"{name} {number:g}" for part in ("calls", "profiler") for name, number in sorted(counted.get(part, {}).items()))
        + ("" if counted else "not known: " + counting.last_words()) + "\n")
    for worker in workers:
        worker.ask(lockstep.pin_request(cores))
    say(f"{len(workers)} processes on the same two cores, warm after {time.monotonic() - begun:.0f} s.\n")
    taken = lockstep.rounds(workers, f"steady {STEPS}", options.rounds, options.seconds, time.monotonic)
    medians, least = lockstep.center(taken, "value"), lockstep.center(taken, "least")
    plain = statistics.median([a["value"] for r in taken for a in r.get(lockstep.PLAIN, [])] or [0])
    say(common.markdown_table(["variant", "step ms", "against plain (95 %)", "µs", "by the best of three steps", "faults/step", "switches/step",
                               "writer ms/step"], [row_of(taken, name, medians, least, plain) for name in chosen]))
    spread = lockstep.spread_of_processes(taken, "value")
    say(f"\n{len(taken)} rounds; the two plain processes differ by {spread * 100:+.2f} %.\n" if spread is not None else "")

    rows, statistics_of = [], {}
    for worker in workers:
        steps = (worker.ask("counts", timeout=30) or {}).get("steps", 0) + 10  # those that count
        if worker.end() != 0:
            say(f"{worker.label}: exit {worker.process.returncode}: {worker.last_words()}")
        trace = worker.trace()
        if not trace:
            continue
        report, error = common.analyze_json(analyzer, trace)
        own = report_reader.pick(report or {}, "recorder", default={})
        statistics_of[worker.label] = own or error
        sampled, hits, misses = (own.get(k, 0) for k in ("sampled_hook_events", "stack_cache_hits", "stack_cache_misses"))
        rows.append([worker.label, f"{own['events'] / steps:.0f}" if "events" in own else error, f"{(hits + misses) / steps:.0f}",
                     f"{misses / steps:.2f}", f"{own.get('sampled_hook_ns', 0) / sampled:.0f}" if sampled else "", own.get("full_rings", "")])
    say(common.markdown_table(["process", "events/step", "stacks captured/step", "not known before/step", "ns in the recorder, mean of the sampled",
                               "ring full"], rows))
    say(f"\n{time.monotonic() - begun:.0f} s in all.")
    common.write(options.out, "step_parts.md", "\n".join(output) + "\n")
    common.write(options.out, "step_parts.json", json.dumps({"machine": facts, "counted": counted, "statistics": statistics_of, "rounds": taken}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
