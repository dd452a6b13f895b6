// Joins what Python knows of its tensors (the census) with what the allocators gave: for every allocation
// that is live at a census, the tensors in it, what they are for, and the name that keeps them alive.
//
// Streaming: a census is joined with the live set of its own moment and reduced to groups (birth place,
// holder, role, shape), so memory is bounded by the number of censuses times distinct groups.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/peak_roles.h"
#include "analyzer/ledger/ledger.h"
#include "analyzer/symbols/symbolizer.h"
#include "analyzer/trace/census_decoder.h"

namespace gpumemtrace::analyzer {

// One way in which memory was kept alive at a census.
struct HeldBy {
  std::string text;       // "train.losses[…]", "frame train.py:88 'cache'['k']", "no Python object"
  std::string example;    // "train.losses[3]"
  std::string container;  // "train.losses"
  std::string container_type;
  int64_t items = -1;  // of the container
  std::string owner;   // "train.Trainer"
  std::string detail;
  std::string kind;  // "name", "frame", "cycle", "autograd", "native", "none"
  // Where the holder stands: the frame, or the code that stores into the container. Empty = not known.
  std::string file;
  uint32_t line = 0;
  // Further lines that store into the container.
  std::vector<uint32_t> lines;
  uint64_t tensors = 0;       // tensor objects
  uint64_t allocations = 0;   // allocations they keep alive
  uint64_t bytes = 0;         // of the allocations
  uint64_t tensor_bytes = 0;  // of the tensors' own elements
  std::string shape;          // the commonest, "float32 (32, 1000)"
  uint64_t shapes = 0;        // distinct ones
  std::string grad_fn;
  bool views = false;  // the tensors are views of larger storages
  // Some of them lie in a pool that shows only its segments, so that nobody knows when they were born.
  bool pooled = false;
  // Births of the oldest and the youngest of these allocations, as far as known.
  uint64_t oldest_us = 0;
  uint64_t youngest_us = 0;
  double oldest_steps = -1;  // age at the census in steps, −1 = no steps
  double youngest_steps = -1;
  std::string reason;  // where no Python object keeps it: what is likely, in words
  std::string next;    // likewise what would free it; empty = not known

  // No Python object refers to it, so that neither del nor gc.collect() frees it.
  bool out_of_reach() const { return text == kNoObject; }
  static constexpr std::string_view kNoObject = "no Python object";

  // "train.losses[…] (list, 300 items)".
  std::string Describe() const;
};

// Allocations of one birth place that share a holder, a role and a shape.
struct HeldGroup {
  SiteId site = 0;
  int holder = -1;  // index into CensusSummary::holders, −1 = no tensor object in it
  Census::Role role = Census::ROLE_UNKNOWN;
  uint32_t flags = 0;  // of all tensors, or-ed
  uint32_t shape = 0;  // index into CensusSummary::texts; 0 = ""
  uint32_t grad_fn = 0;
  uint32_t name = 0;           // of one of them
  std::set<uint64_t> streams;  // that they were born on
  uint64_t tensors = 0;
  uint64_t allocations = 0;
  uint64_t bytes = 0;
  uint64_t tensor_bytes = 0;
  uint64_t oldest_us = UINT64_MAX;
  uint64_t youngest_us = 0;
  bool pooled = false;  // see HeldBy
  Level level = Level::kBlock;
  Space space = Space::kUnspecified;
  int32_t device = -1;
};

struct CensusSummary {
  uint32_t number = 0;
  Census::Trigger trigger = Census::TRIGGER_UNSPECIFIED;
  uint64_t time_us = 0;
  uint64_t duration_us = 0;
  uint64_t memory_bytes = 0;  // growth of the process's resident set meanwhile, 0 = not measured
  std::string partial;
  uint64_t objects = 0;
  bool collector_enabled = true;
  uint64_t tensors = 0;      // rows of device tensors
  uint64_t matched = 0;      // rows whose memory is live in the trace
  uint64_t allocations = 0;  // live blocks, or segments where nobody reports blocks
  uint64_t allocation_bytes = 0;
  uint64_t held_allocations = 0;  // of these, with a tensor object
  uint64_t held_bytes = 0;
  std::vector<HeldBy> holders;  // static part: without counts
  std::vector<std::string> texts{1};
  std::vector<HeldGroup> groups;
};

class Holders : public LedgerObserver {
 public:
  // Registers itself; the ledger must outlive the reading.
  explicit Holders(Ledger& ledger);

  void OnContent(const Ledger& ledger, const Content& content) override;
  void OnChanges(const Ledger& ledger, std::span<const Change> changes) override;
  void OnEnd(const Ledger& ledger) override;

  // Call once after the analyses concluded.
  void Conclude(const Findings& findings, Symbolizer& symbols);

  const std::vector<CensusSummary>& censuses() const { return censuses_; }
  // Parts that never became whole and censuses that could not be read.
  uint64_t incomplete() const { return assembler_.incomplete(); }
  const std::vector<std::string>& faults() const { return faults_; }

  // Who keeps the memory of Findings::growth[i], largest share first; empty when no census met it.
  const std::vector<HeldBy>& HoldersOf(size_t growth) const;
  // A leak whose memory no hook shows (a pool that shows only its segments) is told by the census alone: sets
  // what HoldersOf says of it.
  void Tell(size_t growth, std::vector<HeldBy> holders);
  // The census that was asked, null when none.
  const CensusSummary* CensusOf(size_t growth) const;
  const std::vector<PeakRoles>& peak_roles() const { return peak_roles_; }
  // Blocks that the last census met with one tensor each, no view of another, by birth place: their bytes,
  // and how much of these the allocator gave beyond what the tensor asked for.
  struct Rounding {
    uint64_t bytes = 0;
    uint64_t rounding = 0;
  };
  const absl::flat_hash_map<OriginId, Rounding>& rounding() const { return rounding_; }
  // The largest holders, whatever grew, at the last census that met device memory; of a run that leaks, at
  // the one that met most of the worst leak, which may be gone at the last.
  const std::vector<HeldBy>& largest() const { return largest_; }
  // The census that largest() is of, null when none.
  const CensusSummary* OfLargest() const;

 private:
  void Join(const Ledger& ledger, const DecodedCensus& census, std::span<const Change> later);
  using OriginGroups = absl::flat_hash_map<OriginId, std::vector<const HeldGroup*>>;
  std::vector<HeldBy> Collect(const CensusSummary& census, const std::vector<const HeldGroup*>& groups,
                              const Findings& findings, Symbolizer& symbols) const;
  // A census saw an allocation of this size, made by the event `birth_index`, with a tensor of this role in
  // it, or with no tensor object (null).
  void Note(uint64_t birth_index, uint64_t size, const Census::Role* role);

  const TraceModel& model_;
  CensusAssembler assembler_;
  std::vector<DecodedCensus> waiting_;
  std::vector<CensusSummary> censuses_;
  std::vector<std::string> faults_;
  std::vector<std::vector<HeldBy>> by_growth_;
  std::vector<int> census_of_growth_;
  SeenByCensus seen_;
  std::vector<PeakRoles> peak_roles_;
  std::vector<HeldBy> largest_;
  int census_of_largest_ = -1;
  absl::flat_hash_map<OriginId, Rounding> rounding_;
};

}  // namespace gpumemtrace::analyzer
