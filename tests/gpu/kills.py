#!/usr/bin/env python3
"""SIGKILL at random moments on a real card: every event whose hook had returned is in the analysis.

    python3 tests/gpu/kills.py --kills 48 --jobs 4 --dist dist --out OUT

A small PyTorch loop keeps its own ledger (workloads/torch_killed.py). The trace, read with the rings that the killed
process left, must have at least the ledger's events and at most one more, the call that was under way, and the same
bytes alive but for that one. Half of the runs have a bound of 1 MiB, so that many die while their trace is folded."""
import collections
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common

WORKLOAD = common.HERE / "workloads" / "torch_killed.py"
HEAD = 16
LARGEST = 512 * 2048

Outcome = collections.namedtuple("Outcome", "number bound operations events alive faults size")


def ledger_of(path):
    """(operations, events before them, bytes alive)"""
    with open(path, "rb") as file:
        done, before = struct.unpack("<QQ", file.read(HEAD))
        sizes = struct.unpack(f"<{done}q", file.read(8 * done))
    return done, before, sum(sizes)


def count(path):
    try:
        with open(path, "rb") as file:
            return struct.unpack("<Q", file.read(8))[0]
    except (OSError, struct.error):
        return 0


def kill_one(number, options, shim, analyzer, folder):
    rng = random.Random(number)
    here = folder / str(number)
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    ledger = here / "ledger"
    bound = "1M" if number % 2 else None
    env = common.environment({"GPUMEMTRACE_QUIET": 1, "GPUMEMTRACE_MAX_BYTES": bound}, shim, here, "killed")
    with open(here / "stderr", "wb") as errors:
        process = subprocess.Popen([sys.executable, str(WORKLOAD), str(ledger)], env=env, cwd=here,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        wanted = int(10 ** rng.uniform(0, 5.5))
        deadline = time.monotonic() + options.timeout
        try:
            while process.poll() is None and time.monotonic() < deadline and count(ledger) < wanted:
                time.sleep(0.0005 if count(ledger) else 0.02)
        finally:
            process.kill()
            code = process.wait()
    faults = []
    if code != -9:
        faults.append("ended by itself (%s): %s" % (code, (here / "stderr").read_text(errors="replace")[-200:]))
        return Outcome(number, bound, 0, 0, 0, faults, 0)
    done, before, alive = ledger_of(ledger)
    traces = sorted(here.glob("killed.*.pb"))
    report, error = common.analyze_json(analyzer, traces[0], timeout=options.timeout) if traces else (None, "no trace")
    for rings in pathlib.Path("/dev/shm").glob("gpumemtrace-%d-*.rings" % process.pid):
        rings.unlink()
    if report is None or error:
        return Outcome(number, bound, done, 0, 0, [error], 0)
    events = report["events"]["blocks"]
    if not before + done <= events <= before + done + 1:
        faults.append("%d events, ledger: %d + %d" % (events, before, done))
    seen = sum(entry["bytes"] for entry in report["live_at_end"] if entry["level"] == "blocks")
    if abs(seen - alive) > LARGEST:
        faults.append("%d bytes alive, ledger: %d" % (seen, alive))
    lost = sum(entry.get("events", 0) for entry in (report.get("completeness") or {}).get("losses") or [])
    if lost:
        faults.append("%d events counted as lost" % lost)
    size = traces[0].stat().st_size
    if not faults:
        shutil.rmtree(here, ignore_errors=True)
    return Outcome(number, bound, done, events, seen, faults, size)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--kills", type=int, default=48)
    options = parser.parse_args()
    shim, analyzer = common.find_products(options.dist)
    folder = pathlib.Path(options.work) / "kills"
    begun = time.monotonic()
    outcomes = common.in_parallel(lambda number: kill_one(number, options, shim, analyzer, folder), range(options.kills),
                                  options.jobs)
    broken = [o for o in outcomes if isinstance(o, Exception) or o.faults]
    fine = [o for o in outcomes if not isinstance(o, Exception) and not o.faults]
    lines = ["%d kills of a PyTorch loop in %.0f s, %d at a time: %d events whose call had returned, %d of them lost" % (
        options.kills, time.monotonic() - begun, options.jobs, sum(o.operations for o in fine),
        sum(max(0, o.operations - o.events) for o in fine)),
        "%d runs as they should be, %d with a bound of 1 MiB, %d not" % (len(fine), sum(o.bound is not None for o in fine),
                                                                        len(broken))]
    lines += ["kill %s: %s" % (getattr(o, "number", "?"), o if isinstance(o, Exception) else "; ".join(o.faults)) for o in broken]
    text = "\n".join(lines) + "\n"
    common.write(options.out, "kills.txt", text)
    print(text, end="")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
