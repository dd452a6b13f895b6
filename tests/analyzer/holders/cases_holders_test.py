"""Who holds it, as the report says it of traces with census packets that real programs left on an H200
(tests/fixtures/cases): for every leak whose mistake is a line that keeps, the holder on that line.

usage: cases_holders_test.py <gpumem-analyze> <folder of fixtures>
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from trace_parts import without_censuses  # noqa: E402

ANALYZER, FOLDER = "", ""

# Program: (line of the mistake, what keeps it, the kind of holder, shape, oldest age in steps at least).
HOLDERS = {
    "02_losses_list_after_backward": (27, ".losses[…]", "name", "float32 ()", 290),
    "03_cached_outputs_with_graph": (23, ".cache[…]", "name", "float32 (32, 1000)", 190),
    "05_refcycle_bound_method": (21, "Block.impl.__self__", "cycle", "float32 (1024, 1024)", 35),
    "07_autograd_ctx_holds_output": (21, "ctx of", "cycle", "float32 (512, 512)", 35),
    "08_stored_exceptions_keep_frames": (28, ".failures[…]", "name", "float32 (512, 1024)", 35),
    "10_lru_cache_tensor_key": (16, ".rotary[cached", "name", "float32 (1024, 256)", 35),
    "12_recurrent_state_not_detached": (22, "the autograd graph of", "autograd", "float32 (256, 1024)", 35),
    "14_eval_logits_gathered_on_gpu": (24, ".logits_all[…]", "name", "float32 (256, 4096)", 35),
    "16_best_weights_snapshots_on_gpu": (28, ".kept[…]", "name", "float32 (1024, 1024)", 20),
    "20_leak_under_cudamallocasync": (23, ".audit[…]", "name", "float32 (1024, 1024)", 35),
    "22_pinned_staging_buffers_kept": (22, ".in_flight[…]", "name", "float32 (1024, 1024)", 35),
    # Old recordings of it name the array that a kept row is a view of, newer ones the row.
    "53_cupy_row_view_kept": (19, ".headers[…]", "name", None, 35),
}
# No hook shows the arrays in JAX's pool: the census alone knows them. Line, path, tensors, shape, bytes per step.
POOLED = {"50_jax_history_of_device_arrays": (36, ".history[…]", 39, "float32 (1024, 1024)", 4 << 20)}


def report(name):
    path = name if name.endswith(".pb") else os.path.join(FOLDER, name + ".pb")
    done = subprocess.run([ANALYZER, "--json", path], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.decode())


class CasesHoldersTest(unittest.TestCase):
    def test_each_leak_names_its_holder(self):
        for name, (line, text, kind, shape, age) in HOLDERS.items():
            with self.subTest(name):
                found = [held for growth in report(name)["growth"] if growth["kind"] == "leak"
                         for held in growth.get("holders", [])[:1]
                         if line in [held["line"]] + held.get("more_lines", []) and os.path.basename(held["file"]) == name + ".py"]
                fits = [held for held in found if text in held["text"] and held["kind"] == kind]
                self.assertTrue(fits, found)
                held = fits[0]
                self.assertTrue(shape is None or held["shape"] == shape, held["shape"])
                self.assertGreaterEqual(held["oldest_steps"], age)
                self.assertLessEqual(held["youngest_steps"], 3)
                self.assertGreaterEqual(held["tensors"], 20)
                self.assertGreater(held["bytes"], 0)

    def test_arrays_of_a_pool_without_hooks_are_told_with_the_leak(self):
        for name, (line, text, tensors, shape, bytes_per_step) in POOLED.items():
            with self.subTest(name):
                told = report(name)
                leak = next(growth for growth in told["growth"] if growth["kind"] == "leak")
                held = leak["held_by"]
                self.assertEqual((held["line"], held["tensors"], held["shape"]), (line, tensors, shape))
                self.assertIn(text, held["path"])
                self.assertIn("census", held["reason"])
                self.assertEqual(leak["bytes_from"], "the census")
                self.assertAlmostEqual(leak["bytes_per_step"], bytes_per_step, delta=bytes_per_step // 50)
                self.assertNotIn("oldest_steps", held)  # the pool's segments say nothing of the arrays
                self.assertEqual(told["holders"][0]["path"], held["path"])

    def test_the_peak_by_role_sums_up(self):
        seen = 0
        for name in sorted(HOLDERS):
            for peak in report(name)["peak_roles"]:
                self.assertEqual(sum(peak["roles"].values()), peak["bytes"], name)
                seen += peak["bytes"] > 0
        self.assertGreaterEqual(seen, 8)

    def test_adam_has_its_roles(self):
        # By the program's header: parameters, gradients and temporaries 64 MiB each, two moments, and cuBLAS workspaces.
        peak = report("41_foreach_adam_step_peak")["peak_roles"][0]
        mib = {name: round(size / 2 ** 20) for name, size in peak["roles"].items()}
        self.assertEqual(mib, {"unknown": 0, "parameters": 64, "buffers": 0, "gradients": 64, "optimizer state": 128,
                               "activations": 0, "workspaces": 64, "temporaries": 64})
        self.assertEqual(peak["from_census"], (256 << 20) + 512)  # the last is the loss

    def test_gradients_that_no_census_saw(self):
        """Parts of the trace with censuses that saw gradients are left out: they are still told, as an inference."""
        name = "41_foreach_adam_step_peak"
        whole = report(name)
        grown = [census["number"] for census in whole["censuses"] if census["trigger"] == "growth"]
        self.assertTrue(grown)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.pb")
            with open(os.path.join(FOLDER, name + ".pb"), "rb") as source, open(path, "wb") as target:
                target.write(without_censuses(source.read(), grown))
            peak = report(path)["peak_roles"][0]
        mib = {role: round(size / 2 ** 20) for role, size in peak["roles"].items()}
        self.assertEqual((mib["gradients"], mib["parameters"], mib["optimizer state"], mib["temporaries"]), (64, 64, 128, 64))
        self.assertEqual(peak["from_census"], 192 << 20)


if __name__ == "__main__":
    ANALYZER, FOLDER = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
