"""A small training job with an ordinary mistake: it keeps every step's loss and outputs in a list "for plotting", and
with them, on the GPU, the outputs of the whole run.

    python train.py [steps]

It runs unchanged on PyTorch with a GPU and on the simulated torch of tests/simulated_cuda.
"""

import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(size, 4 * size)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * size, size)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Model(nn.Module):
    def __init__(self, vocabulary, size, depth):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, size)
        self.blocks = nn.Sequential(*[Block(size) for _ in range(depth)])
        self.head = nn.Linear(size, vocabulary)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


def train(steps):
    vocabulary, batch, length = 1000, 8, 128
    model = Model(vocabulary, 256, 4).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    history = []
    for step in range(steps):
        tokens = torch.randint(0, vocabulary, (batch, length), device="cuda")
        target = torch.randint(0, vocabulary, (batch * length,), device="cuda")
        output = model(tokens).view(batch * length, vocabulary)
        loss = nn.functional.cross_entropy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append((loss, output[:256].clone()))  # LEAK: 1 MB a step and its graph, never dropped
        if step % 50 == 0:
            print("step %d: %.1f MiB allocated" % (step, torch.cuda.memory_allocated() / 2**20))
    return history


if __name__ == "__main__":
    kept = train(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    torch.cuda.synchronize()
    print("%d steps; peak %d, allocated %d, reserved %d bytes" % (
        len(kept), torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
