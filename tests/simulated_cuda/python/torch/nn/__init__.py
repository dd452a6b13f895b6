from torch.nn import functional  # noqa: F401
from torch.nn.modules import (  # noqa: F401
    GELU, CrossEntropyLoss, Dropout, Embedding, LayerNorm, Linear, Module, ModuleList, MSELoss, ReLU, Sequential)
from torch.nn.parameter import Parameter  # noqa: F401
