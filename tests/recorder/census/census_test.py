"""The census against a stand-in for torch, under whichever CPython runs this file.

usage: python census_test.py [-v]
"""
import collections
import dis  # noqa: F401: as every framework does; the census reads bytecode with it
import functools
import gc
import os
import sys
import threading
import types
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fake_torch  # noqa: E402
from census_case import CENSUS, CensusCase, take  # noqa: E402

Tensor = fake_torch.Tensor


class CensusTest(CensusCase):
    def test_reads_what_a_tensor_is(self):
        self.train['x'] = Tensor(32, 1000, requires_grad=True)
        row = self.row_of(take(), self.train['x'])
        self.assertEqual((row.bytes, row.shape, row.dtype, row.device), (128000, '(32, 1000)', 'float32', 0))
        self.assertTrue(row.flags & CENSUS['FLAG_REQUIRES_GRAD'])
        self.assertEqual(fake_torch.DisableTorchFunctionSubclass.entered, 0)

    def test_view_has_the_address_of_its_storage(self):
        base = Tensor(1000, 1000)
        self.train['view'] = Tensor(8, offset=100, base=base)
        address = base._address
        del base
        row = [row for row in take().tensors if row.address == address][0]
        self.assertEqual(row.bytes, 32)
        self.assertTrue(row.flags & CENSUS['FLAG_VIEW'])

    def test_list_in_a_module(self):
        self.train['losses'] = [Tensor(1) for _ in range(300)]
        address = self.train['losses'][3]._address
        result = take()
        holder = self.holder_of(result, address)
        self.assertEqual(holder.path, 'train.losses[…]')
        self.assertEqual((holder.container, holder.container_type, holder.items), ('train.losses', 'list', 300))
        self.assertEqual(len([row for row in result.tensors if row.holder == 0]), 300)

    def test_dictionary_deque_set_and_tuple(self):
        self.train['audit'] = {step: Tensor(4) for step in range(10)}
        self.train['replay'] = collections.deque(Tensor(4) for _ in range(10))
        self.train['pool'] = {Tensor(4) for _ in range(10)}
        self.train['pair'] = (Tensor(4), {'k': Tensor(4)})
        result = take()
        for value, path, kind in ((self.train['audit'][5], 'train.audit[…]', 'dict'),
                                  (self.train['replay'][5], 'train.replay[…]', 'deque'),
                                  (next(iter(self.train['pool'])), 'train.pool[…]', 'set'),
                                  (self.train['pair'][0], 'train.pair[0]', 'tuple'),
                                  (self.train['pair'][1]['k'], "train.pair[1]['k']", 'dict')):
            holder = self.holder_of(result, value._address)
            self.assertEqual((holder.path, holder.container_type), (path, kind))

    def test_snapshots_of_weights(self):
        self.train['kept'] = [collections.OrderedDict((('0.weight', Tensor(8)), ('1.weight', Tensor(8))))
                              for _ in range(22)]
        result = take()
        holder = self.holder_of(result, self.train['kept'][20]['1.weight']._address)
        self.assertEqual(holder.path, "train.kept[…]['1.weight']")
        self.assertEqual((holder.container, holder.container_type, holder.items), ('train.kept', 'list', 22))

    def test_attribute_of_an_instance(self):
        self.run_in_train('class Trainer:\n    def __init__(self):\n        self.history = []\n'
                          'trainer = Trainer()\n')
        self.train['trainer'].history += [Tensor(4) for _ in range(12)]
        holder = self.holder_of(take(), self.train['trainer'].history[2]._address)
        self.assertEqual(holder.path, 'train.trainer.history[…]')
        self.assertEqual(holder.owner, 'train.Trainer')
        self.assertEqual((holder.container_type, holder.items), ('list', 12))

    def test_attribute_with_slots(self):
        self.run_in_train('class Slotted:\n    __slots__ = ("cache",)\ns = Slotted()\ns.cache = {}\n')
        self.train['s'].cache['k'] = Tensor(4)
        holder = self.holder_of(take(), self.train['s'].cache['k']._address)
        self.assertEqual(holder.path, "train.s.cache['k']")

    def test_attribute_set_from_outside(self):
        self.run_in_train('class Box:\n    pass\nbox = Box()\ndef keep(t):\n    box.inside = t\n')
        self.train['keep'](Tensor(4))
        holder = self.holder_of(take(), self.train['box'].inside._address)
        self.assertEqual(holder.path, 'train.box.inside')

    def test_class_attribute(self):
        self.run_in_train('class Model:\n    cache = []\n')
        self.train['Model'].cache.append(Tensor(4))
        holder = self.holder_of(take(), self.train['Model'].cache[0]._address)
        self.assertEqual(holder.path, 'train.Model.cache[0]')

    def test_closure_and_default(self):
        self.run_in_train('def make(t):\n    seen = [t]\n    def step():\n        return seen\n    return step\n'
                          'def keep(x, cache={}):\n    cache["k"] = x\n')
        self.train['step'] = self.train['make'](Tensor(4))
        self.train['keep'](Tensor(4))
        result = take()
        holder = self.holder_of(result, self.train['step']()[0]._address)
        self.assertEqual(holder.path, "train.step closure 'seen'[0]")
        holder = self.holder_of(result, self.train['keep'].__defaults__[0]['k']._address)
        self.assertEqual(holder.path, "train.keep.__defaults__[0]['k']")

    def test_local_of_a_running_frame(self):
        self.run_in_train('def work(take, tensor):\n    cache = {"k": tensor}\n    del tensor\n    return take()\n')
        tensor = Tensor(4)
        address = tensor._address
        held = [tensor]
        del tensor
        result = self.train['work'](take, held.pop())
        holder = self.holder_of(result, address)
        self.assertEqual(holder.kind, CENSUS['KIND_FRAME'])
        self.assertEqual(holder.path, "frame train.py:4 in work 'cache'['k']")
        self.assertEqual((holder.file, holder.line), ('/home/user/train.py', 4))

    def test_local_of_another_thread(self):
        ready, done = threading.Event(), threading.Event()
        addresses = []

        def worker():
            batch = [Tensor(4)]
            addresses.append(batch[0]._address)
            ready.set()
            done.wait()
        thread = threading.Thread(target=worker, name='loader-0')
        thread.start()
        ready.wait()
        try:
            holder = self.holder_of(take(), addresses[0])
        finally:
            done.set()
            thread.join()
        self.assertTrue(holder.path.startswith("thread 'loader-0' frame census_test.py:"), holder.path)
        self.assertTrue(holder.path.endswith(" 'batch'[0]"), holder.path)

    def test_suspended_generator(self):
        self.run_in_train('def batches(t):\n    batch = t\n    del t\n    yield 1\n    yield batch\n')
        tensor = Tensor(4)
        self.train['stream'] = self.train['batches'](tensor)
        address = tensor._address
        next(self.train['stream'])
        del tensor
        self.assertEqual(self.holder_of(take(), address).path,
                         "train.stream frame train.py:4 in batches 'batch'")

    def test_stored_exceptions_keep_frames(self):
        self.run_in_train('failures = []\naddresses = []\n'
                          'def decode(Tensor):\n    scratch = Tensor(512)\n'
                          '    addresses.append(scratch._address)\n    raise ValueError("bad sample")\n'
                          'def run(Tensor):\n    for _ in range(6):\n        try:\n            decode(Tensor)\n'
                          '        except ValueError as error:\n            failures.append(error)\n')
        self.train['run'](Tensor)
        holder = self.holder_of(take(), self.train['addresses'][2])
        qualified = 'decode'
        self.assertEqual(holder.path, "train.failures[…].__traceback__ frame train.py:6 in %s 'scratch'" % qualified)
        self.assertEqual((holder.container, holder.items), ('train.failures', 6))

    def test_lru_cache(self):
        calls = []

        @functools.lru_cache(maxsize=None)
        def rotary(position):
            calls.append(position._address)
            return Tensor(1024)
        self.train['rotary'] = rotary
        values = [rotary(Tensor(4))._address for _ in range(7)]
        result = take()
        holder = self.holder_of(result, values[3])
        self.assertEqual(holder.path, 'train.rotary[cached value]')
        self.assertEqual((holder.container, holder.container_type, holder.items), ('train.rotary', 'lru_cache', 7))
        holder = self.holder_of(result, calls[3])
        self.assertTrue(holder.path.startswith('train.rotary[cached argument]'), holder.path)

    def test_bounded_lru_cache(self):
        @functools.lru_cache(maxsize=32)
        def table(size):
            return Tensor(size)
        self.train['table'] = table
        values = [table(size)._address for size in range(1, 8)]
        holder = self.holder_of(take(), values[3])
        self.assertEqual(holder.path, 'train.table[cached value]')
        self.assertEqual((holder.container_type, holder.items), ('lru_cache', 7))

    def test_bound_method_and_partial(self):
        self.run_in_train('class Model:\n    def __init__(self, t):\n        self.t = t\n    def f(self):\n        pass\n')
        self.train['hook'] = self.train['Model'](Tensor(4)).f
        self.train['later'] = functools.partial(max, Tensor(4))
        result = take()
        self.assertEqual(self.holder_of(result, self.train['hook'].__self__.t._address).path,
                         'train.hook.__self__.t')
        self.assertEqual(self.holder_of(result, self.train['later'].args[0]._address).path, 'train.later.args[0]')

    def test_linked_list_is_told_briefly(self):
        self.run_in_train('class Link:\n    def __init__(self, value, next):\n        self.value, self.next = value, next\n'
                          'chain = None\n')
        for _ in range(50):
            self.train['chain'] = self.train['Link'](Tensor(4), self.train['chain'])
        link = self.train['chain']
        for _ in range(20):
            link = link.next
        address = link.value._address
        del link
        holder = self.holder_of(take(), address)
        self.assertEqual(holder.path, 'train.chain.next….value')
        self.assertLess(len(holder.example), 401)

    def test_roles_and_names(self):
        model = fake_torch.Module()
        model.layers = fake_torch.Module()
        model.layers.a = fake_torch.Linear(4, 8)
        model.register_buffer('mean', Tensor(3))
        optimizer = fake_torch.Optimizer([model.layers.a.weight])
        optimizer.step()
        gradient = Tensor(8, 4)
        model.layers.a.weight.set_grad(gradient)
        self.train.update(model=model, optimizer=optimizer)
        weight, mean = model.layers.a.weight, model._buffers['mean']
        state = optimizer.state[weight]['exp_avg']
        addresses = [value._address for value in (weight, mean, gradient, state)]
        del gradient, state, weight, mean, optimizer, model
        result = take()
        rows = {row.address: row for row in result.tensors}
        got = [(rows[address].role, rows[address].name) for address in addresses]
        self.assertEqual(got, [
            (CENSUS['ROLE_PARAMETER'], 'train.model.layers.a.weight'), (CENSUS['ROLE_BUFFER'], 'train.model.mean'),
            (CENSUS['ROLE_GRADIENT'], 'train.model.layers.a.weight.grad'),
            (CENSUS['ROLE_OPTIMIZER'], "train.optimizer.state[layers.a.weight]['exp_avg']")])

    def test_cycle_of_a_bound_method(self):
        gc.disable()
        try:
            self.run_in_train('class Block:\n    def __init__(self, t):\n        self.table = t\n'
                              '        self.impl = self.fast\n    def fast(self):\n        pass\n')
            tensor = Tensor(4)
            address = tensor._address
            self.train['Block'](tensor)
            del tensor
            result = take()
            holder = self.holder_of(result, address)
        finally:
            gc.enable()
        self.assertEqual(holder.kind, CENSUS['KIND_CYCLE'])
        self.assertEqual(holder.path, 'train.Block.table')
        self.assertEqual(holder.detail, 'cycle: train.Block.impl.__self__ → train.Block')
        self.assertFalse(result.collector_enabled)

    def test_cycle_of_a_module_with_a_buffer(self):
        gc.disable()
        try:
            class Block(fake_torch.Module):
                def __init__(self, table):
                    fake_torch.Module.__init__(self)
                    self.register_buffer('table', table)
                    self.impl = self.fast

                def fast(self):
                    pass
            tensor = Tensor(4)
            address = tensor._address
            Block(tensor)
            del tensor
            holder = self.holder_of(take(), address)
        finally:
            gc.enable()
        self.assertEqual(holder.kind, CENSUS['KIND_CYCLE'])
        self.assertIn('Block.impl.__self__ → ', holder.detail)

    def test_held_by_c_only(self):
        tensor = Tensor(4)
        address = tensor._address
        hidden = fake_torch.Hidden(tensor)
        del tensor
        result = take()
        hidden.release()
        row = [row for row in result.tensors if row.address == address][0]
        holder = result.holders[row.holder]
        self.assertEqual((holder.kind, holder.path), (CENSUS['KIND_NATIVE'], 'no Python object'))
        self.assertTrue(row.flags & CENSUS['FLAG_UNREACHED'])

    def test_object_held_by_c(self):
        self.run_in_train('class Session:\n    def __init__(self, t):\n        self.t = t\n')
        session = self.train['Session'](Tensor(4))
        address = session.t._address
        hidden = fake_torch.Hidden(session)
        del session
        holder = self.holder_of(take(), address)
        hidden.release()
        self.assertEqual((holder.kind, holder.path), (CENSUS['KIND_NATIVE'], 'train.Session.t'))

    def test_kept_by_the_graph_of_a_named_tensor(self):
        MulBackward0 = type('MulBackward0', (fake_torch.Node,), {})
        AddBackward0 = type('AddBackward0', (fake_torch.Node,), {})
        first = MulBackward0()
        second = AddBackward0(first)
        third = MulBackward0(second)
        inner = Tensor(64, grad_fn=first)
        address = inner._address
        saved = fake_torch.Hidden(inner)
        self.train['total'] = Tensor(1, grad_fn=third)
        del inner, first, second, third
        holder = self.holder_of(take(), address)
        saved.release()
        self.assertEqual(holder.kind, CENSUS['KIND_AUTOGRAD'])
        self.assertEqual(holder.path, 'the autograd graph of train.total')
        self.assertIn('saved by AddBackward0', holder.detail)

    def test_lines_that_store(self):
        source = ('losses = []\n'                                         # 1
                  'audit = {}\n'
                  'class Trainer:\n'
                  '    def __init__(self):\n'
                  '        self.history = []\n'                           # 5
                  '    def step(self, t):\n'
                  '        self.history.append(t)\n'                      # 7
                  'def work(Tensor):\n'
                  '    global h\n'
                  '    for step in range(9):\n'                           # 10
                  '        losses.append(Tensor(1))\n'
                  '        audit[step] = Tensor(1)\n'
                  '        trainer.step(Tensor(1))\n'
                  '        h = Tensor(1)\n'                               # 14
                  'trainer = Trainer()\n')
        self.train['__name__'] = 'train'
        self.run_in_train(source)
        self.train['work'](Tensor)
        result = take()
        for tensor, line in ((self.train['losses'][2], 11), (self.train['audit'][2], 12),
                             (self.train['trainer'].history[2], 7), (self.train['h'], 14)):
            self.assertEqual(self.holder_of(result, tensor._address).stores, [('/home/user/train.py', line)])

    def test_lines_that_store_into_a_local(self):
        self.run_in_train('def main(take, Tensor):\n    kept = []\n    for _ in range(5):\n'
                          '        kept.append(Tensor(4))\n    return take(), kept[1]._address\n')
        result, address = self.train['main'](take, Tensor)
        self.assertEqual(self.holder_of(result, address).stores, [('/home/user/train.py', 4)])

    def test_line_that_closes_a_cycle(self):
        gc.disable()
        try:
            self.run_in_train('class Block:\n    def __init__(self, t):\n        self.table = t\n'
                              '        self.impl = self.fast\n    def fast(self):\n        pass\n')
            self.train['Block'].__module__ = 'train'
            tensor = Tensor(4)
            address = tensor._address
            self.train['Block'](tensor)
            del tensor
            holder = self.holder_of(take(), address)
        finally:
            gc.enable()
        self.assertEqual(holder.stores, [('/home/user/train.py', 4)])

    def test_memory_is_told(self):
        """What the recorder measures at the start and after the walk, and no more when it measures nothing."""
        self.train['x'] = Tensor(1)
        self.assertEqual(take().memory, 0)
        readings = iter([10 << 20, 14 << 20] + 5 * [11 << 20])
        CENSUS['_native_resident'] = lambda _: next(readings)
        try:
            result = take()
        finally:
            del CENSUS['_native_resident']
        self.assertGreaterEqual(result.memory, 4 << 20)
        self.assertIn(b'\x40', CENSUS['encode'](result, 1))  # field 8

    def test_too_many_to_follow_is_told(self):
        self.train['many'] = [Tensor(1) for _ in range(20)]
        limit, CENSUS['CHAINS_LIMIT'] = CENSUS['CHAINS_LIMIT'], 10
        try:
            self.assertIn('not more than 10', take().partial)
        finally:
            CENSUS['CHAINS_LIMIT'] = limit

    def test_encodes(self):
        self.train['losses'] = [Tensor(1) for _ in range(9)]
        data = CENSUS['encode'](take(), 1)
        self.assertIn('train.losses[…]'.encode(), data)

    def test_input_kept_by_a_graph(self):
        """An input that requires no gradient has no node; the graph that saved it can only be guessed."""
        AddmmBackward0 = type('AddmmBackward0', (fake_torch.Node,), {'_saved_mat1': None})
        inputs = [Tensor(32) for _ in range(5)]
        addresses = [tensor._address for tensor in inputs]
        saved = [fake_torch.Hidden(tensor) for tensor in inputs]
        self.train['cache'] = [Tensor(32, grad_fn=AddmmBackward0()) for _ in inputs]
        del inputs
        holder = self.holder_of(take(), addresses[2])
        for reference in saved:
            reference.release()
        self.assertEqual(holder.kind, CENSUS['KIND_NATIVE'])
        self.assertEqual(holder.path, 'C++, probably the autograd graph of train.cache[…]')
        self.assertEqual((holder.container, holder.items), ('train.cache', 5))

    def test_cupy_view_keeps_its_chunk(self):
        module = types.ModuleType('cupy')
        module.ndarray = fake_torch.FakeCupy.ndarray
        sys.modules['cupy'] = module
        try:
            chunk = fake_torch.FakeCupy.Chunk(0x7E0000000000, 4 << 20)
            self.train['headers'] = [fake_torch.FakeCupy.ndarray(fake_torch.FakeCupy.Pointer(chunk, 4096), 1024)
                                     for _ in range(5)]
            del chunk
            result = take()
        finally:
            del sys.modules['cupy']
        self.assertEqual(len(result.tensors), 5)
        row = result.tensors[0]
        self.assertEqual((row.address, row.storage_bytes, row.bytes), (0x7E0000000000, 4 << 20, 1024))
        self.assertTrue(row.flags & CENSUS['FLAG_VIEW'])
        self.assertEqual(self.holder_of(result, row.address).path, 'train.headers[…]')

    def test_cupy_row_kept_of_a_large_array(self):
        """frame[0] has its frame's address; the frame that only its rows keep is no object of the program."""
        module = types.ModuleType('cupy')
        make, point = fake_torch.FakeCupy.ndarray, fake_torch.FakeCupy.Pointer
        module.ndarray = make
        sys.modules['cupy'] = module
        try:
            frames = [make(point(fake_torch.FakeCupy.Chunk(0x7E0000000000 + step * (4 << 20), 4 << 20), 0), 4 << 20)
                      for step in range(5)]
            self.train['headers'] = [make(point(frame.data.mem, 0), 4096, frame) for frame in frames]
            self.train['frame'] = frames[-1]
            del frames
            result = take()
        finally:
            del sys.modules['cupy']
        rows = [row for row in result.tensors if row.bytes == 4096]
        self.assertEqual(len(rows), 5)
        self.assertEqual({row.flags & CENSUS['FLAG_VIEW'] for row in rows}, {CENSUS['FLAG_VIEW']})
        self.assertEqual({result.holders[row.holder].path for row in rows}, {'train.headers[…]'})
        others = [row for row in result.tensors if row.bytes != 4096]
        self.assertEqual([result.holders[row.holder].path for row in others], ['train.frame'])

    def test_jax_arrays(self):
        module = types.ModuleType('jaxlib.xla_extension')
        module.ArrayImpl = fake_torch.FakeJaxArray
        sys.modules['jaxlib.xla_extension'] = module
        try:
            self.train['history'] = [fake_torch.FakeJaxArray(0x7D0000000000 + step * 4096, 4096) for step in range(5)]
            self.train['deleted'] = fake_torch.FakeJaxArray(1, 4, deleted=True)
            self.train['running'] = fake_torch.FakeJaxArray(1, 4, is_ready=False)
            result = take()
        finally:
            del sys.modules['jaxlib.xla_extension']
        self.assertEqual(len(result.tensors), 5)
        self.assertEqual(self.holder_of(result, 0x7D0000001000).path, 'train.history[…]')
        self.assertEqual(result.partial, '')

    def test_frames_keep_nothing(self):
        """On Python ≤ 3.12, reading f_locals must not prolong the life of a local."""
        died = []

        class Watched(Tensor):
            def __del__(self):
                died.append(1)

        def work():
            tensor = Watched(4)
            take()
            del tensor
            self.assertEqual(died, [1])
            self.assertEqual(sorted(locals()), ['Watched', 'died', 'self'])
        work()

    def test_budget(self):
        self.train['many'] = [[Tensor(1)] for _ in range(3000)]
        result = take(budget=0.0)
        self.assertTrue(result.partial)

    def test_collector_state_is_restored(self):
        take()
        self.assertTrue(gc.isenabled())

    def test_without_frameworks(self):
        fake_torch.uninstall()
        try:
            result = take()
        finally:
            fake_torch.install()
        self.assertEqual(result.tensors, [])
        self.assertEqual(result.partial, '')


if __name__ == '__main__':
    unittest.main()
