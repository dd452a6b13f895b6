// Abseil may have been built with a string_view type of its own, which std::string_view does not convert to.
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace gpumemtrace::analyzer {

// For arguments of absl::StrCat and its kin.
inline absl::string_view Part(std::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace gpumemtrace::analyzer
