#include "recorder/census/parts.h"

#include <algorithm>

#include "recorder/recorder.h"
#include "recorder/writer/byte_buffer.h"
#include "recorder/writer/compressor.h"

namespace gpumemtrace::recorder::census {
namespace {

// Field numbers of Content and CensusPart in trace.proto.
constexpr uint32_t kContentCensusPart = 30;
constexpr uint32_t kCensus = 1;
constexpr uint32_t kPart = 2;
constexpr uint32_t kParts = 3;
constexpr uint32_t kCodec = 4;
constexpr uint32_t kRawSize = 5;
constexpr uint32_t kFirstSequence = 6;
constexpr uint32_t kLastSequence = 7;
constexpr uint32_t kTime = 8;
constexpr uint32_t kData = 9;
constexpr uint32_t kZstd = 1;  // Column.Codec

}  // namespace

bool CutIntoParts(const PartHeader& header, std::span<const uint8_t> census,
                  bool (*record)(std::span<const unsigned char> content)) {
  Compressor compressor;
  ByteBuffer compressed;
  std::span<const uint8_t> data = census;
  const bool shorter = compressor.Compress(census, compressed);
  if (shorter) data = compressed.span();
  const auto parts = static_cast<uint32_t>((data.size() + kPartBytes - 1) / kPartBytes);
  ByteBuffer content;
  for (uint32_t part = 0; part < parts; ++part) {
    const size_t begin = size_t{part} * kPartBytes;
    const size_t size = std::min(kPartBytes, data.size() - begin);
    content.Clear();
    {
      ProtoWriter writer(content);
      ProtoWriter message(writer, kContentCensusPart);
      message.add_uint32(kCensus, header.census);
      message.add_uint32(kPart, part);
      message.add_uint32(kParts, parts);
      message.add_enum(kCodec, shorter ? static_cast<int32_t>(kZstd) : 0);
      message.add_uint64(kRawSize, census.size());
      message.add_uint64(kFirstSequence, header.first_sequence);
      message.add_uint64(kLastSequence, header.last_sequence);
      message.add_uint64(kTime, header.time_us);
      message.add_bytes(kData, reinterpret_cast<const char*>(data.data()) + begin, size);
    }
    // Half a census is unreadable: the rest would only take room.
    if (content.failed() || !record(content.span())) return false;
  }
  return true;
}

bool RecordParts(const PartHeader& header, std::span<const uint8_t> census) {
  return CutIntoParts(header, census, RecordContent);
}

}  // namespace gpumemtrace::recorder::census
