// Objects that later events of a trace may refer to by the index of their birth. Births come in ascending
// order and most objects die young: a window of the latest births, indexed by the birth's own number, finds
// nearly all; what is still alive when the window comes round to its place moves to a hash table.
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

  BirthTable() : window_(kFirstWindow), old_(kFirstWindow) {}

  // `index` must not be in the table. Returns the object's number.
  uint32_t Insert(uint64_t index, uint64_t address, uint64_t size, SiteId site) {
    uint32_t object;
    if (free_objects_.empty()) {
      object = next_object_++;
    } else {
      object = free_objects_.back();
      free_objects_.pop_back();
    }
    if (window_[index & window_mask_].index != kNoIndex) Evict(index);
    window_[index & window_mask_] = {index, address, size, site, object};
    ++count_;
    return object;
  }

  // Null when no such object lives. Valid until the next Insert or Erase.
  const Birth* Find(uint64_t index) const {
    const Birth& place = window_[index & window_mask_];
    if (place.index == index) return &place;
    for (size_t i = Home(index);; i = (i + 1) & (old_.size() - 1)) {
      if (old_[i].index == index) return &old_[i];
      if (old_[i].index == kNoIndex) return nullptr;
    }
  }

  // `birth` comes from Find.
  void Erase(const Birth* birth) {
    free_objects_.push_back(birth->object);
    --count_;
    Birth& place = window_[birth->index & window_mask_];
    if (&place == birth) {
      place.index = kNoIndex;
      return;
    }
    --old_count_;
    // Move later entries of the same run forward so that no search stops early at the hole.
    const size_t mask = old_.size() - 1;
    size_t hole = static_cast<size_t>(birth - old_.data());
    for (size_t i = (hole + 1) & mask; old_[i].index != kNoIndex; i = (i + 1) & mask) {
      if (((i - Home(old_[i].index)) & mask) >= ((i - hole) & mask)) {
        old_[hole] = old_[i];
        hole = i;
      }
    }
    old_[hole].index = kNoIndex;
  }

  size_t size() const { return count_; }

  template <typename Function>
  void ForEach(Function function) const {
    for (const std::vector<Birth>* table : {&window_, &old_}) {
      for (const Birth& birth : *table) {
        if (birth.index != kNoIndex) function(birth);
      }
    }
  }

 private:
  static constexpr size_t kFirstWindow = 1024;
  static constexpr size_t kLargestWindow = 16384;  // stays in a core's own cache

  size_t Home(uint64_t index) const { return ((index * 0x9e3779b97f4a7c15u) >> 32) & (old_.size() - 1); }

  // Clears the window's place for `index`.
  void Evict(uint64_t index) {
    if (2 * (old_count_ + 1) > old_.size()) {
      std::vector<Birth> before(old_.size() * 2);
      before.swap(old_);
      for (const Birth& birth : before) {
        if (birth.index != kNoIndex) PlaceOld(birth);
      }
    }
    Birth& place = window_[index & window_mask_];
    PlaceOld(place);
    ++old_count_;
    place.index = kNoIndex;
    if (++evicted_ <= window_.size() || window_.size() >= kLargestWindow) return;
    evicted_ = 0;
    std::vector<Birth> before(window_.size() * 4);
    before.swap(window_);
    window_mask_ = window_.size() - 1;
    for (const Birth& birth : before) {
      if (birth.index != kNoIndex) window_[birth.index & window_mask_] = birth;
    }
  }

  void PlaceOld(const Birth& birth) {
    size_t i = Home(birth.index);
    while (old_[i].index != kNoIndex) i = (i + 1) & (old_.size() - 1);
    old_[i] = birth;
  }

  std::vector<Birth> window_;
  size_t window_mask_ = kFirstWindow - 1;
  std::vector<Birth> old_;
  size_t old_count_ = 0;
  size_t count_ = 0;
  size_t evicted_ = 0;  // since the window grew
  uint32_t next_object_ = 0;
  std::vector<uint32_t> free_objects_;
};

}  // namespace gpumemtrace::analyzer
