#include "settings.h"

#include <stdlib.h>
#include <string.h>

#include <string>

namespace c10::cuda::allocator {
namespace {

Settings Read() {
  Settings settings;
  const char* no_caching = getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
  if (no_caching != nullptr && *no_caching != '\0' && *no_caching != '0') settings.backend = Backend::kNone;
  const char* text = getenv("PYTORCH_CUDA_ALLOC_CONF");
  if (text == nullptr) return settings;
  std::string rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string item = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    const size_t colon = item.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = item.substr(0, colon);
    const std::string value = item.substr(colon + 1);
    if (key == "expandable_segments") settings.expandable_segments = value == "True";
    if (key == "max_split_size_mb") settings.max_split_size = strtoull(value.c_str(), nullptr, 10) << 20;
    if (key == "roundup_power2_divisions")
      settings.roundup_power2_divisions = strtoull(value.c_str(), nullptr, 10);
    if (key == "backend" && value == "cudaMallocAsync" && settings.backend == Backend::kNative) {
      settings.backend = Backend::kAsync;
    }
  }
  return settings;
}

size_t Up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

size_t PowerOfTwoBelow(size_t value) {
  return size_t{1} << (63 - __builtin_clzll(value));
}

}  // namespace

const Settings& GetSettings() {
  static const auto* const settings = new Settings(Read());
  return *settings;
}

size_t RoundSize(size_t size) {
  if (size < kMinBlock) return kMinBlock;
  const size_t divisions = GetSettings().roundup_power2_divisions;
  if (divisions > 1 && size > kMinBlock * divisions) {
    const size_t power = PowerOfTwoBelow(size);
    if (power == size) return size;
    const size_t step = power / PowerOfTwoBelow(divisions);
    return step == 0 ? power * 2 : Up(size, step);
  }
  return Up(size, kMinBlock);
}

size_t SegmentSize(size_t size) {
  if (size <= kSmallLimit) return kSmallSegment;
  return size < kLargeLimit ? kLargeSegment : Up(size, kLargeRounding);
}

}  // namespace c10::cuda::allocator
