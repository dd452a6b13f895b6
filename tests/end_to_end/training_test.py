"""Training jobs on the simulated torch: the report's bytes equal the allocator's own, for every interpreter found and
every allocator mode, and the leak is found at its line."""

import os
import re
import unittest

import harness
from harness import PROGRAMS, EndToEndTest, Ledger

TRAIN = os.path.join(PROGRAMS, "train.py")
STEPS = 60
MODES = ("", "expandable_segments:True", "max_split_size_mb:32,roundup_power2_divisions:4")
PYTHONS = harness.interpreters()


def marked_line(path, mark):
    with open(path) as f:
        return next(number for number, line in enumerate(f, 1) if mark in line)


class Training(EndToEndTest):
    def train(self, python, program=TRAIN, steps=STEPS, extra=None):
        path = os.path.join(self.folder, "ledger")
        result = self.same([python, program, str(steps)], extra=dict(extra or {}, SIMULATED_CUDA_LEDGER=path))
        self.assertEqual(result.code, 0, result.raw_err)
        return result, self.one_report(result), Ledger(path)

    def check_bytes(self, result, report):
        peak, allocated, reserved = map(int, re.search(
            r"peak (\d+), allocated (\d+), reserved (\d+)", result.out).groups())
        self.assert_consistent(report)
        check = report["self_check"]["devices"][0]
        self.assertEqual(check["allocated"]["reported_peak"], peak)
        self.assertEqual(report["peak"]["bytes"], peak)
        self.assertEqual(report["peak"]["level"], "blocks")
        self.assertGreater(report["self_check"]["events_checked"], 0)
        return peak, allocated, reserved

    def check_leak(self, report, program=TRAIN, mark="# LEAK", first=True):
        """The marked line is the first leak, or (first=False) among them; returns that finding."""
        leaks = [f for f in report["findings"] if f["kind"] == "leak"]
        place = (os.path.basename(program), marked_line(program, mark))
        found = [f for f in leaks
                 if place in [(os.path.basename(p.get("file") or ""), p.get("line")) for p in
                              [f["culprit"]] + f["born_at"]]]
        self.assertTrue(found, (place, report["findings"]))
        if first:
            self.assertIs(found[0], leaks[0])
        return found[0]

    def test_every_interpreter(self):
        print("interpreters:", ", ".join("%d.%d" % version for version, _ in PYTHONS))
        for version, python in PYTHONS:
            with self.subTest(python=version):
                self.setUp()
                result, report, ledger = self.train(python)
                self.check_bytes(result, report)
                finding = self.check_leak(report)
                # 256 rows of 1000 floats and the loss, in blocks of 512 bytes.
                self.assertEqual(finding["bytes_per_step"], 256 * 1000 * 4)
                self.assertTrue(report["recorded"]["interpreters"][0]["stacks"])

    def test_every_allocator_mode(self):
        for mode in MODES:
            with self.subTest(mode=mode):
                self.setUp()
                extra = {"PYTORCH_CUDA_ALLOC_CONF": mode} if mode else {}
                result, report, ledger = self.train(PYTHONS[-1][1], extra=extra)
                _, _, reserved = self.check_bytes(result, report)
                self.assertEqual(report["self_check"]["devices"][0]["reserved"]["disagree"], 0)
                # What the process had when its interpreter was gone: the driver's own list.
                live, count = self.live(report, "segments")
                self.assertEqual(live, ledger.bytes("device", "physical"))

    def test_cuda_malloc_async(self):
        self.direct({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})

    def test_no_caching(self):
        self.direct({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})

    def direct(self, extra):
        """Every tensor is a CUDA allocation: segments carry the Python lines."""
        result, report, ledger = self.train(PYTHONS[-1][1], extra=extra)
        self.assertEqual(report["events"]["blocks"], 0)
        self.check_leak(report)
        self.assertEqual(self.live(report, "segments")[0], ledger.bytes("device", "pool"))

    def test_older_reporting_functions(self):
        # The manglings of PyTorch 1.10–1.13 and 1.7–1.9.
        for generation in ("113", "109"):
            with self.subTest(generation=generation):
                self.setUp()
                folder = os.path.join(harness.SIMULATED, "lib", "torch-" + generation)
                extra = {"LD_LIBRARY_PATH": folder + ":" + os.path.join(harness.SIMULATED, "lib")}
                result, report, _ = self.train(PYTHONS[-1][1], extra=extra)
                self.assertGreater(report["events"]["blocks"], 1000)
                if generation == "113":
                    self.check_leak(report)
                    self.check_bytes(result, report)
                else:
                    # No totals to check against, and no addresses that would tie tensors to their segments.
                    self.check_leak(report, first=False)
                    self.assertEqual(report["self_check"]["events_checked"], 0)

    def test_library_memory_has_its_name(self):
        _, report, _ = self.train(PYTHONS[-1][1])
        seen = str(report)
        self.assertIn("libcublasLt", seen)

    def test_caught_out_of_memory(self):
        program = os.path.join(self.folder, "oom.py")
        with open(program, "w") as f:
            f.write("import torch\n"
                    "keep = [torch.empty(1 << 20, device='cuda') for _ in range(8)]\n"
                    "try:\n"
                    "    torch.empty(1 << 40, device='cuda')\n"
                    "except torch.cuda.OutOfMemoryError as e:\n"
                    "    print(e)\n"
                    "print('peak %d, allocated %d, reserved %d bytes' % (torch.cuda.max_memory_allocated(),\n"
                    "      torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))\n")
        result, report, _ = self.train(PYTHONS[-1][1], program)
        self.check_bytes(result, report)
        self.assertEqual(len(report["ooms"]), 1)

    def test_streams_graphs_and_threads(self):
        program = os.path.join(self.folder, "mixed.py")
        with open(program, "w") as f:
            f.write(MIXED)
        for mode in MODES:
            with self.subTest(mode=mode):
                self.setUp()
                extra = {"PYTORCH_CUDA_ALLOC_CONF": mode} if mode else {}
                result, report, ledger = self.train(PYTHONS[-1][1], program, extra=extra)
                self.check_bytes(result, report)


MIXED = '''
import random, threading
import torch
from torch import nn
random.seed(1)
net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).to("cuda")
kept = []
for i in range(3000):
    if random.random() < 0.52:
        kept.append(torch.empty(random.choice([100, 5000, 300000, 3000000]), device="cuda"))
    elif kept:
        kept.pop(random.randrange(len(kept)))
    if i % 500 == 0:
        torch.cuda.empty_cache()
side = torch.cuda.Stream()
for i in range(50):
    with torch.cuda.stream(side):
        x = torch.empty(1000 + i * 1000, device="cuda")
    x.record_stream(torch.cuda.current_stream())
    del x
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = torch.empty(700000, device="cuda")
    z = y.square()
graph.replay()
def work():
    for _ in range(20):
        net(torch.randn(32, 256, device="cuda")).square().mean().backward()
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
kept.clear()
torch.cuda.synchronize()
print("peak %d, allocated %d, reserved %d bytes" % (
    torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
'''

if __name__ == "__main__":
    harness.main()
