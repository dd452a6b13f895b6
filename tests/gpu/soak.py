#!/usr/bin/env python3
"""Runs a real training loop with random worker restarts for a while and reports crashes, the shim's memory over time and
whether every trace is valid.

    python3 tests/gpu/soak.py --minutes 15 --dist dist --out OUT
    python3 tests/gpu/soak.py --minutes 15 --dist dist --out OUT --detach     returns at once; OUT/soak.status.json tells
    python3 tests/gpu/soak.py --out OUT --wait 540                            waits for a detached run to end, at most so long

The time is divided into rounds of about three minutes; in each round one process runs with the shim and another beside it
without, from the same seed, so that their resident memory can be compared."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common

WORKLOAD = common.HERE / "workloads" / "torch_soak.py"


def status(folder, **facts):
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "soak.status.part"
    temporary.write_text(json.dumps({"time": time.strftime("%H:%M:%S"), "pid": os.getpid(), **facts}))
    temporary.replace(folder / "soak.status.json")


def detach(folder):
    """The same command once more, in a session of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *(a for a in sys.argv if a != "--detach")]
    with open(folder / "soak.log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    status(folder, state="started", child=process.pid)
    print(f"runs as process {process.pid}; {folder}/soak.status.json tells how far it is")
    return 0


def wait(folder, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        facts = json.loads((folder / "soak.status.json").read_text())
        if facts["state"] == "ended" or not pathlib.Path(f"/proc/{facts.get('child', facts['pid'])}").exists():
            break
        time.sleep(2)
    print((folder / "soak.status.json").read_text())
    if (folder / "soak.md").is_file():
        print((folder / "soak.md").read_text())
    return 0


def samples(text):
    found = []
    for line in text.split("\n"):
        try:
            found.append(json.loads(line))
        except ValueError:
            pass  # cut by the end of the process
    return found


def slope(points):
    """KiB a minute, least squares over the second half: what comes at the start is warm-up."""
    points = points[len(points) // 2:]
    if len(points) < 3:
        return None
    mean_x, mean_y = statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return 60 * sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else None


def ours(sample, key):
    return sum(part[key] for part in sample["ours"].values())


def run_round(number, seconds, work, shim, analyzer, options, note):
    def one(kind):
        return common.run([sys.executable, str(WORKLOAD), str(seconds), str(number)], folder=work, name=f"round{number}.{kind}",
                          shim=shim if kind == "shim" else None, timeout=seconds + 120)
    note(f"round {number}: training")
    runs = dict(zip(("shim", "plain"), common.in_parallel(one, ["shim", "plain"], 2)))
    for run in runs.values():
        if isinstance(run, Exception):
            raise run
    traces = []
    note(f"round {number}: reading traces")
    for trace in runs["shim"].traces:
        code, _, errors = common.analyze(analyzer, trace, "--section", "completeness")
        main = trace == runs["shim"].trace
        traces.append({"name": trace.name, "bytes": trace.stat().st_size, "analyzer_exit": code, "main": main,
                       "errors": errors.strip()[-200:]})
        if not main or code == 0:
            trace.unlink()
    report = {kind: {"code": run.code, "seconds": round(run.seconds, 1), "samples": samples(run.stdout),
                     "stderr": common.last_words(run.stderr)} for kind, run in runs.items()}
    return {"number": number, "traces": traces, **report}


def main():
    parser = common.arguments(__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=15, help="how long in all")
    parser.add_argument("--detach", action="store_true", help="go on in the background")
    parser.add_argument("--wait", type=float, help="only wait for a detached run, at most so many seconds")
    options = parser.parse_args()
    out = pathlib.Path(options.out)
    if options.wait is not None:
        return wait(out, options.wait)
    if options.detach:
        return detach(out)
    shim, analyzer = common.find_products(options.dist)
    if not common.has_module("torch"):
        print("PyTorch is not installed here")
        return 2
    work = pathlib.Path(options.work) / "soak"
    number = max(1, round(options.minutes / 3))
    seconds = options.minutes * 60 / number
    rounds = []
    for i in range(number):
        rounds.append(run_round(i, seconds, work, shim, analyzer, options,
                                lambda doing: status(out, state="runs", doing=doing, rounds=len(rounds), of=number)))
        common.write(out, "soak.json", json.dumps(rounds, indent=1))
    rows, over_time, bad = [], [], 0
    for r in rounds:
        with_shim, plain = r["shim"]["samples"], r["plain"]["samples"]
        last, last_plain = (s[-1] if s else {} for s in (with_shim, plain))
        invalid = [t["name"] for t in r["traces"] if t["analyzer_exit"] != 0]
        crashed = r["shim"]["code"] != 0 or not last.get("end")
        bad += crashed + len(invalid) + (not r["traces"])
        growth = slope([(s["at"], ours(s, "Rss")) for s in with_shim])
        difference = last.get("resident", 0) - last_plain.get("resident", 0)
        rows.append([r["number"], f"{r['shim']['code']} / {r['plain']['code']}", f"{last.get('steps')} / {last_plain.get('steps')}",
                     last.get("killed"), last.get("restarts"), last.get("forks"), len(r["traces"]), len(invalid),
                     f"{ours(last, 'Rss')} of {ours(last, 'Size')}" if last else "", "" if growth is None else f"{growth:+.1f}",
                     difference, "NO" if crashed or invalid or not r["traces"] else "yes"])
        over_time += [[r["number"], s["at"], s["steps"], ours(s, "Rss"), s["resident"],
                       min(plain, key=lambda p: abs(p["at"] - s["at"]))["resident"] if plain else ""] for s in with_shim]
    facts = common.machine()
    table = [f"# A soak of {options.minutes:g} minutes", "", "; ".join(f"{k} {v}" for k, v in facts.items() if v), "",
             "Sizes in KiB. The shim's named mappings are its file and its rings; its growth is the slope over the second half of "
             "a round.", "",
             common.markdown_table(["round", "exit with / without", "steps", "workers killed", "sets of workers", "forks", "traces",
                                    "invalid", "named mappings resident", "KiB a minute", "resident above plain", "good"], rows), "",
             common.markdown_table(["round", "second", "steps", "named mappings resident", "resident", "resident, plain"], over_time), ""]
    common.write(out, "soak.md", "\n".join(table))
    status(out, state="ended", bad=bad, rounds=len(rounds))
    print("\n".join(table))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
