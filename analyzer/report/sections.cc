#include "analyzer/report/sections.h"

#include <array>

namespace gpumemtrace::analyzer {

std::span<const Section* const> AllSections() {
  static const std::array kSections = {
      &kVerdictSection,       &kRecordedSection, &kCompletenessSection, &kSelfCheckSection,
      &kOutOfMemorySection,   &kGrowthSection,   &kHoldersSection,      &kPeakSection,
      &kFragmentationSection, &kAccountSection,  &kLiveSection,         &kErrorsSection,
  };
  return kSections;
}

}  // namespace gpumemtrace::analyzer
