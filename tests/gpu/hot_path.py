#!/usr/bin/env python3
"""Says where the cost of an allocation goes: torch.empty and its release, timed apart, with the shim's parts switched on one
after another, beside what the recorder measured of itself.

    python3 tests/gpu/hot_path.py --dist dist --out OUT [--seconds 38]        about 90 s

Variants: no shim; the shim switched off (GPUMEMTRACE=0: what standing in front of a function costs); recording without
stacks; with native, with Python, with both; PyTorch's own history. Measured by lockstep.py. For each: page faults, switches
of the measured thread and CPU time of the writer thread; from the trace's own statistics: time in hooks, stack-cache hits.
A C program, where there is a compiler, says what a clock costs here and what touching fresh shared memory does."""
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
VARIANTS = {
    lockstep.PLAIN: (2, False, {}, ""),
    "switched off": (1, True, {"GPUMEMTRACE": "0"}, ""),
    "no stacks": (1, True, {"GPUMEMTRACE_STACKS": "none"}, ""),
    "native": (1, True, {"GPUMEMTRACE_STACKS": "native"}, ""),
    "Python": (1, True, {"GPUMEMTRACE_STACKS": "python"}, ""),
    "both": (2, True, {}, ""),
    "both, private rings": (1, True, {"GPUMEMTRACE_RINGS": "private"}, ""),
    "both, small rings": (1, True, {"GPUMEMTRACE_RING_BYTES": "256K"}, ""),
    "torch history, all": (1, False, {}, "all"),
}
PROBE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
int main(void) {
  enum { kCalls = 1000000, kBytes = 64 << 20 };
  volatile unsigned long long sink = 0;
  double start = now();
  for (int i = 0; i < kCalls; ++i) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); sink += t.tv_nsec; }
  printf("clock_gettime %.1f ns\n", (now() - start) / kCalls);
  start = now();
  for (int i = 0; i < kCalls; ++i) { struct timespec t; clock_gettime(CLOCK_MONOTONIC_COARSE, &t); sink += t.tv_nsec; }
  printf("clock_gettime of the last tick %.1f ns\n", (now() - start) / kCalls);
  start = now();
  for (int i = 0; i < kCalls; ++i) sink += __rdtsc();
  printf("rdtsc %.1f ns\n", (now() - start) / kCalls);
  start = now();
  for (int i = 0; i < kCalls / 10; ++i) syscall(SYS_gettid);
  printf("system call %.1f ns\n", (now() - start) / (kCalls / 10));
  char name[] = "/dev/shm/gpumemtrace-probe-XXXXXX";
  snprintf(name, sizeof name, "/dev/shm/gpumemtrace-probe-%06d", getpid() % 1000000);
  int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd >= 0 && ftruncate(fd, kBytes) == 0) {
    char* shared = mmap(0, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared != MAP_FAILED) {
      start = now();
      for (int i = 0; i < kBytes; i += 4096) shared[i] = 1;
      printf("first touch of a page of /dev/shm %.0f ns\n", (now() - start) / (kBytes / 4096));
      start = now();
      for (int i = 0; i < kBytes; i += 64) shared[i] = 2;
      printf("store to a cache line of it %.2f ns\n", (now() - start) / (kBytes / 64));
    }
  }
  unlink(name);
  FILE* source = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
  char text[64] = "unknown";
  if (source) { fgets(text, sizeof text, source); text[strcspn(text, "\n")] = 0; }
  printf("clock source %s\n", text);
  return 0;
}
"""


def probe(work):
    source, program = work / "probe.c", work / "probe"
    source.write_text(PROBE)
    for compiler in ("cc", "gcc", "clang"):
        try:
            subprocess.run([compiler, "-O2", "-w", "-o", str(program), str(source)], check=True, capture_output=True, timeout=30)
            return subprocess.run([str(program)], capture_output=True, text=True, timeout=30).stdout.strip().split("\n")
        except (OSError, subprocess.SubprocessError):
            pass
    return []


def scaling(work, shim):
    """How an event's cost grows with the threads that record at once: a table."""
    program = work / "scaling"
    library = subprocess.run([sys.executable, "-c", "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('torch').origin).parent / 'lib')"],
                             capture_output=True, text=True, timeout=60).stdout.strip()
    command = ["-O2", "-pthread", "-o", str(program), str(common.HERE / "programs/scaling.c"), f"{library}/libc10.so",
               f"-Wl,-rpath,{library}", "-Wl,--allow-shlib-undefined"]
    for compiler in ("cc", "gcc", "clang"):
        try:
            subprocess.run([compiler, *command], check=True, capture_output=True, timeout=30)
            break
        except (OSError, subprocess.SubprocessError):
            pass
    else:
        return "Threads: no C compiler."
    rows = []
    for threads in (1, 2, 4, 8, 16, 32, 64):
        row = [threads]
        for env in (None, {"GPUMEMTRACE_STACKS": "none"}, {}):
            # The least of two: another program of the host is never faster.
            done = [common.run([str(program), str(threads)], folder=work, name="scaling", shim=shim if env is not None else None, env=env, timeout=20)
                    for _ in range(2)]
            row.append(min((float(d.stdout) for d in done if d.code == 0), default=float("nan")))
        rows.append([threads, f"{row[1]:.0f}", f"{row[2] - row[1]:+.0f}", f"{row[3] - row[1]:+.0f}"])
    return common.markdown_table(["threads at once", "plain, ns an event", "added, no stacks", "added, both stacks"], rows)


def total(taken, variant, key):
    return sum(a.get(key, 0) for answers in taken for a in answers.get(variant, []))


def row_of(taken, name):
    row = [name]
    for key in ("alloc", "free"):
        found = lockstep.compare(taken, name, key)
        if found is None:
            return [name, "failed"] + [""] * 6
        low, high = found["difference_interval"]
        row += [f"{found['median']:,.0f}", "" if name == lockstep.PLAIN else f"{found['difference']:+,.0f} ({low:+,.0f} … {high:+,.0f})"]
    pairs = total(taken, name, "pairs") or 1
    row += [f"{total(taken, name, 'faults') * 1e3 / pairs:.2f}", f"{total(taken, name, 'switches') * 1e3 / pairs:.2f}",
            f"{total(taken, name, 'writer_ms') * 1e6 / pairs:.0f}"]
    return row


def main():
    parser = common.arguments(__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=int, default=38, help="for the rounds, without start and end")
    parser.add_argument("--rounds", type=int, default=400)
    options = parser.parse_args()
    shim, analyzer = common.find_products(options.dist)
    work = pathlib.Path(options.work) / "hot_path"
    work.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    facts = common.machine()
    output = ["# Where the cost of an allocation goes", "", "; ".join(f"{k} {v}" for k, v in facts.items() if v), ""]
    say = lambda text: (output.append(text), print(text, flush=True))
    print("\n".join(output), flush=True)
    probed = probe(work)
    say("; ".join(probed) + "\n")

    workers = [lockstep.Worker(WORKLOAD, work, name, shim if with_shim else None, env, [history] if history else [], number)
               for name, (processes, with_shim, env, history) in VARIANTS.items() for number in range(processes)]
    cores = sorted(os.sched_getaffinity(0))
    say(scaling(work, shim) + "\n")
    # A step first, so that everything of autograd is as it is in training.
    common.in_parallel(lambda w: (w.ask("steady 10", timeout=90), w.ask("alloc 40", timeout=90)), workers, len(workers))
    for worker in workers:
        worker.ask(lockstep.pin_request(cores))
    say(f"{len(workers)} processes on the same two cores, warm after {time.monotonic() - begun:.0f} s.\n")
    taken = lockstep.rounds(workers, "alloc 8", options.rounds, options.seconds, time.monotonic)
    say(common.markdown_table(["variant", "alloc ns", "against plain (95 %)", "free ns", "against plain (95 %)", "faults/1000", "switches/1000",
                               "writer ns/pair"], [row_of(taken, name) for name in VARIANTS]))
    spread = lockstep.spread_of_processes(taken, "value")
    say(f"\n{len(taken)} rounds; the two plain processes differ by {spread * 100:+.2f} %.\n" if spread is not None else "")

    rows, statistics_of = [], {}
    for worker in workers:
        if worker.end() != 0:
            say(f"{worker.label}: exit {worker.process.returncode}: {worker.last_words()}")
        trace = worker.trace()
        if not trace:
            continue
        report, error = common.analyze_json(analyzer, trace)
        own = report_reader.pick(report or {}, "recorder", default={})
        statistics_of[worker.label] = own or error
        sampled, hits, misses = (own.get(k, 0) for k in ("sampled_hook_events", "stack_cache_hits", "stack_cache_misses"))
        rows.append([worker.label, own.get("events", error), f"{own.get('sampled_hook_ns', 0) / sampled:.0f}" if sampled else "",
                     f"{hits / (hits + misses) * 100:.3f} %" if hits + misses else "", own.get("full_rings", "")])
    say(common.markdown_table(["process", "events", "ns in the recorder, mean of the sampled", "stack-cache hits", "ring full"], rows))
    say(f"\n{time.monotonic() - begun:.0f} s in all.")
    common.write(options.out, "hot_path.md", "\n".join(output) + "\n")
    common.write(options.out, "hot_path.json", json.dumps({"machine": facts, "probe": probed, "statistics": statistics_of, "rounds": taken}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
