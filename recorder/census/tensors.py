"""Recognizes device tensors of PyTorch, CuPy and JAX and reads what they are, through C descriptors only.

Nothing here asks a device for anything: addresses, shapes and types are host-side fields.
"""
import sys
import types

# Values of gpumemtrace.Census in trace.proto.
FRAMEWORK_TORCH, FRAMEWORK_CUPY, FRAMEWORK_JAX = 1, 2, 3
ROLE_UNKNOWN, ROLE_PARAMETER, ROLE_BUFFER, ROLE_GRADIENT, ROLE_OPTIMIZER, ROLE_ACTIVATION = range(6)
FLAG_REQUIRES_GRAD, FLAG_LEAF, FLAG_HOST, FLAG_UNREACHED, FLAG_VIEW = 1, 2, 4, 8, 16

# Host tensors are listed too (pinned memory leaks as well), but only those worth a report.
HOST_TENSOR_BYTES = 1 << 16
HOST_TENSOR_LIMIT = 4096


class Tensor:
    """What the census tells about one tensor object."""
    __slots__ = ('object', 'framework', 'address', 'bytes', 'storage_bytes', 'shape', 'dtype', 'device',
                 'flags', 'role', 'name', 'grad_fn', 'holder', 'owner')

    def __init__(self, value, framework):
        self.object = value
        self.framework = framework
        self.address = self.bytes = self.storage_bytes = 0
        self.shape = self.dtype = self.name = self.grad_fn = ''
        self.device = -1
        self.flags = 0
        self.role = ROLE_UNKNOWN
        self.holder = -1
        self.owner = None  # id of the module that registers it


def module_value(module_name, *names):
    """A global of a module that is already imported, or None; imports nothing and asks no __getattr__."""
    module = sys.modules.get(module_name, None)
    if module is None or not has_base(type(module), types.ModuleType):
        return None
    for name in names:
        value = module_dict(module).get(name, None)
        if value is not None:
            return value
    return None


def as_class(*candidates):
    for candidate in candidates:
        if candidate is not None and has_base(type(candidate), type):
            return candidate
    return None


class TorchReader:
    framework = FRAMEWORK_TORCH

    def __init__(self):
        base = module_value('torch._C', 'TensorBase', '_TensorBase')
        self.base = as_class(base)
        self.usable = self.base is not None
        if not self.usable:
            return
        self.module_class = as_class(module_value('torch.nn.modules.module', 'Module'),
                                     module_value('torch.nn', 'Module'))
        self.optimizer_class = as_class(module_value('torch.optim.optimizer', 'Optimizer'),
                                        module_value('torch.optim', 'Optimizer'))
        self._get = {}
        for name in ('is_cuda', 'shape', 'dtype', 'requires_grad', 'is_leaf', 'grad_fn', 'grad'):
            found = type_attribute(self.base, name)
            if found is not _MISSING and type_attribute(type(found), '__get__') is not _MISSING:
                self._get[name] = found.__get__
        self._call = {}
        for name in ('data_ptr', 'storage_offset', 'element_size', 'numel', '_is_view', 'get_device'):
            found = type_attribute(self.base, name)
            if found is not _MISSING:
                self._call[name] = found
        version = type_attribute(self.base, '_version')
        self._version = version.__get__ if version is not _MISSING else None
        self.usable = (all(name in self._call for name in ('data_ptr', 'storage_offset', 'element_size', 'numel'))
                       and all(name in self._get for name in ('is_cuda', 'shape', 'dtype', 'requires_grad', 'is_leaf')))
        self._dtypes = {}  # id of a dtype → (dtype, text, bytes of an element)
        self._shapes = {}  # shape → text
        self._is_view = self._call.get('_is_view', lambda value: False)
        self._device = self._call.get('get_device', lambda value: -1)

    def guard(self):
        """Keeps the __torch_function__ of subclasses from being called; None when torch has no such thing."""
        return module_value('torch._C', 'DisableTorchFunctionSubclass', 'DisableTorchFunction')

    def matches(self, cls):
        return has_base(cls, self.base)

    def _dtype(self, dtype, value):
        # repr of a torch.dtype is C code of torch.
        text = repr(dtype)
        known = (dtype, text[6:] if text.startswith('torch.') else text, self._call['element_size'](value))
        self._dtypes[id(dtype)] = known
        return known

    def read(self, value):
        """A Tensor, or None for one without device memory of its own (meta, fake, sparse, functional)."""
        get, call = self._get, self._call
        cls = type(value)
        try:
            cuda = get['is_cuda'](value, cls) is True
            address = call['data_ptr'](value)
            if not address:
                return None
            dtype = get['dtype'](value, cls)
            known = self._dtypes.get(id(dtype), None)
            if known is None:
                known = self._dtype(dtype, value)
            item = known[2]
            size = call['numel'](value) * item
            if not cuda and size < HOST_TENSOR_BYTES:
                return None
            result = Tensor(value, self.framework)
            result.address = address - call['storage_offset'](value) * item
            result.bytes = size
            shape = get['shape'](value, cls)
            text = self._shapes.get(shape, None)
            if text is None:
                text = self._shapes[shape] = str(tuple(shape))
            result.shape = text
            result.dtype = known[1]
            flags = 0
            if not cuda:
                flags = FLAG_HOST
            else:
                result.device = self._device(value)
            if get['requires_grad'](value, cls) is True:
                flags |= FLAG_REQUIRES_GRAD
            if get['is_leaf'](value, cls) is True:
                flags |= FLAG_LEAF
            if self._is_view(value) is True:
                flags |= FLAG_VIEW
            result.flags = flags
            node = None if flags & FLAG_LEAF else self.grad_fn(value, flags)
            if node is not None:
                result.grad_fn = node_name(node)
            return result
        except Exception:
            return None

    def grad_fn(self, value, flags):
        """The autograd node, or None. A view of a base that was changed in place makes torch build a new
        node when asked; such a view is left alone."""
        if flags & FLAG_LEAF or 'grad_fn' not in self._get:
            return None
        try:
            if flags & FLAG_VIEW and self._version is not None and self._version(value, type(value)) != 0:
                return None
            return self._get['grad_fn'](value, type(value))
        except Exception:
            return None

    def gradient(self, value):
        """The gradient of a leaf that requires one; asking any other tensor warns the user."""
        try:
            return self._get['grad'](value, type(value))
        except Exception:
            return None


def node_name(node):
    name = type_name(type(node))
    return name if type(name) is str else '?'


def next_functions(node):
    """[autograd nodes] that feed this one's gradients."""
    found = type_attribute(type(node), 'next_functions')
    if found is _MISSING or type(found) is property or type(found) is types.FunctionType:
        return []
    try:
        links = found.__get__(node, type(node))
    except Exception:
        return []
    if type(links) is not tuple:
        return []
    return [link[0] for link in links if type(link) is tuple and len(link) == 2 and link[0] is not None]


class CupyReader:
    framework = FRAMEWORK_CUPY

    def __init__(self):
        self.base = as_class(module_value('cupy._core.core', '_ndarray_base', 'ndarray'),
                             module_value('cupy', 'ndarray'))
        self.usable = self.base is not None

    def guard(self):
        return None

    def matches(self, cls):
        return has_base(cls, self.base)

    def read(self, value):
        try:
            memory = c_attribute(value, self.base, 'data')
            if memory is _MISSING or memory is None:
                return None
            address = c_attribute(memory, type(memory), 'ptr')
            if type(address) is not int or not address:
                return None
            result = Tensor(value, self.framework)
            result.address = address
            chunk = c_attribute(memory, type(memory), 'mem')
            if chunk is not _MISSING and chunk is not None:
                start, size = (c_attribute(chunk, type(chunk), name) for name in ('ptr', 'size'))
                if type(start) is int and type(size) is int and start <= address < start + max(size, 1):
                    result.address, result.storage_bytes = start, size
                device = c_attribute(chunk, type(chunk), 'device_id')
                result.device = device if type(device) is int else -1
            nbytes = c_attribute(value, self.base, 'nbytes')
            result.bytes = nbytes if type(nbytes) is int else 0
            shape = c_attribute(value, self.base, 'shape')
            result.shape = str(shape) if type(shape) is tuple else ''
            dtype = c_attribute(value, self.base, 'dtype')
            result.dtype = str(dtype) if type(dtype).__module__.startswith('numpy') else ''
            result.flags = FLAG_LEAF
            base = self.base_of(value)
            whole = c_attribute(base, self.base, 'nbytes') if base is not None else 0
            if (type(whole) is int and whole > 2 * result.bytes
                    or result.storage_bytes > 2 * result.bytes and address != result.address):
                result.flags |= FLAG_VIEW
            return result
        except Exception:
            return None


    def base_of(self, value):
        """The array that this one is a view of and keeps alive, else None."""
        base = c_attribute(value, self.base, 'base')
        return base if base is not _MISSING and has_base(type(base), self.base) else None


class JaxReader:
    framework = FRAMEWORK_JAX

    def __init__(self):
        self.base = as_class(*[module_value(name, 'ArrayImpl')
                               for name in ('jaxlib._jax', 'jaxlib.xla_extension', 'jaxlib.xla_client')])
        self.usable = self.base is not None

    def guard(self):
        return None

    def matches(self, cls):
        return has_base(cls, self.base)

    def read(self, value):
        """Only buffers that exist: asking a deleted array is an error, and an array that is spread over
        devices has no single address."""
        try:
            deleted = type_attribute(self.base, 'is_deleted')
            if deleted is _MISSING or deleted(value) is not False:
                return None
            # The address of a buffer that is still being computed could have to be waited for.
            ready = type_attribute(self.base, 'is_ready')
            if ready is not _MISSING and ready(value) is not True:
                return None
            pointer = type_attribute(self.base, 'unsafe_buffer_pointer')
            address = pointer(value) if pointer is not _MISSING else 0
            if type(address) is not int or not address:
                return None
            result = Tensor(value, self.framework)
            result.address = address
            shape, dtype = (c_attribute(value, self.base, name) for name in ('shape', 'dtype'))
            result.shape = str(shape) if type(shape) is tuple else ''
            result.dtype = str(dtype) if type(dtype).__module__.startswith('numpy') else ''
            size = type_attribute(self.base, 'on_device_size_in_bytes')
            total = size(value) if size is not _MISSING else 0
            result.bytes = result.storage_bytes = total if type(total) is int else 0
            result.flags = FLAG_LEAF
            return result
        except Exception:
            return None


def readers():
    return [reader for reader in (make() for make in (TorchReader, CupyReader, JaxReader)) if reader.usable]


class Roles:
    """Who a torch tensor is for: parameter, buffer, gradient, optimizer state; with dotted names."""

    def __init__(self, torch_reader):
        self.torch = torch_reader
        self.role = {}       # id of a tensor → (role, name, id of the root module or optimizer)
        self.trained = set() # ids of leaves that have a gradient
        self.modules = {}    # id → module object
        self.optimizers = []
        self._parent = {}    # id of a module → (id of its parent, name in it)
        self._plain = {}     # id of a class of modules → nothing in it overrides the instance's tables

    def _registered(self, module, name):
        cls = type(module)
        plain = self._plain.get(id(cls), None)
        if plain is None:
            # The usual class says nothing of these names, so that only the instance can (instance_attribute).
            plain = self._plain[id(cls)] = all(type_attribute(cls, entry) is _MISSING for entry in
                                               ('_modules', '_parameters', '_buffers'))
        if plain:
            try:
                found = _generic_getattribute(module, name)
            except Exception:
                return ()
        else:
            found = instance_attribute(module, name)
        if found is _MISSING or not has_base(type(found), dict) or not dict.__len__(found):
            return ()
        return [(key, value) for key, value in dict.items(found) if type(key) is str and value is not None]

    def add_module(self, module):
        self.modules[id(module)] = module

    def resolve(self):
        for key, module in self.modules.items():
            for name, child in self._registered(module, '_modules'):
                if id(child) in self.modules and id(child) != key:
                    self._parent.setdefault(id(child), (key, name))
        names = {}
        for key in self.modules:
            names[key] = self._dotted(key)
        for key, module in self.modules.items():
            root, prefix = names[key]
            for attribute, role in (('_parameters', ROLE_PARAMETER), ('_buffers', ROLE_BUFFER)):
                for name, value in self._registered(module, attribute):
                    self.role.setdefault(id(value), (role, prefix + name, root))
        return names

    def _dotted(self, key):
        parts, visited = [], {key}
        while key in self._parent:
            parent, name = self._parent[key]
            if parent in visited:
                break
            visited.add(parent)
            parts.append(name)
            key = parent
        return key, ''.join(part + '.' for part in reversed(parts))

    def add_optimizer_states(self):
        for optimizer in self.optimizers:
            self._add_groups(optimizer)
            state = instance_attribute(optimizer, 'state')
            if state is _MISSING or not has_base(type(state), dict):
                continue
            for parameter, values in list(dict.items(state)):
                known = self.role.get(id(parameter), None)
                subject = known[1] if known else key_text(parameter)
                self._add_state(values, 'state[' + subject + ']', id(optimizer), 0)

    def _add_groups(self, optimizer):
        """What an optimizer updates is a parameter, also where no module has registered it."""
        groups = instance_attribute(optimizer, 'param_groups')
        if type(groups) is not list:
            return
        for number, group in enumerate(groups):
            entries = dict.get(group, 'params', None) if has_base(type(group), dict) else None
            if type(entries) is not list:
                continue
            for place, value in enumerate(entries):
                if has_base(type(value), self.torch.base):
                    name = "param_groups[%d]['params'][%d]" % (number, place)
                    self.role.setdefault(id(value), (ROLE_PARAMETER, name, id(optimizer)))

    def _add_state(self, value, name, owner, depth):
        if has_base(type(value), self.torch.base):
            self.role.setdefault(id(value), (ROLE_OPTIMIZER, name, owner))
        elif depth < 3 and has_base(type(value), dict):
            for key, entry in list(dict.items(value)):
                self._add_state(entry, name + '[' + key_text(key) + ']', owner, depth + 1)
        elif depth < 3 and (type(value) is list or type(value) is tuple):
            for place, entry in enumerate(value):
                self._add_state(entry, name + '[' + str(place) + ']', owner, depth + 1)

    def add_gradients(self, tensors):
        """Gradients of leaves. They may exist without ever having been seen by Python; those are returned
        as further objects."""
        further = []
        for tensor in tensors:
            if tensor.framework != FRAMEWORK_TORCH:
                continue
            if tensor.flags & (FLAG_REQUIRES_GRAD | FLAG_LEAF) != FLAG_REQUIRES_GRAD | FLAG_LEAF:
                continue
            gradient = self.torch.gradient(tensor.object)
            if gradient is None:
                continue
            known = self.role.get(id(tensor.object), None)
            self.trained.add(id(tensor.object))
            self.role.setdefault(id(gradient), (ROLE_GRADIENT, (known[1] if known else tensor.shape) + '.grad',
                                                known[2] if known else id(tensor.object)))
            further.append(gradient)
        return further
