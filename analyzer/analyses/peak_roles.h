// The peak of a device by what its memory was for at that moment: parameters, gradients, activations, and so
// on.
//
// A census speaks for the very allocations that it saw. What lived and died between two censuses is inferred
// from others that were born at the same place, or from when it was born and who freed it; how much of the
// peak rests on which of these is part of the answer.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "analyzer/analyses/findings.h"
#include "analyzer/symbols/symbolizer.h"

namespace gpumemtrace::analyzer {

// What an allocation is for. The first six are Census.Role.
enum class MemoryRole : uint8_t {
  kUnknown,
  kParameter,
  kBuffer,
  kGradient,
  kOptimizerState,
  kActivation,
  kWorkspace,
  kTemporary,  // made and freed again within backward, the optimizer or an evaluation
};
constexpr int kMemoryRoleCount = 8;
std::string_view MemoryRoleName(MemoryRole role);

using BytesByRole = std::array<uint64_t, kMemoryRoleCount>;

// What all censuses together saw.
struct SeenByCensus {
  struct Allocation {
    MemoryRole role = MemoryRole::kUnknown;
    bool has_object = false;  // a tensor object lies in it
  };
  // By the index of the event that made the allocation: at most the live sets of all censuses.
  absl::flat_hash_map<uint64_t, Allocation> allocations;
  // Sizes of allocations that hold a parameter.
  absl::flat_hash_set<uint64_t> parameter_sizes;
};

// The peak of one device by role. The bytes sum to the peak exactly.
struct PeakRoles {
  int32_t device = -1;
  uint64_t bytes = 0;
  BytesByRole by_role{};
  // Of these: in allocations that a census itself saw; born where a census saw others of that role (an
  // inference); the rest is inferred from when it was born, how long it lived and who freed it.
  uint64_t from_census = 0;
  uint64_t from_birth_place = 0;
};

// One for each of findings.peaks. `by_origin`: bytes that censuses saw, by birth place and role.
std::vector<PeakRoles> FindPeakRoles(const Findings& findings, const TraceModel& model,
                                     const SeenByCensus& seen,
                                     const absl::flat_hash_map<OriginId, BytesByRole>& by_origin,
                                     Symbolizer& symbols);

}  // namespace gpumemtrace::analyzer
