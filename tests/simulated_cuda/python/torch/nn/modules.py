import torch
from torch.nn import functional as F
from torch.nn.parameter import Parameter


class Module:
    def __init__(self):
        self.__dict__["_parameters"] = {}
        self.__dict__["_buffers"] = {}
        self.__dict__["_modules"] = {}
        self.training = True

    def __setattr__(self, name, value):
        if isinstance(value, Parameter):
            self._parameters[name] = value
        elif isinstance(value, Module):
            self._modules[name] = value
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name):
        for table in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__.get(table, ()):
                return self.__dict__[table][name]
        raise AttributeError(name)

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    def register_buffer(self, name, tensor):
        self._buffers[name] = tensor

    def named_parameters(self, prefix=""):
        for name, parameter in self._parameters.items():
            if parameter is not None:
                yield prefix + name, parameter
        for name, module in self._modules.items():
            for pair in module.named_parameters(prefix + name + "."):
                yield pair

    def parameters(self):
        for _, parameter in self.named_parameters():
            yield parameter

    def state_dict(self):
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def load_state_dict(self, state):
        return None

    def to(self, *args, **kwargs):
        for name, parameter in self._parameters.items():
            if parameter is not None:
                self._parameters[name] = Parameter(parameter.data.to(*args, **kwargs), parameter.requires_grad)
        for name, buffer in self._buffers.items():
            self._buffers[name] = buffer.to(*args, **kwargs)
        for module in self._modules.values():
            module.to(*args, **kwargs)
        return self

    def cuda(self, device="cuda"):
        return self.to(device)

    def train(self, mode=True):
        self.training = mode
        for module in self._modules.values():
            module.train(mode)
        return self

    def eval(self):
        return self.train(False)

    def zero_grad(self, set_to_none=True):
        for parameter in self.parameters():
            parameter.grad = None


class Sequential(Module):
    def __init__(self, *modules):
        super().__init__()
        for i, module in enumerate(modules):
            setattr(self, str(i), module)

    def __iter__(self):
        return iter(self._modules.values())

    def __len__(self):
        return len(self._modules)

    def __getitem__(self, index):
        return list(self._modules.values())[index]

    def forward(self, x):
        for module in self._modules.values():
            x = module(x)
        return x


class ModuleList(Sequential):
    def __init__(self, modules=()):
        super().__init__(*modules)


class Linear(Module):
    def __init__(self, inputs, outputs, bias=True, device=None, dtype=None):
        super().__init__()
        self.weight = Parameter(torch.empty(outputs, inputs, device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(torch.empty(outputs, device=device, dtype=dtype))
        else:
            self._parameters["bias"] = None

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Embedding(Module):
    def __init__(self, count, size, device=None):
        super().__init__()
        self.weight = Parameter(torch.empty(count, size, device=device))

    def forward(self, x):
        return F.embedding(x, self.weight)


class LayerNorm(Module):
    def __init__(self, size, device=None):
        super().__init__()
        self.weight = Parameter(torch.empty(size, device=device))
        self.bias = Parameter(torch.empty(size, device=device))

    def forward(self, x):
        return F.layer_norm(x)


class ReLU(Module):
    def __init__(self, inplace=False):
        super().__init__()

    def forward(self, x):
        return F.relu(x)


class GELU(Module):
    def forward(self, x):
        return F.gelu(x)


class Dropout(Module):
    def __init__(self, p=0.5):
        super().__init__()

    def forward(self, x):
        return F.dropout(x) if self.training else x


class CrossEntropyLoss(Module):
    def forward(self, x, y):
        return F.cross_entropy(x, y)


class MSELoss(Module):
    def forward(self, x, y):
        return F.mse_loss(x, y)
