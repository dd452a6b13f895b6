// Reads LEB128 varints from a column without a branch per byte.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace gpumemtrace::analyzer {

constexpr uint64_t ZigzagDecode(uint64_t value) {
  return (value >> 1) ^ (0 - (value & 1));
}

// A column being read. The bytes must be followed by kPadding readable ones. A column that is absent reads as
// zeros without end.
class VarintCursor {
 public:
  static constexpr size_t kPadding = 16;

  VarintCursor() = default;
  VarintCursor(const unsigned char* begin, const unsigned char* end) : next_(begin), end_(end) {}

  uint64_t Next() {
    if (next_ >= end_) {
      exhausted_ = exhausted_ || end_ != nullptr;
      return 0;
    }
    uint64_t word;
    std::memcpy(&word, next_, 8);
    if ((word & 0x80) == 0) {
      ++next_;
      return word & 0x7f;
    }
    const uint64_t stops = ~word & 0x8080808080808080u;
    if (stops == 0) return NextLong();
    const unsigned stop = static_cast<unsigned>(std::countr_zero(stops));  // bit 7 of the last byte
    next_ += (stop >> 3) + 1;
    word &= ~uint64_t{0} >> (63 - stop);
    // Squeeze out the continuation bits: pairs of bytes, then of 14-bit, then of 28-bit groups.
    word &= 0x7f7f7f7f7f7f7f7fu;
    word = ((word & 0x7f007f007f007f00u) >> 1) | (word & 0x007f007f007f007fu);
    word = ((word & 0x3fff00003fff0000u) >> 2) | (word & 0x00003fff00003fffu);
    return ((word & 0x0fffffff00000000u) >> 4) | (word & 0x000000000fffffffu);
  }
  uint64_t NextZigzag() { return ZigzagDecode(Next()); }

  // An entry was wanted that the column does not have, or an entry was malformed.
  bool exhausted() const { return exhausted_ || next_ > end_; }
  bool at_end() const { return next_ >= end_; }

 private:
  // Nine or ten bytes.
  uint64_t NextLong() {
    uint64_t value = 0;
    for (unsigned i = 0; i < 10 && next_ < end_; ++i) {
      const uint64_t byte = *next_++;
      value |= (byte & 0x7f) << (7 * i);
      if ((byte & 0x80) == 0) return value;
    }
    exhausted_ = true;
    return value;
  }

  const unsigned char* next_ = nullptr;
  const unsigned char* end_ = nullptr;
  bool exhausted_ = false;
};

}  // namespace gpumemtrace::analyzer
