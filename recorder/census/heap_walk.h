// Walks CPython's heap in C, many times faster than Python code could: from the roots outwards through each
// type's own tp_traverse, as gc.get_referents does. Optional: without it the census walks in Python
// (heap.py).
#pragma once

#include "recorder/census/python_api.h"

namespace gpumemtrace::recorder::census {

// Looks up what the walk needs and checks that objects and types of this interpreter are laid out as expected
// (not in debug builds that trace references, nor without a GIL). With the GIL. Call once before the others.
bool PrepareHeap(const PythonApi& api);

// Functions for METH_O: the argument is a tuple, the result a new reference, or null with an error set. They
// hold the GIL throughout and run no Python code, so the heap stands still while they look; what they return
// are the only references that they make. Their own memory is mapped apart and unmapped at the end.
//
// (objects: list, classes: list) → a list for each class, of the objects that are instances of it or of a
// class derived from it (by MRO) and of none of the classes before.
PyObject* SelectObjects(PyObject* self, PyObject* arguments);

// (roots, values, wanted, excluded, objects: lists; seconds: float) →
//   (nodes: list, parents: bytes of int32, places: bytes of int32, unseen: list, reached: int, complete:
//   int, mapped: int).
// `nodes` are the objects on the shortest chains to the wanted ones, a parent before its children; parents[i]
// is the place in `nodes` of the one that leads to nodes[i], −1 for a root or one of `values` (which count as
// one step away from a root); places[i] is where wanted[i] stands, −1 when it was not reached. `unseen`:
// those of `objects` that were not reached, empty unless a wanted one was missed in a complete walk.
// `excluded` are not walked through. `complete` is 0 when the time was over first. `mapped`: bytes of memory
// that the walk had of its own.
PyObject* WalkHeap(PyObject* self, PyObject* arguments);

// (roots, objects, excluded: lists; seconds: float) → (hidden: list, complete: int): what the roots and the
// objects lead to and is in neither list, such as what gc.freeze() took out of the collector's sight.
PyObject* HiddenObjects(PyObject* self, PyObject* arguments);

}  // namespace gpumemtrace::recorder::census
