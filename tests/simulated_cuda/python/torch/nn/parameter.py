import torch


class Parameter(torch.Tensor):
    def __new__(cls, data, requires_grad=True):
        return torch.Tensor.__new__(cls, data, requires_grad)

    def __init__(self, data, requires_grad=True):
        pass
