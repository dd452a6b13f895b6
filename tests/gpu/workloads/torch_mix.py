"""A PyTorch program that uses the allocator in every way a job does, and writes PyTorch's own numbers to PREFIX.<pid>.json.

    python3 torch_mix.py PREFIX [seed]

Phases: a hold whose bytes are known by themselves, random allocation and release, side streams with record_stream,
a captured and replayed graph, threads running backward, empty_cache, a caught out-of-memory. Phases that a mode of
the allocator does not support are named in the JSON. Standard output depends on the seed alone."""
import gc
import json
import os
import random
import sys
import threading

import torch
from torch import nn

NUMBERS = sys.argv[1]
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 0
dev = torch.device("cuda", 0)
torch.manual_seed(SEED)
rng = random.Random(SEED)
phases = {}
NO_CACHING = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1"


def known_hold():
    """The highest moment of the whole program without a cache: everything that lives is a tensor in this list."""
    keep = [torch.empty(size, dtype=torch.uint8, device=dev) for size in (1 << 30, 3 << 29, 12345, 7 << 20)]
    return sum(t.untyped_storage().nbytes() for t in keep)


def random_alloc_free(rounds=12000):
    live = []
    for _ in range(rounds):
        if live and rng.random() < 0.5:
            live.pop(rng.randrange(len(live)))
        else:
            size = int(2 ** rng.uniform(0, 24))
            live.append(torch.empty(size, dtype=torch.uint8, device=dev))
        if rng.random() < 0.002:
            torch.cuda.empty_cache()
        while len(live) > 64:
            live.pop(0)


def side_streams():
    streams = [torch.cuda.Stream() for _ in range(3)]
    for i in range(200):
        stream = streams[i % 3]
        with torch.cuda.stream(stream):
            x = torch.randn(64, 1 + i * 7, device=dev)
            y = x * 2
        torch.cuda.current_stream().wait_stream(stream)
        y.record_stream(torch.cuda.current_stream())
        z = y.sum()
        del x, y, z
    torch.cuda.synchronize()


def captured_graph():
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).to(dev)
    static = torch.randn(32, 256, device=dev)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = model(static)
    for i in range(10):
        static.copy_(torch.full_like(static, i))
        graph.replay()
    torch.cuda.synchronize()
    return float(out.float().sum().item() * 0)


def backward_threads():
    errors = []

    def work(index):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                net = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)]).to(dev)
                for _ in range(20):
                    net(torch.randn(16, 128, device=dev)).square().mean().backward()
            stream.synchronize()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,), name=f"worker-{i}") for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def training():
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0), 2).to(dev)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for step in range(20):
        x = torch.randn(4, 16 + step % 5, 128, device=dev)
        loss = net(x).square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()


def caught_out_of_memory():
    try:
        torch.empty(1 << 43, dtype=torch.uint8, device=dev)
    except torch.cuda.OutOfMemoryError:
        return "caught"
    raise AssertionError("8 TiB were given")


def limited_out_of_memory():
    """Through the allocator's own limit: it frees its cache and tries again before it gives up."""
    total = torch.cuda.get_device_properties(dev).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + (2 << 30)) / total))
    keep = []
    try:
        while len(keep) < 4096:
            keep.append(torch.empty(64 << 20, dtype=torch.uint8, device=dev))
        raise AssertionError("the limit did not hold")
    except torch.cuda.OutOfMemoryError:
        del keep
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def phase(function, *args):
    try:
        phases[function.__name__] = function(*args) or "done"
    except Exception as error:
        phases[function.__name__] = f"not supported here: {type(error).__name__}: {error}".split("\n")[0][:200]
    gc.collect()


torch.empty(1, device=dev)
phase(known_hold)
phase(random_alloc_free)
phase(side_streams)
if not NO_CACHING:  # cudaMalloc is not allowed while a stream captures
    phase(captured_graph)
phase(backward_threads)
phase(training)
phase(caught_out_of_memory)
torch.cuda.empty_cache()
if not NO_CACHING:
    phase(limited_out_of_memory)
last = [torch.full((1000 + i,), i, device=dev) for i in range(10)]
checksum = sum(float(t.sum()) for t in last)
torch.cuda.synchronize()

stats = torch.cuda.memory_stats()
free, total = torch.cuda.mem_get_info()
with open(f"{NUMBERS}.{os.getpid()}.json", "w") as f:
    json.dump({
        "torch": torch.__version__, "backend": torch.cuda.memory.get_allocator_backend(), "phases": phases,
        "no_caching": NO_CACHING,
        "max_memory_allocated": torch.cuda.max_memory_allocated(), "memory_allocated": torch.cuda.memory_allocated(),
        "max_memory_reserved": torch.cuda.max_memory_reserved(), "memory_reserved": torch.cuda.memory_reserved(),
        "allocations": stats.get("allocation.all.allocated"), "frees": stats.get("allocation.all.freed"),
        "segments": stats.get("segment.all.allocated"), "ooms": stats.get("num_ooms"),
        "device_used": total - free,
    }, f)
print("phases", len(phases), "checksum", checksum)
