// See elf_image.h. Layouts: the ELF gABI and GNU extensions (DT_GNU_HASH, symbol versions), as in glibc's
// <elf.h>.
#include "interpose/elf_image.h"

#include <cstring>

namespace gpumemtrace::interpose {
namespace {

constexpr uint16_t kVersionIndexMask = 0x7fff;
constexpr uint16_t kVersionHidden = 0x8000;

#if defined(__x86_64__)
constexpr uint32_t kJumpSlot = R_X86_64_JUMP_SLOT;
constexpr uint32_t kGlobalData = R_X86_64_GLOB_DAT;
constexpr uint32_t kAbsolute = R_X86_64_64;
#elif defined(__aarch64__)
constexpr uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT;
constexpr uint32_t kGlobalData = R_AARCH64_GLOB_DAT;
constexpr uint32_t kAbsolute = R_AARCH64_ABS64;
#else
#error "Only x86-64 and aarch64 are supported."
#endif

uint32_t GnuHash(const char* name) {
  uint32_t hash = 5381;
  for (; *name != '\0'; ++name) {
    hash = hash * 33 + static_cast<unsigned char>(*name);
  }
  return hash;
}

uint32_t SysVHash(const char* name) {
  uint32_t hash = 0;
  for (; *name != '\0'; ++name) {
    hash = (hash << 4) + static_cast<unsigned char>(*name);
    const uint32_t high = hash & 0xf0000000u;
    hash = (hash ^ (high >> 24)) & ~high;
  }
  return hash;
}

}  // namespace

ElfImage::ElfImage(const dl_phdr_info& info)
    : base_(info.dlpi_addr),
      path_(info.dlpi_name != nullptr ? info.dlpi_name : ""),
      headers_(info.dlpi_phdr),
      header_count_(info.dlpi_phnum) {
  const ElfW(Dyn)* dynamic = nullptr;
  for (size_t i = 0; i < header_count_; ++i) {
    const ElfW(Phdr)& header = headers_[i];
    if (header.p_type == PT_DYNAMIC) {
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(base_ + header.p_vaddr);
    } else if (header.p_type == PT_GNU_RELRO) {
      relro_start_ = base_ + header.p_vaddr;
      relro_end_ = relro_start_ + header.p_memsz;
    }
  }
  if (dynamic != nullptr) {
    ReadDynamicSection(dynamic);
  }
}

ElfImage ElfImage::FromDynamicSection(const link_map& map) {
  ElfImage image;
  image.base_ = map.l_addr;
  image.path_ = map.l_name != nullptr ? map.l_name : "";
  if (map.l_ld != nullptr) {
    image.ReadDynamicSection(map.l_ld);
  }
  return image;
}

void ElfImage::ReadDynamicSection(const ElfW(Dyn) * dynamic) {
  // glibc relocates these pointers in place except in read-only dynamic sections (the vDSO).
  const auto pointer = [this](ElfW(Addr) value) { return value < base_ ? value + base_ : value; };
  size_t relocation_bytes = 0;
  size_t plt_relocation_bytes = 0;
  for (const ElfW(Dyn)* entry = dynamic; entry->d_tag != DT_NULL; ++entry) {
    const ElfW(Addr) value = entry->d_un.d_ptr;
    switch (entry->d_tag) {
      case DT_SYMTAB:
        symbols_ = reinterpret_cast<const ElfW(Sym)*>(pointer(value));
        break;
      case DT_STRTAB:
        strings_ = reinterpret_cast<const char*>(pointer(value));
        break;
      case DT_GNU_HASH:
        gnu_hash_ = reinterpret_cast<const uint32_t*>(pointer(value));
        break;
      case DT_HASH:
        sysv_hash_ = reinterpret_cast<const uint32_t*>(pointer(value));
        break;
      case DT_VERSYM:
        versions_ = reinterpret_cast<const ElfW(Versym)*>(pointer(value));
        break;
      case DT_VERNEED:
        needed_versions_ = reinterpret_cast<const ElfW(Verneed)*>(pointer(value));
        break;
      case DT_VERNEEDNUM:
        needed_version_count_ = value;
        break;
      case DT_RELA:
        relocations_ = reinterpret_cast<const ElfW(Rela)*>(pointer(value));
        break;
      case DT_RELASZ:
        relocation_bytes = value;
        break;
      case DT_JMPREL:
        plt_relocations_ = reinterpret_cast<const ElfW(Rela)*>(pointer(value));
        break;
      case DT_PLTRELSZ:
        plt_relocation_bytes = value;
        break;
      case DT_VERDEF:
        defines_versions_ = true;
        break;
      case DT_RPATH:
      case DT_RUNPATH:
        has_search_path_ = true;
        break;
      default:
        break;
    }
  }
  relocation_count_ = relocations_ != nullptr ? relocation_bytes / sizeof(ElfW(Rela)) : 0;
  plt_relocation_count_ = plt_relocations_ != nullptr ? plt_relocation_bytes / sizeof(ElfW(Rela)) : 0;
}

namespace {

// The first segment of an object holds its ELF header and program headers.
dl_phdr_info InfoOf(const link_map& map) {
  dl_phdr_info info = {};
  info.dlpi_addr = map.l_addr;
  info.dlpi_name = map.l_name;
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(map.l_addr);
  if (header != nullptr && std::memcmp(header->e_ident, ELFMAG, SELFMAG) == 0) {
    info.dlpi_phdr = reinterpret_cast<const ElfW(Phdr)*>(map.l_addr + header->e_phoff);
    info.dlpi_phnum = header->e_phnum;
  }
  return info;
}

}  // namespace

ElfImage::ElfImage(const link_map& map) : ElfImage(InfoOf(map)) {}

uintptr_t ElfImage::start() const {
  for (size_t i = 0; i < header_count_; ++i) {
    if (headers_[i].p_type == PT_LOAD) {  // in ascending order, as the gABI demands
      return base_ + headers_[i].p_vaddr;
    }
  }
  return base_;
}

uintptr_t ElfImage::end() const {
  uintptr_t end = base_;
  for (size_t i = 0; i < header_count_; ++i) {
    if (headers_[i].p_type == PT_LOAD) {
      end = base_ + headers_[i].p_vaddr + headers_[i].p_memsz;
    }
  }
  return end;
}

bool ElfImage::Contains(const void* address) const {
  const auto value = reinterpret_cast<uintptr_t>(address);
  for (size_t i = 0; i < header_count_; ++i) {
    const ElfW(Phdr)& header = headers_[i];
    if (header.p_type == PT_LOAD && value - (base_ + header.p_vaddr) < header.p_memsz) {
      return true;
    }
  }
  return false;
}

bool ElfImage::IsDefaultFunction(uint32_t index, const char* name) const {
  const ElfW(Sym)& symbol = symbols_[index];
  if (symbol.st_shndx == SHN_UNDEF || symbol.st_value == 0 || ELF64_ST_TYPE(symbol.st_info) == STT_TLS) {
    return false;
  }
  const unsigned char binding = ELF64_ST_BIND(symbol.st_info);
  if (binding != STB_GLOBAL && binding != STB_WEAK) {
    return false;
  }
  if (versions_ != nullptr && (versions_[index] & kVersionHidden) != 0) {
    return false;
  }
  return SameText(strings_ + symbol.st_name, name);
}

const ElfW(Sym) * ElfImage::LookupGnu(const char* name) const {
  const uint32_t bucket_count = gnu_hash_[0];
  const uint32_t first_symbol = gnu_hash_[1];
  const uint32_t bloom_words = gnu_hash_[2];
  const uint32_t bloom_shift = gnu_hash_[3];
  if (bucket_count == 0 || bloom_words == 0) {
    return nullptr;
  }
  constexpr uint32_t kWordBits = sizeof(ElfW(Addr)) * 8;
  const auto* bloom = reinterpret_cast<const ElfW(Addr)*>(gnu_hash_ + 4);
  const auto* buckets = reinterpret_cast<const uint32_t*>(bloom + bloom_words);
  const uint32_t* chain = buckets + bucket_count;
  const uint32_t hash = GnuHash(name);
  const ElfW(Addr) word = bloom[(hash / kWordBits) % bloom_words];
  if ((word >> (hash % kWordBits) & word >> ((hash >> bloom_shift) % kWordBits) & 1) == 0) {
    return nullptr;
  }
  uint32_t index = buckets[hash % bucket_count];
  if (index < first_symbol) {
    return nullptr;
  }
  for (;; ++index) {
    const uint32_t entry = chain[index - first_symbol];
    if ((entry | 1) == (hash | 1) && IsDefaultFunction(index, name)) {
      return symbols_ + index;
    }
    if ((entry & 1) != 0) {
      return nullptr;
    }
  }
}

const ElfW(Sym) * ElfImage::LookupSysV(const char* name) const {
  const uint32_t bucket_count = sysv_hash_[0];
  const uint32_t* buckets = sysv_hash_ + 2;
  const uint32_t* chain = buckets + bucket_count;
  if (bucket_count == 0) {
    return nullptr;
  }
  for (uint32_t index = buckets[SysVHash(name) % bucket_count]; index != 0; index = chain[index]) {
    if (IsDefaultFunction(index, name)) {
      return symbols_ + index;
    }
  }
  return nullptr;
}

const ElfW(Sym) * ElfImage::Lookup(const char* name) const {
  if (!valid()) {
    return nullptr;
  }
  if (gnu_hash_ != nullptr) {
    return LookupGnu(name);
  }
  return sysv_hash_ != nullptr ? LookupSysV(name) : nullptr;
}

void* ElfImage::FindFunction(const char* name) const {
  const ElfW(Sym)* symbol = Lookup(name);
  if (symbol == nullptr || ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC) {
    return nullptr;
  }
  return reinterpret_cast<void*>(base_ + symbol->st_value);
}

const char* ElfImage::NeededVersion(const char* name) const {
  if (!valid() || versions_ == nullptr || needed_versions_ == nullptr) {
    return nullptr;
  }
  // References stand before the hashed symbols, or, without a GNU hash table, anywhere.
  const uint32_t end = gnu_hash_ != nullptr ? gnu_hash_[1] : (sysv_hash_ != nullptr ? sysv_hash_[1] : 0);
  uint16_t version = 0;
  for (uint32_t index = 1; index < end; ++index) {
    if (symbols_[index].st_shndx == SHN_UNDEF && SameText(strings_ + symbols_[index].st_name, name)) {
      version = versions_[index] & kVersionIndexMask;
      break;
    }
  }
  if (version <= VER_NDX_GLOBAL) {
    return nullptr;
  }
  const ElfW(Verneed)* file = needed_versions_;
  for (size_t i = 0; i < needed_version_count_; ++i) {
    const auto* entry =
        reinterpret_cast<const ElfW(Vernaux)*>(reinterpret_cast<const char*>(file) + file->vn_aux);
    for (uint16_t j = 0; j < file->vn_cnt; ++j) {
      if ((entry->vna_other & kVersionIndexMask) == version) {
        return strings_ + entry->vna_name;
      }
      entry = reinterpret_cast<const ElfW(Vernaux)*>(reinterpret_cast<const char*>(entry) + entry->vna_next);
    }
    if (file->vn_next == 0) {
      break;
    }
    file = reinterpret_cast<const ElfW(Verneed)*>(reinterpret_cast<const char*>(file) + file->vn_next);
  }
  return nullptr;
}

void ElfImage::VisitFunctionRelocations(RelocationVisitor visit, void* context) const {
  if (!valid()) {
    return;
  }
  const auto visit_table = [&](const ElfW(Rela) * table, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const auto type = static_cast<uint32_t>(ELF64_R_TYPE(table[i].r_info));
      const auto symbol = static_cast<uint32_t>(ELF64_R_SYM(table[i].r_info));
      if (symbol == 0 ||
          (type != kJumpSlot && type != kGlobalData && !(type == kAbsolute && table[i].r_addend == 0))) {
        continue;
      }
      if (!visit(context, strings_ + symbols_[symbol].st_name,
                 reinterpret_cast<void**>(base_ + table[i].r_offset))) {
        return false;
      }
    }
    return true;
  };
  if (visit_table(plt_relocations_, plt_relocation_count_)) {
    visit_table(relocations_, relocation_count_);
  }
}

namespace {
struct VisitState {
  ImageVisitor visit;
  void* context;
};
}  // namespace

void VisitImages(ImageVisitor visit, void* context) {
  VisitState state{visit, context};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* visiting = static_cast<VisitState*>(data);
        return visiting->visit(visiting->context, ElfImage(*info)) ? 0 : 1;
      },
      &state);
}

ElfImage ImageOf(const void* address) {
  struct Search {
    const void* address;
    ElfImage found;
  } search{address, ElfImage()};
  VisitImages(
      [](void* context, const ElfImage& image) {
        auto* wanted = static_cast<Search*>(context);
        if (!image.Contains(wanted->address)) {
          return true;
        }
        wanted->found = image;
        return false;
      },
      &search);
  return search.found;
}

LoaderCounts ReadLoaderCounts() {
  LoaderCounts counts;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* result = static_cast<LoaderCounts*>(data);
        result->added = info->dlpi_adds;
        result->removed = info->dlpi_subs;
        return 1;
      },
      &counts);
  return counts;
}

bool SameText(const char* a, const char* b) {
  for (; *a == *b; ++a, ++b) {
    if (*a == '\0') {
      return true;
    }
  }
  return false;
}

const char* BaseName(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

}  // namespace gpumemtrace::interpose
