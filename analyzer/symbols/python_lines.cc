// Lines of Python instructions from the line tables that the trace carries. The formats are described in
// CPython's Objects/lnotab_notes.txt (3.8–3.10) and Objects/locations.md (3.11 and later).
#include <cstddef>

#include "analyzer/symbols/symbolizer.h"

namespace gpumemtrace::analyzer {
namespace {

class TableReader {
 public:
  explicit TableReader(const std::string& table) : table_(table) {}
  bool at_end() const { return next_ >= table_.size(); }
  unsigned char Peek() const { return static_cast<unsigned char>(table_[next_]); }
  unsigned char Byte() { return at_end() ? 0 : static_cast<unsigned char>(table_[next_++]); }
  // Six bits a byte, low ones first; bit 6 says that more follow.
  uint32_t Varint() {
    uint32_t value = 0;
    for (unsigned shift = 0; shift < 32; shift += 6) {
      const unsigned char byte = Byte();
      value |= uint32_t{byte & 0x3fu} << shift;
      if ((byte & 0x40) == 0) break;
    }
    return value;
  }
  int64_t SignedVarint() {
    const uint32_t value = Varint();
    return (value & 1) != 0 ? -static_cast<int64_t>(value >> 1) : static_cast<int64_t>(value >> 1);
  }

 private:
  const std::string& table_;
  size_t next_ = 0;
};

// 3.8 and 3.9, co_lnotab: pairs of an unsigned address step and a signed line step.
int64_t LineOfLnotab(const CodeObjectInfo& code, uint64_t address) {
  int64_t line = code.first_line;
  uint64_t at = 0;
  for (TableReader table(code.line_table); !table.at_end();) {
    at += table.Byte();
    if (at > address) break;
    line += static_cast<signed char>(table.Byte());
  }
  return line;
}

// 3.10, co_linetable: pairs of a length in bytes and a signed line step; −128 = these bytes have no line.
int64_t LineOfLinetable310(const CodeObjectInfo& code, uint64_t address) {
  constexpr int kNoLine = -128;
  int64_t line = code.first_line;
  uint64_t end = 0;
  for (TableReader table(code.line_table); !table.at_end();) {
    end += table.Byte();
    const int step = static_cast<signed char>(table.Byte());
    if (step != kNoLine) line += step;
    if (end > address) return step == kNoLine ? 0 : line;
  }
  return 0;
}

// 3.11 and later, co_linetable: entries that begin with a byte whose bit 7 is set.
int64_t LineOfLinetable311(const CodeObjectInfo& code, uint64_t address) {
  constexpr unsigned kNone = 15;
  constexpr unsigned kLong = 14;
  constexpr unsigned kNoColumns = 13;
  constexpr unsigned kOneLine0 = 10;
  int64_t line = code.first_line;
  uint64_t end = 0;
  for (TableReader table(code.line_table); !table.at_end();) {
    const unsigned head = table.Byte();
    const unsigned form = (head >> 3) & 15;
    end += 2 * ((head & 7) + 1);
    if (form == kLong || form == kNoColumns) {
      line += table.SignedVarint();
    } else if (form >= kOneLine0 && form < kNoColumns) {
      line += form - kOneLine0;
    }
    if (end > address) return form == kNone ? 0 : line;
    while (!table.at_end() && (table.Peek() & 0x80) == 0) table.Byte();  // columns
  }
  return 0;
}

}  // namespace

uint32_t PythonLine(const CodeObjectInfo& code, int32_t instruction) {
  if (instruction < 0 || code.line_table.empty()) return code.first_line;
  const uint64_t address = static_cast<uint64_t>(instruction);
  const int64_t line = code.python_version >= 0x030b   ? LineOfLinetable311(code, address)
                       : code.python_version == 0x030a ? LineOfLinetable310(code, address)
                                                       : LineOfLnotab(code, address);
  return line > 0 && line <= INT32_MAX ? static_cast<uint32_t>(line) : 0;
}

}  // namespace gpumemtrace::analyzer
