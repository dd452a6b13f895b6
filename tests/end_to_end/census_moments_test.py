"""A census asked for at bad moments, under every interpreter: while it ends, in forked children, from daemon threads,
during another thread's import. The program must do what it does without the shim, and the traces must be whole."""

import os
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


class CensusMoments(EndToEndTest):
    def check(self, text, traces=1):
        for version, python in harness.interpreters():
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
        self.check(FINALIZING)

    def test_daemon_threads(self):
        self.check(DAEMONS)

    def test_forked_children(self):
        self.check(FORKED, traces=2)

    def test_while_another_thread_imports(self):
        self.check(IMPORTING)


if __name__ == "__main__":
    harness.main()
