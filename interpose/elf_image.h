// Reads the dynamic section of an object that the loader has already mapped: finds symbols, the version a
// caller asks for, and relocations. It calls neither dlsym nor malloc and takes no lock but the short one of
// dl_iterate_phdr, so that it can be used where dlsym itself is being answered.
#pragma once

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

namespace gpumemtrace::interpose {

class ElfImage {
 public:
  ElfImage() = default;
  // `info` as dl_iterate_phdr gives it; `info.dlpi_name` must outlive the image.
  explicit ElfImage(const dl_phdr_info& info);
  // An object of any namespace; invalid when its headers are not mapped.
  explicit ElfImage(const link_map& map);
  // The same from its dynamic section alone: FindFunction works, what needs program headers (start, end,
  // Contains) does not.
  static ElfImage FromDynamicSection(const link_map& map);

  bool valid() const { return symbols_ != nullptr && strings_ != nullptr; }
  const char* path() const { return path_; }
  uintptr_t base() const { return base_; }
  // Lowest and one past the highest loaded address.
  uintptr_t start() const;
  uintptr_t end() const;
  // Whether `address` lies in one of the object's loaded segments.
  bool Contains(const void* address) const;

  // Address of the function `name` that this object defines (its default version when there are several),
  // null when it defines none. Indirect functions are not resolved: null.
  void* FindFunction(const char* name) const;

  // Name of the version that this object's reference to `name` asks for; null when it asks for none.
  const char* NeededVersion(const char* name) const;

  // Calls `visit(context, name, place)` for every relocation that stores the address of symbol `name`
  // (a global-offset-table entry or a pointer in data) until it returns false.
  using RelocationVisitor = bool (*)(void* context, const char* name, void** place);
  void VisitFunctionRelocations(RelocationVisitor visit, void* context) const;

  // Whether the object gives versions to the symbols that it defines. CUDA's libraries do, preloads do not.
  bool defines_versions() const { return defines_versions_; }
  // Has DT_RPATH or DT_RUNPATH: such an object finds libraries by its own rules.
  bool has_search_path() const { return has_search_path_; }
  // Address range that the loader made read-only after relocation; empty when there is none.
  uintptr_t relro_start() const { return relro_start_; }
  uintptr_t relro_end() const { return relro_end_; }

 private:
  void ReadDynamicSection(const ElfW(Dyn) * dynamic);
  const ElfW(Sym) * Lookup(const char* name) const;
  const ElfW(Sym) * LookupGnu(const char* name) const;
  const ElfW(Sym) * LookupSysV(const char* name) const;
  bool IsDefaultFunction(uint32_t index, const char* name) const;

  uintptr_t base_ = 0;
  const char* path_ = "";
  const ElfW(Phdr) * headers_ = nullptr;
  size_t header_count_ = 0;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* strings_ = nullptr;
  const uint32_t* gnu_hash_ = nullptr;
  const uint32_t* sysv_hash_ = nullptr;
  const ElfW(Versym) * versions_ = nullptr;
  const ElfW(Verneed) * needed_versions_ = nullptr;
  size_t needed_version_count_ = 0;
  const ElfW(Rela) * relocations_ = nullptr;
  size_t relocation_count_ = 0;
  const ElfW(Rela) * plt_relocations_ = nullptr;
  size_t plt_relocation_count_ = 0;
  uintptr_t relro_start_ = 0;
  uintptr_t relro_end_ = 0;
  bool has_search_path_ = false;
  bool defines_versions_ = false;
};

// strcmp() == 0 without calling it: before a sanitizer has set itself up, its interceptors of string
// functions and of dl_iterate_phdr jump to null, and the first thing that it does is to call dlsym.
bool SameText(const char* a, const char* b);

// Visits all loaded objects of the base namespace in load order until `visit` returns false.
using ImageVisitor = bool (*)(void* context, const ElfImage& image);
void VisitImages(ImageVisitor visit, void* context);

// The object that contains `address`; an invalid image when none does.
ElfImage ImageOf(const void* address);

// Counts of objects ever added to and removed from the process: they change with every dlopen and dlclose.
struct LoaderCounts {
  uint64_t added = 0;
  uint64_t removed = 0;
};
LoaderCounts ReadLoaderCounts();

// The last component of a path.
const char* BaseName(const char* path);

}  // namespace gpumemtrace::interpose
