// The prediction of addresses (address_prediction.h): against a second, plain implementation of what its head
// says, and that it foresees what a best-fit allocator does; and when the writer leaves it out.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "proto/gpumemtrace/address_prediction.h"
#include "recorder/writer/address_trial.h"

namespace gpumemtrace {
namespace {

namespace prediction = address_prediction;

constexpr uint64_t kUnit = 512;

// Lists and linear searches only.
class PlainPrediction {
 public:
  uint64_t Predict(int device, uint64_t units, uint64_t last) {
    last_ = last;
    const uint64_t fit = Fit(device, units);
    return fit != 0 && fit_ >= other_ ? fit : last;
  }

  uint64_t Fit(int device, uint64_t units) {
    pool_ = PoolOf(device, units);
    expected_ = 0;
    if (pool_ == prediction::kPools) return 0;
    for (auto bin = bins_.lower_bound({pool_, Bin(units)}); bin != bins_.end() && bin->first.first == pool_;
         ++bin) {
      const bool first_bin = bin->first.second == Bin(units);
      uint32_t steps = 0;
      for (const uint32_t id : bin->second) {
        if (first_bin && steps++ == prediction::kMostSteps) break;
        if (pieces_[id].size < units) continue;
        expected_ = id;
        return pieces_[id].start;
      }
    }
    return 0;
  }

  void Allocated(uint64_t start, uint64_t units, uint64_t growth) {
    if (pool_ == prediction::kPools) return;
    const bool fits = expected_ != 0 && pieces_[expected_].start == start;
    fit_ = fit_ - fit_ / 64 + (fits ? 1024 : 0);
    other_ = other_ - other_ / 64 + (start == last_ ? 1024 : 0);
    patience_ = std::min<uint64_t>(patience_ + prediction::kPatience, prediction::kMostPatience);
    if (growth != 0) {
      const uint32_t before = At(start);
      Piece piece{start, growth, pool_, 0};
      if (before != 0) {
        piece = {start, pieces_[before].size + growth, pieces_[before].pool, 0};
        Tear(start + pieces_[before].size);
        grows_.insert(piece.pool);
        if (piece.size <= prediction::kMostSize) Remove(before);
      } else {
        PutWall(start);
      }
      PutWall(start + piece.size);
      const uint32_t made = piece.size > prediction::kMostSize ? 0 : Make(piece);
      if (before != 0 && before == expected_ && made != 0) expected_ = made;
    }
    const auto cut = [&](uint32_t id) {
      const Piece old = pieces_[id];
      Remove(id);
      if (old.start < start) Make({old.start, start - old.start, old.pool, 0});
      if (old.start + old.size > start + units) {
        Make({start + units, old.start + old.size - start - units, old.pool, 0});
      }
    };
    if (expected_ != 0 && pieces_[expected_].start == start) return cut(expected_);
    if (expected_ != 0 && pieces_[expected_].size != 0 &&
        ++pieces_[expected_].mistakes == prediction::kMostMistakes) {
      Remove(expected_);
    }
    if (patience_ < greatest_) return ForgetAll();
    patience_ -= greatest_;
    for (uint32_t id = 1; id <= greatest_; ++id) {
      const Piece& piece = pieces_[id];
      if (piece.size != 0 && piece.start < start + units && piece.start + piece.size > start) cut(id);
    }
  }

  void Freed(int device, uint64_t start, uint64_t units) {
    const uint32_t pool = PoolOf(device, units);
    if (pool == prediction::kPools) return;
    Piece piece{start, units, pool, 0};
    if (!Wall(start, pool)) {
      uint32_t left = 0;
      for (uint32_t id = 1; id <= greatest_; ++id) {
        const Piece& other = pieces_[id];
        if (other.size != 0 && other.pool == pool && other.start + other.size == start &&
            (left == 0 || other.made > pieces_[left].made)) {
          left = id;
        }
      }
      if (left != 0 && pieces_[left].size + units <= prediction::kMostSize) {
        piece.start = pieces_[left].start;
        piece.size += pieces_[left].size;
        Remove(left);
      }
    }
    if (!Wall(start + units, pool)) {
      const uint32_t right = At(start + units);
      if (right != 0 && pieces_[right].pool == pool &&
          pieces_[right].size + piece.size <= prediction::kMostSize) {
        piece.size += pieces_[right].size;
        Remove(right);
      }
    }
    Make(piece);
  }

 private:
  struct Piece {
    uint64_t start = 0;
    uint64_t size = 0;
    uint32_t pool = 0;
    uint32_t mistakes = 0;
    uint64_t made = 0;
  };

  static uint32_t Bin(uint64_t size) {
    const auto top = static_cast<uint32_t>(std::bit_width(size));
    return top <= 7 ? static_cast<uint32_t>(size) : top << 8 | static_cast<uint32_t>(size >> (top - 7) & 63);
  }
  static size_t WallPlace(uint64_t address) { return address * uint64_t{0x9e3779b97f4a7c15} >> 52; }
  uint32_t PoolOf(int device, uint64_t units) {
    const std::pair key{device, units <= 2048};
    for (uint32_t i = 0; i < pools_.size(); ++i) {
      if (pools_[i] == key) return i;
    }
    if (pools_.size() == prediction::kPools) return prediction::kPools;
    pools_.push_back(key);
    return static_cast<uint32_t>(pools_.size() - 1);
  }
  uint32_t At(uint64_t start) const {
    for (uint32_t id = 1; id <= greatest_; ++id) {
      if (pieces_[id].size != 0 && pieces_[id].start == start) return id;
    }
    return 0;
  }
  uint32_t Make(Piece piece) {
    if (const uint32_t same = At(piece.start); same != 0) Remove(same);
    uint32_t id;
    if (!free_.empty()) {
      id = free_.back();
      free_.pop_back();
    } else if (greatest_ == prediction::kPieces - 1) {
      return 0;
    } else {
      id = ++greatest_;
    }
    piece.made = ++made_;
    pieces_[id] = piece;
    std::vector<uint32_t>& bin = bins_[{piece.pool, Bin(piece.size)}];
    size_t place = 0;
    while (place < bin.size() && place < prediction::kMostSteps &&
           std::tuple(pieces_[bin[place]].size, pieces_[bin[place]].start) <=
               std::tuple(piece.size, piece.start)) {
      ++place;
    }
    bin.insert(bin.begin() + static_cast<std::ptrdiff_t>(place), id);
    return id;
  }
  void Remove(uint32_t id) {
    std::vector<uint32_t>& bin = bins_[{pieces_[id].pool, Bin(pieces_[id].size)}];
    bin.erase(std::find(bin.begin(), bin.end(), id));
    pieces_[id].size = 0;
    free_.push_back(id);
  }
  void ForgetAll() {
    bins_.clear();
    free_.clear();
    greatest_ = 0;
  }
  void PutWall(uint64_t address) { walls_[WallPlace(address)] = address; }
  void Tear(uint64_t address) {
    if (walls_[WallPlace(address)] == address) walls_[WallPlace(address)] = 0;
  }
  bool Wall(uint64_t address, uint32_t pool) const {
    return walls_[WallPlace(address)] == address ||
           (address % 4096 == 0 && pools_[pool].second && grows_.count(pool) == 0);
  }

  std::vector<Piece> pieces_ = std::vector<Piece>(prediction::kPieces);
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> bins_;
  std::vector<uint32_t> free_;
  uint32_t greatest_ = 0;
  uint64_t made_ = 0;
  std::vector<uint64_t> walls_ = std::vector<uint64_t>(prediction::kWalls);
  std::vector<std::pair<int, bool>> pools_;
  std::set<uint32_t> grows_;
  uint64_t patience_ = prediction::kMostPatience;
  uint32_t pool_ = 0;
  uint32_t expected_ = 0;
  uint64_t last_ = 0;
  uint64_t fit_ = 0;
  uint64_t other_ = 0;
};

struct Predictor {
  Predictor() {
    value.Use(tables.get());
    value.Restart(0);
  }
  std::unique_ptr<prediction::Tables> tables = std::make_unique<prediction::Tables>();
  prediction::Predictor value;
};

// `places`: how many addresses there are; few make blocks overlap, which no allocator does. `free`: pieces at
// the beginning. `bits`: of the sizes. Of `wrong` addresses one is what neither way foresees.
void Compare(uint64_t seed, uint64_t places, int events, int free = 0, uint64_t bits = 14,
             uint64_t wrong = 8) {
  Predictor predictor;
  PlainPrediction plain;
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  std::vector<std::pair<uint64_t, uint64_t>> live;
  uint64_t last = 4096;
  for (int i = 0; i < free; ++i) {
    const uint64_t start = 4096 + below(places);
    const uint64_t units = 1 + below(3000);
    predictor.value.Freed(0, 0, start, units * kUnit);
    plain.Freed(0, start, units);
  }
  for (int i = 0; i < events; ++i) {
    const int device = below(20) == 0 ? static_cast<int>(below(12)) : 0;
    if (live.size() > 300 || (!live.empty() && below(2) == 0)) {
      const size_t which = below(live.size());
      const auto [start, units] = live[which];
      live[which] = live.back();
      live.pop_back();
      predictor.value.Freed(device, 0, start, units * kUnit);
      plain.Freed(device, start, units);
      continue;
    }
    const uint64_t units = 1 + below(uint64_t{1} << below(bits));
    const uint64_t predicted = predictor.value.Predict(device, 0, units * kUnit, last);
    ASSERT_EQ(predicted, plain.Predict(device, units, last)) << "event " << i;
    // Now one way is right more often, now the other.
    const uint64_t fit = plain.Fit(device, units);
    const bool as_before = (i / 500 % 2 == 0) == (below(4) == 0);
    const uint64_t start = below(wrong) == 0 ? 4096 + below(places) : as_before || fit == 0 ? last : fit;
    last = start;
    const uint64_t growth =
        below(2 * wrong) == 0 ? 1 + below(uint64_t{1} << std::max<uint64_t>(bits, 13)) : 0;
    predictor.value.Allocated(start, units * kUnit, growth * kUnit);
    plain.Allocated(start, units, growth);
    live.push_back({start, units});
  }
}

TEST(AddressPrediction, IsAsDescribed) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Compare(seed, 2000, 4000);
    Compare(seed, uint64_t{1} << 40, 4000);
  }
}

TEST(AddressPrediction, IsAsDescribedWhereNearlyAllIsForeseen) {
  for (uint64_t seed = 11; seed <= 14; ++seed) Compare(seed, uint64_t{1} << 40, 8000, 0, 12, 400);
}

TEST(AddressPrediction, IsAsDescribedForPiecesOfTheGreatestSizes) {
  for (uint64_t seed = 21; seed <= 24; ++seed) Compare(seed, uint64_t{1} << 34, 4000, 0, 32, 100);
}

TEST(AddressPrediction, StaysAsDescribedWhenItIsFullAndLosesPatience) {
  Compare(5, uint64_t{1} << 44, 3000, 5000);
}

// Best fit in segments, split and merged, without any of the code above.
class BestFit {
 public:
  // Its start, and by how much the reserved memory grew.
  std::pair<uint64_t, uint64_t> Allocate(uint64_t units) {
    uint64_t grown = 0;
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second >= units && (best == free_.end() || it->second < best->second)) best = it;
    }
    if (best == free_.end()) {
      grown = std::max<uint64_t>(units, 4096);
      segments_.insert(next_);
      best = free_.emplace(next_, grown).first;
      next_ += grown;
    }
    const auto [start, size] = *best;
    free_.erase(best);
    if (size > units) free_[start + units] = size - units;
    return {start, grown};
  }
  void Free(uint64_t start, uint64_t units) {
    auto it = free_.emplace(start, units).first;
    if (const auto right = std::next(it);
        right != free_.end() && right->first == start + units && segments_.count(right->first) == 0) {
      it->second += right->second;
      free_.erase(right);
    }
    if (it == free_.begin() || segments_.count(start) != 0) return;
    if (const auto left = std::prev(it); left->first + left->second == start) {
      left->second += it->second;
      free_.erase(it);
    }
  }

 private:
  std::map<uint64_t, uint64_t> free_;
  std::set<uint64_t> segments_;
  uint64_t next_ = 1 << 20;
};

// `restart`: before this event the predictor loses all that it knew.
double Hits(int restart) {
  constexpr int kEvents = 40000;
  Predictor predictor;
  BestFit allocator;
  std::mt19937_64 random(7);
  struct Block {
    uint64_t start, units;
    int index;
  };
  std::vector<Block> live;
  uint64_t reserved = 0;
  int asked = 0;
  int right = 0;
  for (int i = 0; i < kEvents; ++i) {
    if (i == restart) {
      predictor.value.Restart(static_cast<uint64_t>(i));
      asked = right = 0;
    }
    if (live.size() > 200 || (live.size() > 20 && random() % 2 == 0)) {
      const size_t which = random() % live.size();
      const Block block = live[which];
      live[which] = live.back();
      live.pop_back();
      allocator.Free(block.start, block.units);
      if (predictor.value.Knows(static_cast<uint64_t>(block.index))) {
        predictor.value.Freed(0, 0, block.start, block.units * kUnit);
      }
      continue;
    }
    const uint64_t units = 1 + random() % 500;
    const uint64_t predicted = predictor.value.Predict(0, 0, units * kUnit, 0);
    const auto [start, grown] = allocator.Allocate(units);
    predictor.value.Allocated(start, units * kUnit, reserved != 0 ? grown * kUnit : 0);
    reserved += grown;
    ++asked;
    right += start == predicted ? 1 : 0;
    live.push_back({start, units, i});
  }
  return static_cast<double>(right) / asked;
}

TEST(AddressPrediction, ForeseesABestFitAllocator) {
  EXPECT_GT(Hits(-1), 0.99);
  // It finds back without knowing where segments end, apart from multiples of 2 MiB, and what is free.
  EXPECT_GT(Hits(5000), 0.9);
}

TEST(AddressPrediction, GoesByTheSiteUnderAnAllocatorOfAnotherKind) {
  Predictor predictor;
  int wrong = 0;
  for (int step = 0; step < 20; ++step) {
    // Each site has a place of its own; the latest is freed first.
    for (uint64_t site = 0; site < 50; ++site) {
      const uint64_t own = 4096 + (site * 37 % 50) * 64;
      if (predictor.value.Predict(0, 0, 8 * kUnit, step == 0 ? 0 : own) != own) ++wrong;
      predictor.value.Allocated(own, 8 * kUnit, 0);
      if (step == 9) wrong = 0;
    }
    for (uint64_t site = 50; site-- > 0;)
      predictor.value.Freed(0, 0, 4096 + (site * 37 % 50) * 64, 8 * kUnit);
  }
  EXPECT_EQ(wrong, 0);
}

TEST(AddressTrial, PausesLongerEachTimeThatLittleIsSaved) {
  recorder::AddressTrial trial;
  uint64_t index = 0;
  const auto epoch = [&](uint64_t with, uint64_t without) {
    const bool predicts = trial.Restart(index);
    // Nothing came between.
    EXPECT_EQ(trial.Restart(index), predicts);
    for (uint32_t i = 0; i + 1 < recorder::AddressTrial::kEnough; ++i) trial.Add(with, without);
    EXPECT_EQ(trial.GoesOn(), predicts);
    trial.Add(with, without);
    trial.GoesOn();
    ++index;
    return predicts;
  };
  // Restarts until it predicts.
  const auto pause = [&] {
    uint32_t restarts = 0;
    while (!epoch(5, 5)) ++restarts;
    return restarts;
  };
  EXPECT_TRUE(epoch(1, 1));
  for (const uint32_t expected : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 64u}) EXPECT_EQ(pause(), expected);
  // Once it is worth it, it stays, and what comes after begins anew.
  while (!epoch(0, 1000)) {
  }
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(epoch(0, 1000));
  EXPECT_TRUE(epoch(1000, 0));
  EXPECT_EQ(pause(), 1u);
}

}  // namespace
}  // namespace gpumemtrace
