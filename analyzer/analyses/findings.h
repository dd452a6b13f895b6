// What the analyses found in one trace, as plain data: the report's sections, `check` and `diff` read it.
// Bytes and counts are exact unless a comment says "estimate".
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analyzer/ledger/ledger.h"
#include "analyzer/trace/model.h"

namespace gpumemtrace::analyzer {

// Dense number of a birth place: (level, space, device, native, python and forward stack), whatever the size.
using OriginId = uint32_t;
// Dense number of the code that is answerable for a set of origins: usually one line of the user's own.
using GroupId = uint32_t;
constexpr uint32_t kNoOrigin = UINT32_MAX;
constexpr uint32_t kNoGroup = UINT32_MAX;

// A place in source code.
struct Place {
  std::string file;      // as the trace or the debug information names it; empty = unknown
  uint32_t line = 0;     // 0 = unknown
  std::string function;  // never empty
  std::string module;    // ELF object of native code, else empty
  bool python = false;
  // The frame is in the user's own files, not in a library, the interpreter or a framework.
  bool user_code = false;
  // The line ran in forward; the memory was allocated by its backward on an autograd thread.
  bool backward = false;

  // "train.py:22 (main)" with the base name of the file; "function [module]" without a line.
  std::string Short() const;
};

// What part of a training program a stack belongs to, told from the frames of well-known libraries.
enum class Phase : uint8_t { kUnknown, kForward, kBackward, kOptimizer, kLoading, kEvaluation, kCollective };
std::string_view PhaseName(Phase phase);

// Steps -----------------------------------------------------------------------------------------------------

enum class StepSource : uint8_t {
  kNone,           // nothing repeats: equal slices of the event stream stand in for steps
  kExplicitMarks,  // gpumemtrace_step
  kNvtxRanges,
  kOptimizer,    // calls of optimizers on Python stacks
  kPythonLoop,   // a loop in the program's own Python code
  kNativeLoop,   // a loop in native code
  kPeriodicity,  // the event stream repeats
};
std::string_view StepSourceName(StepSource source);

struct Steps {
  StepSource source = StepSource::kNone;
  // Only repetitions of one stack speak for these steps: one call that allocates many times looks the same.
  bool weak = false;
  // One sentence for the report: what was taken as a step.
  std::string description;
  Place place;  // of the loop or the optimizer call
  // Event index at which step k begins, k = first_number + position; ascending. The last step ends at
  // `end_index`. Long runs keep every `stride`-th boundary.
  std::vector<uint64_t> begin_index;
  std::vector<uint64_t> begin_time_us;
  uint64_t end_index = 0;
  uint64_t end_time_us = 0;
  uint64_t count = 0;   // steps seen, exact
  uint64_t stride = 1;  // steps per entry of begin_index
  // Optimizer calls seen, when they differ from the steps (gradient accumulation, several optimizers).
  uint64_t optimizer_calls = 0;

  bool real() const { return source != StepSource::kNone && count >= 2; }
  // Position in steps (with a fraction between kept boundaries); negative before the first.
  double StepAt(uint64_t event_index) const;
};

// Where the bytes of a segment count: on the device, on the host, or only perhaps on the device.
enum class Residence : uint8_t { kDevice, kHost, kManaged, kNone };
Residence ResidenceOf(Level level, Space space);
// Memory of the host, which does not fill a card.
bool OnHost(Level level, Space space, int32_t device);

// Growth ----------------------------------------------------------------------------------------------------

enum class GrowthKind : uint8_t {
  kLeak,           // survivors in step after step, until the end
  kSaturated,      // grew, then each new one replaced an old one
  kSlowing,        // still grows, ever more slowly: a cache that fills
  kOneOff,         // came in one or two steps and stayed: late state, a plan, a workspace
  kSawtooth,       // grows and is dropped again and again; the floor is flat
  kLongerSteps,    // the same number of objects, each larger than before
  kSetup,          // made before the first step and kept
  kStrandedCache,  // the allocator's own segments grow, what is allocated does not
  kHandles,        // small handles that stay, of no device memory that was seen
  kUnattributed,   // the device's free memory falls without any allocation that we saw
};
std::string_view GrowthKindName(GrowthKind kind);
// Memory that goes on growing, whoever keeps it: what the verdict and the gate count.
bool IsLeak(GrowthKind kind);

// What would give the memory back, as far as the trace shows it.
enum class Remedy : uint8_t {
  kUnknown,
  kReference,
  kGarbageCollector,
  kEmptyCache,
  kPhaseEnd,
  kExit,
  kDestroyHandle,
  kFree,
  kClearWorkspaces,  // PyTorch's cuBLAS workspaces
  kPreallocate,      // of requests that grow: one buffer of the full size, written in place
  kReceiver          // of memory that was shared with another process
};
// A few words that do not change, for scripts.
std::string_view RemedyName(Remedy remedy);
// What to do, for people.
std::string_view RemedyText(Remedy remedy);

struct CurvePoint {
  double step = 0;
  uint64_t bytes = 0;
  uint64_t count = 0;
};

struct GrowthFinding {
  GrowthKind kind = GrowthKind::kLeak;
  Level level = Level::kBlock;
  Space space = Space::kUnspecified;
  int32_t device = -1;
  Place place;
  GroupId group = kNoGroup;
  // Largest contributor first.
  std::vector<OriginId> origins;
  std::string library;  // who asked the driver, for segments
  std::string api;      // of segments and handles
  // Per step, over the part of the run in which it grows. Stranded cache: of reserved minus allocated.
  double bytes_per_step = 0;
  double count_per_step = 0;
  // Handles cost memory that no call tells: then the bytes are unknown, and never told as 0, unless something
  // else tells them, which is named here.
  bool bytes_known = true;
  std::string bytes_from;
  uint64_t grown_bytes = 0;  // from its beginning to its end
  uint64_t grown_count = 0;
  // What the same place made once and keeps: in none of the figures above.
  uint64_t once_bytes = 0;
  uint64_t once_count = 0;
  uint64_t live_bytes = 0;  // at the last step
  uint64_t live_count = 0;
  uint64_t live_bytes_at_end = 0;
  double since_step = 0;
  double until_step = 0;
  bool still_growing = false;
  // Steps in which the floor rose, of those looked at.
  uint64_t rises = 0;
  uint64_t steps_seen = 0;
  // 0 … 1.
  double confidence = 0;
  // Handles whose memory is told as a leak of the same place: one leak, not two.
  bool told_by_memory = false;
  // Stranded cache: each request is larger than the one before, so that no free segment fits.
  bool larger_requests = false;
  // Stranded cache: most of what lies free belongs to other streams.
  bool other_streams = false;
  // Until the card is full at this rate, estimates; 0 = unknown.
  uint64_t microseconds_until_full = 0;
  double steps_until_full = 0;
  Remedy remedy = Remedy::kUnknown;
  std::string explanation;  // one sentence
  // Of a later phase of the program: where the loop begins whose iterations are its steps; else empty.
  std::string loop;
  std::vector<CurvePoint> curve;
  bool suppressed = false;
  std::string suppressed_by;

  bool on_host() const { return OnHost(level, space, device); }
};

// Peak ------------------------------------------------------------------------------------------------------

struct Moment {
  uint64_t index = kNoIndex;
  uint64_t time_us = 0;
  double step = -1;  // −1 = before the first step or no steps
};

struct ShareOrigin {
  OriginId origin = kNoOrigin;
  uint64_t bytes = 0;
  uint64_t count = 0;
};

struct SharePlace {
  Place place;
  GroupId group = kNoGroup;
  uint64_t bytes = 0;
  uint64_t count = 0;
  // Of these: freed again within about a step, i.e. temporaries and activations.
  uint64_t transient_bytes = 0;
  std::vector<ShareOrigin> origins;
};

struct NamedShare {
  std::string name;
  uint64_t bytes = 0;
  uint64_t count = 0;
};

struct PeakBlock {
  OriginId origin = kNoOrigin;
  uint64_t bytes = 0;
  uint64_t address = 0;
  uint64_t birth_index = kNoIndex;
  uint64_t birth_time_us = 0;
  uint64_t death_index = kNoIndex;  // kNoIndex = alive at the end
  SiteId freed_by = 0;              // where the call was made that freed it; 0 = alive at the end
};

struct OtherPeak {
  Moment moment;
  uint64_t bytes = 0;
  Place born_last;
  std::vector<SharePlace> by_line;  // largest few
};

// A change that would lower the peak, worst first.
struct PeakAdvice {
  enum class Kind : uint8_t {
    kCheckpointResident,  // a loaded checkpoint stays on the device beside the model
    kOptimizerTemporary,  // foreach optimizers hold temporaries as large as the parameters
    kUpcast,              // a copy in a wider type
    kDominantTemporary,   // one line's temporaries make most of the peak
    kWrongDevice,         // a device holds memory but does no work
    kDriverInternal,      // taken by the driver itself, e.g. local memory of a kernel
  };
  Kind kind = Kind::kDominantTemporary;
  Place place;
  int32_t device = -1;
  uint64_t bytes = 0;         // that this place holds at the peak
  uint64_t peak_without = 0;  // estimate: highest other moment when these bytes are gone
  // Strong enough to be the headline when nothing grows.
  bool headline = false;
  std::string text;    // what takes the memory
  std::string remedy;  // what to do: "lowered by …"
};
std::string_view PeakAdviceName(PeakAdvice::Kind kind);

struct PeakFinding {
  int32_t device = -1;
  Level level = Level::kBlock;  // kSegment when no allocator reports blocks
  uint64_t bytes = 0;
  Moment moment;
  uint64_t reserved = 0;  // of caching allocators at that moment
  // Each of these sums to `bytes`.
  std::vector<ShareOrigin> by_origin;
  std::vector<SharePlace> by_line;
  std::vector<NamedShare> by_library;
  std::vector<NamedShare> by_size_class;
  std::vector<NamedShare> by_phase;
  OriginId born_last = kNoOrigin;
  Place born_last_place;
  uint64_t born_last_bytes = 0;
  std::vector<PeakBlock> blocks;  // every one, in the order of birth
  std::vector<PeakBlock> oldest;
  std::vector<PeakBlock> largest;
  std::vector<OtherPeak> next;
  uint64_t transient_bytes = 0;
  uint64_t setup_bytes = 0;  // born before the first step
};

struct LiveFinding {
  int32_t device = -1;
  Level level = Level::kBlock;
  uint64_t bytes = 0;
  uint64_t count = 0;
  std::vector<SharePlace> by_line;
};

// Account of the device -------------------------------------------------------------------------------------

struct Account {
  Moment moment;
  // blocks + cache + Σ libraries + managed + unattributed = used.
  uint64_t blocks = 0;
  uint64_t cache = 0;  // segments of caching allocators minus their blocks
  // Of `blocks`: what the allocator gave beyond what tensors asked for. A census tells it of the tensors that
  // it met, `rounding_known` bytes of blocks in all; of others of the same birth place it is an estimate.
  uint64_t rounding = 0;
  uint64_t rounding_known = 0;
  std::vector<NamedShare> libraries;  // other segments, by who asked
  uint64_t managed = 0;               // managed memory, which may live on the host: not part of the sum
  int64_t unattributed = 0;           // context, modules, driver; other processes
  uint64_t launches = 0;            // of these: fell away at the first launch of kernels (local memory, code)
  int64_t unattributed_before = 0;  // of these, already taken at the first reading
  uint64_t used = 0;
  uint64_t total = 0;
  bool measured = false;        // a reading of the device exists
  uint64_t reading_age_us = 0;  // how long before the moment it was taken
};

struct DeviceAccount {
  int32_t device = -1;
  Account at_peak;
  // When the program held most of the device, where that is another story than the peak of its tensors.
  std::optional<Account> at_fullest;
  std::vector<std::pair<OriginId, uint64_t>> blocks_at_fullest;  // bytes by birth place
  Account at_end;
  uint64_t max_used = 0;
  // What this process takes without a call (context, code) only grows, so that two readings say of the
  // others:
  uint64_t others_gave_back = 0;  // largest fall of the unattributed part; that much was theirs, at least
  uint64_t context_at_most = 0;   // lowest unattributed part of all readings: its context took no more
};

// Fragmentation ---------------------------------------------------------------------------------------------

struct Pin {
  Place place;
  OriginId origin = kNoOrigin;
  uint64_t blocks = 0;
  uint64_t block_bytes = 0;
  uint64_t pinned_bytes = 0;  // free bytes of the segments that only such blocks keep from being released
};

struct SegmentPicture {
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t live_bytes = 0;
  uint64_t live_blocks = 0;
  uint64_t largest_gap = 0;
  uint64_t gaps = 0;
  uint64_t stream = 0;
  Place made_by;
};

struct FragmentationMoment {
  Moment moment;
  uint64_t reserved = 0;
  uint64_t allocated = 0;
  uint64_t empty_segments_bytes = 0;     // cached, wholly free
  uint64_t gap_bytes = 0;                // free inside segments that hold live blocks
  uint64_t largest_fit = 0;              // largest request that needs no new memory
  uint64_t rounding = 0;                 // inside blocks, see Account::rounding
  std::vector<SegmentPicture> segments;  // emptiest large ones first
  std::vector<Pin> pins;
};

// A request that got new memory from the driver although at least as much lay free in the allocator: where
// that lay, without what came with the request itself. The parts sum to `free`.
struct Refusal {
  Moment moment;
  Place place;
  uint64_t asked = 0;
  uint64_t free = 0;
  uint64_t pieces = 0;
  uint64_t other_streams = 0;  // in segments of other streams, which do not serve this one
  uint64_t too_small = 0;      // of the stream, in pieces smaller than what was asked for
  uint64_t largest = 0;        // of these pieces
  uint64_t other_pool = 0;     // of the stream and large enough: of another pool
};

struct FragmentationFinding {
  int32_t device = -1;
  uint64_t reserved_peak = 0;
  uint64_t allocated_peak = 0;
  FragmentationMoment worst;
  FragmentationMoment last;
  // Segments made although at least as many bytes were free in the allocator.
  uint64_t needless_segments = 0;
  uint64_t needless_bytes = 0;
  Place needless_place;
  uint64_t needless_place_bytes = 0;
  Refusal why;           // one of the last such requests; asked = 0: not known
  uint64_t streams = 0;  // that own segments
  bool headline = false;
  std::string explanation;
};

// OOM -------------------------------------------------------------------------------------------------------

struct OutOfMemoryFinding {
  Moment moment;
  int32_t device = -1;
  bool driver = false;  // a driver call failed, not a caching allocator
  std::string api;
  uint64_t asked = 0;
  OriginId origin = kNoOrigin;
  Place place;
  uint64_t allocated = 0;
  uint64_t reserved = 0;
  uint64_t gap_bytes = 0;
  uint64_t empty_segments_bytes = 0;
  uint64_t largest_fit = 0;
  uint64_t other_segments = 0;
  int64_t unattributed = 0;
  uint64_t device_free = 0;
  uint64_t device_total = 0;
  bool measured = false;
  bool fits_without_fragmentation = false;
  // A library asked the driver while a caching allocator had enough that it could have given back.
  bool fits_after_empty_cache = false;
  // What was missing beyond all that was free: on the device, in empty segments and in holes.
  uint64_t shortfall = 0;
  // The fewest holders whose release would have made room, largest first; empty = none needed, or not enough.
  std::vector<SharePlace> release;
  std::vector<SharePlace> largest;  // live then
  std::string advice;
};

// Errors ----------------------------------------------------------------------------------------------------

struct ErrorFinding {
  enum class Kind : uint8_t { kDoubleFree, kUnknownFree, kOtherDeviceFree, kFailedCall };
  Kind kind = Kind::kUnknownFree;
  OriginId origin = kNoOrigin;
  Place place;
  std::string api;
  int32_t result = 0;
  uint64_t count = 0;
  uint64_t bytes = 0;
  Moment first;
};
std::string_view ErrorKindName(ErrorFinding::Kind kind);

// Verdict ---------------------------------------------------------------------------------------------------

enum class VerdictKind : uint8_t { kClean, kLeak, kFragmentation, kPeak, kUnjudged };
std::string_view VerdictName(VerdictKind kind);

struct Culprit {
  Place place;
  double bytes_per_step = 0;
  double count_per_step = 0;
  bool bytes_known = true;
  double since_step = 0;
  double confidence = 0;
  uint64_t bytes = 0;
  std::string kind;
  std::string loop;  // see GrowthFinding
  Level level = Level::kBlock;
  Space space = Space::kUnspecified;
  int32_t device = -1;

  bool on_host() const { return OnHost(level, space, device); }
};

struct Verdict {
  VerdictKind kind = VerdictKind::kUnjudged;
  std::string headline;  // one line
  // What was looked at, or why nothing could be said.
  std::vector<std::string> details;
  std::vector<Culprit> culprits;  // worst first
  double bytes_per_step = 0;      // sum over the culprits
  bool bytes_known = true;        // of at least one culprit
  double confidence = 0;
  // Until the first card is full at the rates of all leaks on it together, estimates; 0 = unknown.
  uint64_t microseconds_until_full = 0;
  double steps_until_full = 0;
  // The largest of these rises ever faster, so that they are the latest moment.
  bool rate_rises = false;
  // Of a clean run: something that could be better, in one sentence; mostly empty.
  std::string hint;
};

// Curves over the whole run, for charts.
struct TimelinePoint {
  uint64_t index = 0;
  uint64_t time_us = 0;
  uint64_t allocated_max = 0;
  uint64_t allocated_min = 0;
  uint64_t reserved = 0;
  uint64_t used = 0;    // last reading of the device; 0 = none yet
  uint64_t weight = 0;  // changes that it stands for

  void Join(const TimelinePoint& next) {
    const TimelinePoint earlier = *this;
    *this = next;
    allocated_max = std::max(allocated_max, earlier.allocated_max);
    allocated_min = std::min(allocated_min, earlier.allocated_min);
    weight += earlier.weight;
  }
};

struct DeviceTimeline {
  int32_t device = -1;
  std::vector<TimelinePoint> points;
};

// What was live just before one event (`diff --steps`).
struct Snapshot {
  uint64_t index = 0;
  bool taken = false;
  std::vector<SharePlace>
      by_line;  // all devices and levels that count: blocks, and segments that hold no blocks
  uint64_t bytes = 0;
};

struct OriginSummary {
  SiteId site = 0;  // any site of this origin: for stacks
  Level level = Level::kBlock;
  Space space = Space::kUnspecified;
  int32_t device = -1;
  GroupId group = kNoGroup;
  Phase phase = Phase::kUnknown;
  std::string library;
  uint64_t births = 0;
  uint64_t born_bytes = 0;
  uint64_t live_count = 0;
  uint64_t live_bytes = 0;
  uint64_t first_index = 0;
  uint64_t last_index = 0;
  bool allocator_segment = false;  // a caching allocator's segments
};

struct Findings {
  uint64_t changes = 0;  // of the live set, in all
  uint64_t gaps = 0;     // lost parts of the trace
  bool concluded = false;
  Steps steps;
  std::vector<GrowthFinding> growth;  // worst first; leaks before the harmless
  std::vector<PeakFinding> peaks;     // per device
  std::vector<PeakAdvice> advice;     // worst first
  std::vector<LiveFinding> live;      // at the end
  std::vector<DeviceAccount> accounts;
  std::vector<FragmentationFinding> fragmentation;
  std::vector<OutOfMemoryFinding> out_of_memory;  // the first hundred
  uint64_t out_of_memory_count = 0;
  std::vector<ErrorFinding> errors;
  std::vector<DeviceTimeline> timelines;
  std::vector<OriginSummary> origins;  // by OriginId
  std::vector<Place> groups;           // by GroupId
  std::vector<Snapshot> snapshots;     // as asked for in AnalysesOptions
  Verdict verdict;
};

}  // namespace gpumemtrace::analyzer
