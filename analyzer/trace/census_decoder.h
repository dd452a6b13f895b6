// Puts the parts of a census together and checks what they say, so that the rest of the analyzer can index
// its columns without looking twice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "gpumemtrace/trace.pb.h"

namespace gpumemtrace::analyzer {

// One census. All columns have `tensors()` entries; texts and holders that they name exist.
struct DecodedCensus {
  uint32_t number = 0;
  // See CensusPart.
  uint64_t first_sequence = 0;
  uint64_t last_sequence = 0;
  uint64_t time_us = 0;
  Census census;

  int tensors() const { return census.address_size(); }
  std::string_view Text(uint32_t index) const {
    return index < static_cast<uint32_t>(census.text_size())
               ? std::string_view(census.text(static_cast<int>(index)))
               : std::string_view();
  }
  // −1 = not told.
  int HolderOf(int tensor) const { return static_cast<int>(census.holder(tensor)) - 1; }
  Census::Role RoleOf(int tensor) const {
    return static_cast<Census::Role>(static_cast<unsigned char>(census.role()[static_cast<size_t>(tensor)]));
  }
  uint32_t FlagsOf(int tensor) const {
    return static_cast<unsigned char>(census.flags()[static_cast<size_t>(tensor)]);
  }
  uint32_t FrameworkOf(int tensor) const {
    return static_cast<unsigned char>(census.framework()[static_cast<size_t>(tensor)]);
  }
};

class CensusAssembler {
 public:
  // The census that this part completes. `fault` gets a sentence when parts were complete but not readable.
  std::optional<DecodedCensus> Add(const CensusPart& part, std::string* fault);

  // Censuses of which a part is still missing.
  size_t incomplete() const { return pending_.size(); }

 private:
  struct Pending {
    std::string data;
    uint32_t next = 0;  // parts come in order; anything else is a gap
    bool broken = false;
  };
  absl::flat_hash_map<uint32_t, Pending> pending_;
};

// False when the columns do not belong together.
bool ValidCensus(const Census& census);

}  // namespace gpumemtrace::analyzer
