#include "analyzer/trace/census_decoder.h"

#include <zstd.h>

namespace gpumemtrace::analyzer {
namespace {

// trace.proto: readers refuse more.
constexpr uint64_t kMostBytes = uint64_t{256} << 20;
constexpr uint32_t kMostParts = kMostBytes / 1024;
// Censuses whose parts are awaited at the same time; one process takes one after another.
constexpr size_t kMostPending = 8;

bool Decompress(const CensusPart& part, const std::string& data, std::string& out) {
  if (part.raw_size() > kMostBytes) return false;
  if (part.codec() == Column::RAW) {
    out = data;
    return data.size() == part.raw_size();
  }
  if (part.codec() != Column::ZSTD) return false;
  out.resize(part.raw_size());
  const size_t size = ZSTD_decompress(out.data(), out.size(), data.data(), data.size());
  return ZSTD_isError(size) == 0 && size == part.raw_size();
}

template <typename Column>
bool TextsExist(const Column& column, int count, uint32_t texts) {
  if (column.size() != count) return false;
  for (const uint32_t text : column) {
    if (text >= texts) return false;
  }
  return true;
}

}  // namespace

bool ValidCensus(const Census& census) {
  const int count = census.address_size();
  const auto rows = static_cast<size_t>(count);
  const auto texts = static_cast<uint32_t>(census.text_size());
  const auto holders = static_cast<uint32_t>(census.holder_entry_size());
  if (texts == 0 || !census.text(0).empty()) return false;
  if (census.bytes_size() != count || census.storage_bytes_size() != count) return false;
  if (!TextsExist(census.shape(), count, texts) || !TextsExist(census.dtype(), count, texts) ||
      !TextsExist(census.name(), count, texts) || !TextsExist(census.grad_fn(), count, texts)) {
    return false;
  }
  if (census.holder_size() != count) return false;
  for (const uint32_t holder : census.holder()) {
    if (holder > holders) return false;
  }
  for (const std::string* column : {&census.role(), &census.framework(), &census.flags(), &census.device()}) {
    if (column->size() != rows) return false;
  }
  for (const Holder& holder : census.holder_entry()) {
    for (const uint32_t text : {holder.path(), holder.example(), holder.container(), holder.container_type(),
                                holder.owner(), holder.detail(), holder.file()}) {
      if (text >= texts) return false;
    }
    if (holder.store_file_size() != holder.store_line_size()) return false;
    for (const uint32_t text : holder.store_file()) {
      if (text >= texts) return false;
    }
  }
  return true;
}

std::optional<DecodedCensus> CensusAssembler::Add(const CensusPart& part, std::string* fault) {
  if (part.parts() == 0 || part.parts() > kMostParts || part.part() >= part.parts()) return std::nullopt;
  if (part.part() == 0) {
    if (pending_.size() >= kMostPending) pending_.clear();
    pending_[part.census()] = Pending();
  }
  const auto found = pending_.find(part.census());
  if (found == pending_.end()) return std::nullopt;
  Pending& pending = found->second;
  if (part.part() != pending.next || pending.data.size() + part.data().size() > kMostBytes)
    pending.broken = true;
  if (pending.broken) return std::nullopt;
  ++pending.next;
  pending.data += part.data();
  if (pending.next != part.parts()) return std::nullopt;
  const std::string data = std::move(pending.data);
  pending_.erase(found);
  std::string bytes;
  DecodedCensus result;
  if (!Decompress(part, data, bytes) || !result.census.ParseFromString(bytes)) {
    if (fault != nullptr) *fault = "a census could not be decoded";
    return std::nullopt;
  }
  if (!ValidCensus(result.census)) {
    if (fault != nullptr) *fault = "a census contradicts itself";
    return std::nullopt;
  }
  result.number = part.census();
  result.first_sequence = part.first_sequence();
  result.last_sequence = part.last_sequence();
  result.time_us = part.time_us();
  return result;
}

}  // namespace gpumemtrace::analyzer
