// The caching allocator of one device: blocks carved from segments, best fit per stream, split and merged.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "allocator.h"
#include "expandable.h"
#include "newest_cuda_runtime.h"
#include "settings.h"

namespace c10::cuda::allocator {

struct Pool;

struct Block {
  uint64_t address = 0;
  size_t size = 0;
  int64_t stream = 0;
  Pool* pool = nullptr;
  // Neighbors within the segment.
  Block* previous = nullptr;
  Block* next = nullptr;
  bool allocated = false;
  bool mapped = true;  // false: a hole in an expandable segment
  int pending_events = 0;
  size_t requested = 0;
  std::set<int64_t> used_on;
  ExpandableSegment* expandable = nullptr;

  bool whole_segment() const { return previous == nullptr && next == nullptr; }
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    return a->size != b->size ? a->size < b->size : a->address < b->address;
  }
};

// Small and large requests never share a segment.
struct Pool {
  bool small = false;
  bool is_private = false;
  std::set<Block*, BySize> free;
  // First block of each expandable segment, by stream.
  std::vector<Block*> expandable;
};

struct PoolPair {
  PoolPair() { small.small = true; }
  Pool small;
  Pool large;
  int64_t capture_stream = 0;
  bool capturing = false;
  bool released = false;
};

class DeviceAllocator {
 public:
  explicit DeviceAllocator(int device) : device_(device) {}

  void* Allocate(size_t size, int64_t stream);
  // False when the pointer is not ours.
  bool Free(void* pointer);
  bool RecordStream(void* pointer, int64_t stream);
  void EmptyCache();
  Statistics statistics();
  void ResetPeak();
  void BeginPrivatePool(uint64_t pool, int64_t stream);
  void EndPrivatePool(uint64_t pool);
  void ReleasePrivatePool(uint64_t pool);

 private:
  Pool& PoolFor(size_t size, int64_t stream);
  Block* TakeFree(Pool& pool, size_t size, int64_t stream);
  Block* NewSegment(Pool& pool, size_t size, int64_t stream);
  Block* Grow(Pool& pool, size_t size, int64_t stream);
  bool ShouldSplit(const Block& block, size_t size) const;
  void Split(Block* block, size_t size);
  void ReturnToPool(Block* block);
  Block* Merge(Block* left, Block* right);
  bool ReleaseOversize(size_t size);
  void ReleaseCached();
  void ReleaseFreeBlocks(Pool& pool);
  void ReleaseUnits(Pool& pool);
  void ProcessEvents(bool wait);
  void Reserve(size_t bytes);
  bool capturing() const;

  const int device_;
  // Recursive as in PyTorch: a collector that runs inside may free tensors.
  std::recursive_mutex mutex_;
  PoolPair default_;
  std::map<uint64_t, std::unique_ptr<PoolPair>> private_;
  std::unordered_map<uint64_t, Block*> live_;
  std::deque<std::pair<cudaEvent_t, Block*>> events_;
  // Freed while capturing, with uses on other streams.
  std::vector<Block*> deferred_;
  Statistics statistics_{};
};

}  // namespace c10::cuda::allocator
