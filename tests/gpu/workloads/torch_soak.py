"""Trains for a while with DataLoader workers that are killed and started again at random; answers nothing, prints one line
of JSON for each sample of its own memory: python3 torch_soak.py SECONDS SEED"""
import gc
import json
import os
import pathlib
import random
import re
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SECONDS, SEED = float(sys.argv[1]), int(sys.argv[2])
rng = random.Random(SEED)
MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ ")


class Samples(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.full((256,), float(index % 7))


def memory():
    """KiB: resident in all, and resident in and mapped by what the shim is known to map by name (its file and its rings;
    what it maps without a name is in `resident` alone)."""
    sample = {"resident": 0, "ours": {}}
    name = ""
    for line in open("/proc/self/smaps"):
        if MAPPING.match(line):
            name = line.split(maxsplit=5)[5].strip() if len(line.split(maxsplit=5)) > 5 else ""
        elif line.startswith(("Rss:", "Size:")):
            key, value = line.split()[0].rstrip(":"), int(line.split()[1])
            if key == "Rss":
                sample["resident"] += value
            if "gpumemtrace" in name:
                ours = sample["ours"].setdefault(pathlib.Path(name).name.split(".")[0].split("-")[0], {"Rss": 0, "Size": 0})
                ours[key] += value
    return sample


def workers_of(iterator):
    return [w for w in getattr(iterator, "_workers", [])]


def main():
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    begun = time.monotonic()
    next_sample, steps, killed, restarts, forks = 0.0, 0, 0, 0, 0
    while time.monotonic() - begun < SECONDS:
        # Alternately forked after CUDA is up, and spawned; a new set of workers each time.
        context = ("fork", "spawn")[restarts % 4 == 3]
        restarts += 1
        loader = iter(DataLoader(Samples(), batch_size=32, num_workers=rng.randrange(1, 4), pin_memory=True,
                                 multiprocessing_context=context, prefetch_factor=2))
        until = rng.randrange(10, 120)
        try:
            for batch in range(until):
                x = next(loader).cuda(non_blocking=True).view(8, -1, 256)
                # Sequence lengths change, so that stacks and sizes do.
                x = x[:, : rng.randrange(1, x.shape[1] + 1)]
                loss = model(x).float().square().mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                steps += 1
                if rng.random() < 0.01:
                    victims = [w for w in workers_of(loader) if w.is_alive()]
                    if victims:
                        os.kill(rng.choice(victims).pid, rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)))
                        killed += 1
                if rng.random() < 0.01:
                    pid = os.fork()
                    if pid == 0:
                        os._exit(0)
                    os.waitpid(pid, 0)
                    forks += 1
                now = time.monotonic() - begun
                if now >= next_sample:
                    next_sample = now + min(10.0, SECONDS / 20)
                    print(json.dumps({"at": round(now, 1), "steps": steps, "killed": killed, "restarts": restarts, "forks": forks,
                                      "allocated": torch.cuda.memory_allocated(), **memory()}), flush=True)
        except (RuntimeError, StopIteration) as error:
            # "DataLoader worker (pid …) is killed by signal": what was provoked. Anything else ends the run.
            if not isinstance(error, StopIteration) and "DataLoader worker" not in str(error):
                raise
        del loader
        gc.collect()
    torch.cuda.synchronize()
    print(json.dumps({"at": round(time.monotonic() - begun, 1), "steps": steps, "killed": killed, "restarts": restarts,
                      "forks": forks, "allocated": torch.cuda.memory_allocated(), "end": True, **memory()}), flush=True)


if __name__ == "__main__":
    main()
