"""What the end-to-end tests share: running a program on the simulated CUDA with and without the shim, reading the
trace with gpumem-analyze, reading the simulated driver's own ledger."""

import functools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(os.path.dirname(HERE), "programs")

# Set by ctest, see CMakeLists.txt.
SIMULATED = os.environ.get("GPUMEMTRACE_TEST_SIMULATED", "")  # <build>/tests/simulated_cuda
BINARIES = os.environ.get("GPUMEMTRACE_TEST_PROGRAMS", "")  # <build>/tests/programs
SHIM = os.environ.get("GPUMEMTRACE_TEST_SHIM", "")
ANALYZER = os.environ.get("GPUMEMTRACE_TEST_ANALYZER", "")
# A sanitizer's runtime must come before every other preload.
SANITIZER = os.environ.get("GPUMEMTRACE_TEST_SANITIZER_RUNTIME", "")
TIMEOUT = 120 * (5 if SANITIZER else 1)


@functools.lru_cache(maxsize=None)
def interpreters():
    """Every CPython 3.8 or newer that can be found, one per minor version: (version, path)."""
    candidates = os.environ.get("GPUMEMTRACE_TEST_PYTHONS", "").split(":")
    for folder in os.environ.get("PATH", "").split(":") + ["/usr/bin", "/usr/local/bin"]:
        candidates += [os.path.join(folder, "python3.%d" % minor) for minor in range(8, 16)]
    versions = os.path.expanduser("~/.pyenv/versions")
    if os.path.isdir(versions):
        candidates += [os.path.join(versions, name, "bin", "python3") for name in os.listdir(versions)]
    candidates.append(sys.executable)
    found = {}
    for path in candidates:
        if not path or not os.access(path, os.X_OK):
            continue
        try:
            text = subprocess.run([path, "-c", "import sys, platform; print(platform.python_implementation(), *sys.version_info[:2])"],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True, timeout=60).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        words = text.split()
        if len(words) == 3 and words[0] == "CPython" and (3, 8) <= (int(words[1]), int(words[2])) < (4, 0):
            found.setdefault((int(words[1]), int(words[2])), path)
    return tuple(sorted(found.items()))


class Result:
    def __init__(self, code, out, err, folder):
        self.code, self.out, self.folder = code, out, folder
        lines = err.splitlines(True)
        # What the shim says goes to stderr, one line each, under its name.
        self.said = [line for line in lines if line.startswith("gpumemtrace:")]
        own = "".join(line for line in lines if not line.startswith("gpumemtrace:"))
        # Python's warning of fork() in a process with threads names the process.
        self.err = re.sub(r"pid=\d+", "pid=N", own)
        self.raw_err = err

    def traces(self):
        return sorted(os.path.join(self.folder, name) for name in os.listdir(self.folder) if name.endswith(".pb"))


def environment(folder, shim, extra=None, preload=()):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("GPUMEMTRACE", "PYTORCH_", "SIMULATED_", "LD_PRELOAD", "PYTHON"))}
    env["LD_LIBRARY_PATH"] = os.path.join(SIMULATED, "lib")
    env["PYTHONPATH"] = os.path.join(SIMULATED, "python", "site-packages")
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    libraries = [SANITIZER] if SANITIZER else []
    if SANITIZER:
        # The programs and the simulated CUDA have no sanitizer: what ThreadSanitizer cannot see of their
        # synchronization is not ours.
        env.setdefault("ASAN_OPTIONS", "detect_leaks=0:handle_segv=0:allow_user_segv_handler=1:verify_asan_link_order=0")
        env.setdefault("TSAN_OPTIONS", "report_signal_unsafe=0:die_after_fork=0:ignore_noninstrumented_modules=1")
    libraries += [SHIM if item == "shim" else item for item in preload if shim or item != "shim"]
    if shim and "shim" not in preload:
        libraries.append(SHIM)
    if libraries:
        env["LD_PRELOAD"] = ":".join(libraries)
    env.update(extra or {})
    return env


class EndToEndTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gpumemtrace_e2e_")
        self.addCleanup(shutil.rmtree, self.folder, True)

    def run_program(self, command, shim=True, extra=None, preload=(), cwd=None, name=None, timeout=TIMEOUT):
        folder = os.path.join(self.folder, name or ("with" if shim else "without"))
        os.makedirs(folder, exist_ok=True)
        p = subprocess.run(command, env=environment(folder, shim, extra, preload), cwd=cwd or folder,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout)
        return Result(p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace"), folder)

    def same(self, command, extra=None, preload=(), cwd=None):
        """Runs twice and requires equal output and exit code; the run under the shim."""
        before = self.run_program(command, shim=False, extra=extra, preload=preload, cwd=cwd)
        after = self.run_program(command, shim=True, extra=extra, preload=preload, cwd=cwd)
        self.assertEqual(before.out, after.out)
        self.assertEqual(before.err, after.err)
        self.assertEqual(before.code, after.code)
        return after

    def analyze(self, trace, arguments=("--json",), codes=(0,)):
        p = subprocess.run([ANALYZER, "report", trace, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           universal_newlines=True, timeout=TIMEOUT,
                           env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
        self.assertIn(p.returncode, codes, p.stderr + p.stdout[-2000:])
        return json.loads(p.stdout) if "--json" in arguments else p.stdout

    def one_report(self, result, codes=(0,)):
        traces = result.traces()
        self.assertEqual(len(traces), 1, (traces, result.raw_err))
        return self.analyze(traces[0], codes=codes)

    def assert_consistent(self, report):
        """Nothing lost, and every event agrees with the allocator's own totals."""
        self.assertEqual(report["self_check"]["disagreements"], 0, report["self_check"])
        self.assertEqual(losses(report), 0, report.get("completeness"))

    def live(self, report, level, device=0):
        """(bytes, count) alive at the end."""
        for entry in report["live_at_end"]:
            if entry["level"] == level and entry["device"] == device:
                return entry["bytes"], entry["count"]
        return 0, 0


def losses(report):
    total = 0
    for entry in (report.get("completeness") or {}).get("losses") or []:
        total += entry.get("events", 0)
    return total


class Ledger:
    """The file that SIMULATED_CUDA_LEDGER names; its layout stands in tests/simulated_cuda/driver/ledger.h."""

    CALLS, SLOTS = 512, 1 << 18
    KINDS = {1: "device", 2: "managed", 3: "pinned", 4: "registered", 5: "pool", 6: "physical", 7: "array", 8: "graph",
             9: "alias"}

    def __init__(self, path):
        with open(path, "rb") as f:
            data = f.read()
        magic, _, used, overflow = struct.unpack_from("<8sQQQ", data, 0)
        assert magic == b"SIMCUDA1", magic
        assert overflow == 0
        self.calls = {}
        names = []
        for i in range(self.CALLS):
            name, count = struct.unpack_from("<48sQ", data, 32 + i * 56)
            names.append(name.rstrip(b"\0").decode())
            if names[-1]:
                self.calls[names[-1]] = count
        self.live = []
        base = 32 + self.CALLS * 56
        for i in range(used):
            address, size, device, kind, call, live = struct.unpack_from("<QQiIII", data, base + i * 32)
            if live:
                self.live.append({"address": address, "size": size, "device": device, "kind": self.KINDS[kind],
                                  "api": names[call]})

    def bytes(self, *kinds, device=None):
        return sum(a["size"] for a in self.live if a["kind"] in kinds and (device is None or a["device"] == device))

    def count(self, *kinds):
        return sum(a["kind"] in kinds for a in self.live)


def main():
    for name in ("SIMULATED", "SHIM", "ANALYZER"):
        if not os.path.exists(globals()[name]):
            sys.exit("set GPUMEMTRACE_TEST_%s (ctest does); it is %r" % (name, globals()[name]))
    unittest.main(verbosity=2)
