// The other direction of compressor.h, for reading our own trace back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "recorder/writer/byte_buffer.h"

struct ZSTD_DCtx_s;

namespace gpumemtrace::recorder {

class Decompressor {
 public:
  Decompressor() = default;
  ~Decompressor();
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  // Replaces `out` by the `raw_size` bytes that `frame` holds. False when it does not, or without memory.
  bool Decompress(std::span<const uint8_t> frame, size_t raw_size, ByteBuffer& out);

 private:
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  ZSTD_DCtx_s* context_ = nullptr;
};

}  // namespace gpumemtrace::recorder
