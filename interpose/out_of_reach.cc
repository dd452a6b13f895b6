// See out_of_reach.h.
#include "interpose/out_of_reach.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "interpose/elf_image.h"
#include "interpose/hooks.h"
#include "interpose/notes.h"

// The entry stubs of loader.cc under names that only we can mean.
extern "C" {
__attribute__((visibility("hidden"))) void gpumemtrace_door_dlsym();
__attribute__((visibility("hidden"))) void gpumemtrace_door_dlvsym();
__attribute__((visibility("hidden"))) void gpumemtrace_door_dlopen();
__attribute__((visibility("hidden"))) void gpumemtrace_door_private_dlsym();
}

namespace gpumemtrace::interpose {
namespace {

// Every namespace has a libc, and so a dlsym, of its own, with its own dlerror message; which one an object
// uses shows in the object's addresses. Entries are never freed: an object that takes the place of one that
// is gone takes its entry.
struct PrivateObject {
  std::atomic<uintptr_t> start;
  std::atomic<uintptr_t> end;
  std::atomic<void*> dlsym;
};
constexpr size_t kMaxPrivateObjects = 512;
PrivateObject private_objects[kMaxPrivateObjects];
std::atomic<size_t> private_object_count{0};

// False when there is no room: the object keeps its dlsym then.
bool KeepPrivateObject(const ElfImage& image, void* its_dlsym) {
  const size_t count = std::min(private_object_count.load(std::memory_order_acquire), kMaxPrivateObjects);
  PrivateObject* entry = nullptr;
  for (size_t i = 0; i < count; ++i) {
    PrivateObject& known = private_objects[i];
    if (image.start() < known.end.load(std::memory_order_relaxed) &&
        known.start.load(std::memory_order_relaxed) < image.end()) {
      if (entry != nullptr) {
        known.end.store(0, std::memory_order_release);
      } else {
        entry = &known;
      }
    }
  }
  if (entry == nullptr) {
    const size_t index = private_object_count.fetch_add(1, std::memory_order_acq_rel);
    if (index >= kMaxPrivateObjects) {
      private_object_count.store(kMaxPrivateObjects, std::memory_order_relaxed);
      return false;
    }
    entry = &private_objects[index];
  }
  entry->dlsym.store(its_dlsym, std::memory_order_relaxed);
  entry->start.store(image.start(), std::memory_order_relaxed);
  entry->end.store(image.end(), std::memory_order_release);
  return true;
}

struct Patch {
  const ElfImage* image;
  void* handle;
  // What stands in for the object's dlsym; null to leave it.
  void* dlsym_door;
  bool base_namespace;
};

// Writes a pointer into an object's table, which the loader may have made read-only (RELRO).
void Write(const ElfImage& image, void** place, void* value) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t address = reinterpret_cast<uintptr_t>(place);
  // The loader protects whole pages only: the last, partial page of the segment stays writable.
  const bool read_only =
      address >= (image.relro_start() & ~(page - 1)) && address < (image.relro_end() & ~(page - 1));
  void* start = reinterpret_cast<void*>(address & ~(page - 1));
  if (read_only && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) {
    return;
  }
  __atomic_store_n(place, value, __ATOMIC_RELEASE);
  if (read_only) {
    mprotect(start, page, PROT_READ);
  }
}

bool PatchReference(void* context, const char* name, void** place) {
  const auto& patch = *static_cast<Patch*>(context);
  if (std::strcmp(name, "dlsym") == 0) {
    if (patch.dlsym_door != nullptr) {
      Write(*patch.image, place, patch.dlsym_door);
    }
    return true;
  }
  if (patch.base_namespace && std::strcmp(name, "dlvsym") == 0) {
    Write(*patch.image, place, reinterpret_cast<void*>(&gpumemtrace_door_dlvsym));
    return true;
  }
  if (patch.base_namespace && std::strcmp(name, "dlopen") == 0) {
    Write(*patch.image, place, reinterpret_cast<void*>(&gpumemtrace_door_dlopen));
    return true;
  }
  const HookId id = FindBySymbol(name);
  if (id == HookId::kCount) {
    return true;
  }
  void* original = *place;
  if (original == nullptr || patch.image->Contains(original)) {
    // Not bound yet (lazy binding), or a weak reference to nothing.
    const char* version = patch.image->NeededVersion(name);
    original =
        version != nullptr ? RealDlvsym()(patch.handle, name, version) : RealDlsym()(patch.handle, name);
    if (original == nullptr) {
      dlerror();
      return true;
    }
  }
  if (!IsOurs(original)) {
    Write(*patch.image, place, Substitute(id, original));
  }
  return true;
}

}  // namespace

LoadedObjects::LoadedObjects() {
  VisitImages(
      [](void* context, const ElfImage& image) {
        auto* objects = static_cast<LoadedObjects*>(context);
        if (objects->count_ < kMax) {
          objects->bases_[objects->count_++] = image.base();
        }
        return objects->count_ < kMax;
      },
      this);
}

bool LoadedObjects::Contains(uintptr_t base) const {
  // With more objects than fit nothing counts as new: an object that was there must not be changed.
  if (count_ == kMax) {
    return true;
  }
  for (size_t i = 0; i < count_; ++i) {
    if (bases_[i] == base) {
      return true;
    }
  }
  return false;
}

void PatchNewObjects(const LoadedObjects& before, void* handle) {
  // First collect, then patch: dlsym must not be called from within dl_iterate_phdr.
  struct New {
    const LoadedObjects* before;
    ElfImage images[64];
    size_t count;
  } found{&before, {}, 0};
  VisitImages(
      [](void* context, const ElfImage& image) {
        auto* state = static_cast<New*>(context);
        if (state->count < 64 && !state->before->Contains(image.base()) &&
            !image.Contains(&private_objects)) {
          state->images[state->count++] = image;
        }
        return true;
      },
      &found);
  for (size_t i = 0; i < found.count; ++i) {
    Patch patch{&found.images[i], handle, reinterpret_cast<void*>(&gpumemtrace_door_dlsym), true};
    found.images[i].VisitFunctionRelocations(PatchReference, &patch);
  }
}

void PatchNamespace(void* handle, const char* file) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) {
    NoteOutOfReach("dlmopen", file);
    return;
  }
  while (map->l_prev != nullptr) {
    map = map->l_prev;
  }
  link_map* const first = map;
  void* own_dlsym = nullptr;
  for (; map != nullptr && own_dlsym == nullptr; map = map->l_next) {
    const char* name = BaseName(map->l_name);
    if (std::strncmp(name, "libc.so", 7) == 0 || std::strncmp(name, "libdl.so", 8) == 0) {
      own_dlsym = ElfImage(*map).FindFunction("dlsym");
    }
  }
  bool look_ups_missed = own_dlsym == nullptr;
  for (map = first; map != nullptr; map = map->l_next) {
    const ElfImage image(*map);
    const char* name = BaseName(map->l_name);
    // The loader is shared by all namespaces, and libc's own references are no business of ours.
    if (!image.valid() || std::strncmp(name, "ld-linux", 8) == 0 || std::strncmp(name, "libc.so", 7) == 0) {
      continue;
    }
    const bool door = own_dlsym != nullptr && KeepPrivateObject(image, own_dlsym);
    look_ups_missed |= !door;
    Patch patch{&image, handle, door ? reinterpret_cast<void*>(&gpumemtrace_door_private_dlsym) : nullptr,
                false};
    image.VisitFunctionRelocations(PatchReference, &patch);
  }
  if (look_ups_missed) {
    // Functions that it is bound to directly are reached all the same.
    NoteOutOfReach("dlmopen", file);
  }
}

DlsymFunction PrivateDlsym(const void* caller) {
  const auto address = reinterpret_cast<uintptr_t>(caller);
  for (size_t i = std::min(private_object_count.load(std::memory_order_acquire), kMaxPrivateObjects);
       i-- > 0;) {
    const PrivateObject& object = private_objects[i];
    if (address < object.end.load(std::memory_order_acquire) &&
        address >= object.start.load(std::memory_order_relaxed)) {
      return reinterpret_cast<DlsymFunction>(object.dlsym.load(std::memory_order_relaxed));
    }
  }
  return RealDlsym();
}

void NoteOutOfReach(const char* how, const char* file) {
  char text[400];
  snprintf(text, sizeof(text),
           "%.200s was opened with %s: what it allocates is seen only where it reaches the driver", file,
           how);
  Tell(text);
}

}  // namespace gpumemtrace::interpose
