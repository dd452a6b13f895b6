"""A census leaves reference counts, the number of objects, the collector and the frames as they were. The proof is held
to it as well: it must notice what a census that is not harmless would leave behind.

usage: [GPUMEMTRACE_TEST_HEAP=<library>] python harmless_test.py [-v]
"""
import ctypes
import gc
import os
import sys
import unittest
import weakref

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fake_torch  # noqa: E402
from census_case import CENSUS, CensusCase, take  # noqa: E402

Tensor = fake_torch.Tensor


class HarmlessTest(CensusCase):
    def setUp(self):
        super().setUp()
        self.run_in_train('class Trainer:\n    def __init__(self):\n        self.history = []\n'
                          'trainer = Trainer()\n')
        self.train['trainer'].history += [Tensor(4) for _ in range(12)]
        self.train['step'] = (lambda kept: (lambda: kept))([Tensor(4)])
        self.train['model'] = fake_torch.Linear(4, 4)
        self.train['optimizer'] = fake_torch.Optimizer([self.train['model'].weight])
        self.train['optimizer'].step()
        self.train['table'] = {('a', 1): {'b': [Tensor(4)]}}
        # What no name reaches: garbage, and what C alone keeps.
        self.hidden = fake_torch.Hidden([Tensor(4)])
        ring = [Tensor(4)]
        ring.append(ring)
        self.generator = (tensor for tensor in [Tensor(4)])
        next(self.generator)

    def tearDown(self):
        self.hidden.release()
        super().tearDown()

    def differences(self, action, local):
        """What is not the same after `action` as before: names of objects whose reference counts changed, and
        'objects', 'collector' or 'weak references'."""
        action()
        for _ in range(4):
            gc.collect()  # each one untracks tuples whose insides the one before untracked
        trainer = self.train['trainer']
        watched = {'trainer': trainer, 'history': trainer.history, 'tensor': trainer.history[0], 'namespace': self.train,
                   'function': self.train['step'], 'cell': self.train['step'].__closure__[0], 'local': local,
                   'parameter': self.train['model'].weight, 'state': self.train['optimizer'].state, 'key': ('a', 1),
                   'class': type(trainer), 'Tensor': Tensor, 'generator': self.generator, 'None type': type(None),
                   'modules': sys.modules, 'code': self.differences.__code__, 'hidden': self.hidden.get(),
                   'C function': len, 'str type': str}
        weak = weakref.ref(trainer)
        references = {name: sys.getrefcount(value) for name, value in watched.items()}
        objects = len(gc.get_objects())
        collector, count = gc.isenabled(), weakref.getweakrefcount(trainer)
        for _ in range(3):
            action()
        gc.collect()
        objects -= len(gc.get_objects())
        after = {name: sys.getrefcount(value) for name, value in watched.items()}
        result = [name for name in watched if after[name] != references[name]]
        del after
        if objects != 0:
            result.append('objects')
        if gc.isenabled() != collector:
            result.append('collector')
        if weakref.getweakrefcount(trainer) != count or weak() is not trainer:
            result.append('weak references')
        return result

    def test_nothing_changes(self):
        gc.disable()
        try:
            self.assertEqual(self.differences(take, Tensor(4)), [])
        finally:
            gc.enable()
        self.assertEqual(self.differences(take, Tensor(4)), [])

    def test_nothing_changes_when_the_time_runs_out(self):
        for budget in (0.0, 1e-4, 1e-3):
            self.assertEqual(self.differences(lambda: take(budget=budget), Tensor(4)), [])

    def test_nothing_changes_with_frozen_objects(self):
        gc.freeze()
        try:
            self.assertEqual(self.differences(take, Tensor(4)), [])
        finally:
            gc.unfreeze()

    @unittest.skipIf('_native_walk' not in CENSUS, 'the walk in C is not under test')
    def test_the_walk_in_c_is_under_test(self):
        calls = []
        walk, CENSUS['_native_walk'] = CENSUS['_native_walk'], lambda arguments: calls.append(0) or walk(arguments)
        try:
            take()
        finally:
            CENSUS['_native_walk'] = walk
        self.assertEqual(len(calls), 1)

    def noticed(self, harm, step='walk_heap'):
        """A census with a step that does some harm besides."""
        original = CENSUS[step]

        def harmful(*arguments):
            result = original(*arguments)
            harm(self.train['trainer'].history)
            return result
        CENSUS[step] = harmful
        try:
            return self.differences(take, Tensor(4))
        finally:
            CENSUS[step] = original

    def test_the_proof_notices_a_lost_reference(self):
        """One Py_INCREF too many, as a walk in C could do it."""
        self.assertIn('history', self.noticed(lambda value: ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))))

    def test_the_proof_notices_what_is_kept(self):
        kept = []
        found = self.noticed(kept.append)
        self.assertIn('history', found)
        kept = []
        self.assertIn('objects', self.noticed(lambda value: kept.append([])))

    def test_the_proof_notices_the_collector(self):
        gc.enable()
        try:
            result = self.differences(lambda: (take(), gc.disable() if gc.isenabled() else gc.enable()), Tensor(4))
        finally:
            gc.enable()
        self.assertIn('collector', result)

    def test_the_proof_notices_weak_references(self):
        kept = []

        class Subclass(weakref.ref):
            pass
        self.assertIn('weak references', self.noticed(lambda value: kept.append(Subclass(self.train['trainer']))))


if __name__ == '__main__':
    unittest.main()
