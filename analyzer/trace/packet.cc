#include "analyzer/trace/packet.h"

#include <zstd.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace gpumemtrace::analyzer {

ReadyPacket::ReadyPacket() : zstd_(ZSTD_createDCtx()) {}
ReadyPacket::~ReadyPacket() {
  ZSTD_freeDCtx(zstd_);
}

bool ReadyPacket::Decompress(gpumemtrace::Column::Codec codec, uint32_t raw_size, const std::string& data,
                             RawColumn& out) {
  if (raw_size > kMaxRawBytes) {
    fault_ = absl::StrCat("a part claims ", raw_size, " bytes after decompression");
    return false;
  }
  if (out.data.size() < raw_size + VarintCursor::kPadding) {
    // Grow only as far as the compressed bytes vouch for: zstd cannot expand by more than about 2^15.
    out.data.resize(raw_size + VarintCursor::kPadding);
  }
  size_t bytes = 0;
  if (codec == gpumemtrace::Column::RAW) {
    if (data.size() != raw_size) {
      fault_ = "a part is not as long as it says";
      return false;
    }
    std::memcpy(out.data.data(), data.data(), data.size());
    bytes = data.size();
  } else if (codec == gpumemtrace::Column::ZSTD) {
    bytes = ZSTD_decompressDCtx(zstd_, out.data.data(), raw_size, data.data(), data.size());
    if (ZSTD_isError(bytes) != 0 || bytes != raw_size) {
      fault_ = "a part cannot be decompressed";
      return false;
    }
  } else {
    fault_ = absl::StrCat("a part is compressed in an unknown way (", static_cast<int>(codec), ")");
    return false;
  }
  std::memset(out.data.data() + bytes, 0, VarintCursor::kPadding);
  out.bytes = bytes;
  out.present = true;
  return true;
}

bool ReadyPacket::Load(std::span<const char> bytes) {
  arena_.Reset();
  content_ = google::protobuf::Arena::CreateMessage<Content>(&arena_);
  definitions_ = nullptr;
  folded_stacks_ = nullptr;
  fault_.clear();
  for (RawColumn& column : columns_) column.present = false;
  if (!content_->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    fault_ = "the content is not a message of the schema";
    return false;
  }
  if (content_->has_compressed_definitions()) {
    const Compressed& compressed = content_->compressed_definitions();
    if (!Decompress(compressed.codec(), compressed.raw_size(), compressed.data(), scratch_)) return false;
    definitions_ = google::protobuf::Arena::CreateMessage<Content>(&arena_);
    if (!definitions_->ParseFromArray(scratch_.data.data(), static_cast<int>(scratch_.bytes))) {
      fault_ = "the definitions are not a message of the schema";
      return false;
    }
  }
  if (content_->folded().has_stacks()) {
    const Compressed& compressed = content_->folded().stacks();
    if (!Decompress(compressed.codec(), compressed.raw_size(), compressed.data(), scratch_)) return false;
    folded_stacks_ = google::protobuf::Arena::CreateMessage<FoldedStacks>(&arena_);
    if (!folded_stacks_->ParseFromArray(scratch_.data.data(), static_cast<int>(scratch_.bytes))) {
      fault_ = "the figures of a folded window are not a message of the schema";
      return false;
    }
  }
  for (const gpumemtrace::Column& column : content_->events().column()) {
    const int id = column.id();
    if (id <= 0 || id >= kColumnCount) continue;  // of a later version
    if (!Decompress(column.codec(), column.raw_size(), column.data(), columns_[static_cast<size_t>(id)])) {
      return false;
    }
  }
  return true;
}

VarintCursor ReadyPacket::Column(ColumnId id) const {
  const RawColumn& column = columns_[static_cast<size_t>(id)];
  if (!column.present) return {};
  return {column.data.data(), column.data.data() + column.bytes};
}

}  // namespace gpumemtrace::analyzer
