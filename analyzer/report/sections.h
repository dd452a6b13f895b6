// All sections of the report, in order.
#pragma once

#include <span>

#include "analyzer/report/section.h"

namespace gpumemtrace::analyzer {

std::span<const Section* const> AllSections();

// Each is defined in the file of its name in this folder.
extern const Section kRecordedSection;
extern const Section kCompletenessSection;
extern const Section kSelfCheckSection;
extern const Section kVerdictSection;
extern const Section kGrowthSection;
extern const Section kHoldersSection;
extern const Section kPeakSection;
extern const Section kLiveSection;
extern const Section kAccountSection;
extern const Section kFragmentationSection;
extern const Section kOutOfMemorySection;
extern const Section kErrorsSection;

}  // namespace gpumemtrace::analyzer
