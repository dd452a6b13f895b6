// Mixing of 64-bit words by one wide multiplication, the construction of wyhash and of Abseil's low-level
// hash; strong enough that 2^20 distinct stacks share a number with a probability below 10^-7.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace gpumemtrace::recorder::stacks {

// Odd constants with balanced bits: the first digits of the fractional part of pi.
inline constexpr uint64_t kSalt0 = 0x243f6a8885a308d3;
inline constexpr uint64_t kSalt1 = 0x13198a2e03707345;
inline constexpr uint64_t kSalt2 = 0xa4093822299f31d1;

inline uint64_t Mix(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Appends `word` to the sequence that `hash` stands for. One factor is a constant, so that no word can make
// the product 0 for all that follow.
inline uint64_t Extend(uint64_t hash, uint64_t word) {
  return Mix(hash ^ word, kSalt1);
}

inline uint64_t HashBytes(uint64_t seed, const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  uint64_t hash = Extend(seed, size);
  while (size >= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    hash = Extend(hash, word);
    bytes += 8;
    size -= 8;
  }
  if (size != 0) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, size);
    hash = Extend(hash, word);
  }
  return hash;
}

template <typename T>
uint64_t HashSpan(uint64_t seed, std::span<const T> span) {
  return HashBytes(seed, span.data(), span.size_bytes());
}

}  // namespace gpumemtrace::recorder::stacks
