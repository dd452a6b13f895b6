// One ELF object on this machine: its symbol table and, when there is one, its debug information. Uses libelf
// and libdw directly: addresses in the trace are already those of the file's own headers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpumemtrace::analyzer {

struct NativeLocation {
  std::string function;  // as in the file: mangled, or empty
  std::string file;
  uint32_t line = 0;
  bool inlined = false;
};

class ElfModule {
 public:
  // Opens the object that was at `path` and its debug file, looking in `folders` first. Null when no file
  // with this build-id is found (an empty build-id matches an object without one); `why` then says what was
  // wrong.
  static std::unique_ptr<ElfModule> Find(const std::string& path, const std::string& build_id,
                                         const std::vector<std::string>& folders, std::string& why);
  ~ElfModule();
  ElfModule(const ElfModule&) = delete;
  ElfModule& operator=(const ElfModule&) = delete;

  // Functions at an address, innermost (inlined) first; empty when nothing is known.
  std::vector<NativeLocation> Locate(uint64_t address);

 private:
  class File;
  ElfModule();

  std::vector<NativeLocation> LocateInDwarf(uint64_t address);
  std::string SymbolAt(uint64_t address);
  void LoadSymbols();
  void LoadUnits();

  struct Symbol {
    uint64_t start;
    uint64_t end;
    const char* name;
  };
  struct UnitRange {
    uint64_t start;
    uint64_t end;
    uint64_t unit;  // offset of the compilation unit's entry
  };
  std::unique_ptr<File> object_;
  std::unique_ptr<File> debug_;
  std::unique_ptr<File> alternate_;  // shared part of debug information (dwz)
  bool loaded_ = false;
  std::vector<Symbol> symbols_;
  std::vector<UnitRange> units_;
};

}  // namespace gpumemtrace::analyzer
