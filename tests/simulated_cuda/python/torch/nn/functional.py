from torch._C import cross_entropy, dropout, embedding, gelu, layer_norm, linear, relu, softmax  # noqa: F401
from torch import _C


def mse_loss(x, y):
    return _C.mean(_C.square(_C.sub(x, y)))
