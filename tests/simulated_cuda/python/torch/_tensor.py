"""torch.Tensor. Methods that allocate are C functions bound here, so that no Python frame of ours lies between an
allocation and the line that asked for it."""

from torch import _C


class _Method:
    """Binds a C function as a method without a Python frame."""

    def __init__(self, function):
        self.function = function

    def __get__(self, instance, owner):
        if instance is None:
            return self.function
        return _partial(self.function, instance)


from functools import partial as _partial  # noqa: E402


class UntypedStorage:
    def __init__(self, tensor):
        self._pointer = tensor._storage_ptr()
        self._bytes = tensor._storage_bytes()

    def data_ptr(self):
        return self._pointer

    def nbytes(self):
        return self._bytes

    size = nbytes


class Tensor(_C.TensorBase):
    for _name in ("add", "sub", "mul", "div", "mean", "sum", "square", "relu", "exp", "softmax", "clone", "matmul"):
        locals()[_name] = _Method(getattr(_C, _name))
    __add__ = __radd__ = _Method(_C.add)
    __sub__ = __rsub__ = _Method(_C.sub)
    __mul__ = __rmul__ = _Method(_C.mul)
    __truediv__ = __rtruediv__ = _Method(_C.div)
    __pow__ = pow = _Method(_C.mul)
    __neg__ = _Method(_C.relu)
    __matmul__ = _Method(_C.matmul)
    del _name

    def __hash__(self):
        return id(self)

    def __repr__(self):
        return "tensor(shape=%s, dtype=%s, device=%s)" % (tuple(self.shape), self.dtype, self.device)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, index):
        shape = list(self.shape)
        if isinstance(index, slice):
            start, stop, _ = index.indices(shape[0])
            row = self.numel() // max(shape[0], 1)
            return _C._view(self, [max(stop - start, 0)] + shape[1:], start * row)
        if isinstance(index, int):
            row = self.numel() // max(shape[0], 1)
            return _C._view(self, shape[1:], (index % shape[0]) * row)
        return _C._view(self, shape, 0)

    def size(self, dim=None):
        return self.shape if dim is None else self.shape[dim]

    def dim(self):
        return len(self.shape)

    def untyped_storage(self):
        return UntypedStorage(self)

    def view(self, *shape):
        shape = list(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else list(shape)
        if -1 in shape:
            rest = 1
            for d in shape:
                rest *= d if d != -1 else 1
            shape[shape.index(-1)] = self.numel() // rest
        return _C._view(self, shape, 0)

    reshape = view

    def flatten(self, start=0):
        return self.view(*(list(self.shape[:start]) + [-1]))

    def t(self):
        return _C._view(self, list(reversed(self.shape)), 0)

    def transpose(self, a, b):
        shape = list(self.shape)
        shape[a], shape[b] = shape[b], shape[a]
        return _C._view(self, shape, 0)

    def detach(self):
        return self.data

    def requires_grad_(self, requires_grad=True):
        self.requires_grad = requires_grad
        return self

    def item(self):
        return 1.0

    __float__ = item

    def tolist(self):
        return [1.0] * self.numel()

    def to(self, *args, dtype=None, device=None, non_blocking=False, copy=False):
        for argument in args:
            if hasattr(argument, "itemsize"):
                dtype = argument
            else:
                device = argument
        return _C._to(self, device, dtype)

    def cuda(self, device="cuda", non_blocking=False):
        return _C._to(self, device, None)

    def cpu(self):
        return _C._to(self, "cpu", None)

    def float(self):
        import torch
        return _C._to(self, None, torch.float32)

    def half(self):
        import torch
        return _C._to(self, None, torch.float16)

    def _in_place(self, *args, **kwargs):
        return self

    zero_ = copy_ = add_ = mul_ = sub_ = div_ = normal_ = uniform_ = fill_ = _in_place

    def record_stream(self, stream):
        _C._cuda_recordStream(self, stream.cuda_stream)

    def backward(self, gradient=None, retain_graph=False):
        from torch import autograd
        autograd.backward(self, retain_graph=retain_graph)
