# EXPECT leak 1048576
import torch

errors = []


def request(n):
    query = torch.randn(64, 64, device="cuda").mean()
    activation = torch.empty(256, 1024, device="cuda")  # LEAK
    if activation.numel() > n:
        raise ValueError("too large")


for step in range(80):
    try:
        request(step)
    except ValueError as error:
        errors.append(error)
