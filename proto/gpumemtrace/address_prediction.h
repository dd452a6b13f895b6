// What the ADDRESS column of `Events` (trace.proto) leaves out when `Events.addresses_predicted` is set:
// where a caching allocator puts a block follows from what is free, and what is free follows from the events.
// Shared by the writer and the readers, so that they cannot disagree. No includes of ours.
//
// Addresses and sizes are in units of 512 bytes here. What is known to be free is a list of pieces (start,
// size), each in a pool; a pool is a pair of device and lane, once for blocks of at most 1 MiB (small) and
// once for larger ones. Only events that Follows() names count; of the frees only those of blocks that were
// born since the restart, so that a reader which lost what came before it knows all that the writer went by.
//
// Where a block of some size fits best: the smallest piece of its pool that is large enough, of equal ones
// the first in its bin. The prediction is the start of that piece, should there be one; but it is the last
// address at the same site when that was right more often of late: there are allocators of another kind. For
// both ways a score is kept, 0 at a restart; with each allocation (whether or not there is such a piece) it
// loses a 64th, rounded down, and gains 1024 when that address was the right one. Equal scores are for the
// best fit.
//
// Allocation of [start, end), step 1. If the reserved memory, as the allocator reports it, was not 0 before
// and has grown by a whole number of units: a piece that begins at `start` has become longer by so much (an
// expandable segment): the wall at its old end is torn down, one is put at its new end. Without such a piece
// it is a new segment: walls at `start` and at the segment's end, and a piece of the block's pool fills it.
// Walls stand also when the piece would be too long (kMostSize) to be made.
//
// Step 2. What lies in [start, end) is taken out of the pieces that begin before `end` and end behind
// `start`; what is left of one before and behind stays, as pieces of its pool, made in this order. When the
// block begins where the piece does that fits best, only that one is cut. Else all pieces are, in the order
// of their numbers; and before that the piece that fits best is forgotten when this is the kMostMistakes-th
// time that it did and another address was taken: it is not free, or not for this pool. Looking through all
// takes from the patience as much as the greatest number that was ever in use since all were forgotten.
// Patience is kMostPatience at a restart, and each allocation adds kPatience, up to that. Where it does not
// suffice, all pieces are forgotten instead.
//
// Free: the block becomes a piece of its event's pool, together with the piece that ends where it begins (of
// several, the one made last) and then with the one that begins where it ends, each only if it is of the same
// pool, no wall stands between, and the sum is not greater than kMostSize.
//
// A wall is an address across which pieces do not join, the end of a segment. There are kWalls places for
// them, by the hash of the address; a new one takes the place of the one that was there. In small pools every
// multiple of 2 MiB is a wall, too, while no piece of that pool has become longer by step 1.
//
// A bin holds the pieces of one pool whose sizes agree in the position of the highest bit and in the six bits
// below it, by size and, of equal size, by start. Whoever looks for a place in it passes at most kMostSteps
// pieces: a search then finds nothing in this bin (and goes on with the first piece of the next bin that is
// not empty), a new piece is put there.
//
// Pieces have numbers from 1 on: a new one takes that which became free last, or the next that was never
// used; with kPieces − 1 in use there is no new one. One that begins where another does takes its place.
// The pools are the first kPools that were asked for since the restart; for others nothing is predicted or
// learned. A restart forgets pieces, pools and walls.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpumemtrace::address_prediction {

inline constexpr unsigned kShift = 9;
inline constexpr uint64_t kMostSize = UINT32_MAX;
inline constexpr uint64_t kMostSmall = uint64_t{1} << (20 - kShift);

inline constexpr uint32_t kPieces = 1u << 12;
inline constexpr uint32_t kPools = 16;
inline constexpr uint32_t kBins = 27 * 64;
inline constexpr uint32_t kWalls = 1u << 12;
inline constexpr uint32_t kMostSteps = 64;
inline constexpr uint16_t kMostMistakes = 16;
inline constexpr uint32_t kPatience = 8;
inline constexpr uint32_t kMostPatience = 1u << 20;
// 2 MiB.
inline constexpr uint64_t kSmallSegment = uint64_t{1} << (21 - kShift);

// Streams are told apart by this number: that two share one is rare, and costs only wrong predictions.
constexpr uint8_t LaneOf(uint64_t stream) {
  return static_cast<uint8_t>(stream * uint64_t{0x9e3779b97f4a7c15} >> 56);
}

// Whether a BLOCK_ALLOCATE or BLOCK_FREE counts: its site's address shift, its address (for an allocation 0)
// and the block's size in bytes.
constexpr bool Follows(unsigned shift, uint64_t address, uint64_t size) {
  constexpr uint64_t kMask = (uint64_t{1} << kShift) - 1;
  return shift == kShift && ((address | size) & kMask) == 0 && size != 0 && size >> kShift <= kMostSize;
}

struct Tables {
  struct Piece {
    uint64_t start;
    // 0 = this number is not in use.
    uint32_t size;
    uint16_t pool;
    // Numbers of other pieces, 0 = none: neighbors in the bin, next with the same hash of start and of end.
    uint16_t next;
    uint16_t previous;
    uint16_t next_by_start;
    uint16_t next_by_end;
    // How often it fitted best and another address was taken.
    uint16_t mistakes;
  };
  struct Pool {
    int32_t device;
    uint8_t lane;
    bool is_small;
    bool grows;
    uint64_t used[kBins / 64];
    uint16_t first[kBins];
  };

  Piece pieces[kPieces];
  uint16_t by_start[kPieces];
  uint16_t by_end[kPieces];
  uint64_t walls[kWalls];
  Pool pools[kPools];
};

class Predictor {
 public:
  // Uses zeroed tables, which stay the caller's. Without memory (null) nothing may be called but ready().
  void Use(Tables* tables) {
    tables_ = tables;
    pools_ = unused_ = 0;
  }
  bool ready() const { return tables_ != nullptr; }

  // `index`: of the first event after it.
  void Restart(uint64_t index) {
    first_index_ = index;
    Forget();
    pools_ = 0;
    patience_ = kMostPatience;
    score_of_fit_ = score_of_last_ = 0;
    std::memset(tables_->walls, 0, sizeof tables_->walls);
  }

  // Whether a free of the block that was born with this event counts.
  bool Knows(uint64_t birth_index) const { return birth_index >= first_index_; }

  // Where a block of `size` bytes will probably be, in units of 512 bytes. `last`: where the last one at its
  // site was.
  uint64_t Predict(int32_t device, uint8_t lane, uint64_t size, uint64_t last) {
    expected_ = 0;
    last_ = last;
    const uint64_t units = size >> kShift;
    pool_ = PoolOf(device, lane, units);
    if (pool_ == kPools) return last;
    expected_ = BestFit(tables_->pools[pool_], static_cast<uint32_t>(units));
    return expected_ != 0 && score_of_fit_ >= score_of_last_ ? tables_->pieces[expected_].start : last;
  }

  // Where the block was, after Predict. `growth`: by how many bytes the reserved memory has changed.
  void Allocated(uint64_t start, uint64_t size, uint64_t growth) {
    if (pool_ == kPools) return;
    const uint64_t end = start + (size >> kShift);
    Count(score_of_fit_, expected_ != 0 && tables_->pieces[expected_].start == start);
    Count(score_of_last_, last_ == start);
    patience_ = patience_ < kMostPatience - kPatience ? patience_ + kPatience : kMostPatience;
    // Nor has it when it became less.
    constexpr uint64_t kNoGrowth = (uint64_t{1} << 63) | ((uint64_t{1} << kShift) - 1);
    if (growth != 0 && (growth & kNoGrowth) == 0) Grow(start, growth >> kShift);
    if (expected_ != 0 && tables_->pieces[expected_].start == start) {
      Cut(expected_, start, end);
      return;
    }
    if (expected_ != 0 && tables_->pieces[expected_].size != 0 &&
        ++tables_->pieces[expected_].mistakes == kMostMistakes) {
      Remove(expected_);
    }
    if (patience_ < pieces_) {
      Forget();
      return;
    }
    patience_ -= pieces_;
    // What is left behind may take a number that is still to come: it does not reach into the block.
    for (uint32_t i = 1; i <= pieces_; ++i) {
      const Piece& piece = tables_->pieces[i];
      if (piece.size != 0 && piece.start < end && piece.start + piece.size > start) Cut(i, start, end);
    }
  }

  // A block that Knows() of is free again.
  void Freed(int32_t device, uint8_t lane, uint64_t start, uint64_t size) {
    const uint64_t units = size >> kShift;
    const uint32_t pool = PoolOf(device, lane, units);
    if (pool == kPools) return;
    uint64_t begin = start;
    uint64_t end = start + units;
    if (!IsWall(start, pool)) {
      const uint32_t left = ByEnd(start, pool);
      if (left != 0 && tables_->pieces[left].size + (end - begin) <= kMostSize) {
        begin = tables_->pieces[left].start;
        Remove(left);
      }
    }
    if (!IsWall(end, pool)) {
      const uint32_t right = ByStart(end);
      if (right != 0 && tables_->pieces[right].pool == pool &&
          tables_->pieces[right].size + (end - begin) <= kMostSize) {
        end += tables_->pieces[right].size;
        Remove(right);
      }
    }
    Insert(begin, static_cast<uint32_t>(end - begin), pool);
  }

 private:
  using Piece = Tables::Piece;
  using Pool = Tables::Pool;

  static void Count(uint32_t& score, bool right) { score += (right ? 1024 : 0) - score / 64; }

  static uint32_t Hash(uint64_t address) {
    return static_cast<uint32_t>(address * uint64_t{0x9e3779b97f4a7c15} >> 52);
  }
  static_assert(kPieces == 1u << (64 - 52));

  static uint32_t BinOf(uint32_t size) {
    if (size < 64) return size;
    const auto top = static_cast<uint32_t>(std::bit_width(size)) - 1;
    return (top - 5) * 64 + (size >> (top - 6) & 63);
  }

  void Forget() {
    std::memset(tables_->by_start, 0, sizeof tables_->by_start);
    std::memset(tables_->by_end, 0, sizeof tables_->by_end);
    for (uint32_t i = 0; i < pools_; ++i) {
      std::memset(tables_->pools[i].used, 0, sizeof tables_->pools[i].used);
      std::memset(tables_->pools[i].first, 0, sizeof tables_->pools[i].first);
    }
    pieces_ = unused_ = expected_ = 0;
  }

  void Grow(uint64_t start, uint64_t units) {
    const uint32_t before = ByStart(start);
    uint64_t size = units;
    uint32_t pool = pool_;
    if (before != 0) {
      pool = tables_->pieces[before].pool;
      size += tables_->pieces[before].size;
      tables_->pools[pool].grows = true;
      SetWall(start + tables_->pieces[before].size, false);
    } else {
      SetWall(start, true);
    }
    SetWall(start + size, true);
    if (size > kMostSize) return;
    if (before != 0) Remove(before);
    // The same number again, should it be the one that was predicted.
    Insert(start, static_cast<uint32_t>(size), pool);
  }

  // Takes what lies between them out of the piece, which reaches into it.
  void Cut(uint32_t id, uint64_t start, uint64_t end) {
    const Piece piece = tables_->pieces[id];
    Remove(id);
    const uint64_t piece_end = piece.start + piece.size;
    if (piece.start < start) Insert(piece.start, static_cast<uint32_t>(start - piece.start), piece.pool);
    if (piece_end > end) Insert(end, static_cast<uint32_t>(piece_end - end), piece.pool);
  }

  uint32_t PoolOf(int32_t device, uint8_t lane, uint64_t units) {
    const bool is_small = units <= kMostSmall;
    for (uint32_t i = 0; i < pools_; ++i) {
      const Pool& pool = tables_->pools[i];
      if (pool.lane == lane && pool.device == device && pool.is_small == is_small) return i;
    }
    if (pools_ == kPools) return kPools;
    Pool& pool = tables_->pools[pools_];
    std::memset(&pool, 0, sizeof pool);
    pool.lane = lane;
    pool.device = device;
    pool.is_small = is_small;
    return pools_++;
  }

  uint32_t BestFit(const Pool& pool, uint32_t size) const {
    uint32_t bin = BinOf(size);
    uint32_t steps = 0;
    for (uint32_t i = pool.first[bin]; i != 0 && steps < kMostSteps; i = tables_->pieces[i].next, ++steps) {
      if (tables_->pieces[i].size >= size) return i;
    }
    if (++bin == kBins) return 0;
    uint32_t word = bin / 64;
    uint64_t used = pool.used[word] & (~uint64_t{0} << (bin & 63));
    while (used == 0) {
      if (++word == kBins / 64) return 0;
      used = pool.used[word];
    }
    return pool.first[word * 64 + static_cast<uint32_t>(std::countr_zero(used))];
  }

  uint32_t ByStart(uint64_t start) const {
    uint32_t i = tables_->by_start[Hash(start)];
    while (i != 0 && tables_->pieces[i].start != start) i = tables_->pieces[i].next_by_start;
    return i;
  }
  uint32_t ByEnd(uint64_t end, uint32_t pool) const {
    uint32_t i = tables_->by_end[Hash(end)];
    while (i != 0 &&
           (tables_->pieces[i].start + tables_->pieces[i].size != end || tables_->pieces[i].pool != pool)) {
      i = tables_->pieces[i].next_by_end;
    }
    return i;
  }

  void Insert(uint64_t start, uint32_t size, uint32_t number_of_pool) {
    if (const uint32_t same = ByStart(start); same != 0) Remove(same);
    uint32_t id = unused_;
    if (id != 0) {
      unused_ = tables_->pieces[id].next;
    } else {
      if (pieces_ == kPieces - 1) return;
      id = ++pieces_;
    }
    Piece& piece = tables_->pieces[id];
    piece.start = start;
    piece.size = size;
    piece.pool = static_cast<uint16_t>(number_of_pool);
    piece.mistakes = 0;
    uint16_t& start_head = tables_->by_start[Hash(start)];
    piece.next_by_start = start_head;
    uint16_t& end_head = tables_->by_end[Hash(start + size)];
    piece.next_by_end = end_head;
    start_head = end_head = static_cast<uint16_t>(id);

    Pool& pool = tables_->pools[number_of_pool];
    const uint32_t bin = BinOf(size);
    uint32_t before = 0;
    uint32_t after = pool.first[bin];
    for (uint32_t steps = 0; after != 0 && steps < kMostSteps; ++steps) {
      const Piece& other = tables_->pieces[after];
      if (other.size != size ? other.size > size : other.start > start) break;
      before = after;
      after = other.next;
    }
    piece.previous = static_cast<uint16_t>(before);
    piece.next = static_cast<uint16_t>(after);
    if (after != 0) tables_->pieces[after].previous = static_cast<uint16_t>(id);
    if (before != 0) {
      tables_->pieces[before].next = static_cast<uint16_t>(id);
    } else {
      pool.first[bin] = static_cast<uint16_t>(id);
      pool.used[bin / 64] |= uint64_t{1} << (bin & 63);
    }
  }

  void Remove(uint32_t id) {
    Piece& piece = tables_->pieces[id];
    uint16_t* link = &tables_->by_start[Hash(piece.start)];
    while (*link != id) link = &tables_->pieces[*link].next_by_start;
    *link = piece.next_by_start;
    link = &tables_->by_end[Hash(piece.start + piece.size)];
    while (*link != id) link = &tables_->pieces[*link].next_by_end;
    *link = piece.next_by_end;
    if (piece.next != 0) tables_->pieces[piece.next].previous = piece.previous;
    if (piece.previous != 0) {
      tables_->pieces[piece.previous].next = piece.next;
    } else {
      Pool& pool = tables_->pools[piece.pool];
      const uint32_t bin = BinOf(piece.size);
      pool.first[bin] = piece.next;
      if (piece.next == 0) pool.used[bin / 64] &= ~(uint64_t{1} << (bin & 63));
    }
    piece.size = 0;
    piece.next = static_cast<uint16_t>(unused_);
    unused_ = id;
  }

  uint64_t& Wall(uint64_t address) const { return tables_->walls[Hash(address) % kWalls]; }
  bool IsWall(uint64_t address, uint32_t pool) const {
    return Wall(address) == address ||
           (address % kSmallSegment == 0 && tables_->pools[pool].is_small && !tables_->pools[pool].grows);
  }
  void SetWall(uint64_t address, bool stands) {
    if (stands) {
      Wall(address) = address;
    } else if (Wall(address) == address) {
      Wall(address) = 0;
    }
  }

  Tables* tables_ = nullptr;
  uint64_t first_index_ = 0;
  uint32_t pools_ = 0;
  // Pieces that were ever used; the first of those that are free again.
  uint32_t pieces_ = 0;
  uint32_t unused_ = 0;
  // Of the last Predict.
  uint32_t pool_ = kPools;
  uint32_t expected_ = 0;
  uint64_t last_ = 0;
  uint32_t score_of_fit_ = 0;
  uint32_t score_of_last_ = 0;
  uint32_t patience_ = kMostPatience;
};

}  // namespace gpumemtrace::address_prediction
