// What the columns of `Events` (trace.proto) leave out when `Events.predicted` is set: programs repeat
// themselves, and after the same sites as before comes what came then. Shared by the writer and the readers,
// so that they cannot disagree. No includes of ours.
//
// Two tables say what was last seen after a context: the long one after the last six sites, the short one
// after the last two. A context is a number, 0 before the first event:
//     long  = Σ site[n − i] · kFactor^(i + 1), i = 0 … 5      short = Σ site[n − i] · kFactor^(i + 1), i = 0
//     … 1
// modulo 2^64, where site[n] is the id of the event before; its upper 16 (short: 14) bits are the place in
// the table. Contexts that meet in one place take each other for the same; both sides do so alike.
//
// The prediction is the entry of the long table, or that of the short one when the former is empty. After
// each event both entries become what that event was (of its step the lower 32 bits, as a signed number). A
// packet with `restart` begins with empty tables and contexts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpumemtrace::event_prediction {

struct Entry {
  // 0 = nothing was seen yet.
  uint32_t site;
  // Distance to the birth, as LIVE has it, modulo 2^32; 0 for sites without one.
  uint32_t distance;
  // Time since the event before, in units of Events.time_step_us; its lower 32 bits.
  int32_t step;
  // The restart after which it was seen; entries of earlier ones are empty.
  uint32_t epoch;
};

class Predictor {
 public:
  static constexpr size_t kLongEntries = size_t{1} << 16;
  static constexpr size_t kShortEntries = size_t{1} << 14;
  static constexpr size_t kEntries = kLongEntries + kShortEntries;

  // Uses kEntries zeroed entries, which stay the caller's. Without memory (null) nothing may be called but
  // ready().
  void Use(Entry* entries) { entries_ = entries; }
  bool ready() const { return entries_ != nullptr; }

  void Restart() {
    if (++epoch_ == 0) {
      std::memset(static_cast<void*>(entries_), 0, kEntries * sizeof(Entry));
      epoch_ = 1;
    }
    long_ = short_ = 0;
    std::memset(last_, 0, sizeof last_);
    next_ = 0;
  }

  // What is expected of the next event; site 0 = nothing.
  Entry Predict() const {
    const Entry& by_long = entries_[long_ >> 48];
    if (by_long.epoch == epoch_) return by_long;
    const Entry& by_short = entries_[kLongEntries + (short_ >> 50)];
    return by_short.epoch == epoch_ ? by_short : Entry{};
  }

  void Learn(uint32_t site, int64_t step, uint64_t distance) {
    const Entry entry = {site, static_cast<uint32_t>(distance), static_cast<int32_t>(step), epoch_};
    entries_[long_ >> 48] = entry;
    entries_[kLongEntries + (short_ >> 50)] = entry;
    const uint32_t before = last_[next_ == 0 ? kLongest - 1 : next_ - 1];
    long_ = (long_ + site - last_[next_] * kPower6) * kFactor;
    short_ = site * kFactor + before * kPower2;
    last_[next_] = site;
    next_ = next_ + 1 == kLongest ? 0 : next_ + 1;
  }

 private:
  static constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
  static constexpr uint64_t kPower2 = kFactor * kFactor;
  static constexpr uint64_t kPower6 = kPower2 * kPower2 * kPower2;
  static constexpr uint32_t kLongest = 6;

  Entry* entries_ = nullptr;
  uint64_t long_ = 0;
  uint64_t short_ = 0;
  // The last sites; the oldest at next_.
  uint32_t last_[kLongest] = {};
  uint32_t next_ = 0;
  // 0 is that of empty memory.
  uint32_t epoch_ = 1;
};

}  // namespace gpumemtrace::event_prediction
