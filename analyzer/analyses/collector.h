// Watches the ledger while a trace is read and keeps what the analyses need: bounded by live set and distinct
// stacks, whatever the number of events.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/loops.h"
#include "analyzer/analyses/origins.h"
#include "analyzer/analyses/pools.h"
#include "analyzer/analyses/usage.h"
#include "analyzer/ledger/ledger.h"

namespace gpumemtrace::analyzer {

// All origins of one group that are of one kind of memory on one device: what growth is judged by.
struct Track {
  GroupId group = kNoGroup;
  Level level = Level::kBlock;
  Space space = Space::kUnspecified;
  int32_t device = -1;
  StringId api = 0;  // handles only: a stream and an event on one line are two tracks
  Usage usage{512};
  // Segments: births that turned out to belong to a caching allocator.
  uint64_t allocator_births = 0;
};

struct DeviceState {
  int32_t device = -1;
  uint64_t blocks = 0;
  uint64_t segments = 0;  // device memory taken from the driver
  uint64_t managed = 0;
  uint64_t reported_reserved = 0;
  uint64_t reported_allocated = 0;
  uint64_t reported_reserved_peak = 0;
  uint64_t block_births = 0;
  uint64_t segment_births = 0;
  // Events at which something was first made here, last made here, last launched here.
  uint64_t first_index = kNoIndex;
  uint64_t last_birth_index = 0;
  uint64_t last_launch_index = 0;
  std::array<uint32_t, kPeaks> epoch{1, 1, 1};
  HighWater peak[2];  // kBlockPeak, kSegmentPeak
  // Local maximum in progress.
  uint64_t recent = 0;
  uint64_t recent_index = 0;
  uint64_t recent_time_us = 0;
  OriginId recent_born_last = kNoOrigin;
  uint64_t valley = 0;
  std::vector<PastPeak> past_peaks;
  Timeline timeline;
  Reading first_reading;
  Reading last_reading;
  uint64_t max_used = 0;
  std::vector<Reading> readings;  // thinned
  uint64_t reading_stride = 1;
  uint64_t reading_count = 0;
  std::vector<ReserveGrowth> growth;  // thinned by merging
  uint64_t growth_count = 0;
  uint64_t growth_stride = 1;
  uint64_t growth_pending = 0;
  uint64_t needless_count = 0;
  uint64_t needless_bytes = 0;
  PoolPicture worst;
  uint64_t worst_measure = 0;
  // Of one of the last requests that needed no new memory by the number of free bytes.
  PoolPicture::Refused refused;
  uint64_t refused_index = 0;
  uint64_t refused_time_us = 0;
  uint64_t refused_asked = 0;  // 0 = none yet
  OriginId refused_origin = kNoOrigin;
  uint64_t needless_when_refused = 0;
  // Device memory that fell away at the first launch of kernels, in all, since the last reading, and by where
  // they were launched.
  uint64_t launch_bytes = 0;
  uint64_t launch_bytes_since_reading = 0;
  std::vector<std::pair<OriginId, uint64_t>> launches;

  // With the first block, segments stop standing for tensors, and the local maxima start anew.
  void CountBlockBirths(uint64_t births) {
    if (block_births == 0 && births != 0) {
      recent = 0;
      valley = 0;
      past_peaks.clear();
    }
    block_births += births;
  }
};

struct OutOfMemoryRecord {
  Change change;
  PoolPicture picture;
  uint64_t other_segments = 0;
  Reading reading;
  uint64_t segments = 0;
  std::vector<std::pair<uint32_t, uint64_t>> tracks;  // largest live then
};

struct ErrorRecord {
  ErrorFinding::Kind kind;
  SiteId site = 0;
  uint64_t count = 0;
  uint64_t bytes = 0;
  uint64_t first_index = 0;
  uint64_t first_time_us = 0;
};

// A range or mark of one name.
struct MarkSeries {
  StringId text = 0;
  StringId domain = 0;
  ThreadId thread = 0;
  Mark::Kind kind = Mark::MARK_UNSPECIFIED;
  uint32_t depth = 0;
  uint64_t last_index = 0;
  uint64_t last_time_us = 0;
  uint64_t first_number = 0;
  Visits visits;
};

class Collector : public LedgerObserver {
 public:
  Collector(const TraceModel& model, const std::vector<std::string>& user_code,
            const std::vector<uint64_t>& snapshots)
      : model_(model), origins_(model, user_code), loops_(model, origins_), snapshot_indices_(snapshots) {
    if (!snapshot_indices_.empty()) next_snapshot_ = snapshot_indices_.front();
  }

  void OnChanges(const Ledger& ledger, std::span<const Change> changes) override;
  void OnMark(const Ledger& ledger, const TraceMark& mark) override;
  void OnDeviceReading(const Ledger& ledger, const DeviceReading& reading) override;
  void OnFoldedBegin(const Ledger& ledger, const FoldedWindow& window) override;
  void OnFolded(const Ledger& ledger, const FoldedWindow& window) override;
  void OnGap(const Ledger&) override { ++gaps_; }
  void OnEnd(const Ledger& ledger) override;

  const TraceModel& model() const { return model_; }
  OriginTable& origins() { return origins_; }
  LoopFinder& loops() { return loops_; }
  const std::vector<Usage>& usage() const { return usage_; }
  const std::vector<Track>& tracks() const { return tracks_; }
  uint32_t track_of(OriginId origin) const { return track_of_[origin]; }
  bool allocator_origin(OriginId origin) const {
    return origin < allocator_origin_.size() && allocator_origin_[origin];
  }
  const std::map<int32_t, std::unique_ptr<DeviceState>>& devices() const { return devices_; }
  const Pools& pools() const { return pools_; }
  const std::vector<OutOfMemoryRecord>& out_of_memory() const { return out_of_memory_; }
  uint64_t out_of_memory_count() const { return out_of_memory_count_; }
  const std::vector<ErrorRecord>& errors() const { return errors_; }
  const std::map<std::string, MarkSeries>& marks() const { return marks_; }
  // By snapshot and origin: bytes and count.
  const std::vector<std::vector<std::pair<uint64_t, uint64_t>>>& snapshots() const { return snapshots_; }
  uint64_t first_index() const { return first_index_; }
  uint64_t last_index() const { return last_index_; }
  uint64_t first_time_us() const { return first_time_us_; }
  uint64_t last_time_us() const { return last_time_us_; }
  uint64_t last_birth_index() const { return last_birth_index_; }
  uint64_t last_birth_time_us() const { return last_birth_time_us_; }
  // What was freed after the last birth of the run, when everything is taken down.
  const std::vector<std::pair<OriginId, uint64_t>>& freed_at_end() const { return freed_at_end_; }
  uint64_t changes() const { return change_count_; }
  uint64_t gaps() const { return gaps_; }

 private:
  // The change is in the figures of the folded window that is being read.
  bool Counted(const Change& change) const;
  void Birth(const Change& change);
  void Death(const Change& change);
  void Failure(const Change& change);
  void Launch(const Change& change);
  void See(const Change& change);
  void TakeSnapshots(uint64_t index);
  void Reserve(DeviceState& device, const Change& change, OriginId origin);
  void Grow(DeviceState& device, const ReserveGrowth& growth);
  void Recent(DeviceState& device, const Change& change, OriginId origin, uint64_t total);
  void FinishRecent(DeviceState& device);
  void Error(ErrorFinding::Kind kind, const Change& change);
  // What every change of one site has in common.
  struct Birthplace {
    DeviceState* device = nullptr;  // null = not looked up yet
    uint64_t stream = 0;
    OriginId origin = kNoOrigin;
    uint32_t track = 0;
  };
  const Birthplace& PlaceOf(const Change& change) {
    if (change.site < places_.size() && places_[change.site].device != nullptr) return places_[change.site];
    return AddPlace(change);
  }
  const Birthplace& AddPlace(const Change& change);
  OriginId OriginOf(const Change& change);
  // −1 for host memory, whatever device the call was made for.
  static int32_t DeviceOf(const Change& change);
  DeviceState& Device(int32_t device);
  uint64_t OtherSegments(const DeviceState& device) const;

  const TraceModel& model_;
  OriginTable origins_;
  LoopFinder loops_;
  Pools pools_;
  std::vector<Birthplace> places_;  // by site
  std::vector<Usage> usage_;        // by origin
  std::vector<uint32_t> track_of_;  // by origin
  std::vector<bool> allocator_origin_;
  std::vector<Track> tracks_;
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, uint32_t> track_index_;
  std::map<int32_t, std::unique_ptr<DeviceState>> devices_;
  DeviceState* last_device_ = nullptr;
  std::vector<OutOfMemoryRecord> out_of_memory_;
  uint64_t out_of_memory_count_ = 0;
  std::vector<ErrorRecord> errors_;
  std::map<std::string, MarkSeries> marks_;
  absl::flat_hash_map<ThreadId, uint32_t> mark_depth_;
  uint64_t first_index_ = kNoIndex;
  uint64_t last_index_ = 0;
  uint64_t first_time_us_ = 0;
  uint64_t last_time_us_ = 0;
  uint64_t last_birth_index_ = 0;
  uint64_t last_birth_time_us_ = 0;
  std::vector<std::pair<OriginId, uint64_t>> freed_at_end_;
  uint64_t change_count_ = 0;
  uint64_t gaps_ = 0;
  // Between OnFoldedBegin and OnFolded.
  bool folded_ = false;
  // A segment that was just made. When the next birth is a block in it, a caching allocator made it on behalf
  // of that block, and the program's line ran once, not twice.
  struct PendingSegment {
    SiteId site = 0;
    uint32_t slot = kNoSlot;
    uint64_t index = 0;
    uint64_t time_us = 0;
  };
  PendingSegment pending_segment_;
  std::vector<uint64_t> snapshot_indices_;
  uint64_t next_snapshot_ = kNoIndex;
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> snapshots_;
};

}  // namespace gpumemtrace::analyzer
