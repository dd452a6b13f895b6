"""Asks the interpreter for the line of every instruction of a part of its standard library and lets the analyzer's
decoder answer the same questions.

usage: python_lines_test.py CHECKER
"""
import ctypes
import glob
import os
import subprocess
import sys

line_of = ctypes.pythonapi.PyCode_Addr2Line
line_of.argtypes = [ctypes.py_object, ctypes.c_int]
line_of.restype = ctypes.c_int

SOURCES = 60


def code_objects(code):
    yield code
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from code_objects(constant)


def table(code):
    return code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab


def questions(sources):
    version = sys.hexversion >> 16
    for path in sources:
        with open(path, "rb") as file:
            source = file.read()
        try:
            module = compile(source, path, "exec")
        except (SyntaxError, ValueError):
            continue
        for code in code_objects(module):
            fields = [version, code.co_firstlineno, table(code).hex() or "-"]
            for offset in range(0, len(code.co_code), 2):
                fields.append("%d:%d" % (offset, line_of(code, offset)))
            yield " ".join(str(field) for field in fields)


def main():
    folder = os.path.dirname(os.__file__)
    # Files of all sizes: long functions have long tables.
    sources = sorted(glob.glob(os.path.join(folder, "*.py")), key=os.path.getsize)
    sources = sources[:: max(1, len(sources) // SOURCES)] + sources[-5:]
    text = "\n".join(questions(sources)) + "\n"
    return subprocess.run([sys.argv[1]], input=text.encode(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
