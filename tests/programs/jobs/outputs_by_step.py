# EXPECT leak 131072
import torch
from torch import nn

net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1024)).to("cuda")
cache = {}


def evaluate(step):
    with torch.no_grad():
        out = net(torch.randn(32, 256, device="cuda"))
    cache[step] = out.clone()  # LEAK


for step in range(100):
    net(torch.randn(32, 256, device="cuda")).square().mean().backward()
    net.zero_grad()
    evaluate(step)
