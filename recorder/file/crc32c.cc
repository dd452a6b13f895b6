#include "recorder/file/crc32c.h"

#include <array>
#include <cstring>

namespace gpumemtrace::recorder {
namespace {

// The reflected polynomial.
constexpr uint32_t kPolynomial = 0x82f63b78;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t Crc32cInstruction(uint32_t crc, const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t state = ~crc;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, sizeof word);
    state = __builtin_ia32_crc32di(state, word);
  }
  auto rest = static_cast<uint32_t>(state);
  for (; bytes > 0; --bytes, ++p) rest = __builtin_ia32_crc32qi(rest, *p);
  return ~rest;
}
#endif

}  // namespace

namespace internal {

uint32_t Crc32cTable(uint32_t crc, const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; bytes > 0; --bytes, ++p) crc = (crc >> 8) ^ kTable[(crc ^ *p) & 0xff];
  return ~crc;
}

}  // namespace internal

uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return Crc32cInstruction(crc, data, bytes);
#endif
  return internal::Crc32cTable(crc, data, bytes);
}

}  // namespace gpumemtrace::recorder
