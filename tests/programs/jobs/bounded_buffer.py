# EXPECT clean
import torch

buffer = []
for step in range(200):
    buffer.append(torch.empty(4096, device="cuda"))
    if len(buffer) > 32:
        buffer.pop(0)
    x = torch.randn(1024, device="cuda")
