"""The census: every live device tensor, what it is for, and the shortest chain of names that keeps it.

`take` looks and returns plain data (numbers and strings); it keeps no reference to any host object.
"""
import gc
import sys
import time
import types

# Values of gpumemtrace.Holder.Kind.
KIND_NONE, KIND_NAME, KIND_FRAME, KIND_CYCLE, KIND_AUTOGRAD, KIND_NATIVE = range(6)
# A collection with at least so many counted children is told as a pattern: losses[…].
PATTERN_FROM = 4
CHAINS_LIMIT = 1000000
# An interpreter may begin with some objects moved aside (375 in 3.12); a gc.freeze() moves thousands.
FROZEN_FROM = 2000


class Holder:
    """One way in which tensors are kept. Strings and numbers only."""
    __slots__ = ('kind', 'path', 'example', 'container', 'container_type', 'items', 'owner', 'detail', 'file',
                 'line', 'stores', 'index')

    def __init__(self, kind, path):
        self.kind = kind
        self.path = path           # train.losses[…]
        self.example = ''          # train.losses[3]
        self.container = ''        # train.losses
        self.container_type = ''   # list
        self.items = -1
        self.owner = ''            # train.Trainer, when the container is an attribute of an instance
        self.detail = ''           # further words: the cycle, the graph
        self.file = ''             # of the frame that holds it
        self.line = 0
        self.stores = []           # (file, line) of code that puts things into the container
        self.index = -1            # in the result, once it is there


class Result:
    def __init__(self):
        self.tensors = []
        self.holders = []
        self.partial = ''
        self.objects = 0
        self.reached = 0
        self.duration = 0.0
        self.collector_enabled = True
        self.memory = 0            # bytes by which the process's resident set grew meanwhile


def take(budget=2.0, main_code=None):
    """Takes a census now. Needs the GIL; runs no code of the host, but other threads may run between its
    steps. Whatever could not be finished within `budget` seconds is said in `partial`. `main_code`: the body
    of the main program, which nothing in the interpreter keeps once it has run."""
    started = time.monotonic()
    result = Result()
    result.collector_enabled = gc.isenabled()
    resident = _resident()
    if main_code is not None:
        _MAIN_FILE[0] = main_code.co_filename
    # A collection in the middle would run finalizers of the host because of our allocations.
    gc.disable()
    try:
        _Taking(result, started, budget, main_code, resident).run()
    finally:
        if result.collector_enabled:
            gc.enable()
    result.duration = time.monotonic() - started
    return result


def _resident():
    """Bytes of this process in RAM, 0 when nobody can say."""
    native = globals().get('_native_resident', None)
    return native(None) if native is not None else 0


class _Taking:
    def __init__(self, result, started, budget, main_code, resident):
        self.result = result
        self.resident = resident
        # Each phase leaves time for the next: half a walk is worth nothing when its finds go unnamed.
        self.hidden_deadline = started + 0.45 * budget
        self.gather_deadline = started + (0.65 if gc.get_freeze_count() >= FROZEN_FROM else 0.5) * budget
        self.walk_deadline = started + 0.8 * budget
        self.chain_deadline = started + 0.85 * budget
        self.deadline = started + budget
        self.stores = Stores(main_code, self.deadline)
        self.tensors = []
        self.by_id = {}
        self.torch = None
        self.namer = Namer()
        self.holder_index = {}

    def run(self):
        guards = []
        try:
            for reader in readers():
                guard = reader.guard()
                if guard is not None:
                    entered = guard()
                    entered.__enter__()
                    guards.append(entered)
            self._run()
        except OutOfTime:
            self._partly('time')
        finally:
            self._note_memory()
            for guard in reversed(guards):
                guard.__exit__(None, None, None)
            self._forget()

    def _run(self):
        # Locals come first: until 3.12 reading them makes dictionaries that must not be in `objects`.
        frames, complete = thread_frames(globals())
        if not complete:
            self._partly('there are subinterpreters: locals of other threads were not read')
        note_running_names(frames)
        running = {id(frame) for _, frame in frames}
        self._note_locals(frames)
        del frames
        objects = gc.get_objects()
        self._find_roots()
        if gc.get_freeze_count() >= FROZEN_FROM:
            # Not garbage, but out of sight; what a frozen cycle alone keeps stays so.
            hidden, complete = hidden_objects(self.roots, objects, [globals(), self, self.__dict__, objects, self.tensors,
                                                                    self.by_id, self.local_values], self.hidden_deadline)
            objects += hidden
            hidden = None  # nothing may hold what is looked at when its holders are told
            if not complete:
                self._partly('time: not all of what gc.freeze() moved aside was found')
        self.result.objects = len(objects)
        roles = self._gather(objects)
        if not self.tensors:
            return
        wanted = {}
        for tensor in self.tensors:
            if tensor.owner is not None:
                continue
            if len(wanted) >= CHAINS_LIMIT:
                self._partly('not more than %d tensors were followed' % CHAINS_LIMIT)
                break
            wanted[id(tensor.object)] = tensor.object
        if roles is not None:
            for root in {tensor.owner for tensor in self.tensors if tensor.owner is not None}:
                value = roles.modules.get(root, None)
                if value is None:
                    value = next((entry for entry in roles.optimizers if id(entry) == root), None)
                if value is None and root in self.by_id:
                    value = self.by_id[root].object
                if value is not None:
                    wanted[root] = value
            value = None
        del roles
        tree = self._walk(wanted, objects)
        self._note_memory(tree.mapped)
        # What no root reaches, less what is the census's own and the empty dictionaries of running frames.
        census_types = {id(cls) for cls in (Tensor, Holder, Result, Namer, Stores, Tree, Walk, Roles, Path, Paths, Root,
                                            _Taking, Step, TorchReader, CupyReader, JaxReader)}
        own = {id(objects), id(wanted)}
        for container in (self.__dict__, tree.__dict__, self.namer.__dict__, self.stores.__dict__):
            own.add(id(container))
            own.update(map(id, container.values()))
        container = None
        island = [value for value in tree.unseen
                  if id(value) not in own and id(type(value)) not in census_types
                  and not (type(value) is types.FrameType and (id(value) in running or value.f_globals is globals()))
                  and not (type(value) is dict and not dict.__len__(value))]
        tree.unseen = []
        del objects
        self._hold(tree, wanted, island)

    def _partly(self, what):
        self.result.partial = self.result.partial or what

    def _note_memory(self, more=0):
        if self.resident:
            self.result.memory = max(self.result.memory, _resident() - self.resident + more)

    def _note_locals(self, frames):
        self.local_names, self.local_values = {}, []
        for ident, frame in frames:
            if not frame.f_code.co_flags & CO_OPTIMIZED:
                # Its names are a module's globals or, rarely, a class body's.
                continue
            title = None
            for name, value in frame_locals(frame):
                if id(value) not in self.local_names:
                    title = title or frame_title(frame)
                    self.local_names[id(value)] = (ident, title, name, frame.f_code, frame.f_lineno or 0)
                    self.local_values.append(value)

    # Phase 1: who is there.
    def _gather(self, objects):
        active = readers()
        roles = None
        for reader in active:
            if reader.framework == FRAMEWORK_TORCH:
                self.torch = reader
                roles = Roles(reader)
        classes = [reader.base for reader in active]
        if roles is not None:
            classes += [cls for cls in (self.torch.module_class, self.torch.optimizer_class) if cls is not None]
        groups = select(objects, classes)
        if roles is not None:
            for cls, group in zip(classes[len(active):], groups[len(active):]):
                if cls is self.torch.module_class:
                    roles.modules = {id(module): module for module in group}
                else:
                    roles.optimizers = group
        host = 0
        for reader, group in zip(active, groups):
            for value in group:
                host += self._add(reader, value, host)
                if len(self.tensors) & 1023 == 1023 and time.monotonic() > self.gather_deadline:
                    self._partly('time: not every tensor was read')
                    break
        groups = group = None
        value = None
        if roles is not None and self.tensors:
            roles.resolve()
            roles.add_optimizer_states()
            for gradient in roles.add_gradients(list(self.tensors)):
                if id(gradient) not in self.by_id:
                    self._add(self.torch, gradient, HOST_TENSOR_LIMIT)
            gradient = None
            for tensor in self.tensors:
                known = roles.role.get(id(tensor.object), None)
                if known is not None:
                    tensor.role, tensor.name, tensor.owner = known
                elif id(tensor.object) in roles.trained:
                    tensor.role = ROLE_PARAMETER  # of a program without modules
                elif tensor.grad_fn:
                    tensor.role = ROLE_ACTIVATION
        return roles

    def _add(self, reader, value, host):
        tensor = reader.read(value)
        if tensor is None:
            return 0
        is_host = 1 if tensor.flags & FLAG_HOST else 0
        if is_host and host >= HOST_TENSOR_LIMIT:
            return 0
        self.tensors.append(tensor)
        self.by_id[id(value)] = tensor
        return is_host

    # Phase 2: shortest chains from the roots.
    def _find_roots(self):
        roots, self.module_names = [], {}
        for name, module in list(sys.modules.items()):
            if module is None or id(module) in self.module_names or type(name) is not str:
                continue
            self.module_names[id(module)] = name
            roots.append(module)
            if has_base(type(module), types.ModuleType):
                roots.append(module_dict(module))
        self.module_of_namespace = {id(module_dict(root)): root for root in roots
                                    if has_base(type(root), types.ModuleType)}
        self.roots = roots

    def _walk(self, wanted, objects):
        # The census's own containers are reachable from nothing the walk starts at, except through the
        # frame that called us; it is not among the frames.
        excluded = [globals(), self, self.tensors, self.by_id]
        tree = walk_heap(self.roots, self.local_values, wanted, excluded, objects, self.walk_deadline, self.chain_deadline)
        self.local_values = []
        self.result.reached = tree.reached
        if tree.out_of_time:
            self._partly(tree.out_of_time)
        return tree

    # Phase 3: words.
    def _hold(self, tree, wanted, island):
        children = [0] * len(tree.nodes)
        for parent in tree.parents:
            if parent >= 0:
                children[parent] += 1
        many = {id(tree.nodes[place]) for place, count in enumerate(children) if count >= PATTERN_FROM}
        owners = {tensor.owner for tensor in self.tensors if tensor.owner is not None}
        paths = Paths(tree, self.namer, self._root, many)
        self.told = told = {}
        for count, (key, place) in enumerate(tree.place.items()):
            if not count & 255 and time.monotonic() > self.deadline:
                self._partly('time: not every holder was named')
                break
            # The names of an owner's tensors begin with the owner's own.
            path, root = paths.exactly(place) if key in owners else paths.of(place)
            holder = path.kept
            if holder is None:
                holder = path.kept = path.holder(root.kind, root.file, root.line)
                self._find_stores(holder, path)
            told[key] = holder
        self._leave_out_bases(tree)
        reached = tree.place
        paths.forget()
        unreached = {key: value for key, value in wanted.items() if key not in reached}
        if unreached and tree.complete:
            told.update(self._tell_unreached(unreached, reached, told, island, wanted))
        for tensor in self.tensors:
            key = id(tensor.object) if tensor.owner is None else tensor.owner
            if key in unreached and tree.complete:
                tensor.flags |= FLAG_UNREACHED
            holder = told.get(key, None)
            if holder is not None:
                tensor.holder = holder.index if holder.index >= 0 else self._index(holder)
                if tensor.owner is not None and tensor.name:
                    tensor.name = _join(holder.example or holder.path, tensor.name)

    def _leave_out_bases(self, tree):
        """A CuPy array that only lives as the base of a view is not the program's object: the view says how much
        it keeps."""
        cupy = next((reader for reader in readers() if reader.framework == FRAMEWORK_CUPY), None)
        if cupy is None:
            return
        hidden = set()
        for key, place in tree.place.items():
            above = tree.parents[place]
            tensor = self.by_id.get(key, None)
            if above < 0 or tensor is None or tensor.framework != FRAMEWORK_CUPY:
                continue
            view = self.by_id.get(id(tree.nodes[above]), None)
            if view is not None and view.framework == FRAMEWORK_CUPY and cupy.base_of(view.object) is tensor.object:
                hidden.add(key)
        if hidden:
            self.tensors = [tensor for tensor in self.tensors if id(tensor.object) not in hidden]

    def _index(self, holder):
        key = (holder.kind, holder.path, holder.detail)
        index = self.holder_index.get(key, None)
        if index is None:
            index = self.holder_index[key] = len(self.result.holders)
            self.result.holders.append(holder)
        holder.index = index
        return index

    def _root(self, root):
        """A Root for an object without a parent in the tree."""
        if id(root) in self.local_names and id(root) not in self.module_names:
            ident, title, name, code, line = self.local_names[id(root)]
            head = title + ' ' + repr(name)
            thread = _thread_name(ident)
            if thread:
                head = 'thread ' + repr(thread) + ' ' + head
            path = Path(head).named_by(Step('', name=name, code=code))
            return Root(path, None, KIND_FRAME, code.co_filename, line)
        before = self.module_of_namespace.get(id(root), None)
        name = self.module_names.get(id(root if before is None else before), '?')
        return Root(Path(module_title(name)), before, KIND_NAME, '', 0)

    def _find_stores(self, holder, path):
        """Lines that store under the name that the container (or, without one, the tensor) has."""
        if path.decorated is not None:
            holder.stores = [(path.decorated.co_filename, path.decorated.co_firstlineno)]
        elif path.named is not None:
            holder.stores = self._stores_of(path.named, path.adding)

    def _stores_of(self, step, adding):
        if step.code is not None:
            return self.stores.lines(step.name, [step.code], adding)
        found = self.stores.lines(step.name, self.stores.codes_of_module(step.module), adding) if step.module else []
        if not found and step.module != '__main__':
            # An attribute that code of the main program sets on a library's object.
            found = self.stores.lines(step.name, self.stores.codes_of_module('__main__'), adding)
        return found

    @staticmethod
    def _path(head, steps):
        path = Path(head)
        for step in steps:
            path = path.extend(step, ())
        return path

    # Phase 4: what no root reaches.
    def _tell_unreached(self, unreached, reached, told, island_objects, wanted):
        result = {}
        graph = self._graphs(reached)
        for key, value in unreached.items():
            tensor = self.by_id.get(key, None)
            if tensor is None or tensor.framework != FRAMEWORK_TORCH:
                continue
            holder = self._autograd_holder(tensor, graph)
            if holder is not None:
                result[key] = holder
        keeper = self._likely_keeper(graph)
        rest = {key: value for key, value in unreached.items() if key not in result}
        if not rest:
            return result
        value = graph = None
        # Every reference that the census itself holds to objects of the island.
        held = {}
        for container in (island_objects, wanted.values(), unreached.values(), rest.values()):
            for key in map(id, container):
                held[key] = held.get(key, 0) + 1
        for tensor in self.tensors:
            held[id(tensor.object)] = held.get(id(tensor.object), 0) + 1
        try:
            island = Island(island_objects, self.deadline, held)
        except OutOfTime:
            self._partly('time: what no name reaches was not explained')
            return result
        for key, value in rest.items():
            if time.monotonic() > self.deadline:
                self._partly('time: what no name reaches was not explained')
                break
            holder = self._island_holder(island, key, value)
            if holder.kind == KIND_NATIVE and not holder.container and keeper is not None and key in self.by_id:
                holder = self._by_keeper(keeper)
            result[key] = holder
        value = None
        return result

    def _island_holder(self, island, key, value):
        place = island.index.get(key, None)
        if place is None:
            return self._native_holder(None, [value])
        order, step = island.ancestors(place)
        for candidate in order:
            cycle = island.cycle_through(candidate)
            if cycle is None:
                continue
            if not island.held_from_outside.isdisjoint(cycle):
                break
            # A cycle is told from the object that a person would name, not from a dictionary inside it.
            ring = cycle[:-1]
            named = [place for place in range(len(ring)) if not _is_plumbing(island.objects[ring[place]])]
            turn = next((place for place in named if id(island.objects[ring[place]]) not in self.by_id),
                        named[0] if named else 0)
            members = [island.objects[member] for member in ring[turn:] + ring[:turn] + [ring[turn]]]
            chain = ([island.objects[member] for member in ring[turn:]] if turn else [])
            chain += self._forward(island, candidate, step)
            start = qualified_type_name(type(members[0]))
            around = self.namer.steps(members)
            loop = start + ''.join(part.text for part in around) + ' → ' + start
            holder = self._path(start, self.namer.steps(chain)).holder(KIND_CYCLE)
            # The mistake is the line that closes the cycle, not the one that fills the object.
            for part in around:
                if part.name and not holder.stores:
                    holder.stores = self._stores_of(part, False)
            holder.detail = 'cycle: ' + loop
            if not island.held_from_outside.isdisjoint(order):
                holder.detail += ' (also held from C or C++)'
            return holder
        # Nearest ancestor that something outside Python's graph holds.
        for candidate in order:
            if candidate in island.held_from_outside:
                chain = self._forward(island, candidate, step)
                return self._native_holder(island.objects[candidate], chain)
        return self._native_holder(island.objects[order[-1]], self._forward(island, order[-1], step))

    def _forward(self, island, place, step):
        chain = [island.objects[place]]
        while step.get(place, None) is not None:
            place = step[place]
            chain.append(island.objects[place])
        return chain

    def _native_holder(self, top, chain):
        if len(chain) <= 1:
            holder = Holder(KIND_NATIVE, 'no Python object')
            holder.detail = 'only C++ holds it'
            return holder
        start = qualified_type_name(type(top))
        path = self._path(start, self.namer.steps(chain))
        holder = path.holder(KIND_NATIVE)
        self._find_stores(holder, path)
        holder.detail = 'the ' + start + ' is held from C or C++, by no Python name'
        return holder

    # The autograd graph: nodes reached from tensors that a name reaches.
    def _graphs(self, reached):
        """{id of node: (node, tensor key it belongs to, [names of nodes that use its output])}."""
        graph = {}
        queue = []
        for tensor in self.tensors:
            key = id(tensor.object)
            if not tensor.grad_fn or tensor.framework != FRAMEWORK_TORCH:
                continue
            if key not in reached and tensor.owner not in reached:
                continue
            node = self.torch.grad_fn(tensor.object, tensor.flags)
            if node is not None and id(node) not in graph:
                graph[id(node)] = (node, key, [], 0)
                queue.append(node)
        for place, node in enumerate(queue):
            if not place & 255 and time.monotonic() > self.deadline:
                break
            _, key, _, depth = graph[id(node)]
            for source in next_functions(node):
                known = graph.get(id(source), None)
                if known is None:
                    known = graph[id(source)] = (source, key, [], depth + 1)
                    queue.append(source)
                users = known[2]
                name = node_name(node)
                if len(users) < 4 and name not in users:
                    users.append(name)
        return graph

    def _likely_keeper(self, graph):
        """The named tensors whose graphs have the most nodes that save tensors: (holder, name, node name).

        A tensor without a graph of its own, such as an input batch, leaves no sign in the graph that saved it;
        all that can be said is which graphs could have."""
        saving, weight = {}, {}
        for node, key, _, _ in graph.values():
            kind = type(node)
            if id(kind) not in saving:
                names = [name for entry in _get_mro(kind) for name in list(_get_type_dict(entry))]
                saving[id(kind)] = any(type(name) is str and name.startswith('_saved_') for name in names)
            owner = self.by_id[key]
            if not saving[id(kind)] or owner.owner is not None:
                continue
            path = self._tensor_name(owner)
            count, _, names = weight.get(path, (0, None, {}))
            names[node_name(node)] = names.get(node_name(node), 0) + 1
            weight[path] = (count + 1, key, names)
        if not weight:
            return None
        path = max(weight, key=lambda entry: weight[entry][0])
        count, key, names = weight[path]
        return self.told.get(key, None), path, max(names, key=lambda name: names[name]), count

    def _by_keeper(self, keeper):
        source, path, name, count = keeper
        holder = Holder(KIND_NATIVE, 'C++, probably the autograd graph of ' + path)
        holder.detail = 'no Python name reaches it; %d nodes there save tensors, most of them %s' % (count, name)
        if source is not None:
            holder.container, holder.container_type = source.container, source.container_type
            holder.items, holder.owner, holder.stores = source.items, source.owner, source.stores
        return holder

    def _autograd_holder(self, tensor, graph):
        node = self.torch.grad_fn(tensor.object, tensor.flags) if tensor.grad_fn else None
        known = graph.get(id(node), None) if node is not None else None
        if known is None:
            return None
        _, key, users, depth = known
        owner = self.by_id[key]
        name = self._tensor_name(owner)
        holder = Holder(KIND_AUTOGRAD, 'the autograd graph of ' + name)
        holder.detail = name + ' → ' + owner.grad_fn + (' → …' if depth > 1 else '')
        if users:
            holder.detail += ' saved by ' + ' or '.join(users)
        source = self.told.get(key, None)
        if source is not None and owner.owner is None:
            holder.container, holder.container_type = source.container, source.container_type
            holder.items, holder.owner, holder.stores = source.items, source.owner, source.stores
        return holder

    def _tensor_name(self, tensor):
        holder = self.told.get(id(tensor.object) if tensor.owner is None else tensor.owner, None)
        if holder is None:
            return 'a tensor'
        return holder.path if tensor.owner is None else _join(holder.path, tensor.name)

    def _forget(self):
        result = self.result
        for tensor in self.tensors:
            tensor.object = tensor.owner = None
        result.tensors = self.tensors
        self.namer.forget()
        _EXTRA_NAMES[:] = []
        self.__dict__.clear()


def _join(head, name):
    return head + '.' + name if not name.startswith('[') else head + name


def _is_plumbing(value):
    kind = type(value)
    return (kind is dict or kind is list or kind is tuple or kind is set or kind is _CELL
            or kind is types.MethodType or kind is types.FrameType)


def _thread_name(ident):
    """The name of a thread other than the main one, from threading's own table."""
    active = module_value('threading', '_active')
    if type(active) is not dict:
        return ''
    thread = dict.get(active, ident, None)
    main = module_value('threading', '_main_thread')
    if thread is None or thread is main:
        return ''
    name = instance_attribute(thread, '_name')
    return name if type(name) is str else ''
