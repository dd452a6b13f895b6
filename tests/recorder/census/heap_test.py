"""The walk in C against the one in Python, on the same heap.

usage: GPUMEMTRACE_TEST_HEAP=<library> python heap_test.py [-v]
"""
import gc
import os
import sys
import time
import types
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import load  # noqa: E402

IN_C, IN_PYTHON = load.load(), load.load(in_c=False)


class Thing:
    pass


class Slotted:
    __slots__ = ('kept', '__weakref__')


def build():
    """A heap with every kind of link, and the objects to look for: {id: object}."""
    module = types.ModuleType('heap_test_root')
    wanted = {}

    def want(value):
        wanted[id(value)] = value
        return value
    module.direct = want(Thing())
    module.many = [want(Thing()) for _ in range(500)]
    module.nested = {'a': ({'b': [want(Thing())]}, frozenset([want(Thing())]))}
    slotted = Slotted()
    slotted.kept = want(Thing())
    module.slotted = slotted
    module.closure = (lambda value: (lambda: value))(want(Thing()))
    module.method = want(Thing()).__init__
    last = module
    for _ in range(3000):
        last.next = Thing()
        last = last.next
    last.kept = want(Thing())

    def generator(value):
        yield value
        yield value
    module.generator = generator(want(Thing()))
    next(module.generator)
    return module, wanted


def walk(space, roots, wanted, values=(), excluded=(), objects=(), seconds=60.0):
    deadline = time.monotonic() + seconds
    return space['walk_heap'](list(roots), list(values), wanted, list(excluded), list(objects), deadline, deadline)


class HeapTest(unittest.TestCase):
    def setUp(self):
        self.assertIn('_native_walk', IN_C)
        gc.collect()

    def check(self, tree, wanted):
        """Every chain is one: each object refers to the next."""
        for key, place in tree.place.items():
            chain = tree.chain(place)
            self.assertIs(chain[-1], wanted[key])
            for parent, child in zip(chain, chain[1:]):
                self.assertTrue(any(entry is child for entry in gc.get_referents(parent)))

    def test_same_lengths(self):
        module, wanted = build()
        lost = Thing()
        wanted[id(lost)] = lost
        trees = [walk(space, [module, module.__dict__], wanted) for space in (IN_C, IN_PYTHON)]
        for tree in trees:
            self.assertTrue(tree.complete)
            self.check(tree, wanted)
            self.assertEqual(set(tree.place), set(wanted) - {id(lost)})
        lengths = [{key: len(tree.chain(place)) for key, place in tree.place.items()} for tree in trees]
        self.assertEqual(lengths[0], lengths[1])
        for place, parent in enumerate(trees[0].parents):
            self.assertLess(parent, place)

    def test_values_of_frames_are_one_step_away(self):
        first, second = Thing(), Thing()
        second.kept = Thing()
        wanted = {id(first): first, id(second.kept): second.kept}
        for space in (IN_C, IN_PYTHON):
            tree = walk(space, [types.ModuleType('empty')], wanted, values=[first, second])
            self.assertEqual([len(tree.chain(tree.place[key])) <= 3 for key in wanted], [True, True])
            self.assertEqual(tree.chain(tree.place[id(first)]), [first])

    def test_excluded_objects_lead_nowhere(self):
        module, gate = types.ModuleType('gated'), Thing()
        gate.kept = Thing()
        module.gate = gate
        for space in (IN_C, IN_PYTHON):
            tree = walk(space, [module], {id(gate.kept): gate.kept}, excluded=[gate])
            self.assertEqual(tree.place, {})

    def test_unseen(self):
        module, lost = types.ModuleType('root'), Thing()
        module.found = Thing()
        for space in (IN_C, IN_PYTHON):
            tree = walk(space, [module], {id(lost): lost}, objects=[module.found, lost])
            self.assertEqual([id(value) for value in tree.unseen], [id(lost)])

    def test_ends_when_the_time_is_over(self):
        module, wanted = build()
        lost = Thing()
        wanted[id(lost)] = lost
        for space in (IN_C, IN_PYTHON):
            tree = walk(space, [module], wanted, seconds=-1.0)
            self.assertFalse(tree.complete)
            self.assertTrue(tree.out_of_time)

    def test_select(self):
        class Meta(type):
            def __subclasscheck__(cls, other):
                raise AssertionError('asked')

            def __eq__(cls, other):
                raise AssertionError('asked')
            __hash__ = None
        Strange = Meta('Strange', (Thing,), {})
        values = [Thing(), Strange(), Slotted(), [], Thing(), {}]
        for space in (IN_C, IN_PYTHON):
            things, slotted, dicts = space['select'](values, [Thing, Slotted, dict])
            self.assertEqual([id(value) for value in things], [id(values[0]), id(values[1]), id(values[4])])
            self.assertEqual([id(value) for value in slotted], [id(values[2])])
            self.assertEqual([id(value) for value in dicts], [id(values[5])])

    def test_hidden_objects(self):
        """What leads on from the known ones and is not among them, once, in C as in Python."""
        module, wanted = build()
        known = [module, module.many, module.slotted]
        deadline = time.monotonic() + 60
        found = []
        for space in (IN_C, IN_PYTHON):
            hidden, complete = space['hidden_objects']([module.__dict__], known, [module.generator], deadline)
            self.assertTrue(complete)
            keys = set(map(id, hidden))
            self.assertEqual(len(keys), len(hidden))
            self.assertTrue(keys.isdisjoint(map(id, known + [module.__dict__, module.generator])))
            found.append(keys)
        both = found[0] & found[1]
        inside = [value for value in wanted.values() if value is not list(wanted.values())[-1]]
        self.assertTrue({id(value) for value in inside} <= both)
        self.assertNotIn(id(list(wanted.values())[-1]), both)  # only the excluded generator leads there
        for space in (IN_C, IN_PYTHON):
            self.assertFalse(space['hidden_objects']([module.__dict__], known, [], time.monotonic() - 1)[1])

    def test_keeps_nothing(self):
        module, wanted = build()
        lost = Thing()
        wanted[id(lost)] = lost
        watched = [module, module.__dict__, module.many, module.many[7], lost, Thing, type(None), wanted]

        def once():
            walk(IN_C, [module], wanted, values=[lost.__dict__], excluded=[module.many], objects=[lost, module])
            IN_C['select'](watched, [Thing, dict])
            IN_C['hidden_objects']([module], [lost], [module.many], time.monotonic() + 60)
        once()
        gc.collect()
        before, objects = [sys.getrefcount(value) for value in watched], len(gc.get_objects())
        for _ in range(5):
            once()
        gc.collect()
        self.assertEqual([sys.getrefcount(value) for value in watched], before)
        self.assertEqual(len(gc.get_objects()), objects)

    def test_wrong_arguments_are_an_error(self):
        with self.assertRaises(IndexError):
            IN_C['_native_walk'](([],))
        with self.assertRaises(IndexError):
            IN_C['_native_select'](([],))
        with self.assertRaises(IndexError):
            IN_C['_native_hidden'](([], []))


if __name__ == '__main__':
    unittest.main()
