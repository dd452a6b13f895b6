#include "analyzer/report/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "analyzer/strings.h"

namespace gpumemtrace::analyzer {
namespace {

constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

// Length in bytes of the well-formed UTF-8 sequence at the start of `text`, 0 when there is none.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and beyond U+10FFFF.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) >= 0x90)) {
    return 0;
  }
  return length;
}

// Columns on a terminal, taking every code point for one; escape sequences of Style take none.
size_t DisplayWidth(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && text[i] != 'm') ++i;
      continue;
    }
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) ++width;
  }
  return width;
}

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.95 would print as 1024 of the smaller unit.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  if (value == std::floor(value)) return absl::StrFormat("%.0f %s", value, kUnits[unit]);
  return value < 10 ? absl::StrFormat("%.2f %s", value, kUnits[unit])
                    : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string FormatSignedBytes(int64_t bytes) {
  if (bytes == 0) return "0 B";
  const uint64_t magnitude = bytes < 0 ? 0 - static_cast<uint64_t>(bytes) : static_cast<uint64_t>(bytes);
  return absl::StrCat(bytes < 0 ? "-" : "+", FormatBytes(magnitude));
}

std::string FormatExactBytes(uint64_t bytes) {
  if (bytes < 1024) return FormatBytes(bytes);
  return absl::StrCat(FormatBytes(bytes), " (", FormatCount(bytes), " B)");
}

std::string FormatCount(uint64_t count) {
  const std::string digits = absl::StrCat(count);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string Plural(uint64_t count, std::string_view noun) {
  return absl::StrCat(FormatCount(count), " ", Part(noun), count == 1 ? "" : "s");
}

std::string FormatDuration(uint64_t microseconds) {
  const double seconds = static_cast<double>(microseconds) / 1e6;
  if (microseconds < 1000) return absl::StrCat(microseconds, " µs");
  if (microseconds < 1'000'000) return absl::StrFormat("%.1f ms", seconds * 1e3);
  if (seconds < 60) return absl::StrFormat("%.1f s", seconds);
  const uint64_t whole = microseconds / 1'000'000;
  if (whole < 3600) return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %02d min", whole / 3600, whole / 60 % 60);
}

std::string FormatPercent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "–";
  return absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string Printable(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t length = Utf8Length(bytes);
    const unsigned char first = static_cast<unsigned char>(bytes[0]);
    // C1 controls (U+0080–U+009F) also move cursors on some terminals.
    const bool c1 = length == 2 && first == 0xc2 && static_cast<unsigned char>(bytes[1]) < 0xa0;
    if (length == 0 || first < 0x20 || first == 0x7f || c1) {
      absl::StrAppendFormat(&out, "\\x%02x", first);
      bytes.remove_prefix(1);
    } else {
      out.append(bytes.substr(0, length));
      bytes.remove_prefix(length);
    }
  }
  return out;
}

std::string Shorten(std::string_view text, size_t width) {
  if (DisplayWidth(text) <= width || width < 4) return std::string(text);
  size_t end = 0;  // of what is kept
  size_t columns = 0;
  while (end < text.size()) {
    const size_t space = std::min(text.find(' ', end + 1), text.size());
    const size_t word = DisplayWidth(text.substr(end, space - end));
    // A long name is kept whole where little else would be left.
    if (columns + word + 2 > width && columns * 3 >= width) break;
    columns += word;
    end = space;
  }
  return end >= text.size() ? std::string(text) : std::string(text.substr(0, end)) + " …";
}

void TextWriter::Heading(std::string_view title) {
  if (!text_.empty()) text_ += '\n';
  Line(Bold(title));
}

void TextWriter::Wrap(std::string_view text, size_t column, size_t hanging) {
  bool first = true;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    const size_t width = DisplayWidth(word);
    if (!first && column + 1 + width > options_.width && column > hanging) {
      text_ += '\n';
      text_.append(hanging, ' ');
      column = hanging;
    } else if (!first) {
      text_ += ' ';
      ++column;
    }
    text_ += word;
    column += width;
    first = false;
    if (space == std::string_view::npos) break;
    text.remove_prefix(space + 1);
  }
  text_ += '\n';
}

void TextWriter::Line(std::string_view text) {
  if (DisplayWidth(text) <= options_.width) {
    absl::StrAppend(&text_, Part(text), "\n");
    return;
  }
  const size_t indent = std::min(text.find_first_not_of(' '), text.size());
  text_.append(indent, ' ');
  Wrap(text.substr(indent), indent, indent + 2);
}

void TextWriter::Blank() {
  text_ += '\n';
}

void TextWriter::Field(std::string_view label, std::string_view text) {
  constexpr size_t kLabelWidth = 14;
  const size_t width = DisplayWidth(label);
  absl::StrAppend(&text_, "  ", Part(label), std::string(width < kLabelWidth ? kLabelWidth - width : 1, ' '));
  Wrap(text, 2 + std::max(width + 1, kLabelWidth), 2 + kLabelWidth);
}

void TextWriter::Table(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right,
                       size_t indent) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  // Where the last column begins; it wraps when enough of the page is left for it.
  constexpr size_t kLeastToWrap = 16;
  size_t last = indent;
  for (size_t i = 0; i + 1 < widths.size(); ++i) last += widths[i] + 2;
  const bool wraps = right.size() < widths.size() || (!widths.empty() && !right[widths.size() - 1]);
  for (const std::vector<std::string>& row : rows) {
    text_.append(indent, ' ');
    for (size_t i = 0; i < row.size(); ++i) {
      if (wraps && i + 1 == widths.size() && i != 0 && last + kLeastToWrap <= options_.width &&
          last + DisplayWidth(row[i]) > options_.width) {
        Wrap(row[i], last, last);
        text_.pop_back();
        break;
      }
      const size_t padding = widths[i] - DisplayWidth(row[i]);
      const bool to_right = i < right.size() && right[i];
      if (to_right) text_.append(padding, ' ');
      text_ += row[i];
      if (i + 1 < row.size()) text_.append(to_right ? 2 : padding + 2, ' ');
    }
    while (text_.ends_with(' ')) text_.pop_back();
    text_ += '\n';
  }
}

std::string TextWriter::Style(std::string_view text, std::string_view code) const {
  if (!options_.color) return std::string(text);
  return absl::StrCat("\x1b[", Part(code), "m", Part(text), "\x1b[0m");
}

}  // namespace gpumemtrace::analyzer
