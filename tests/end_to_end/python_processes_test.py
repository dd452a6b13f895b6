"""Python jobs of several processes and threads, and what a report says of each."""

import json
import os
import shutil
import subprocess
import unittest

import harness
from harness import EndToEndTest

PYTHONS = harness.interpreters()

MULTIPROCESSING = '''
import multiprocessing, os, sys

def work(n):
    import torch
    kept = [torch.empty(1000 * n, device="cuda") for _ in range(50)]
    print("worker", n, len(kept), torch.cuda.memory_allocated(), flush=True)
    return n

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for n in range(1, 4):
        p = context.Process(target=work, args=(n,))
        p.start()
        p.join()
        print("exit code", p.exitcode, flush=True)
    work(9)
'''

THREADS = '''
import threading
import torch

def leaf(n):
    return torch.empty(n, device="cuda")  # LEAF

def generator(n):
    for _ in range(3):
        yield leaf(n)

async def coroutine(n):
    return leaf(n)

def work(n, out):
    out.extend(generator(n))
    c = coroutine(n)
    try:
        c.send(None)
    except StopIteration as e:
        out.append(e.value)

kept = []
threads = [threading.Thread(target=work, args=(1000, kept)) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print(len(kept), torch.cuda.memory_allocated())
import os
os._exit(5)
'''

BACKWARD = '''
import torch
from torch import nn

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

net = nn.Linear(64, 64).to("cuda")
for p in net.parameters():
    p.grad = torch.zeros_like(p)
torch.cuda.reset_peak_memory_stats()
for step in range(40):
    x = torch.randn(4096, 64, device="cuda")
    y = net(x)  # FORWARD
    z = Square.apply(y)
    z.mean().backward()
    del x, y, z
torch.cuda.synchronize()
print("peak", torch.cuda.max_memory_allocated())
'''

# What conda ships: an interpreter whose libraries are found beside it, wherever the whole folder was put.
LAUNCHER = "int Py_BytesMain(int, char**); int main(int argc, char** argv) { return Py_BytesMain(argc, argv); }"
LAYOUT = """import json, os, sys, sysconfig
print(json.dumps({"name": "python%d.%d" % sys.version_info[:2], "library": os.path.dirname(os.__file__),
                  "folder": sysconfig.get_config_var("LIBDIR"), "executable": os.path.realpath(sys.executable)}))"""

SPAWNING = '''
import os, subprocess, sys
import torch
kept = torch.empty(5000, device="cuda")
print(subprocess.run(["/bin/echo", "child"], stdout=subprocess.PIPE).stdout)
print(subprocess.run([sys.executable, "-c", "print(1 + 1)"], stdout=subprocess.PIPE, close_fds=True).stdout)
print(os.system("exit 3"))
print(os.popen("echo popen").read())
pid = os.fork()
if pid == 0:
    os._exit(4)
print(os.waitpid(pid, 0)[1] >> 8)
os.execv("/bin/echo", ["echo", "replaced"])
'''


class PythonProcesses(EndToEndTest):
    def script(self, text):
        path = os.path.join(self.folder, "program.py")
        with open(path, "w") as f:
            f.write(text)
        return path

    def test_multiprocessing(self):
        for turn, (version, python) in enumerate(PYTHONS):
            # Each interpreter forks and does one of the others.
            for method in ("fork", ("spawn", "forkserver")[turn % 2]):
                with self.subTest(python=version, method=method):
                    self.setUp()
                    result = self.same([python, self.script(MULTIPROCESSING), method])
                    self.assertEqual(result.out.count("exit code 0"), 3, result.out + result.raw_err)
                    # One trace a process that used CUDA; the fork server itself leaves none.
                    self.assertEqual(len(result.traces()), 4, result.raw_err)
                    for trace in result.traces():
                        self.assert_consistent(self.analyze(trace))

    def test_fork_with_cuda_up(self):
        program = self.script("import os, torch\nkept = torch.empty(1000, device='cuda')\n"
                              "for i in range(10):\n    pid = os.fork()\n    if pid == 0:\n        os._exit(i)\n"
                              "    print(os.waitpid(pid, 0)[1] >> 8)\n    more = torch.empty(2000, device='cuda')\n")
        result = self.same([PYTHONS[-1][1], program])
        self.assertEqual(len(result.traces()), 1, result.raw_err)
        self.assert_consistent(self.one_report(result))

    def test_stacks_of_threads_generators_coroutines(self):
        for version, python in PYTHONS:
            with self.subTest(python=version):
                self.setUp()
                self.lines_are_found(python)

    def lines_are_found(self, python):
        path = self.script(THREADS)
        result = self.same([python, path])
        self.assertEqual(result.code, 5, result.raw_err)
        report = self.one_report(result)
        self.assert_consistent(report)
        with open(path) as f:
            leaf = next(n for n, line in enumerate(f, 1) if "# LEAF" in line)
        live = next(e for e in report["live_at_end"] if e["level"] == "blocks")
        self.assertEqual((live["bytes"], live["count"]), (32 * 4096, 32))
        lines = {(os.path.basename(l.get("file") or ""), l.get("line")): l["count"] for l in live["by_line"]}
        self.assertEqual(lines, {("program.py", leaf): 32})

    def moved(self, python, shared):
        """A prefix elsewhere with this interpreter's own library; the path of its python. None where it does not fit."""
        layout = json.loads(subprocess.run([python, "-c", LAYOUT], stdout=subprocess.PIPE, check=True).stdout.decode())
        links = subprocess.run(["ldd", layout["executable"]], stdout=subprocess.PIPE).stdout.decode()
        if ("libpython" in links) != shared:
            return None
        folder = os.path.join(self.folder, "prefix")
        for part in ("bin", "lib"):
            os.makedirs(os.path.join(folder, part))
        os.symlink(layout["library"], os.path.join(folder, "lib", layout["name"]))
        target = os.path.join(folder, "bin", layout["name"])
        if not shared:
            shutil.copy(layout["executable"], target)
            return target
        library = "lib%s.so" % layout["name"]
        shutil.copy(os.path.realpath(os.path.join(layout["folder"], library)), os.path.join(folder, "lib", library + ".1.0"))
        os.symlink(library + ".1.0", os.path.join(folder, "lib", library))
        with open(os.path.join(folder, "launcher.c"), "w") as f:
            f.write(LAUNCHER)
        subprocess.run(["cc", os.path.join(folder, "launcher.c"), "-o", target, "-L", os.path.join(folder, "lib"),
                        "-l" + layout["name"], "-Wl,-rpath,$ORIGIN/../lib,--disable-new-dtags"], check=True)
        return target

    def test_interpreters_of_a_moved_prefix(self):
        """An interpreter that holds libpython, and one that finds it by a RPATH of its own, in a folder that was moved."""
        missing = []
        for shared in (False, True):
            with self.subTest(shared=shared):
                for version, python in reversed(PYTHONS):
                    self.setUp()
                    moved = self.moved(python, shared)
                    if moved is not None:
                        break
                else:
                    missing.append("no interpreter %s libpython is installed" % ("linked to" if shared else "that holds"))
                    continue
                prefix = subprocess.run([moved, "-c", "import sys; print(sys.prefix)"], stdout=subprocess.PIPE).stdout.decode()
                self.assertEqual(prefix.strip(), os.path.join(self.folder, "prefix"))
                self.lines_are_found(moved)
        if len(missing) == 2:
            self.skipTest("; ".join(missing))

    def test_backward_carries_the_forward_line(self):
        path = self.script(BACKWARD)
        result = self.same([PYTHONS[-1][1], path])
        report = self.one_report(result)
        self.assert_consistent(report)
        with open(path) as f:
            forward = next(n for n, line in enumerate(f, 1) if "# FORWARD" in line)
        text = str(report)
        self.assertIn("program.py", text)
        self.assertIn("backward", text)
        self.assertTrue(any(share.get("line") == forward for share in report["peak"]["by_line"]), report["peak"])

    def test_spawning(self):
        result = self.same([PYTHONS[-1][1], self.script(SPAWNING)])
        self.assertIn("replaced", result.out)
        self.assertEqual(len(result.traces()), 1, result.raw_err)
        self.one_report(result)

    def test_interpreter_without_torch(self):
        result = self.same([PYTHONS[-1][1], "-c", "import json, ctypes, threading; print('quiet')"])
        self.assertEqual((result.traces(), result.said), ([], []))


if __name__ == "__main__":
    harness.main()
