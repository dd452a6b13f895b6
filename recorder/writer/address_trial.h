// Whether to predict addresses (address_prediction.h): it takes time with each block, here and in every
// reader, and gains little where the program repeats itself to the byte or its allocator is no best fit.
// Decided by what it saves, once there are enough allocations; where that is little it is tried again after a
// pause, each time a longer one, because programs have phases.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace gpumemtrace::recorder {

class AddressTrial {
 public:
  // So many allocations decide. Fewer would do if it did not know next to nothing after a restart.
  static constexpr uint32_t kEnough = 1u << 14;
  // In restarts.
  static constexpr uint32_t kLongestPause = 64;

  // At a restart before the event with this index: whether to predict from here on. Of the same one it may be
  // asked again.
  bool Restart(uint64_t index) {
    if (index == index_) return predicts_;
    index_ = index;
    allocations_ = 0;
    saved_ = 0;
    if (predicts_) {
      pause_ = 1;
    } else if (left_ == 0) {
      predicts_ = true;
    } else {
      --left_;
    }
    return predicts_;
  }

  // An allocation: its entries of ADDRESS with the prediction and without.
  void Add(uint64_t with, uint64_t without) {
    ++allocations_;
    saved_ += Bytes(without) - Bytes(with);
  }

  // After a packet: whether to go on.
  bool GoesOn() {
    if (!predicts_ || allocations_ < kEnough) return predicts_;
    predicts_ = saved_ >= static_cast<int64_t>(allocations_ / 4);
    allocations_ = 0;
    saved_ = 0;
    if (!predicts_) {
      left_ = pause_;
      pause_ = std::min(2 * pause_, kLongestPause);
    }
    return predicts_;
  }

 private:
  // What an entry weighs, more or less, once zstd has done away with zeros.
  static int64_t Bytes(uint64_t entry) { return (std::bit_width(entry) + 6) / 7; }

  uint64_t index_ = ~uint64_t{0};
  // The first restart begins with it.
  bool predicts_ = false;
  // Restarts until it is tried again, and how many there will be the next time.
  uint32_t left_ = 0;
  uint32_t pause_ = 1;
  uint32_t allocations_ = 0;
  int64_t saved_ = 0;
};

}  // namespace gpumemtrace::recorder
