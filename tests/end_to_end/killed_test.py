"""SIGKILL at random moments: every event whose hook had returned is in the analysis of the trace with the rings it
left. The program enters each operation in a shared file after its call has returned; the simulated driver keeps its
own list. Between the two lie at most the calls that were under way: one a thread."""

import concurrent.futures
import glob
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import harness
from harness import BINARIES, EndToEndTest, Ledger

ROUNDS = int(os.environ.get("GPUMEMTRACE_TEST_KILLS", "5" if harness.SANITIZER else "25"))
THREADS, RECORDS = 3, 1 << 20
AREA = 16 + RECORDS * 16


def operations(path):
    """Operations that had returned: (count, live {address: size})."""
    total, live = 0, {}
    with open(path, "rb") as f:
        for thread in range(THREADS):
            f.seek(thread * AREA)
            count = struct.unpack("<Q", f.read(8))[0]
            f.seek(thread * AREA + 16)
            for address, size in struct.iter_unpack("<Qq", f.read(count * 16)):
                if size > 0:
                    live[(thread, address)] = size
                else:
                    del live[(thread, address)]
            total += count
    return total, live


def finished(path):
    """Operations that have returned so far, over all threads."""
    total = 0
    with open(path, "rb") as f:
        for thread in range(THREADS):
            f.seek(thread * AREA)
            total += struct.unpack("<Q", f.read(8))[0]
    return total


class Killed(EndToEndTest):
    def test_nothing_is_lost(self):
        """GPUMEMTRACE_TEST_KILLS sets how many, GPUMEMTRACE_TEST_KILLS_AT_ONCE how many processes at a time."""
        with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("GPUMEMTRACE_TEST_KILLS_AT_ONCE", "1"))) as pool:
            outcomes = [pool.submit(self.kill_one, number) for number in range(ROUNDS)]
            events = 0
            for number, outcome in enumerate(outcomes):
                with self.subTest(round=number):
                    events += outcome.result()
        print("%d kills, %d events, none lost" % (ROUNDS, events))

    def kill_one(self, number):
        rng = random.Random(number)
        folder = tempfile.mkdtemp(prefix="killed_", dir=self.folder)
        log, ledger_path = os.path.join(folder, "log"), os.path.join(folder, "ledger")
        trace = os.path.join(folder, "t.pb")
        env = harness.environment(folder, True, {"SIMULATED_CUDA_LEDGER": ledger_path, "GPUMEMTRACE_OUT": trace})
        process = subprocess.Popen([os.path.join(BINARIES, "edge_cases_static"), "", "killed_at_random", log],
                                   env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            # A random amount of work, not of time: from the first operations to several fillings of a ring.
            wanted = int(10 ** rng.uniform(0, 4.5 if number % 25 == 0 else 3.5))
            deadline = time.monotonic() + harness.TIMEOUT
            while time.monotonic() < deadline and process.poll() is None:
                if os.path.exists(log) and os.path.getsize(log) == AREA * THREADS and finished(log) >= wanted:
                    break
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        done, live = operations(log)
        ledger = Ledger(ledger_path)
        report = self.analyze(trace)
        # A killed process leaves its rings; nobody needs these any more.
        for rings in glob.glob("/dev/shm/gpumemtrace-%d-*.rings" % process.pid):
            os.unlink(rings)
        shutil.rmtree(folder, True)
        recorded = report["events"]["segments"]
        # Besides the operations: the context, and one call under way in each thread.
        self.assertGreaterEqual(recorded, done)
        self.assertLessEqual(recorded, done + 1 + THREADS)
        bytes_live, count_live = self.live(report, "segments")
        self.assertLessEqual(abs(count_live - len(live)), THREADS)
        self.assertLessEqual(abs(count_live - ledger.count("device")), THREADS)
        # So many bytes has the largest allocation of the program.
        largest = 64 * 512
        self.assertLessEqual(abs(bytes_live - sum(live.values())), THREADS * largest)
        self.assertLessEqual(abs(bytes_live - ledger.bytes("device")), THREADS * largest)
        self.assertEqual(harness.losses(report), 0)
        return recorded


if __name__ == "__main__":
    harness.main()
