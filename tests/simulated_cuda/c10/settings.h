// PYTORCH_CUDA_ALLOC_CONF, read once.
#pragma once

#include <cstddef>

namespace c10::cuda::allocator {

enum class Backend { kNative, kAsync, kNone };

struct Settings {
  Backend backend = Backend::kNative;
  bool expandable_segments = false;
  size_t max_split_size = ~size_t{0};
  size_t roundup_power2_divisions = 0;
};

const Settings& GetSettings();

inline constexpr size_t kMinBlock = 512;
inline constexpr size_t kSmallLimit = size_t{1} << 20;
inline constexpr size_t kSmallSegment = size_t{2} << 20;
inline constexpr size_t kLargeSegment = size_t{20} << 20;
inline constexpr size_t kLargeLimit = size_t{10} << 20;
inline constexpr size_t kLargeRounding = size_t{2} << 20;
inline constexpr size_t kMaxNonSplitRounding = size_t{20} << 20;

// Size of the block that a request of `size` gets.
size_t RoundSize(size_t size);
// Size of the segment that is taken from CUDA for a block of `size`.
size_t SegmentSize(size_t size);

}  // namespace c10::cuda::allocator
