#include "recorder/stacks/modules.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>

#include "recorder/stacks/hash.h"
#include "recorder/stacks/lock.h"

namespace gpumemtrace::recorder::stacks {
namespace {

struct Record {
  ModuleInfo info;
  char* path;
  // Bytes behind `path` that a later record in this slot may use again.
  uint32_t path_room;
  // Found by the scan that is running.
  bool seen;
};

// Memory that only grows, straight from the kernel: the host's allocator is not ours to call, and the
// table lives as long as the process.
void* Map(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory != MAP_FAILED ? memory : nullptr;
}

class Table {
 public:
  const Record* Find(uint64_t address) const {
    const std::span<Record* const> records(records_, count_);
    const auto after =
        std::upper_bound(records.begin(), records.end(), address,
                         [](uint64_t wanted, const Record* record) { return wanted < record->info.start; });
    if (after == records.begin()) return nullptr;
    const Record* record = *(after - 1);
    return address < record->info.end ? record : nullptr;
  }

  bool OutOfDate(uint64_t adds, uint64_t subs) const { return adds != adds_ || subs != subs_; }

  // A scan: Add for each object between them.
  void BeginScan() {
    for (size_t i = 0; i < count_; ++i) records_[i]->seen = false;
  }
  void EndScan() {
    size_t kept = 0;
    for (size_t i = 0; i < count_; ++i) {
      if (records_[i]->seen) {
        records_[kept++] = records_[i];
      } else {
        Release(records_[i]);
      }
    }
    count_ = kept;
    std::sort(records_, records_ + count_,
              [](const Record* a, const Record* b) { return a->info.start < b->info.start; });
  }

  void Add(const dl_phdr_info& info) {
    adds_ = info.dlpi_adds;
    subs_ = info.dlpi_subs;
    uint64_t start = ~uint64_t{0};
    uint64_t end = 0;
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const ElfW(Phdr)& header = info.dlpi_phdr[i];
      if (header.p_type != PT_LOAD) continue;
      start = std::min<uint64_t>(start, info.dlpi_addr + header.p_vaddr);
      end = std::max<uint64_t>(end, info.dlpi_addr + header.p_vaddr + header.p_memsz);
    }
    if (start >= end) return;
    char(&path)[PATH_MAX] = path_;
    const size_t path_size = PathOf(info, path);
    for (size_t i = 0; i < count_; ++i) {
      Record& record = *records_[i];
      if (record.info.start == start && record.info.end == end && record.info.path_size == path_size &&
          std::memcmp(record.path, path, path_size) == 0) {
        record.seen = true;
        return;
      }
    }
    Record* record = NewRecord(path_size);
    if (record == nullptr) return;
    std::memcpy(record->path, path, path_size);
    record->seen = true;
    ModuleInfo& module = record->info;
    module = ModuleInfo{};
    module.serial = ++last_serial_;
    module.load_bias = info.dlpi_addr;
    module.start = start;
    module.end = end;
    module.path_size = static_cast<uint16_t>(path_size);
    for (int i = 0; i < info.dlpi_phnum && module.build_id_size == 0; ++i) {
      if (info.dlpi_phdr[i].p_type == PT_NOTE) ReadBuildId(info, info.dlpi_phdr[i], module);
    }
    module.content = HashBytes(HashBytes(kSalt1, path, path_size), module.build_id, module.build_id_size);
    records_[count_++] = record;
  }

 private:
  static constexpr size_t kArenaBytes = 256 * 1024;

  // The loader gives the main program no name, and objects loaded by a relative path that path.
  static size_t PathOf(const dl_phdr_info& info, char (&path)[PATH_MAX]) {
    const char* name = info.dlpi_name != nullptr ? info.dlpi_name : "";
    if (*name == '\0') {
      const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
      return size > 0 ? static_cast<size_t>(size) : 0;
    }
    size_t used = 0;
    if (*name != '/' && std::strchr(name, '/') != nullptr && getcwd(path, sizeof(path)) != nullptr) {
      used = std::strlen(path);
      if (used + 1 < sizeof(path)) path[used++] = '/';
    }
    const size_t size = std::min(std::strlen(name), sizeof(path) - used);
    std::memcpy(path + used, name, size);
    return used + size;
  }

  static void ReadBuildId(const dl_phdr_info& info, const ElfW(Phdr) & header, ModuleInfo& module) {
    const size_t alignment = header.p_align == 8 ? 8 : 4;
    const char* notes = reinterpret_cast<const char*>(info.dlpi_addr + header.p_vaddr);
    size_t position = 0;
    while (position + sizeof(ElfW(Nhdr)) <= header.p_memsz) {
      ElfW(Nhdr) note;
      std::memcpy(&note, notes + position, sizeof(note));
      const size_t name = position + sizeof(note);
      const size_t description = name + ((note.n_namesz + alignment - 1) & ~(alignment - 1));
      const size_t next = description + ((note.n_descsz + alignment - 1) & ~(alignment - 1));
      if (description + note.n_descsz > header.p_memsz) return;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(notes + name, "GNU", 4) == 0) {
        const size_t size = std::min<size_t>(note.n_descsz, sizeof(module.build_id));
        std::memcpy(module.build_id, notes + description, size);
        module.build_id_size = static_cast<uint8_t>(size);
        return;
      }
      position = next;
    }
  }

  Record* NewRecord(size_t path_size) {
    if (count_ == capacity_ && !Grow()) return nullptr;
    Record* record = nullptr;
    for (size_t i = 0; i < free_count_; ++i) {
      if (free_[i]->path_room < path_size) continue;
      record = free_[i];
      free_[i] = free_[--free_count_];
      return record;
    }
    record = static_cast<Record*>(Allocate(sizeof(Record)));
    if (record == nullptr) return nullptr;
    record->path = static_cast<char*>(Allocate(path_size));
    record->path_room = static_cast<uint32_t>(path_size);
    return record->path != nullptr ? record : nullptr;
  }

  void Release(Record* record) {
    if (free_count_ < kMostFree) free_[free_count_++] = record;
  }

  bool Grow() {
    const size_t capacity = capacity_ == 0 ? 1024 : capacity_ * 2;
    auto** records = static_cast<Record**>(Map(capacity * sizeof(Record*)));
    if (records == nullptr) return false;
    if (records_ != nullptr) {
      std::memcpy(records, records_, count_ * sizeof(Record*));
      munmap(records_, capacity_ * sizeof(Record*));
    }
    records_ = records;
    capacity_ = capacity;
    return true;
  }

  void* Allocate(size_t bytes) {
    bytes = (bytes + 15) & ~size_t{15};
    if (arena_left_ < bytes) {
      arena_ = static_cast<char*>(Map(kArenaBytes));
      if (arena_ == nullptr) {
        arena_left_ = 0;
        return nullptr;
      }
      arena_left_ = kArenaBytes;
    }
    void* memory = arena_;
    arena_ += bytes;
    arena_left_ -= bytes;
    return memory;
  }

  static constexpr size_t kMostFree = 64;

  // Sorted by start but while a scan runs.
  Record** records_ = nullptr;
  size_t count_ = 0;
  size_t capacity_ = 0;
  Record* free_[kMostFree] = {};
  size_t free_count_ = 0;
  char* arena_ = nullptr;
  size_t arena_left_ = 0;
  uint64_t last_serial_ = 0;
  uint64_t adds_ = 0;
  uint64_t subs_ = 0;
  // Of the object being added; too large for the stack of a small thread.
  char path_[PATH_MAX] = {};
};

constinit Table g_table;
constinit ColdLock g_lock;
constinit std::atomic<uint64_t> g_unload_generation{1};
constinit std::atomic<uint64_t> g_last_subs{0};

struct Counts {
  uint64_t adds = 0;
  uint64_t subs = 0;
};

Counts LoaderCounts() {
  Counts counts;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        *static_cast<Counts*>(data) = {info->dlpi_adds, info->dlpi_subs};
        return 1;
      },
      &counts);
  return counts;
}

}  // namespace

void RefreshModules() {
  NoteModuleChanges();
  // Our lock is taken inside the loader's, never the other way round: whoever has the loader's, a callback of
  // the host's, say, may need ours.
  bool scans = false;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* scanning = static_cast<bool*>(data);
        if (!*scanning) {
          g_lock.lock();
          if (!g_table.OutOfDate(info->dlpi_adds, info->dlpi_subs)) {
            g_lock.unlock();
            return 1;
          }
          g_table.BeginScan();
          *scanning = true;
        }
        g_table.Add(*info);
        return 0;
      },
      &scans);
  if (!scans) return;
  g_table.EndScan();
  g_lock.unlock();
}

bool FindModule(uint64_t address, ModuleInfo& info, std::span<char> path) {
  const ColdLockGuard guard(g_lock);
  const Record* record = g_table.Find(address);
  if (record == nullptr) return false;
  info = record->info;
  info.path_size = static_cast<uint16_t>(std::min<size_t>(info.path_size, path.size()));
  std::memcpy(path.data(), record->path, info.path_size);
  return true;
}

ModuleKey FindModuleKey(uint64_t address) {
  const ColdLockGuard guard(g_lock);
  const Record* record = g_table.Find(address);
  if (record == nullptr) return {};
  return {record->info.serial, record->info.content, record->info.load_bias};
}

bool NoteModuleChanges() {
  const uint64_t subs = LoaderCounts().subs;
  if (g_last_subs.exchange(subs, std::memory_order_acq_rel) == subs) return false;
  g_unload_generation.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

uint64_t UnloadGeneration() {
  return g_unload_generation.load(std::memory_order_acquire);
}

bool RangeOfObject(uint64_t address, uint64_t& start, uint64_t& end) {
  struct Search {
    uint64_t address;
    uint64_t start;
    uint64_t end;
    bool found;
  } search{address, ~uint64_t{0}, 0, false};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* wanted = static_cast<Search*>(data);
        uint64_t low = ~uint64_t{0};
        uint64_t high = 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& header = info->dlpi_phdr[i];
          if (header.p_type != PT_LOAD) continue;
          low = std::min<uint64_t>(low, info->dlpi_addr + header.p_vaddr);
          high = std::max<uint64_t>(high, info->dlpi_addr + header.p_vaddr + header.p_memsz);
        }
        if (wanted->address < low || wanted->address >= high) return 0;
        wanted->start = low;
        wanted->end = high;
        wanted->found = true;
        return 1;
      },
      &search);
  start = search.start;
  end = search.end;
  return search.found;
}

void ResetModulesAfterFork() {
  g_lock.ResetAfterFork();
}

}  // namespace gpumemtrace::recorder::stacks
