# EXPECT leak 65536
import torch

staging = []
for step in range(100):
    buffer = torch.empty(65536, dtype=torch.uint8, pin_memory=True)  # LEAK
    staging.append(buffer)
    batch = torch.randn(64, 64, device="cuda")
