"""Executes the census's files in one namespace, as the recorder does inside a traced process."""
import os

FILES = ('objects.py', 'heap.py', 'tensors.py', 'naming.py', 'stores.py', 'census.py', 'encode.py')
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', '..', 'recorder', 'census')


def load():
    namespace = {'__name__': 'gpumemtrace_census', '__builtins__': __builtins__}
    for name in FILES:
        path = os.path.join(FOLDER, name)
        if os.path.exists(path):
            with open(path, encoding='utf-8') as source:
                exec(compile(source.read(), '<gpumemtrace ' + name + '>', 'exec'), namespace)
    return namespace
