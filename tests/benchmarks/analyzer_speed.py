#!/usr/bin/env python3
"""How fast gpumem-analyze reads traces of 10^6 to 10^9 events, and the memory that it takes: makes synthetic traces,
reads each with tests/.../read_benchmark, prints a table in Markdown and deletes the traces.

usage: analyzer_speed.py BUILD_FOLDER FOLDER_FOR_TRACES [EXPONENT…]     (default 6 7 8; 9 needs 700 MB and an hour)

Wall time is that of two threads (one reads and decompresses). The rate of one core is events by CPU time of both
threads: it does not depend on what else the machine does.
"""
import os
import re
import subprocess
import sys

LINE = re.compile(r"^(\w+)\s+(\d+) events\s+([\d.]+) s\s+[\d.]+ M events/s\s+[\d.]+ MB/s\s+cpu\s+([\d.]+) s\s+rss\s+([\d.]+) MiB")


def measure(benchmark, trace, what):
    done = subprocess.run([benchmark, trace, what], stdout=subprocess.PIPE, check=True)
    match = LINE.match(done.stdout.decode())
    if match is None:
        sys.exit(f"{benchmark} printed something else: {done.stdout!r}")
    return int(match[2]), float(match[3]), float(match[4]), float(match[5])


def main():
    build, folder = sys.argv[1:3]
    exponents = [int(word) for word in sys.argv[3:]] or [6, 7, 8]
    synthesize = os.path.join(build, "tests", "synthetic", "gpumem-synthesize")
    benchmark = os.path.join(build, "analyzer", "read_benchmark")
    print("| events | trace | ledger and peak: wall | one core | all analyses: wall | one core | resident memory |")
    print("|---|---|---|---|---|---|---|")
    for exponent in exponents:
        trace = os.path.join(folder, f"events-1e{exponent}.pb")
        kept = os.path.exists(trace)
        if not kept:
            subprocess.run([synthesize, trace, "loop", str(10 ** exponent)], check=True)
        size = os.path.getsize(trace)
        events, peak_wall, peak_cpu, _ = measure(benchmark, trace, "peak")
        _, all_wall, all_cpu, memory = measure(benchmark, trace, "analyses")
        print(f"| 10^{exponent} | {size / 2 ** 20:.1f} MiB, {size / events:.2f} B/event "
              f"| {peak_wall:.2f} s, {events / peak_wall / 1e6:.1f} M/s | {events / peak_cpu / 1e6:.1f} M/s "
              f"| {all_wall:.2f} s, {events / all_wall / 1e6:.1f} M/s | {events / all_cpu / 1e6:.1f} M/s "
              f"| {memory:.1f} MiB |", flush=True)
        if not kept:
            os.remove(trace)


if __name__ == "__main__":
    main()
