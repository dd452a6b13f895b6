// Questions about the names of files and functions. (Abseil of the distributions is built for C++14: its
// functions do not take std::string_view.)
#pragma once

#include <string_view>

namespace gpumemtrace::analyzer {

// "a/b.so" → "b.so"; a path without a slash is its own. A view into `path`.
inline std::string_view BaseName(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

inline bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace gpumemtrace::analyzer
