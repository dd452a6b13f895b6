"""Executes the census's files in one namespace, as the recorder does inside a traced process.

GPUMEMTRACE_TEST_HEAP names the library with the walk in C (heap_library.cc); without it the census walks in Python.
"""
import ctypes
import os

FILES = ('objects.py', 'heap.py', 'tensors.py', 'naming.py', 'stores.py', 'paths.py', 'census.py', 'encode.py')
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', '..', 'recorder', 'census')


def read(name):
    with open(os.path.join(FOLDER, name), encoding='utf-8') as source:
        return source.read()


def title(name):
    """The file name that the recorder gives to the code (embed.cmake)."""
    return '<frozen importlib.gpumemtrace %s>' % name


def native():
    """What the recorder would put into the namespace for walking in C: {} where it would leave that out."""
    path = os.environ.get('GPUMEMTRACE_TEST_HEAP')
    if not path:
        return {}
    library = ctypes.PyDLL(path)
    if not library.gpumemtrace_test_prepare():
        raise AssertionError('the walk in C does not know this interpreter')
    result = {}
    for name in ('select', 'walk', 'hidden'):
        function = getattr(library, 'gpumemtrace_test_' + name)
        function.argtypes, function.restype = [ctypes.py_object], ctypes.py_object
        result['_native_' + name] = function
    return result


def load(in_c=True):
    namespace = {'__name__': 'gpumemtrace_census', '__builtins__': __builtins__}
    if in_c:
        namespace.update(native())
    for name in FILES:
        exec(compile(read(name), title(name), 'exec'), namespace)
    return namespace
