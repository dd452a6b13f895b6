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

}  // namespace gpumemtrace::analyzer
