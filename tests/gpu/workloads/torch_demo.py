"""The training loop of scripts/demo.sh on a real GPU: a small transformer that learns, and keeps every loss with
its graph. The mistake is deliberate; the report should name the line."""
import torch
from torch import nn


class Trainer:
    def __init__(self):
        layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
        self.model = nn.TransformerEncoder(layer, 4).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.history = []

    def step(self, batch):
        output = self.model(batch)
        loss = output.square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.history.append(output)  # meant for a plot; keeps the whole output on the GPU
        return loss.detach()


torch.manual_seed(0)
trainer = Trainer()
for step in range(200):
    loss = trainer.step(torch.randn(8, 64, 256, device="cuda"))
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")
