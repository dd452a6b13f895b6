#!/usr/bin/env python3
"""Takes a census of 100,000 CUDA tensors among a million Python objects on a real card: its time, its memory, whether
it was complete, and whether the program's reference counts and object counts are what they were before.

    python3 tests/gpu/census_scale.py --dist dist --out OUT            (well under a minute, one GPU, 1 GiB of its memory)
    python3 tests/gpu/census_scale.py --library LIBRARY                (no GPU and no shim: tensors on the host, the
                                                                        census's own files, LIBRARY from heap_library.cc)

Half of the tensors are parameters and gradients of one nested module, the others stand in dictionaries as an optimizer
keeps them. Exit code 0: complete, within the budget, every tensor found with its holder, nothing of the program changed.
"""
import gc
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common

ROOT = pathlib.Path(__file__).resolve().parents[2]
TENSORS, OBJECTS, BUDGET = 100_000, 1_000_000, 2.0


class Record:
    """One of the many objects that have nothing to do with tensors."""

    def __init__(self, number):
        self.tags = [number]
        self.fields = {"number": number, "children": [number]}


def build(device):
    import torch

    class Block(torch.nn.Module):
        def __init__(self, children):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(4, device=device))
            self.bias = torch.nn.Parameter(torch.zeros(4, device=device))
            self.inner = torch.nn.ModuleList(children)

    blocks = TENSORS // 8
    model = Block([Block([Block([]) for _ in range(24)]) for _ in range(blocks // 25)])
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros(4, device=device)
    missing = TENSORS - 2 * len(parameters)
    state = {number: {"step": number, "exp_avg": torch.zeros(4, device=device), "exp_avg_sq": torch.zeros(4, device=device)}
             for number in range((missing + 1) // 2)}
    records = []
    while len(gc.get_objects()) < OBJECTS:
        records += [Record(number) for number in range(10_000)]
    return model, state, records


def counts(model, state, records):
    gc.collect()
    watched = [model, model.inner, model.weight, state, state[7], state[7]["exp_avg"], records, records[3], records[3].tags,
               type(model), sys.modules, sys.modules["torch"].Tensor]
    return [sys.getrefcount(value) for value in watched], sum(1 for _ in gc.get_objects())


def program():
    """Runs under the shim: two censuses on request, counts before and after each."""
    sys.path.insert(0, str(ROOT / "interpose/api"))
    import gpumemtrace
    kept = build("cuda")
    globals().update(model=kept[0], state=kept[1], records=kept[2])
    time.sleep(1.5)  # not to wait for a result: the shim attaches to an interpreter once a second
    told = []
    for _ in range(3):
        before = counts(*kept)
        start = time.monotonic()
        asked = gpumemtrace.census()
        for _ in range(1000):  # the census runs between two bytecodes
            pass
        took = time.monotonic() - start
        after = counts(*kept)
        told.append({"asked": asked, "seconds": took, "references": before[0] == after[0], "objects": [before[1], after[1]]})
    # The first one compiles the census's own files, whose functions stay.
    print("COUNTS " + json.dumps(told))


def without_gpu(library):
    import os
    os.environ["GPUMEMTRACE_TEST_HEAP"] = library
    sys.path.insert(0, str(ROOT / "tests/recorder/census"))
    import load
    space = load.load()
    space["HOST_TENSOR_BYTES"], space["HOST_TENSOR_LIMIT"] = 0, 1 << 40
    kept = build("cpu")
    globals().update(model=kept[0], state=kept[1], records=kept[2])
    gc.collect()
    right = True
    for turn in range(3):
        before = counts(*kept)
        start = time.process_time()
        result = space["take"](BUDGET)
        took = time.process_time() - start
        start = time.process_time()
        size = len(space["encode"](result, 5))
        encoded = time.process_time() - start
        tensors, nameless = len(result.tensors), sum(1 for row in result.tensors if row.holder < 0)
        holders, partial = len(result.holders), result.partial
        del result
        after = counts(*kept)
        print(f"{tensors} tensors, {nameless} without a holder, {holders} holders, {before[1]} objects: {took:.2f} s of "
              f"processor time, {encoded:.2f} s more to write {size} B; {'partial: ' + partial if partial else 'complete'}; "
              f"counts {'the same' if before == after else 'CHANGED'}")
        right = right and not partial and nameless == 0 and tensors >= TENSORS and before[0] == after[0]
        right = right and (turn == 0 or before[1] == after[1])
    return 0 if right else 1


def main():
    if "--program" in sys.argv:
        return program()
    if "--library" in sys.argv:
        return without_gpu(sys.argv[sys.argv.index("--library") + 1])
    options = common.arguments(__doc__.split("\n\n")[0]).parse_args()
    shim, analyzer = common.find_products(options.dist)
    work = pathlib.Path(options.work) / "census_scale"
    done = common.run([sys.executable, str(pathlib.Path(__file__).resolve()), "--program"], folder=work, name="census_scale",
                      shim=shim, timeout=options.timeout)
    if done.code != 0 or not done.trace or "COUNTS " not in done.stdout:
        print(f"exit {done.code}: {common.last_words(done.stderr)}\n{done.stdout[-500:]}")
        return 1
    told = json.loads(done.stdout.split("COUNTS ", 1)[1].split("\n")[0])
    report, error = common.analyze_json(analyzer, done.trace)
    if report is None:
        print(error)
        return 1
    rows, right = [], True
    asked = [census for census in report["censuses"] if census["trigger"] == "request"]
    for census, seen in zip(asked, told):
        complete = not census["partial"]
        right = right and complete and census["tensors"] >= TENSORS and census["duration_seconds"] <= BUDGET
        rows.append([census["number"], census["tensors"], census["objects"], f"{census['duration_seconds']:.2f}",
                     f"{seen['seconds']:.2f}", f"{census['memory_bytes'] / 2**20:.0f}", "yes" if complete else census["partial"],
                     "yes" if seen["references"] else "NO", "{} / {}".format(*seen["objects"])])
    right = right and len(asked) == len(told) and all(seen["references"] for seen in told)
    right = right and all(seen["objects"][0] == seen["objects"][1] for seen in told[1:])
    facts = common.machine()
    table = ["# A census of 100,000 tensors among a million objects", "", "; ".join(f"{k} {v}" for k, v in facts.items() if v), "",
             common.markdown_table(["census", "device tensors", "objects", "seconds", "with writing", "MiB meanwhile", "complete",
                                    "references as before", "objects before / after"], rows), "",
             f"Trace {done.trace.stat().st_size} B, {len(report['censuses'])} censuses. " + ("As it should be." if right else "NOT as it should be.")]
    table += ["", "Largest holders:"] + [f"- {held['text']}: {held['tensors']} tensors" for held in report["holders"][:4]]
    print("\n".join(table))
    common.write(options.out, "census_scale.md", "\n".join(table) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
