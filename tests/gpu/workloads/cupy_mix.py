"""A CuPy program that writes CuPy's own memory numbers to PREFIX.<pid>.json: python3 cupy_mix.py PREFIX pool|async|none"""
import json
import os
import sys

import cupy as cp

mode = sys.argv[2]
if mode == "async":
    pool = cp.cuda.MemoryAsyncPool()
    cp.cuda.set_allocator(pool.malloc)
elif mode == "none":
    pool = None
    cp.cuda.set_allocator(None)
else:
    pool = cp.get_default_memory_pool()
keep = []
for i in range(40):
    a = cp.full((256, 256 + i), i, dtype=cp.float32)
    b = a * 2
    if i % 4 == 0:
        keep.append(b)
hold = [cp.zeros(32 << 20, dtype=cp.uint8) for _ in range(4)]
cp.cuda.Device().synchronize()
numbers = {"cupy": cp.__version__, "mode": mode, "known_live": sum(x.nbytes for x in keep + hold) + a.nbytes + b.nbytes * 0}
if mode == "pool":
    numbers.update(pool_used=pool.used_bytes(), pool_total=pool.total_bytes())
with open(f"{sys.argv[1]}.{os.getpid()}.json", "w") as f:
    json.dump(numbers, f)
print("checksum", sum(float(x.sum()) for x in keep))
