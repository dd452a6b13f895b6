"""A stand-in for PyTorch without a GPU and without numbers: tensors have a shape and really allocate memory, from a
caching allocator with PyTorch's rules over a simulated CUDA. It offers what the tests and the demo use, under
PyTorch's names."""

import functools as _functools
import sys as _sys

__version__ = "2.11.0+simulated"
version = type(_sys)("torch.version")
version.cuda = "13.0"
_sys.modules["torch.version"] = version


class dtype:
    _all = []

    def __init__(self, name, itemsize):
        self._name = name
        self.itemsize = itemsize
        self._number = len(dtype._all)
        dtype._all.append(self)

    def __repr__(self):
        return "torch." + self._name


float32 = float = dtype("float32", 4)
float64 = double = dtype("float64", 8)
float16 = half = dtype("float16", 2)
bfloat16 = dtype("bfloat16", 2)
int64 = long = dtype("int64", 8)
int32 = dtype("int32", 4)
uint8 = dtype("uint8", 1)
bool = dtype("bool", 1)


class device:
    def __init__(self, type, index=None):
        if isinstance(type, device):
            type, index = type.type, type.index
        if isinstance(type, str) and ":" in type:
            type, index = type.split(":")
            index = int(index)
        self.type = type
        self.index = index

    def __str__(self):
        return self.type if self.index is None else "%s:%d" % (self.type, self.index)

    def __repr__(self):
        return "device(%r)" % str(self)

    def __eq__(self, other):
        return str(self) == str(other)

    def __hash__(self):
        return hash(str(self))


from torch import _C  # noqa: E402
from torch._tensor import Tensor  # noqa: E402


class OutOfMemoryError(RuntimeError):
    pass


_C._set_classes(Tensor, device, dtype._all, OutOfMemoryError)

from torch._C import (  # noqa: E402,F401
    add, cat, clone, div, empty, empty_like, exp, is_grad_enabled, matmul, mean, mul, ones, ones_like, rand, randint,
    randn, randn_like, relu, softmax, square, sub, sum, zeros, zeros_like)


def tensor(data, dtype=None, device=None, requires_grad=False):
    shape = []
    while isinstance(data, (list, tuple)):
        shape.append(len(data))
        data = data[0] if data else 0
    return zeros(*shape, dtype=dtype, device=device, requires_grad=requires_grad)


def manual_seed(seed):
    return seed


class set_grad_enabled:
    def __init__(self, enabled):
        self.previous = _C._set_grad_enabled(enabled)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        _C._set_grad_enabled(self.previous)


class _GradMode:
    """A context manager, and a decorator: @no_grad() on a function runs each call of it inside."""

    def __call__(self, function):
        @_functools.wraps(function)
        def run(*args, **kwargs):
            with type(self)():
                return function(*args, **kwargs)

        return run

    def __enter__(self):
        self.previous = _C._set_grad_enabled(self.enabled)
        return self

    def __exit__(self, *exc):
        _C._set_grad_enabled(self.previous)


class no_grad(_GradMode):
    enabled = False


class inference_mode(_GradMode):
    enabled = False


class enable_grad(_GradMode):
    enabled = True


from torch import autograd, cuda, nn, optim  # noqa: E402,F401
