// Text for people: headings, aligned rows, numbers with units. No escape sequences unless asked for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpumemtrace::analyzer {

// "512 B", "3.9 MiB", "1.25 GiB": three significant digits, binary units.
std::string FormatBytes(uint64_t bytes);
// As above with a sign, for differences: "+3.9 MiB", "-2 KiB", "0 B".
std::string FormatSignedBytes(int64_t bytes);
// "3.9 MiB (4,089,446 B)"; without parentheses when nothing was rounded.
std::string FormatExactBytes(uint64_t bytes);
// "1,234,567".
std::string FormatCount(uint64_t count);
// "1 tensor", "3 tensors".
std::string Plural(uint64_t count, std::string_view noun);
// "12.3 ms", "4.2 s", "3 min 20 s", "7 h 05 min".
std::string FormatDuration(uint64_t microseconds);
// "41.3 %" of a whole; "–" when the whole is 0.
std::string FormatPercent(uint64_t part, uint64_t whole);
// Control characters and invalid UTF-8 of names found in traces, made visible: they must not reach a
// terminal.
std::string Printable(std::string_view bytes);
// Whole words of about `width` columns, then "…" for the rest. A single long word is never cut.
std::string Shorten(std::string_view text, size_t width);

class TextWriter {
 public:
  struct Options {
    bool color = false;
    size_t width = 100;
  };
  explicit TextWriter(Options options) : options_(options) {}

  // A blank line before it, except at the top.
  void Heading(std::string_view title);
  // What is wider than the page goes on in the next line, indented by two more.
  void Line(std::string_view text);
  void Blank();
  // "  label   text", labels padded to a common width of 14, long text below itself.
  void Field(std::string_view label, std::string_view text);
  // Rows of equal length; columns are aligned, numeric ones (those in `right`) to the right. Two spaces
  // between. The last column goes on below itself where it is too wide.
  void Table(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right,
             size_t indent = 2);

  std::string Bold(std::string_view text) const { return Style(text, "1"); }
  std::string Dim(std::string_view text) const { return Style(text, "2"); }
  std::string Red(std::string_view text) const { return Style(text, "31"); }
  std::string Yellow(std::string_view text) const { return Style(text, "33"); }
  std::string Green(std::string_view text) const { return Style(text, "32"); }

  size_t width() const { return options_.width; }
  const std::string& text() const { return text_; }

 private:
  std::string Style(std::string_view text, std::string_view code) const;
  // Words of `text` from column `column` on, in lines that begin at column `hanging`.
  void Wrap(std::string_view text, size_t column, size_t hanging);

  Options options_;
  std::string text_;
};

}  // namespace gpumemtrace::analyzer
