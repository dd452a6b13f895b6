// See array_size.h. Formats: CUarray_format in cuda.h 13.0.
#include "interpose/driver/array_size.h"

#include <algorithm>

namespace gpumemtrace::interpose::driver {
namespace {

// Half-bytes per element, all channels included; 0 = the plain formats, whose size is per channel.
uint64_t HalfBytesPerElement(int format) {
  switch (format) {
    case 0xb0:  // NV12: 4:2:0, 8 bits
      return 3;
    case 0x9f:  // P010 and P016: 4:2:0, 16 bits
    case 0xa1:
      return 6;
    case 0x91:  // BC1 and BC4: 8 bytes per 4 × 4 block
    case 0x92:
    case 0x97:
    case 0x98:
      return 1;
    case 0x93:  // BC2, BC3, BC5, BC6H, BC7: 16 bytes per block
    case 0x94:
    case 0x95:
    case 0x96:
    case 0x99:
    case 0x9a:
    case 0x9b:
    case 0x9c:
    case 0x9d:
    case 0x9e:
      return 2;
    default:
      return 0;
  }
}

uint64_t BytesPerChannel(int format) {
  switch (format) {
    case 0x01:  // UNSIGNED_INT8, SIGNED_INT8, and the 8-bit normalized ones
    case 0x08:
    case 0xc0:
    case 0xc1:
    case 0xc2:
    case 0xc3:
    case 0xc4:
    case 0xc5:
      return 1;
    case 0x02:  // UNSIGNED_INT16, SIGNED_INT16, HALF, and the 16-bit normalized ones
    case 0x09:
    case 0x10:
    case 0xc6:
    case 0xc7:
    case 0xc8:
    case 0xc9:
    case 0xca:
    case 0xcb:
      return 2;
    default:  // UNSIGNED_INT32, SIGNED_INT32, FLOAT, and what is newer than this table
      return 4;
  }
}

}  // namespace

uint64_t EstimateArrayBytes(size_t width, size_t height, size_t depth, int format, unsigned channels) {
  const uint64_t elements =
      static_cast<uint64_t>(width) * std::max<size_t>(height, 1) * std::max<size_t>(depth, 1);
  if (const uint64_t halves = HalfBytesPerElement(format); halves != 0) {
    return elements * halves / 2;
  }
  return elements * BytesPerChannel(format) * std::max(channels, 1u);
}

uint64_t EstimateMipmapBytes(size_t width, size_t height, size_t depth, int format, unsigned channels,
                             unsigned levels, bool layered) {
  uint64_t bytes = 0;
  for (unsigned level = 0; level < levels && level < 64; ++level) {
    const auto shrink = [level](size_t extent) {
      return extent == 0 ? 0 : std::max<size_t>(extent >> level, 1);
    };
    bytes +=
        EstimateArrayBytes(shrink(width), shrink(height), layered ? depth : shrink(depth), format, channels);
  }
  return bytes;
}

}  // namespace gpumemtrace::interpose::driver
