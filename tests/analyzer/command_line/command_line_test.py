"""gpumem-analyze as a command: exit codes, one clear line for each mistake, JSON, no escape sequences in a pipe.

usage: command_line_test.py GPUMEM_ANALYZE FUZZ_SEEDS
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

ANALYZE, SEEDS = sys.argv[1:3]


def run(*arguments):
    done = subprocess.run([ANALYZE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


class CommandLine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = cls.temporary.name
        subprocess.run([SEEDS, cls.folder + "/traces", cls.folder + "/rings"], check=True)
        cls.trace = cls.folder + "/traces/2"
        cls.other = cls.folder + "/traces/4"
        with open(cls.trace, "rb") as file:
            cls.bytes = file.read()

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def write(self, content):
        path = os.path.join(self.folder, "file.pb")
        with open(path, "wb") as file:
            file.write(content)
        return path

    def expect_one_line(self, stderr, path):
        self.assertEqual(stderr.count("\n"), 1, stderr)
        self.assertTrue(stderr.startswith("gpumem-analyze: "), stderr)
        self.assertIn(path, stderr)

    def test_a_file_alone_means_report(self):
        code, text, errors = run(self.trace)
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("train.py", text)
        self.assertEqual((code, text, errors), run("report", self.trace))

    def test_json_is_json(self):
        code, text, _ = run("--json", self.trace)
        self.assertEqual(code, 0)
        report = json.loads(text)
        self.assertGreater(report["events"]["total"], 0)
        self.assertEqual(report["ended"], "exit")

    def test_events_are_lines_of_json_that_add_up_with_the_report(self):
        code, text, errors = run("events", self.trace)
        self.assertEqual((code, errors), (0, ""))
        lines = [json.loads(line) for line in text.splitlines()]
        places, events = set(), []
        for line in lines:
            if "new_place" in line:
                places.add(line["new_place"])
            elif "event" in line:
                self.assertIn(line["place"], places)
                events.append(line)
        report = json.loads(run("--json", self.trace)[1])
        self.assertEqual(len(events), report["events"]["total"])
        self.assertEqual([e["sequence"] for e in events], sorted(e["sequence"] for e in events))
        self.assertTrue(any(f.get("file", "").endswith("train.py") for line in lines for f in line.get("stack", [])))
        blocks = [json.loads(line) for line in run("events", "--blocks", "--no-native", self.trace)[1].splitlines()]
        self.assertTrue(all(e["kind"].startswith("block") for e in blocks if "event" in e))
        self.assertTrue(all(f.get("module", "") == "" for line in blocks for f in line.get("stack", [])))
        self.assertEqual(run("events", self.folder)[0], 66)

    def test_several_traces_come_one_after_another(self):
        code, text, _ = run(self.trace, self.other)
        self.assertEqual(code, 0)
        self.assertLess(text.index("gpumemtrace: " + self.trace), text.index("gpumemtrace: " + self.other))
        _, text, _ = run("--json", self.trace, self.other)
        self.assertEqual([trace["path"] for trace in json.loads(text)["traces"]], [self.trace, self.other])

    def test_one_bad_trace_does_not_hide_the_others(self):
        code, text, errors = run(self.trace, "/nonexistent/x.pb")
        self.assertEqual(code, 66)
        self.assertIn(self.trace, text)
        self.expect_one_line(errors, "/nonexistent/x.pb")

    def test_wrong_use(self):
        self.assertEqual(run()[0], 64)
        self.assertEqual(run("--no-such-option", self.trace)[0], 64)
        self.assertEqual(run("report")[0], 64)
        self.assertEqual(run("--color", "purple", self.trace)[0], 64)

    def test_help_and_version(self):
        for arguments in (["--help"], ["report", "--help"], ["--version"], ["options"]):
            code, text, errors = run(*arguments)
            self.assertEqual((code, errors), (0, ""), arguments)
            self.assertTrue(text)

    def test_files_that_are_no_trace(self):
        for path, expected in (("/nonexistent/x.pb", 66), (self.folder, 66), (self.write(b""), 65),
                               (self.write(b"print('hello')\n" * 100), 65)):
            code, text, errors = run(path)
            self.assertEqual((code, text), (expected, ""), path)
            self.expect_one_line(errors, path)

    def test_a_cut_trace_is_read_in_part(self):
        code, text, errors = run(self.write(self.bytes[:-5]))
        self.assertEqual((code, errors), (3, ""))
        self.assertIn("the file ends inside the packet", text)

    def test_a_damaged_trace_says_what_is_missing(self):
        middle = len(self.bytes) // 2
        damaged = self.bytes[:middle] + bytes([self.bytes[middle] ^ 4]) + self.bytes[middle + 1:]
        code, text, errors = run(self.write(damaged))
        self.assertEqual((code, errors), (3, ""))
        self.assertIn("1 packet lost", text)
        code, text, _ = run("--json", self.write(damaged))
        self.assertEqual(json.loads(text)["completeness"]["damage"]["packets_lost"], 1)

    def test_folded_windows_are_told(self):
        # Trace 4 has one whose 104 events are only counted.
        code, text, errors = run(self.other)
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("  folded        1 old window, 104 events only counted", text)
        report = json.loads(run("--json", self.other)[1])
        self.assertEqual(report["folded"], {"windows": 1, "events": 104})
        # Its births count for the stacks that made them.
        self.assertTrue(any(line["file"].endswith("train.py") for peak in report["peaks"] for line in peak["by_line"]))

    def test_escape_sequences_only_when_asked_for(self):
        self.assertNotIn("\x1b", run(self.trace)[1])
        self.assertIn("\x1b", run("--color", "always", self.trace)[1])

    def test_output_goes_to_a_file(self):
        path = os.path.join(self.folder, "report.txt")
        self.assertEqual(run("-o", path, self.trace), (0, "", ""))
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), run(self.trace)[1])
        code, _, errors = run("-o", "/nonexistent/report.txt", self.trace)
        self.assertEqual(code, 66)
        self.expect_one_line(errors, "/nonexistent/report.txt")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
