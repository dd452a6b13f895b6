"""SIGKILL at random moments: every event whose hook had returned is in the analysis of the trace with the rings it
left. The program enters each operation in a shared file after its call has returned; the simulated driver keeps its
own list. Between the two lie at most the calls that were under way: one a thread."""

import glob
import os
import random
import signal
import struct
import subprocess
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


class Killed(EndToEndTest):
    def test_nothing_is_lost(self):
        rng = random.Random(20)
        events = 0
        for number in range(ROUNDS):
            with self.subTest(round=number):
                self.setUp()
                log, ledger_path = os.path.join(self.folder, "log"), os.path.join(self.folder, "ledger")
                trace = os.path.join(self.folder, "t.pb")
                env = harness.environment(self.folder, True, {"SIMULATED_CUDA_LEDGER": ledger_path,
                                                              "GPUMEMTRACE_OUT": trace})
                process = subprocess.Popen([os.path.join(BINARIES, "edge_cases_static"), "", "killed_at_random", log],
                                           env=env, cwd=self.folder, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL)
                try:
                    # A random amount of work, not of time.
                    wanted = rng.choice([1, 10, 300, 3000, 20000]) * rng.randint(1, 3)
                    deadline = time.monotonic() + harness.TIMEOUT
                    while time.monotonic() < deadline and process.poll() is None:
                        if os.path.exists(log) and os.path.getsize(log) == AREA * THREADS:
                            done, _ = self.counts(log)
                            if done >= wanted:
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
                recorded = report["events"]["segments"]
                # Besides the operations: the context, and one call under way in each thread.
                self.assertGreaterEqual(recorded, done)
                self.assertLessEqual(recorded, done + 1 + THREADS)
                bytes_live, count_live = self.live(report, "segments")
                self.assertLessEqual(abs(count_live - len(live)), THREADS)
                self.assertLessEqual(abs(count_live - ledger.count("device")), THREADS)
                self.assertEqual(harness.losses(report), 0)
                events += recorded
        print("%d kills, %d events" % (ROUNDS, events))

    @staticmethod
    def counts(path):
        counts = []
        with open(path, "rb") as f:
            for thread in range(THREADS):
                f.seek(thread * AREA)
                counts.append(struct.unpack("<Q", f.read(8))[0])
        return sum(counts), counts


if __name__ == "__main__":
    harness.main()
