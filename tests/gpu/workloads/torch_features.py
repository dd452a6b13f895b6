"""PyTorch features that allocate in ways of their own; PyTorch's numbers go to PREFIX.<pid>.json, one file for each
process that has any: python3 torch_features.py PREFIX FEATURE
FEATURE is the name of a function below, e.g. mempool."""
import json
import os
import sys

PREFIX, FEATURE = sys.argv[1], sys.argv[2]
if FEATURE in ("ddp", "fsdp") and "RANK" not in os.environ:
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *sys.argv])

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def write_numbers(**more):
    torch.cuda.synchronize()
    device = torch.cuda.current_device()
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    with open(f"{PREFIX}.{os.getpid()}.json", "w") as f:
        json.dump({"torch": torch.__version__, "backend": torch.cuda.memory.get_allocator_backend(), "device": device,
                   "no_caching": False, "phases": {}, "feature": FEATURE,
                   "max_memory_allocated": torch.cuda.max_memory_allocated(), "memory_allocated": torch.cuda.memory_allocated(),
                   "max_memory_reserved": torch.cuda.max_memory_reserved(), "memory_reserved": torch.cuda.memory_reserved(),
                   "allocations": stats["allocation.all.allocated"], "ooms": stats["num_ooms"], "device_used": total - free, **more}, f)


def network(width=512, layers=4):
    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.GELU())]).cuda()


def train(model, steps=20, width=512):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        loss = model(torch.randn(32, width, device="cuda")).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def mempool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        keep = [torch.zeros(1 << (10 + i), device="cuda") for i in range(12)]
    train(network())
    write_numbers(known=sum(t.nbytes for t in keep))


def compile():
    model = torch.compile(network())
    train(model)
    write_numbers()


class Samples(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.full((512,), float(index))


def dataloader():
    model = network()
    for batch in DataLoader(Samples(), batch_size=16, num_workers=4, pin_memory=True):
        model(batch.cuda(non_blocking=True)).sum().backward()
    write_numbers()


def graphed():
    model = torch.cuda.make_graphed_callables(network(), (torch.randn(32, 512, device="cuda"),))
    train(model)
    write_numbers()


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(network(512, 2) for _ in range(4))

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def checkpoint():
    train(Checkpointed())
    write_numbers()


def distributed(wrap):
    import torch.distributed as dist
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    train(wrap(network(1024, 6)), width=1024)
    dist.barrier()
    write_numbers()
    dist.destroy_process_group()


def ddp():
    distributed(lambda m: nn.parallel.DistributedDataParallel(m, device_ids=[torch.cuda.current_device()]))


def fsdp():
    from torch.distributed.fsdp import FullyShardedDataParallel
    distributed(FullyShardedDataParallel)


def profiler():
    """Kineto owns CUPTI while it records."""
    from torch.profiler import ProfilerActivity, profile
    model = network()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True, record_shapes=True,
                 with_stack=True) as recorded:
        train(model)
    kernels = sum(1 for event in recorded.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    print("memory events", any("[memory]" in e.name() for e in recorded.profiler.kineto_results.events()), "kernels", kernels > 100)
    write_numbers()


def history():
    """PyTorch's own history beside ours."""
    torch.cuda.memory._record_memory_history()
    train(network())
    snapshot = torch.cuda.memory._snapshot()
    print("entries", len(snapshot["device_traces"][0]))
    torch.cuda.memory._record_memory_history(enabled=None)
    write_numbers()


def steps():
    """The plain loop, for company that comes by LD_PRELOAD."""
    train(network())
    write_numbers()


def libraries():
    """Memory that cuBLAS takes at a line of Python: the first matrix product."""
    a = torch.randn(512, 512, device="cuda")
    (a @ a).sum().item()
    write_numbers()


def runtimes():
    """PyTorch's shared CUDA runtime, CuPy's static one and those inside NVIDIA's libraries in one process."""
    import cupy
    kept = cupy.zeros(32 << 20, dtype=cupy.uint8)
    train(network())
    write_numbers(beside=kept.nbytes)


def child(rank):
    train(network())
    write_numbers()


def spawn():
    import torch.multiprocessing as mp
    train(network())
    mp.spawn(child, nprocs=2)
    write_numbers()


if __name__ == "__main__":
    if FEATURE in ("ddp", "fsdp") and torch.cuda.device_count() < 2:
        print("skipped: needs 2 GPUs")
        raise SystemExit(0)
    torch.manual_seed(0)
    globals()[FEATURE]()
    print(FEATURE, "done")
