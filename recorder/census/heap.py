"""Walks the heap once, from the roots outwards, and reconstructs shortest chains to chosen objects.

The recorder does both in C (heap_walk.h) where it knows how objects are laid out. Everywhere else: one
breadth-first pass over gc.get_referents, in chunks so that nearly all work happens inside C calls; an object's
place in its level tells which chunk discovered it, so chains need no parent link per object.
"""
import gc
import sys
import time

CHUNK = 1024


class OutOfTime(Exception):
    pass


class Tree:
    """The shortest chains to the wanted objects, as one tree for each root."""

    def __init__(self):
        self.nodes = []        # objects, a parent before its children
        self.parents = []      # place of the parent in `nodes`, -1 for a root
        self.place = {}        # id of a wanted object that was reached → place in `nodes`
        self.unseen = []       # of all objects, those that no root reaches; only when a wanted one is among them
        self.reached = 0
        self.complete = False
        self.out_of_time = ''  # what is missing
        self.mapped = 0        # bytes that the walk had outside of Python and gave back

    def chain(self, place):
        """Objects from the root to nodes[place]."""
        result = []
        while place >= 0:
            result.append(self.nodes[place])
            place = self.parents[place]
        result.reverse()
        return result


def select(objects, classes):
    """A list for each class: the objects that are instances of it, and of none of the classes before."""
    native = globals().get('_native_select', None)
    if native is not None:
        return native((objects, classes))
    result = [[] for _ in classes]
    known = {}  # id of a class → list to append to, or None
    for value in objects:
        cls = type(value)
        chosen = known.get(id(cls), _MISSING)
        if chosen is _MISSING:
            chosen = next((result[place] for place, base in enumerate(classes) if has_base(cls, base)), None)
            known[id(cls)] = chosen
        if chosen is not None:
            chosen.append(value)
    return result


def walk_heap(roots, values, wanted, excluded, objects, walk_deadline, chain_deadline):
    """A Tree. `roots`: objects at distance 0; `values`: more at distance 1; `wanted`: {id: object}; `excluded`:
    objects that are not walked through; `objects`: all objects there are."""
    tree = Tree()
    native = globals().get('_native_walk', None)
    if native is not None:
        keys = list(wanted)
        tree.nodes, parents, places, tree.unseen, tree.reached, complete, tree.mapped = native(
            (roots, values, list(wanted.values()), excluded, objects, walk_deadline - time.monotonic()))
        tree.parents = memoryview(parents).cast('i').tolist()
        tree.place = {key: place for key, place in zip(keys, memoryview(places).cast('i').tolist()) if place >= 0}
        tree.complete = complete == 1
    else:
        walk = Walk(walk_deadline, [id(value) for value in excluded])
        walk.run(roots, wanted, values)
        tree.reached, tree.complete = walk.reached, walk.complete
        walk.deadline = chain_deadline
        try:
            _fill_tree(tree, walk, wanted)
        except OutOfTime:
            tree.nodes, tree.parents, tree.place = [], [], {}
            tree.out_of_time = 'time: not every chain was followed'
        if walk.complete and len(walk.found) < len(wanted):
            seen = walk.seen
            tree.unseen = [value for value in objects if id(value) not in seen]
        walk.release()
    if not tree.complete:
        tree.out_of_time = 'time: not the whole heap was walked'
    return tree


def hidden_objects(roots, objects, excluded, deadline):
    """(list, complete): what roots and objects lead to and is in neither list. gc.get_objects() leaves out what
    gc.freeze() moved aside (measured: 3.8 to 3.13)."""
    native = globals().get('_native_hidden', None)
    if native is not None:
        hidden, complete = native((roots, objects, excluded, deadline - time.monotonic()))
        return hidden, complete == 1
    seen = set(map(id, excluded))
    level = []
    for container in (roots, objects):
        for value in container:
            if id(value) not in seen:
                seen.add(id(value))
                level.append(value)
    hidden = []
    while level:
        following = []
        for start in range(0, len(level), CHUNK):
            if time.monotonic() > deadline:
                return hidden, False
            for value in filter(gc.is_tracked, gc.get_referents(*level[start:start + CHUNK])):
                if id(value) not in seen:
                    seen.add(id(value))
                    following.append(value)
        hidden += following
        level = following
    return hidden, True


def _fill_tree(tree, walk, wanted):
    parents = walk.parents(walk.found)
    places = {}
    for key in walk.found:
        chain = [wanted[key]]
        while id(chain[-1]) not in places:
            parent = parents.get(id(chain[-1]), None)
            if parent is None:
                break
            chain.append(parent)
        for value in reversed(chain):
            if id(value) not in places:
                parent = parents.get(id(value), None)
                tree.parents.append(-1 if parent is None else places[id(parent)])
                places[id(value)] = len(tree.nodes)
                tree.nodes.append(value)
        tree.place[key] = places[key]


class Walk:
    """Levels of objects by distance from the roots. Holds strong references until `release`."""

    def __init__(self, deadline, excluded):
        self.deadline = deadline
        self.seen = set(excluded)  # ids
        self.levels = []           # [objects of the level]
        self.segments = []         # per level: [(end position in the level, start position of the chunk above)]
        self.found = {}            # id of a wanted object → (level, segment index)
        self.complete = False
        self.reached = 0

    def release(self):
        self.levels = []
        self.segments = []
        self.seen = set()

    def run(self, roots, wanted, first_values):
        """`roots`: objects at distance 0. `first_values`: more objects at distance 1, values of frames.
        `wanted`: ids to look out for; the walk ends early when all are found."""
        remaining = set(wanted)
        level = []
        for root in roots:
            if id(root) not in self.seen:
                self.seen.add(id(root))
                level.append(root)
                if id(root) in remaining:
                    remaining.discard(id(root))
                    self.found[id(root)] = (0, -1)
        self.levels.append(level)
        self.segments.append([])
        extra = first_values
        get_referents, is_tracked, seen = gc.get_referents, gc.is_tracked, self.seen
        while level or extra:
            following, segments = [], []
            for start in range(0, len(level), CHUNK):
                if time.monotonic() > self.deadline:
                    self.levels.append(following)
                    self.segments.append(segments)
                    return
                # What the collector does not track cannot lead to a tensor, nor is it one.
                referents = list(filter(is_tracked, get_referents(*level[start:start + CHUNK])))
                keys = list(map(id, referents))
                # A small set less a large one: the other way round would look at all of the large one.
                new = set(keys).difference(seen)
                if not new:
                    continue
                seen |= new
                if remaining:
                    hit = remaining & new
                    for key in hit:
                        self.found[key] = (len(self.levels), len(segments))
                    remaining -= hit
                following += map(dict(zip(keys, referents)).__getitem__, new)
                segments.append((len(following), start))
            if extra:
                for value in extra:
                    key = id(value)
                    if key in seen:
                        continue
                    seen.add(key)
                    if key in remaining:
                        remaining.discard(key)
                        self.found[key] = (len(self.levels), -1)
                    following.append(value)
                segments.append((len(following), -1))
                extra = None
            self.levels.append(following)
            self.segments.append(segments)
            self.reached += len(following)
            level = following
            if not remaining and wanted:
                break
        self.complete = True

    def parents(self, wanted):
        """{id: parent object or None} for found objects and, level by level, for their ancestors."""
        by_level = {}
        for key in wanted:
            place = self.found.get(key, None)
            if place is not None:
                by_level.setdefault(place[0], {})[key] = place[1]
        result = {}
        if not by_level:
            return result
        for depth in range(max(by_level), 0, -1):
            needed = by_level.pop(depth, None)
            if not needed:
                continue
            above, segments = self.levels[depth - 1], self.segments[depth]
            chunks = {}
            for key, segment in needed.items():
                start = segments[segment][1] if 0 <= segment < len(segments) else -1
                if start < 0:
                    result[key] = None  # a frame's own value
                else:
                    chunks.setdefault(start, set()).add(key)
            for start, keys in chunks.items():
                if time.monotonic() > self.deadline:
                    raise OutOfTime
                for position in range(start, min(start + CHUNK, len(above))):
                    candidate = above[position]
                    hit = keys.intersection(map(id, gc.get_referents(candidate)))
                    if hit:
                        for key in hit:
                            result[key] = candidate
                        keys -= hit
                        if id(candidate) not in result and depth > 1:
                            by_level.setdefault(depth - 1, {})[id(candidate)] = \
                                self._segment(depth - 1, position)
                        if not keys:
                            break
                for key in keys:
                    result[key] = None  # the heap changed under us
        return result

    def _segment(self, depth, position):
        segments = self.segments[depth]
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            if segments[middle][0] <= position:
                low = middle + 1
            else:
                high = middle
        return low



def thread_frames(own_globals):
    """([(thread ident, frame)], all): every Python frame that runs, innermost first, the census's own left out. Only
    those of this thread when there are subinterpreters (see Frames in census.cc)."""
    result = []
    native = globals().get('_native_frames', None)
    threads = sys._current_frames() if native is None else native(None)
    if type(threads) is not dict:
        threads = {0: sys._getframe()}
    for ident, frame in threads.items():
        while frame is not None:
            if frame.f_globals is not own_globals:
                result.append((ident, frame))
            frame = frame.f_back
    complete = 0 not in threads
    threads = None  # this frame is among them: a cycle
    return result, complete


class Island:
    """Objects that no root reaches: garbage cycles, and what only C or C++ code holds.

    Refers to objects by their index in one list, so that reference counts can be explained: a count above
    the references found inside the island means that something outside Python's graph holds the object.
    """

    def __init__(self, objects, deadline, held_by_census):
        """`held_by_census`: {id: references that the census's own containers hold, `objects` included}."""
        self.objects = objects
        self.index = {id(value): place for place, value in enumerate(objects)}
        self.parents = {}  # index → [indices]
        inside = {}        # index → number of references from the island
        for place in range(len(objects)):
            if not place & 1023 and time.monotonic() > deadline:
                raise OutOfTime
            for key in map(id, gc.get_referents(objects[place])):
                target = self.index.get(key, None)
                if target is not None:
                    inside[target] = inside.get(target, 0) + 1
                    links = self.parents.setdefault(target, [])
                    if not links or links[-1] != place:
                        links.append(place)
        # Places of objects with references that nothing in the island accounts for.
        self.held_from_outside = set()
        for place in range(len(objects)):
            key = id(objects[place])
            # One more is the argument of getrefcount.
            if sys.getrefcount(objects[place]) > 1 + inside.get(place, 0) + held_by_census.get(key, 0):
                self.held_from_outside.add(place)

    def ancestors(self, place, limit=2000):
        """Indices that lead to `place`, nearest first, with the next step towards it."""
        step = {place: None}
        order = [place]
        for current in order:
            for parent in self.parents.get(current, ()):
                if parent not in step:
                    step[parent] = current
                    order.append(parent)
            if len(order) > limit:
                break
        return order, step

    def cycle_through(self, place, limit=2000):
        """A shortest cycle through the object as indices [place, …, place], or None."""
        step = {}
        order = [place]
        for current in order:
            for parent in self.parents.get(current, ()):
                if parent == place:
                    # Walk forward from `place`: place → … → current's chain.
                    chain = [place]
                    node = current
                    while node != place:
                        chain.append(node)
                        node = step[node]
                    chain.append(place)
                    return chain
                if parent not in step:
                    step[parent] = current
                    order.append(parent)
            if len(order) > limit:
                return None
        return None
