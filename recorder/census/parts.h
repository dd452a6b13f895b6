// Compresses a serialized census and records it in parts that fit a ring.
#pragma once

#include <cstdint>
#include <span>

namespace gpumemtrace::recorder::census {

struct PartHeader {
  uint32_t census = 0;
  uint64_t first_sequence = 0;
  uint64_t last_sequence = 0;
  uint64_t time_us = 0;
};

// Largest slice of one part: a small share of the smallest ring (64 KiB).
constexpr size_t kPartBytes = size_t{16} << 10;

// Gives each part, as a serialized Content, to `record`; false when that failed and the rest was left out.
bool CutIntoParts(const PartHeader& header, std::span<const uint8_t> census,
                  bool (*record)(std::span<const unsigned char> content));

// The same into the trace.
bool RecordParts(const PartHeader& header, std::span<const uint8_t> census);

}  // namespace gpumemtrace::recorder::census
