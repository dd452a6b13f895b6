#include "recorder/fold/live_births.h"

#include <algorithm>

namespace gpumemtrace::recorder {
namespace {

// Fewer gaps than this are not worth closing.
constexpr size_t kFewEnded = 1024;

}  // namespace

LiveBirth* LiveBirths::Find(uint64_t index) {
  // Most of what ends is young: the steps grow from the end of the list.
  const size_t size = births_.size();
  size_t high = size;
  size_t low = size;
  for (size_t step = 1; low > 0; step *= 2) {
    low = step < size ? size - step : 0;
    if (births_[low].index <= index) break;
    high = low;
  }
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (births_[middle].index < index) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == size) return nullptr;
  LiveBirth& found = births_[low];
  return found.index == index && found.site != 0 ? &found : nullptr;
}

bool LiveBirths::Insert(const LiveBirth& birth) {
  if (!births_.empty() && births_.back().index >= birth.index) return false;
  if (ended_ >= kFewEnded && ended_ >= births_.size() / 8) Compact();
  return births_.Push(birth);
}

void LiveBirths::Compact() {
  LiveBirth* end =
      std::remove_if(births_.begin(), births_.end(), [](const LiveBirth& one) { return one.site == 0; });
  births_.Shrink(static_cast<size_t>(end - births_.begin()));
  ended_ = 0;
}

}  // namespace gpumemtrace::recorder
