from torch import _C


def _device(device):
    if device is None:
        return _C._cuda_getDevice()
    if isinstance(device, int):
        return device
    text = str(device)
    return int(text.split(":")[1]) if ":" in text else 0


def memory_stats(device=None):
    return _C._cuda_memoryStats(_device(device))


def memory_allocated(device=None):
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device=None):
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device=None):
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device=None):
    return memory_stats(device)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device=None):
    _C._cuda_resetPeakMemoryStats(_device(device))


def empty_cache():
    _C._cuda_emptyCache()


def mem_get_info(device=None):
    return _C._cuda_memGetInfo()
