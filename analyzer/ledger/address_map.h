// A hash table from addresses to slots that is small and quick enough for every tensor event: open
// addressing, sixteen bytes an entry, no tombstones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "analyzer/trace/model.h"

namespace gpumemtrace::analyzer {

class AddressMap {
 public:
  AddressMap() : table_(kInitialSize) {}

  // kNoSlot when the address is not in the map.
  uint32_t Find(uint64_t address) const {
    for (size_t i = Home(address);; i = (i + 1) & mask()) {
      if (table_[i].slot == kNoSlot) return kNoSlot;
      if (table_[i].address == address) return table_[i].slot;
    }
  }

  // Returns the slot that was there before, else kNoSlot.
  uint32_t Set(uint64_t address, uint32_t slot) {
    if (2 * (count_ + 1) > table_.size()) Grow();
    size_t i = Home(address);
    for (; table_[i].slot != kNoSlot; i = (i + 1) & mask()) {
      if (table_[i].address == address) {
        const uint32_t before = table_[i].slot;
        table_[i].slot = slot;
        return before;
      }
    }
    table_[i] = {address, slot};
    ++count_;
    return kNoSlot;
  }

  // Removes the address if it stands for `slot`.
  void Erase(uint64_t address, uint32_t slot) {
    size_t hole = Home(address);
    for (;; hole = (hole + 1) & mask()) {
      if (table_[hole].slot == kNoSlot) return;
      if (table_[hole].address == address) break;
    }
    if (table_[hole].slot != slot) return;
    --count_;
    // Move later entries of the same run forward so that no search stops early at the hole.
    for (size_t i = (hole + 1) & mask(); table_[i].slot != kNoSlot; i = (i + 1) & mask()) {
      if (((i - Home(table_[i].address)) & mask()) >= ((i - hole) & mask())) {
        table_[hole] = table_[i];
        hole = i;
      }
    }
    table_[hole].slot = kNoSlot;
  }

  size_t size() const { return count_; }

 private:
  static constexpr size_t kInitialSize = 1024;
  struct Entry {
    uint64_t address = 0;
    uint32_t slot = kNoSlot;
  };

  size_t mask() const { return table_.size() - 1; }
  // Addresses are multiples of 256 or 512: multiply and take the upper bits.
  size_t Home(uint64_t address) const { return ((address * 0x9e3779b97f4a7c15u) >> 32) & mask(); }
  void Grow() {
    std::vector<Entry> old(table_.size() * 2);
    old.swap(table_);
    count_ = 0;
    for (const Entry& entry : old) {
      if (entry.slot != kNoSlot) Set(entry.address, entry.slot);
    }
  }

  std::vector<Entry> table_;
  size_t count_ = 0;
};

}  // namespace gpumemtrace::analyzer
