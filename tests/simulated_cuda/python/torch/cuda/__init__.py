from torch import _C
from torch import OutOfMemoryError  # noqa: F401
from torch.cuda import nvtx  # noqa: F401
from torch.cuda.graphs import CUDAGraph, graph  # noqa: F401
from torch.cuda.memory import (  # noqa: F401
    empty_cache, max_memory_allocated, max_memory_reserved, mem_get_info, memory_allocated, memory_reserved,
    memory_stats, reset_peak_memory_stats)
from torch.cuda.streams import Event, Stream, current_stream, default_stream, stream  # noqa: F401

_initialized = True


def is_available():
    return _C._cuda_getDeviceCount() > 0


def is_initialized():
    return True


def device_count():
    return _C._cuda_getDeviceCount()


def set_device(device):
    _C._cuda_setDevice(device)


def current_device():
    return _C._cuda_getDevice()


def synchronize(device=None):
    _C._cuda_synchronize()


def get_device_name(device=None):
    return "Simulated GPU"
