"""What a capture costs under this interpreter, with 20 Python frames.

usage: python_stacks_benchmark.py PROBE.so [BATCHES]
"""
import ctypes
import sys

probe = ctypes.CDLL(sys.argv[1])
probe.probe_benchmark.restype = ctypes.c_double
probe.probe_prepare()
batches = int(sys.argv[2]) if len(sys.argv) > 2 else 2000


def down(depth):
    if depth:
        return down(depth - 1)
    python = probe.probe_benchmark(batches, 0, 256)
    native = probe.probe_benchmark(batches, 1, 0)
    both = probe.probe_benchmark(batches, 1, 256)
    full = probe.probe_benchmark(batches, 2, 256)
    return python, native, both, full


print("%d.%d: python %.0f ns, native to python %.0f ns, both %.0f ns, with full native %.0f ns" % (
    sys.version_info[:2] + down(18)))
