"""A census at every moment at which one is taken, and at bad ones, under every interpreter: however the program ends,
on an out-of-memory error, on a signal, when memory grew, on request; in forked children and subinterpreters, from daemon
threads, during another thread's import. The program must do what it does without the shim, and the traces must be
whole."""

import os
import subprocess
import unittest

import harness
from harness import EndToEndTest

API = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "interpose", "api")

COMMON = '''
import atexit, os, sys, threading, time
sys.path.insert(0, %r)
import gpumemtrace
import torch
kept = [torch.nn.Linear(16, 16).to("cuda") for _ in range(5)]
while gpumemtrace.active() and not gpumemtrace.census():
    time.sleep(0.01)  # until the shim knows the interpreter

def ask():
    gpumemtrace.census()
    for _ in range(2000):  # it runs between two bytecodes
        pass
ask()
''' % os.path.abspath(API)

# The thread that asks is the one that makes the recorder start, which has a call of its own waiting in the interpreter
# then; the main thread, which runs such calls, is busy until both have been made.
BUSY = """
import sys, threading, time
sys.path.insert(0, %r)
import gpumemtrace
def work():
    global kept, torch
    import torch
    kept = [torch.empty(1000, device="cuda") for _ in range(7)]
    while gpumemtrace.active() and not gpumemtrace.census():
        time.sleep(0.01)
worker = threading.Thread(target=work)
worker.start()
worker.join()
for _ in range(2000):
    pass
print("end")
""" % os.path.abspath(API)

# Of several atexit callbacks, those that came last run before the census's own.
FINALIZING = COMMON + '''
import builtins
class Late:
    def __del__(self, ask=gpumemtrace.census):
        for _ in range(200):
            ask()
sys.late = builtins.late = Late()
late = Late()
atexit.register(lambda: [ask() for _ in range(5)])
print("end")
'''

DAEMONS = COMMON + '''
def work():
    while True:
        gpumemtrace.census()
        time.sleep(0.01)  # gives the others their turn
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(3):
    ask()
print("end")
'''

FORKED = COMMON + '''
for turn in range(3):
    child = os.fork()
    if child == 0:
        more = torch.empty(1000, device="cuda")
        ask()
        sys.stdout.flush()
        os._exit(turn) if turn else sys.exit(turn)
    print(os.waitpid(child, 0)[1] >> 8)
ask()
print("end")
'''

IMPORTING = COMMON + '''
import _imp
folder = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(folder, "slow.py"), "w") as file:
    file.write("import sys\\nsys.started.set()\\nsys.go_on.wait(60)\\n")
sys.path.insert(0, folder)
sys.started, sys.go_on = threading.Event(), threading.Event()
thread = threading.Thread(target=lambda: __import__("slow"))
thread.start()
sys.started.wait(60)  # it holds its module's lock
_imp.acquire_lock()
ask()
_imp.release_lock()
sys.go_on.set()
thread.join()
print("end")
'''


# Each of these is followed by a line that ends the program in its own way.
ENDING = '''
import os, signal, sys, threading
import torch
kept = [torch.empty(1000, device="cuda") for _ in range(20)]
def fail():
    scratch = [torch.empty(3000, device="cuda") for _ in range(8)]
    raise ValueError("no luck")
print("end", flush=True)
%s
'''
ENDINGS = {
    "return": ("pass", 0, True),
    "sys.exit": ("sys.exit(3)", 3, True),
    "SystemExit with a text": ("raise SystemExit('why')", 1, True),
    "exception": ("fail()", 1, True),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", None, True),
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT)\nfor _ in range(1000): pass", None, True),
    "exit in a thread": ("t = threading.Thread(target=sys.exit)\nt.start()\nt.join()", 0, True),
    "exit while a thread works": ("threading.Thread(target=lambda: [torch.empty(10, device='cuda') for _ in range(200)]).start()",
                                  0, True),
    "exit from atexit": ("import atexit\natexit.register(sys.exit, 0)", 0, True),
    "os._exit": ("os._exit(5)", 5, False),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -9, False),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -15, False),
    "abort": ("os.abort()", -6, False),
    "exec": ("os.execv(sys.executable, [sys.executable, '-c', 'pass'])", 0, False),
}

OUT_OF_MEMORY = '''
import torch
torch.empty(10, device="cuda")
while gpumemtrace_ask and not gpumemtrace_ask():
    pass
for _ in range(2000):
    pass
def attempt(size):
    batch = [torch.empty(5000, device="cuda") for _ in range(12)]
    return torch.empty(size, device="cuda")
for size in (1 << 40, 1 << 41):
    try:
        attempt(size)
    except torch.cuda.OutOfMemoryError as error:
        print(type(error).__name__)
print("end")
'''

SIGNAL = COMMON + '''
import signal
def work():
    batch = [torch.empty(5000, device="cuda") for _ in range(12)]
    if gpumemtrace.active():
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
    for _ in range(2000):
        pass
work()
print("end")
'''

GROWTH = COMMON + '''
taken = []
sys.addaudithook(lambda event, arguments: taken.append(1) if event == "gc.get_objects" else None)
def work():
    batch = []
    while len(batch) < 100 or gpumemtrace.active() and not taken and len(batch) < 100000:
        batch.append(torch.empty(1 << 14, device="cuda"))
        time.sleep(0.001)  # the shim looks several times a second
    print("end")
work()
'''

SUBINTERPRETERS = COMMON + '''
try:
    import _interpreters as interpreters  # 3.13
except ImportError:
    import _xxsubinterpreters as interpreters
stop = threading.Event()
def keep_asking():
    while not stop.is_set():
        gpumemtrace.census()
        time.sleep(0.0005)
thread = threading.Thread(target=keep_asking)
thread.start()
for turn in range(3):
    one = interpreters.create()
    interpreters.run_string(one, "import atexit, gc, sys\\n"
        "for _ in range(200): x = [[] for _ in range(500)]\\n"
        "gc.collect()\\n"
        "names = [name for name in sys.modules if 'gpumemtrace' in name]\\n"
        "print('inside', names, flush=True)")
    interpreters.destroy(one)
stop.set()
thread.join()
last = [torch.empty(7, device="cuda") for _ in range(5)]
ask()
print("end")
'''

# The call that was asked for runs while the main thread is in a subinterpreter (up to 3.11), and is asked for again.
MISPLACED = """
import os, sys, threading, time
sys.path.insert(0, %r)
import gpumemtrace
import torch
try:
    import _interpreters as interpreters  # 3.13
except ImportError:
    import _xxsubinterpreters as interpreters
kept = [torch.empty(1000, device="cuda") for _ in range(7)]
taken = []
sys.addaudithook(lambda event, arguments: taken.append(1) if event == "gc.get_objects" else None)
inside, asked = os.pipe(), os.pipe()
def work():
    os.read(inside[0], 1)
    while gpumemtrace.active() and not gpumemtrace.census():
        time.sleep(0.01)
    os.write(asked[1], b"x")
worker = threading.Thread(target=work)
worker.start()
one = interpreters.create()
interpreters.run_string(one, "import os\\nos.write(%%d, b'x')\\nos.read(%%d, 1)\\nfor _ in range(2000): pass" %% (inside[1], asked[0]))
interpreters.destroy(one)
worker.join()
last = time.monotonic() + 30
while gpumemtrace.active() and not taken and time.monotonic() < last:
    time.sleep(0.01)
print("end")
""" % os.path.abspath(API)


# Gradients are freed in every step; the highest moment is inside the optimizer's.
ROLES = '''
import torch
from torch import nn
model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)]).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(6):
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print("end", sum(p.numel() * 4 for p in model.parameters()))
'''


class CensusMoments(EndToEndTest):
    def each(self, text, extra=None, needs=None, turn=None):
        """(interpreter's version, result under the shim, reports of its traces) for every interpreter, or for the one whose
        `turn` it is."""
        interpreters = harness.interpreters()
        for version, python in interpreters if turn is None else [interpreters[turn % len(interpreters)]]:
            if needs is not None and not needs(python):
                continue
            path = os.path.join(self.folder, "program.py")
            with open(path, "w") as file:
                file.write(text)
            print("Python %d.%d" % version, flush=True)
            result = self.same([python, "-W", "ignore", path], extra=extra)
            self.assertIn("end", result.out)
            traces = result.traces()
            yield version, result, [self.analyze(trace) for trace in traces]
            for trace in traces:
                os.unlink(trace)

    def taken(self, report, trigger):
        return [census for census in report["censuses"] if census["trigger"] == trigger]

    def test_every_way_to_end(self):
        for turn, (name, (last, code, counted)) in enumerate(ENDINGS.items()):
            if harness.SANITIZER and name not in ("return", "exception", "os._exit", "exit while a thread works"):
                continue  # a process takes seconds there
            for version, result, reports in self.each(ENDING % last, turn=None if name in ("return", "exception") else turn):
                with self.subTest(name, version=version):
                    if code is not None:
                        self.assertEqual(result.code, code)
                    censuses = self.taken(reports[0], "exit")
                    self.assertEqual(len(censuses), 1 if counted else 0, reports[0]["censuses"])
                    if not counted:
                        continue
                    self.assertEqual(censuses[0]["partial"], "")
                    paths = {held["path"]: held["tensors"] for held in reports[0]["holders"]}
                    self.assertEqual(paths.get("program.kept[…]"), 20, paths)
                    if name == "exception":
                        # The traceback that was printed is kept by the interpreter, and with it the frames.
                        frames = [path for path in paths if "frame program.py:7 in fail 'scratch'[…]" in path]
                        self.assertEqual([paths[path] for path in frames], [8], paths)

    def test_on_an_out_of_memory_error(self):
        text = "import sys\nsys.path.insert(0, %r)\nimport gpumemtrace\ngpumemtrace_ask = gpumemtrace.active() and gpumemtrace.census\n" % (
            os.path.abspath(API)) + OUT_OF_MEMORY.replace("gpumemtrace_ask and", "gpumemtrace.active() and")
        for version, result, reports in self.each(text):
            censuses = self.taken(reports[0], "out of memory")
            self.assertEqual([census["tensors"] for census in censuses], [12, 12], reports[0]["censuses"])

    def test_on_a_signal(self):
        for version, result, reports in self.each(SIGNAL, extra={"GPUMEMTRACE_CENSUS_SIGNAL": "10"}):
            censuses = self.taken(reports[0], "signal")
            self.assertGreaterEqual(len(censuses), 1)
            self.assertEqual({census["tensors"] for census in censuses}, {22})

    def test_on_request_while_another_call_waits(self):
        for version, result, reports in self.each(BUSY, extra={"GPUMEMTRACE_CENSUS": "exit"}, turn=0):
            self.assertEqual([census["tensors"] for census in self.taken(reports[0], "request")], [7], reports[0]["censuses"])

    def test_when_memory_grew(self):
        for version, result, reports in self.each(GROWTH, extra={"GPUMEMTRACE_CENSUS": "exit", "GPUMEMTRACE_CENSUS_GROWTH": "4M"}):
            self.assertGreaterEqual(len(self.taken(reports[0], "growth")), 1, reports[0]["censuses"])

    def test_roles_at_the_peak_of_gradients_that_no_census_saw(self):
        for version, result, reports in self.each(ROLES, extra={"GPUMEMTRACE_CENSUS": "exit"}, turn=-1):
            size = int(result.out.split()[1])
            peak = max(reports[0]["peak_roles"], key=lambda peak: peak["from_census"])
            self.assertEqual([peak["roles"][role] for role in ("parameters", "gradients", "optimizer state")], [size, size, 2 * size])
            self.assertEqual(sum(peak["roles"].values()), peak["bytes"])
            self.assertEqual(peak["from_census"], 3 * size)  # the gradients are an inference

    def test_switched_off(self):
        for turn, (mode, triggers) in enumerate((("off", []), ("exit", ["exit"]))):
            text = COMMON.replace("while gpumemtrace.active() and not", "if gpumemtrace.active() and") + "print('end')\n"
            for version, result, reports in self.each(text, extra={"GPUMEMTRACE_CENSUS": mode}, turn=-1 - turn):
                self.assertEqual([census["trigger"] for census in reports[0]["censuses"] if census["trigger"] != "request"], triggers)

    def has_subinterpreters(self, python):
        return 0 == subprocess.run([python, "-c", "try:\n import _interpreters\nexcept ImportError:\n import _xxsubinterpreters"],
                                   stderr=subprocess.DEVNULL).returncode

    def test_on_request_while_a_subinterpreter_runs(self):
        for version, result, reports in self.each(MISPLACED, extra={"GPUMEMTRACE_CENSUS": "exit"}, needs=self.has_subinterpreters, turn=0):
            self.assertEqual([census["tensors"] for census in self.taken(reports[0], "request")], [7], reports[0]["censuses"])

    def test_subinterpreters_have_none(self):
        seen = 0
        for version, result, reports in self.each(SUBINTERPRETERS, needs=self.has_subinterpreters):
            seen += 1
            self.assertEqual(result.out.count("inside []"), 3, result.out)
            self.assertEqual(reports[0]["censuses_incomplete"], 0)
            last = self.taken(reports[0], "request")[-1]
            self.assertEqual((last["tensors"], last["partial"]), (15, ""))
            paths = {held["path"] for held in reports[0]["holders"]}
            self.assertIn("program.last[…]", paths)
        self.assertGreater(seen, 0)

    def check(self, text, traces=1, turn=0):
        # Every other version, in turn.
        for version, python in harness.interpreters()[turn::2] or harness.interpreters():
            with self.subTest(version):
                path = os.path.join(self.folder, "program.py")
                with open(path, "w") as file:
                    file.write(text)
                result = self.same([python, "-W", "ignore", path])
                self.assertEqual(result.code, 0)
                self.assertIn("end", result.out)
                self.assertGreaterEqual(len(result.traces()), traces)
                reports = [self.analyze(trace) for trace in result.traces()]
                taken = [census for report in reports for census in report["censuses"]]
                self.assertTrue(any(census["trigger"] == "request" and census["tensors"] == 10 for census in taken), taken)
                for trace in result.traces():
                    os.unlink(trace)

    def test_finalizing(self):
        self.check(FINALIZING, turn=1)

    def test_daemon_threads(self):
        self.check(DAEMONS)

    def test_forked_children(self):
        self.check(FORKED, traces=2, turn=1)

    def test_while_another_thread_imports(self):
        self.check(IMPORTING)


if __name__ == "__main__":
    harness.main()
