// CRC32C (Castagnoli), as RFC 3720 defines it: with the processor's instruction where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumemtrace::recorder {

// Continues from `crc`, the value for the bytes before; 0 at the beginning.
uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes);

namespace internal {
// The portable way, for the test that compares both.
uint32_t Crc32cTable(uint32_t crc, const void* data, size_t bytes);
}  // namespace internal

}  // namespace gpumemtrace::recorder
