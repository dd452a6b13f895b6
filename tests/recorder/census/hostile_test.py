"""The census among objects, threads and frameworks that make life hard for whoever looks at a heap.

usage: python hostile_test.py [-v]
"""
import collections
import gc
import os
import sys
import threading
import types
import unittest
import weakref

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fake_torch  # noqa: E402
from census_case import CENSUS, CensusCase, take  # noqa: E402

Tensor = fake_torch.Tensor
ASKED = []


def refuse(self, *arguments):
    ASKED.append(type.__name__)
    raise AssertionError('asked')


class Meta(type):
    """A class that minds being asked about itself."""
    __hash__ = __eq__ = __instancecheck__ = __subclasscheck__ = __getattribute__ = __len__ = __bool__ = refuse


NAMES = ('__getattr__', '__getattribute__', '__len__', '__eq__', '__hash__', '__bool__', '__repr__', '__str__', '__iter__',
         '__contains__', '__getitem__', '__index__', '__missing__', '__reduce_ex__', '__sizeof__', '__dir__')


def hostile(*bases, **more):
    return Meta('Hostile', bases or (object,), dict({name: refuse for name in NAMES}, __class__=property(refuse), **more))


class HostileTest(CensusCase):
    def setUp(self):
        super().setUp()
        del ASKED[:]

    def check(self, address, path, **options):
        result = take(**options)
        self.assertEqual(ASKED, [])
        self.assertEqual(self.holder_of(result, address).path, path)
        return result

    def test_dictionary_and_list(self):
        mapping, values = dict.__new__(hostile(dict)), list.__new__(hostile(list))
        tensor, other = Tensor(4), Tensor(4)
        addresses = tensor._address, other._address
        dict.__setitem__(mapping, 'k', tensor)
        list.append(values, other)
        self.train.update(mapping=mapping, values=values)
        del tensor, other, mapping, values
        self.check(addresses[0], "train.mapping['k']")
        self.check(addresses[1], 'train.values[0]')

    def test_set_tuple_and_deque(self):
        for base, path in ((set, 'train.bag{element}'), (frozenset, 'train.bag{element}'), (tuple, 'train.bag[0]'),
                           (collections.deque, 'train.bag[0]'), (collections.OrderedDict, "train.bag['k']")):
            with self.subTest(base):
                tensor = Tensor(4)
                cls = hostile(base)
                values = [('k', tensor)] if base is collections.OrderedDict else [tensor]
                self.train['bag'] = base.__new__(cls, values) if base in (tuple, frozenset) else base.__new__(cls)
                if base is set:
                    set.add(self.train['bag'], tensor)
                elif base is collections.deque:
                    collections.deque.append(self.train['bag'], tensor)
                elif base is collections.OrderedDict:
                    dict.__setitem__(self.train['bag'], 'k', tensor)
                address = tensor._address
                del tensor, values
                self.check(address, path)

    def test_attribute(self):
        cls, tensor = hostile(__module__='train'), Tensor(4)
        value = object.__new__(cls)
        object.__setattr__(value, 'kept', tensor)
        self.train['value'] = value
        address = tensor._address
        del tensor, value
        # Since 3.11 an instance may have no dictionary; then the names are those that code mentions.
        self.run_in_train('def use():\n    return value.kept\n')
        self.check(address, 'train.value.kept')

    def test_key(self):
        """A key whose hash and comparison fail is in a dictionary all the same."""
        calm = []

        class Key:
            def __hash__(self):
                if calm:
                    raise AssertionError('asked')
                return 7

            def __eq__(self, other):
                raise AssertionError('asked')
        key = Key()
        key.tensor, addresses = Tensor(4), []
        addresses.append(key.tensor._address)
        self.train['by_key'] = {key: Tensor(4)}
        addresses.append(self.train['by_key'][key]._address)
        del key
        calm.append(True)
        result = take()
        self.assertEqual(self.holder_of(result, addresses[0]).path, 'train.by_key[a key].tensor')
        self.assertEqual(self.holder_of(result, addresses[1]).path, 'train.by_key[<Key>]')

    def test_properties_and_descriptors_are_not_called(self):
        class Descriptor:
            __get__ = __set__ = refuse

        class Plain:
            __get__ = refuse

        class Owner:
            data, plain, held = Descriptor(), Plain(), property(refuse)
            __module__ = 'train'
        owner, tensor = Owner(), Tensor(4)
        owner.__dict__['plain'] = tensor
        owner.__dict__['real'] = Tensor(4)
        self.train['owner'] = owner
        addresses = tensor._address, owner.__dict__['real']._address
        del tensor, owner
        self.run_in_train('def use():\n    return owner.real\n')
        result = self.check(addresses[1], 'train.owner.real')
        self.assertTrue(self.holder_of(result, addresses[0]).path.startswith('train.owner'))

    def test_finalizers_run_when_they_would_have(self):
        died = []

        class Mortal:
            def __init__(self):
                self.tensor, self.me = Tensor(4), self

            def __del__(self):
                died.append(len(died))
        gc.disable()
        try:
            Mortal()  # garbage that only the collector frees
            kept = Mortal()
            take()
            self.assertEqual(died, [])
            gc.collect()
            self.assertEqual(died, [0])
            kept.me = None
            del kept
            self.assertEqual(died, [0, 1])
        finally:
            gc.enable()

    def test_finalizer_that_brings_back(self):
        saved = []

        class Risen:
            def __init__(self):
                self.tensor, self.me = Tensor(4), self

            def __del__(self):
                saved.append(self)
        Risen()
        gc.collect()
        self.train['saved'] = saved
        address = saved[0].tensor._address
        del saved
        self.check(address, 'train.saved[0].tensor')

    def test_weak_references_keep_nothing(self):
        fired = []
        tensor = Tensor(4)
        weak = weakref.ref(tensor, fired.append)
        self.train.update(weak=weak, proxy=weakref.proxy(tensor), table=weakref.WeakValueDictionary(a=tensor))
        self.train['strong'] = [tensor]
        address = tensor._address
        del tensor
        self.check(address, 'train.strong[0]')
        self.assertEqual(fired, [])
        del self.train['strong']
        self.assertEqual(len(fired), 1)  # nothing of the census kept it
        dead = Tensor(4)
        self.train['dead'] = weakref.proxy(dead)
        del dead
        self.assertEqual([row for row in take().tensors if row.address == address], [])

    def test_weak_keys(self):
        class Key:
            pass
        key = Key()
        self.train['cache'] = weakref.WeakKeyDictionary({key: Tensor(4)})  # the key is alive: it is a local
        holder = self.holder_of(take(), self.train['cache'][key]._address)
        self.assertEqual(holder.path, 'train.cache[<Key>]')
        self.assertEqual((holder.container_type, holder.items), ('WeakKeyDictionary', 1))

    def test_containers_that_contain_themselves(self):
        ring = []
        ring.append(ring)
        table = {'self': None}
        table['self'] = table
        table['ring'] = ring
        ring.append(table)
        tensor = Tensor(4)
        ring.append(tensor)
        self.train['table'] = table
        address = tensor._address
        del tensor, ring, table
        self.check(address, "train.table['ring'][2]")

    def test_deep_and_wide_containers(self):
        tensor = Tensor(4)
        deep = [tensor]
        # A recursion in Python ends at 1,000; one in C has room for more.
        for _ in range(40000 if os.environ.get('GPUMEMTRACE_TEST_HEAP') else 5000):
            deep = [deep]
        self.train['deep'] = deep
        address = tensor._address
        del tensor, deep
        self.train['wide'] = [[] for _ in range(20000)] + [{'k': Tensor(4)}]
        result = take()
        self.assertEqual(result.partial, '')
        holder = self.holder_of(result, address)
        self.assertTrue(holder.path.startswith('train.deep[0]'), holder.path[:80])
        self.assertLess(len(holder.example), 401)
        self.assertEqual(self.holder_of(result, self.train['wide'][-1]['k']._address).path, "train.wide[20000]['k']")

    def test_lazy_module_is_not_woken(self):
        class Lazy(types.ModuleType):
            __getattr__ = __getattribute__ = refuse
        sys.modules['lazy'] = Lazy('lazy')
        try:
            take()
        finally:
            del sys.modules['lazy']
        self.assertEqual(ASKED, [])

    def test_odd_entries_of_sys_modules(self):
        odd = {'odd.none': None, 'odd.number': 7, 'odd.hostile': object.__new__(hostile())}
        sys.modules.update(odd)
        try:
            self.train['x'] = Tensor(4)
            self.check(self.train['x']._address, 'train.x')
        finally:
            for name in odd:
                del sys.modules[name]

    def test_threads_that_change_containers(self):
        """Whatever they do meanwhile: no error, and what stays where it is gets its name."""
        self.train['steady'] = {step: Tensor(4) for step in range(100)}
        self.train['table'], self.train['queue'] = {}, collections.deque()
        self.train['values'], self.train['bag'] = [], set()
        stop, rounds = threading.Event(), [0]

        def change():
            step = 0
            while not stop.is_set():
                step += 1
                rounds[0] += 1
                tensor = Tensor(4)
                self.train['table'][step % 97] = tensor
                self.train['table'].pop((step * 31) % 97, None)
                self.train['queue'].append(tensor)
                self.train['values'].insert(0, {step: tensor})
                self.train['bag'].add(tensor)
                if step % 50 == 0:
                    self.train['queue'].clear()
                    self.train['values'].clear()
                    self.train['bag'].clear()
                    self.train['name%d' % (step % 500)] = tensor
        threads = [threading.Thread(target=change) for _ in range(3)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            before = rounds[0]
            for _ in range(5):
                result = take()
                self.assertEqual(result.partial, '')
                paths = {result.holders[row.holder].path for row in result.tensors if row.holder >= 0}
                self.assertIn('train.steady[…]', paths)
            self.assertGreater(rounds[0], before)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            sys.setswitchinterval(interval)

    def test_frozen_objects(self):
        """gc.get_objects() leaves out what gc.freeze() moved aside."""
        self.train['history'] = [Tensor(4) for _ in range(9)]
        self.train['model'] = fake_torch.Linear(4, 4)
        gc.freeze()
        try:
            self.train['later'] = Tensor(4)
            result = take()
            self.assertFalse(any(value is self.train['model'] for value in gc.get_objects()))
        finally:
            gc.unfreeze()
        self.assertEqual(result.partial, '')
        self.assertEqual(self.holder_of(result, self.train['history'][3]._address).path, 'train.history[…]')
        self.assertEqual(self.holder_of(result, self.train['later']._address).path, 'train.later')
        weight = self.row_of(result, self.train['model'].weight)
        self.assertEqual((weight.role, weight.name), (CENSUS['ROLE_PARAMETER'], 'train.model.weight'))

    def test_too_little_time_for_frozen_objects_is_told(self):
        gc.freeze()
        try:
            self.assertIn('gc.freeze()', take(budget=0.0).partial)
        finally:
            gc.unfreeze()


class FrameworkTest(CensusCase):
    def tearDown(self):
        fake_torch.uninstall()
        fake_torch.install()
        super().tearDown()

    def test_half_imported(self):
        """Whatever part of torch's modules and of their contents is there: no error, no import."""
        torch = {name: sys.modules[name] for name in ('torch', 'torch._C', 'torch.nn', 'torch.optim')}
        self.train['x'] = Tensor(4)
        self.train['model'] = fake_torch.Linear(2, 2)
        for name, module in torch.items():
            with self.subTest('without', module=name):
                del sys.modules[name]
                result = take()
                self.assertEqual(bool(result.tensors), name != 'torch._C')
                self.assertNotIn(name, sys.modules)
                sys.modules[name] = module
            with self.subTest('None', module=name):
                sys.modules[name] = None
                self.assertEqual(take().partial, '')
                sys.modules[name] = module
            for entry in [entry for entry in module.__dict__ if not entry.startswith('__')]:
                with self.subTest('without', module=name, entry=entry):
                    value = module.__dict__.pop(entry)
                    self.assertEqual(take().partial, '')
                    module.__dict__[entry] = None
                    self.assertEqual(take().partial, '')
                    module.__dict__[entry] = value
        self.assertEqual(len(take().tensors), 3)

    def test_a_base_class_without_its_methods(self):
        for name in ('data_ptr', 'storage_offset', 'element_size', 'numel', 'shape', 'dtype', 'is_cuda', 'requires_grad', 'is_leaf',
                     'grad_fn', 'grad', '_is_view', 'get_device', '_version'):
            with self.subTest(name):
                reduced = type('TensorBase', (), {key: value for key, value in vars(fake_torch.TensorBase).items()
                                                  if key not in (name, '__dict__', '__weakref__')})
                self.train['x'] = reduced(4)
                sys.modules['torch._C'].TensorBase = reduced
                self.assertEqual(take().partial, '')

    def test_tensors_without_memory(self):
        """Fake and functional tensors, which torch.compile works with: asking for their memory is an error, or gives 0."""
        class FakeTensor(Tensor):
            def data_ptr(self):
                raise RuntimeError('Cannot access data pointer of Tensor')

        class MetaTensor(Tensor):
            def data_ptr(self):
                return 0
        class Compiled(fake_torch.Module):
            pass
        module = Compiled()
        module._orig_mod = fake_torch.Linear(4, 4)
        self.train.update(fake=[FakeTensor(4) for _ in range(9)], meta=MetaTensor(4), module=module)
        # The real base class answers whatever a subclass does.
        real = fake_torch.TensorBase.data_ptr
        fake_torch.TensorBase.data_ptr = lambda self: (FakeTensor.data_ptr(self) if type(self) is FakeTensor
                                                       else 0 if type(self) is MetaTensor else real(self))
        try:
            result = take()
        finally:
            fake_torch.TensorBase.data_ptr = real
        self.assertEqual(sorted(row.name for row in result.tensors),
                         ['train.module._orig_mod.bias', 'train.module._orig_mod.weight'])

    def test_parameters_that_only_an_optimizer_knows(self):
        weight = Tensor(4, requires_grad=True)
        self.train['optimizer'] = fake_torch.Optimizer([weight])
        row = self.row_of(take(), weight)
        self.assertEqual((row.role, row.name), (CENSUS['ROLE_PARAMETER'], "train.optimizer.param_groups[0]['params'][0]"))


if __name__ == '__main__':
    unittest.main()
