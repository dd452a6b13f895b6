"""gpumemtrace.py marks with the shim, and does nothing without it."""

import ctypes
import os
import sys
import unittest

import gpumemtrace

PRELOADED = "libgpumemtrace_test" in os.environ.get("LD_PRELOAD", "")


class Module(unittest.TestCase):
    def setUp(self):
        if PRELOADED:
            ctypes.CDLL(None).gpumemtrace_test_clear()

    def test_calls(self):
        self.assertEqual(gpumemtrace.active(), PRELOADED)
        gpumemtrace.mark("begin \N{SNOWMAN}")
        gpumemtrace.step(7)
        gpumemtrace.step()
        with gpumemtrace.phase("forward"):
            pass
        self.assertEqual(gpumemtrace.census(), PRELOADED)
        if not PRELOADED:
            return
        shim = ctypes.CDLL(None)
        shim.gpumemtrace_test_mark.restype = ctypes.c_char_p
        marks = [shim.gpumemtrace_test_mark(i).decode() for i in range(shim.gpumemtrace_test_mark_count())]
        self.assertEqual(marks, ["1 1 |begin \N{SNOWMAN}|0", "4 1 ||7", "4 1 ||8", "2 1 |forward|0", "3 1 ||0"])

    def test_a_mark_survives_an_exception(self):
        with self.assertRaises(KeyError):
            with gpumemtrace.phase("failing"):
                raise KeyError("x")


if __name__ == "__main__":
    sys.exit(unittest.main())
