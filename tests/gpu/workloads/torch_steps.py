"""Training steps whose time is measured: python3 torch_steps.py RESULT.json STEPS steady|shapes|gpu_bound|alloc [history]

steady: 12 transformer layers × 512, batch 4×64, bf16, AdamW: about 20 ms and 838 allocations a step on an H200, bound
        by the CPU and therefore the worst case for a profiler.
shapes: the same with another sequence length each step.
gpu_bound: one wide layer, where the GPU is what takes the time.
alloc:  torch.empty alone, from 20 Python frames deep: nanoseconds for one allocation with its release.
history: 'python' or 'all' switches PyTorch's own torch.cuda.memory._record_memory_history on."""
import json
import random
import statistics
import sys
import time

import torch
from torch import nn

result_file, steps, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
history = sys.argv[4] if len(sys.argv) > 4 else ""
torch.manual_seed(0)
rng = random.Random(0)
torch.empty(1, device="cuda")
if history == "python":
    torch.cuda.memory._record_memory_history(stacks="python")
elif history == "all":
    torch.cuda.memory._record_memory_history()
result = {"kind": kind, "history": history, "torch": torch.__version__}


def allocations():
    return torch.cuda.memory_stats()["allocation.all.allocated"]


if kind == "alloc":
    def deep(n, function, count):
        return deep(n - 1, function, count) if n else function(count)

    def loop(count):
        empty = torch.empty
        start = time.perf_counter_ns()
        for _ in range(count):
            empty(1000, device="cuda")
        return (time.perf_counter_ns() - start) / count

    deep(18, loop, 2000)
    samples = [deep(18, loop, 2000) for _ in range(steps)]
    result["ns"] = statistics.median(samples)
    result["ns_min"] = min(samples)
else:
    wide = kind == "gpu_bound"
    width, layers, batch, length = (4096, 2, 16, 512) if wide else (512, 12, 4, 64)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True), layers).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        n = rng.randrange(16, 160) if kind == "shapes" else length
        loss = model(torch.randn(batch, n, width, device="cuda", dtype=torch.bfloat16)).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    before, times = allocations(), []
    for _ in range(steps):
        start = time.perf_counter_ns()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter_ns() - start) / 1e6)
    result["ms"] = statistics.median(times)
    result["ms_mean"] = statistics.fmean(times)
    result["allocations_per_step"] = (allocations() - before) / steps
if history:
    import os
    snapshot = result_file + ".pickle"
    start = time.perf_counter()
    torch.cuda.memory._dump_snapshot(snapshot)
    result["snapshot_seconds"] = time.perf_counter() - start
    result["snapshot_bytes"] = os.path.getsize(snapshot)
    os.remove(snapshot)
result["block_events"] = 2 * allocations()
with open(result_file, "w") as f:
    json.dump(result, f)
