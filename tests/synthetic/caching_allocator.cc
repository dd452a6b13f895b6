#include "tests/synthetic/caching_allocator.h"

#include <algorithm>
#include <vector>

namespace gpumemtrace::synthetic {
namespace {

constexpr uint64_t kSmallSize = 1 << 20;
constexpr uint64_t kSmallSegment = 2 << 20;
constexpr uint64_t kLargeSegment = 20 << 20;
constexpr uint64_t kLeastLarge = 10 << 20;

uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

void CachingAllocator::Insert(uint64_t address, const Piece& piece) {
  Pool(piece.small).insert({piece.stream, piece.size, address});
}

bool CachingAllocator::Allocate(uint64_t bytes, uint64_t stream, Block& block) {
  const uint64_t size = std::max<uint64_t>(512, RoundUp(bytes, 512));
  const bool small = size <= kSmallSize;
  std::set<Key>& pool = Pool(small);
  auto found = pool.lower_bound({stream, size, 0});
  uint64_t address = 0;
  if (found != pool.end() && found->stream == stream) {
    address = found->address;
    pool.erase(found);
  } else {
    const uint64_t segment = small                ? kSmallSegment
                             : size < kLeastLarge ? kLargeSegment
                                                  : RoundUp(size, kSmallSegment);
    if (reserved_ + segment > capacity_) EmptyCache();
    if (reserved_ + segment > capacity_) {
      block = {0, size};
      return false;
    }
    address = next_;
    next_ += RoundUp(segment, kSmallSegment) + kSmallSegment;
    reserved_ += segment;
    segments_[address] = segment;
    pieces_[address] = {segment, address, stream, true, small};
    events_.segment_made(address, segment, stream);
  }
  Piece& piece = pieces_[address];
  piece.free = false;
  const uint64_t rest = piece.size - size;
  if (small ? rest >= 512 : rest > kSmallSize) {
    Piece remainder = piece;
    remainder.size = rest;
    remainder.free = true;
    piece.size = size;
    pieces_[address + size] = remainder;
    Insert(address + size, remainder);
  }
  const uint64_t given = pieces_[address].size;
  allocated_ += given;
  block = {address, given};
  return true;
}

uint64_t CachingAllocator::Free(uint64_t address) {
  auto it = pieces_.find(address);
  const uint64_t size = it->second.size;
  allocated_ -= size;
  it->second.free = true;
  const auto next = std::next(it);
  if (next != pieces_.end() && next->second.free && next->second.segment == it->second.segment) {
    Pool(next->second.small).erase({next->second.stream, next->second.size, next->first});
    it->second.size += next->second.size;
    pieces_.erase(next);
  }
  if (it != pieces_.begin()) {
    const auto before = std::prev(it);
    if (before->second.free && before->second.segment == it->second.segment) {
      Pool(before->second.small).erase({before->second.stream, before->second.size, before->first});
      before->second.size += it->second.size;
      pieces_.erase(it);
      it = before;
    }
  }
  Insert(it->first, it->second);
  return size;
}

void CachingAllocator::EmptyCache() {
  std::vector<uint64_t> empty;
  for (const auto& [address, size] : segments_) {
    const Piece& piece = pieces_[address];
    if (piece.free && piece.size == size) empty.push_back(address);
  }
  for (uint64_t address : empty) {
    const Piece& piece = pieces_[address];
    Pool(piece.small).erase({piece.stream, piece.size, address});
    reserved_ -= piece.size;
    pieces_.erase(address);
    segments_.erase(address);
    events_.segment_freed(address);
  }
}

}  // namespace gpumemtrace::synthetic
