#include "recorder/census/heap_walk.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cstdint>
#include <initializer_list>

#include "recorder/census/pages.h"

namespace gpumemtrace::recorder::census {
namespace {

using Visitor = int (*)(PyObject*, void*);
using Traverse = int (*)(PyObject*, Visitor, void*);
using IsGc = int (*)(PyObject*);

// The head of PyObject and the words of PyTypeObject that matter (Include/object.h, Include/cpython/object.h;
// the same in 3.8 to 3.14 with a GIL). PrepareHeap checks them against the interpreter's own functions.
constexpr size_t kTypeWord = 1;
constexpr size_t kFlagsWord = 21;
constexpr size_t kTraverseWord = 23;
constexpr size_t kIsGcWord = 41;
constexpr uintptr_t kHaveGc = uintptr_t{1} << 14;  // Py_TPFLAGS_HAVE_GC
// 3.8 only, whose macro is no function: the collector's head is two words before the object, and its first is
// not 0 while the object is tracked (Include/internal/pycore_object.h).
constexpr ptrdiff_t kGcHeadWord = -2;
// Include/typeslots.h.
constexpr int kTraverseSlot = 71;
constexpr int kIsGcSlot = 61;

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kClockEvery = 1024;

const PythonApi* api = nullptr;

uintptr_t Word(const void* object, ptrdiff_t place) {
  return reinterpret_cast<const uintptr_t*>(object)[place];
}

const PyObject* TypeOf(const PyObject* object) {
  return reinterpret_cast<const PyObject*>(Word(object, kTypeWord));
}

template <typename F>
F SlotOf(const PyObject* type, size_t word) {
  F function;
  const uintptr_t value = Word(type, static_cast<ptrdiff_t>(word));
  memcpy(&function, &value, sizeof function);
  return function;
}

// What the collector does not track cannot lead to a tensor, nor is it one.
bool Tracked(PyObject* object) {
  const PyObject* type = TypeOf(object);
  if ((Word(type, kFlagsWord) & kHaveGc) == 0) return false;
  if (api->heap.gc_is_tracked != nullptr) return api->heap.gc_is_tracked(object) != 0;
  const IsGc is_gc = SlotOf<IsGc>(type, kIsGcWord);
  if (is_gc != nullptr && is_gc(object) == 0) return false;
  return Word(object, kGcHeadWord) != 0;
}

double Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Pointers, each with a number; linear probing, at most half full.
class PointerTable {
 public:
  bool Reserve(size_t count) {
    size_t capacity = 1024;
    while (capacity < 2 * count) capacity *= 2;
    return keys_.Reset(capacity);
  }

  // Where the pointer is or would be.
  size_t Find(const PyObject* object) const {
    const size_t mask = keys_.capacity() - 1;
    size_t place = Hash(object) & mask;
    while (keys_[place] != nullptr && keys_[place] != object) place = (place + 1) & mask;
    return place;
  }
  bool Has(const PyObject* object) const { return keys_[Find(object)] != nullptr; }

  // kOld when it was there.
  enum class Added : uint8_t { kNew, kOld, kNoMemory };
  Added Add(const PyObject* object) {
    const size_t place = Find(object);
    if (keys_[place] != nullptr) return Added::kOld;
    keys_[place] = object;
    if (2 * ++count_ > keys_.capacity() && !Double()) return Added::kNoMemory;
    return Added::kNew;
  }

  size_t capacity() const { return keys_.capacity(); }
  size_t bytes() const { return keys_.capacity() * sizeof(const PyObject*); }

 private:
  static size_t Hash(const PyObject* object) {
    return static_cast<size_t>((reinterpret_cast<uintptr_t>(object) >> 4) * 0x9E3779B97F4A7C15u >> 24);
  }

  bool Double() {
    Pages<const PyObject*> old;
    old.Swap(keys_);
    if (!keys_.Reset(2 * old.capacity())) {
      old.Swap(keys_);
      return false;
    }
    for (size_t i = 0; i < old.capacity(); ++i) {
      if (old[i] != nullptr) keys_[Find(old[i])] = old[i];
    }
    return true;
  }

  Pages<const PyObject*> keys_;
  size_t count_ = 0;
};

size_t SizeOf(PyObject* list) {
  return static_cast<size_t>(api->heap.list_size(list));
}
PyObject* ItemOf(PyObject* list, size_t place) {
  return api->heap.list_get_item(list, static_cast<ptrdiff_t>(place));
}

class Walk {
 public:
  bool Prepare(PyObject* wanted, PyObject* excluded, double seconds) {
    deadline_ = Now() + seconds;
    wanted_ = wanted;
    remaining_ = SizeOf(wanted);
    if (!targets_.Reserve(remaining_) || !seen_.Reserve(1 << 16)) return false;
    for (size_t i = 0; i < remaining_; ++i) {
      if (targets_.Add(ItemOf(wanted, i)) == PointerTable::Added::kNoMemory) return false;
    }
    for (size_t i = 0; i < SizeOf(excluded); ++i) {
      if (seen_.Add(ItemOf(excluded, i)) == PointerTable::Added::kNoMemory) return false;
    }
    return true;
  }

  // `list` become objects without a parent.
  bool Begin(PyObject* list) {
    current_ = kNone;
    for (size_t i = 0; i < SizeOf(list); ++i) {
      if (!Add(ItemOf(list, i))) return false;
    }
    return true;
  }

  // Breadth first; `values` join behind the first level. False when memory or time ran out.
  bool Run(PyObject* values) {
    const size_t first_level = queue_.size();
    bool joined = false;
    for (size_t next = 0;; ++next) {
      if (next == first_level && !joined) {
        joined = true;
        if (!Begin(values)) return false;
      }
      if (next >= queue_.size() || (remaining_ == 0 && !everything_)) return true;
      if (next % kClockEvery == 0 && Now() > deadline_) return false;
      if (next + kAhead < queue_.size()) __builtin_prefetch(queue_[next + kAhead]);
      PyObject* object = queue_[next];
      current_ = static_cast<uint32_t>(next);
      // Tracked objects are of a type with a traversal; the roots need not be.
      const PyObject* type = TypeOf(object);
      const Traverse traverse = SlotOf<Traverse>(type, kTraverseWord);
      if (traverse == nullptr || !Tracked(object)) continue;
      traverse(object, Visit, this);
      if (failed_) return false;
    }
  }

  // Run goes on when all the wanted ones are found.
  void WalkEverything() { everything_ = true; }
  // In the order in which they were reached.
  PyObject* Reached(size_t place) const { return queue_[place]; }
  bool Seen(const PyObject* object) const { return seen_.Has(object); }
  size_t reached() const { return queue_.size(); }
  size_t bytes() const {
    return seen_.bytes() + targets_.bytes() +
           queue_.size() * (sizeof(PyObject*) + sizeof(uint32_t) + sizeof(uint32_t)) +
           found_.size() * sizeof(uint32_t);
  }
  bool all_found() const { return remaining_ == 0; }

  // The objects on the way to the wanted ones: nodes, parents, places as WalkHeap returns them.
  bool Chains(PyObject* nodes, Pages<int32_t>* parents, Pages<int32_t>* places) {
    Pages<uint32_t> number;  // of an object in `nodes`, plus 1
    if (!number.Reset(queue_.size())) return false;
    for (size_t i = 0; i < found_.size(); ++i) {
      for (uint32_t at = found_[i]; at != kNone && number[at] == 0; at = parents_[at]) number[at] = 1;
    }
    int32_t count = 0;
    for (size_t i = 0; i < queue_.size(); ++i) {
      if (number[i] == 0) continue;
      if (api->list_append(nodes, queue_[i]) != 0) return false;
      const uint32_t parent = parents_[i];
      if (!parents->Push(parent == kNone ? -1 : static_cast<int32_t>(number[parent]) - 1)) return false;
      number[i] = static_cast<uint32_t>(++count);
    }
    // From where they stand in the queue to where they stand among the wanted.
    PointerTable index;
    const size_t wanted = SizeOf(wanted_);
    Pages<uint32_t> node_of;
    if (!index.Reserve(found_.size() + 1)) return false;
    for (size_t i = 0; i < found_.size(); ++i) index.Add(queue_[found_[i]]);
    if (!node_of.Reset(index.capacity())) return false;
    for (size_t i = 0; i < found_.size(); ++i) {
      node_of[index.Find(queue_[found_[i]])] = number[found_[i]];
    }
    for (size_t i = 0; i < wanted; ++i) {
      const PyObject* object = ItemOf(wanted_, i);
      const bool reached = index.Has(object);
      if (!places->Push(reached ? static_cast<int32_t>(node_of[index.Find(object)]) - 1 : -1)) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kAhead = 4;

  static int Visit(PyObject* object, void* self) {
    auto* walk = static_cast<Walk*>(self);
    if (object == nullptr || !Tracked(object)) return 0;
    if (walk->Add(object)) return 0;
    walk->failed_ = true;
    return 1;
  }

  bool Add(PyObject* object) {
    switch (seen_.Add(object)) {
      case PointerTable::Added::kOld:
        return true;
      case PointerTable::Added::kNoMemory:
        return false;
      case PointerTable::Added::kNew:
        break;
    }
    if (queue_.size() >= kNone) return false;
    if (remaining_ != 0 && targets_.Has(object)) {
      if (!found_.Push(static_cast<uint32_t>(queue_.size()))) return false;
      --remaining_;
    }
    return queue_.Push(object) && parents_.Push(current_);
  }

  double deadline_ = 0;
  PyObject* wanted_ = nullptr;
  size_t remaining_ = 0;
  uint32_t current_ = kNone;
  bool failed_ = false;
  bool everything_ = false;
  PointerTable targets_;
  PointerTable seen_;
  Pages<PyObject*> queue_;
  Pages<uint32_t> parents_;  // place in the queue
  Pages<uint32_t> found_;    // places in the queue
};

PyObject* Argument(PyObject* arguments, ptrdiff_t place) {
  return api->heap.tuple_get_item(arguments, place);
}

PyObject* BytesOf(Pages<int32_t>& numbers) {
  return api->heap.bytes_from_string_and_size(reinterpret_cast<const char*>(numbers.data()),
                                              static_cast<ptrdiff_t>(numbers.size() * sizeof(int32_t)));
}

// A tuple that takes over the values; null, with all of them released, when one is null.
template <size_t kCount>
PyObject* TupleOf(PyObject* const (&values)[kCount]) {
  bool whole = true;
  for (PyObject* value : values) whole = whole && value != nullptr;
  PyObject* tuple = whole ? api->tuple_new(kCount) : nullptr;
  for (size_t i = 0; i < kCount; ++i) {
    if (tuple != nullptr) {
      api->tuple_set_item(tuple, static_cast<ptrdiff_t>(i), values[i]);
    } else if (values[i] != nullptr) {
      api->decref(values[i]);
    }
  }
  return tuple;
}

int MinorVersion() {
  const char* text = api->heap.get_version();
  return strncmp(text, "3.", 2) == 0 ? atoi(text + 2) : 0;
}

}  // namespace

bool PrepareHeap(const PythonApi& given) {
  api = &given;
  const HeapApi& heap = given.heap;
  if (!heap.found) return false;
  const int minor = MinorVersion();
  if (minor < 8 || (minor > 8 && heap.gc_is_tracked == nullptr)) return false;
  for (const PyObject* type : {heap.dict_type, heap.list_type, heap.tuple_type, heap.type_type}) {
    if (TypeOf(type) != heap.type_type) return false;
    if (Word(type, kFlagsWord) != heap.type_get_flags(type)) return false;
    if ((Word(type, kFlagsWord) & kHaveGc) == 0) return false;
    // Before 3.10 the slots of a static type could not be asked for.
    if (minor < 10) continue;
    if (Word(type, kTraverseWord) != reinterpret_cast<uintptr_t>(heap.type_get_slot(type, kTraverseSlot)))
      return false;
    if (Word(type, kIsGcWord) != reinterpret_cast<uintptr_t>(heap.type_get_slot(type, kIsGcSlot)))
      return false;
  }
  return Word(heap.dict_type, kIsGcWord) == 0 && Word(heap.type_type, kIsGcWord) != 0;
}

PyObject* SelectObjects(PyObject*, PyObject* arguments) {
  PyObject* objects = Argument(arguments, 0);
  PyObject* classes = objects == nullptr ? nullptr : Argument(arguments, 1);
  if (classes == nullptr) return nullptr;
  const size_t count = SizeOf(classes);
  PyObject* result = api->list_new(0);
  for (size_t i = 0; result != nullptr && i < count; ++i) {
    PyObject* list = api->list_new(0);
    const bool added = list != nullptr && api->list_append(result, list) == 0;
    if (list != nullptr) api->decref(list);
    if (!added) {
      api->decref(result);
      return nullptr;
    }
  }
  if (result == nullptr) return nullptr;
  // Most types come again and again: what is known of them, and of the last one at once.
  struct Known {
    const PyObject* type;
    size_t chosen;
  };
  constexpr size_t kKnown = 1024;
  Known known[kKnown] = {};
  for (size_t i = 0; i < SizeOf(objects); ++i) {
    PyObject* object = ItemOf(objects, i);
    const PyObject* type = TypeOf(object);
    Known& entry = known[(reinterpret_cast<uintptr_t>(type) >> 4) * 0x9E3779B1u % kKnown];
    if (entry.type != type) {
      entry.type = type;
      entry.chosen = 0;
      while (entry.chosen < count && api->heap.type_is_subtype(type, ItemOf(classes, entry.chosen)) == 0) {
        ++entry.chosen;
      }
    }
    if (entry.chosen == count) continue;
    if (api->list_append(ItemOf(result, entry.chosen), object) != 0) {
      api->decref(result);
      return nullptr;
    }
  }
  return result;
}

PyObject* WalkHeap(PyObject*, PyObject* arguments) {
  PyObject* lists[5];
  for (ptrdiff_t i = 0; i < 5; ++i) {
    lists[i] = Argument(arguments, i);
    if (lists[i] == nullptr) return nullptr;
  }
  PyObject* limit = Argument(arguments, 5);
  if (limit == nullptr) return nullptr;
  Walk walk;
  const bool ready = walk.Prepare(lists[2], lists[3], api->float_as_double(limit)) && walk.Begin(lists[0]);
  const bool complete = ready && walk.Run(lists[1]);
  PyObject* nodes = api->list_new(0);
  PyObject* unseen = api->list_new(0);
  Pages<int32_t> parents;
  Pages<int32_t> places;
  bool whole = nodes != nullptr && unseen != nullptr && ready && walk.Chains(nodes, &parents, &places);
  if (whole && complete && !walk.all_found()) {
    for (size_t i = 0; whole && i < SizeOf(lists[4]); ++i) {
      PyObject* object = ItemOf(lists[4], i);
      if (!walk.Seen(object)) whole = api->list_append(unseen, object) == 0;
    }
  }
  PyObject* const values[] = {nodes,
                              whole ? BytesOf(parents) : nullptr,
                              whole ? BytesOf(places) : nullptr,
                              unseen,
                              api->long_from_long(static_cast<long>(walk.reached())),
                              api->long_from_long(complete ? 1 : 0),
                              api->long_from_long(static_cast<long>(walk.bytes()))};
  PyObject* result = TupleOf(values);
  // Without memory there is no answer, and the caller must hear why.
  if (result == nullptr && api->error_occurred() == nullptr) return api->heap.no_memory();
  return result;
}

PyObject* HiddenObjects(PyObject*, PyObject* arguments) {
  PyObject* roots = Argument(arguments, 0);
  PyObject* objects = roots == nullptr ? nullptr : Argument(arguments, 1);
  PyObject* excluded = objects == nullptr ? nullptr : Argument(arguments, 2);
  PyObject* limit = excluded == nullptr ? nullptr : Argument(arguments, 3);
  if (limit == nullptr) return nullptr;
  PyObject* none = api->list_new(0);
  PyObject* hidden = api->list_new(0);
  Walk walk;
  walk.WalkEverything();
  bool whole = none != nullptr && hidden != nullptr &&
               walk.Prepare(none, excluded, api->float_as_double(limit)) && walk.Begin(roots) &&
               walk.Begin(objects);
  const size_t known = walk.reached();
  const bool complete = whole && walk.Run(none);
  for (size_t i = known; whole && i < walk.reached(); ++i) {
    whole = api->list_append(hidden, walk.Reached(i)) == 0;
  }
  if (none != nullptr) api->decref(none);
  if (!whole && hidden != nullptr) {
    api->decref(hidden);
    hidden = nullptr;
  }
  PyObject* const values[] = {hidden, api->long_from_long(complete ? 1 : 0)};
  PyObject* result = TupleOf(values);
  if (result == nullptr && api->error_occurred() == nullptr) return api->heap.no_memory();
  return result;
}

}  // namespace gpumemtrace::recorder::census
