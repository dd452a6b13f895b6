"""Names steps and phases of a program in its gpumemtrace trace.

Without the shim (LD_PRELOAD=libgpumemtrace.so) every function does nothing, so a program may keep the calls:

    import gpumemtrace
    for step, batch in enumerate(loader):
        gpumemtrace.step(step)
        with gpumemtrace.phase("forward"):
            ...
"""

import contextlib
import ctypes

__all__ = ["active", "census", "mark", "phase", "pop", "push", "step"]


def _find(name, argument_types, result_type=None, library=ctypes.CDLL):
    try:
        function = getattr(library(None), name)
    except (AttributeError, OSError):
        return None
    function.argtypes = argument_types
    function.restype = result_type
    return function


_mark = _find("gpumemtrace_mark", [ctypes.c_char_p])
_step = _find("gpumemtrace_step", [ctypes.c_uint64])
_push = _find("gpumemtrace_push", [ctypes.c_char_p])
_pop = _find("gpumemtrace_pop", [])
# With the GIL: up to Python 3.11 the interpreter would take the call for another one's that runs meanwhile.
_census = _find("gpumemtrace_census", [], ctypes.c_int, library=ctypes.PyDLL)

_next_step = 0


def _encode(text):
    return str(text).encode("utf-8", "replace")


def active():
    """True when the shim is loaded."""
    return _mark is not None


def mark(text):
    """Names one moment."""
    if _mark is not None:
        _mark(_encode(text))


def step(number=None):
    """A step begins: one iteration of the main loop. Counts by itself when no number is given."""
    global _next_step
    if number is None:
        number = _next_step
    _next_step = number + 1
    if _step is not None:
        _step(number)


def push(text):
    """Begins a range on this thread; ranges nest."""
    if _push is not None:
        _push(_encode(text))


def pop():
    """Ends the range that was begun last on this thread."""
    if _pop is not None:
        _pop()


@contextlib.contextmanager
def phase(text):
    """A range for the length of a with block."""
    push(text)
    try:
        yield
    finally:
        pop()


def census():
    """Asks who holds which tensor, to be answered soon. True when it will be."""
    return _census is not None and bool(_census())
