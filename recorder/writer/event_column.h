// Which column of an Events message is which: the numbers of ColumnId in trace.proto.
#pragma once

#include <cstdint>

namespace gpumemtrace::recorder {

enum EventColumn : uint32_t {
  kSite = 1,
  kAddress = 2,
  kLive = 3,
  kTime = 4,
  kSequence = 5,
  kAllocated = 6,
  kReserved = 7,
  kArgument0 = 8,
  kArgument1 = 9,
  kSize = 10,
  // Only what folding kept has it: see kept_events.h.
  kIndex = 11,
};
inline constexpr uint32_t kEventColumns = 12;

}  // namespace gpumemtrace::recorder
