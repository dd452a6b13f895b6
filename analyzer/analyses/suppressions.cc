#include "analyzer/analyses/suppressions.h"

namespace gpumemtrace::analyzer {
namespace {

// `pattern` without anchors against the whole of `text`; '*' matches any run.
bool Glob(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;
  size_t retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

}  // namespace

bool MatchesPattern(std::string_view pattern, std::string_view text) {
  std::string glob;
  if (pattern.starts_with('^')) {
    pattern.remove_prefix(1);
  } else {
    glob = "*";
  }
  const bool to_end = pattern.ends_with('$');
  if (to_end) pattern.remove_suffix(1);
  glob += pattern;
  if (!to_end) glob += '*';
  return Glob(glob, text);
}

Suppressions::Suppressions(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const std::string_view text = Trim(line);
    if (text.empty() || text.front() == '#') continue;
    constexpr std::string_view kPrefix = "leak:";
    if (text.starts_with(kPrefix) && text.size() > kPrefix.size()) {
      patterns_.emplace_back(text.substr(kPrefix.size()));
    } else {
      malformed_.push_back(line);
    }
  }
}

std::string_view Suppressions::Match(std::string_view name) const {
  if (name.empty()) return {};
  for (const std::string& pattern : patterns_) {
    if (MatchesPattern(pattern, name)) return pattern;
  }
  return {};
}

}  // namespace gpumemtrace::analyzer
