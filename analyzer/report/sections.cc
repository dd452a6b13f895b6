#include "analyzer/report/sections.h"

#include <array>

namespace gpumemtrace::analyzer {

std::span<const Section* const> AllSections() {
  static const std::array kSections = {
      &kRecordedSection,
      &kCompletenessSection,
      &kSelfCheckSection,
  };
  return kSections;
}

}  // namespace gpumemtrace::analyzer
