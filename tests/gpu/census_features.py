#!/usr/bin/env python3
"""What a census says, and what it leaves alone, on a real card where no test without one can tell: under torch.compile
(with and without graph breaks), for JAX arrays in a preallocated pool, and for gradients that are gone at every census.

    python3 tests/gpu/census_features.py --dist dist --out OUT         (half a minute, one GPU, 3 GiB of its memory)

Each program runs with and without the shim, all of them at a time. Exit code 0: the same output with and without it (so
the same number of compiled graphs), every leak with the holder that its program names, and the peak by role as the
program counted it.
"""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import common

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20
outputs, history = [], []  # what the programs below keep by mistake


def api():
    """Asks for a census between two bytecodes; does nothing without the shim."""
    sys.path.insert(0, str(ROOT / "interpose/api"))
    import gpumemtrace

    def ask():
        gpumemtrace.census()
        for _ in range(2000):
            pass
    return ask


def compiled(backend):
    """Trains a compiled model and keeps every output. The region is left and entered again in each step (print of a number
    breaks the graph), and a census is asked for in the middle of it."""
    import torch
    # Opaque in both runs: without the shim the API's functions do nothing, and the compiler would compile that nothing.
    ask = torch.compiler.disable(api())
    torch.manual_seed(0)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 512)

        def forward(self, x):
            h = torch.relu(self.up(x))
            torch._dynamo.graph_break()
            between(h)
            return x + self.down(h)

    def between(h):
        calls.append(h.shape[0])
        if len(calls) % 10 == 3:
            ask()

    calls = []
    model = torch.compile(Block().to("cuda"), backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(30):
        y = model(torch.randn(256, 512, device="cuda"))
        outputs.append(y)  # LEAK
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    from torch._dynamo.utils import counters
    print("graphs", counters["stats"]["unique_graphs"], "calls", len(calls), "breaks", sum(counters["graph_break"].values()),
          "loss %.6f" % float(y.square().mean()))


def jax_pool():
    """Keeps two arrays a step in a list of pairs, in a pool that is taken at once."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.01")
    import jax
    import jax.numpy as jnp

    @jax.jit
    def step(w, x):
        act = jnp.tanh(x * w)
        return w * 0.999, act, act.mean(axis=0)

    def main():
        w, x = jnp.ones((512, 1024)), jnp.full((512, 1024), 0.5)
        for _ in range(40):
            w, act, mean = step(w, x)
            history.append((act, mean))  # LEAK
        w.block_until_ready()
        print("kept", sum(part.nbytes for pair in history for part in pair))
    main()


def gradients():
    """Adam over float32 parameters; no census is taken but at exit, when the gradients are gone. Prints what each role had at
    the highest moment, which is inside the optimizer's step."""
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)]).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    for _ in range(6):
        model(torch.randn(64, 2048, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    parameters = sum(p.numel() * 4 for p in model.parameters())
    state = sum(t.numel() * 4 for s in optimizer.state.values() for t in s.values()
                if getattr(t, "is_cuda", False) and t.dim())
    print("roles " + json.dumps({"parameters": parameters, "gradients": parameters, "optimizer state": state}))
    return model, optimizer


PROGRAMS = {"compile_inductor": lambda: compiled("inductor"), "compile_aot_eager": lambda: compiled("aot_eager"), "jax": jax_pool,
            "gradients": gradients}
EXTRA = {"gradients": {"GPUMEMTRACE_CENSUS": "exit"}}


def line_of(function, mark="# LEAK"):
    import inspect
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if mark in line)


def holder_row(report, function, path):
    """(holder's text, all right): the first leak is told with the holder on the marked line."""
    for growth in report["growth"]:
        if growth["kind"] != "leak":
            continue
        for held in growth.get("holders", []):
            if path in held["path"] and line_of(function) in [held["line"]] + held.get("more_lines", []):
                return f"{held['text']}, stored at line {held['line']}, {held['tensors']} tensors", True
    return "; ".join(held["text"] for growth in report["growth"] for held in growth.get("holders", [])[:2]) or "nobody", False


def judge(name, report):
    if name.startswith("compile"):
        text, right = holder_row(report, compiled, "outputs")
        asked = [census for census in report["censuses"] if census["trigger"] == "request"]
        return text + f"; {len(asked)} censuses inside the compiled region", right and len(asked) >= 1
    if name == "jax":
        text, right = holder_row(report, jax_pool, "history")
        leak = next((growth for growth in report["growth"] if growth["kind"] == "leak"), {})
        want = 512 * 1024 * 4 + 1024 * 4
        rate = leak.get("bytes_per_step") or 0
        return text + f"; {rate / MIB:.3f} MiB per step, by {leak.get('bytes_from', 'the driver')}", right and abs(rate - want) < want / 10
    return "", True


def judge_roles(report, stdout):
    want = json.loads(stdout.split("roles ", 1)[1].split("\n")[0])
    peak = max(report["peak_roles"], key=lambda peak: peak["from_census"])
    got = peak["roles"]
    text = ", ".join(f"{role} {size / MIB:.1f} MiB" for role, size in got.items() if size)
    right = all(got[role] == size for role, size in want.items()) and sum(got.values()) == peak["bytes"]
    return text + f"; of {peak['bytes'] / MIB:.1f} MiB {100 * peak['from_census'] / peak['bytes']:.0f} % told by a census", right


def main():
    if "--program" in sys.argv:
        globals()["kept"] = PROGRAMS[sys.argv[sys.argv.index("--program") + 1]]()  # what an optimizer holds, until the exit
        return 0
    options = common.arguments(__doc__.split("\n\n")[0]).parse_args()
    shim, analyzer = common.find_products(options.dist)
    work = pathlib.Path(options.work) / "census_features"
    names = [name for name in PROGRAMS if common.chosen(name, options.only)]

    def one(job):
        name, with_shim = job
        env = dict(EXTRA.get(name, {}) if with_shim else {}, TORCHINDUCTOR_CACHE_DIR=str(work / f"cache_{name}_{with_shim}"))
        return common.run([sys.executable, str(pathlib.Path(__file__).resolve()), "--program", name], folder=work,
                          name=f"{name}.{'with' if with_shim else 'without'}", shim=shim if with_shim else None, env=env,
                          timeout=options.timeout)
    jobs = [(name, with_shim) for name in names for with_shim in (True, False)]
    done = dict(zip(jobs, common.in_parallel(one, jobs, len(jobs))))
    rows, all_right = [], True
    for name in names:
        run, plain = done[name, True], done[name, False]
        if isinstance(run, Exception) or isinstance(plain, Exception):
            rows.append([name, f"{run} {plain}", "", "NO", ""])
            all_right = False
            continue
        same = run.code == plain.code == 0 and run.stdout == plain.stdout
        report, error = common.analyze_json(analyzer, run.trace) if run.trace else (None, "no trace; " + common.last_words(run.stderr))
        text, right = (error, False)
        if report is not None:
            try:
                text, right = judge_roles(report, run.stdout) if name == "gradients" else judge(name, report)
            except (KeyError, IndexError, ValueError) as error:  # a program that failed, a trace that was refused
                rows.append([name, run.stdout.strip()[-110:], f"{type(error).__name__} {error}; {common.last_words(run.stderr)}", "NO", ""])
                all_right = False
                continue
            partial = [census["partial"] for census in report["censuses"] if census["partial"]]
            took = max([census["duration_seconds"] for census in report["censuses"]], default=0)
            text += f"; {len(report['censuses'])} censuses, the longest {took:.2f} s" + (f", partial: {partial}" if partial else "")
        output = run.stdout.strip().replace("\n", " ")[:110]
        rows.append([name, output if same else f"DIFFERS ({run.code}, {plain.code}): {output} / {plain.stdout.strip()[:110]} "
                     + common.last_words(run.stderr), text, "yes" if right and same else "NO"])
        all_right = all_right and right and same
        rows[-1].append(f"{run.seconds:.1f} / {plain.seconds:.1f}")
    facts = common.machine()
    table = ["# Censuses under torch.compile, of JAX's pool, and of gradients that are gone", "",
             "Repeat with `python3 tests/gpu/census_features.py --dist dist --out OUT`.", "",
             "; ".join(f"{k} {v}" for k, v in facts.items() if v), "",
             common.markdown_table(["program", "its output, the same without the shim", "the report", "right", "seconds with / without"], rows)]
    print("\n".join(table))
    common.write(options.out, "census_features.md", "\n".join(table) + "\n")
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
