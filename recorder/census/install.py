"""Runs first, in a pending call of the interpreter: arranges for the moments at which a census is taken.

The recorder puts into this namespace: _native_begin(trigger), true when a census is wanted now;
_native_emit(bytes), which takes a finished one; _native_failed(text); _sources, the other files of the census,
compiled only when the first one is taken; _budget in seconds; _signal, a number or 0; _automatic, a number: may
the census choose moments by itself.
"""
import atexit
import gc
import os
import sys
import time

# Values of Census.Trigger in trace.proto.
(TRIGGER_EXIT, TRIGGER_OUT_OF_MEMORY, TRIGGER_GROWTH, TRIGGER_SIGNAL, TRIGGER_REQUEST, TRIGGER_COLLECTION,
 TRIGGER_RETURN) = range(1, 8)

# What moments that the census chose itself may cost in all: half a second, and one percent of the time.
_ALLOWANCE, _SHARE = 0.5, 0.01

# A program that catches out-of-memory errors may meet thousands; after these, one a minute is described.
_OOM_ALWAYS, _OOM_INTERVAL = 3, 60.0
_state = {'busy': False, 'collector': True, 'observing': False, 'oom': 0, 'last_oom': 0.0, 'signal': False, 'main': None, 'started': time.monotonic(), 'spent': 0.0,
          'last': 0.0, 'watched': [], 'tool': -1}


def report(trigger):
    """Takes a census and hands it over. Returns seconds spent."""
    if _state['busy'] or not _native_begin(trigger):
        return 0.0
    started = time.monotonic()
    _state['collector'] = gc.isenabled()
    _state['busy'] = True
    compiler = _pause_compiler()
    try:
        while _sources:
            name, text = _sources[0]
            exec(compile(text, name, 'exec'), globals())
            del _sources[0]
        _native_emit(encode(take(_budget, _state['main']), trigger))
    except Exception as error:
        _native_failed(type(error).__name__)
    finally:
        _state['busy'] = False
        _resume_compiler(compiler)
    observe_out_of_memory()
    _state['last'] = time.monotonic() - started
    _state['spent'] += _state['last']
    return _state['last']


def _pause_compiler():
    """torch.compile looks at every frame that begins while it has a hold on the thread, and compiles it unless it knows
    the file. Functions of the standard library that the census calls would be. What torch._dynamo.disable() calls
    (torch/_dynamo/eval_frame.py since 2.0); returns (function, what was set) to put back, or None."""
    module = sys.modules.get('torch._C._dynamo.eval_frame', None)
    if type(module) is not type(sys):
        return None
    change = vars(module).get('set_eval_frame', None)
    if type(change) is not type(len):
        return None
    try:
        return change, change(None)
    except Exception:
        return None


def _resume_compiler(paused):
    if paused is not None and paused[1] is not None:
        paused[0](paused[1])


def _after_fork():
    """In a child that another thread forked in the middle of a census: nobody goes on with it there."""
    if _state['busy']:
        _state['busy'] = False
        if _state['collector']:
            gc.enable()


def _affordable():
    elapsed = time.monotonic() - _state['started']
    return _state['spent'] + _state['last'] <= _ALLOWANCE + _SHARE * elapsed


def observe_out_of_memory():
    """Has PyTorch call us before it raises: the frames that lead to the failure are still there then."""
    if _state['observing']:
        return
    cuda, c = sys.modules.get('torch.cuda', None), sys.modules.get('torch._C', None)
    if type(cuda) is not type(sys) or type(c) is not type(sys):
        return
    # Attaching an observer would initialize CUDA in a process that has not done so.
    attach = vars(c).get('_cuda_attach_out_of_memory_observer', None)
    if attach is None or vars(cuda).get('_initialized', None) is not True:
        return
    try:
        attach(_out_of_memory)
        _state['observing'] = True
    except Exception:
        _state['observing'] = True  # not in this build of torch


def _out_of_memory(*_):
    now = time.monotonic()
    if _state['oom'] >= _OOM_ALWAYS and now - _state['last_oom'] < _OOM_INTERVAL:
        return
    _state['oom'] += 1
    _state['last_oom'] = now
    report(TRIGGER_OUT_OF_MEMORY)


def _at_exit():
    if _before_collection in gc.callbacks:
        gc.callbacks.remove(_before_collection)
    report(TRIGGER_EXIT)


def _on_signal(number, frame):
    report(TRIGGER_SIGNAL)


def _main_code():
    """The body of the main program, while it runs: the lines that store into its globals are told from it."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    name = frame.f_globals.get('__name__', None)
    return frame.f_code if type(name) is str and name == '__main__' and frame.f_code.co_name == '<module>' else None


def _before_collection(phase, info):
    """What only the cyclic collector frees can be seen until a full collection begins. Before 3.12 an automatic
    one may begin in the middle of any C function; only one that the program asks for is a safe point then."""
    if phase != 'start' or info.get('generation') != 2 or _state['busy']:
        return
    if (sys.version_info >= (3, 12) or not gc.isenabled()) and _affordable():
        report(TRIGGER_COLLECTION)


def _is_of_the_program(frame):
    """Not a library's: the script itself, or a module outside of where packages are installed."""
    name = frame.f_globals.get('__name__', None)
    file = frame.f_code.co_filename
    if type(name) is not str or frame.f_globals is globals():
        return False
    if name == '__main__':
        return True
    return (name.partition('.')[0] not in ('torch', 'jax', 'cupy', 'importlib', 'runpy') and not file.startswith('<')
            and '/site-packages/' not in file and '/dist-packages/' not in file and '/lib/python3' not in file)


def _watch_return():
    """Has the interpreter (3.12 and later) tell when the outermost function that is running now, such as main(),
    returns: its locals are about to go, and at exit nobody could tell what they held."""
    monitoring = getattr(sys, 'monitoring', None)
    if monitoring is None or len(_state['watched']) >= 8:
        return
    frame, outermost = sys._getframe(), None
    while frame is not None:
        if frame.f_code.co_flags & 1 and _is_of_the_program(frame):  # CO_OPTIMIZED: a function
            outermost = frame.f_code
        frame = frame.f_back
    if outermost is None or any(code is outermost for code in _state['watched']):
        return
    if _state['tool'] < 0:
        # The numbers that the documentation leaves to anybody.
        for tool in (4, 3):
            if monitoring.get_tool(tool) is None:
                monitoring.use_tool_id(tool, 'gpumemtrace')
                monitoring.register_callback(tool, monitoring.events.PY_RETURN, _returned)
                _state['tool'] = tool
                break
        else:
            return
    _state['watched'].append(outermost)
    monitoring.set_local_events(_state['tool'], outermost, monitoring.events.PY_RETURN)


def _returned(code, offset, value):
    monitoring = sys.monitoring
    if _affordable() and not _state['busy']:
        report(TRIGGER_RETURN)
        if _affordable():
            return None
    monitoring.set_local_events(_state['tool'], code, 0)
    return monitoring.DISABLE


def install():
    """True when nothing is left to be arranged later."""
    if not _state.get('registered'):
        # Last registered, first called: before any framework tears itself down.
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork)
        _state['main'] = _main_code()
        if _automatic:
            gc.callbacks.append(_before_collection)
        _state['registered'] = True
    if _signal and not _state['signal']:
        import signal
        try:
            # Only a signal that nobody uses; a handler of the host stays what it is.
            if signal.getsignal(_signal) is signal.SIG_DFL:
                signal.signal(_signal, _on_signal)
        except Exception:
            _native_failed('signal')
        _state['signal'] = True
    observe_out_of_memory()
    if _automatic:
        try:
            _watch_return()
        except Exception:
            _native_failed('monitoring')
    return _state['observing']
