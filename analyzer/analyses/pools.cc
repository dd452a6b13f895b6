#include "analyzer/analyses/pools.h"

#include <algorithm>
#include <set>

#include "absl/container/flat_hash_map.h"

namespace gpumemtrace::analyzer {

void Pools::Birth(const Change& change, OriginId origin, uint64_t stream) {
  if (change.slot == kNoSlot) return;
  if (change.slot >= slots_.size()) slots_.resize(std::max<size_t>(change.slot + 1, slots_.size() * 2));
  LiveSlot& slot = slots_[change.slot];
  slot = LiveSlot{};
  slot.address = change.address;
  slot.size = change.size;
  slot.birth_index = change.index;
  slot.birth_time_us = change.time_us;
  slot.stream = stream;
  slot.origin = origin;
  slot.segment = change.segment;
  slot.device = change.device;
  slot.level = change.level;
  slot.space = change.space;
  slot.live = true;
  if (change.level != Level::kBlock || change.segment == kNoSlot || change.segment >= slots_.size()) return;
  LiveSlot& segment = slots_[change.segment];
  if (!segment.live) return;
  Device& device = ForDevice(change.device);
  if (!segment.holds_blocks) {
    segment.holds_blocks = true;
    segment.stream = stream;  // the driver's call has none
    device.segments += segment.size;
    if (segment.space == Space::kVirtual) device.virtual_memory = true;
  }
  if (segment.blocks++ == 0) device.gaps += static_cast<int64_t>(segment.size);
  segment.block_bytes += change.size;
  device.gaps -= static_cast<int64_t>(change.size);
}

void Pools::Death(const Change& change) {
  if (change.slot == kNoSlot || change.slot >= slots_.size()) return;
  LiveSlot& slot = slots_[change.slot];
  if (!slot.live) return;
  slot.live = false;
  if (slot.level == Level::kSegment && slot.holds_blocks) {
    Device& device = ForDevice(slot.device);
    device.segments -= std::min(device.segments, slot.size);
    if (slot.blocks != 0)
      device.gaps -= static_cast<int64_t>(slot.size) - static_cast<int64_t>(slot.block_bytes);
    return;
  }
  if (slot.level != Level::kBlock || slot.segment == kNoSlot || slot.segment >= slots_.size()) return;
  LiveSlot& segment = slots_[slot.segment];
  if (!segment.live || segment.blocks == 0) return;
  Device& device = ForDevice(slot.device);
  segment.block_bytes -= std::min(segment.block_bytes, slot.size);
  device.gaps += static_cast<int64_t>(slot.size);
  if (--segment.blocks == 0) device.gaps -= static_cast<int64_t>(segment.size);
}

void Pools::Map(const Change& change) {
  mappings_[change.address] = {change.size, change.slot};
}

void Pools::Unmap(const Change& change) {
  auto it = mappings_.lower_bound(change.address);
  while (it != mappings_.end() && it->first < change.address + std::max<uint64_t>(1, change.size)) {
    it = mappings_.erase(it);
  }
}

PoolPicture Pools::Picture(int32_t device, uint64_t index, uint64_t time_us, uint32_t requested) const {
  PoolPicture picture;
  const LiveSlot* request = slot(requested);
  picture.index = index;
  picture.time_us = time_us;
  // Pieces of memory that are released as a whole, by address. A block may span several pieces of virtual
  // memory; pieces that touch form one stretch of addresses.
  struct Piece {
    uint64_t start;
    uint64_t end;
    uint32_t slot;
    uint64_t live_bytes = 0;
    uint64_t live_blocks = 0;
    uint64_t largest_gap = 0;
    uint64_t gaps = 0;
  };
  std::vector<Piece> pieces;
  std::vector<const LiveSlot*> blocks;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const LiveSlot& slot = slots_[i];
    if (!slot.live || slot.device != device) continue;
    if (slot.level == Level::kBlock) {
      blocks.push_back(&slot);
      picture.allocated += slot.size;
    } else if (slot.level == Level::kSegment && slot.holds_blocks && slot.space != Space::kVirtual) {
      pieces.push_back({slot.address, slot.address + slot.size, i});
    }
  }
  // Of virtual memory every mapping counts: large blocks begin in one piece and fill the following ones.
  if (maps_memory(device)) {
    for (const auto& [address, range] : mappings_) {
      if (range.slot < slots_.size() && slots_[range.slot].live && slots_[range.slot].device == device) {
        pieces.push_back({address, address + range.size, range.slot});
      }
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.start < b.start; });
  std::sort(blocks.begin(), blocks.end(),
            [](const LiveSlot* a, const LiveSlot* b) { return a->address < b->address; });
  absl::flat_hash_map<OriginId, PoolPicture::Pin> pins;
  std::set<uint64_t> streams;
  // Free bytes up to the current address that a single request could use.
  uint64_t stretch = 0;
  uint64_t stretch_end = 0;
  size_t next = 0;
  std::vector<const LiveSlot*> inside;
  for (Piece& piece : pieces) {
    picture.reserved += piece.end - piece.start;
    while (next < blocks.size() && blocks[next]->address + blocks[next]->size <= piece.start) ++next;
    if (piece.start != stretch_end || slots_[piece.slot].space != Space::kVirtual) stretch = 0;
    uint64_t at = piece.start;
    inside.clear();
    const auto gap = [&](uint64_t to) {
      if (to <= at) return;
      piece.gaps += 1;
      piece.largest_gap = std::max(piece.largest_gap, to - at);
      if (request != nullptr && piece.slot != request->segment) {
        PoolPicture::Refused& refused = picture.refused;
        refused.free += to - at;
        refused.pieces += 1;
        if (slots_[piece.slot].stream != request->stream) {
          refused.other_streams += to - at;
        } else if (to - at < request->size) {
          refused.too_small += to - at;
          refused.largest = std::max(refused.largest, to - at);
        } else {
          refused.other_pool += to - at;
        }
      }
      stretch += to - at;
      picture.largest_fit = std::max(picture.largest_fit, stretch);
    };
    for (size_t i = next; i < blocks.size() && blocks[i]->address < piece.end; ++i) {
      const uint64_t begin = std::max(blocks[i]->address, piece.start);
      const uint64_t end = std::min(blocks[i]->address + blocks[i]->size, piece.end);
      gap(begin);
      stretch = 0;
      at = std::max(at, end);
      piece.live_bytes += end - begin;
      piece.live_blocks += 1;
      inside.push_back(blocks[i]);
    }
    gap(piece.end);
    stretch_end = piece.end;
    const LiveSlot& segment = slots_[piece.slot];
    streams.insert(segment.stream);
    const uint64_t free = piece.end - piece.start - piece.live_bytes;
    if (piece.live_blocks == 0) {
      picture.empty_bytes += free;
      continue;
    }
    picture.gap_bytes += free;
    if (free == 0) continue;
    picture.segments.push_back({piece.start, piece.end - piece.start, piece.live_bytes, piece.live_blocks,
                                piece.largest_gap, piece.gaps, segment.stream, segment.origin});
    // Who keeps this piece from being released, in proportion to their bytes in it.
    for (const LiveSlot* block : inside) {
      PoolPicture::Pin& pin = pins[block->origin];
      pin.origin = block->origin;
      pin.blocks += 1;
      pin.bytes += block->size;
      const double share = static_cast<double>(std::min(block->size, piece.live_bytes)) /
                           static_cast<double>(std::max<uint64_t>(1, piece.live_bytes));
      pin.pinned += static_cast<uint64_t>(share * static_cast<double>(free));
    }
  }
  picture.streams = streams.size();
  std::sort(picture.segments.begin(), picture.segments.end(),
            [](const PoolPicture::Segment& a, const PoolPicture::Segment& b) {
              return a.size - a.live_bytes > b.size - b.live_bytes;
            });
  for (const auto& [origin, pin] : pins) picture.pins.push_back(pin);
  std::sort(picture.pins.begin(), picture.pins.end(),
            [](const PoolPicture::Pin& a, const PoolPicture::Pin& b) {
              return a.pinned != b.pinned ? a.pinned > b.pinned : a.origin < b.origin;
            });
  return picture;
}

}  // namespace gpumemtrace::analyzer
