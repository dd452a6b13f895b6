"""Allocates and frees tensors for ever and enters each operation in a file after its call has returned, for kills.py:
python3 torch_killed.py LEDGER. The file: operations done so far, block events before the first of them, and one signed
size per operation (8 bytes each)."""
import mmap
import random
import struct
import sys

import torch

HEAD, RECORDS = 16, 1 << 21


def main():
    path = sys.argv[1]
    with open(path, "wb") as file:
        file.truncate(HEAD + 8 * RECORDS)
    with open(path, "r+b") as file:
        ledger = mmap.mmap(file.fileno(), 0)
    rng = random.Random(path)
    # Makes the context and what it needs.
    torch.empty(512, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    # One block was made and freed, as far as the allocator does not say more (the simulated torch says nothing).
    stats = torch.cuda.memory_stats()
    before = stats.get("allocation.all.allocated", 1) + stats.get("allocation.all.freed", 1)
    alive, done = [], 0
    struct.pack_into("<QQ", ledger, 0, done, before)
    while done < RECORDS:
        # Sizes that the allocator does not round: up to 1 MiB a block is cut to what was asked for.
        if len(alive) < 4 or len(alive) < 200 and rng.random() < 0.5:
            size = 512 * rng.randrange(1, 2049)
            alive.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        else:
            tensor = alive.pop(rng.randrange(len(alive)))
            size = -tensor.numel()
            del tensor
        struct.pack_into("<q", ledger, HEAD + 8 * done, size)
        done += 1
        struct.pack_into("<Q", ledger, 0, done)


main()
