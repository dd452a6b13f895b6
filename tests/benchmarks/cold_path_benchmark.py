#!/usr/bin/env python3
"""What an event costs with cold caches and stacks that change from event to event, in ticks of the processor's counter.

    cold_path_benchmark.py --shim libgpumemtrace.so [--shim OLDER.so] --library cold_path_benchmark.so --simulated FOLDER/lib
                           [--work middle] [--only both] [--rounds 40] [--turns 3] [--many]

512 places: three layers of eight Python functions (--many: of 8, 64 and 512, as many code objects as a large model has) over 14 more
frames, and ten native frames of one of 1024 ways over ctypes.
Between two events the program runs code and touches memory of its own (WORK). Every variant is a process of its own; told is the
least median of its turns, because other programs only make it greater."""
import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile

WORK = {  # name: bytes of code in all and at a time, of data in all and at a time
    "none": (0, 64, 4096, 64),
    "small": (1 << 20, 64 << 10, 4 << 20, 64 << 10),
    "middle": (2 << 20, 128 << 10, 8 << 20, 256 << 10),
    "large": (4 << 20, 512 << 10, 32 << 20, 1 << 20),
}
VARIANTS = {  # name: environment; None = without the shim
    "without": None,
    "off": {"GPUMEMTRACE": "0"},
    "none": {"GPUMEMTRACE_STACKS": "none"},
    "native": {"GPUMEMTRACE_STACKS": "native"},
    "python": {"GPUMEMTRACE_STACKS": "python"},
    "both": {},
}
PLACES = 512


def functions(many):
    """The eight outermost of three layers of functions, each of which chooses one of the next layer by the place."""
    text = []
    if many:
        text += ["def c%d(library, i): library.event(i)" % number for number in range(512)]
        for layer, inner, count in (("b", "c", 64), ("a", "b", 8)):
            for number in range(count):
                text.append("def %s%d(library, i):" % (layer, number))
                text += ["    if i // %d %% 8 == %d: return %s%d(library, i)" % (count, k, inner, number + count * k) for k in range(8)]
        names = {}
        exec(compile("\n".join(text), "functions.py", "exec"), names)
        return [names["a%d" % number] for number in range(8)]
    for layer, divisor, inner in (("c", 1, "library.event(i)"), ("b", 8, "c%d(library, i)"), ("a", 64, "b%d(library, i)")):
        for number in range(8):
            text.append("def %s%d(library, i):" % (layer, number))
            for k in range(8):
                call = inner % ((number + k) % 8) if "%" in inner else inner
                text.append("    if i // %d %% 8 == %d: return %s" % (divisor, k, call))
    names = {}
    exec(compile("\n".join(text), "functions.py", "exec"), names)
    return [names["a%d" % number] for number in range(8)]


def deep(frames, function):
    return deep(frames - 1, function) if frames else function()


def child(options):
    library = ctypes.PyDLL(options.library)
    library.prepare.argtypes = [ctypes.c_size_t] * 4
    library.prepare(*WORK[options.work[0]])
    outermost = functions(options.many)

    def run():
        for turn in range(options.rounds):
            if turn == 2:
                library.measure()
            for i in range(PLACES):
                outermost[i % 8](library, i)

    deep(14, run)
    library.tell(options.child.encode())


def once(options, shim, work, name, folder):
    """{"allocation": median, "release": median} of one process."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUMEMTRACE") and k != "LD_PRELOAD"}
    env.update(VARIANTS[name] or {}, LD_LIBRARY_PATH=options.simulated, GPUMEMTRACE_OUT=os.path.join(folder, "%p.pb"),
               GPUMEMTRACE_QUIET="1", GPUMEMTRACE_CENSUS="off")
    if VARIANTS[name] is not None:
        env["LD_PRELOAD"] = shim
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--child", name, "--library", options.library, "--work", work,
                           "--rounds", str(options.rounds)] + ["--many"] * options.many, env=env, stdout=subprocess.PIPE, universal_newlines=True)
    for trace in os.listdir(folder):
        os.unlink(os.path.join(folder, trace))
    found = dict(re.findall(r"(allocation|release): median (\d+)", done.stdout))
    if done.returncode != 0 or len(found) != 2:
        raise SystemExit("%s: exit %d: %s" % (name, done.returncode, done.stdout))
    return {what: int(ticks) for what, ticks in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shim", action="append", default=[])
    parser.add_argument("--library", required=True)
    parser.add_argument("--simulated")
    parser.add_argument("--work", action="append", choices=WORK, default=[])
    parser.add_argument("--only", action="append", choices=VARIANTS, default=[])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--many", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options)
    with tempfile.TemporaryDirectory(prefix="gpumemtrace_benchmark_") as folder:
        for work in options.work or WORK:
            for name in options.only or VARIANTS:
                least = {}
                for _ in range(options.turns):  # shims in turn, so that what disturbs meets them alike
                    for shim in options.shim:
                        for what, ticks in once(options, shim, work, name, folder).items():
                            least[shim, what] = min(ticks, least.get((shim, what), ticks))
                for shim in options.shim:
                    print("%-8s %-8s allocation %5d  release %5d   %s" % (work, name, least[shim, "allocation"], least[shim, "release"], shim), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
