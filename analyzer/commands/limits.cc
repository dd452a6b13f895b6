#include "analyzer/commands/limits.h"

#include <charconv>
#include <cmath>

namespace gpumemtrace::analyzer {

bool ParseBytes(std::string_view text, bool per_step, uint64_t& bytes) {
  if (per_step && text.ends_with("/step")) text.remove_suffix(5);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0) || !std::isfinite(number)) return false;
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  double factor = 1;
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view kUnits = "KMGT";
    const char letter = unit.front() >= 'a' ? static_cast<char>(unit.front() - 'a' + 'A') : unit.front();
    const size_t power = kUnits.find(letter);
    if (power == std::string_view::npos) return false;
    const std::string_view rest = unit.substr(1);
    double base = 1024;
    if (rest == "B" || rest == "b") {
      base = 1000;
    } else if (!rest.empty() && rest != "iB" && rest != "ib") {
      return false;
    }
    factor = std::pow(base, static_cast<double>(power) + 1);
  }
  const double value = number * factor;
  if (value > 1.8e19) return false;
  bytes = static_cast<uint64_t>(std::llround(value));
  return true;
}

bool ParseFraction(std::string_view text, double& fraction) {
  bool percent = false;
  if (text.ends_with('%')) {
    percent = true;
    text.remove_suffix(1);
  }
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number >= 0) || !std::isfinite(number))
    return false;
  fraction = percent ? number / 100 : number;
  return true;
}

}  // namespace gpumemtrace::analyzer
