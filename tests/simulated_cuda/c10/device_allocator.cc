#include "device_allocator.h"

#include <algorithm>
#include <utility>

namespace c10::cuda::allocator {
namespace {

#if SIMULATED_TORCH >= 113
void ReportOutOfMemory(size_t size, const Statistics& s, int device) {
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size), static_cast<Total>(s.allocated),
                                   static_cast<Total>(s.reserved),
                                   {DeviceType::CUDA, static_cast<int8_t>(device)});
}
#else
void ReportOutOfMemory(size_t, const Statistics&, int) {}
#endif

// `block` is what releases before 1.10 reported instead of the address.
void Report(uint64_t address, const void* block, int64_t size, const Statistics& s, int device) {
  const Device where{DeviceType::CUDA, static_cast<int8_t>(device)};
#if SIMULATED_TORCH >= 110
  (void)block;
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(address), size, static_cast<Total>(s.allocated),
                                   static_cast<Total>(s.reserved), where);
#else
  (void)address, (void)s;
  c10::reportMemoryUsageToProfiler(const_cast<void*>(block), size, where);
#endif
}

cudaStream_t Handle(int64_t stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}

}  // namespace

bool DeviceAllocator::capturing() const {
  return std::any_of(private_.begin(), private_.end(),
                     [](const auto& entry) { return entry.second->capturing; });
}

Pool& DeviceAllocator::PoolFor(size_t size, int64_t stream) {
  PoolPair* pair = &default_;
  for (const auto& [id, candidate] : private_) {
    if (candidate->capturing && candidate->capture_stream == stream) pair = candidate.get();
  }
  return size <= kSmallLimit ? pair->small : pair->large;
}

Block* DeviceAllocator::TakeFree(Pool& pool, size_t size, int64_t stream) {
  Block key;
  key.size = size;
  key.stream = stream;
  const auto it = pool.free.lower_bound(&key);
  if (it == pool.free.end() || (*it)->stream != stream) return nullptr;
  Block* block = *it;
  const size_t max_split = GetSettings().max_split_size;
  // Oversize blocks are kept for oversize requests, and those take a close fit only.
  if (size < max_split && block->size >= max_split) return nullptr;
  if (size >= max_split && block->size >= size + kMaxNonSplitRounding) return nullptr;
  pool.free.erase(it);
  return block;
}

void DeviceAllocator::Reserve(size_t bytes) {
  statistics_.reserved += bytes;
  statistics_.reserved_peak = std::max(statistics_.reserved_peak, statistics_.reserved);
  ++statistics_.segments;
}

Block* DeviceAllocator::NewSegment(Pool& pool, size_t size, int64_t stream) {
  if (GetSettings().expandable_segments) return Grow(pool, size, stream);
  const size_t bytes = SegmentSize(size);
  void* pointer = nullptr;
  // During a capture other calls would be refused: the thread asks for the relaxed mode.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  const bool relaxed = capturing();
  if (relaxed) cudaThreadExchangeStreamCaptureMode(&mode);
  const cudaError_t error = cudaMalloc(&pointer, bytes);
  if (relaxed) cudaThreadExchangeStreamCaptureMode(&mode);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  Reserve(bytes);
  auto* block = new Block;
  block->address = reinterpret_cast<uint64_t>(pointer);
  block->size = bytes;
  block->stream = stream;
  block->pool = &pool;
  return block;
}

// Finds the lowest run of free and unmapped neighbors that can hold `size`, maps what is missing and makes
// one block of it.
Block* DeviceAllocator::Grow(Pool& pool, size_t size, int64_t stream) {
  const size_t unit = pool.small ? kSmallSegment : kLargeSegment;
  const auto usable = [](const Block* b) {
    return !b->allocated && b->pending_events == 0 && b->used_on.empty();
  };
  Block* first = nullptr;
  for (Block* head : pool.expandable) {
    if (head->stream != stream) continue;
    for (Block* start = head; start != nullptr && first == nullptr; start = start->next) {
      size_t room = 0;
      for (Block* b = start; b != nullptr && usable(b) && room < size; b = b->next) room += b->size;
      if (room >= size) first = start;
    }
    if (first != nullptr) break;
  }
  if (first == nullptr) {
    auto* segment = new ExpandableSegment(device_, unit);
    if (segment->size() < size) {
      delete segment;
      return nullptr;
    }
    first = new Block;
    first->address = segment->address();
    first->size = segment->size();
    first->stream = stream;
    first->pool = &pool;
    first->mapped = false;
    first->expandable = segment;
    pool.expandable.push_back(first);
  }
  ExpandableSegment& segment = *first->expandable;
  Block* block = nullptr;
  for (Block* b = first; b != nullptr && (block == nullptr || block->size < size);) {
    if (!b->mapped) {
      const size_t missing = size - (block != nullptr ? block->size : 0);
      const size_t bytes = std::min((missing + unit - 1) / unit * unit, b->size);
      if (!segment.Map(b->address, bytes)) {
        if (block != nullptr) pool.free.insert(block);
        return nullptr;
      }
      Reserve(bytes);
      if (bytes < b->size) Split(b, bytes);
      b->mapped = true;
    } else {
      pool.free.erase(b);
    }
    block = block == nullptr ? b : Merge(block, b);
    b = block->next;
  }
  // A mapped free neighbor above belongs to the block too.
  if (block->next != nullptr && block->next->mapped && usable(block->next)) {
    pool.free.erase(block->next);
    block = Merge(block, block->next);
  }
  return block;
}

bool DeviceAllocator::ShouldSplit(const Block& block, size_t size) const {
  const size_t rest = block.size - size;
  if (block.pool->small || block.expandable != nullptr) return rest >= kMinBlock;
  return size < GetSettings().max_split_size && rest > kSmallLimit;
}

// Cuts `block` at `size`; the upper part becomes a block of its own, not yet in any set.
void DeviceAllocator::Split(Block* block, size_t size) {
  auto* rest = new Block;
  rest->address = block->address + size;
  rest->size = block->size - size;
  rest->stream = block->stream;
  rest->pool = block->pool;
  rest->mapped = block->mapped;
  rest->expandable = block->expandable;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr) rest->next->previous = rest;
  block->next = rest;
  block->size = size;
}

// `right` follows `left` and disappears.
Block* DeviceAllocator::Merge(Block* left, Block* right) {
  left->size += right->size;
  left->next = right->next;
  if (left->next != nullptr) left->next->previous = left;
  delete right;
  return left;
}

void DeviceAllocator::ReturnToPool(Block* block) {
  const auto mergeable = [](const Block* b) {
    return b != nullptr && b->mapped && !b->allocated && b->pending_events == 0 && b->used_on.empty();
  };
  if (mergeable(block->previous)) {
    block->pool->free.erase(block->previous);
    block = Merge(block->previous, block);
  }
  if (mergeable(block->next)) {
    block->pool->free.erase(block->next);
    block = Merge(block, block->next);
  }
  block->pool->free.insert(block);
}

void* DeviceAllocator::Allocate(size_t requested, int64_t stream) {
  const std::lock_guard lock(mutex_);
  if (!capturing()) ProcessEvents(false);
  const size_t size = RoundSize(requested);
  Pool& pool = PoolFor(size, stream);
  Block* block = TakeFree(pool, size, stream);
  if (block == nullptr) block = NewSegment(pool, size, stream);
  if (block == nullptr && ReleaseOversize(size)) block = NewSegment(pool, size, stream);
  if (block == nullptr) {
    ++statistics_.retries;
    ReleaseCached();
    block = NewSegment(pool, size, stream);
  }
  if (block == nullptr) {
    ++statistics_.out_of_memory;
    ReportOutOfMemory(size, statistics_, device_);
    throw OutOfMemoryError("CUDA out of memory. Tried to allocate " + std::to_string(requested) + " bytes");
  }
  if (ShouldSplit(*block, size)) {
    Split(block, size);
    Block* rest = block->next;
    pool.free.insert(rest);
  }
  block->allocated = true;
  block->requested = requested;
  live_[block->address] = block;
  statistics_.allocated += block->size;
  statistics_.requested += requested;
  statistics_.allocated_peak = std::max(statistics_.allocated_peak, statistics_.allocated);
  Report(block->address, block, static_cast<int64_t>(block->size), statistics_, device_);
  return reinterpret_cast<void*>(block->address);
}

bool DeviceAllocator::Free(void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(reinterpret_cast<uint64_t>(pointer));
  if (it == live_.end()) return false;
  Block* block = it->second;
  live_.erase(it);
  block->allocated = false;
  statistics_.allocated -= block->size;
  statistics_.requested -= block->requested;
  const uint64_t address = block->address;
  const auto size = static_cast<int64_t>(block->size);
  const void* const identity = block;
  if (!block->used_on.empty()) {
    if (capturing()) {
      deferred_.push_back(block);
    } else {
      for (const int64_t stream : block->used_on) {
        cudaEvent_t event = nullptr;
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        cudaEventRecord(event, Handle(stream));
        events_.emplace_back(event, block);
        ++block->pending_events;
      }
      block->used_on.clear();
    }
  } else {
    ReturnToPool(block);
  }
  Report(address, identity, -size, statistics_, device_);
  return true;
}

bool DeviceAllocator::RecordStream(void* pointer, int64_t stream) {
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(reinterpret_cast<uint64_t>(pointer));
  if (it == live_.end()) return false;
  if (stream != it->second->stream) it->second->used_on.insert(stream);
  return true;
}

void DeviceAllocator::ProcessEvents(bool wait) {
  for (Block* block : std::exchange(deferred_, {})) {
    for (const int64_t stream : std::exchange(block->used_on, {})) {
      cudaEvent_t event = nullptr;
      cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
      cudaEventRecord(event, Handle(stream));
      events_.emplace_back(event, block);
      ++block->pending_events;
    }
  }
  for (size_t left = events_.size(); left > 0; --left) {
    const auto [event, block] = events_.front();
    events_.pop_front();
    if (wait) cudaEventSynchronize(event);
    if (!wait && cudaEventQuery(event) == cudaErrorNotReady) {
      events_.emplace_back(event, block);
      continue;
    }
    cudaEventDestroy(event);
    if (--block->pending_events == 0) ReturnToPool(block);
  }
}

// With a split limit, cached oversize blocks are given back before everything else is.
bool DeviceAllocator::ReleaseOversize(size_t size) {
  const size_t max_split = GetSettings().max_split_size;
  if (max_split == ~size_t{0}) return false;
  const size_t wanted = std::max(size, max_split);
  std::vector<Block*> chosen;
  size_t sum = 0;
  std::vector<Block*> candidates;
  for (Block* block : default_.large.free) {
    if (block->whole_segment() && block->size >= max_split) candidates.push_back(block);
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Block* a, const Block* b) { return a->size < b->size; });
  const auto fit =
      std::find_if(candidates.begin(), candidates.end(), [&](const Block* b) { return b->size >= wanted; });
  if (fit != candidates.end()) {
    chosen.push_back(*fit);
  } else {
    for (auto it = candidates.rbegin(); it != candidates.rend() && sum < wanted; ++it) {
      chosen.push_back(*it);
      sum += (*it)->size;
    }
    if (sum < wanted) return false;
  }
  for (Block* block : chosen) {
    default_.large.free.erase(block);
    cudaFree(reinterpret_cast<void*>(block->address));
    statistics_.reserved -= block->size;
    --statistics_.segments;
    delete block;
  }
  return true;
}

void DeviceAllocator::ReleaseFreeBlocks(Pool& pool) {
  for (auto it = pool.free.begin(); it != pool.free.end();) {
    Block* block = *it;
    if (block->expandable != nullptr || !block->whole_segment()) {
      ++it;
      continue;
    }
    it = pool.free.erase(it);
    cudaFree(reinterpret_cast<void*>(block->address));
    statistics_.reserved -= block->size;
    --statistics_.segments;
    delete block;
  }
  ReleaseUnits(pool);
}

// Unmaps whole units inside free blocks of expandable segments.
void DeviceAllocator::ReleaseUnits(Pool& pool) {
  const std::vector<Block*> candidates(pool.free.begin(), pool.free.end());
  for (Block* block : candidates) {
    if (block->expandable == nullptr) continue;
    const size_t unit = block->expandable->unit();
    const uint64_t base = block->expandable->address();
    const uint64_t start = base + (block->address - base + unit - 1) / unit * unit;
    const uint64_t end = base + (block->address + block->size - base) / unit * unit;
    if (start >= end) continue;
    pool.free.erase(block);
    if (start > block->address) {
      Split(block, start - block->address);
      pool.free.insert(block);
      block = block->next;
    }
    if (end < block->address + block->size) {
      Split(block, end - block->address);
      pool.free.insert(block->next);
    }
    block->expandable->Unmap(block->address, block->size);
    statistics_.reserved -= block->size;
    block->mapped = false;
    if (block->previous != nullptr && !block->previous->mapped) block = Merge(block->previous, block);
    if (block->next != nullptr && !block->next->mapped) Merge(block, block->next);
  }
  for (auto it = pool.expandable.begin(); it != pool.expandable.end();) {
    Block* head = *it;
    if (head->whole_segment() && !head->mapped) {
      delete head->expandable;
      delete head;
      it = pool.expandable.erase(it);
    } else {
      ++it;
    }
  }
}

void DeviceAllocator::ReleaseCached() {
  if (!capturing()) ProcessEvents(true);
  ReleaseFreeBlocks(default_.small);
  ReleaseFreeBlocks(default_.large);
  for (auto& [id, pair] : private_) {
    if (!pair->released || pair->capturing) continue;
    ReleaseFreeBlocks(pair->small);
    ReleaseFreeBlocks(pair->large);
  }
}

void DeviceAllocator::EmptyCache() {
  const std::lock_guard lock(mutex_);
  ReleaseCached();
}

Statistics DeviceAllocator::statistics() {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

void DeviceAllocator::ResetPeak() {
  const std::lock_guard lock(mutex_);
  statistics_.allocated_peak = statistics_.allocated;
  statistics_.reserved_peak = statistics_.reserved;
}

void DeviceAllocator::BeginPrivatePool(uint64_t pool, int64_t stream) {
  const std::lock_guard lock(mutex_);
  auto& pair = private_[pool];
  if (pair == nullptr) {
    pair = std::make_unique<PoolPair>();
    pair->small.is_private = pair->large.is_private = true;
  }
  pair->capturing = true;
  pair->capture_stream = stream;
}

void DeviceAllocator::EndPrivatePool(uint64_t pool) {
  const std::lock_guard lock(mutex_);
  private_.at(pool)->capturing = false;
}

void DeviceAllocator::ReleasePrivatePool(uint64_t pool) {
  const std::lock_guard lock(mutex_);
  private_.at(pool)->released = true;
}

}  // namespace c10::cuda::allocator
