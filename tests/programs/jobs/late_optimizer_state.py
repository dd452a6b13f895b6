# EXPECT clean
import torch
from torch import nn

net = nn.Sequential(*[nn.Linear(128, 128) for _ in range(6)]).to("cuda")
head = nn.Linear(128, 10).to("cuda")
optimizer = torch.optim.AdamW(list(net.parameters()) + list(head.parameters()))
for step in range(120):
    optimizer.zero_grad()
    x = torch.randn(32, 128, device="cuda")
    # The body is unfrozen late: its gradients and Adam state appear then, once.
    if step < 40:
        with torch.no_grad():
            x = net(x)
    else:
        x = net(x)
    head(x).square().mean().backward()
    optimizer.step()
