"""The moments at which a census is taken, with the recorder's side played by Python.

usage: python install_test.py [-v]
"""
import gc
import os
import signal
import subprocess
import sys
import threading
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
            '_sources': [(load.title(name), load.read(name)) for name in load.FILES]}
        exec(compile(load.read('install.py'), load.title('install.py'), 'exec'), self.space)

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

    def test_one_at_a_time(self):
        """A signal or an out-of-memory error in the middle of a census: the one that runs goes on, no other begins."""
        recorder = self.make()
        recorder.install()
        emit, inside = recorder.emitted.append, []

        def interrupted(data):
            inside.append(recorder.space['report'](4))
            recorder.space['_out_of_memory'](0, 1, 2, 3)
            emit(data)
        recorder.space['_native_emit'] = interrupted
        recorder.space['report'](3)
        self.assertEqual((inside, recorder.begun, len(recorder.emitted)), ([0.0], [3], 1))
        recorder.space['report'](5)
        self.assertEqual(recorder.begun, [3, 5])

    def test_child_that_another_thread_forks_in_the_middle(self):
        """It has the collector and can take its own census."""
        recorder = self.make()
        recorder.install()
        recorder.space['report'](3)
        status = []

        def fork(result, trigger):
            def work():
                child = os.fork()
                if child == 0:
                    took = recorder.space['report'](5)
                    os._exit(7 if gc.isenabled() and took > 0 and recorder.begun == [3, 4, 5] else 1)
                status.append(os.waitpid(child, 0)[1] >> 8)
            recorder.space['encode'] = encode  # the child encodes its own
            gc.disable()  # as it is while a census looks around
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            gc.enable()
            return encode(result, trigger)
        encode, recorder.space['encode'] = recorder.space['encode'], fork
        recorder.space['report'](4)
        self.assertEqual((status, recorder.failed, len(recorder.emitted)), ([7], [], 2))

    def test_torch_compile_lets_go_of_the_thread(self):
        """torch.compile would compile what the census calls; an error in the census changes nothing of that."""
        module = types.ModuleType('torch._C._dynamo.eval_frame')
        recorder = self.make()
        recorder.install()
        self.assertIsNone(recorder.space['_pause_compiler']())
        sys.modules[module.__name__] = module
        try:
            self.assertIsNone(recorder.space['_pause_compiler']())  # half-imported
            module.set_eval_frame = lambda value: self.fail('code of the program')
            self.assertIsNone(recorder.space['_pause_compiler']())
            # What torch has there is a function of C that gives back what was set before. So is this one.
            for encode in (None, None):
                settings = {None: 'callback'}
                module.set_eval_frame = settings.setdefault
                recorder.space['report'](3)
                self.assertEqual(list(settings), [None, 'callback'])
                recorder.space['encode'] = encode
            self.assertEqual(recorder.failed, ['TypeError'])
            settings = {}
            module.set_eval_frame = settings.setdefault
            recorder.space['report'](3)
            self.assertEqual(list(settings), [None])  # there was nothing to put back
        finally:
            del sys.modules[module.__name__]

    def test_torch_compile_leaves_its_files_alone(self):
        """torch/_dynamo/trace_rules.py skips files whose names match this."""
        recorder = self.make()
        recorder.install()
        recorder.space['report'](3)
        functions = [value for value in recorder.space.values() if type(value) is types.FunctionType]
        self.assertGreater(len(functions), 30)
        for function in functions:
            self.assertRegex(function.__code__.co_filename, r'^[^\s<]*<frozen importlib')

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
