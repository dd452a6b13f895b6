"""The moments at which a census is taken, with the recorder's side played by Python.

usage: python install_test.py [-v]
"""
import gc
import os
import signal
import subprocess
import sys
import types
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fake_torch  # noqa: E402
import load  # noqa: E402

fake_torch.install()


class Recorder:
    """Stands for recorder/census/census.cc."""

    def __init__(self, automatic=1, number=0, active=True):
        self.active = active
        self.begun, self.emitted, self.failed = [], [], []
        self.space = {
            '__name__': 'gpumemtrace_census', '__builtins__': __builtins__, '_budget': 60.0, '_signal': number,
            '_automatic': automatic, '_native_begin': self.begin, '_native_emit': self.emitted.append,
            '_native_failed': self.failed.append,
            '_sources': [(name, load.read(name)) for name in load.FILES]}
        exec(compile(load.read('install.py'), '<gpumemtrace install.py>', 'exec'), self.space)

    def begin(self, trigger):
        self.begun.append(trigger)
        return self.active

    def install(self):
        return self.space['install']()

    def remove(self):
        import atexit
        atexit.unregister(self.space['_at_exit'])
        if self.space['_before_collection'] in gc.callbacks:
            gc.callbacks.remove(self.space['_before_collection'])
        tool = self.space['_state']['tool']
        if tool >= 0:
            for code in self.space['_state']['watched']:
                sys.monitoring.set_local_events(tool, code, 0)
            sys.monitoring.free_tool_id(tool)


class InstallTest(unittest.TestCase):
    def make(self, **options):
        recorder = Recorder(**options)
        self.addCleanup(recorder.remove)
        return recorder

    def test_sources_are_compiled_for_the_first_census_only(self):
        recorder = self.make()
        recorder.install()
        self.assertEqual(len(recorder.space['_sources']), len(load.FILES))
        recorder.space['report'](3)
        self.assertEqual(recorder.space['_sources'], [])
        self.assertEqual(recorder.failed, [])
        self.assertEqual(len(recorder.emitted), 1)

    def test_no_census_when_the_recorder_wants_none(self):
        recorder = self.make(active=False)
        recorder.install()
        recorder.space['report'](3)
        self.assertEqual((recorder.begun, recorder.emitted), ([3], []))

    def test_a_failure_is_told_and_does_not_reach_the_program(self):
        recorder = self.make()
        recorder.space['_sources'][:] = [('bad.py', 'raise RuntimeError("x")')]
        recorder.space['report'](3)
        self.assertEqual(recorder.failed, ['RuntimeError'])

    def test_keyboard_interrupt_reaches_the_program(self):
        recorder = self.make()
        recorder.space['_sources'][:] = [('slow.py', 'raise KeyboardInterrupt')]
        with self.assertRaises(KeyboardInterrupt):
            recorder.space['report'](3)
        self.assertFalse(recorder.space['_state']['busy'])

    def test_out_of_memory_observer(self):
        observers = []
        cuda = types.ModuleType('torch.cuda')
        cuda._initialized = False
        sys.modules['torch.cuda'] = cuda
        sys.modules['torch._C']._cuda_attach_out_of_memory_observer = observers.append
        try:
            recorder = self.make()
            recorder.install()
            self.assertEqual(observers, [])  # attaching would initialize CUDA
            cuda._initialized = True
            recorder.install()
            recorder.install()
            self.assertEqual(len(observers), 1)
            for _ in range(50):
                observers[0](0, 1, 2, 3)
            self.assertEqual(recorder.begun, [2, 2, 2])
        finally:
            del sys.modules['torch.cuda']
            del sys.modules['torch._C']._cuda_attach_out_of_memory_observer

    def test_signal(self):
        recorder = self.make(number=signal.SIGUSR2)
        try:
            recorder.install()
            os.kill(os.getpid(), signal.SIGUSR2)
            self.assertEqual(recorder.begun, [4])
        finally:
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)

    def test_signal_handler_of_the_program_stays(self):
        def handler(number, frame):
            pass
        signal.signal(signal.SIGUSR2, handler)
        try:
            self.make(number=signal.SIGUSR2).install()
            self.assertIs(signal.getsignal(signal.SIGUSR2), handler)
        finally:
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)

    def test_before_a_collection_that_the_program_asks_for(self):
        recorder = self.make()
        gc.disable()
        try:
            recorder.install()
            gc.collect(0)
            self.assertEqual(recorder.begun, [])
            gc.collect()
            self.assertEqual(recorder.begun, [6])
            recorder.space['_state']['spent'] = 1000.0
            gc.collect()
            self.assertEqual(recorder.begun, [6])
        finally:
            gc.enable()

    def test_not_by_itself_when_told_so(self):
        recorder = self.make(automatic=0)
        gc.disable()
        try:
            def main():
                recorder.install()
            main()
            gc.collect()
        finally:
            gc.enable()
        self.assertEqual(recorder.begun, [])

    def run_program(self, program):
        environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.abspath(__file__)))
        return subprocess.run([sys.executable, '-c', program], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True).stdout

    def test_at_exit_before_what_was_registered_earlier(self):
        self.assertEqual(self.run_program(
            'import atexit, install_test\n'
            'atexit.register(lambda: print(recorder.begun, len(recorder.emitted)))\n'
            'recorder = install_test.Recorder()\n'
            'recorder.space["install"]()\n'), '[1] 1\n')

    @unittest.skipIf(sys.version_info < (3, 12), 'sys.monitoring is new in 3.12')
    def test_when_the_outermost_function_returns(self):
        self.assertEqual(self.run_program(
            'import install_test\n'
            'recorder = install_test.Recorder()\n'
            'def inner():\n'
            '    recorder.install()\n'
            'def main():\n'
            '    inner()\n'
            '    kept = [install_test.fake_torch.Tensor(4)]\n'
            'main()\n'
            'print(recorder.begun, b"in main \\\'kept\\\'" in recorder.emitted[0])\n'), '[7] True\n')


if __name__ == '__main__':
    unittest.main()
