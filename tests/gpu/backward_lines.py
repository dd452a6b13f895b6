#!/usr/bin/env python3
"""How many allocations of a backward pass carry a forward line, and whether it is the right one.

    python3 tests/gpu/backward_lines.py --dist dist --out OUT

The truth is PyTorch's own: anomaly mode keeps in each autograd node the traceback of the forward operation that made it, and
a hook on each node marks in the trace when it begins to run (workloads/torch_backward.py). Compared are the whole Python
stacks, line by line; an allocation counts as wrong when any file or line of the innermost 20 frames differs. A second run
without hooks and anomaly mode counts what carries a line in ordinary training."""
import collections
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common

WORKLOAD = common.HERE / "workloads" / "torch_backward.py"
MODELS = ("transformer", "conv", "checkpoint", "reentrant", "function", "double", "threads")
BASE = 1000
DEPTH = 20


def events(analyzer, trace):
    """Every block allocation, with its place: yields (bytes, place) in order."""
    process = subprocess.Popen([str(analyzer), "events", "--blocks", "--no-native", str(trace)], stdout=subprocess.PIPE, text=True)
    places = {}
    for line in process.stdout:
        entry = json.loads(line)
        if "new_place" in entry:
            entry["own"] = [(f.get("file", ""), f.get("line", 0), f["function"]) for f in entry["stack"] if not f.get("forward")]
            entry["forward"] = [(f.get("file", ""), f.get("line", 0), f["function"]) for f in entry["stack"] if f.get("forward")]
            places[entry["new_place"]] = entry
        elif entry.get("kind") == "block allocate":
            yield entry["bytes"], places[entry["place"]]
    if process.wait() != 0:
        raise RuntimeError(f"gpumem-analyze events: exit {process.returncode}")


def same_lines(ours, theirs):
    """Both innermost first. Files may be spelled relative in one of them."""
    if len(ours) < min(len(theirs), DEPTH):
        return False
    return all(a[1] == b[1] and pathlib.Path(a[0]).name == pathlib.Path(b[0]).name
               for a, b in zip(ours[:DEPTH], theirs[:DEPTH])) and len(theirs) > 0


def judge_truth(analyzer, trace, nodes):
    """Counts of the run with markers."""
    counts = collections.Counter()
    without, wrong = collections.Counter(), []
    pending, node_of = {}, {}
    for size, place in events(analyzer, trace):
        thread = place["thread"]
        if place["own"] and place["own"][0][2].split(".")[-1] == "mark_node":
            if thread in pending:
                node_of[thread] = nodes[pending.pop(thread) * BASE + size // 512 - 1]
            else:
                pending[thread] = size // 512 - 1
            continue
        node = node_of.get(thread)
        if node is None or node["name"] == "none":
            counts["outside"] += 1
            continue
        counts["in a node"] += 1
        if not place["forward"]:
            without[node["name"]] += 1
            continue
        counts["with a line"] += 1
        truth = [tuple(frame) for frame in reversed(node["stack"])]
        if not truth:
            counts["no truth"] += 1
        elif same_lines(place["forward"], truth):
            counts["right"] += 1
        else:
            counts["wrong"] += 1
            if len(wrong) < 5:
                wrong.append({"node": node["name"], "ours": place["forward"][:6], "truth": truth[:6]})
    return counts, without, wrong


def judge_plain(analyzer, trace):
    counts, without = collections.Counter(), collections.Counter()
    for _, place in events(analyzer, trace):
        if not place["thread_name"].startswith("pt_autograd"):
            continue
        counts["backward"] += 1
        if place["forward"]:
            counts["with a line"] += 1
        else:
            without[place["own"][0][2] if place["own"] else "(no Python frame)"] += 1
    return counts, without


def percent(part, whole):
    return f"{100 * part / whole:.2f} %" if whole else "none"


def main():
    parser = common.arguments(__doc__.split("\n\n")[0])
    options = parser.parse_args()
    shim, analyzer = common.find_products(options.dist)
    if not common.has_module("torch"):
        print("PyTorch is not installed here")
        return 2
    work = pathlib.Path(options.work) / "backward"
    work.mkdir(parents=True, exist_ok=True)

    def one(job):
        model, mode = job
        label = f"{model}.{mode}"
        for old in work.glob(f"{label}.numbers.*"):
            old.unlink()
        done = common.run([sys.executable, str(WORKLOAD), str(work / f"{label}.numbers"), model, mode], folder=work, name=label,
                          shim=shim, timeout=options.timeout, env={"PYTORCH_CUDA_ALLOC_CONF": None, "PYTORCH_ALLOC_CONF": None})
        if done.code != 0 or done.trace is None:
            raise RuntimeError(f"exit {done.code}: {common.last_words(done.stderr)}")
        if mode == "plain":
            return judge_plain(analyzer, done.trace)
        numbers = json.loads(next(work.glob(f"{label}.numbers.*.json")).read_text())
        return judge_truth(analyzer, done.trace, numbers["nodes"])

    jobs = [(model, mode) for model in MODELS if common.chosen(model, options.only) for mode in ("truth", "plain")]
    results = dict(zip(jobs, common.in_parallel(one, jobs, options.jobs)))
    rows, bad, details = [], 0, {}
    for model in dict.fromkeys(model for model, _ in jobs):
        truth, plain = results[model, "truth"], results[model, "plain"]
        failed = [r for r in (truth, plain) if isinstance(r, Exception)]
        if failed:
            bad += 1
            rows.append([model, "", "", "", "", "", f"failed: {failed[0]}", "NO"])
            continue
        counts, without, wrong = truth
        ordinary, ordinary_without = plain
        # What users get is the ordinary run; anomaly mode, which changes how the engine runs, is there to find wrong lines.
        good = (counts["wrong"] == 0 and counts["right"] > 0
                and ordinary["with a line"] >= 0.99 * ordinary["backward"] > 0)
        bad += not good
        rows.append([model, counts["in a node"], percent(counts["with a line"], counts["in a node"]), counts["right"],
                     counts["wrong"], f"{ordinary['backward']}, {percent(ordinary['with a line'], ordinary['backward'])}",
                     ", ".join(f"{n} {name}" for name, n in without.most_common(4)) or "none", "yes" if good else "NO"])
        details[model] = {"truth": counts, "without": without, "wrong": wrong, "plain": ordinary, "plain_without": ordinary_without}
    facts = common.machine()
    table = ["# Backward allocations and their forward lines", "", "; ".join(f"{k} {v}" for k, v in facts.items() if v), "",
             common.markdown_table(["model", "allocations in a node", "carry a line", "as anomaly mode says", "wrong",
                                    "ordinary run: backward, carry a line", "without a line", "ordinary run ≥ 99 %, none wrong"], rows), ""]
    print("\n".join(table))
    for model, detail in details.items():
        for example in detail["wrong"]:
            print(model, json.dumps(example))
        if detail["plain_without"]:
            print(model, "ordinary run, without a line:", dict(detail["plain_without"].most_common(5)))
    common.write(options.out, "backward_lines.md", "\n".join(table) + "\n")
    common.write(options.out, "backward_lines.json", json.dumps({"machine": facts, "results": details}, indent=1, default=str))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
