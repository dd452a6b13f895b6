"""A JAX program that writes JAX's own memory numbers to PREFIX.<pid>.json: python3 jax_mix.py PREFIX
The allocator is chosen by the environment: XLA_PYTHON_CLIENT_PREALLOCATE, XLA_PYTHON_CLIENT_ALLOCATOR."""
import json
import os
import sys

import jax
import jax.numpy as jnp


@jax.jit
def step(w, x):
    h = jnp.tanh(x @ w)
    return w - 1e-3 * (x.T @ h), h


w = jnp.eye(1024, dtype=jnp.float32)
kept, sizes = [], []
for i in range(30):
    x = jnp.full((256 + 16 * i, 1024), 0.25, dtype=jnp.float32)
    w, h = step(w, x)
    if i % 3 == 0:
        kept.append(h)
        sizes.append(h.nbytes)
w.block_until_ready()
hold = [jax.device_put(jnp.zeros((64 << 20,), dtype=jnp.uint8)) for _ in range(4)]
for h in hold:
    h.block_until_ready()
stats = jax.local_devices()[0].memory_stats() or {}
with open(f"{sys.argv[1]}.{os.getpid()}.json", "w") as f:
    json.dump({"jax": jax.__version__, "stats": {k: v for k, v in stats.items() if isinstance(v, int)},
               "known_live": sum(sizes) + sum(h.nbytes for h in hold) + w.nbytes}, f)
print("kept", len(kept), "checksum", float(w.sum()))
