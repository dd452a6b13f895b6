"""What keeps a tensor, in the words of Python: one test for each kind of holder.

usage: python paths_test.py [-v]
"""
import asyncio
import atexit
import collections
import concurrent.futures
import contextvars
import dis  # noqa: F401: as every framework does; the census reads bytecode with it
import functools
import gc
import os
import queue
import sys
import threading
import types
import unittest
import weakref

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fake_torch  # noqa: E402
from census_case import CENSUS, CensusCase, take  # noqa: E402

Tensor = fake_torch.Tensor

SOURCE = '''
import collections
class Wait:
    def __await__(self):
        yield 1
async def coroutine(t):
    held = t
    del t
    await Wait()
async def asynchronous(t):
    held = t
    del t
    yield 1
    yield held
def generator(t):
    def inside():
        yield t
    started = inside()
    next(started)
    return started
class Model:
    shared = {}
    class Inner:
        cache = []
    def __init__(self):
        self.history = []
    def keep(self, t):
        self.history.append(t)
class Cached:
    pass
Step = collections.namedtuple('Step', 'loss output')
def plain():
    pass
def defaults(x=[], *, k={}):
    pass
def fails(t):
    scratch = t
    raise ValueError
def fails_again(t):
    scratch = t
    try:
        raise KeyError
    except KeyError as error:
        raise ValueError from error
'''


def qualified(name, plain):
    """Code objects know their qualified name since 3.11."""
    return name if sys.version_info >= (3, 11) else plain


class PathsTest(CensusCase):
    def setUp(self):
        super().setUp()
        self.train['__name__'] = 'train'
        self.run_in_train(SOURCE)
        self.addresses = []

    def new(self, count=None):
        """A tensor, or a list of some, whose addresses are noted."""
        tensors = [Tensor(4) for _ in range(count or 1)]
        self.addresses += [tensor._address for tensor in tensors]
        return tensors if count else tensors[0]

    def told(self, address=None):
        return self.holder_of(take(), address or self.addresses[-1])

    def check(self, path, address=None):
        holder = self.told(address)
        self.assertEqual(holder.path, path)
        return holder

    def test_global(self):
        self.train['best'] = self.new()
        self.assertEqual(self.check('train.best').kind, CENSUS['KIND_NAME'])

    def test_global_of_the_main_module_is_told_by_its_file(self):
        main = sys.modules['__main__']
        main.census_kept = self.new()
        try:
            self.check('paths_test.census_kept' if main.__file__.endswith('paths_test.py') else '__main__.census_kept')
        finally:
            del main.census_kept

    def test_class_and_nested_class(self):
        self.train['Model'].shared['k'] = self.new()
        self.check("train.Model.shared['k']")
        self.train['Model'].Inner.cache.append(self.new())
        self.check('train.Model.Inner.cache[0]')

    def test_attribute_and_its_owner(self):
        self.train['model'] = self.train['Model']()
        for tensor in self.new(6):
            self.train['model'].keep(tensor)
        del tensor
        holder = self.check('train.model.history[…]')
        self.assertEqual((holder.owner, holder.container, holder.container_type, holder.items),
                         ('train.Model', 'train.model.history', 'list', 6))
        self.assertEqual(holder.stores, [('/home/user/train.py', 28)])

    def test_cached_property(self):
        if not hasattr(functools, 'cached_property'):
            self.skipTest('new in 3.8')
        cls, made = self.train['Cached'], []
        cls.table = functools.cached_property(lambda self: made.pop())
        cls.table.__set_name__(cls, 'table')
        made.append(self.new())
        self.train['cached'] = cls()
        self.train['cached'].table
        self.check('train.cached.table')

    def test_function_attributes_defaults_and_closures(self):
        self.train['plain'].seen = [self.new()]
        self.check('train.plain.seen[0]')
        self.train['defaults'].__defaults__[0].append(self.new())
        self.check('train.defaults.__defaults__[0][0]')
        self.train['defaults'].__kwdefaults__['k']['t'] = self.new()
        self.check("train.defaults.__kwdefaults__['k']['t']")

        def decorate(function):
            cache = []

            @functools.wraps(function)
            def wrapper(x):
                cache.append(x)
            return wrapper
        self.train['wrapped'] = decorate(self.train['plain'])
        self.train['wrapped'](self.new())
        self.check("train.wrapped closure 'cache'[0]")

    def test_suspended_generator_coroutine_and_asynchronous_generator(self):
        self.train['work'] = self.train['coroutine'](self.new())
        self.train['work'].send(None)
        self.check("train.work frame train.py:9 in coroutine 'held'")
        self.train['work'].close()
        self.train['stream'] = self.train['asynchronous'](self.new())
        try:
            self.train['stream'].__anext__().send(None)
        except StopIteration:
            pass
        self.check("train.stream frame train.py:13 in asynchronous 'held'")
        self.train['lazy'] = self.train['generator'](self.new())
        self.check("train.lazy frame train.py:17 in %s 't'" % qualified('generator.<locals>.inside', 'inside'))

    def test_exceptions_keep_frames(self):
        try:
            self.train['fails'](self.new())
        except ValueError as error:
            self.train['error'] = error
        self.check("train.error.__traceback__ frame train.py:38 in fails 't'")

    def test_chained_exceptions(self):
        try:
            self.train['fails_again'](self.new())
        except ValueError as error:
            self.train['error'] = error
        holder = self.told()
        self.assertRegex(holder.path, r"^train\.error\.(__(context|cause)__\.)?__traceback__ frame train\.py:\d+ in fails_again 't'$")

    def test_frames_of_threads(self):
        ready, done = threading.Event(), threading.Event()

        def work(tensor):
            batch = {'x': [tensor]}
            del tensor
            ready.set()
            done.wait()
            return batch
        tensors = [self.new()]
        thread = threading.Thread(target=lambda: work(tensors.pop()), name='loader')
        thread.start()
        ready.wait()
        try:
            holder = self.told()
        finally:
            done.set()
            thread.join()
        self.assertRegex(holder.path, r"^thread 'loader' frame paths_test\.py:\d+ in .*work 'batch'\['x'\]\[0\]$")
        self.assertEqual(holder.kind, CENSUS['KIND_FRAME'])

    def test_arguments_of_a_thread_that_has_not_begun(self):
        self.train['thread'] = threading.Thread(target=print, args=(self.new(),))
        self.check('train.thread._args[0]')

    def test_caches_of_functools(self):
        @functools.lru_cache(maxsize=8)
        def table(size):
            return self.new()
        self.train['table'] = table
        for size in range(6):
            table(size)
        holder = self.check('train.table[cached value]')
        self.assertEqual((holder.container_type, holder.items), ('lru_cache', 6))

        @functools.lru_cache(maxsize=None)
        def rotary(position):
            return 1
        self.train['rotary'] = rotary
        for tensor in self.new(6):
            rotary(tensor)
        del tensor
        self.assertTrue(self.told().path.startswith('train.rotary[cached argument]'), self.told().path)

    def test_partial(self):
        self.train['later'] = functools.partial(print, self.new())
        self.check('train.later.args[0]')
        self.train['later'] = functools.partial(print, end=self.new())
        self.check("train.later.keywords['end']")
        self.train['Model'].step = functools.partialmethod(print, self.new())
        self.check('train.Model.step.args[0]')

    def test_bound_method_and_callback(self):
        model = self.train['Model']()
        model.keep(self.new())
        self.train['hook'] = model.keep
        del model
        self.check('train.hook.__self__.history[0]')

    def test_weak_dictionaries(self):
        key = self.train['Model']()
        self.train['by_model'] = weakref.WeakKeyDictionary({key: self.new()})
        holder = self.check('train.by_model[<Model>]')
        self.assertEqual((holder.container, holder.container_type, holder.items),
                         ('train.by_model', 'WeakKeyDictionary', 1))
        self.train['names'] = weakref.WeakValueDictionary()
        self.train['names']['a'] = self.train['strong'] = self.new()
        self.check('train.strong')

    def test_collections(self):
        for make, path, kind in ((lambda t: collections.OrderedDict(a=t), "train.box['a']", 'OrderedDict'),
                                 (lambda t: collections.defaultdict(list, a=t), "train.box['a']", 'defaultdict'),
                                 (lambda t: collections.Counter(a=t), "train.box['a']", 'Counter'),
                                 (lambda t: collections.deque([0, t]), 'train.box[1]', 'deque'),
                                 (lambda t: frozenset([t]), 'train.box{element}', 'frozenset'),
                                 (lambda t: collections.UserDict(a=t), "train.box.data['a']", 'dict'),
                                 (lambda t: collections.ChainMap({'a': t}), "train.box.maps[0]['a']", 'dict'),
                                 (lambda t: types.MappingProxyType({'a': t}), "train.box['a']", 'dict'),
                                 (lambda t: {('a', 1): t}, "train.box[('a', 1)]", 'dict'),
                                 (lambda t: {3.5: t}, 'train.box[3.5]', 'dict'),
                                 (lambda t: {t: 1}, 'train.box[a key]', 'dict'),
                                 (lambda t: types.SimpleNamespace(a=t), 'train.box.a', '')):
            self.train['box'] = make(self.new())
            with self.subTest(path):
                self.assertEqual(self.check(path).container_type, kind)
            del self.train['box']

    def test_fields_of_named_tuples(self):
        self.train['steps'] = [self.train['Step'](self.new(), self.new()) for _ in range(6)]
        result = take()
        holder = self.holder_of(result, self.addresses[0])
        self.assertEqual((holder.path, holder.container, holder.items), ('train.steps[…].loss', 'train.steps', 6))
        self.assertEqual(self.holder_of(result, self.addresses[1]).path, 'train.steps[…].output')

    def test_queues_and_futures(self):
        self.train['waiting'] = queue.Queue()
        self.train['waiting'].put(self.new())
        self.check('train.waiting.queue[0]')
        self.train['future'] = concurrent.futures.Future()
        self.train['future'].set_result(self.new())
        self.check('train.future._result')

    def test_asyncio_future(self):
        loop = asyncio.new_event_loop()
        try:
            self.train['future'] = loop.create_future()
            self.train['future'].set_result(self.new())
            self.check('train.future._result')
        finally:
            loop.close()

    def test_thread_local_and_context_variable(self):
        self.train['local'] = threading.local()
        self.train['local'].scratch = self.new()
        self.check('train.local.scratch')
        variable = contextvars.ContextVar('current')
        context = contextvars.copy_context()
        context.run(variable.set, self.new())
        self.train['context'] = context
        self.check("train.context context variable 'current'")

    def test_callbacks_of_the_interpreter(self):
        callback = functools.partial(lambda *arguments: None, self.new())
        gc.callbacks.append(callback)
        del callback
        try:
            self.check('gc.callbacks[0].args[0]')
        finally:
            gc.callbacks.pop()
        kept = [self.new()]
        clear = kept.clear
        atexit.register(clear)
        self.train['tidy'] = clear
        del kept, clear
        try:
            # Since 3.10 the collector does not see what atexit has; before, the module's state leads there first.
            self.assertRegex(self.told().path, r'^(train\.tidy|atexit\.<module state>)\.__self__\[0\]$')
        finally:
            atexit.unregister(self.train['tidy'])

    def test_cycle(self):
        gc.disable()
        try:
            first, second = self.train['Model'](), self.train['Model']()
            first.peer, second.peer = second, first
            first.keep(self.new())
            del first, second
            holder = self.told()
        finally:
            gc.enable()
        self.assertEqual(holder.kind, CENSUS['KIND_CYCLE'])
        self.assertRegex(holder.path, r'^train\.Model\.(peer\.)?history\[0\]$')
        self.assertEqual(holder.detail, 'cycle: train.Model.peer.peer → train.Model')

    def test_cycle_through_a_closure_and_through_a_traceback(self):
        gc.disable()
        try:
            def make(t):
                def again():
                    return again, t
                return again
            make(self.new())
            self.assertEqual(self.told().kind, CENSUS['KIND_CYCLE'])

            def fail(t):
                try:
                    raise ValueError
                except ValueError as error:
                    kept = error
                    return kept
            fail(self.new())
            holder = self.told()
            self.assertEqual(holder.kind, CENSUS['KIND_CYCLE'])
            self.assertIn('__traceback__', holder.detail)
        finally:
            gc.enable()

    def test_c_code(self):
        tensor = self.new()
        hidden = fake_torch.Hidden(tensor)
        del tensor
        holder = self.told()
        self.assertEqual((holder.kind, holder.path, holder.detail),
                         (CENSUS['KIND_NATIVE'], 'no Python object', 'only C++ holds it'))
        hidden.release()
        model = self.train['Model']()
        model.keep(self.new())
        hidden = fake_torch.Hidden(model)
        del model
        holder = self.told()
        hidden.release()
        self.assertEqual((holder.kind, holder.path), (CENSUS['KIND_NATIVE'], 'train.Model.history[0]'))
        self.assertIn('held from C or C++', holder.detail)

    def test_autograd_graph(self):
        """The node that made a tensor lies in the graph of `total`: its name, the node that saved it, and the list that
        keeps `total`."""
        mul, add = type('MulBackward0', (fake_torch.Node,), {}), type('AddBackward0', (fake_torch.Node,), {})
        kept = []
        self.train['losses'] = []
        for _ in range(5):
            first = mul()
            inner = Tensor(64, grad_fn=first)
            self.addresses.append(inner._address)
            kept.append(fake_torch.Hidden(inner))
            self.train['losses'].append(Tensor(1, grad_fn=add(mul(first))))
        del inner, first
        holder = self.told()
        for hidden in kept:
            hidden.release()
        self.assertEqual((holder.kind, holder.path), (CENSUS['KIND_AUTOGRAD'], 'the autograd graph of train.losses[…]'))
        self.assertEqual(holder.detail, 'train.losses[…] → AddBackward0 → … saved by MulBackward0')
        self.assertEqual((holder.container, holder.items), ('train.losses', 5))

    def test_saved_variables_are_never_unpacked(self):
        """Unpacking may run hooks of the program and makes new tensors."""
        def unpack(self):
            raise AssertionError('unpacked')
        node = type('MulBackward0', (fake_torch.Node,),
                    {'_saved_self': property(unpack), '_raw_saved_self': property(unpack), 'saved_tensors': property(unpack),
                     'metadata': property(unpack), 'register_hook': unpack})
        self.train['total'] = Tensor(1, grad_fn=node(node()))
        hidden = fake_torch.Hidden(self.new())
        result = take()
        hidden.release()
        self.assertEqual(result.partial, '')
        self.assertEqual(self.holder_of(result, self.train['total']._address).path, 'train.total')

    def test_view_of_a_large_storage(self):
        base = Tensor(1000, 1000)
        self.addresses.append(base._address)
        self.train['row'] = Tensor(8, offset=100, base=base)
        del base
        result = take()
        row = [row for row in result.tensors if row.address == self.addresses[-1]][0]
        self.assertEqual((row.bytes, bool(row.flags & CENSUS['FLAG_VIEW'])), (32, True))
        self.assertEqual(result.holders[row.holder].path, 'train.row')


if __name__ == '__main__':
    unittest.main()
