"""Says in the words of Python how one object leads to another: `train.losses[3]`, `frame f (train.py:8) 'x'`.

A chain of objects becomes steps; each step has its exact text and, when it went through an element of a
collection, the collection. From the steps come the path, and the pattern that many tensors share.
"""
import sys
import types


class Step:
    __slots__ = ('text', 'collection', 'owner', 'name', 'module', 'code')

    def __init__(self, text, collection=None, owner='', name='', module='', code=None):
        self.text = text              # '[3]', '.history', " closure 'x'"
        self.collection = collection  # the list, dict, … when `text` is a subscript
        self.owner = owner            # 'train.Trainer' when `text` is an attribute of an instance
        self.name = name              # 'history', when code could store under it
        self.module = module          # whose code that would be: '__main__'
        self.code = code              # the function whose local it is


class Namer:
    """Names edges between objects. Remembers nothing but strings after `forget`."""

    def __init__(self):
        self._attribute_names = {}  # id of a class → candidate names of instance attributes
        self._positions = {}        # id of a collection → {id of element: subscript text}
        self._namespaces = {}       # id of a namespace → {id of a value: name}
        self._kept = []             # keeps ids in the two maps valid
        self._lru = _lru_type()
        self._weak = [cls for cls in (as_class(module_value('weakref', name))
                                      for name in ('WeakKeyDictionary', 'WeakValueDictionary')) if cls is not None]

    def forget(self):
        self._attribute_names = {}
        self._positions = {}
        self._namespaces = {}
        self._kept = []

    def steps(self, chain, first=0):
        """Steps along chain[first:], where each object is referenced by the one before."""
        result = []
        place = first
        while place + 1 < len(chain):
            used, steps = self.edge(chain, place)
            result += steps
            place += max(used, 1)
        return result

    # Returns (how many links of the chain are told, steps).
    def edge(self, chain, place):
        value, child = chain[place], chain[place + 1]
        after = chain[place + 2] if place + 2 < len(chain) else None
        cls = type(value)
        if has_base(cls, types.ModuleType):
            return self._module_edge(value, child, after)
        if has_base(cls, type):
            return self._class_edge(value, child, after)
        if cls is types.FunctionType:
            return self._function_edge(value, child, chain, place)
        if cls is types.MethodType:
            return 1, [Step('.__self__' if child is value.__self__ else '.__func__')]
        if cls is types.BuiltinMethodType and child is value.__self__:
            return 1, [Step('.__self__')]
        if cls is _CELL:
            return 1, []
        if cls is types.FrameType:
            return 1, [self._frame_step(value, child)]
        if cls is types.TracebackType:
            if child is value.tb_frame:
                return 1, []
            return 1, []
        if cls is types.GeneratorType or cls is types.CoroutineType or cls is types.AsyncGeneratorType:
            return 1, [self._generator_step(value, child)]
        if self._lru is not None and cls is self._lru:
            return self._lru_edge(chain, place)
        told = self._library_edge(chain, place)
        if told is not None:
            return told
        base = container_base(cls)
        if base is not None:
            text = self._subscript(value, base, child)
            if text is not None:
                return 1, [Step(text, value)]
        return self._instance_edge(value, child, after)

    def _library_edge(self, chain, place):
        """Objects of the standard library whose insides mean nothing to their user: (links told, steps) or None."""
        value, cls = chain[place], type(chain[place])
        name = type_name(cls)
        if any(cls is weak for weak in self._weak):
            for entry in range(place + 1, min(place + 3, len(chain) - 1)):
                table = chain[entry]
                if type(table) is dict and table is instance_attribute(value, 'data'):
                    return entry + 1 - place, [Step(self._subscript(table, dict, chain[entry + 1]) or '[…]',
                                                    Count(name, dict.__len__(table)))]
        elif cls is types.MappingProxyType:
            return 1, []
        elif name == '_local' and _get_mro(cls)[-2] is cls:
            # threading.local keeps a dictionary for each thread.
            for entry in range(place + 1, min(place + 4, len(chain) - 1)):
                if type(chain[entry]) is dict:
                    for key, inside in list(dict.items(chain[entry])):
                        if inside is chain[entry + 1] and type(key) is str:
                            return entry + 1 - place, [Step('.' + key, owner='threading.local', name=key)]
        elif name == 'Context' and module_value('_contextvars', 'Context') is cls:
            inside = place + 1
            while inside + 1 < len(chain) and type_name(type(chain[inside])).startswith('hamt'):
                inside += 1
            for variable, current in cls.items(value):
                if current is chain[inside]:
                    return inside - place, [Step(" context variable '%s'" % variable.name)]
        elif cls is module_value('_asyncio', 'Future') or cls is module_value('_asyncio', 'Task'):
            for attribute in ('_result', '_coro'):
                if c_attribute(value, cls, attribute) is chain[place + 1]:
                    return 1, [Step('.' + attribute)]
        return None

    def _module_edge(self, module, child, after):
        namespace = module_dict(module)
        if child is namespace and after is not None:
            key = self._names_in(namespace).get(id(after), None)
            if key is not None and namespace.get(key, None) is after:
                return 2, [Step('.' + key, name=key, module=str(namespace.get('__name__', '')))]
            return 2, [Step('.<global>')]
        return 1, [Step('.<module state>')]

    def _names_in(self, namespace):
        """{id of a value: its first name} of a namespace."""
        names = self._namespaces.get(id(namespace), None)
        if names is None:
            names = {}
            for key, value in list(dict.items(namespace)):
                if type(key) is str:
                    names.setdefault(id(value), key)
            self._namespaces[id(namespace)] = names
            self._kept.append(namespace)
        return names

    def _class_edge(self, cls, child, after):
        for key, value in list(_get_type_dict(cls).items()):
            if value is child:
                return 1, [Step('.' + key, name=key, module=class_module(cls))]
            if after is not None and value is after:
                return 2, [Step('.' + key, name=key, module=class_module(cls))]
        if type(child) is tuple or has_base(type(child), type):
            return 1, [Step('.<base class>')]
        return 1, [Step('.<class attribute>')]

    def _function_edge(self, function, child, chain, place):
        closure = function.__closure__
        if child is closure and closure is not None and place + 2 < len(chain):
            cell = chain[place + 2]
            for name, candidate in zip(function.__code__.co_freevars, closure):
                if candidate is cell:
                    return 3, [Step(" closure '" + name + "'", name=name, module=function_module(function))]
            return 1, [Step('.__closure__')]
        if child is function.__defaults__:
            return 1, [Step('.__defaults__')]
        if child is function.__kwdefaults__:
            return 1, [Step('.__kwdefaults__')]
        if child is function.__globals__:
            if place + 2 < len(chain):
                after = chain[place + 2]
                for key, value in list(dict.items(child)):
                    if value is after and type(key) is str:
                        return 2, [Step(" global '" + key + "'", name=key, module=function_module(function))]
            return 1, [Step('.__globals__')]
        if type(child) is dict and place + 2 < len(chain):
            after = chain[place + 2]
            for key, value in list(dict.items(child)):
                if value is after and type(key) is str:
                    return 2, [Step('.' + key)]
        return 1, [Step('.<function state>')]

    def _frame_step(self, frame, child):
        return self._local(frame, child)

    def _local(self, frame, child):
        inside = _cell_value(child) if type(child) is _CELL else child
        for name, value in frame_locals(frame):
            if value is child or value is inside:
                return Step(' ' + frame_title(frame) + " '" + name + "'", name=name, code=frame.f_code)
        return Step(' ' + frame_title(frame) + ' (a value being computed)')

    def _generator_step(self, generator, child):
        frame = getattr(generator, {types.GeneratorType: 'gi_frame', types.CoroutineType: 'cr_frame'}.get(
            type(generator), 'ag_frame'))
        if frame is None or frame is child:
            return Step('')
        return self._local(frame, child)

    def _lru_edge(self, chain, place):
        """functools.lru_cache keeps a dictionary from keys to values or to links (key, value)."""
        wrapper = chain[place]
        cache = next((value for value in chain[place + 1:place + 2] if type(value) is dict), None)
        if cache is None:
            # The cache itself and the wrapper's own namespace, which update_wrapper filled.
            entries = max([dict.__len__(value) for value in gc.get_referents(wrapper)
                           if type(value) is dict and '__wrapped__' not in list(dict.__iter__(value))], default=-1)
        else:
            entries = dict.__len__(cache)
        if instance_attribute(wrapper, '__wrapped__') is chain[place + 1]:
            return 1, [Step('.__wrapped__')]
        used = 1
        kind = 'cached value'
        if cache is not None and place + 2 < len(chain):
            used = 2
            key = chain[place + 2]
            if any(entry is key for entry in list(dict.__iter__(cache))):
                kind = 'cached argument'
        while place + used + 1 < len(chain):
            entry = type(chain[place + used])
            # Keys are tuples of arguments or functools._HashedSeq, links a private C type.
            if entry is tuple and place + used + 1 < len(chain):
                kind = 'cached argument'
            elif type_name(entry) not in ('_HashedSeq', '_lru_list_elem', 'lru_list_elem'):
                break
            used += 1
        function = instance_attribute(wrapper, '__wrapped__')
        return used, [Step('[' + kind + ']', cache if cache is not None else Count('lru_cache', entries),
                           code=function.__code__ if type(function) is types.FunctionType else None)]

    def _subscript(self, collection, base, child):
        positions = self._positions.get(id(collection), None)
        if positions is None:
            if base is dict and dict.__len__(collection) <= _FEW:
                try:
                    for key, value in dict.items(collection):
                        if value is child:
                            return '[' + key_text(key) + ']'
                        if key is child:
                            return '[a key]'
                except RuntimeError:  # another thread changed it
                    pass
                return None
            positions = {}
            try:
                if base is dict:
                    for key, value in dict.items(collection):
                        positions.setdefault(id(value), key)
                        positions.setdefault(id(key), _KEY)
                elif base is set or base is frozenset:
                    positions = {id(value): '{element}' for value in iterate(collection, base)}
                else:
                    names = _field_names(type(collection)) if base is tuple else ()
                    for place, value in enumerate(iterate(collection, base)):
                        positions.setdefault(id(value), '.' + names[place] if place < len(names) else '[%d]' % place)
            except RuntimeError:  # another thread changed it
                return None
            self._positions[id(collection)] = positions
            self._kept.append(collection)
        found = positions.get(id(child), None)
        if base is dict and id(child) in positions:
            return '[a key]' if found is _KEY else '[' + key_text(found) + ']'
        return found

    def _instance_edge(self, value, child, after):
        cls = type(value)
        owner = qualified_type_name(cls)
        if has_base(cls, BaseException):
            for name in ('__traceback__', '__context__', '__cause__', 'args'):
                if _EXCEPTION_GET[name](value) is child:
                    return 1, [Step('.' + name)]
        if type(child) is dict and after is not None:
            # Either the instance's own namespace or a dictionary in an attribute.
            inside = [key for key, entry in list(dict.items(child)) if entry is after and type(key) is str]
            for key in inside:
                if type_attribute(cls, key) is _MISSING and instance_attribute(value, key) is after:
                    return 2, [Step('.' + key, owner=owner, name=key, module=class_module(cls))]
            name = self._attribute(value, child)
            if name is not None:
                return 1, [Step('.' + name, owner=owner, name=name, module=class_module(cls))]
            if inside:
                return 2, [Step('.' + inside[0], owner=owner, name=inside[0], module=class_module(cls))]
        if child is cls:
            return 1, [Step('.__class__')]
        if type_name(cls) == 'ndarray' and owner.startswith('cupy') and c_attribute(value, cls, 'base') is child:
            return 1, [Step('.base')]
        name = self._attribute(value, child)
        if name is not None:
            return 1, [Step('.' + name, owner=owner, name=name, module=class_module(cls))]
        cached = _cached_properties(cls)
        if len(cached) == 1:
            # What it keeps cannot be read without asking it, but nothing else in the class hides a name.
            return 1, [Step('.' + cached[0], owner=owner, name=cached[0], module=class_module(cls))]
        if type_attribute(type(child), 'next_functions') is not _MISSING:
            return 1, [Step('.grad_fn')]
        return 1, [Step('.<' + type_name(cls) + ' state>', owner=owner)]

    def _attribute(self, value, child):
        names = self._candidates(type(value))
        for place, name in enumerate(names):
            if instance_attribute(value, name) is child:
                if place > 8:  # the next instance of this class is likely held the same way
                    names.insert(0, names.pop(place))
                return name
        return None

    def _candidates(self, cls):
        """Names that instances of a class may carry: its slots, and every name its methods mention."""
        names = self._attribute_names.get(id(cls), None)
        if names is not None:
            return names
        names = {}
        for entry in _get_mro(cls):
            for key, value in list(_get_type_dict(entry).items()):
                kind = type(value)
                if kind is types.MemberDescriptorType:
                    names[key] = None
                elif kind is types.FunctionType:
                    _collect_names(value.__code__, names, 0)
                elif kind is property and type(value.fget) is types.FunctionType:
                    _collect_names(value.fget.__code__, names, 0)
                elif key in ('__annotations__', '__dataclass_fields__') and type(value) is dict:
                    for name in dict.__iter__(value):
                        if type(name) is str:
                            names[name] = None
                elif key == '__static_attributes__' and type(value) is tuple:
                    for name in value:
                        if type(name) is str:
                            names[name] = None
        # Attributes set from outside: what the module that defines the class mentions.
        module = _get_type_dict(cls).get('__module__', None)
        found = sys.modules.get(module, None) if type(module) is str else None
        if found is not None and has_base(type(found), types.ModuleType) and not module.startswith('torch'):
            for function in list(dict.values(module_dict(found))):
                if type(function) is types.FunctionType:
                    _collect_names(function.__code__, names, 0)
        names.update(dict.fromkeys(_EXTRA_NAMES))
        names = list(names)
        self._attribute_names[id(cls)] = names
        self._kept.append(cls)
        return names


# A dictionary with so few entries is looked through each time.
_FEW = 16

# Names that the code which is running now mentions: set by the census before it names anything.
_EXTRA_NAMES = []


def note_running_names(frames):
    names = {}
    for _, frame in frames:
        _collect_names(frame.f_code, names, 0)
    _EXTRA_NAMES[:] = list(names)


def _collect_names(code, names, depth):
    for name in code.co_names:
        names[name] = None
    for constant in code.co_consts:
        if type(constant) is types.CodeType and depth < 4:
            _collect_names(constant, names, depth + 1)


def frame_title(frame):
    code = frame.f_code
    name = getattr(code, 'co_qualname', code.co_name)
    return 'frame %s:%d in %s' % (short_file(code.co_filename), frame.f_lineno or code.co_firstlineno, name)


def class_module(cls):
    found = _get_type_dict(cls).get('__module__', None)
    return found if type(found) is str else ''


def function_module(function):
    found = function.__globals__.get('__name__', None)
    return found if type(found) is str else ''


def _cached_properties(cls):
    kind = module_value('functools', 'cached_property')
    return [key for entry in _get_mro(cls) for key, value in list(_get_type_dict(entry).items())
            if kind is not None and type(value) is kind]


def _field_names(cls):
    """Of a collections.namedtuple; () for other tuples."""
    names = _get_type_dict(cls).get('_fields', ())
    if type(names) is not tuple or not all(type(name) is str for name in names):
        return ()
    return names


class Count:
    """Stands for a collection that only C can see."""
    __slots__ = ('kind', 'items')

    def __init__(self, kind, items):
        self.kind = kind
        self.items = items


def _cell_value(cell):
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _lru_type():
    module = sys.modules.get('_functools', None) or sys.modules.get('functools', None)
    if module is None or not has_base(type(module), types.ModuleType):
        return None
    found = module_dict(module).get('_lru_cache_wrapper', None)
    return found if type(found) is type else None


_KEY = object()
_CELL = type((lambda value: (lambda: value))(0).__closure__[0])
_EXCEPTION_GET = {name: BaseException.__dict__[name].__get__
                  for name in ('__traceback__', '__context__', '__cause__', 'args')}
