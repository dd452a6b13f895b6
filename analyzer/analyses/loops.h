// Finds the loop whose iterations are the program's steps, from the order in which stacks appear: a tree of
// the user's own frames per thread, and how often each instruction in it was entered.
//
// A node is entered when the path of the running stack changes into it. It is re-entered when its first child
// comes again although the path above did not change: the function was called again, or a loop spans all of
// it. Re-entries through different lines of the user's own code are certain ("strong"); the same stack seen
// twice in a row may also be one call that allocates twice ("weak").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "analyzer/analyses/origins.h"
#include "analyzer/trace/model.h"

namespace gpumemtrace::analyzer {

// Positions of something that repeats: every `stride`-th of them, at most a few thousand.
class Visits {
 public:
  struct Position {
    uint64_t index;
    uint64_t time_us;
  };
  void Add(uint64_t index, uint64_t time_us) {
    if (count_++ % stride_ != 0) return;
    positions_.push_back({index, time_us});
    if (positions_.size() >= kCapacity) {
      for (size_t i = 0; i < kCapacity / 2; ++i) positions_[i] = positions_[2 * i];
      positions_.resize(kCapacity / 2);
      stride_ *= 2;
    }
  }
  // So many of them, evenly spread over [first, last].
  void AddMany(uint64_t count, Position first, Position last);
  uint64_t count() const { return count_; }
  uint64_t stride() const { return stride_; }
  const std::vector<Position>& positions() const { return positions_; }
  // 1 = all intervals are equal, towards 0 = bursts. By event index.
  double Regularity() const;

 private:
  static constexpr size_t kCapacity = 4096;
  std::vector<Position> positions_;
  uint64_t count_ = 0;
  uint64_t stride_ = 1;
};

class LoopFinder {
 public:
  LoopFinder(const TraceModel& model, OriginTable& origins) : model_(model), origins_(origins), nodes_(1) {}

  // Something with a stack happened: a birth.
  void See(SiteId site, uint64_t index, uint64_t time_us) {
    if (site >= leaf_of_site_.size()) leaf_of_site_.resize(site + site / 2 + 16, 0);
    uint32_t leaf = leaf_of_site_[site];
    if (leaf == 0) leaf = leaf_of_site_[site] = AddLeaf(site, 0);
    Step(leaf, index, time_us);
  }
  // A kernel launch. A compiled program launches all its kernels from one native stack: the kernel tells them
  // apart, else three kernels would look like three repetitions.
  void SeeLaunch(SiteId site, uint64_t kernel, uint64_t index, uint64_t time_us);

  // A stretch whose order is not known, only how often each stack came. Loops are carried on through it: by a
  // stack that came equally often in every iteration elsewhere, so that its number tells the number of
  // iterations. Returns the number of the stretch; they come in order.
  uint32_t AddFolded(uint64_t first_index, uint64_t last_index, uint64_t first_time_us,
                     uint64_t last_time_us);
  void SeeFolded(SiteId site, uint32_t stretch, uint64_t births);

  struct Candidate {
    double score = 0;
    const Visits* visits = nullptr;
    FrameId frame = 0;        // of the line that begins an iteration; 0 = no frame, the stream itself repeats
    FrameId caller = 0;       // frame that contains the loop, for native code its caller
    uint64_t last_index = 0;  // of anything in the loop
    uint64_t last_time_us = 0;
    bool native = false;
    // Only repetitions of one stack speak for it: a call that allocates many times looks the same.
    bool weak = false;
    // Optimizer calls at a line of the same loop, 0 = none.
    uint64_t optimizer_calls = 0;
    FrameId optimizer_frame = 0;
    uint32_t votes = 0;
    uint64_t births = 0;  // below the line that begins an iteration
  };
  // Best first; empty when nothing repeats often enough.
  std::vector<Candidate> Candidates();

 private:
  struct Node {
    uint32_t parent = 0;
    uint32_t ordinal = 0;  // among its siblings, by first appearance
    uint32_t children = 0;
    FrameId frame = 0;
    uint16_t depth = 0;
    bool leaf = false;
    bool keeps_visits = true;
    bool optimizer = false;     // the optimizer is called from this line
    bool handle = false;        // a leaf that makes a library's handle
    uint64_t births = 0;        // of leaves; inner nodes are summed at the end
    uint64_t most_births = 0;   // of the stack below this line that was seen most often
    uint64_t most_handles = 0;  // the same, of stacks that make a library's handle
    uint64_t entries = 0;
    uint64_t last_index = 0;
    uint64_t last_time_us = 0;
    Visits strong;  // entries and strong re-entries
    Visits all;     // and weak ones
    // Handles of libraries that were made: one call makes one, however often it allocates inside.
    Visits handles;
  };

  const Visits& VisitsOf(const Node& node) const;
  static void Enter(Node& node, uint64_t index, uint64_t time_us) {
    ++node.entries;
    if (!node.keeps_visits) return;
    node.strong.Add(index, time_us);
    node.all.Add(index, time_us);
  }

  struct Stretch {
    Visits::Position first;
    Visits::Position last;
  };
  // Births of a stack in a stretch.
  struct Seen {
    uint32_t stretch;
    uint64_t births;
  };

  void CarryThroughFolded();
  Visits Carried(const Visits& visits, const std::vector<Seen>& seen, uint64_t births) const;
  uint32_t AddLeaf(SiteId site, uint64_t kernel);
  uint32_t Child(uint32_t parent, uint64_t key, FrameId frame, bool leaf);
  void Step(uint32_t leaf, uint64_t index, uint64_t time_us);
  void Collect(uint32_t root, const std::vector<std::vector<uint32_t>>& children,
               const std::vector<uint64_t>& births, uint64_t all_births, std::vector<Candidate>& out) const;

  const TraceModel& model_;
  OriginTable& origins_;
  std::vector<Node> nodes_;  // 0 is none
  std::vector<uint32_t> leaf_of_site_;
  absl::flat_hash_map<std::pair<SiteId, uint64_t>, uint32_t> leaf_of_launch_;
  std::vector<Stretch> stretches_;
  absl::flat_hash_map<uint32_t, std::vector<Seen>> folded_;  // by leaf
  // Root and previous leaf of each thread.
  absl::flat_hash_map<ThreadId, uint32_t> roots_;
  std::vector<uint32_t> previous_;  // by root node; 0 for other nodes
  std::vector<uint32_t> root_of_;   // by node
  absl::flat_hash_map<std::pair<uint32_t, uint64_t>, uint32_t> child_index_;
};

}  // namespace gpumemtrace::analyzer
