#!/usr/bin/env python3
"""The recorder's hot path under this interpreter: time of an allocation and of a release with both stacks, Python's, native
ones, none, switched off and without the shim; events a second on 1 … 64 threads; short-lived threads; bytes an event.

    hot_path_benchmark.py --shim libgpumemtrace.so --library hot_path_benchmark.so --simulated FOLDER/lib [--smoke]

Every variant is a process of its own (the options are read once), whose trace is weighed and thrown away. --smoke runs each
benchmark once and fails when one does not run or leaves no trace."""
import argparse
import ctypes
import glob
import os
import subprocess
import sys
import tempfile

VARIANTS = {  # name: (shim?, environment, benchmarks)
    "without": (False, {}, "allocate|free|/threads"),
    "off": (True, {"GPUMEMTRACE": "0"}, "allocate|free"),
    "none": (True, {"GPUMEMTRACE_STACKS": "none"}, "allocate|free"),
    "native": (True, {"GPUMEMTRACE_STACKS": "native"}, "allocate|free"),
    "python": (True, {"GPUMEMTRACE_STACKS": "python"}, "allocate|free"),
    "both": (True, {}, "allocate|free|/threads|short_lived"),
}


def deep(frames, function):
    return deep(frames - 1, function) if frames else function()


def child(options):
    # PyDLL: the interpreter's lock is held, as in most calls of PyTorch.
    library = ctypes.PyDLL(options.library)
    if options.steps:
        print(deep(17, lambda: library.run_steps(options.steps, options.child == "changing")))
        return
    shim, _, benchmarks = VARIANTS[options.child]
    seconds, threads, short_lived = (0.0, 4, 64) if options.smoke else (options.seconds, 64, 10000)
    deep(17, lambda: library.run_benchmarks(options.child.encode(), benchmarks.encode(), ctypes.c_double(seconds), threads, short_lived))


def start(options, name, shim, env, folder, *arguments):
    merged = {k: v for k, v in os.environ.items() if not k.startswith("GPUMEMTRACE") and k != "LD_PRELOAD"}
    merged.update(env)
    merged["LD_LIBRARY_PATH"] = options.simulated
    merged.setdefault("GPUMEMTRACE_OUT", os.path.join(folder, name + ".pb"))
    merged.update(GPUMEMTRACE_QUIET="1", GPUMEMTRACE_CENSUS="off")
    if shim:
        merged["LD_PRELOAD"] = options.shim
    return subprocess.run([sys.executable, os.path.abspath(__file__), "--child", name, "--library", options.library, *arguments],
                          env=merged, stdout=subprocess.PIPE, universal_newlines=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shim")
    parser.add_argument("--library", required=True)
    parser.add_argument("--simulated")
    parser.add_argument("--seconds", type=float, default=1.0, help="for one benchmark")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", action="append", default=[], help="a variant; may be repeated")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options)
    failed = False
    with tempfile.TemporaryDirectory(prefix="gpumemtrace_benchmark_") as folder:
        for name, (shim, env, benchmarks) in VARIANTS.items():
            if options.only and name not in options.only:
                continue
            done = start(options, name, shim, env, folder, "--seconds", str(options.seconds), *(["--smoke"] if options.smoke else []))
            print("\n".join(line for line in done.stdout.split("\n") if line.startswith(name + "/")), flush=True)
            traces = glob.glob(os.path.join(folder, name + "*.pb"))
            expected = shim and env.get("GPUMEMTRACE") != "0"
            if done.returncode != 0 or name + "/allocate" not in done.stdout or bool(traces) != expected:
                print("%s: exit %d, traces %s" % (name, done.returncode, traces), file=sys.stderr)
                failed = True
            for trace in traces:
                os.unlink(trace)
        for name in ("steady", "changing"):
            if options.only and name not in options.only:
                continue
            steps = 20 if options.smoke else 1000
            done = start(options, name, True, {}, folder, "--steps", str(steps))
            trace = os.path.join(folder, name + ".pb")
            if done.returncode != 0 or not os.path.exists(trace):
                print("%s: exit %d" % (name, done.returncode), file=sys.stderr)
                failed = True
                continue
            events = int(done.stdout)
            print("%-40s %d events, %.3f bytes an event" % ("size of a %s loop" % name, events, os.path.getsize(trace) / events), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
