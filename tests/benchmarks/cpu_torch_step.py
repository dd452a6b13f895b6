#!/usr/bin/env python3
"""What recording costs a training step of real PyTorch on a machine without a GPU: its dispatcher, autograd and Python stacks are
real, the kernels take next to no time, and cpu_as_device.c makes what the CPU allocator gives and takes look like a device's.

    cpu_torch_step.py --shim libgpumemtrace.so [--shim OLDER.so] [--only both] [--seconds 60] [--analyzer gpumem-analyze]

Twelve transformer layers of width 16 on two tokens, AdamW. Every variant is a process of its own, measured in turn in blocks of
three steps, in an order that changes from round to round. Told is the ticks of the processor's counter that a report of an allocation
and of a release takes, hook and all (means without the slowest tenth; the median over the blocks), and CPU time of the thread: the
median of all steps, and the mean of the fastest tenth, against the same of the plain process. Backward runs on the thread that asks for it and so has
Python frames, which on a device it has not. Ends with 77 where there is no PyTorch or no C compiler."""
import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

VARIANTS = {  # name: environment; None = without the shim
    "plain": None,
    "off": {"GPUMEMTRACE": "0"},
    "none": {"GPUMEMTRACE_STACKS": "none"},
    "native": {"GPUMEMTRACE_STACKS": "native"},
    "python": {"GPUMEMTRACE_STACKS": "python"},
    "both": {},
}
STEPS = 3  # of a block
WARM_UP = 30


def child():
    import ctypes
    import gc
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def step():
        loss = model(torch.randn(1, 2, 16)).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    ticks = ctypes.CDLL(None).cpu_as_device_ticks
    ticks.restype = ctypes.c_double
    for line in sys.stdin:
        gc.collect()
        gc.disable()
        taken = []
        for _ in range(int(line)):
            start = time.thread_time_ns()
            step()
            taken.append(time.thread_time_ns() - start)
        gc.enable()
        print(json.dumps({"steps": taken, "ticks": [ticks(0), ticks(1)]}), flush=True)


class Worker:
    def __init__(self, name, shim, stand_in, folder, number):
        env = {k: v for k, v in os.environ.items() if not k.startswith("GPUMEMTRACE") and k != "LD_PRELOAD"}
        self.name, self.taken, self.ticks = name, [], []
        self.trace = os.path.join(folder, "%d.pb" % number)
        env.update(VARIANTS[name] or {}, GPUMEMTRACE_OUT=self.trace, GPUMEMTRACE_QUIET="1",
                   LD_PRELOAD=stand_in if VARIANTS[name] is None else stand_in + ":" + shim)
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--child"], env=env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, universal_newlines=True)

    def ask(self, steps):
        self.process.stdin.write("%d\n" % steps)
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.taken += answer["steps"]
        self.ticks.append(answer["ticks"])

    def forget(self):
        self.taken, self.ticks = [], []

    def middle_ticks(self):
        return [statistics.median(t[i] for t in self.ticks) for i in range(2)]

    def end(self):
        self.process.stdin.close()
        return self.process.wait()


def fastest(taken):
    return statistics.fmean(sorted(taken)[:max(1, len(taken) // 10)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shim", action="append", default=[])
    parser.add_argument("--only", action="append", choices=VARIANTS, default=[])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--analyzer")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child()
    if importlib.util.find_spec("torch") is None:
        print("no PyTorch here")
        return 77
    with tempfile.TemporaryDirectory(prefix="gpumemtrace_benchmark_") as folder:
        stand_in = os.path.join(folder, "cpu_as_device.so")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cpu_as_device.c")
        try:
            subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", stand_in, source], check=True)
        except (OSError, subprocess.CalledProcessError):
            print("no C compiler here")
            return 77
        names = [n for n in VARIANTS if n == "plain" or not options.only or n in options.only]
        workers = []
        for name in names:
            for shim in options.shim if VARIANTS[name] is not None else ["", ""]:
                workers.append((shim, Worker(name, os.path.abspath(shim), stand_in, folder, len(workers))))
        for _, worker in workers:
            worker.ask(WARM_UP)
            worker.forget()
        chosen = random.Random(1)
        begun = time.monotonic()
        while time.monotonic() - begun < options.seconds:
            for _, worker in chosen.sample(workers, len(workers)):
                worker.ask(STEPS)
        plain = [w.taken for _, w in workers if w.name == "plain"]
        median = statistics.median(plain[0] + plain[1])
        least = statistics.fmean(map(fastest, plain))
        print("plain: median %.3f ms, fastest tenth %.3f ms; the two plain processes differ by %+.2f %%, %+.2f %%; %d steps of each" % (
            median / 1e6, least / 1e6, (statistics.median(plain[1]) / statistics.median(plain[0]) - 1) * 100,
            (fastest(plain[1]) / fastest(plain[0]) - 1) * 100, len(plain[0])))
        for shim, worker in workers:
            code = worker.end()
            allocation, release = worker.middle_ticks()
            print("%-7s allocation %6.0f  release %6.0f ticks " % (worker.name, allocation, release), end="")
            if worker.name == "plain":
                print()
                continue
            more, more_least = statistics.median(worker.taken) - median, fastest(worker.taken) - least
            text = " step: median %+7.1f us %+6.2f %%  fastest tenth %+7.1f us %+6.2f %%" % (
                more / 1e3, more / median * 100, more_least / 1e3, more_least / least * 100)
            if options.analyzer and os.path.exists(worker.trace):
                report = json.loads(subprocess.run([options.analyzer, "--json", worker.trace], stdout=subprocess.PIPE).stdout or "{}")
                own = report.get("recorder", {})
                captured = own.get("stack_cache_hits", 0) + own.get("stack_cache_misses", 0)
                steps = len(worker.taken) + WARM_UP
                text += "  a step: %.0f events, %.0f stacks, %.2f new" % (
                    own.get("events", 0) / steps, captured / steps, own.get("stack_cache_misses", 0) / steps)
            print(text, " ", shim, "" if code == 0 else "exit %d" % code, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
