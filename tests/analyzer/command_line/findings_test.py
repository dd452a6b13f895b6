"""What the analyses find, through the whole command: reports, the gate and comparisons of synthetic traces with
known truth, and of traces that real programs left on an H200.

usage: findings_test.py GPUMEM_ANALYZE GPUMEM_SYNTHESIZE FIXTURES
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ANALYZE, SYNTHESIZE, FIXTURES = sys.argv[1:4]

HEALTHY = ("70_adam_state_and_late_unfreeze", "72_curriculum_longer_sequences", "73_bounded_replay_buffer",
           "75_cudnn_benchmark_new_shapes", "76_eval_every_ten_steps", "78_gradient_accumulation",
           "80_folklore_eval_without_no_grad", "82_folklore_total_loss_after_backward",
           "84_cublas_workspace_first_matmul", "88_cupy_fft_plan_cache")


def run(*arguments):
    done = subprocess.run([ANALYZE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def fixture(name):
    return os.path.join(FIXTURES, "cases", name + ".pb")


class Findings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = cls.temporary.name

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def trace(self, scenario, seed=1, shift=0):
        path = os.path.join(self.folder, f"{scenario}-{seed}-{shift}.pb")
        if not os.path.exists(path):
            subprocess.run([SYNTHESIZE, path, scenario, str(seed), str(shift)], check=True, stdout=subprocess.DEVNULL)
        return path

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def report(self, path, *arguments):
        code, text, errors = run("--json", *arguments, path)
        self.assertEqual((code, errors), (0, ""), path)
        return json.loads(text)

    # Steps

    def test_steps_are_told_by_marks_and_by_ranges(self):
        for scenario, source in (("MarkedSteps", "marks"), ("RangesNameTheSteps", "nvtx"),
                                 ("TwoOptimizers", "optimizer"), ("GradientAccumulation", "python loop"),
                                 ("Healthy", "optimizer"), ("NativeHealthy", "native loop")):
            with self.subTest(scenario):
                self.assertEqual(self.report(self.trace(scenario, 2))["steps"]["source"], source)

    def test_a_named_range_is_taken_when_asked_for(self):
        steps = self.report(self.trace("RangesNameTheSteps"), "--step-range", "forward")["steps"]
        self.assertEqual((steps["source"], steps["count"]), ("nvtx", 42))

    # Misuse

    def test_misuse_is_told(self):
        path = self.trace("NativeMisuse")
        errors = {error["kind"]: error for error in self.report(path)["errors"]}
        self.assertEqual({kind: error["count"] for kind, error in errors.items()},
                         {"double free": 1, "free of an unknown address": 1, "freed on another device": 2})
        for error in errors.values():
            self.assertTrue(error["stack"], error)
        text = run(path)[1]
        self.assertIn("\nErrors\n", text)
        for kind in errors:
            self.assertIn(kind, text)
        self.assertIn("self-check 1 address was given out again while live by this trace", " ".join(text.split()))

    # Leaks

    def test_a_leak_says_when_it_began_whether_it_goes_on_and_until_when(self):
        report = self.report(self.trace("LeakSinceLater", 2))
        growth = report["growth"][0]
        self.assertEqual(growth["culprit"]["line"], 32)
        self.assertAlmostEqual(growth["since_step"], 60, delta=2)
        self.assertIn("since step ", report["headline"])
        self.assertTrue(growth["still_growing"])
        self.assertGreater(growth["confidence"], 0.9)
        self.assertGreater(growth["seconds_until_full"], 0)
        self.assertGreater(len(growth["curve"]), 20)
        ended = [g for g in self.report(self.trace("LeakThatStopped", 2))["growth"] if g["culprit"]["line"] == 28]
        self.assertEqual([(g["growth"], g["still_growing"]) for g in ended], [("saturated", False)])

    def test_a_leak_of_a_later_phase_is_told_with_its_loop(self):
        path = self.trace("SecondPhaseLeaks", 2)
        report = self.report(path)
        self.assertEqual((report["steps"]["count"], report["steps"]["place"]["line"]), (60, 20))
        growth = report["growth"][0]
        self.assertEqual((growth["culprit"]["line"], growth["bytes_per_step"], growth["loop"]),
                         (180, 512, "train.py:120"))
        self.assertIn(", in the later loop that begins at train.py:120", report["headline"])

    def test_the_whole_stack_is_shown_on_request(self):
        path = self.trace("KeptThenFreedAtExit")
        self.assertNotIn("module.py", run(path)[1])
        self.assertIn("module.py", run("-v", path)[1])
        functions = [frame["function"] for frame in self.report(path)["growth"][0]["stacks"][0]]
        self.assertIn("Module._call_impl", functions)

    def test_what_a_native_program_never_freed_is_listed_by_place(self):
        path = self.trace("NativeHealthy")
        self.assertIn("\nLive at the end on device 0: 264 MiB", run(path)[1])
        lines = self.report(path)["live_at_end"][0]["by_line"]
        self.assertEqual([(line["bytes"], line["count"]) for line in lines], [(256 << 20, 1), (8 << 20, 1)])

    # Suppressions

    def test_known_leaks_are_suppressed_and_told(self):
        path = self.trace("LossesKept")
        known = self.file("known", "# LeakSanitizer's format\nleak:train.py\n")
        other = self.file("other", "leak:^libnccl\n")
        report = self.report(path, "--suppressions", known)
        self.assertEqual(report["verdict"], "clean")
        self.assertIn("1 known leak suppressed", report["headline"])
        self.assertEqual([g["suppressed_by"] for g in report["growth"] if g["kind"] == "leak"], ["train.py"])
        self.assertIn("suppressed: 512 B/step  train.py:23", run("--suppressions", known, path)[1])
        self.assertEqual(self.report(path, "--suppressions", other)["verdict"], "leak")
        code, text, _ = run("check", "--suppressions", known, path)
        self.assertEqual(code, 0, text)
        self.assertIn("suppressed: 512 B/step at train.py:23, by leak:train.py", text)
        code, text, _ = run("check", "--json", "--suppressions", known, path)
        self.assertEqual((code, json.loads(text)["suppressed"]),
                         (0, [{"place": "train.py:23", "bytes_per_step": 512.0, "by": "leak:train.py"}]))
        self.assertEqual(run("check", path)[0], 1)

    # The gate

    def test_limits(self):
        healthy, leak = self.trace("Healthy"), self.trace("LossesKept")
        for arguments, expected, words in (
                ((healthy,), 0, "ok: peak"),
                (("--no-leak", healthy), 0, "growth 0 B/step"),
                (("--max-peak", "1GiB", healthy), 0, "ok"),
                (("--max-peak", "1MiB", healthy), 1, "peak: "),
                (("--max-reserved", "1MiB", healthy), 1, "reserved: "),
                (("--max-used", "100MiB", healthy), 1, "used: "),
                (("--max-growth", "1KiB/step", leak), 0, "ok"),
                (("--max-growth", "500/step", leak), 1, "growth: 512 B/step, limit 500 B/step, at train.py:23"),
                (("--max-unattributed", "600MiB", healthy), 0, "ok"),
                (("--max-unattributed", "100MiB", healthy), 1, "unattributed: 500 MiB, limit 100 MiB"),
                (("--no-oom", self.trace("OutOfMemory")), 1, "out of memory: 1"),
                (("--no-leak", self.trace("HandlesInBulk")), 2, "not judged: growth"),
                (("--max-unattributed", "1GiB", self.trace("AsyncBackend")), 2, "the device itself was never asked"),
                (("--max-growth", "x", healthy), 64, "")):
            with self.subTest(arguments):
                code, text, _ = run("check", *arguments)
                self.assertEqual(code, expected, text)
                self.assertIn(words, text)

    def test_the_worst_comes_first(self):
        code, text, _ = run("check", "--max-peak", "1MiB", "--max-growth", "500/step", self.trace("LossesKept"))
        self.assertEqual(code, 1)
        self.assertEqual([line.split(":")[0] for line in text.splitlines()], ["peak", "growth"])

    def test_a_damaged_trace_is_not_judged(self):
        with open(self.trace("Healthy"), "rb") as file:
            content = file.read()
        path = os.path.join(self.folder, "cut.pb")
        with open(path, "wb") as file:
            file.write(content[:-5])
        code, text, _ = run("check", path)
        self.assertEqual(code, 2)
        self.assertIn("not judged: ", text)
        self.assertIn("damaged", text)
        self.assertEqual(run("check", os.path.join(self.folder, "none.pb"))[0], 2)

    def test_baseline(self):
        small, large = self.trace("Healthy", 3), self.trace("Healthy", 2)
        self.assertEqual(run("check", "--baseline", small, small)[0], 0)
        code, text, _ = run("check", "--baseline", small, large)
        self.assertEqual(code, 1)
        self.assertIn("baseline", text)
        self.assertEqual(run("check", "--baseline", small, "--tolerance", "1000%", large)[0], 0)
        # The same program with other line numbers.
        self.assertEqual(run("check", "--baseline", small, self.trace("Healthy", 3, 7))[0], 0)
        self.assertEqual(run("check", "--baseline", self.trace("Healthy", 1), self.trace("LossesKept", 1))[0], 1)

    # Comparisons

    def test_diff_is_not_misled_by_moved_lines(self):
        before = self.trace("StepInFunction", 2)
        code, text, _ = run("diff", before, self.trace("StepInFunction", 2, 13))
        self.assertEqual(code, 0)
        self.assertIn("no difference", text)
        lines = json.loads(run("diff", "--json", before, self.trace("StepInFunction", 2, 13))[1])["lines"]
        self.assertTrue(lines)
        for line in lines:
            self.assertEqual((line["state"], line["bytes_difference"]), ("both", 0), line)
            self.assertEqual(line["after"]["line"] - line["before"]["line"], 13)

    def test_diff_shows_what_is_new(self):
        lines = json.loads(run("diff", "--json", self.trace("Healthy", 2), self.trace("LeakBesideLateState", 2))[1])
        new = [line["after"]["line"] for line in lines["lines"] if line["state"] == "new"]
        self.assertIn(28, new)
        self.assertIn("new", run("diff", self.trace("Healthy", 2), self.trace("LeakBesideLateState", 2))[1])

    def test_diff_between_two_steps(self):
        path = self.trace("LossesKept", 3)
        code, text, _ = run("diff", "--json", "--steps", "5,15", path)
        self.assertEqual(code, 0)
        growth = {line["after"]["line"]: line["bytes_difference"] for line in json.loads(text)["lines"]
                  if line["bytes_difference"] != 0}
        self.assertEqual(growth, {23: 10 * 512})
        self.assertIn("+5 KiB", run("diff", "--steps", "5,15", path)[1])
        for steps in ("15,5", "1", "1,100000"):
            self.assertEqual(run("diff", "--steps", steps, path)[0], 64, steps)

    # Peak, failures, account

    def test_the_peak_is_composed_in_every_way(self):
        for path in (self.trace("Healthy", 2), self.trace("SecondDeviceLeaks"), fixture("41_foreach_adam_step_peak")):
            for peak in self.report(path)["peaks"]:
                for way in ("by_line", "by_phase", "by_library", "by_size_class"):
                    self.assertEqual(sum(share["bytes"] for share in peak[way]), peak["bytes"], way)
        text = run("-v", self.trace("Healthy", 2))[1]
        for label in ("phase", "sizes", "oldest", "reached by"):
            self.assertIn("\n  " + label, text)

    def test_other_peaks_are_distinct(self):
        peak = self.report(self.trace("Evaluation", 2))["peak"]
        self.assertTrue(peak["next"])
        for other in peak["next"]:
            self.assertNotEqual(other["reached_by"], {k: v for k, v in peak["reached_by"].items() if k != "bytes"})
            self.assertLessEqual(other["bytes"], peak["bytes"])

    def test_fragmentation_says_where_and_what_pins(self):
        finding = self.report(self.trace("GrownByCat", 3))["fragmentation"][0]
        self.assertGreater(finding["needless_bytes"], 0)
        self.assertEqual(finding["needless_at"]["line"], 17)
        for moment in (finding["worst"], finding["at_end"]):
            free = sum(segment["bytes"] - segment["live_bytes"] for segment in moment["segments"])
            self.assertEqual(free, moment["gap_bytes"])
            self.assertEqual(moment["allocated_bytes"] + moment["gap_bytes"] + moment["empty_segments_bytes"],
                             moment["reserved_bytes"])
            if moment["gap_bytes"]:
                self.assertTrue(moment["pins"])

    def test_what_would_have_made_room(self):
        path = self.trace("OutOfMemory")
        report = self.report(path)
        self.assertEqual(report["oom_count"], 1)
        failure = report["ooms"][0]
        self.assertEqual((failure["culprit"]["line"], failure["asked_bytes"]), (32, 45 << 30))
        self.assertGreater(failure["shortfall_bytes"], 15 << 30)
        self.assertFalse(failure["fits_without_fragmentation"])
        self.assertEqual([(held["line"], held["bytes"]) for held in failure["fits_after_releasing"]], [(28, 40 << 30)])
        text = run(path)[1]
        self.assertIn("1 allocation failed for lack of memory", text)
        self.assertIn("it fits after releasing 40 GiB of train.py:28", text)

    def test_the_account_closes_with_its_rounding(self):
        with_rounding = 0
        for path in sorted(glob.glob(os.path.join(FIXTURES, "cases", "*.pb"))):
            for device in self.report(path)["accounts"]:
                for account in [device[at] for at in ("at_peak", "at_fullest", "at_end") if at in device]:
                    known = account["blocks_bytes"] + account["cache_bytes"] + account["unattributed_bytes"]
                    known += sum(library["bytes"] for library in account["libraries"])
                    self.assertEqual(known, account["used_bytes"], path)
                    self.assertLessEqual(account["rounding_bytes"], account["blocks_bytes"])
                    with_rounding += account["rounding_bytes"] > 0
        self.assertGreater(with_rounding, 10)
        # 299 losses of four bytes, each in a block of 512.
        peak = self.report(fixture("02_losses_list_after_backward"))["accounts"][0]["at_peak"]
        self.assertGreaterEqual(peak["rounding_bytes"], 299 * 508)
        self.assertIn("\n  rounding", run(fixture("02_losses_list_after_backward"))[1])

    # What to do about it

    def test_each_kind_says_what_would_free_it(self):
        for path, expected in (
                (fixture("02_losses_list_after_backward"), "drop the reference"),
                (fixture("05_refcycle_bound_method"), "gc.collect()"),
                (fixture("18_ipc_handle_never_consumed"), "the receiving process"),
                (fixture("24_cublas_handle_per_call"), "destroy the handle"),
                # Its libraries are not here: that there is one for each stream tells that these are workspaces.
                (fixture("26_stream_per_request_cublas_workspace"), "clear the workspaces"),
                (fixture("30_stream_per_sync_strands_cache"), "empty_cache()"),
                (fixture("32_kv_cache_grown_by_cat"), "allocate once and write in place"),
                (fixture("60_cuda_forgotten_buffers"), "free it"),
                (self.trace("HandleOfUnknownCost"), "destroy the handle"),
                (self.trace("LosesToTheDriver"), "only exit")):
            with self.subTest(path):
                grown = [g for g in self.report(path)["growth"] if g["kind"] in ("leak", "fragmentation")]
                self.assertEqual(grown[0]["remedy"], expected)
        teeth = [g for g in self.report(self.trace("SawTooth"))["growth"] if g["growth"] == "saw-tooth"]
        self.assertEqual(teeth[0]["remedy"], "the end of a phase")

    def test_what_no_tensor_stands_for_has_its_peak_too(self):
        path = fixture("24_cublas_handle_per_call")
        account = self.report(path)["accounts"][0]
        self.assertGreater(account["at_fullest"]["used_bytes"], account["at_peak"]["used_bytes"] + (1 << 30))
        self.assertEqual(account["at_fullest"]["blocks_bytes"] >> 20, account["at_end"]["blocks_bytes"] >> 20)
        text = run(path)[1]
        for words in ("\nPeak of tensors on device 0: ", "\nPeak of driver allocations on device 0: 1.60 GiB", " at its fullest "):
            self.assertIn(words, text)
        # A cache that grows is no story of its own beside the fragmentation.
        text = run(fixture("30_stream_per_sync_strands_cache"))[1]
        self.assertIn(" at its fullest ", text)
        self.assertNotIn("\nPeak of driver allocations", text)
        self.assertNotIn(" at its fullest ", run(fixture("02_losses_list_after_backward"))[1])

    def test_memory_that_kernels_took_after_the_last_reading_counts_as_used(self):
        account = self.report(fixture("64_cuda_local_memory_footprint"))["accounts"][0]
        taken = account["at_end"]["kernel_launches_bytes"]
        self.assertGreater(taken, 512 << 20)
        self.assertEqual(account["at_end"]["used_bytes"], account["at_end"]["unattributed_before_bytes"] + taken)

    # The text

    def test_the_headline_of_a_leak_names_who_keeps_it(self):
        _, text, _ = run(fixture("14_eval_logits_gathered_on_gpu"))
        lines = text.splitlines()
        self.assertTrue(lines[1].startswith("LEAK: 4 MiB/step, kept by 14_eval_logits_gathered_on_gpu.logits_all"), text)
        headline = " ".join(line.strip() for line in lines[1:4])
        self.assertIn("stored at 14_eval_logits_gathered_on_gpu.py:24; born at 14_eval_logits_gathered_on_gpu.py:23",
                      headline)
        self.assertIn("\n  kept          39 tensors, 156 MiB", text)
        # A line that both makes and stores is told once.
        self.assertIn("(list, 24 items), born and stored at 16_best_weights_snapshots_on_gpu.py:28",
                      self.report(fixture("16_best_weights_snapshots_on_gpu"))["headline"])
        self.assertIn("; born at ", self.report(fixture("14_eval_logits_gathered_on_gpu"))["headline"])

    def test_what_frees_it_is_said_in_terms_of_who_keeps_it(self):
        for name, words in (("02_losses_list_after_backward", "storing numbers (.item()), in "),
                            ("08_stored_exceptions_keep_frames", "keeping the text of the exception"),
                            ("10_lru_cache_tensor_key", "a bound (maxsize) and keys that come again"),
                            ("12_recurrent_state_not_detached", "keeping .detach()"),
                            ("14_eval_logits_gathered_on_gpu", "a bound, or storing copies on the CPU (.cpu()), in "),
                            ("03_cached_outputs_with_graph", "a bound, or storing .detach().cpu(), in "),
                            ("22_pinned_staging_buffers_kept", "a bound, or a few buffers that are used again, in "),
                            ("32_kv_cache_grown_by_cat", "allocating the buffer once"),
                            ("53_cupy_row_view_kept", "keeping a copy of the part")):
            with self.subTest(name):
                text = " ".join(run(fixture(name))[1].split())
                self.assertIn(" freed by " + words, text)
                self.assertIn("freed by: " + words, text)

    def test_advice_says_when_another_moment_is_the_highest_then(self):
        """500 MiB of a peak of 955.6 MiB, which would still be 705.6 MiB without them."""
        text = " ".join(run(fixture("42_logits_upcast_peak"))[1].split())
        self.assertIn("(peak without it: about 705.6 MiB, of another moment: 250 MiB less)", text)
        # The headline says the same.
        self.assertIn("250 MiB of the peak of 955.6 MiB are avoidable", text)

    def test_what_the_line_made_once_is_no_part_of_the_leak(self):
        for name, bytes_, count, once in (("02_losses_list_after_backward", 299 * 512, 299, 33 << 20),
                                          ("14_eval_logits_gathered_on_gpu", 39 << 22, 39, 33 << 20)):
            with self.subTest(name):
                growth = self.report(fixture(name))["growth"][0]
                self.assertEqual((growth["grown_bytes"], growth["grown_count"], growth["once_bytes"]),
                                 (bytes_, count, once))

    def test_the_time_until_full_is_that_of_all_lines_together(self):
        report = self.report(fixture("12_recurrent_state_not_detached"))
        lines = [g["seconds_until_full"] for g in report["growth"] if g["kind"] == "leak"]
        self.assertEqual(len(lines), 2)
        self.assertAlmostEqual(report["seconds_until_full"], 1 / sum(1 / line for line in lines), delta=1)
        self.assertIn("at the rates of all lines together",
                      " ".join(run(fixture("12_recurrent_state_not_detached"))[1].split()))

    def test_the_time_until_full_is_free_bytes_by_rate_by_the_time_of_a_step_while_it_grew(self):
        # The first handle of the process takes a thousand times as long as each of the 24 that leak.
        for name, microseconds in (("24_cublas_handle_per_call", 107), ("16_best_weights_snapshots_on_gpu", 1260)):
            with self.subTest(name):
                report = self.report(fixture(name))
                driver = report["devices"][0]["driver"]
                steps = (driver["total_bytes"] - driver["max_used_bytes"]) / report["bytes_per_step"]
                self.assertAlmostEqual(report["steps_until_full"], steps, delta=0.02 * steps)
                self.assertAlmostEqual(report["seconds_until_full"], steps * microseconds * 1e-6,
                                       delta=0.05 * steps * microseconds * 1e-6)

    def test_free_memory_that_does_not_serve_is_told_with_the_reason(self):
        for name, part, words in (
                ("30_stream_per_sync_strands_cache", "of_other_streams_bytes", "all in segments of other streams"),
                ("32_kv_cache_grown_by_cat", "too_small_bytes", "all too small, the largest 86 MiB")):
            with self.subTest(name):
                finding = self.report(fixture(name))["fragmentation"][0]["not_served"]
                self.assertEqual(finding[part], finding["free_bytes"])
                self.assertGreaterEqual(finding["free_bytes"], finding["asked_bytes"])
                self.assertIn(words, " ".join(run(fixture(name))[1].split()))
        self.assertIn("one stream, or a few, made once", run(fixture("30_stream_per_sync_strands_cache"))[1])
        small = self.report(self.trace("GrownByCat", 3))["fragmentation"][0]["not_served"]
        self.assertEqual(small["free_bytes"], small["of_other_streams_bytes"] + small["too_small_bytes"] +
                         small["of_other_pools_bytes"])

    def test_a_clean_run_tells_its_peak_and_a_needless_cache_in_a_sentence(self):
        text = " ".join(run(fixture("72_curriculum_longer_sequences"))[1].split())
        self.assertIn("peak 328.0 MiB of tensors in step 19, 193.0 MiB of it made at backward of ", text)
        self.assertIn("that is 0.2 % of the card; in use by all programs then: 4.8 %", text)
        self.assertIn("hint the allocator of device 0 held 1.29 GiB for at most 328.0 MiB of tensors", text)
        self.assertNotIn("hint", self.report(fixture("76_eval_every_ten_steps")))

    def test_a_peak_says_what_took_the_memory_and_what_to_do(self):
        for name, words in (
                ("64_cuda_local_memory_footprint",
                 ("the driver took 792 MiB by itself when a kernel was first launched at ", "arrays on the kernel's "
                  "stack", " lowered by smaller arrays in the kernel")),
                ("46_wrong_device_after_load_2gpu", ("32 MiB made at ", " lie on device 0, which the program no longer used", " lowered by map_location")),
                ("41_foreach_adam_step_peak", (" lowered by foreach=False or fused=True",)),
                ("44_checkpoint_left_on_gpu", (' lowered by loading it with map_location="cpu"',))):
            text = " ".join(run(fixture(name))[1].split())
            for word in words:
                with self.subTest(name, word=word):
                    self.assertIn(word, text)

    def test_advice_stands_under_the_device_it_is_about(self):
        text = run(fixture("46_wrong_device_after_load_2gpu"))[1]
        self.assertLess(text.index("\nPeak of tensors on device 0"), text.index("\n  advice"))
        self.assertLess(text.index("\n  advice"), text.index("\nPeak of tensors on device 1"))
        self.assertEqual(text.count("\n  advice"), 1)

    def test_what_no_python_object_keeps_is_explained(self):
        text = " ".join(run(fixture("18_ipc_handle_never_consumed"))[1].split())
        self.assertIn("no Python object (neither del nor gc.collect() frees it): probably shared with", text)
        self.assertIn("freed by the other process", text)
        self.assertIn("freed by destroying the handle", " ".join(run(fixture("24_cublas_handle_per_call"))[1].split()))
        text = " ".join(run(fixture("26_stream_per_request_cublas_workspace"))[1].split())
        self.assertIn("one for each stream", text)
        self.assertIn("freed by torch._C._cuda_clearCublasWorkspaces()", text)

    def test_a_handle_and_its_memory_are_one_leak(self):
        _, text, _ = run(fixture("24_cublas_handle_per_call"))
        self.assertIn("taken by cublasCreate", text)
        self.assertNotIn("object/step", text)
        self.assertIn("\nLive at the end on device 0: 1.5", text)
        self.assertIn("object/step", run("-v", fixture("24_cublas_handle_per_call"))[1])

    def test_a_cache_that_cannot_serve_larger_requests_is_told_from_one_that_is_stranded(self):
        self.assertIn("each request is larger than the one before",
                      self.report(fixture("32_kv_cache_grown_by_cat"))["headline"])
        self.assertIn("what is allocated does not grow",
                      self.report(fixture("30_stream_per_sync_strands_cache"))["headline"])

    def test_the_unattributed_part_is_told_apart_as_far_as_readings_can(self):
        for path in sorted(glob.glob(os.path.join(FIXTURES, "cases", "*.pb"))):
            for account in self.report(path)["accounts"]:
                if not account["at_end"]["measured"]:
                    continue
                self.assertLessEqual(account["context_at_most_bytes"], account["at_end"]["unattributed_before_bytes"])
        _, text, _ = run(fixture("12_recurrent_state_not_detached"))
        for words in ("\n    at the start", "\n    since then"):
            self.assertIn(words, text)
        for words in ("asked for by no call of this program", "taken as kernels were first launched (estimate)"):
            self.assertIn(words, " ".join(text.split()))

    def test_a_leak_of_host_memory_says_so_first(self):
        report = self.report(fixture("22_pinned_staging_buffers_kept"))
        self.assertIn("LEAK: 4 MiB/step of pinned HOST memory (device memory does not grow)", report["headline"])
        text = " ".join(run(fixture("22_pinned_staging_buffers_kept"))[1].split())
        self.assertNotIn("card is full", text)
        self.assertIn(" host is full when is not known", text)
        # One tensor on the device, the rest of what the census met on the host.
        self.assertIn("1 device tensor, 4 MiB of 4 MiB live, and 160 MiB of 160 MiB on the host", text)
        self.assertNotIn("HOST", self.report(fixture("14_eval_logits_gathered_on_gpu"))["headline"])

    def test_what_one_thing_keeps_is_one_leak(self):
        for name, words, kept in (
                # A list keeps results and, through their graph, inputs: two lines.
                ("03_cached_outputs_with_graph", ("LEAK: 250 KiB/step, kept by ", " and the autograd graph of what it holds"),
                 "398 tensors, 48.6 MiB"),
                ("10_lru_cache_tensor_key", ("LEAK: 1.50 MiB/step, ", ".rotary[cached value], …[cached argument] (lru_cache"),
                 "79 blocks (shared by 118 tensors), 59.5 MiB"),
                ("12_recurrent_state_not_detached", ("LEAK: 1.25 MiB/step, kept by the autograd graph of ",), "78 tensors, 48.8 MiB"),
                # Paths that differ in their last key only.
                ("16_best_weights_snapshots_on_gpu", ("LEAK: 8 MiB/step, ", ".kept[…]['0.weight'], …['1.weight'] (list"),
                 "48 tensors, 192 MiB")):
            with self.subTest(name):
                report = self.report(fixture(name))
                for word in words:
                    self.assertIn(word, report["headline"])
                self.assertNotIn("more line", report["headline"])
                self.assertAlmostEqual(report["bytes_per_step"],
                                       sum(g["bytes_per_step"] for g in report["growth"] if g["kind"] == "leak"), delta=1)
                text = " ".join(run(fixture(name))[1].split())
                self.assertIn(" kept " + kept, text)
                # Said once; the other line goes with it.
                lines = sum(g["kind"] == "leak" for g in report["growth"])
                self.assertEqual((text.count("freed by: "), text.count("goes with the fix above")), (1, lines - 1))

    def test_a_remedy_that_frees_a_part_says_so(self):
        text = " ".join(run(fixture("03_cached_outputs_with_graph"))[1].split())
        self.assertIn("(.detach() alone leaves 125 KiB/step)", text)

    def test_remedies_are_in_the_words_of_the_framework(self):
        for name, words, others in (("50_jax_history_of_device_arrays", ("jax.device_get", "39 arrays"), (".cpu()", "tensor,")),
                                    ("53_cupy_row_view_kept", ("(.copy())", "41 device arrays"), (".clone()", "tensor")),
                                    ("14_eval_logits_gathered_on_gpu", (".cpu()", "39 tensors"), ("array", "cupy"))):
            _, text, _ = run(fixture(name))
            text = " ".join(text.split("\n", 1)[1].replace(name, "program").split())
            for word in words:
                with self.subTest(name, word=word):
                    self.assertIn(word, text)
            for word in others:
                with self.subTest(name, word=word):
                    self.assertNotIn(word, text.split("Account of ")[0].replace("0 of tensors", ""))

    def test_a_collector_that_is_switched_off_is_told_where_the_remedy_is(self):
        for name, way in (("05_refcycle_bound_method", "weakref.WeakMethod"), ("07_autograd_ctx_holds_output", "save_for_backward")):
            with self.subTest(name):
                text = " ".join(run(fixture(name))[1].split())
                headline = text[text.index(" freed by "):text.index(" card is full ")]
                for words in ("gc.enable()", "is switched off in this program", way):
                    self.assertIn(words, headline)
                # Those that hold it, of a census before they were gone.
                holders = self.report(fixture(name))["holders"]
                self.assertEqual(holders[0]["tensors"], 40)

    def test_advice_that_gains_nothing_is_not_given(self):
        text = " ".join(run(fixture("46_wrong_device_after_load_2gpu"))[1].split())
        self.assertIn("WRONG DEVICE: 32 MiB ", text)
        self.assertNotIn("peak without it", text)

    def test_growth_of_one_cause_is_explained_in_one_way(self):
        """A workspace for each new stream, and a cache that grows with them."""
        path = fixture("26_stream_per_request_cublas_workspace")
        text = " ".join(run(path)[1].split())
        self.assertNotIn("larger than the one before", text)
        self.assertNotIn("torch.cat", text)
        self.assertIn("goes with the fix above", text)
        self.assertIn("each request is larger than the one before", run(fixture("32_kv_cache_grown_by_cat"))[1].replace("\n  ", " "))

    def test_what_is_freed_after_the_last_step_is_said_not_to_stay(self):
        for name in ("08_stored_exceptions_keep_frames", "20_leak_under_cudamallocasync", "14_eval_logits_gathered_on_gpu"):
            with self.subTest(name):
                growth = self.report(fixture(name))["growth"][0]
                gone = growth["live_bytes_at_end"] < growth["live_bytes"] / 2
                self.assertEqual("freed only after the last one" in growth["explanation"], gone)
                self.assertEqual("until the end" in growth["explanation"], not gone)

    def test_a_rate_that_rises_makes_the_forecast_the_latest_moment(self):
        words = " at the latest in about 2,500 steps, 1.2 s at this rate, which rises itself"
        self.assertIn(words, " ".join(run(fixture("32_kv_cache_grown_by_cat"))[1].split()))
        self.assertTrue(self.report(fixture("32_kv_cache_grown_by_cat"))["rate_rises"])
        for name in ("02_losses_list_after_backward", "24_cublas_handle_per_call", "26_stream_per_request_cublas_workspace"):
            self.assertNotIn("at the latest", run(fixture(name))[1])

    def test_an_estimate_of_time_has_two_digits(self):
        for name, words in (("24_cublas_handle_per_call", r"in about [\d,]+ steps, \d{2}0 ms "), ("10_lru_cache_tensor_key", r" \d{2} min "),
                            ("02_losses_list_after_backward", r" (\d{2} h|\d\.\d d) at this rate: a small leak")):
            with self.subTest(name):
                self.assertRegex(" ".join(run(fixture(name))[1].split()), "card is full .*" + words)

    def test_words_are_not_cut(self):
        """Every name that is shortened is cut between words, at its end."""
        for path in sorted(glob.glob(os.path.join(FIXTURES, "cases", "*.pb"))):
            for part in run(path)[1].replace("[…]", "").replace("(…)", "").split("…")[:-1]:
                self.assertIn(part[-1:], (" ", "\n"), (path, part[-40:]))

    def test_a_run_says_what_was_looked_at_and_that_nothing_failed(self):
        text = " ".join(run(self.trace("Healthy"))[1].split())
        self.assertRegex(text, r" checked for growth: tensors of \d+ lines?, ")
        self.assertIn("no allocation failed for lack of memory", text)
        self.assertNotIn("no allocation failed", run(self.trace("OutOfMemory"))[1])
        roles = " ".join(run(fixture("03_cached_outputs_with_graph"))[1].split())
        parts = re.search(r"a census tells ([\d.]+) % of it, ([\d.]+) % from when it was born and who freed it, "
                          r"([\d.]+) % are not known", roles)
        self.assertAlmostEqual(sum(float(part) for part in parts.groups()), 100, delta=0.2)

    def test_native_code_without_lines_says_what_is_missing(self):
        self.assertIn("build it with -g", " ".join(run(fixture("60_cuda_forgotten_buffers"))[1].split()))

    def test_a_healthy_run_fits_a_screen(self):
        for path in [fixture(name) for name in HEALTHY] + [self.trace("Healthy"), self.trace("NativeHealthy")]:
            with self.subTest(path):
                code, text, _ = run(path)
                self.assertEqual(code, 0)
                self.assertLessEqual(text.count("\n"), 50, text)
                self.assertIn("\nno leak found in ", text)
                self.assertIn("\n  checked ", text)

    def test_no_line_is_wider_than_the_page(self):
        for path in sorted(glob.glob(os.path.join(FIXTURES, "cases", "*.pb"))):
            _, text, errors = run(path)
            self.assertEqual(errors, "", "progress belongs on a terminal")
            # The first line is the path that was given; a single word may be longer than a line.
            wide = [line for line in text.splitlines()[1:] if len(line) > 100 and len(line.split()) > 6]
            self.assertEqual(wide, [], path)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
