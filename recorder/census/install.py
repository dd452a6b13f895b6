"""Runs first, in a pending call of the interpreter: arranges for the moments at which a census is taken.

The recorder puts into this namespace: _native_begin(trigger), true when a census is wanted now;
_native_emit(bytes), which takes a finished one; _sources, the other files of the census, compiled only when
the first one is taken; _budget in seconds; _signal, a number or 0.
"""
import atexit
import sys
import time

TRIGGER_EXIT, TRIGGER_OUT_OF_MEMORY, TRIGGER_GROWTH, TRIGGER_SIGNAL, TRIGGER_REQUEST = range(1, 6)

# A program that catches out-of-memory errors may meet thousands; after these, one a minute is described.
_OOM_ALWAYS, _OOM_INTERVAL = 3, 60.0
_state = {'busy': False, 'observing': False, 'oom': 0, 'last_oom': 0.0, 'signal': False, 'main': None}


def report(trigger):
    """Takes a census and hands it over. Returns seconds spent."""
    if _state['busy'] or not _native_begin(trigger):
        return 0.0
    started = time.monotonic()
    _state['busy'] = True
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
    observe_out_of_memory()
    return time.monotonic() - started


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


def install():
    """True when nothing is left to be arranged later."""
    if not _state.get('registered'):
        # Last registered, first called: before any framework tears itself down.
        atexit.register(_at_exit)
        _state['main'] = _main_code()
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
    return _state['observing']
