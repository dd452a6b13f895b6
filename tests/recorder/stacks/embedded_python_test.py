"""An interpreter that a program loaded RTLD_LOCAL is found, before and after it runs, too.

usage: embedded_python_test.py HOST PROBE.so
"""
import os
import subprocess
import sys
import sysconfig

library = os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")
if not sysconfig.get_config_var("Py_ENABLE_SHARED") or not os.path.exists(library):
    print("this interpreter has no shared library; nothing to test")
    sys.exit(0)

SCRIPT = """
import os

def inner():
    os.kill(os.getpid(), 10)

class Outer:
    def method(self):
        inner()

Outer().method()
"""

environment = dict(os.environ, PYTHONHOME=sys.prefix if sys.prefix == sys.exec_prefix else sys.prefix + ":" + sys.exec_prefix)
result = subprocess.run([sys.argv[1], sys.argv[2], library, SCRIPT], env=environment, stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, check=False)
lines = result.stdout.decode().splitlines()
stacks = []
for line in lines:
    if line == "stack":
        stacks.append([])
    elif line.startswith("python "):
        words = line.split()
        stacks[-1].append((bytes.fromhex(words[1][:-1]).decode(), bytes.fromhex(words[2][:-1]).decode()))

method = "Outer.method" if sys.version_info >= (3, 11) else "method"
expected = [[], [("<string>", "inner"), ("<string>", method), ("<string>", "<module>")], []]
said = [line for line in lines if ": changed" in line or line.startswith("status")]
wanted = ["without interpreter: changed 0, supported 0", "with interpreter: changed 1, supported 1",
          "again: changed 0", "status 0"]
if result.returncode != 0 or stacks != expected or said != wanted:
    print("status %d\n%s\n%s\nexpected %s" % (result.returncode, result.stdout.decode(), result.stderr.decode(), expected))
    sys.exit(1)
print("found in %s" % library)
