"""Looks at host objects without running any of their code: type slots, real dictionaries, C iterators.

Part of the census, which runs inside the traced process. Every file of the census is executed, in the
order given in files.cmake, in one namespace that is not in sys.modules. Python 3.8 or newer.

Rules that every line keeps: no attribute access on a host object except through a descriptor that CPython
or the framework's own C base class defines, no comparison by `==`, no truth value of a host object, no
`len()` or iteration that a subclass could override, no reference that outlives the census.
"""
import gc
import sys
import types
import weakref

_get_mro = type.__dict__['__mro__'].__get__
_get_type_dict = type.__dict__['__dict__'].__get__
_get_type_name = type.__dict__['__name__'].__get__
_get_module_dict = types.ModuleType.__dict__['__dict__'].__get__
_generic_getattribute = object.__getattribute__
_MISSING = object()


def mro(cls):
    return _get_mro(cls)


def has_base(cls, base):
    """Like issubclass, but deaf to __subclasscheck__; compares by identity."""
    for entry in _get_mro(cls):
        if entry is base:
            return True
    return False


def type_attribute(cls, name):
    """The object that `name` means in the class, found without descriptors or metaclasses being asked."""
    for entry in _get_mro(cls):
        value = _get_type_dict(entry).get(name, _MISSING)
        if value is not _MISSING:
            return value
    return _MISSING


def type_name(cls):
    return _get_type_name(cls)


def qualified_type_name(cls):
    """'train.Trainer' for a class of a module, plain 'list' for a builtin, 'ctx of train.Double' for the node
    of a torch.autograd.Function."""
    forward = _get_type_dict(cls).get('_forward_cls', None)
    if forward is not None and has_base(type(forward), type):
        return 'ctx of ' + qualified_type_name(forward)
    name = _get_type_dict(cls).get('__qualname__', None)
    if type(name) is not str:
        name = _get_type_name(cls)
    module = _get_type_dict(cls).get('__module__', None)
    if type(module) is not str:
        # tp_name of a C type carries the module before the last dot; __module__ is computed from it.
        module = ''
    if module in ('', 'builtins', 'collections'):
        return name
    return module_title(module) + '.' + name


def module_dict(module):
    return _get_module_dict(module)


_MAIN_FILE = ['']  # set by the census that runs


def module_title(name):
    """The main module by the name of its file, as people call it: train.py is 'train'."""
    if name != '__main__':
        return name
    main = sys.modules.get('__main__', None)
    path = None
    if main is not None and has_base(type(main), types.ModuleType):
        path = _get_module_dict(main).get('__file__', None)
    # The interpreter takes __file__ away when the program's body has run.
    if type(path) is not str:
        path = _MAIN_FILE[0]
    if not path:
        return name
    stem = path.replace('\\', '/').rsplit('/', 1)[-1]
    return stem[:-3] if stem.endswith('.py') and len(stem) > 3 else stem or name


def short_file(path):
    return path.replace('\\', '/').rsplit('/', 1)[-1] if type(path) is str else '?'


def instance_attribute(value, name):
    """The instance's own attribute, or _MISSING. Never makes the instance's __dict__ come into being.

    object.__getattribute__ looks at the type first; when no class of the MRO has the name, only the
    instance's storage remains, and no code of the host runs. A slot is read through its member
    descriptor.
    """
    found = type_attribute(type(value), name)
    if found is not _MISSING:
        if type(found) is types.MemberDescriptorType:
            try:
                return found.__get__(value)
            except Exception:
                return _MISSING
        if type(found) is property or type(found) is types.GetSetDescriptorType:
            return _MISSING
        if type_attribute(type(found), '__set__') is not _MISSING:
            return _MISSING  # a data descriptor would be called
        if type_attribute(type(found), '__get__') is not _MISSING and type(found) is not types.FunctionType:
            return _MISSING
    try:
        result = _generic_getattribute(value, name)
    except Exception:
        return _MISSING
    if found is not _MISSING and (result is found or type(result) is types.MethodType):
        return _MISSING  # the class's value, not the instance's
    return result


def c_attribute(value, cls, name):
    """Reads an attribute that a C base class defines, through that class's own descriptor."""
    found = type_attribute(cls, name)
    if found is _MISSING:
        return _MISSING
    try:
        return found.__get__(value, type(value))
    except Exception:
        return _MISSING


def length(container):
    """len() of a builtin container, whatever a subclass makes of __len__."""
    for entry in _get_mro(type(container)):
        method = _BUILTIN_LENGTH.get(id(entry), None)
        if method is not None:
            return method(container)
    return -1


def container_base(cls):
    """The builtin container that the class is or derives from, else None."""
    for entry in _get_mro(cls):
        if id(entry) in _BUILTIN_LENGTH:
            return entry
    return None


def iterate(container, base):
    return _BUILTIN_ITERATE[id(base)](container)


def _deque_type():
    module = sys.modules.get('_collections', None) or sys.modules.get('collections', None)
    found = _get_module_dict(module).get('deque', None) if type(module) is types.ModuleType else None
    return found if type(found) is type else None


# By id: looking a class up by value would ask its metaclass for __hash__ and __eq__.
_BUILTIN_LENGTH = {id(base): base.__len__ for base in (list, tuple, dict, set, frozenset)}
_BUILTIN_ITERATE = {id(base): base.__iter__ for base in (list, tuple, dict, set, frozenset)}
_DEQUE = _deque_type()
if _DEQUE is not None:
    _BUILTIN_LENGTH[id(_DEQUE)] = _DEQUE.__len__
    _BUILTIN_ITERATE[id(_DEQUE)] = _DEQUE.__iter__


def key_text(key):
    """A dictionary key as a person would write it; objects are only called by their type."""
    kind = type(key)
    if kind is str:
        return repr(key if len(key) <= 60 else key[:57] + '...')
    if kind is int or kind is bool or kind is float or key is None:
        return repr(key)
    if kind is bytes:
        return repr(key[:40])
    if kind is tuple and len(key) <= 4:
        return '(' + ', '.join(key_text(part) for part in key) + (',)' if len(key) == 1 else ')')
    if has_base(kind, weakref.ref):
        # The referent's type only: nothing of it is asked.
        return '<' + type_name(type(weakref.ref.__call__(key))) + '>'
    return '<' + type_name(kind) + '>'


CO_OPTIMIZED = 0x1


def frame_locals(frame):
    """[(name, value)] of a function's frame, leaving no trace in it.

    Until 3.12, `f_locals` fills a dictionary that the frame keeps, which would hold the locals alive: what
    that call put in is taken out again. (The interpreter puts it back whenever somebody asks.) Module and
    class bodies are left to their real namespaces.
    """
    code = frame.f_code
    if not code.co_flags & CO_OPTIMIZED:
        return []
    names = code.co_varnames + code.co_cellvars + code.co_freevars
    namespace = frame.f_locals
    result = []
    seen = set()
    for name in names:
        if name in seen:
            continue
        seen.add(name)
        value = namespace.get(name, _MISSING)
        if value is not _MISSING:
            result.append((name, value))
    # Namespace, this function's own variable and the call's argument: nobody else holds the dictionary.
    if type(namespace) is dict and sys.getrefcount(namespace) <= 3:
        for name in seen:
            namespace.pop(name, None)
    return result
