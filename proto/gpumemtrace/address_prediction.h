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

#include <array>
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
  static constexpr uint32_t kBinBits = 11;
  static constexpr uint32_t kWords = (1u << kBinBits) / 64;

  // Two in a cache line.
  struct Piece {
    uint64_t start;
    uint64_t end;
    // 0 = this number is not in use.
    uint32_t size;
    // Of its bin: number of the pool, then of the bin in it.
    uint16_t place;
    // Numbers of other pieces, 0 = none: neighbors in the bin, next with the same hash of start and of end.
    uint16_t next;
    uint16_t previous;
    uint16_t next_by_start;
    uint16_t next_by_end;
    // How often it fitted best and another address was taken.
    uint16_t mistakes;
  };
  // What is known of the addresses with one hash: the wall, and the pieces that begin there and that end
  // there, the latest first.
  struct Boundary {
    uint64_t wall;
    uint16_t starts;
    uint16_t ends;
  };

  Piece pieces[kPieces];
  Boundary boundaries[kWalls];
  // By place: first of the bin; a bit for each bin that is not empty, and one for each such word of bits.
  uint16_t first[kPools << kBinBits];
  uint64_t used[kPools * kWords];
  uint32_t used_words[kPools];
};
static_assert(sizeof(Tables::Piece) == 32 && sizeof(Tables::Boundary) == 16);

class Predictor {
 public:
  // Uses zeroed tables, which stay the caller's. Without memory (null) nothing may be called but ready().
  void Use(Tables* tables) {
    tables_ = tables;
    pieces_ = unused_ = 0;
    ForgetPools();
  }
  bool ready() const { return tables_ != nullptr; }

  // `index`: of the first event after it.
  void Restart(uint64_t index) {
    first_index_ = index;
    Forget();
    ForgetPools();
    patience_ = kMostPatience;
    score_of_fit_ = score_of_last_ = 0;
    std::memset(tables_->boundaries, 0, sizeof tables_->boundaries);
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
    expected_ = BestFit(pool_, static_cast<uint32_t>(units));
    return expected_ != 0 && score_of_fit_ >= score_of_last_ ? tables_->pieces[expected_].start : last;
  }

  // Where the block was, after Predict. `growth`: by how many bytes the reserved memory has changed.
  void Allocated(uint64_t start, uint64_t size, uint64_t growth) {
    if (pool_ == kPools) return;
    const uint64_t end = start + (size >> kShift);
    const uint32_t expected = expected_;
    Count(score_of_fit_, expected != 0 && tables_->pieces[expected].start == start);
    Count(score_of_last_, last_ == start);
    patience_ = patience_ < kMostPatience - kPatience ? patience_ + kPatience : kMostPatience;
    // Nor has it when it became less.
    constexpr uint64_t kNoGrowth = (uint64_t{1} << 63) | ((uint64_t{1} << kShift) - 1);
    if (growth != 0 && (growth & kNoGrowth) == 0) Grow(start, growth >> kShift);
    if (expected != 0 && tables_->pieces[expected].start == start) {
      CutFront(expected, end);
    } else {
      Mistaken(start, end);
    }
  }

  // A block that Knows() of is free again.
  void Freed(int32_t device, uint8_t lane, uint64_t start, uint64_t size) {
    const uint64_t units = size >> kShift;
    const uint32_t pool = PoolOf(device, lane, units);
    if (pool == kPools) return;
    const uint64_t end = start + units;
    Boundary& at_start = At(start);
    Boundary& at_end = At(end);
    uint64_t sum = units;
    uint32_t left = ByEnd(at_start, start, pool);
    if (left != 0) {
      sum += tables_->pieces[left].size;
      if (sum > kMostSize || IsWall(at_start, start, pool)) {
        left = 0;
        sum = units;
      }
    }
    uint32_t right = ByStart(at_end, end);
    if (right != 0) {
      sum += tables_->pieces[right].size;
      if (PoolOf(tables_->pieces[right]) != pool || sum > kMostSize || IsWall(at_end, end, pool)) {
        sum -= tables_->pieces[right].size;
        right = 0;
      }
    }
    if (left == 0 && (right == 0 || ByStart(at_start, start) != 0)) {
      if (right != 0) Remove(right);
      Insert(start, static_cast<uint32_t>(sum), pool);
      return;
    }
    // As if the neighbors were removed, the left one first, and their sum inserted: it has the number of the
    // one removed last, and is the one made last of those that end where it does.
    const uint32_t id = right != 0 ? right : left;
    Piece& piece = tables_->pieces[id];
    if (right == 0) {
      UnlinkEnd(at_start, id);
      piece.end = end;
      LinkEnd(at_end, id);
    } else {
      UnlinkStart(at_end, id);
      if (left == 0) {
        piece.start = start;
        LinkStart(at_start, id);
      } else {
        Piece& before = tables_->pieces[left];
        piece.start = before.start;
        Boundary& at_begin = At(before.start);
        UnlinkStart(at_begin, left);
        LinkStart(at_begin, id);
        UnlinkEnd(at_start, left);
        UnlinkBin(before);
        GiveBack(left);
      }
      ComesLast(id);
    }
    Resize(id, static_cast<uint32_t>(sum));
  }

 private:
  using Piece = Tables::Piece;
  using Boundary = Tables::Boundary;
  static constexpr uint32_t kBinBits = Tables::kBinBits;
  static constexpr uint32_t kWords = Tables::kWords;

  static void Count(uint32_t& score, bool right) { score += (right ? 1024 : 0) - score / 64; }

  static constexpr uint32_t kHashShift = 52;
  static_assert(kWalls == 1u << (64 - kHashShift));
  Boundary& At(uint64_t address) const {
    return tables_->boundaries[address * uint64_t{0x9e3779b97f4a7c15} >> kHashShift];
  }

  static uint32_t BinOf(uint32_t size) {
    if (size < 64) return size;
    const auto top = static_cast<uint32_t>(std::bit_width(size)) - 1;
    // The highest bit of (size >> (top − 6)) is one word of bins.
    return (top - 6) * 64 + (size >> (top - 6));
  }
  static_assert(kMostSize == UINT32_MAX && (31 - 6) * 64 + 127 < 1u << kBinBits);
  static uint32_t PoolOf(const Piece& piece) { return piece.place >> kBinBits; }

  void Forget() {
    // Mostly there are few.
    for (uint32_t i = 1; i <= pieces_; ++i) {
      Piece& piece = tables_->pieces[i];
      if (piece.size == 0) continue;
      At(piece.start).starts = At(piece.end).ends = 0;
      tables_->first[piece.place] = 0;
      tables_->used[piece.place / 64] = 0;
      tables_->used_words[PoolOf(piece)] = 0;
      piece.size = 0;
    }
    pieces_ = unused_ = expected_ = 0;
  }

  void ForgetPools() {
    pools_ = 0;
    keys_.fill(~uint64_t{0});
    grows_.fill(false);
    latest_.fill(0);
  }

  void Grow(uint64_t start, uint64_t units) {
    const uint32_t before = ByStart(At(start), start);
    uint64_t size = units;
    uint32_t pool = pool_;
    if (before != 0) {
      const Piece& piece = tables_->pieces[before];
      pool = PoolOf(piece);
      size += piece.size;
      grows_[pool] = true;
      if (At(piece.end).wall == piece.end) At(piece.end).wall = 0;
    } else {
      At(start).wall = start;
    }
    At(start + size).wall = start + size;
    if (size > kMostSize) return;
    if (before != 0) Remove(before);
    // The same number again, should it be the one that was predicted.
    Insert(start, static_cast<uint32_t>(size), pool);
  }

  // Another address was taken than that of the piece that fits best.
  void Mistaken(uint64_t start, uint64_t end) {
    if (expected_ != 0 && ++tables_->pieces[expected_].mistakes == kMostMistakes) Remove(expected_);
    if (patience_ < pieces_) {
      Forget();
      return;
    }
    patience_ -= pieces_;
    // What is left behind may take a number that is still to come: it does not reach into the block.
    for (uint32_t i = 1; i <= pieces_; ++i) {
      const Piece& piece = tables_->pieces[i];
      // Which of the two is true nobody can foresee, that both are is rare.
      const auto before = static_cast<uint32_t>(piece.start < end);
      const auto behind = static_cast<uint32_t>(piece.end > start);
      if ((before & behind) != 0 && piece.size != 0) Cut(i, start, end);
    }
  }

  // Takes what lies between them out of the piece, which reaches into it.
  void Cut(uint32_t id, uint64_t start, uint64_t end) {
    const Piece piece = tables_->pieces[id];
    const uint32_t pool = PoolOf(piece);
    Remove(id);
    if (piece.start < start) Insert(piece.start, static_cast<uint32_t>(start - piece.start), pool);
    if (piece.end > end) Insert(end, static_cast<uint32_t>(piece.end - end), pool);
  }

  // The same, from where the piece begins.
  void CutFront(uint32_t id, uint64_t end) {
    Piece& piece = tables_->pieces[id];
    if (piece.end <= end) {
      Remove(id);
      return;
    }
    Boundary& at_end = At(end);
    if (ByStart(at_end, end) != 0) {
      Cut(id, piece.start, end);
      return;
    }
    // What is left has the same number and is the one made last of those that end where it does.
    UnlinkStart(At(piece.start), id);
    piece.start = end;
    LinkStart(at_end, id);
    ComesLast(id);
    Resize(id, static_cast<uint32_t>(piece.end - end));
  }

  uint32_t PoolOf(int32_t device, uint8_t lane, uint64_t units) {
    const bool is_small = units <= kMostSmall;
    const uint64_t key = uint64_t{static_cast<uint32_t>(device)} << 9 | uint64_t{lane} << 1 | is_small;
    uint32_t& latest = latest_[is_small];
    if (keys_[latest] == key) return latest;
    for (uint32_t i = 0; i < pools_; ++i) {
      if (keys_[i] == key) return latest = i;
    }
    if (pools_ == kPools) return kPools;
    keys_[pools_] = key;
    return latest = pools_++;
  }

  uint32_t BestFit(uint32_t pool, uint32_t size) const {
    const uint32_t place = pool << kBinBits | BinOf(size);
    uint32_t steps = 0;
    for (uint32_t i = tables_->first[place]; i != 0 && steps < kMostSteps; ++steps) {
      const Piece& piece = tables_->pieces[i];
      if (piece.size >= size) return i;
      i = piece.next;
    }
    uint32_t word = place / 64;
    uint64_t used = tables_->used[word] & ~uint64_t{1} << place % 64;
    if (used == 0) {
      const uint32_t words = tables_->used_words[pool] & ~uint32_t{1} << word % kWords;
      if (words == 0) return 0;
      word = pool * kWords + static_cast<uint32_t>(std::countr_zero(words));
      used = tables_->used[word];
    }
    return tables_->first[word * 64 + static_cast<uint32_t>(std::countr_zero(used))];
  }

  uint32_t ByStart(const Boundary& boundary, uint64_t start) const {
    uint32_t i = boundary.starts;
    while (i != 0 && tables_->pieces[i].start != start) i = tables_->pieces[i].next_by_start;
    return i;
  }
  uint32_t ByEnd(const Boundary& boundary, uint64_t end, uint32_t pool) const {
    uint32_t i = boundary.ends;
    while (i != 0 && (tables_->pieces[i].end != end || PoolOf(tables_->pieces[i]) != pool)) {
      i = tables_->pieces[i].next_by_end;
    }
    return i;
  }
  bool IsWall(const Boundary& boundary, uint64_t address, uint32_t pool) const {
    return boundary.wall == address ||
           (address % kSmallSegment == 0 && (keys_[pool] & 1) != 0 && !grows_[pool]);
  }

  void Insert(uint64_t start, uint32_t size, uint32_t pool) {
    Boundary& at_start = At(start);
    if (const uint32_t same = ByStart(at_start, start); same != 0) Remove(same);
    uint32_t id = unused_;
    if (id != 0) {
      unused_ = tables_->pieces[id].next;
    } else {
      if (pieces_ == kPieces - 1) return;
      id = ++pieces_;
    }
    Piece& piece = tables_->pieces[id];
    piece.start = start;
    piece.end = start + size;
    LinkStart(at_start, id);
    LinkEnd(At(piece.end), id);
    piece.mistakes = 0;
    LinkBin(id, size, pool << kBinBits | BinOf(size));
  }

  void Remove(uint32_t id) {
    Piece& piece = tables_->pieces[id];
    UnlinkStart(At(piece.start), id);
    UnlinkEnd(At(piece.end), id);
    UnlinkBin(piece);
    GiveBack(id);
  }

  // Its size, pool and place are those from before the change of its start or end.
  void Resize(uint32_t id, uint32_t size) {
    Piece& piece = tables_->pieces[id];
    piece.mistakes = 0;
    const uint32_t place = PoolOf(piece) << kBinBits | BinOf(size);
    if (place == piece.place && (piece.previous | piece.next) == 0) {
      // Alone in its bin before and after.
      piece.size = size;
      return;
    }
    UnlinkBin(piece);
    LinkBin(id, size, place);
  }

  void GiveBack(uint32_t id) {
    Piece& piece = tables_->pieces[id];
    piece.size = 0;
    piece.next = static_cast<uint16_t>(unused_);
    unused_ = id;
  }

  void LinkStart(Boundary& boundary, uint32_t id) {
    tables_->pieces[id].next_by_start = boundary.starts;
    boundary.starts = static_cast<uint16_t>(id);
  }
  void LinkEnd(Boundary& boundary, uint32_t id) {
    tables_->pieces[id].next_by_end = boundary.ends;
    boundary.ends = static_cast<uint16_t>(id);
  }
  void UnlinkStart(Boundary& boundary, uint32_t id) {
    uint16_t* link = &boundary.starts;
    while (*link != id) link = &tables_->pieces[*link].next_by_start;
    *link = tables_->pieces[id].next_by_start;
  }
  void UnlinkEnd(Boundary& boundary, uint32_t id) {
    uint16_t* link = &boundary.ends;
    while (*link != id) link = &tables_->pieces[*link].next_by_end;
    *link = tables_->pieces[id].next_by_end;
  }
  // Of those that end where it does it is now the one made last.
  void ComesLast(uint32_t id) {
    Boundary& boundary = At(tables_->pieces[id].end);
    if (boundary.ends == id) return;
    UnlinkEnd(boundary, id);
    LinkEnd(boundary, id);
  }

  // Sets its size and place, too.
  void LinkBin(uint32_t id, uint32_t size, uint32_t place) {
    Piece& piece = tables_->pieces[id];
    piece.size = size;
    piece.place = static_cast<uint16_t>(place);
    uint32_t before = 0;
    uint32_t after = tables_->first[place];
    for (uint32_t steps = 0; after != 0 && steps < kMostSteps; ++steps) {
      const Piece& other = tables_->pieces[after];
      if (other.size != size ? other.size > size : other.start > piece.start) break;
      before = after;
      after = other.next;
    }
    piece.previous = static_cast<uint16_t>(before);
    piece.next = static_cast<uint16_t>(after);
    if (after != 0) tables_->pieces[after].previous = static_cast<uint16_t>(id);
    if (before != 0) {
      tables_->pieces[before].next = static_cast<uint16_t>(id);
      return;
    }
    tables_->first[place] = static_cast<uint16_t>(id);
    tables_->used[place / 64] |= uint64_t{1} << place % 64;
    tables_->used_words[place >> kBinBits] |= uint32_t{1} << place / 64 % kWords;
  }

  void UnlinkBin(const Piece& piece) {
    if (piece.next != 0) tables_->pieces[piece.next].previous = piece.previous;
    if (piece.previous != 0) {
      tables_->pieces[piece.previous].next = piece.next;
      return;
    }
    const uint32_t place = piece.place;
    tables_->first[place] = piece.next;
    if (piece.next != 0) return;
    uint64_t& used = tables_->used[place / 64];
    used &= ~(uint64_t{1} << place % 64);
    if (used == 0) tables_->used_words[place >> kBinBits] &= ~(uint32_t{1} << place / 64 % kWords);
  }

  Tables* tables_ = nullptr;
  uint64_t first_index_ = 0;
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
  // Device, lane and whether it is small, of each pool; all ones = there is no such pool yet.
  uint32_t pools_ = 0;
  std::array<uint64_t, kPools> keys_{};
  std::array<bool, kPools> grows_{};
  // That of the last large and of the last small block.
  std::array<uint32_t, 2> latest_{};
};

}  // namespace gpumemtrace::address_prediction
