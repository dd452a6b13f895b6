// zstd in memory of our own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "recorder/writer/byte_buffer.h"

struct ZSTD_CCtx_s;

namespace gpumemtrace::recorder {

class Compressor {
 public:
  Compressor() = default;
  ~Compressor();
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  // Replaces `out` by one zstd frame of `bytes`. False when there was no memory or when the frame would not
  // be shorter.
  bool Compress(std::span<const uint8_t> bytes, ByteBuffer& out);

 private:
  // Sets memory aside for so many bytes at a time. False: there is none.
  bool Prepare(size_t bytes);

  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  size_t most_ = 0;
  ZSTD_CCtx_s* context_ = nullptr;
};

}  // namespace gpumemtrace::recorder
