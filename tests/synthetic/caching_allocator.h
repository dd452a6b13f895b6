// A caching allocator by PyTorch's published rules (512-byte rounding, 2 MiB and 20 MiB segments, best fit
// per stream, split and merge), for synthetic traces: gives addresses, segments and the totals that the real
// one reports.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>

namespace gpumemtrace::synthetic {

class CachingAllocator {
 public:
  struct Events {
    std::function<void(uint64_t address, uint64_t size, uint64_t stream)> segment_made;
    std::function<void(uint64_t address)> segment_freed;
  };
  // `capacity`: bytes of the device that segments may take.
  CachingAllocator(Events events, uint64_t base, uint64_t capacity)
      : events_(std::move(events)), next_(base), capacity_(capacity) {}

  struct Block {
    uint64_t address = 0;
    uint64_t size = 0;  // rounded, with an unsplit remainder
  };
  // False when no memory is left; `block.size` is then what was asked for, rounded.
  bool Allocate(uint64_t bytes, uint64_t stream, Block& block);
  // Size of the freed block.
  uint64_t Free(uint64_t address);
  void EmptyCache();

  uint64_t allocated() const { return allocated_; }
  uint64_t reserved() const { return reserved_; }

 private:
  struct Piece {
    uint64_t size = 0;
    uint64_t segment = 0;
    uint64_t stream = 0;
    bool free = false;
    bool small = false;
  };
  struct Key {
    uint64_t stream;
    uint64_t size;
    uint64_t address;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  std::set<Key>& Pool(bool small) { return small ? small_ : large_; }
  void Insert(uint64_t address, const Piece& piece);

  Events events_;
  std::map<uint64_t, Piece> pieces_;
  std::map<uint64_t, uint64_t> segments_;
  std::set<Key> small_;
  std::set<Key> large_;
  uint64_t next_;
  uint64_t capacity_;
  uint64_t allocated_ = 0;
  uint64_t reserved_ = 0;
};

}  // namespace gpumemtrace::synthetic
