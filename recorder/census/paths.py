"""The words for a way through the heap, built one step at a time so that a hundred thousand tensors in one
collection share all but the last: the pattern `train.losses[…]`, an example of it, and the container meant.
"""


class Path:
    """What the steps from a root to some object amount to. `extend` gives the path one step further; equal steps
    from equal places give the same path, whose example is then the first one's."""
    __slots__ = ('example', 'pattern', 'container', 'collection', 'container_owner', 'owner', 'last_text', 'repeats',
                 'inner', 'named', 'adding', 'closed', 'decorated', 'further', 'element', 'kept')

    def __init__(self, head):
        self.example = self.pattern = head
        self.container, self.collection, self.container_owner = '', None, ''  # the first with many of the tensors
        self.owner = ''
        self.last_text, self.repeats = None, 0
        self.inner = None       # (path, collection, owner) of the innermost collection, however few its elements
        # For the lines that store: the last name before the collection, and whether things are added under it.
        self.named, self.adding, self.closed, self.decorated = None, False, False, None
        self.further = None     # {step: path}
        self.element = None     # the path of any element, for a collection with many
        self.kept = None        # the holder

    def named_by(self, step):
        """The path of a root that is itself a name code may store under."""
        self.named = step
        return self

    def extend(self, step, many):
        """`many`: ids of collections that are told as a pattern."""
        key = (step.text, step.owner, step.module)
        known = None if self.further is None else self.further.get(key, None)
        if known is not None:
            return known
        path = Path(self.example + step.text)
        if len(path.example) > 2000:  # nobody reads that; a long linked list must not cost its square
            path.example = path.example[:1000]
        is_count = type(step.collection) is Count
        is_many = step.collection is not None and (is_count or id(step.collection) in many)
        path.container, path.collection, path.container_owner = self.container, self.collection, self.container_owner
        path.inner = self.inner
        text = step.text
        if step.collection is not None:
            path.inner = (self.example, step.collection, self.owner)
        if is_many:
            if path.collection is None:
                path.container, path.collection, path.container_owner = self.pattern, step.collection, self.owner
            if not is_count and step.text[1:7] != 'cached':
                text = '[…]'
        self._repeat(path, text, step)
        self._store(path, step, is_many)
        if self.further is None:
            self.further = {}
        self.further[key] = path
        return path

    def _repeat(self, path, text, step):
        path.last_text, path.repeats, path.owner = text, 0, step.owner
        path.pattern = self.pattern + text
        if text == self.last_text and text != '[…]':
            path.repeats = self.repeats + 1
            # .next.next.next… of a linked list; [0][0] may be two different things.
            most = 1 if text.startswith('.') else 3
            if path.repeats > most:
                path.pattern, path.owner = self.pattern, self.owner
            elif path.repeats == most:
                path.pattern = self.pattern + '…'

    def _store(self, path, step, is_many):
        path.named, path.adding, path.closed, path.decorated = self.named, self.adding, self.closed, self.decorated
        if self.closed:
            return
        if step.collection is not None:
            if step.code is not None:  # lru_cache: the decorator begins the function
                path.decorated, path.closed = step.code, True
            path.adding = True
            path.closed = path.closed or is_many
        elif step.name and of_standard_library(step.module):
            # The deque in a queue.Queue, the arguments of a functools.partial: code of the program put things into the
            # object itself.
            path.adding = True
        elif step.name:
            path.named, path.adding = step, False

    def holder(self, kind, file='', line=0):
        """A new Holder for this path, without the lines that store."""
        container, collection, owner = self.container, self.collection, self.container_owner
        if collection is None and self.inner is not None:
            container, collection, owner = self.inner
        holder = Holder(kind, self.pattern)
        holder.example = self.example if len(self.example) < 400 else self.example[:397] + '…'
        holder.container = container
        holder.owner = owner or self.owner
        holder.file, holder.line = file, line
        if type(collection) is Count:
            holder.container_type, holder.items = collection.kind, collection.items
        elif collection is not None:
            holder.container_type = type_name(type(collection))
            holder.items = length(collection)
            if '[cached' in self.pattern:
                holder.container_type = 'lru_cache'
        return holder


class Root:
    """Where a path begins: its words, and for a module's namespace the module that comes before it."""
    __slots__ = ('path', 'before', 'kind', 'file', 'line')

    def __init__(self, path, before, kind, file, line):
        self.path, self.before, self.kind, self.file, self.line = path, before, kind, file, line


class Paths:
    """The paths of the objects in one Tree. Each object is told once."""

    def __init__(self, tree, namer, root_of, many):
        self.tree, self.namer, self.root_of, self.many = tree, namer, root_of, many
        self._told = {}   # place in tree.nodes → (path, root), at ends of steps
        self._roots = {}  # place → Root

    def forget(self):
        self.__dict__.clear()

    def of(self, place):
        """(path, root) of tree.nodes[place]."""
        nodes, parents, told = self.tree.nodes, self.tree.parents, self._told
        line, known, at = [place], None, parents[place]
        while at >= 0:
            known = told.get(at, None)
            line.append(at)
            if known is not None:
                break
            at = parents[at]
        line.reverse()
        if known is not None:
            path, root = known
        else:
            root = self._root(line[0])
            path = root.path
        chain = [nodes[entry] for entry in line]
        lead = 0
        if known is None and root.before is not None:
            chain.insert(0, root.before)
            lead = 1
        here, last = 0, len(chain) - 1
        while here < last:
            collection = chain[here]
            # Only a builtin has nothing but its elements to lead on.
            is_many = id(collection) in self.many and id(type(collection)) in _BUILTIN_LENGTH
            if is_many and path.element is not None:
                path, here = path.element, here + 1
            else:
                used, steps = self.namer.edge(chain, here)
                before = path
                for step in steps:
                    path = path.extend(step, self.many)
                if is_many and used == 1:
                    before.element = path
                here += max(used, 1)
            if here < last:
                told[line[here - lead]] = (path, root)
        return path, root

    def exactly(self, place):
        """The path of tree.nodes[place] whose example is its own, not that of another element."""
        chain = self.tree.chain(place)
        root = self._root(self._first(place))
        if root.before is not None:
            chain.insert(0, root.before)
        path = root.path
        for step in self.namer.steps(chain):
            path = path.extend(step, self.many)
        return path, root

    def _first(self, place):
        while self.tree.parents[place] >= 0:
            place = self.tree.parents[place]
        return place

    def _root(self, place):
        root = self._roots.get(place, None)
        if root is None:
            root = self._roots[place] = self.root_of(self.tree.nodes[place])
        return root
