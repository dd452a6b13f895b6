// Copies what describes a code object: its texts as bytes, its line table, its number.
#include "recorder/stacks/hash.h"
#include "recorder/stacks/memory.h"
#include "recorder/stacks/python_walk.h"

namespace gpumemtrace::recorder::stacks {
namespace {

// Appends `point` as UTF-8, or as the byte it stands for when it is one of Python's surrogate escapes
// (PEP 383), so that file names come out as the operating system knows them. False when it does not fit.
bool AppendPoint(uint32_t point, std::span<char> out, size_t& used) {
  char encoded[4];
  size_t size;
  if (point < 0x80) {
    encoded[0] = static_cast<char>(point);
    size = 1;
  } else if (point >= 0xdc80 && point <= 0xdcff) {
    encoded[0] = static_cast<char>(point - 0xdc00);
    size = 1;
  } else if (point < 0x800) {
    encoded[0] = static_cast<char>(0xc0 | point >> 6);
    encoded[1] = static_cast<char>(0x80 | (point & 0x3f));
    size = 2;
  } else if (point < 0x10000) {
    encoded[0] = static_cast<char>(0xe0 | point >> 12);
    encoded[1] = static_cast<char>(0x80 | (point >> 6 & 0x3f));
    encoded[2] = static_cast<char>(0x80 | (point & 0x3f));
    size = 3;
  } else {
    encoded[0] = static_cast<char>(0xf0 | (point >> 18 & 0x07));
    encoded[1] = static_cast<char>(0x80 | (point >> 12 & 0x3f));
    encoded[2] = static_cast<char>(0x80 | (point >> 6 & 0x3f));
    encoded[3] = static_cast<char>(0x80 | (point & 0x3f));
    size = 4;
  }
  if (out.size() - used < size) return false;
  for (size_t i = 0; i < size; ++i) out[used++] = encoded[i];
  return true;
}

// The text of a str object. ASCII is returned in place; everything else is converted into `room`, cut where
// it does not fit.
GPUMEMTRACE_READS_HOST_MEMORY std::span<const char> Text(const PythonLayout& layout, const char* object,
                                                         std::span<char> room) {
  if (object == nullptr) return {};
  const int64_t length = GPUMEMTRACE_READ(int64_t, object + layout.string_length);
  const uint32_t state = GPUMEMTRACE_READ(uint32_t, object + layout.string_state) >> layout.string_kind_bit;
  const uint32_t kind = state & 7;
  const bool compact = (state & 8) != 0;
  const bool ascii = (state & 16) != 0;
  if (length <= 0) return {};
  const char* data = object + (ascii ? layout.string_ascii_data : layout.string_compact_data);
  // Strings of subclasses of str keep their text elsewhere.
  if (!compact) data = GPUMEMTRACE_READ(const char*, object + layout.string_compact_data);
  if (data == nullptr) return {};
  if (ascii) return {data, static_cast<size_t>(length)};
  size_t used = 0;
  for (int64_t i = 0; i < length; ++i) {
    uint32_t point;
    if (kind == 1) {
      point = GPUMEMTRACE_READ(uint8_t, data + i);
    } else if (kind == 2) {
      point = GPUMEMTRACE_READ(uint16_t, data + 2 * i);
    } else if (kind == 4) {
      point = GPUMEMTRACE_READ(uint32_t, data + 4 * i);
    } else {
      return {};
    }
    if (!AppendPoint(point, room, used)) break;
  }
  return {room.data(), used};
}

}  // namespace

GPUMEMTRACE_READS_HOST_MEMORY CodeDefinition ReadCode(const PythonLayout& layout, const char* code,
                                                      CodeText& text) {
  CodeDefinition definition{};
  definition.python_version = layout.version;
  definition.first_line = GPUMEMTRACE_READ(int32_t, code + layout.code_first_line);
  definition.file = Text(layout, GPUMEMTRACE_READ(const char*, code + layout.code_file), text.file);
  const char* name = nullptr;
  if (layout.code_qualified_name >= 0)
    name = GPUMEMTRACE_READ(const char*, code + layout.code_qualified_name);
  if (name == nullptr) name = GPUMEMTRACE_READ(const char*, code + layout.code_name);
  definition.qualified_name = Text(layout, name, text.qualified_name);
  const char* table = GPUMEMTRACE_READ(const char*, code + layout.code_line_table);
  if (table != nullptr) {
    const int64_t size = GPUMEMTRACE_READ(int64_t, table + layout.variable_size);
    if (size > 0) {
      definition.line_table = {reinterpret_cast<const unsigned char*>(table + layout.bytes_data),
                               static_cast<size_t>(size)};
    }
  }
  uint64_t hash = Extend(kSalt2, static_cast<uint64_t>(static_cast<uint32_t>(definition.first_line)) << 32 |
                                     definition.python_version);
  hash = HashSpan(hash, definition.file);
  hash = HashSpan(hash, definition.qualified_name);
  hash = HashSpan(hash, definition.line_table);
  definition.number = hash != 0 ? hash : 1;
  return definition;
}

}  // namespace gpumemtrace::recorder::stacks
