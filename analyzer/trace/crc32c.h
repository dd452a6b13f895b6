// CRC32C (Castagnoli polynomial, reflected, as in RFC 3720): the checksum of trace packets.
#pragma once

#include <cstdint>
#include <span>

namespace gpumemtrace::analyzer {

uint32_t Crc32c(std::span<const char> bytes);

}  // namespace gpumemtrace::analyzer
