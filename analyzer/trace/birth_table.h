// Objects that later events of a trace may refer to by the index of their birth. A hash table with the index
// itself as hash: births come in ascending order, so neighbors in the trace are neighbors in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "analyzer/trace/model.h"

namespace gpumemtrace::analyzer {

class BirthTable {
 public:
  struct Birth {
    uint64_t index = kNoIndex;
    uint64_t address = 0;
    uint64_t size = 0;
    SiteId site = 0;
    // Dense number, given out again after Erase.
    uint32_t object = kNoSlot;
  };

  BirthTable() : table_(1024), mask_(table_.size() - 1) {}

  // `index` must not be in the table. Returns the object's number.
  uint32_t Insert(uint64_t index, uint64_t address, uint64_t size, SiteId site) {
    if (2 * (count_ + 1) > table_.size()) Grow();
    uint32_t object;
    if (free_objects_.empty()) {
      object = next_object_++;
    } else {
      object = free_objects_.back();
      free_objects_.pop_back();
    }
    Place({index, address, size, site, object});
    ++count_;
    return object;
  }

  // Null when no such object lives. Valid until the next Insert or Erase.
  const Birth* Find(uint64_t index) const {
    for (size_t i = index & mask_;; i = (i + 1) & mask_) {
      if (table_[i].index == index) return &table_[i];
      if (table_[i].index == kNoIndex) return nullptr;
    }
  }

  // `birth` comes from Find.
  void Erase(const Birth* birth) {
    size_t hole = static_cast<size_t>(birth - table_.data());
    free_objects_.push_back(birth->object);
    --count_;
    // Move later entries of the same run forward so that no search stops early at the hole.
    for (size_t i = (hole + 1) & mask_; table_[i].index != kNoIndex; i = (i + 1) & mask_) {
      const size_t home = table_[i].index & mask_;
      if (((i - home) & mask_) >= ((i - hole) & mask_)) {
        table_[hole] = table_[i];
        hole = i;
      }
    }
    table_[hole].index = kNoIndex;
  }

  size_t size() const { return count_; }

  template <typename Function>
  void ForEach(Function function) const {
    for (const Birth& birth : table_) {
      if (birth.index != kNoIndex) function(birth);
    }
  }

 private:
  void Place(const Birth& birth) {
    size_t i = birth.index & mask_;
    while (table_[i].index != kNoIndex) i = (i + 1) & mask_;
    table_[i] = birth;
  }
  void Grow() {
    std::vector<Birth> old(table_.size() * 2);
    old.swap(table_);
    mask_ = table_.size() - 1;
    for (const Birth& birth : old) {
      if (birth.index != kNoIndex) Place(birth);
    }
  }

  std::vector<Birth> table_;
  size_t mask_;
  size_t count_ = 0;
  uint32_t next_object_ = 0;
  std::vector<uint32_t> free_objects_;
};

}  // namespace gpumemtrace::analyzer
