// Reads from standard input what python_lines_test.py found out from an interpreter, one code object a line:
//   version first_line table_in_hexadecimal offset:line …
// and compares with analyzer::PythonLine. "No line" is −1 there and 0 here.
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

#include "analyzer/symbols/symbolizer.h"

int main() {
  uint64_t checked = 0;
  uint64_t wrong = 0;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    gpumemtrace::analyzer::CodeObjectInfo code;
    std::string table;
    words >> code.python_version >> code.first_line >> table;
    for (size_t i = 0; table != "-" && i + 1 < table.size(); i += 2) {
      code.line_table += static_cast<char>(std::stoi(table.substr(i, 2), nullptr, 16));
    }
    // The tables of empty functions say nothing; the analyzer takes that for "unknown table".
    if (code.line_table.empty()) continue;
    int offset = 0;
    int expected = 0;
    char colon = 0;
    while (words >> offset >> colon >> expected) {
      ++checked;
      const uint32_t found = gpumemtrace::analyzer::PythonLine(code, offset);
      if (static_cast<int>(found) == (expected < 0 ? 0 : expected)) continue;
      if (++wrong <= 10) {
        std::fprintf(stderr, "version %x first line %u offset %d: line %u, the interpreter says %d\n",
                     code.python_version, code.first_line, offset, found, expected);
      }
    }
  }
  std::printf("%llu instructions, %llu wrong\n", static_cast<unsigned long long>(checked),
              static_cast<unsigned long long>(wrong));
  return wrong == 0 && checked > 1000 ? 0 : 1;
}
