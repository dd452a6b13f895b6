# EXPECT leak 4096
import torch

past = torch.empty(1, 1024, device="cuda")
for step in range(150):
    new = torch.randn(1, 1024, device="cuda")
    past = torch.cat([past, new])  # LEAK
