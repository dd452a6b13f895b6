"""Training steps and allocations whose time is measured, on request: reads lines `KIND COUNT` and answers each with one
line of JSON, so that several such processes can be measured in turn. `quit` ends it.

    python3 torch_steps.py [history [SNAPSHOT]]     history: 'python' or 'all' switches PyTorch's own memory history on

steady:    12 transformer layers × 512, batch 4×64, bf16, AdamW: on an H200 about 20 ms and 838 allocations a step, bound
           by the CPU and therefore the worst case for a profiler. COUNT steps; milliseconds a step (median).
shapes:    the same with another sequence length each step.
gpu_bound: two wide layers, where the GPU is what takes the time.
random:    blocks of random sizes taken and given back in random order; COUNT × 1,000 operations.
alloc:     torch.empty(1000) from 20 Python frames deep, COUNT × 256 of them and then their releases: nanoseconds for one
           allocation ("alloc"), for one release ("free") and for both ("value").

in_turn:   COUNT pairs of steps of `steady`, one recorded and one past the shim (tests/gpu/programs/routed_calls.c, preloaded), in
           changing order: milliseconds of each, [[recorded, past], …].
timed:     COUNT steps of `steady` in which tests/gpu/programs/timed_calls.c, preloaded, takes the time of each call of the functions
           that are called most: {"kind": [calls a step, ns]}.
counts:    what one step of `steady` calls: {name: times}, by tests/gpu/programs/hook_counts.c when that is preloaded and by
           PyTorch's profiler; and the steps that this process has made. Nothing is measured after it.

After the warm-up the request `pin M N` keeps the main thread and the autograd threads on core M and all others on core N, so
that every process, the plain one like the others, has the same two cores. Garbage is collected between measurements, never within one."""
import collections
import ctypes
import gc
import json
import os
import pathlib
import random
import resource
import statistics
import sys
import time

import torch
from torch import nn

history = sys.argv[1] if len(sys.argv) > 1 else ""
torch.manual_seed(0)
rng = random.Random(0)
torch.empty(1, device="cuda")
if history == "python":
    torch.cuda.memory._record_memory_history(stacks="python")
elif history == "all":
    torch.cuda.memory._record_memory_history()
models = {}
steps_made = 0
BATCH = 256


def allocations():
    return torch.cuda.memory_stats()["allocation.all.allocated"]


def deep(n, function, count):
    return deep(n - 1, function, count) if n else function(count)


def allocate(count):
    """(ns of one allocation, ns of one release), the medians of `count` batches."""
    empty, clock = torch.empty, time.perf_counter_ns
    taken, given = [], []
    live = [None] * BATCH
    places = range(BATCH)
    for _ in range(count):
        start = clock()
        for i in places:
            live[i] = empty(1000, device="cuda")
        middle = clock()
        for i in places:
            live[i] = None
        end = clock()
        taken.append((middle - start) / BATCH)
        given.append((end - middle) / BATCH)
    return statistics.median(taken), statistics.median(given)


def shuffle_blocks(operations):
    live = []
    for _ in range(operations):
        if live and rng.random() < 0.5:
            place = rng.randrange(len(live))
            live[place] = live[-1]
            live.pop()
        else:
            live.append(torch.empty(int(2 ** rng.uniform(4, 22)), dtype=torch.uint8, device="cuda"))
            if len(live) > 512:
                live.pop(rng.randrange(512))


def step(kind):
    global steps_made
    steps_made += 1
    wide = kind == "gpu_bound"
    width, layers, batch, length = (4096, 2, 16, 512) if wide else (512, 12, 4, 64)
    if wide not in models:
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        model = nn.TransformerEncoder(layer, layers).cuda().bfloat16()
        models[wide] = (model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    model, optimizer = models[wide]
    n = rng.randrange(16, 160) if kind == "shapes" else length
    loss = model(torch.randn(batch, n, width, device="cuda", dtype=torch.bfloat16)).float().square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def steps(kind, count):
    torch.cuda.synchronize()
    before, times = allocations(), []
    for _ in range(count):
        start = time.perf_counter_ns()
        step(kind)
        torch.cuda.synchronize()
        times.append((time.perf_counter_ns() - start) / 1e6)
    return {"value": statistics.median(times), "least": min(times), "allocations": (allocations() - before) / count}


def threads():
    """{name: [thread ids]}"""
    found = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        try:
            found.setdefault((task / "comm").read_text().strip(), []).append(int(task.name))
        except (OSError, ValueError):
            pass  # it has ended
    return found


def pin(core, other):
    """The measured threads on `core`, all others (the writer is one of them) on `other`."""
    for name, ids in threads().items():
        for thread in ids:
            measured = thread == os.getpid() or name.startswith("pt_autograd")
            try:
                os.sched_setaffinity(thread, {core if measured else other})
            except OSError:
                pass
    return {"threads": {name: len(ids) for name, ids in threads().items()}}


def seconds_of_writer():
    """CPU time of the recorder's own thread."""
    total = 0
    for thread in threads().get("gpumemtrace", []):
        try:
            total += int(pathlib.Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            pass
    return total / 1e9


def measured(function):
    gc.collect(0)
    gc.disable()
    usage, writer = resource.getrusage(resource.RUSAGE_THREAD), seconds_of_writer()
    answer = function()
    after = resource.getrusage(resource.RUSAGE_THREAD)
    gc.enable()
    answer["faults"] = after.ru_minflt - usage.ru_minflt
    answer["switches"] = after.ru_nvcsw - usage.ru_nvcsw + after.ru_nivcsw - usage.ru_nivcsw
    answer["writer_ms"] = (seconds_of_writer() - writer) * 1e3
    return answer


def alloc(count):
    deep(18, allocate, 1)  # the caches are what the last process left
    taken, given = deep(18, allocate, count)
    return {"value": taken + given, "alloc": taken, "free": given, "pairs": count * BATCH}


def in_turn(count):
    route = ctypes.CDLL(None).route_past_shim
    pairs = []
    for number in range(count):
        pair = [0, 0]
        for past in (0, 1) if number % 2 == 0 else (1, 0):
            route(past)
            step("steady")  # the caches, as a step of this kind leaves them
            pair[past] = steps("steady", 1)["value"]
        pairs.append(pair)
    route(0)
    return {"value": statistics.median(pair[0] for pair in pairs), "pairs": pairs}


def timed(count):
    ask_preload("timed_calls")  # forgets what was before
    answer = steps("steady", count)
    answer["calls"] = {kind: [calls / count, ns] for kind, (calls, ns) in ask_preload("timed_calls").items()}
    return answer


def ask_preload(name):
    """What the preloaded program's function answers; nothing without it."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        return {}
    text = ctypes.create_string_buffer(4096)
    function(text, ctypes.c_size_t(len(text)))
    return json.loads(text.value)


def counts():
    answer = {"value": 0, "steps": steps_made, "calls": {}, "profiler": {}}
    before = ask_preload("hook_counts")
    for _ in range(10):
        step("steady")
    answer["calls"] = {name: (count - before[name]) / 10 for name, count in ask_preload("hook_counts").items()}
    if answer["calls"]:
        try:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                step("steady")
                torch.cuda.synchronize()
            kinds = collections.Counter(event.name if event.name.startswith("cu") else "kernels, copies and fills" for event in profile.events())
            answer["profiler"] = dict(kinds)
        except Exception as error:
            answer["profiler"] = {"failed: " + str(error)[:100]: 0}
    return answer


def main():
    for line in sys.stdin:
        kind, *numbers = line.split()
        if kind == "quit":
            break
        count = int(numbers[0]) if numbers else 0
        if kind == "pin":
            gc.collect()
            gc.freeze()
            answer = pin(count, int(numbers[1]))
        elif kind == "counts":
            answer = counts()
        elif kind == "in_turn":
            answer = measured(lambda: in_turn(count))
        elif kind == "timed":
            step("steady")
            answer = measured(lambda: timed(count))
        elif kind == "alloc":
            answer = measured(lambda: alloc(count))
        elif kind == "random":
            shuffle_blocks(1000 * count)
            answer = {"value": 0}
        else:
            if count < 10:
                step(kind)  # the caches are what the last process left
            answer = measured(lambda: steps(kind, count))
        print(json.dumps(answer), flush=True)


main()
if len(sys.argv) > 2:
    start = time.perf_counter()
    torch.cuda.memory._dump_snapshot(sys.argv[2])
    print(json.dumps({"seconds": time.perf_counter() - start, "bytes": os.path.getsize(sys.argv[2]),
                      "events": 2 * allocations()}), flush=True)
    os.remove(sys.argv[2])
