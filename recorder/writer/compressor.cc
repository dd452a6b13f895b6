// The static workspace is part of zstd's interface for static linking, and that is how we link it.
#define ZSTD_STATIC_LINKING_ONLY
#include "recorder/writer/compressor.h"

#include <zstd.h>

namespace gpumemtrace::recorder {
namespace {

// Level 3 took 0.6 bytes per event of a steady loop; higher levels gain little and cost the host's cores.
constexpr int kLevel = 3;
}  // namespace

Compressor::~Compressor() {
  UnmapPages(workspace_, workspace_bytes_);
}

bool Compressor::Compress(std::span<const uint8_t> bytes, ByteBuffer& out) {
  out.Clear();
  if (bytes.empty()) return false;
  if (context_ == nullptr) {
    workspace_bytes_ = ZSTD_estimateCCtxSize(kLevel);
    workspace_ = MapPages(workspace_bytes_);
    if (workspace_ == nullptr) return false;
    context_ = ZSTD_initStaticCCtx(workspace_, workspace_bytes_);
    if (context_ == nullptr) return false;
  }
  out.Resize(ZSTD_compressBound(bytes.size()));
  if (out.failed()) return false;
  const size_t size = ZSTD_compressCCtx(context_, out.data(), out.size(), bytes.data(), bytes.size(), kLevel);
  if (ZSTD_isError(size) != 0 || size >= bytes.size()) {
    out.Clear();
    return false;
  }
  out.Resize(size);
  return true;
}

}  // namespace gpumemtrace::recorder
