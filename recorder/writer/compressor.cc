// The static workspace is part of zstd's interface for static linking, and that is how we link it.
#define ZSTD_STATIC_LINKING_ONLY
#include "recorder/writer/compressor.h"

#include <zstd.h>

#include <algorithm>

namespace gpumemtrace::recorder {
namespace {

// Level 3 took 0.6 bytes per event of a steady loop; higher levels gain little and cost the host's cores.
constexpr int kLevel = 3;
// The sizes up to which zstd has tables of their own (its manual, ZSTD_getCParams); the last one is the
// largest.
constexpr unsigned long long kShort[] = {16 << 10, 128 << 10, 256 << 10};
constexpr size_t kMostShort = 256 << 10;

}  // namespace

Compressor::~Compressor() {
  UnmapPages(workspace_, workspace_bytes_);
}

bool Compressor::Prepare(size_t bytes) {
  // zstd takes smaller tables for what it knows to be short, and nearly everything of ours is.
  const bool is_short = bytes <= kMostShort;
  size_t size = 0;
  if (is_short) {
    for (const unsigned long long source : kShort) {
      size = std::max(size, ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(kLevel, source, 0)));
    }
  } else {
    size = ZSTD_estimateCCtxSize(kLevel);
  }
  void* workspace = MapPages(size);
  if (workspace == nullptr) return false;
  UnmapPages(workspace_, workspace_bytes_);
  workspace_ = workspace;
  workspace_bytes_ = size;
  context_ = ZSTD_initStaticCCtx(workspace_, workspace_bytes_);
  most_ = context_ == nullptr ? 0 : is_short ? kMostShort : ~size_t{0};
  return context_ != nullptr;
}

bool Compressor::Compress(std::span<const uint8_t> bytes, ByteBuffer& out) {
  out.Clear();
  if (bytes.empty()) return false;
  if (bytes.size() > most_ && !Prepare(bytes.size())) return false;
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
