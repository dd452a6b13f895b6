"""Finds the lines of code that put things into a holder: `losses.append(…)`, `audit[step] = …`, `h = …`.

Reads bytecode with the standard library's `dis` (every framework has imported it already; without it there are
no lines); no source file is opened. The answer is what the code says could store there, not what was seen to do so.
"""
import sys
import time
import types

_ADDING = frozenset(('append', 'appendleft', 'add', 'extend', 'extendleft', 'insert', 'setdefault', 'update', 'push',
                     'put', 'put_nowait', '__setitem__', 'store', 'record', 'register_hook'))
_LOADS = frozenset(('LOAD_NAME', 'LOAD_GLOBAL', 'LOAD_FAST', 'LOAD_DEREF', 'LOAD_ATTR', 'LOAD_METHOD',
                    'LOAD_CLASSDEREF', 'LOAD_FAST_CHECK', 'LOAD_FAST_LOAD_FAST', 'LOAD_FAST_AND_CLEAR',
                    'STORE_FAST_LOAD_FAST', 'LOAD_FROM_DICT_OR_DEREF', 'LOAD_FROM_DICT_OR_GLOBALS',
                    'LOAD_FAST_BORROW', 'LOAD_FAST_BORROW_LOAD_FAST_BORROW'))
_STORES = frozenset(('STORE_NAME', 'STORE_GLOBAL', 'STORE_FAST', 'STORE_DEREF', 'STORE_ATTR', 'STORE_FAST_STORE_FAST',
                     'STORE_FAST_LOAD_FAST', 'STORE_FAST_MAYBE_NULL'))
# A module of a library may be large; its first instructions must do.
_INSTRUCTIONS_LIMIT = 40000
_MOST_LINES = 6


# 3.10 and later know all of them; these matter most.
_LIBRARY_MODULES = frozenset(getattr(sys, 'stdlib_module_names', (
    'asyncio', 'collections', 'concurrent', 'contextlib', 'contextvars', 'dataclasses', 'functools', 'itertools',
    'multiprocessing', 'queue', 'threading', 'types', 'weakref', '_asyncio', '_thread')))


def of_standard_library(module):
    return module.partition('.')[0] in _LIBRARY_MODULES and module != '__main__'


class Stores:
    """Answers for code objects; caches per code object for one census."""

    def __init__(self, main_code, deadline):
        self.main_code = main_code
        self.deadline = deadline
        self._index = {}   # id of a code object → {name: ([(file, line)] adding, [(file, line)] storing)}
        self._modules = {} # module name → [code objects]
        self._kept = []

    def lines(self, name, codes, adding):
        """[(file, line)] where something is put into `name`; assignments to `name` itself unless `adding`
        finds better ones. The last in the text come first: what begins a loop is seldom the mistake."""
        added, stored = [], []
        for code in codes:
            found = self._names_of(code).get(name, None)
            if found is not None:
                added += found[0]
                stored += found[1]
        chosen = (added if adding and added else stored)[::-1]
        result = []
        for place in chosen:
            if place not in result:
                result.append(place)
        return result[:_MOST_LINES]

    def codes_of_module(self, name):
        """Code objects of a module's functions and classes; of the main module also its own body."""
        codes = self._modules.get(name, None)
        if codes is not None:
            return codes
        codes = []
        if name == '__main__' and self.main_code is not None:
            codes.append(self.main_code)
        module = sys.modules.get(name, None)
        if module is not None and has_base(type(module), types.ModuleType):
            namespace = module_dict(module)
            for value in list(dict.values(namespace)):
                self._collect(value, namespace, name, codes, 0)
        self._modules[name] = codes
        self._kept.append(codes)
        return codes

    def _collect(self, value, namespace, module, codes, depth):
        kind = type(value)
        if kind is staticmethod or kind is classmethod:
            value = value.__func__
            kind = type(value)
        elif kind is property:
            value = value.fget
            kind = type(value)
        elif kind is not types.FunctionType and not has_base(kind, type):
            # A wrapper such as functools.lru_cache's.
            value = instance_attribute(value, '__wrapped__') if depth < 3 else None
            kind = type(value)
        if kind is types.FunctionType:
            # What dataclasses and namedtuple write has no file.
            if value.__globals__ is namespace and value.__code__ not in codes and not self._generated(value.__code__):
                codes.append(value.__code__)
        elif has_base(kind, type) and depth < 3:
            if _get_type_dict(value).get('__module__', None) == module:
                for entry in list(_get_type_dict(value).values()):
                    self._collect(entry, namespace, module, codes, depth + 1)

    def _generated(self, code):
        return code.co_filename == '<string>' and (self.main_code is None or self.main_code.co_filename != '<string>')

    def _names_of(self, code):
        names = self._index.get(id(code), None)
        if names is None:
            names = {}
            self._index[id(code)] = names
            self._kept.append(code)
            self._read(code, names, [0], 0)
        return names

    def _read(self, code, names, budget, depth):
        if time.monotonic() > self.deadline:
            return
        # Not imported here: that could run code of the host and wait for a lock.
        get_instructions = module_value('dis', 'get_instructions')
        if get_instructions is None:
            return
        line, loads, stores, adds = code.co_firstlineno, [], [], False
        for instruction in get_instructions(code):
            budget[0] += 1
            if budget[0] > _INSTRUCTIONS_LIMIT:
                break
            # 3.13 has line_number on every instruction; before, the first of a line carries it.
            now = getattr(instruction, 'line_number', instruction.starts_line) or line
            if now != line:
                self._flush(code, line, loads, stores, adds, names)
                line, loads, stores, adds = now, [], [], False
            name, value = instruction.opname, instruction.argval
            if name == 'STORE_SUBSCR' or (value.__class__ is str and value in _ADDING):
                adds = True
            elif value.__class__ is str or value.__class__ is tuple:
                values = (value,) if value.__class__ is str else value
                if name in _STORES:
                    stores += [entry for entry in values if entry.__class__ is str]
                elif name in _LOADS:
                    loads += [entry for entry in values if entry.__class__ is str]
        self._flush(code, line, loads, stores, adds, names)
        for constant in code.co_consts:
            if type(constant) is types.CodeType and depth < 6:
                self._read(constant, names, budget, depth + 1)

    def _flush(self, code, line, loads, stores, adds, names):
        place = (code.co_filename, line)
        if adds:
            for name in loads:
                names.setdefault(name, ([], []))[0].append(place)
        for name in stores:
            names.setdefault(name, ([], []))[1].append(place)
