# EXPECT leak 512
import torch
from torch import nn

net = nn.Linear(256, 256).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
losses = []
for step in range(120):
    x = torch.randn(32, 256, device="cuda")
    loss = net(x).square().mean()  # LEAK
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)
