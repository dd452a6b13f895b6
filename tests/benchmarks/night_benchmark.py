#!/usr/bin/env python3
"""A night in minutes, within a bound: runs night_benchmark with GPUMEMTRACE_MAX_BYTES and without, and compares what
gpumem-analyze says of both. Exit code 1 when the bound, the memory of the recorder or the equality does not hold.

  tests/benchmarks/night_benchmark.py --program build/release/tests/benchmarks/night_benchmark \\
      --analyzer build/release/analyzer/gpumem-analyze --events 1e8 --bound 20M

The two runs are two processes: times differ, everything else in the report that folding promises must not."""

import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MEMORY_LIMIT = 64 << 20


def number(text):
    return int(float(text[:-1]) * UNITS[text[-1]]) if text[-1] in UNITS else int(float(text))


def record(arguments, folder, bound):
    os.makedirs(folder)
    environment = dict(os.environ, GPUMEMTRACE_OUT="trace.pb", GPUMEMTRACE_QUIET="1", GPUMEMTRACE_MAX_BYTES=str(bound))
    text = subprocess.run([arguments.program, str(number(arguments.events)), str(arguments.threads)], cwd=folder,
                          env=environment, stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout
    with open(os.path.join(folder, "run.json"), "w") as file:
        file.write(text)
    return json.loads(text)


def earlier(folder):
    with open(os.path.join(folder, "run.json")) as file:
        return json.load(file)


def report(arguments, trace):
    begin = time.monotonic()
    # Exit code 0 says that nothing was damaged.
    text = subprocess.run([arguments.analyzer, "report", "--json", "--no-symbols", trace], stdout=subprocess.PIPE,
                          check=True, universal_newlines=True).stdout
    return json.loads(text), time.monotonic() - begin


def both(arguments, what, first, second):
    """what(*first) and what(*second), one after the other or at once."""
    with concurrent.futures.ThreadPoolExecutor(2 if arguments.at_once else 1) as pool:
        return [done.result() for done in [pool.submit(what, *each) for each in (first, second)]]


def pick(entry, *keys):
    return {key: entry.get(key) for key in keys}


def promised(report):
    """What folding promises (docs/limits.md), of what the report says. Times differ between two processes."""
    def peak(entry):
        return dict(pick(entry, "device", "level", "bytes", "reserved_bytes", "by_library", "by_size_class"),
                    moment=pick(entry["moment"], "event", "step"),
                    by_stack=[pick(stack, "bytes", "count", "stack") for stack in entry["by_stack"]],
                    largest=[pick(block, "bytes", "alive_at_end") for block in entry["largest"]])

    return {
        "verdict": report["verdict"], "losses": report["losses"], "ended": report["ended"], "anomalies": report["anomalies"],
        "steps": pick(report["steps"], "count", "source"), "events": report["events"],
        "spaces": [pick(space, "space", "live_bytes", "live", "allocations") for space in report["spaces"]],
        "findings": [pick(finding, "kind", "space", "device", "bytes_per_step", "count_per_step", "live_bytes_at_end",
                          "still_growing", "stacks") for finding in report["findings"]],
        "peaks": [peak(entry) for entry in report["peaks"]],
        "live_at_end": [pick(entry, "device", "level", "bytes", "count") for entry in report["live_at_end"]],
        "self_check": report["self_check"]["disagreements"],
    }


def differences(a, b, path=""):
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(set(a) | set(b)):
            yield from differences(a.get(key), b.get(key), path + "/" + key)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b)):
            yield from differences(x, y, "%s[%d]" % (path, i))
    elif isinstance(a, float) or isinstance(b, float):
        # Rates are estimates.
        if a is None or b is None or abs(a - b) > 0.1 * max(abs(a), abs(b)):
            yield path, a, b
    elif a != b:
        yield path, a, b


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--analyzer", required=True)
    parser.add_argument("--events", default="1e8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bound", default="20M")
    parser.add_argument("--at-once", action="store_true", help="both runs, and then both reports, at the same time: for a "
                        "machine with cores to spare")
    parser.add_argument("--folder", help="where the traces go (default: a temporary folder); they are removed")
    parser.add_argument("--keep", action="store_true", help="do not remove the traces")
    parser.add_argument("--again", metavar="FOLDER", help="compare what an earlier run with --keep left in this folder")
    arguments = parser.parse_args()
    arguments.program = os.path.abspath(arguments.program)
    bound = number(arguments.bound)
    folder = arguments.again or tempfile.mkdtemp(prefix="night_", dir=arguments.folder)
    failed = []
    try:
        if arguments.again:
            within, whole = (earlier(os.path.join(folder, name)) for name in ("bounded", "whole"))
        else:
            within, whole = both(arguments, lambda name, limit: record(arguments, os.path.join(folder, name), limit),
                                 ("bounded", bound), ("whole", 1 << 40))
        (a, a_seconds), (b, b_seconds) = both(arguments, lambda name: report(arguments, os.path.join(folder, name, "trace.pb")),
                                              ("whole",), ("bounded",))
    finally:
        if arguments.keep or arguments.again:
            print("traces are in", folder)
        else:
            shutil.rmtree(folder)
    for name, run, seconds in (("whole", whole, a_seconds), ("bounded", within, b_seconds)):
        print("%-8s %6.1f s, %6.1f s of processors; %12d bytes, at most %12d on disk; recorder's memory %5.1f MiB, peak RSS "
              "%5.1f MiB; report in %.1f s" % (name, run["seconds"], run["cpu_seconds"], run["size"], run["largest_on_disk"],
                                              run["recorder_memory"] / 2**20, run["peak_resident"] / 2**20, seconds))
    if within["largest_on_disk"] > bound:
        failed.append("the bound of %d bytes was not kept" % bound)
    if within["recorder_memory"] > MEMORY_LIMIT:
        failed.append("the recorder held more than 64 MiB")
    for path, x, y in differences(promised(a), promised(b)):
        print("differs: %s: %s, bounded: %s" % (path, json.dumps(x)[:200], json.dumps(y)[:200]))
        failed.append("the reports differ")
    print("FAILED: " + "; ".join(sorted(set(failed))) if failed else "the bound was kept and the reports agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
