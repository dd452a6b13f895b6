// Suppressions in LeakSanitizer's format: lines "leak:<pattern>", where the pattern matches a part of a
// function, file or module name on the stack; '*' matches anything, '^' and '$' anchor, '#' begins a comment.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpumemtrace::analyzer {

class Suppressions {
 public:
  // Lines that are not understood are left out and counted.
  explicit Suppressions(const std::vector<std::string>& lines);

  // The pattern that matches `name`, empty when none does.
  std::string_view Match(std::string_view name) const;

  bool empty() const { return patterns_.empty(); }
  const std::vector<std::string>& malformed() const { return malformed_; }

 private:
  std::vector<std::string> patterns_;
  std::vector<std::string> malformed_;
};

// As the patterns above.
bool MatchesPattern(std::string_view pattern, std::string_view text);

}  // namespace gpumemtrace::analyzer
