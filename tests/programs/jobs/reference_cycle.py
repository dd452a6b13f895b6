# EXPECT leak 262144
import gc

import torch

gc.disable()


class Node:
    def __init__(self):
        self.tensor = torch.empty(65536, device="cuda")  # LEAK
        self.me = self


for step in range(100):
    Node()
    x = torch.randn(1024, device="cuda")
