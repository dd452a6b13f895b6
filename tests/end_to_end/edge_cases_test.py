"""Programs that make life hard for a preloaded library behave under the shim as they do without it, and their
traces are complete."""

import os
import signal
import subprocess
import unittest

import harness
from harness import BINARIES, EndToEndTest, Ledger

SHARED = os.path.join(BINARIES, "edge_cases")
STATIC = os.path.join(BINARIES, "edge_cases_static")
PLUGIN = os.path.join(BINARIES, "libedge_plugin_13.so")
PLUGIN_12 = os.path.join(BINARIES, "libedge_plugin_12.so")
SECOND = os.path.join(BINARIES, "libsecond_preload.so")
SANITIZED = bool(harness.SANITIZER)
THREAD_SANITIZED = "libtsan" in harness.SANITIZER


class Base(EndToEndTest):
    def case(self, name, *arguments, binary=SHARED, plugin=PLUGIN, **options):
        return self.same([binary, plugin, name, *arguments], **options)

    def ledger_case(self, name, *arguments, binary=SHARED):
        """Runs a case and returns its report and the driver's ledger."""
        path = os.path.join(self.folder, "ledger")
        result = self.case(name, *arguments, binary=binary, extra={"SIMULATED_CUDA_LEDGER": path})
        return result, self.one_report(result), Ledger(path)


    def check_traces(self, result, every=10):
        """The reports of the parent's trace and of some of its children's: each takes an analyzer of its own."""
        traces = sorted(result.traces(), key=os.path.getsize)
        return [self.analyze(trace) for trace in traces[:-1][::every] + traces[-1:]]


class ControlFlow(Base):
    def test_throw_through_frames(self):
        for binary in (SHARED, STATIC):
            with self.subTest(binary=binary):
                self.setUp()
                result, report, ledger = self.ledger_case("throw_through_frames", binary=binary)
                self.assertEqual(ledger.live, [])
                self.assertEqual(self.live(report, "segments"), (0, 0))

    def test_longjmp_over_frames(self):
        result, report, ledger = self.ledger_case("longjmp_over_frames")
        self.assertEqual(ledger.live, [])
        self.assertEqual(self.live(report, "segments"), (0, 0))

    def test_alternate_signal_stack(self):
        self.one_report(self.case("alternate_signal_stack"))

    def test_signal_state_and_errno(self):
        self.one_report(self.case("signal_state_and_errno"))


class Threads(Base):
    def check_empty(self, name, *arguments, events):
        result, report, ledger = self.ledger_case(name, *arguments)
        self.assertEqual(ledger.live, [])
        self.assertEqual(self.live(report, "segments"), (0, 0))
        self.assertEqual(harness.losses(report), 0)
        self.assertGreaterEqual(report["events"]["segments"], events)

    def test_thread_local_destructors(self):
        self.check_empty("thread_local_destructors", events=20 * 8 * 4)

    @unittest.skipIf(THREAD_SANITIZED, "ThreadSanitizer has dropped its state of the thread by then")
    def test_thread_key_destructors(self):
        self.check_empty("thread_key_destructors", events=100 * 8)

    def test_small_stacks(self):
        self.check_empty("small_stacks", events=160 * 10)

    def test_thousands_of_threads(self):
        self.check_empty("many_threads", "800" if SANITIZED else "10000", events=800 * 10)

    def test_all_at_once(self):
        result, report, ledger = self.ledger_case("all_at_once")
        self.assertEqual(self.live(report, "segments"), (ledger.bytes("device"), ledger.count("device")))
        self.assertEqual(ledger.count("device"), 64)

    def test_detached_at_exit(self):
        self.one_report(self.case("detached_at_exit"))


class Ends(Base):
    def dies(self, how):
        path = os.path.join(self.folder, "ledger")
        result = self.case("die", how, extra={"SIMULATED_CUDA_LEDGER": path})
        ledger = Ledger(path)
        self.assertEqual(ledger.count("device"), 100)
        report = self.one_report(result)
        self.assertEqual(self.live(report, "segments"), (ledger.bytes("device"), 100))
        return result

    def test_exit(self):
        self.assertEqual(self.dies("exit").code, 9)

    def test__exit(self):
        self.assertEqual(self.dies("_exit").code, 7)

    def test_exec(self):
        self.assertIn("after exec", self.dies("exec").out)

    def test_abort(self):
        self.assertEqual(self.dies("abort").code, -signal.SIGABRT)

    def test_sigterm(self):
        self.assertEqual(self.dies("SIGTERM").code, -signal.SIGTERM)

    def test_sigint(self):
        self.assertEqual(self.dies("SIGINT").code, -signal.SIGINT)

    def test_sigsegv(self):
        self.assertEqual(self.dies("SIGSEGV").code, -signal.SIGSEGV)

    def test_sigkill(self):
        self.assertEqual(self.dies("SIGKILL").code, -signal.SIGKILL)

    def test_static_objects(self):
        path = os.path.join(self.folder, "ledger")
        result = self.same([os.path.join(BINARIES, "static_objects")], extra={"SIMULATED_CUDA_LEDGER": path})
        ledger = Ledger(path)
        report = self.one_report(result)
        self.assertEqual(self.live(report, "segments"), (ledger.bytes("device"), ledger.count("device")))
        self.assertEqual(result.code, 3)


class Processes(Base):
    def test_fork_before_cuda(self):
        result = self.case("fork_before_cuda")
        # One trace for each child that used CUDA, and one for the parent.
        self.assertEqual(len(result.traces()), 21, result.raw_err)
        self.check_traces(result)

    def test_fork_after_cuda(self):
        result = self.case("fork_after_cuda")
        self.check_traces(result)

    @unittest.skipIf(THREAD_SANITIZED, "a fork amid other threads can leave ThreadSanitizer's own locks held in the child")
    def test_fork_storm(self):
        result = self.case("fork_storm")
        self.check_traces(result)

    def test_fork_grandchildren(self):
        result = self.case("fork_grandchildren")
        self.assertEqual(len(result.traces()), 1, result.raw_err)

    @unittest.skipIf(THREAD_SANITIZED, "ThreadSanitizer's runtime, preloaded, changes what system() returns")
    def test_spawn_and_exec(self):
        result = self.case("spawn_and_exec")
        # true, false, sh and echo leave nothing behind.
        self.assertEqual(len(result.traces()), 1, result.raw_err)
        self.assertLessEqual(len(result.said), 1)


class Files(Base):
    def test_closes_all_descriptors(self):
        result, report, ledger = self.ledger_case("closes_all_descriptors")
        self.assertIn("file has 4 bytes", result.out)
        self.assertEqual(harness.losses(report), 0)
        self.assertGreaterEqual(report["events"]["segments"], 2 * 20500)

    def test_low_descriptors_stay_free(self):
        self.one_report(self.case("lists_low_descriptors"))

    def test_unwritable_output(self):
        result = self.case("die", "exit", extra={"GPUMEMTRACE_OUT": "/proc/no/such/folder/trace.pb"})
        self.assertEqual(result.traces(), [])
        self.assertEqual(len(result.said), 1, result.raw_err)

    def test_existing_file_is_not_overwritten(self):
        folder = os.path.join(self.folder, "with")
        os.makedirs(folder)
        with open(os.path.join(folder, "trace.pb"), "w") as f:
            f.write("mine")
        result = self.case("die", "exit")
        with open(os.path.join(folder, "trace.pb")) as f:
            self.assertEqual(f.read(), "mine")
        self.assertEqual([os.path.basename(t) for t in result.traces()], ["trace.2.pb", "trace.pb"])

    def test_off_switch(self):
        result = self.case("die", "exit", extra={"GPUMEMTRACE": "0"})
        self.assertEqual((result.traces(), result.said), ([], []))


class Loading(Base):
    def test_dlopen_dlclose_loop(self):
        result, report, ledger = self.ledger_case("dlopen_dlclose_loop")
        self.assertEqual(self.live(report, "segments"), (ledger.bytes("device"), ledger.count("device")))

    def test_two_runtimes(self):
        # The plug-in brings libcudart.so.12 into a process that has .so.13.
        result = self.case("dlopen_dlclose_loop", plugin=PLUGIN_12)
        self.one_report(result)

    @unittest.skipIf(SANITIZED, "sanitizers refuse RTLD_DEEPBIND")
    def test_dlopen_deepbind(self):
        report = self.one_report_or_none(self.case("dlopen_deepbind"))
        self.reached_or_named(report, 1)

    @unittest.skipIf(SANITIZED, "a second namespace has no sanitizer runtime")
    def test_dlmopen_new_namespace(self):
        report = self.one_report_or_none(self.case("dlmopen_new_namespace", binary=STATIC))
        self.reached_or_named(report, 1)

    def one_report_or_none(self, result):
        return self.one_report(result) if result.traces() else None

    def reached_or_named(self, report, live):
        """A library outside symbol interposition is reached all the same, or the report names it."""
        self.assertIsNotNone(report, "nothing was recorded and nothing was said")
        if self.live(report, "segments")[1] != live:
            notes = str(report.get("completeness")) + str(report.get("notes"))
            self.assertIn("libedge_plugin_13.so", notes)

    def test_failing_lookups(self):
        self.case("failing_lookups")

    def test_lookups_by_hand(self):
        result, report, ledger = self.ledger_case("lookups_by_hand")
        self.assertEqual(ledger.count("device"), 4)
        self.assertEqual(self.live(report, "segments"), (1000, 4))

    def test_next_of_the_caller(self):
        self.one_report(self.case("next_of_the_caller"))

    @unittest.skipIf(SANITIZED, "the shim itself has a sanitizer here")
    def test_the_first_look_up_of_a_sanitized_program(self):
        for sanitizer in ("address", "thread"):
            with self.subTest(sanitizer=sanitizer):
                self.setUp()
                program = os.path.join(BINARIES, "sanitized_" + sanitizer)
                result = self.same([program], extra={"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"})
                self.assertEqual((result.code, result.out), (5, "sanitized 0\nfound 1\n"))
                self.assertEqual(self.live(self.one_report(result), "segments"), (12345, 1))

    def test_second_preload_before_ours(self):
        self.second_preload((SECOND, "shim"))

    def test_second_preload_after_ours(self):
        self.second_preload(("shim", SECOND))

    def test_other_malloc_before_ours(self):
        self.other_malloc(lambda library: (library, "shim"))

    def test_other_malloc_after_ours(self):
        self.other_malloc(lambda library: ("shim", library))

    @unittest.skipIf(SANITIZED, "a sanitizer brings its own malloc")
    def other_malloc(self, order):
        """jemalloc and tcmalloc as most jobs use them: preloaded."""
        known = subprocess.run(["ldconfig", "-p"], stdout=subprocess.PIPE,
                               env={"PATH": os.environ.get("PATH", "") + ":/sbin:/usr/sbin"}).stdout.decode()
        libraries = {}
        for name in ("libjemalloc.so", "libtcmalloc_minimal.so"):
            for line in known.splitlines():
                if line.strip().startswith(name):
                    libraries.setdefault(name, line.split("=> ")[1].strip())
        for name, library in libraries.items():
            for case in ("all_at_once", "thread_local_destructors", "fork_storm"):
                with self.subTest(library=name, case=case):
                    self.setUp()
                    result = self.case(case, preload=order(library))
                    for report in self.check_traces(result, every=50):
                        self.assertEqual(harness.losses(report), 0)
                    if case == "all_at_once":
                        self.assertEqual(self.live(self.one_report(result), "segments")[1], 64)
        if not libraries:
            self.skipTest("neither libjemalloc nor libtcmalloc_minimal is installed (scripts/setup.sh tries)")

    @unittest.skipIf(THREAD_SANITIZED, "ThreadSanitizer's runtime and that preload do not get on, without us either")
    def second_preload(self, preload):
        result = self.case("all_at_once", preload=preload)
        self.assertIn("second preload saw", result.out)
        report = self.one_report(result)
        self.assertEqual(self.live(report, "segments")[1], 64)


class Interfaces(Base):
    KINDS = ("device", "managed", "pool", "graph", "array")

    def check(self, binary):
        result, report, ledger = self.ledger_case("all_interfaces", binary=binary)
        self.assertEqual(self.live(report, "segments"), (ledger.bytes(*self.KINDS), ledger.count(*self.KINDS)))
        self.assertEqual(self.live(report, "segments", device=-1),
                         (ledger.bytes("pinned", "registered"), ledger.count("pinned", "registered")))

    def test_shared_runtime(self):
        self.check(SHARED)

    def test_static_runtime(self):
        self.check(STATIC)

    def test_driver_only(self):
        path = os.path.join(self.folder, "ledger")
        result = self.same([os.path.join(BINARIES, "driver_only")], extra={"SIMULATED_CUDA_LEDGER": path})
        ledger = Ledger(path)
        self.assertEqual(ledger.bytes("physical"), 2 << 21)
        report = self.one_report(result)
        self.assertEqual(self.live(report, "segments")[0], ledger.bytes("device", "physical"))

    def test_device_reset(self):
        result, report, ledger = self.ledger_case("device_reset")
        self.assertEqual(self.live(report, "segments"), (ledger.bytes("device"), 3))

    def test_process_without_cuda(self):
        empty = {"LD_LIBRARY_PATH": ""}
        result = self.same([os.path.join(BINARIES, "without_cuda")], extra=empty)
        self.assertEqual((result.traces(), result.said), ([], []))


if __name__ == "__main__":
    harness.main()
