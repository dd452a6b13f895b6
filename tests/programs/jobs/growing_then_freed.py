# EXPECT clean
import torch

for step in range(40):
    window = [torch.empty(2048, device="cuda") for _ in range(25)]
    for i in range(25):
        x = torch.randn(512, device="cuda")
    del window
