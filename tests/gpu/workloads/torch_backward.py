"""Training steps whose backward pass is checked line by line: before each autograd node runs, a hook on that node makes two
small allocations whose sizes spell the node's number, so that what is allocated after them on that thread is known to be
the node's. Which forward line a node comes from is told by PyTorch's anomaly mode, which keeps a traceback in each node.

    python3 torch_backward.py PREFIX transformer|conv|checkpoint|reentrant|function|double|threads truth|plain

`truth` writes PREFIX.<pid>.json: node number → name and traceback. `plain` is the same training without hooks and without
anomaly mode."""
import json
import os
import re
import sys
import threading

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint as recompute

PREFIX, MODEL, MODE = sys.argv[1:4]
BASE = 1000
# Number 0 says: no node runs on this thread.
nodes = [{"name": "none", "stack": []}]
numbers = {}
running = threading.local()
lock = threading.Lock()
real_backward, real_grad = torch.autograd.backward, torch.autograd.grad
LINE = re.compile(r'\s*File "(.*)", line (\d+), in (.*)')


def mark_node(number):
    for digit in (number // BASE, number % BASE):
        torch.empty((digit + 1) * 512, dtype=torch.uint8, device="cuda")


def traceback_of(node):
    """[[file, line, function]], outermost first: the node's own, or, where it was made on a thread without Python, that of
    the node that was running then."""
    while node is not None:
        metadata = node.metadata
        found = [LINE.match(entry) for entry in metadata.get("traceback_") or []]
        stack = [[m[1], int(m[2]), m[3]] for m in found if m and not m[1].endswith("/traceback.py")]
        if stack:
            return stack
        node = metadata.get("parent_")
    return []


def enter(number):
    running.number = number
    mark_node(number)


def watch(roots):
    """Hooks every node that can be reached."""
    waiting = [t.grad_fn for t in roots if isinstance(t, torch.Tensor) and t.grad_fn is not None]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        with lock:
            if node in numbers:
                continue
            number = numbers[node] = len(nodes)  # keeps the node, so that no other takes its place
            nodes.append({"name": node.name(), "stack": traceback_of(node)})
        node.register_prehook(lambda grads, number=number: enter(number))


def watched(function):
    def call(tensors, *arguments, **more):
        watch(tensors if isinstance(tensors, (list, tuple)) else [tensors])
        outer = getattr(running, "number", 0)
        try:
            return function(tensors, *arguments, **more)
        finally:
            enter(outer)
    return call


class Square(torch.autograd.Function):
    """A custom function whose backward can be differentiated again."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return 2 * x * grad


class Scale(torch.autograd.Function):
    """A custom function with a backward of several allocations."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum(0)


def perceptron(width=256, layers=3):
    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))])


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 if i == 0 else 32, 32, 3, padding=1) for i in range(5))
        self.norms = nn.ModuleList(nn.BatchNorm2d(32) for _ in range(5))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = F.relu(norm(layer(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Recomputed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.blocks = nn.ModuleList(perceptron(256, 1) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = recompute(block, x, use_reentrant=self.reentrant)
        return x


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(256))
        self.layer = nn.Linear(256, 256)

    def forward(self, x):
        x = Square.apply(self.layer(x))
        return Scale.apply(x, self.scale)


def build():
    torch.manual_seed(0)
    if MODEL == "transformer":
        layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
        return nn.TransformerEncoder(layer, 4).cuda(), lambda: torch.randn(4, 32, 256, device="cuda")
    if MODEL == "conv":
        return Conv().cuda(), lambda: torch.randn(8, 3, 32, 32, device="cuda")
    model = {"checkpoint": lambda: Recomputed(False), "reentrant": lambda: Recomputed(True), "function": Custom,
             "double": Custom, "threads": perceptron}[MODEL]().cuda()
    # Reentrant checkpoints need an input that requires a gradient; so does the penalty of double backward.
    return model, lambda: torch.randn(32, 256, device="cuda", requires_grad=MODEL in ("reentrant", "double"))


def step(model, make_input, optimizer):
    x = make_input()
    loss = model(x).float().square().mean()
    if MODEL == "double":
        slope, = torch.autograd.grad(loss, x, create_graph=True)
        loss = loss + slope.square().sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def train(steps):
    model, make_input = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        step(model, make_input, optimizer)


def main():
    steps = 4 if MODE == "truth" else 20
    if MODE == "truth":
        # The hooks are tied to nodes of the forward pass; the nodes' own checks for NaN would allocate.
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        torch.autograd.backward, torch.autograd.grad = watched(real_backward), watched(real_grad)
    torch.empty(1, device="cuda")
    if MODEL == "threads":
        workers = [threading.Thread(target=train, args=(steps,)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    else:
        train(steps)
    torch.cuda.synchronize()
    with open(f"{PREFIX}.{os.getpid()}.json", "w") as f:
        json.dump({"torch": torch.__version__, "nodes": nodes}, f)
    print(MODEL, MODE, "done")


if __name__ == "__main__":
    main()
