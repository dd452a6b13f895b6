"""Executes the census's files in one namespace, as the recorder does inside a traced process."""
import os

FILES = ('objects.py', 'heap.py', 'tensors.py', 'naming.py', 'stores.py', 'census.py', 'encode.py')
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', '..', 'recorder', 'census')


def read(name):
    with open(os.path.join(FOLDER, name), encoding='utf-8') as source:
        return source.read()


def load():
    namespace = {'__name__': 'gpumemtrace_census', '__builtins__': __builtins__}
    for name in FILES:
        exec(compile(read(name), '<gpumemtrace ' + name + '>', 'exec'), namespace)
    return namespace
