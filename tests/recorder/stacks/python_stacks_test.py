"""Compares the stacks that the probe captures with what the interpreter itself says about its frames.

usage: python_stacks_test.py PROBE.so
"""
import asyncio
import ctypes
import gc
import os
import signal
import sys
import threading
import unittest

PROBE = sys.argv.pop(1)
RELEASED = ctypes.CDLL(PROBE)  # the GIL is released during a call
HELD = ctypes.PyDLL(PROBE)
for library in (RELEASED, HELD):
    library.probe_capture.restype = ctypes.c_uint64
    library.probe_definitions.restype = ctypes.c_uint64
    library.probe_code_frees.restype = ctypes.c_uint64
    library.probe_text.restype = ctypes.c_size_t
    library.probe_text.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
    library.probe_libunwind_walks.restype = ctypes.c_uint64
    library.probe_reason.restype = ctypes.c_char_p
CALLBACK = ctypes.CFUNCTYPE(None)


# Decoders of the three line-table formats (CPython: Objects/lnotab_notes.txt, Objects/locations.md).
def line_of(table, first_line, offset):
    if offset < 0:
        return first_line
    if sys.version_info < (3, 10):
        address, line = 0, first_line
        for i in range(0, len(table) - 1, 2):
            address += table[i]
            if address > offset:
                break
            delta = table[i + 1]
            line += delta - 256 if delta >= 128 else delta
        return line
    if sys.version_info < (3, 11):
        end, line = 0, first_line
        for i in range(0, len(table) - 1, 2):
            end += table[i]
            delta = table[i + 1] - 256 if table[i + 1] >= 128 else table[i + 1]
            if delta != -128:
                line += delta
            if end > offset:
                return None if delta == -128 else line
        return None
    end, line, i = 0, first_line, 0
    while i < len(table):
        code = table[i] >> 3 & 15
        end += ((table[i] & 7) + 1) * 2
        i += 1
        delta = 0
        if code in (13, 14):
            value, shift = 0, 0
            while True:
                byte = table[i]
                i += 1
                value |= (byte & 63) << shift
                shift += 6
                if not byte & 64:
                    break
            delta = -(value >> 1) if value & 1 else value >> 1
        elif 10 <= code <= 12:
            delta = code - 10
        line += delta
        while i < len(table) and not table[i] & 128:
            i += 1
        if end > offset:
            return None if code == 15 else line
    return None


class Frame:
    def __init__(self, words):
        text = [bytes.fromhex(word.rstrip(".")) for word in (words[0], words[1], words[5])]
        self.file, self.name, self.table = os.fsdecode(text[0]), os.fsdecode(text[1]), text[2]
        self.first_line, self.instruction, self.entry = int(words[2]), int(words[3]), words[4] == "1"
        self.line = line_of(self.table, self.first_line, self.instruction)

    def __repr__(self):
        return "%s:%s %s%s" % (self.file, self.line, self.name, " (entry)" if self.entry else "")


def stack_text(number, library=RELEASED):
    size = library.probe_text(number, None, 0) + 1
    buffer = ctypes.create_string_buffer(size)
    library.probe_text(number, buffer, size)
    return buffer.value.decode()


def python_frames(number, library=RELEASED):
    lines = stack_text(number, library).splitlines()
    bad = [line for line in lines if not line.startswith(("python ", "native "))]
    assert not bad, bad
    return [Frame(line.split()[1:]) for line in lines if line.startswith("python ")]


def native_frames(number, library=RELEASED):
    return [tuple(line.split()[1:]) for line in stack_text(number, library).splitlines() if line.startswith("native ")]


def name_of(code):
    return getattr(code, "co_qualname", code.co_name)


def expected():
    """The caller's stack as the interpreter tells it: file, name, line, last instruction."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        found.append((frame.f_code.co_filename, name_of(frame.f_code), frame.f_lineno, frame.f_lasti))
        frame = frame.f_back
    return found


checks = 0


def compare(number, wanted, library=RELEASED):
    """The innermost frame went on by some instructions of the same line between the two looks."""
    global checks
    checks += 1
    assert number != 0
    got = python_frames(number, library)
    assert [(f.file, f.name, f.line) for f in got] == [w[:3] for w in wanted], "\n%s\n%s" % (got, wanted)
    assert [f.instruction for f in got[1:]] == [w[3] for w in wanted[1:]], "\n%s\n%s" % (got, wanted)
    return got


class Stacks(unittest.TestCase):
    def both(self):
        for to_python in (0, 1):
            self.assertEqual(RELEASED.probe_native_equals_libunwind(to_python), 1)
        for library in (RELEASED, HELD):
            number, wanted = library.probe_capture(0, 128, 256), expected()
            compare(number, wanted, library)

    def test_interpreter_is_found(self):
        self.assertTrue(RELEASED.probe_supported(), RELEASED.probe_reason())
        self.assertEqual(ctypes.c_uint(RELEASED.probe_version()).value, sys.hexversion)

    def test_function(self):
        self.both()

    def test_several_lines(self):
        number, wanted = RELEASED.probe_capture(
            0,
            128,
            256,
        ), expected()
        got = python_frames(number)
        self.assertEqual([(f.file, f.name) for f in got], [w[:2] for w in wanted])
        self.assertEqual([f.line for f in got[1:]], [w[2] for w in wanted[1:]])

    def test_recursion(self):
        def down(depth):
            if depth:
                return down(depth - 1)
            return self.both()

        for depth in (1, 5, 60, 200):
            down(depth)

    def test_limit_keeps_the_innermost(self):
        def down(depth):
            if depth:
                return down(depth - 1)
            number, wanted = RELEASED.probe_capture(0, 128, 10), expected()
            return compare(number, wanted[:10])

        self.assertEqual(len(down(30)), 10)

    def test_generator(self):
        def inner():
            self.both()
            yield 1
            self.both()
            yield 2

        def outer():
            yield from inner()
            self.both()

        self.assertEqual(list(outer()), [1, 2])
        for value in outer():
            self.assertIn(value, (1, 2))
        generator = (self.both() for _ in range(3))
        next(generator)
        list(generator)

    def test_comprehension_and_lambda(self):
        [self.both() for _ in range(2)]
        {self.both(): 1 for _ in range(2)}
        (lambda: self.both())()
        sorted([3, 1, 2], key=lambda value: (self.both(), value)[1])

    def test_coroutines(self):
        async def leaf():
            self.both()
            await asyncio.sleep(0)
            self.both()

        async def generator():
            self.both()
            yield 1
            await leaf()
            yield 2

        async def branch():
            await leaf()
            async for _ in generator():
                self.both()
            await asyncio.gather(leaf(), leaf())

        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(branch())
        finally:
            loop.close()

    def test_class_body_and_decorator(self):
        outer = self

        def decorate(function):
            outer.both()
            return function

        class Body:
            outer.both()

            @decorate
            def method(self):
                outer.both()

            @property
            def value(self):
                outer.both()
                return 1

        Body().method()
        self.assertEqual(Body().value, 1)

    def test_exec_and_eval(self):
        exec(compile("\n\n\nself.both()\n", "<made up>", "exec"), {"self": self})
        eval(compile("self.both()", "<expression>", "eval"), {"self": self})
        exec("def f():\n  self.both()\n\nclass C:\n  f()\n", {"self": self})

    def test_many_shapes_of_line_tables(self):
        # Long jumps in bytecode and line numbers, forwards and backwards.
        body = ["def f(check, x):"]
        for i in range(300):
            body.append("\n" * (i % 7 * 40) + "  x = x + %d if x else (x,\n %d)[1]" % (i * 1000, i))
            if i % 50 == 0:
                body.append("  check()")
        body.append("  y = [check() for _ in (1,\n\n\n2)]\n  check()")
        scope = {}
        exec(compile("\n".join(body), "<shapes>", "exec"), scope)
        scope["f"](self.both, 1)

    def test_names_that_are_not_ascii(self):
        scope = {"self": self}
        for name in ("caf\u00e9.py", "\u65e5\u672c\u8a9e.py", "\U0001f40d.py", "bad\udcff\udc80.py"):
            exec(compile("def \u540d\u524d():\n  self.both()\n\u540d\u524d()", name, "exec"), scope)

    def test_exceptions(self):
        try:
            raise ValueError
        except ValueError:
            self.both()
        finally:
            self.both()

        class Manager:
            def __enter__(this):
                self.both()

            def __exit__(this, *rest):
                self.both()
                return True

        with Manager():
            raise KeyError

    def test_destructors_and_operators(self):
        class Thing:
            def __del__(this):
                self.both()

            def __add__(this, other):
                self.both()
                return 1

            def __eq__(this, other):
                self.both()
                return True

        self.assertEqual(Thing() + Thing(), 1)
        [Thing()].index(Thing())
        cycle = Thing()
        cycle.cycle = cycle
        del cycle
        gc.collect()

    def test_trace_function(self):
        def trace(frame, event, argument):
            number, wanted = RELEASED.probe_capture(0, 128, 256), expected()
            compare(number, wanted)
            return None

        def traced():
            return 1

        old = sys.gettrace()
        sys.settrace(trace)
        try:
            traced()
        finally:
            sys.settrace(old)

    def test_callbacks_from_c(self):
        seen = []

        def called():
            number, wanted = RELEASED.probe_capture(0, 128, 256), expected()
            seen.append(compare(number, wanted))

        RELEASED.probe_call(CALLBACK(called))
        HELD.probe_call(CALLBACK(called))
        for frames in seen:
            self.assertTrue(frames[0].entry)
            self.assertTrue(frames[-1].entry)

        def plain():
            called()

        plain()
        if sys.version_info < (3, 11):
            self.assertTrue(all(frame.entry for frame in seen[-1]))
        else:
            # Python called by Python stays in one run of the evaluation loop.
            self.assertFalse(seen[-1][0].entry)
            self.assertFalse(seen[-1][1].entry)

    def test_signal_handler(self):
        ran = []

        def handler(number, frame):
            ran.append(1)
            self.both()

        old = signal.signal(signal.SIGUSR1, handler)
        try:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGUSR1)
                sum(range(100))
        finally:
            signal.signal(signal.SIGUSR1, old)
        self.assertTrue(ran)

    def test_threads(self):
        problems = []

        def work():
            try:
                for _ in range(20):
                    self.both()
            except BaseException as error:  # noqa: B902, reported below
                problems.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])

    def test_thread_that_ends(self):
        def work():
            RELEASED.probe_capture_at_thread_end()
            self.both()

        threads = [threading.Thread(target=work) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def test_fork(self):
        self.both()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                RELEASED.probe_after_fork()
                self.both()
                thread = threading.Thread(target=self.both)
                thread.start()
                thread.join()
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_the_same_stack_has_the_same_number(self):
        # The interpreter specializes a call after some runs, and then takes another way through its C code.
        numbers = [RELEASED.probe_capture(2, 128, 256) for _ in range(100)]
        self.assertEqual(len(set(numbers[-20:])), 1)
        self.assertLess(len(set(numbers)), 5)
        one, other = RELEASED.probe_capture(2, 128, 256), RELEASED.probe_capture(2, 128, 256)
        self.assertNotEqual(one, other)  # two places in this line
        before = RELEASED.probe_definitions()
        for _ in range(50):
            RELEASED.probe_capture(2, 128, 256)
        self.assertLess(RELEASED.probe_definitions() - before, 5)

    def test_recycled_code_objects_are_told_apart(self):
        # Each round's code object may lie where the last one lay, down to its strings and tables.
        scope = {"self": self, "capture": RELEASED.probe_capture}
        for i in range(300):
            scope["wanted"] = "<cell %03d>" % i
            exec(compile("number = capture(0, 128, 256)", scope["wanted"], "exec"), scope)
            self.assertEqual(python_frames(scope["number"])[0].file, scope["wanted"])
        for i in range(300):
            blank = i % 40 + 1
            exec(compile("x = 1\n" + "\n" * blank + "number = capture(0, 128, 256)", "<same>", "exec"), scope)
            frame = python_frames(scope["number"])[0]
            self.assertEqual((frame.file, frame.line), ("<same>", blank + 2))
        for i in range(300):
            name = "f%03d" % i
            exec(compile("def %s(): return capture(0, 128, 256)\nnumber = %s()\ndel %s" % (name, name, name), "<s>", "exec"), scope)
            self.assertEqual(python_frames(scope["number"])[0].name, name)

    def test_freed_code_objects_are_counted(self):
        # Where they are not, stacks are right, too, but slower.
        before = RELEASED.probe_code_frees()
        self.assertGreater(before, 0)
        for _ in range(100):
            compile("1", "<freed>", "exec")
        self.assertGreaterEqual(RELEASED.probe_code_frees() - before, 100)

    def test_code_that_takes_the_place_of_other_code(self):
        # Frames, caller and instruction are the same; what runs there is not, for some rounds, and then is again.
        scope = {"capture": RELEASED.probe_capture}
        texts = ["number = capture(0, 128, 256)", "number = capture(0, 128, 256); x = 1"]
        for i in range(200):
            name = "<place %d>" % (i // 3 % 7)
            code = compile(texts[i % 2], name, "exec")
            for _ in range(3):
                exec(code, scope)
                frame = python_frames(scope["number"])[0]
                self.assertEqual((frame.file, frame.line), (name, 1))
            del code

    def test_compiling_again_gives_the_same_number(self):
        scope = {"capture": RELEASED.probe_capture}
        numbers, kept = set(), []
        for _ in range(50):
            code = compile("number = capture(0, 128, 256)", "<again>", "exec")
            kept.append(code)
            exec(code, scope)
            numbers.add(scope["number"])
        # 3.11 counts a specialized call as the instruction before it.
        self.assertLessEqual(len(numbers), 2 if sys.version_info[:2] == (3, 11) else 1)

    def test_native_stack_ends_at_the_evaluation_loop(self):
        to_python = native_frames(RELEASED.probe_capture(1, 128, 256))
        full = native_frames(RELEASED.probe_capture(2, 512, 256))
        none = native_frames(RELEASED.probe_capture(0, 128, 256))
        self.assertEqual(none, [])
        self.assertLess(len(to_python), len(full))
        # Same calls but for the return address into the evaluation loop.
        self.assertEqual(to_python[:-1], full[: len(to_python) - 1])
        self.assertTrue(any("ctypes" in path for path, _ in to_python), to_python)
        for path, _ in to_python + full:
            self.assertNotEqual(os.path.realpath(path), os.path.realpath(PROBE))
            self.assertTrue(path.startswith(("/", "linux-vdso")), path)

    def test_walking_under_stress(self):
        stop = threading.Event()
        problems = []

        def disturb():
            while not stop.is_set():
                sys._current_frames()
                gc.collect()

        def generate(depth):
            if depth:
                yield from generate(depth - 1)
            number, wanted = RELEASED.probe_capture(1, 128, 256), expected()
            compare(number, wanted)
            yield depth

        def work(seed):
            try:
                for i in range(60):
                    list(generate((seed + i) % 9))
                    exec(compile("\n" * (i % 5) + "f()", "<w%d>" % (seed + i), "exec"), {"f": self.both})
            except BaseException as error:  # noqa: B902, reported below
                problems.append(error)

        disturber = threading.Thread(target=disturb)
        disturber.start()
        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        stop.set()
        disturber.join()
        self.assertEqual(problems, [])


class AtExit(unittest.TestCase):
    def test_after_finalization(self):
        code = (
            "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); l.probe_prepare(); l.probe_capture_at_exit();"
            "l.probe_capture(2, 128, 256)"
        )
        import subprocess

        out = subprocess.run([sys.executable, "-c", code, PROBE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        self.assertEqual((out.returncode, out.stderr), (0, b""))
        self.assertEqual(out.stdout, b"after finalization: without python frames, native stack\n")


if __name__ == "__main__":
    RELEASED.probe_prepare()
    program = unittest.main(exit=False, verbosity=1)
    print("%d stacks compared" % checks)
    sys.stdout.flush()
    sys.exit(0 if program.result.wasSuccessful() and checks > 300 else 1)
