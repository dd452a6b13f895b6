#include "analyzer/symbols/elf_module.h"

#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwelf.h>
#include <fcntl.h>
#include <gelf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "analyzer/symbols/names.h"

namespace gpumemtrace::analyzer {
namespace {

constexpr const char* kDebugRoot = "/usr/lib/debug";

std::string FolderOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? "." : path.substr(0, slash));
}

}  // namespace

// An open ELF file and what libdw made of it.
class ElfModule::File {
 public:
  static std::unique_ptr<File> Open(const std::string& path) {
    elf_version(EV_CURRENT);
    // The path comes out of a trace and may be a device or a pipe: never wait for it.
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return nullptr;
    std::unique_ptr<File> file(new File(descriptor));
    struct stat status;
    if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
      errno = EINVAL;
      return nullptr;
    }
    file->elf_ = elf_begin(descriptor, ELF_C_READ_MMAP, nullptr);
    if (file->elf_ == nullptr || elf_kind(file->elf_) != ELF_K_ELF) {
      errno = ENOEXEC;
      return nullptr;
    }
    return file;
  }
  ~File() {
    if (dwarf_ != nullptr) dwarf_end(dwarf_);
    if (elf_ != nullptr) elf_end(elf_);
    close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::string BuildId() const {
    const void* bytes = nullptr;
    const ssize_t size = dwelf_elf_gnu_build_id(elf_, &bytes);
    return size > 0 ? std::string(static_cast<const char*>(bytes), static_cast<size_t>(size)) : std::string();
  }
  Elf* elf() const { return elf_; }
  Dwarf* dwarf() {
    if (!dwarf_tried_) {
      dwarf_tried_ = true;
      if (HasSection(".debug_info") || HasSection(".zdebug_info"))
        dwarf_ = dwarf_begin_elf(elf_, DWARF_C_READ, nullptr);
    }
    return dwarf_;
  }

 private:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  bool HasSection(std::string_view wanted) const {
    size_t names = 0;
    if (elf_getshdrstrndx(elf_, &names) != 0) return false;
    for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf_, section)) != nullptr;) {
      GElf_Shdr header;
      if (gelf_getshdr(section, &header) == nullptr) continue;
      const char* name = elf_strptr(elf_, names, header.sh_name);
      if (name != nullptr && wanted == name) return header.sh_type != SHT_NOBITS;
    }
    return false;
  }

  int descriptor_;
  Elf* elf_ = nullptr;
  Dwarf* dwarf_ = nullptr;
  bool dwarf_tried_ = false;
};

ElfModule::ElfModule() = default;
ElfModule::~ElfModule() {
  // The debug information refers to the alternate file.
  debug_.reset();
  object_.reset();
}

std::unique_ptr<ElfModule> ElfModule::Find(const std::string& path, const std::string& build_id,
                                           const std::vector<std::string>& folders, std::string& why) {
  const std::string hex = absl::BytesToHexString(build_id);
  const std::string by_id =
      hex.size() > 2 ? absl::StrCat("/.build-id/", hex.substr(0, 2), "/", hex.substr(2)) : std::string();
  std::vector<std::string> candidates;
  for (const std::string& folder : folders) {
    candidates.push_back(absl::StrCat(folder, "/", std::string(BaseName(path))));
    candidates.push_back(absl::StrCat(folder, path));  // the folder is a copy of the root
    if (!by_id.empty()) candidates.push_back(absl::StrCat(folder, by_id));
  }
  if (!path.empty() && path[0] == '/') candidates.push_back(path);
  why = "not found";
  std::unique_ptr<ElfModule> module(new ElfModule);
  for (const std::string& candidate : candidates) {
    std::unique_ptr<File> file = File::Open(candidate);
    if (file == nullptr) continue;
    if (file->BuildId() != build_id) {
      why = "another build";
      continue;
    }
    module->object_ = std::move(file);
    break;
  }

  std::vector<std::string> debug_candidates;
  if (!by_id.empty()) {
    for (const std::string& folder : folders)
      debug_candidates.push_back(absl::StrCat(folder, by_id, ".debug"));
    debug_candidates.push_back(absl::StrCat(kDebugRoot, by_id, ".debug"));
  }
  if (module->object_ != nullptr) {
    GElf_Word crc = 0;
    const char* link = dwelf_elf_gnu_debuglink(module->object_->elf(), &crc);
    if (link != nullptr) {
      const std::string name(BaseName(link));
      for (const std::string& folder : folders) debug_candidates.push_back(absl::StrCat(folder, "/", name));
      const std::string home = FolderOf(path);
      debug_candidates.push_back(absl::StrCat(home, "/.debug/", name));
      debug_candidates.push_back(absl::StrCat(kDebugRoot, home, "/", name));
    }
  }
  for (const std::string& folder : folders) {
    debug_candidates.push_back(absl::StrCat(folder, "/", std::string(BaseName(path)), ".debug"));
  }
  if (module->object_ == nullptr || module->object_->dwarf() == nullptr) {
    for (const std::string& candidate : debug_candidates) {
      std::unique_ptr<File> file = File::Open(candidate);
      if (file == nullptr || file->BuildId() != build_id) continue;
      module->debug_ = std::move(file);
      break;
    }
  }
  if (module->object_ == nullptr && module->debug_ == nullptr) return nullptr;
  File& with_dwarf = module->debug_ != nullptr ? *module->debug_ : *module->object_;
  if (Dwarf* dwarf = with_dwarf.dwarf()) {
    const char* name = nullptr;
    const void* id = nullptr;
    const ssize_t id_size = dwelf_dwarf_gnu_debugaltlink(dwarf, &name, &id);
    if (id_size > 2) {
      const std::string wanted(static_cast<const char*>(id), static_cast<size_t>(id_size));
      const std::string wanted_hex = absl::BytesToHexString(wanted);
      std::unique_ptr<File> alternate = File::Open(absl::StrCat(
          kDebugRoot, "/.build-id/", wanted_hex.substr(0, 2), "/", wanted_hex.substr(2), ".debug"));
      if (alternate != nullptr && alternate->BuildId() == wanted && alternate->dwarf() != nullptr) {
        dwarf_setalt(dwarf, alternate->dwarf());
        module->alternate_ = std::move(alternate);
      }
    }
  }
  return module;
}

void ElfModule::LoadSymbols() {
  for (File* file : {debug_.get(), object_.get()}) {
    if (file == nullptr) continue;
    Elf_Scn* best = nullptr;
    for (Elf_Scn* section = nullptr; (section = elf_nextscn(file->elf(), section)) != nullptr;) {
      GElf_Shdr header;
      if (gelf_getshdr(section, &header) == nullptr) continue;
      if (header.sh_type == SHT_SYMTAB || (header.sh_type == SHT_DYNSYM && best == nullptr)) best = section;
    }
    GElf_Shdr header;
    if (best == nullptr || gelf_getshdr(best, &header) == nullptr || header.sh_entsize == 0) continue;
    Elf_Data* data = elf_getdata(best, nullptr);
    if (data == nullptr || data->d_buf == nullptr) continue;  // NOBITS in a debug file
    const size_t count = std::min<size_t>(header.sh_size / header.sh_entsize, 1u << 26);
    for (size_t i = 0; i < count; ++i) {
      GElf_Sym symbol;
      if (gelf_getsym(data, static_cast<int>(i), &symbol) == nullptr) break;
      const unsigned type = GELF_ST_TYPE(symbol.st_info);
      if ((type != STT_FUNC && type != STT_GNU_IFUNC) || symbol.st_shndx == SHN_UNDEF) continue;
      const char* name = elf_strptr(file->elf(), header.sh_link, symbol.st_name);
      if (name == nullptr || *name == '\0') continue;
      symbols_.push_back({symbol.st_value, symbol.st_value + symbol.st_size, name});
    }
    if (!symbols_.empty()) break;
  }
  // Of several names for one address, the longest function and then the alphabetically first: always the same
  // one.
  std::sort(symbols_.begin(), symbols_.end(), [](const Symbol& a, const Symbol& b) {
    if (a.start != b.start) return a.start < b.start;
    if (a.end != b.end) return a.end < b.end;
    return std::strcmp(a.name, b.name) > 0;
  });
}

std::string ElfModule::SymbolAt(uint64_t address) {
  auto after = std::upper_bound(symbols_.begin(), symbols_.end(), address,
                                [](uint64_t wanted, const Symbol& symbol) { return wanted < symbol.start; });
  // Functions do not nest deeply; a few steps back find one that encloses the address.
  for (int steps = 0; after != symbols_.begin() && steps < 16; ++steps) {
    --after;
    if (address < after->end || (after->start == after->end && steps == 0)) return after->name;
  }
  return {};
}

void ElfModule::LoadUnits() {
  Dwarf* dwarf = debug_ != nullptr ? debug_->dwarf() : object_->dwarf();
  if (dwarf == nullptr && object_ != nullptr) dwarf = object_->dwarf();
  if (dwarf == nullptr) return;
  Dwarf_CU* unit = nullptr;
  Dwarf_Die die;
  while (dwarf_get_units(dwarf, unit, &unit, nullptr, nullptr, &die, nullptr) == 0) {
    Dwarf_Addr base = 0;
    Dwarf_Addr start = 0;
    Dwarf_Addr end = 0;
    for (ptrdiff_t next = 0; (next = dwarf_ranges(&die, next, &base, &start, &end)) > 0;) {
      if (end > start) units_.push_back({start, end, dwarf_dieoffset(&die)});
    }
  }
  std::sort(units_.begin(), units_.end(),
            [](const UnitRange& a, const UnitRange& b) { return a.start < b.start; });
}

std::vector<NativeLocation> ElfModule::LocateInDwarf(uint64_t address) {
  std::vector<NativeLocation> locations;
  auto after = std::upper_bound(units_.begin(), units_.end(), address,
                                [](uint64_t wanted, const UnitRange& unit) { return wanted < unit.start; });
  if (after == units_.begin() || address >= (--after)->end) return locations;
  Dwarf* dwarf = debug_ != nullptr && debug_->dwarf() != nullptr ? debug_->dwarf() : object_->dwarf();
  Dwarf_Die unit;
  if (dwarf_offdie(dwarf, after->unit, &unit) == nullptr) return locations;

  NativeLocation current;
  if (Dwarf_Line* line = dwarf_getsrc_die(&unit, address)) {
    int number = 0;
    if (const char* file = dwarf_linesrc(line, nullptr, nullptr)) current.file = file;
    if (dwarf_lineno(line, &number) == 0 && number > 0) current.line = static_cast<uint32_t>(number);
  }
  Dwarf_Die* scopes = nullptr;
  int count = dwarf_getscopes(&unit, address, &scopes);
  if (count > 0) {
    // The first one is the innermost; its parents in the file are the functions it was inlined into.
    Dwarf_Die innermost = scopes[0];
    std::free(scopes);
    scopes = nullptr;
    count = dwarf_getscopes_die(&innermost, &scopes);
  }
  Dwarf_Files* files = nullptr;
  size_t file_count = 0;
  dwarf_getsrcfiles(&unit, &files, &file_count);
  for (int i = 0; i < count; ++i) {
    const int tag = dwarf_tag(&scopes[i]);
    if (tag != DW_TAG_inlined_subroutine && tag != DW_TAG_subprogram) continue;
    Dwarf_Attribute attribute;
    for (const unsigned name : {DW_AT_linkage_name, DW_AT_MIPS_linkage_name, DW_AT_name}) {
      const char* text = nullptr;
      if (dwarf_attr_integrate(&scopes[i], name, &attribute) != nullptr) text = dwarf_formstring(&attribute);
      if (text != nullptr) {
        current.function = text;
        break;
      }
    }
    current.inlined = tag == DW_TAG_inlined_subroutine;
    locations.push_back(current);
    if (!current.inlined) break;
    // Where the next function called this one.
    current = {};
    Dwarf_Word value = 0;
    if (dwarf_formudata(dwarf_attr(&scopes[i], DW_AT_call_file, &attribute), &value) == 0 &&
        value < file_count) {
      if (const char* file = dwarf_filesrc(files, value, nullptr, nullptr)) current.file = file;
    }
    if (dwarf_formudata(dwarf_attr(&scopes[i], DW_AT_call_line, &attribute), &value) == 0) {
      current.line = static_cast<uint32_t>(value);
    }
  }
  std::free(scopes);
  if (locations.empty() && current.line != 0) locations.push_back(current);
  return locations;
}

std::vector<NativeLocation> ElfModule::Locate(uint64_t address) {
  if (!loaded_) {
    loaded_ = true;
    LoadSymbols();
    LoadUnits();
  }
  std::vector<NativeLocation> locations = LocateInDwarf(address);
  if (locations.empty()) locations.emplace_back();
  if (locations.back().function.empty()) locations.back().function = SymbolAt(address);
  if (locations.back().function.empty() && locations.back().line == 0) locations.clear();
  return locations;
}

}  // namespace gpumemtrace::analyzer
