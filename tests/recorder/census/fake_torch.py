"""A stand-in for the parts of torch that the census reads, in plain Python, so that the census runs under
every interpreter without a framework. References that real torch keeps in C++ are hidden from the garbage
collector here as well."""
import ctypes
import sys
import types

_next_address = [0x7F0000000000]


class Hidden:
    """Holds a reference that the garbage collector cannot see, as C++ does."""
    __slots__ = ('_id',)

    def __init__(self, value):
        self._id = id(value)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))

    def get(self):
        return ctypes.cast(self._id, ctypes.py_object).value

    def release(self):
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self.get()))


class dtype:
    def __init__(self, name, size):
        self.name, self.size = name, size

    def __repr__(self):
        return 'torch.' + self.name


float32 = dtype('float32', 4)


class device:
    def __init__(self, index):
        self._index = index

    @property
    def index(self):
        return self._index


class TensorBase:
    def __init__(self, *shape, requires_grad=False, grad_fn=None, cuda=True, offset=0, base=None):
        if base is None:
            _next_address[0] += 0x100000
            self._address = _next_address[0]
        else:
            self._address = base._address
        self._offset, self._shape, self._cuda = offset, shape, cuda
        self._requires_grad = requires_grad or grad_fn is not None
        self._hidden_fn = None if grad_fn is None else Hidden(grad_fn)
        self._hidden_grad = None
        self._view = base is not None

    def data_ptr(self):
        return self._address + self._offset * 4

    def storage_offset(self):
        return self._offset

    def element_size(self):
        return 4

    def get_device(self):
        return 0 if self._cuda else -1

    def numel(self):
        total = 1
        for size in self._shape:
            total *= size
        return total

    def _is_view(self):
        return self._view

    shape = property(lambda self: self._shape)
    dtype = property(lambda self: float32)
    device = property(lambda self: device(0))
    is_cuda = property(lambda self: self._cuda)
    requires_grad = property(lambda self: self._requires_grad)
    is_leaf = property(lambda self: self._hidden_fn is None)
    grad_fn = property(lambda self: None if self._hidden_fn is None else self._hidden_fn.get())
    _version = property(lambda self: 0)

    @property
    def grad(self):
        return None if self._hidden_grad is None else self._hidden_grad.get()

    def set_grad(self, value):
        self._hidden_grad = Hidden(value)


class Tensor(TensorBase):
    pass


class Parameter(Tensor):
    def __init__(self, *shape):
        Tensor.__init__(self, *shape, requires_grad=True)


class Module:
    def __init__(self):
        self._parameters, self._buffers, self._modules = {}, {}, {}

    def __setattr__(self, name, value):
        if isinstance(value, Parameter):
            self._parameters[name] = value
        elif isinstance(value, Module):
            self._modules[name] = value
        else:
            object.__setattr__(self, name, value)

    def register_buffer(self, name, value):
        self._buffers[name] = value

    def __getattr__(self, name):
        for table in ('_parameters', '_buffers', '_modules'):
            if name in self.__dict__.get(table, ()):
                return self.__dict__[table][name]
        raise AttributeError(name)


class Linear(Module):
    def __init__(self, inputs, outputs):
        Module.__init__(self)
        self.weight = Parameter(outputs, inputs)
        self.bias = Parameter(outputs)


class Optimizer:
    def __init__(self, parameters):
        self.param_groups = [{'params': list(parameters)}]
        self.state = {}

    def step(self):
        for parameter in self.param_groups[0]['params']:
            self.state[parameter] = {'step': 1, 'exp_avg': Tensor(*parameter._shape),
                                     'exp_avg_sq': Tensor(*parameter._shape)}


class Node:
    """An autograd node; C++ keeps its links."""

    def __init__(self, *inputs):
        self._links = [Hidden(node) for node in inputs]

    @property
    def _not_used(self):
        return None


class _NextFunctions:
    """Looks like a getset descriptor: neither a property nor a function."""

    def __get__(self, value, cls):
        return tuple((link.get(), 0) for link in value._links)


class DisableTorchFunctionSubclass:
    entered = 0

    def __enter__(self):
        DisableTorchFunctionSubclass.entered += 1

    def __exit__(self, *_):
        DisableTorchFunctionSubclass.entered -= 1


Node.next_functions = _NextFunctions()


def install():
    def module(name, **values):
        result = types.ModuleType(name)
        result.__dict__.update(values)
        sys.modules[name] = result
        return result
    module('torch', Tensor=Tensor)
    module('torch._C', TensorBase=TensorBase, DisableTorchFunctionSubclass=DisableTorchFunctionSubclass)
    module('torch.nn', Module=Module, Parameter=Parameter)
    module('torch.optim', Optimizer=Optimizer)


def uninstall():
    for name in ('torch', 'torch._C', 'torch.nn', 'torch.optim'):
        sys.modules.pop(name, None)


class FakeCupy:
    """cupy.ndarray over a pool: `data` points into a chunk that may be larger than the array."""

    class Chunk:
        def __init__(self, pointer, size):
            self._values = (pointer, size)

        ptr = property(lambda self: self._values[0])
        size = property(lambda self: self._values[1])
        device_id = property(lambda self: 0)

    class Pointer:
        def __init__(self, chunk, offset):
            self._chunk, self._offset = chunk, offset

        ptr = property(lambda self: self._chunk.ptr + self._offset)
        mem = property(lambda self: self._chunk)

    class ndarray:
        __slots__ = ('_pointer', '_nbytes', '_base')  # fields of C, as there

        def __init__(self, pointer, nbytes, base=None):
            self._pointer, self._nbytes, self._base = pointer, nbytes, base

        base = property(lambda self: self._base)
        data = property(lambda self: self._pointer)
        nbytes = property(lambda self: self._nbytes)
        shape = property(lambda self: (self._nbytes // 4,))
        dtype = property(lambda self: None)


class FakeJaxArray:
    """jaxlib's ArrayImpl. Asking a deleted or unfinished one for its address is an error here."""

    def __init__(self, address, nbytes, deleted=False, is_ready=True):
        self._address, self._nbytes, self._deleted, self._ready = address, nbytes, deleted, is_ready

    def is_deleted(self):
        return self._deleted

    def is_ready(self):
        return self._ready

    def unsafe_buffer_pointer(self):
        assert self._ready and not self._deleted
        return self._address

    def on_device_size_in_bytes(self):
        return self._nbytes

    shape = property(lambda self: (self._nbytes // 4,))
    dtype = property(lambda self: None)
