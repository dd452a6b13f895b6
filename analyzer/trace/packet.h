// A packet made ready for decoding: parsed by the protobuf library and its parts decompressed. Needs nothing
// of the packets before it, so it can be done ahead of time on another thread.
#pragma once

#include <google/protobuf/arena.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analyzer/trace/varint.h"
#include "gpumemtrace/trace.pb.h"

struct ZSTD_DCtx_s;

namespace gpumemtrace::analyzer {

constexpr int kColumnCount = gpumemtrace::INDEX + 1;
// Readers refuse more than this after decompression (trace.proto).
constexpr uint32_t kMaxRawBytes = 16u << 20;

class ReadyPacket {
 public:
  ReadyPacket();
  ~ReadyPacket();
  ReadyPacket(const ReadyPacket&) = delete;
  ReadyPacket& operator=(const ReadyPacket&) = delete;

  // False when the content is not what the schema says; `fault()` tells.
  bool Load(std::span<const char> content);

  const Content& content() const { return *content_; }
  // Content with definitions to take before those of content(); null when there is none.
  const Content* definitions() const { return definitions_; }
  // Figures of a folded window; null when there are none.
  const FoldedStacks* folded_stacks() const { return folded_stacks_; }
  VarintCursor Column(ColumnId id) const;
  const std::string& fault() const { return fault_; }

  uint64_t offset = 0;  // of the packet in the file
  bool after_damage = false;

 private:
  struct RawColumn {
    bool present = false;
    size_t bytes = 0;
    std::vector<unsigned char> data;  // kept between packets; larger than `bytes` by the padding
  };

  bool Decompress(gpumemtrace::Column::Codec codec, uint32_t raw_size, const std::string& data,
                  RawColumn& out);

  google::protobuf::Arena arena_;
  Content* content_ = nullptr;
  Content* definitions_ = nullptr;
  FoldedStacks* folded_stacks_ = nullptr;
  std::array<RawColumn, kColumnCount> columns_;
  RawColumn scratch_;
  ZSTD_DCtx_s* zstd_;
  std::string fault_;
};

}  // namespace gpumemtrace::analyzer
