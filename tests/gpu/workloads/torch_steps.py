"""Training steps and allocations whose time is measured, on request: reads lines `KIND COUNT` and answers each with one
line of JSON, so that several such processes can be measured in turn. `quit` ends it.

    python3 torch_steps.py [history [SNAPSHOT]]     history: 'python' or 'all' switches PyTorch's own memory history on

steady:    12 transformer layers × 512, batch 4×64, bf16, AdamW: on an H200 about 20 ms and 838 allocations a step, bound
           by the CPU and therefore the worst case for a profiler. COUNT steps; milliseconds a step (median).
shapes:    the same with another sequence length each step.
gpu_bound: two wide layers, where the GPU is what takes the time.
alloc:     torch.empty(1000) from 20 Python frames deep; COUNT rounds of 1,000; nanoseconds for one with its release."""
import json
import os
import random
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


def allocations():
    return torch.cuda.memory_stats()["allocation.all.allocated"]


def deep(n, function, count):
    return deep(n - 1, function, count) if n else function(count)


def allocate(count):
    empty = torch.empty
    start = time.perf_counter_ns()
    for _ in range(count):
        empty(1000, device="cuda")
    return (time.perf_counter_ns() - start) / count


def step(kind):
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


for line in sys.stdin:
    kind, *count = line.split()
    if kind == "quit":
        break
    count = int(count[0])
    if kind == "alloc":
        answer = {"value": statistics.median(deep(18, allocate, 1000) for _ in range(count))}
    else:
        torch.cuda.synchronize()
        before, times = allocations(), []
        for _ in range(count):
            start = time.perf_counter_ns()
            step(kind)
            torch.cuda.synchronize()
            times.append((time.perf_counter_ns() - start) / 1e6)
        answer = {"value": statistics.median(times), "mean": statistics.fmean(times),
                  "allocations": (allocations() - before) / count}
    print(json.dumps(answer), flush=True)
if len(sys.argv) > 2:
    start = time.perf_counter()
    torch.cuda.memory._dump_snapshot(sys.argv[2])
    print(json.dumps({"seconds": time.perf_counter() - start, "bytes": os.path.getsize(sys.argv[2]),
                      "events": 2 * allocations()}), flush=True)
    os.remove(sys.argv[2])
