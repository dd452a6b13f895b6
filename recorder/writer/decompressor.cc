// The static workspace is part of zstd's interface for static linking, and that is how we link it.
#define ZSTD_STATIC_LINKING_ONLY
#include "recorder/writer/decompressor.h"

#include <zstd.h>

namespace gpumemtrace::recorder {

Decompressor::~Decompressor() {
  UnmapPages(workspace_, workspace_bytes_);
}

bool Decompressor::Decompress(std::span<const uint8_t> frame, size_t raw_size, ByteBuffer& out) {
  out.Clear();
  // Readers refuse more (trace.proto).
  if (raw_size > size_t{16} << 20) return false;
  if (context_ == nullptr) {
    workspace_bytes_ = ZSTD_estimateDCtxSize();
    workspace_ = MapPages(workspace_bytes_);
    if (workspace_ == nullptr) return false;
    context_ = ZSTD_initStaticDCtx(workspace_, workspace_bytes_);
    if (context_ == nullptr) return false;
  }
  out.Resize(raw_size);
  if (out.failed()) return false;
  const size_t got = ZSTD_decompressDCtx(context_, out.data(), out.size(), frame.data(), frame.size());
  return ZSTD_isError(got) == 0 && got == raw_size;
}

}  // namespace gpumemtrace::recorder
