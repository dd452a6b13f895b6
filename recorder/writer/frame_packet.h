// Puts a packet of the trace together: Trace.packet { crc32c, content }.
#pragma once

#include "recorder/file/crc32c.h"
#include "recorder/writer/byte_buffer.h"
#include "recorder/writer/fields.h"

namespace gpumemtrace::recorder {

// Replaces `packet`. The lengths are known, so it is put together by hand.
inline void FramePacket(const ByteBuffer& content, ByteBuffer& scratch, ByteBuffer& packet) {
  packet.Clear();
  scratch.Clear();
  ProtoWriter head(scratch);
  head.add_fixed32(fields::kPacketCrc32c, Crc32c(0, content.data(), content.size()));
  scratch.Push(fields::kPacketContent << 3 | 2);
  scratch.Varint(content.size());
  packet.Push(fields::kTracePacket << 3 | 2);
  packet.Varint(scratch.size() + content.size());
  packet.Append(scratch.data(), scratch.size());
  packet.Append(content.data(), content.size());
}

}  // namespace gpumemtrace::recorder
