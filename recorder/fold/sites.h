// The sites that a trace defines, as far as folding asks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "recorder/fold/places.h"
#include "recorder/memory/array.h"

namespace gpumemtrace::recorder {

// So small because there may be hundreds of thousands.
struct FoldSite {
  // Bytes; of a large one its place in a list: see FoldSites::SizeOf.
  uint32_t size;
  // Birth place (places.h), which tells kind and device, too; 0 = not defined.
  uint32_t place : 20;
  uint32_t shift : 6;
  // What it makes is counted, and its pairs of birth and death may go.
  uint32_t counted : 1;
  uint32_t failed : 1;
  uint32_t size_varies : 1;
  uint32_t without_totals : 1;
  uint32_t large : 1;
  // Of its stream, as address_prediction.h counts them.
  uint32_t lane : 8;
  // Place of what was last seen of it (last_values.h).
  uint32_t last : 24;
};
static_assert(sizeof(FoldSite) == 12);

class FoldSites {
 public:
  // A serialized Site; a repeated definition is the same again. False: damaged, or no memory.
  bool Define(std::span<const uint8_t> site, Places& places, bool* is_new);
  // Null: not defined.
  FoldSite* Find(uint64_t id) { return id < sites_.size() && sites_[id].place != 0 ? &sites_[id] : nullptr; }
  // One that is known to be defined.
  FoldSite& operator[](uint32_t id) { return sites_[id]; }
  uint64_t SizeOf(const FoldSite& site) const { return site.large != 0 ? large_[site.size] : site.size; }

 private:
  Array<FoldSite> sites_;
  // Sizes of the few that ask for 4 GiB or more.
  Array<uint64_t> large_;
};

}  // namespace gpumemtrace::recorder
