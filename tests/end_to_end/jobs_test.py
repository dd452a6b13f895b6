"""Small jobs with a known truth: `# EXPECT leak <bytes per step>` with the line marked LEAK, or `# EXPECT clean`."""

import os
import unittest

import harness
from harness import PROGRAMS, EndToEndTest

JOBS = os.path.join(PROGRAMS, "jobs")
PYTHON = harness.interpreters()[-1][1]


def truth(path):
    with open(path) as f:
        lines = f.read().split("\n")
    words = lines[0].split()
    assert words[:2] == ["#", "EXPECT"], path
    marked = [n for n, line in enumerate(lines, 1) if line.rstrip().endswith("# LEAK")]
    return words[2], int(words[3]) if len(words) > 3 else 0, marked


class Jobs(EndToEndTest):
    def check(self, name):
        path = os.path.join(JOBS, name)
        verdict, per_step, marked = truth(path)
        result = self.same([PYTHON, path])
        self.assertEqual(result.code, 0, result.raw_err)
        report = self.one_report(result)
        if report["events"]["blocks"]:
            self.assert_consistent(report)
        leaks = [f for f in report["findings"] if f["kind"] == "leak"]
        if verdict == "clean":
            self.assertEqual(leaks, [])
            return
        self.assertTrue(leaks, report["findings"])
        top = leaks[0]
        places = [top["culprit"]] + top["born_at"] + ([top["held_by"]] if top.get("held_by") else [])
        self.assertTrue(any(os.path.basename(p.get("file") or "") == name and p.get("line") in marked
                            for p in places), (places, marked))
        self.assertAlmostEqual(top["bytes_per_step"], per_step, delta=per_step * 0.02)


def add(name):
    setattr(Jobs, "test_" + name[:-3], lambda self: self.check(name))


for entry in sorted(os.listdir(JOBS)):
    if entry.endswith(".py"):
        add(entry)

if __name__ == "__main__":
    harness.main()
