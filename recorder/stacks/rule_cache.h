// Unwind rules by address, shared by all threads without a lock.
//
// An entry is two words, the rule and a tag that is a function of address, generation and rule: a reader
// that sees halves of two entries finds that the tag does not fit. Unloading code starts a new generation,
// which makes every older entry foreign.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "recorder/stacks/unwind_rule.h"

namespace gpumemtrace::recorder::stacks {

class RuleCache {
 public:
  // `key` is not 0. An empty rule when it is not there.
  UnwindRule Find(uint64_t key, uint64_t generation) const {
    const size_t home = Home(key);
    for (size_t way = 0; way < kWays; ++way) {
      const Entry& entry = entries_[home ^ way];
      const uint64_t bits = entry.rule.load(std::memory_order_relaxed);
      if (entry.tag.load(std::memory_order_relaxed) == Tag(key, generation, bits)) return UnwindRule(bits);
    }
    return {};
  }

  void Insert(uint64_t key, uint64_t generation, UnwindRule rule) {
    const size_t home = Home(key);
    size_t place = home;
    while (place != (home ^ (kWays - 1)) && entries_[place].tag.load(std::memory_order_relaxed) != 0) {
      place = home ^ ((place ^ home) + 1);
    }
    // All taken: throw out one that depends on the key.
    if (entries_[place].tag.load(std::memory_order_relaxed) != 0) place = home ^ (key >> 4 & (kWays - 1));
    entries_[place].rule.store(rule.bits(), std::memory_order_relaxed);
    entries_[place].tag.store(Tag(key, generation, rule.bits()), std::memory_order_relaxed);
  }

 private:
  struct Entry {
    std::atomic<uint64_t> tag{0};
    std::atomic<uint64_t> rule{0};
  };

  // One cache line holds the ways of a key. 512 KiB in all, of which only used lines are touched.
  static constexpr size_t kWays = 4;
  static constexpr int kBits = 15;

  static size_t Home(uint64_t key) { return key * 0x9e3779b97f4a7c15 >> (64 - kBits); }
  static uint64_t Tag(uint64_t key, uint64_t generation, uint64_t bits) {
    return key ^ bits * 0xff51afd7ed558ccd ^ generation * 0xc4ceb9fe1a85ec53;
  }

  alignas(64) Entry entries_[size_t{1} << kBits];
};

}  // namespace gpumemtrace::recorder::stacks
