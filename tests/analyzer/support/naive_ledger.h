// A second opinion on the live set: the rules of CUDA's memory as plainly as possible, by searching lists.
// Slow, and shares nothing with the ledger but the numbers of kinds and spaces.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "analyzer/ledger/ledger.h"
#include "tests/analyzer/support/trace_builder.h"

namespace gpumemtrace::tests {

class NaiveLedger {
 public:
  using Level = analyzer::Level;

  struct Sum {
    uint64_t bytes = 0;
    uint64_t count = 0;
    uint64_t peak = 0;
  };

  void Apply(const BuiltEvent& event);
  Sum Of(Level level, int32_t device) const { return At(sums_, {level, device}); }
  Sum Of(Space space, int32_t device) const { return At(space_sums_, {space, device}); }

 private:
  struct Thing {
    Level level = Level::kSegment;
    Space space = Space::kDevice;
    int32_t device = 0;
    uint64_t address = 0;
    uint64_t size = 0;
    // Virtual and imported memory.
    uint64_t references = 0;
    bool handle_valid = false;
    uint64_t id = 0;
  };
  struct Mapping {
    uint64_t start = 0;
    uint64_t end = 0;
    uint64_t owner = 0;  // Thing::id, 0 = unknown
  };
  struct Node {
    bool allocates;
    int32_t device;
    uint64_t address;
    uint64_t size;
  };

  template <typename Key>
  static Sum At(const std::map<Key, Sum>& sums, const Key& key) {
    const auto found = sums.find(key);
    return found == sums.end() ? Sum{} : found->second;
  }
  void Born(Thing thing);
  void Die(uint64_t id);
  Thing* Find(Level level, uint64_t address, bool virtual_memory);
  Thing* ByHandle(uint64_t handle);
  Thing* ById(uint64_t id);
  bool Mapped(uint64_t id) const;
  void DieIfUnused(uint64_t id);
  void MakeRoom(uint64_t start, uint64_t end);
  void Launch(uint64_t executable);

  uint64_t next_id_ = 1;
  std::vector<Thing> things_;
  std::vector<Mapping> mappings_;
  std::map<uint64_t, std::vector<Node>> graphs_;
  std::map<uint64_t, std::pair<std::vector<Node>, bool>> executables_;
  std::map<std::pair<Level, int32_t>, Sum> sums_;
  std::map<std::pair<Space, int32_t>, Sum> space_sums_;
};

}  // namespace gpumemtrace::tests
