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
CHAINS_LIMIT = 50000


class Holder:
    """One way in which tensors are kept. Strings and numbers only."""
    __slots__ = ('kind', 'path', 'example', 'container', 'container_type', 'items', 'owner', 'detail', 'file',
                 'line', 'stores')

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


class Result:
    def __init__(self):
        self.tensors = []
        self.holders = []
        self.partial = ''
        self.objects = 0
        self.reached = 0
        self.duration = 0.0
        self.collector_enabled = True


def take(budget=2.0, main_code=None):
    """Takes a census now. Needs the GIL; runs no code of the host, but other threads may run between its
    steps. Whatever could not be finished within `budget` seconds is said in `partial`. `main_code`: the body
    of the main program, which nothing in the interpreter keeps once it has run."""
    started = time.monotonic()
    result = Result()
    result.collector_enabled = gc.isenabled()
    if main_code is not None:
        _MAIN_FILE[0] = main_code.co_filename
    # A collection in the middle would run finalizers of the host because of our allocations.
    gc.disable()
    try:
        _Taking(result, started, budget, main_code).run()
    finally:
        if result.collector_enabled:
            gc.enable()
    result.duration = time.monotonic() - started
    return result


class _Taking:
    def __init__(self, result, started, budget, main_code):
        self.result = result
        # Each phase leaves time for the next: half a walk is worth nothing when its finds go unnamed.
        self.gather_deadline = started + 0.4 * budget
        self.walk_deadline = started + 0.7 * budget
        self.chain_deadline = started + 0.8 * budget
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
            self.result.partial = self.result.partial or 'time'
        finally:
            for guard in reversed(guards):
                guard.__exit__(None, None, None)
            self._forget()

    def _run(self):
        # Locals come first: until 3.12 reading them makes dictionaries that must not be in `objects`.
        frames = thread_frames(globals())
        note_running_names(frames)
        self._note_locals(frames)
        del frames
        objects = gc.get_objects()
        self.result.objects = len(objects)
        roles = self._gather(objects)
        if not self.tensors:
            return
        wanted = {}
        for tensor in self.tensors:
            if tensor.owner is None and len(wanted) < CHAINS_LIMIT:
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
        chains = self._walk(wanted)
        # What no root reaches, less the empty dictionaries of running frames.
        seen = self.seen
        census_types = {id(cls) for cls in (Tensor, Holder, Result, Namer, Walk, Roles, _Taking, Step, TorchReader,
                                            CupyReader, JaxReader)}
        own = {id(objects), id(self.tensors), id(self.by_id), id(self.result.holders), id(wanted), id(chains),
               id(self.__dict__), id(self.local_names), id(self.module_names), id(self.module_of_namespace)}
        island = [value for value in objects
                  if id(value) not in seen and id(value) not in own and id(type(value)) not in census_types
                  and type(value) is not types.FrameType
                  and not (type(value) is dict and not dict.__len__(value))]
        del objects
        self._hold(chains, wanted, island)

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
        kinds = {}  # id of a class → what it is to us
        roles = None
        for reader in active:
            if reader.framework == FRAMEWORK_TORCH:
                self.torch = reader
                roles = Roles(reader)
        host = 0
        for value in objects:
            cls = type(value)
            kind = kinds.get(id(cls), _MISSING)
            if kind is _MISSING:
                kind = self._kind(cls, active, roles)
                kinds[id(cls)] = kind
            if kind is None:
                continue
            if kind == 'module':
                roles.add_module(value)
            elif kind == 'optimizer':
                roles.optimizers.append(value)
            else:
                host += self._add(kind, value, host)
            if len(self.tensors) & 1023 == 1023 and time.monotonic() > self.gather_deadline:
                self.result.partial = 'time: not every tensor was read'
                break
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
                elif tensor.grad_fn:
                    tensor.role = ROLE_ACTIVATION
        return roles

    def _kind(self, cls, active, roles):
        for reader in active:
            if reader.matches(cls):
                return reader
        if roles is not None:
            if self.torch.module_class is not None and has_base(cls, self.torch.module_class):
                return 'module'
            if self.torch.optimizer_class is not None and has_base(cls, self.torch.optimizer_class):
                return 'optimizer'
        return None

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
    def _walk(self, wanted):
        # The census's own containers are reachable from nothing the walk starts at, except through the
        # frame that called us; it is not among `frames`.
        walk = Walk(self.walk_deadline, [id(globals()), id(self), id(self.tensors)])
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
        walk.run(roots, wanted, self.local_values)
        self.local_values = []
        self.result.reached = walk.reached
        self.seen = walk.seen
        if not walk.complete:
            self.result.partial = self.result.partial or 'time: not the whole heap was walked'
        chains = {}
        self.walk_complete = walk.complete
        walk.deadline = self.chain_deadline
        try:
            parents = walk.parents(walk.found)
        except OutOfTime:
            self.result.partial = self.result.partial or 'time: not every chain was followed'
            parents = {}
        for key in walk.found:
            chain = [wanted[key]]
            while True:
                parent = parents.get(id(chain[-1]), None)
                if parent is None or len(chain) > 200:
                    break
                chain.append(parent)
            chain.reverse()
            chains[key] = chain
        walk.levels = walk.segments = []
        return chains

    # Phase 3: words.
    def _hold(self, chains, wanted, island):
        counts = {}
        for chain in chains.values():
            for place in range(len(chain) - 1):
                pair = (id(chain[place]), id(chain[place + 1]))
                counts[pair] = counts.get(pair, 0) + 1
        children = {}
        for parent, _ in counts:
            children[parent] = children.get(parent, 0) + 1
        told = {}
        for key, chain in chains.items():
            if time.monotonic() > self.deadline:
                self.result.partial = self.result.partial or 'time: not every holder was named'
                break
            told[key] = self._tell(chain, children)
        self.told = told
        unreached = {key: value for key, value in wanted.items() if key not in chains}
        if unreached and self.walk_complete:
            told.update(self._tell_unreached(unreached, chains, told, island, wanted))
        for tensor in self.tensors:
            key = id(tensor.object) if tensor.owner is None else tensor.owner
            if key in unreached:
                tensor.flags |= FLAG_UNREACHED
            holder = told.get(key, None)
            if holder is not None:
                tensor.holder = self._index(holder)
                if tensor.owner is not None and tensor.name:
                    tensor.name = _join(holder.example or holder.path, tensor.name)

    def _index(self, holder):
        key = (holder.kind, holder.path, holder.detail)
        index = self.holder_index.get(key, None)
        if index is None:
            index = self.holder_index[key] = len(self.result.holders)
            self.result.holders.append(holder)
        return index

    def _tell(self, chain, children):
        root = chain[0]
        kind = KIND_NAME
        place = 0
        head_step = None
        file, line = '', 0
        if id(root) in self.local_names and id(root) not in self.module_names:
            ident, title, name, code, line = self.local_names[id(root)]
            kind = KIND_FRAME
            file = code.co_filename
            head_step = Step('', name=name, code=code)
            head = title + ' ' + repr(name)
            thread = _thread_name(ident)
            if thread:
                head = 'thread ' + repr(thread) + ' ' + head
        else:
            if id(root) in self.module_of_namespace:
                module = self.module_of_namespace[id(root)]
                chain = [module] + chain
                root = module
            head = module_title(self.module_names.get(id(root), '?'))
        steps = self.namer.steps(chain, place)
        holder = self._holder(kind, head, steps, children, file, line)
        self._find_stores(holder, [head_step] + steps if head_step is not None else steps, children)
        return holder

    def _find_stores(self, holder, steps, children):
        """Lines that store under the name that the container (or, without one, the tensor) has."""
        named, collection = None, False
        for step in steps:
            if step.collection is not None:
                many = type(step.collection) is Count or children.get(id(step.collection), 0) >= PATTERN_FROM
                if step.code is not None:  # lru_cache: the decorator begins the function
                    holder.stores = [(step.code.co_filename, step.code.co_firstlineno)]
                    return
                collection = True
                if many:
                    break
            elif step.name:
                named, collection = step, False
        if named is not None:
            holder.stores = self._stores_of(named, collection)

    def _stores_of(self, step, adding):
        if step.code is not None:
            return self.stores.lines(step.name, [step.code], adding)
        found = self.stores.lines(step.name, self.stores.codes_of_module(step.module), adding) if step.module else []
        if not found and step.module != '__main__':
            # An attribute that code of the main program sets on a library's object.
            found = self.stores.lines(step.name, self.stores.codes_of_module('__main__'), adding)
        return found

    def _holder(self, kind, head, steps, children, file='', line=0):
        example, pattern, container, collection, owner = head, head, '', None, ''
        container_owner = ''
        last_text, repeats = None, 0
        for step in steps:
            example += step.text
            many = (step.collection is not None
                    and (type(step.collection) is Count or children.get(id(step.collection), 0) >= PATTERN_FROM))
            if many:
                if collection is None:
                    container, collection, container_owner = pattern, step.collection, owner
                text = step.text if type(step.collection) is Count or step.text[1:7] == 'cached' else '[…]'
            else:
                text = step.text
            if text == last_text and text != '[…]':
                repeats += 1
                if repeats > 1:
                    continue  # .next.next.next… of a linked list
                text = '…'
            else:
                last_text, repeats = text, 0
            pattern += text
            owner = step.owner
        if collection is None:
            # The innermost collection, however few its elements.
            container_so_far, owner_so_far = head, ''
            for step in steps:
                if step.collection is not None:
                    container, collection, container_owner = container_so_far, step.collection, owner_so_far
                container_so_far += step.text
                owner_so_far = step.owner
        holder = Holder(kind, pattern)
        holder.example = example if len(example) < 400 else example[:397] + '…'
        holder.container = container
        holder.owner = container_owner or owner
        holder.file, holder.line = file, line
        if type(collection) is Count:
            holder.container_type, holder.items = collection.kind, collection.items
        elif collection is not None:
            holder.container_type = type_name(type(collection))
            holder.items = length(collection)
            if '[cached' in pattern:
                holder.container_type = 'lru_cache'
        return holder

    # Phase 4: what no root reaches.
    def _tell_unreached(self, unreached, chains, told, island_objects, wanted):
        result = {}
        graph = self._graphs(chains, told)
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
            self.result.partial = self.result.partial or 'time: what no name reaches was not explained'
            return result
        children = {}
        for key, value in rest.items():
            if time.monotonic() > self.deadline:
                self.result.partial = self.result.partial or 'time: what no name reaches was not explained'
                break
            holder = self._island_holder(island, key, value, children)
            if holder.kind == KIND_NATIVE and not holder.container and keeper is not None and key in self.by_id:
                holder = self._by_keeper(keeper)
            result[key] = holder
        value = None
        return result

    def _island_holder(self, island, key, value, children):
        place = island.index.get(key, None)
        if place is None:
            return self._native_holder(None, [value], children)
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
            holder = self._holder(KIND_CYCLE, start, self.namer.steps(chain), children)
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
                return self._native_holder(island.objects[candidate], chain, children)
        return self._native_holder(island.objects[order[-1]], self._forward(island, order[-1], step), children)

    def _forward(self, island, place, step):
        chain = [island.objects[place]]
        while step.get(place, None) is not None:
            place = step[place]
            chain.append(island.objects[place])
        return chain

    def _native_holder(self, top, chain, children):
        if len(chain) <= 1:
            holder = Holder(KIND_NATIVE, 'no Python object')
            holder.detail = 'only C++ holds it'
            return holder
        start = qualified_type_name(type(top))
        steps = self.namer.steps(chain)
        holder = self._holder(KIND_NATIVE, start, steps, children)
        self._find_stores(holder, steps, children)
        holder.detail = 'the ' + start + ' is held from C or C++, by no Python name'
        return holder

    # The autograd graph: nodes reached from tensors that a name reaches.
    def _graphs(self, chains, told):
        """{id of node: (node, tensor key it belongs to, [names of nodes that use its output])}."""
        graph = {}
        queue = []
        for tensor in self.tensors:
            key = id(tensor.object)
            if not tensor.grad_fn or tensor.framework != FRAMEWORK_TORCH:
                continue
            if key not in chains and tensor.owner not in chains:
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
