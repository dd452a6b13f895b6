#include "analyzer/analyses/holders.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "analyzer/analyses/unheld.h"

namespace gpumemtrace::analyzer {
namespace {

// So many allocations, each on a stream of its own, are no chance.
constexpr size_t kFewestStreams = 4;

using OriginKey = std::tuple<StackId, StackId, StackId, StringId, int32_t, Level, Space>;

OriginKey KeyOf(const SiteInfo& site, int32_t device, Level level, Space space) {
  return {site.native_stack, site.python_stack, site.forward_stack, site.api, device, level, space};
}

std::string_view KindName(Holder::Kind kind) {
  switch (kind) {
    case Holder::NAME:
      return "name";
    case Holder::FRAME:
      return "frame";
    case Holder::CYCLE:
      return "cycle";
    case Holder::AUTOGRAD:
      return "autograd";
    case Holder::NATIVE:
      return "native";
    default:
      return "none";
  }
}

// Which of several tensors in one allocation speaks for it: what it is for comes first, then how well its
// holder is known.
int Rank(const DecodedCensus& census, int tensor) {
  const Census::Role role = census.RoleOf(tensor);
  int rank = role == Census::ROLE_UNKNOWN ? 0 : role == Census::ACTIVATION ? 1 : 100;
  const int holder = census.HolderOf(tensor);
  if (holder < 0) return rank;
  switch (census.census.holder_entry(holder).kind()) {
    case Holder::NAME:
      return rank + 50;
    case Holder::FRAME:
      return rank + 40;
    case Holder::CYCLE:
      return rank + 30;
    case Holder::AUTOGRAD:
      return rank + 20;
    default:
      return rank + 10;
  }
}

struct LiveRange {
  uint64_t start = 0;
  uint64_t size = 0;
  uint64_t birth_index = kNoIndex;
  uint64_t birth_time_us = 0;
  SiteId site = 0;
  Level level = Level::kBlock;
  Space space = Space::kUnspecified;
  int32_t device = -1;
  std::vector<int> tensors;
};

// Memory that a program's tensors can lie in: blocks, and segments that no caching allocator cuts into
// blocks.
bool Holds(const Allocation& allocation) {
  if (allocation.size == 0) return false;
  if (allocation.level == Level::kBlock) return true;
  return allocation.level == Level::kSegment && !allocation.holds_blocks;
}

double StepAtTime(const Steps& steps, uint64_t time_us) {
  if (!steps.real() || steps.begin_time_us.empty() || time_us < steps.begin_time_us.front()) return -1;
  const auto next = std::upper_bound(steps.begin_time_us.begin(), steps.begin_time_us.end(), time_us);
  const auto place = static_cast<size_t>(next - steps.begin_time_us.begin()) - 1;
  const uint64_t begin = steps.begin_time_us[place];
  const uint64_t end = next == steps.begin_time_us.end() ? std::max(steps.end_time_us, time_us) : *next;
  const double part =
      end > begin ? static_cast<double>(time_us - begin) / static_cast<double>(end - begin) : 0;
  return (static_cast<double>(place) + part) * static_cast<double>(steps.stride);
}

HeldBy StaticPart(const DecodedCensus& census, const Holder& holder) {
  HeldBy result;
  result.text = census.Text(holder.path());
  result.example = census.Text(holder.example());
  result.container = census.Text(holder.container());
  result.container_type = census.Text(holder.container_type());
  result.items = holder.has_items() ? static_cast<int64_t>(holder.items()) : -1;
  result.owner = census.Text(holder.owner());
  result.detail = census.Text(holder.detail());
  result.kind = KindName(holder.kind());
  result.file = census.Text(holder.file());
  result.line = holder.line();
  for (int i = 0; i < holder.store_line_size(); ++i) {
    if (i == 0) {
      result.file = census.Text(holder.store_file(0));
      result.line = holder.store_line(0);
    } else if (census.Text(holder.store_file(i)) == result.file) {
      result.lines.push_back(holder.store_line(i));
    }
  }
  return result;
}

}  // namespace

std::string HeldBy::Describe() const {
  std::string result = text;
  std::vector<std::string> facts;
  if (!container_type.empty()) {
    facts.push_back(items < 0 ? container_type
                              : absl::StrCat(container_type, ", ", items, items == 1 ? " item" : " items"));
  }
  if (!owner.empty() && !text.starts_with(owner)) facts.push_back(absl::StrCat("attribute of ", owner));
  for (size_t i = 0; i < facts.size(); ++i) absl::StrAppend(&result, i == 0 ? " (" : ", ", facts[i]);
  if (!facts.empty()) result += ")";
  if (!detail.empty() && !out_of_reach()) absl::StrAppend(&result, "; ", detail);
  if (!reason.empty()) absl::StrAppend(&result, out_of_reach() ? ": " : "; ", reason);
  return result;
}

Holders::Holders(Ledger& ledger) : model_(ledger.model()) {
  ledger.AddObserver(this);
}

void Holders::OnContent(const Ledger&, const Content& content) {
  for (const CensusPart& part : content.census_part()) {
    std::string fault;
    std::optional<DecodedCensus> census = assembler_.Add(part, &fault);
    if (!fault.empty()) faults_.push_back(std::move(fault));
    if (census.has_value()) waiting_.push_back(*std::move(census));
  }
}

void Holders::OnChanges(const Ledger& ledger, std::span<const Change> changes) {
  if (waiting_.empty() || changes.empty()) return;
  for (size_t i = 0; i < waiting_.size();) {
    if (changes.back().sequence <= waiting_[i].last_sequence) {
      ++i;
      continue;
    }
    Join(ledger, waiting_[i], changes);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Holders::OnEnd(const Ledger& ledger) {
  for (const DecodedCensus& census : waiting_) Join(ledger, census, {});
  waiting_.clear();
}

void Holders::Join(const Ledger& ledger, const DecodedCensus& census, std::span<const Change> later) {
  std::vector<LiveRange> ranges;
  for (const Allocation& allocation : ledger.allocations()) {
    if (!allocation.live || !Holds(allocation) || allocation.birth_sequence > census.first_sequence) continue;
    if (allocation.space == Space::kVirtual) continue;  // by mapping, below
    ranges.push_back({allocation.address,
                      allocation.size,
                      allocation.birth_index,
                      allocation.birth_time_us,
                      allocation.site,
                      allocation.level,
                      allocation.space,
                      allocation.device,
                      {}});
  }
  for (const auto& [start, range] : ledger.ranges()) {
    if (!range.mapping || range.slot == kNoSlot) continue;
    const Allocation& allocation = ledger.allocation(range.slot);
    if (!Holds(allocation) || allocation.birth_sequence > census.first_sequence) continue;
    ranges.push_back({range.start,
                      range.end - range.start,
                      allocation.birth_index,
                      allocation.birth_time_us,
                      allocation.site,
                      allocation.level,
                      allocation.space,
                      allocation.device,
                      {}});
  }
  // What died after the census in the batch that made us look. Physical memory is found where it was mapped.
  for (const Change& change : later) {
    const ChangeKind end = change.space == Space::kVirtual ? ChangeKind::kUnmap : ChangeKind::kDeath;
    if (change.kind != end || change.sequence <= census.last_sequence || change.size == 0) continue;
    if (change.birth_time_us > census.time_us || change.level > Level::kSegment) continue;
    ranges.push_back({change.address,
                      change.size,
                      change.birth_index,
                      change.birth_time_us,
                      change.site,
                      change.level,
                      change.space,
                      change.device,
                      {}});
  }
  // Blocks before the segments they lie in, when both begin at one address.
  std::sort(ranges.begin(), ranges.end(), [](const LiveRange& a, const LiveRange& b) {
    return std::tuple(a.start, a.level == Level::kBlock ? 0 : 1, a.size) <
           std::tuple(b.start, b.level == Level::kBlock ? 0 : 1, b.size);
  });
  auto find = [&](uint64_t address) -> LiveRange* {
    auto next = std::upper_bound(ranges.begin(), ranges.end(), address,
                                 [](uint64_t value, const LiveRange& range) { return value < range.start; });
    // The nearest range that contains the address; a segment may begin far before blocks of another one.
    for (int back = 0; back < 4 && next != ranges.begin(); ++back) {
      --next;
      if (address - next->start < next->size) {
        // Prefer a block that begins where the segment does.
        while (next != ranges.begin() && (next - 1)->start == next->start &&
               (next - 1)->level == Level::kBlock && address - (next - 1)->start < (next - 1)->size) {
          --next;
        }
        return &*next;
      }
    }
    return nullptr;
  };

  CensusSummary summary;
  summary.number = census.number;
  summary.trigger = census.census.trigger();
  summary.time_us = census.time_us;
  summary.duration_us = census.census.duration_us();
  summary.memory_bytes = census.census.memory_bytes();
  summary.partial = census.census.partial();
  summary.objects = census.census.objects();
  summary.collector_enabled = census.census.collector_enabled();
  for (const Holder& holder : census.census.holder_entry())
    summary.holders.push_back(StaticPart(census, holder));
  for (int tensor = 0; tensor < census.tensors(); ++tensor) {
    LiveRange* range = find(census.census.address(tensor));
    const bool host = (census.FlagsOf(tensor) & Census::HOST) != 0;
    if (!host) ++summary.tensors;
    if (range == nullptr) continue;
    if (!host) ++summary.matched;
    range->tensors.push_back(tensor);
  }

  absl::flat_hash_map<std::tuple<OriginKey, int, int, uint32_t, uint32_t>, size_t> index;
  absl::flat_hash_map<uint32_t, uint32_t> text_index;
  auto text = [&](uint32_t source) -> uint32_t {
    if (source == 0) return 0;
    const auto [entry, added] = text_index.try_emplace(source, static_cast<uint32_t>(summary.texts.size()));
    if (added) summary.texts.emplace_back(census.Text(source));
    return entry->second;
  };
  auto add = [&](const LiveRange& range, const std::vector<int>& tensors, uint64_t bytes, bool pooled) {
    ++summary.allocations;
    summary.allocation_bytes += bytes;
    int chosen = -1;
    for (const int tensor : tensors) {
      if (chosen < 0 || std::pair(Rank(census, tensor), census.census.bytes(tensor)) >
                            std::pair(Rank(census, chosen), census.census.bytes(chosen))) {
        chosen = tensor;
      }
    }
    const int holder = chosen < 0 ? -1 : census.HolderOf(chosen);
    const Census::Role role = chosen < 0 ? Census::ROLE_UNKNOWN : census.RoleOf(chosen);
    // In a pool the birth of a segment says nothing of the arrays that lie in it.
    if (!pooled) Note(range.birth_index, range.size, chosen < 0 ? nullptr : &role);
    uint32_t shape = 0;
    uint32_t dtype = 0;
    if (chosen >= 0) {
      ++summary.held_allocations;
      summary.held_bytes += bytes;
      shape = census.census.shape(chosen);
      dtype = census.census.dtype(chosen);
    }
    const OriginKey key = KeyOf(model_.Site(range.site), range.device, range.level, range.space);
    const auto [entry, added] =
        index.try_emplace({key, holder, static_cast<int>(role), shape, dtype}, summary.groups.size());
    if (added) {
      HeldGroup group;
      group.site = range.site;
      group.holder = holder;
      group.role = role;
      group.level = range.level;
      group.space = range.space;
      group.device = range.device;
      if (chosen >= 0) {
        summary.texts.push_back(std::string(census.Text(dtype)) + (dtype != 0 ? " " : "") +
                                std::string(census.Text(shape)));
        group.shape = static_cast<uint32_t>(summary.texts.size() - 1);
        group.grad_fn = text(census.census.grad_fn(chosen));
        group.name = text(census.census.name(chosen));
      }
      summary.groups.push_back(group);
    }
    HeldGroup& group = summary.groups[entry->second];
    group.streams.insert(model_.Site(range.site).stream);
    group.tensors += tensors.size();
    ++group.allocations;
    group.bytes += bytes;
    uint64_t own = 0;
    for (const int tensor : tensors) {
      own = std::max(own, census.census.bytes(tensor));
      group.flags |= census.FlagsOf(tensor);
    }
    group.tensor_bytes += std::min(own, bytes);
    group.pooled |= pooled;
    if (pooled) return;
    group.oldest_us = std::min(group.oldest_us, range.birth_time_us);
    group.youngest_us = std::max(group.youngest_us, range.birth_time_us);
  };

  for (const LiveRange& range : ranges) {
    // A pool that shows only its segments: each storage in it speaks for itself.
    absl::flat_hash_map<uint64_t, std::vector<int>> storages;
    if (range.level == Level::kSegment) {
      for (const int tensor : range.tensors) storages[census.census.address(tensor)].push_back(tensor);
    }
    bool pooled = storages.size() > 1;
    for (const auto& [address, tensors] : storages) {
      const uint64_t own = std::max(census.census.storage_bytes(tensors[0]), census.census.bytes(tensors[0]));
      pooled |= own < range.size / 2;
    }
    if (!pooled) {
      add(range, range.tensors, range.size, false);
      continue;
    }
    for (const auto& [address, tensors] : storages) {
      uint64_t own = 0;
      for (const int tensor : tensors) {
        own = std::max({own, census.census.storage_bytes(tensor), census.census.bytes(tensor)});
      }
      add(range, tensors, own, true);
    }
  }
  censuses_.push_back(std::move(summary));
}

std::vector<HeldBy> Holders::Collect(const CensusSummary& census, const std::vector<const HeldGroup*>& groups,
                                     const Findings& findings, Symbolizer& symbols) const {
  struct Sum {
    HeldBy held;
    SiteId site = 0;
    uint64_t site_bytes = 0;
    std::set<uint64_t> streams;
    absl::flat_hash_map<std::string, uint64_t> shapes;
  };
  absl::flat_hash_map<int, Sum> sums;
  for (const HeldGroup* group : groups) {
    Sum& sum = sums[group->holder];
    if (sum.held.kind.empty()) {
      if (group->holder >= 0) {
        sum.held = census.holders[static_cast<size_t>(group->holder)];
      } else {
        sum.held.kind = "none";
        sum.held.text = HeldBy::kNoObject;
      }
      sum.held.oldest_us = UINT64_MAX;
    }
    HeldBy& held = sum.held;
    sum.streams.insert(group->streams.begin(), group->streams.end());
    held.tensors += group->tensors;
    held.allocations += group->allocations;
    held.bytes += group->bytes;
    held.tensor_bytes += group->tensor_bytes;
    held.oldest_us = std::min(held.oldest_us, group->oldest_us);
    held.youngest_us = std::max(held.youngest_us, group->youngest_us);
    held.pooled |= group->pooled;
    held.views |= (group->flags & Census::VIEW) != 0 && group->tensor_bytes * 2 <= group->bytes &&
                  group->tensor_bytes + 512 < group->bytes;
    if (group->grad_fn != 0 && held.grad_fn.empty()) held.grad_fn = census.texts[group->grad_fn];
    if (group->shape != 0) sum.shapes[census.texts[group->shape]] += group->bytes;
    if (group->bytes > sum.site_bytes) {
      sum.site_bytes = group->bytes;
      sum.site = group->site;
    }
  }
  std::vector<HeldBy> result;
  for (auto& [holder, sum] : sums) {
    HeldBy& held = sum.held;
    uint64_t most = 0;
    for (const auto& [shape, bytes] : sum.shapes) {
      if (bytes > most || (bytes == most && shape < held.shape)) {
        most = bytes;
        held.shape = shape;
      }
    }
    held.shapes = sum.shapes.size();
    const double now = StepAtTime(findings.steps, census.time_us);
    const double oldest = StepAtTime(findings.steps, held.oldest_us);
    const double youngest = StepAtTime(findings.steps, held.youngest_us);
    const bool known = !held.pooled && held.oldest_us <= held.youngest_us;
    if (known && now >= 0 && oldest >= 0) held.oldest_steps = now - oldest;
    if (known && now >= 0 && youngest >= 0) held.youngest_steps = now - youngest;
    if (held.out_of_reach()) {
      const bool one_per_stream =
          held.allocations >= kFewestStreams && sum.streams.size() == held.allocations;
      UnheldReason why = WhyNoObject(model_, sum.site, one_per_stream, symbols);
      held.reason = std::move(why.text);
      held.next = std::move(why.next);
    }
    result.push_back(std::move(held));
  }
  std::sort(result.begin(), result.end(), [](const HeldBy& a, const HeldBy& b) {
    return std::tuple(b.bytes, b.allocations, a.text) < std::tuple(a.bytes, a.allocations, b.text);
  });
  return result;
}

void Holders::Conclude(const Findings& findings, Symbolizer& symbols) {
  absl::flat_hash_map<OriginKey, OriginId> origin_of_key;
  for (OriginId id = 0; id < findings.origins.size(); ++id) {
    const OriginSummary& origin = findings.origins[id];
    origin_of_key.emplace(KeyOf(model_.Site(origin.site), origin.device, origin.level, origin.space), id);
  }
  auto origin_of = [&](const HeldGroup& group) {
    const auto found =
        origin_of_key.find(KeyOf(model_.Site(group.site), group.device, group.level, group.space));
    return found == origin_of_key.end() ? kNoOrigin : found->second;
  };
  // Groups of each census by birth place.
  std::vector<OriginGroups> by_origin(censuses_.size());
  for (size_t i = 0; i < censuses_.size(); ++i) {
    for (const HeldGroup& group : censuses_[i].groups) by_origin[i][origin_of(group)].push_back(&group);
  }
  by_growth_.assign(findings.growth.size(), {});
  census_of_growth_.assign(findings.growth.size(), -1);
  for (size_t g = 0; g < findings.growth.size(); ++g) {
    // The census that saw the most of it, the latest of equals: at exit much is already gone.
    uint64_t most = 0;
    std::vector<const HeldGroup*> best;
    for (size_t i = 0; i < censuses_.size(); ++i) {
      uint64_t bytes = 0;
      std::vector<const HeldGroup*> groups;
      for (const OriginId origin : findings.growth[g].origins) {
        const auto found = by_origin[i].find(origin);
        if (found == by_origin[i].end()) continue;
        for (const HeldGroup* group : found->second) {
          bytes += group->bytes;
          groups.push_back(group);
        }
      }
      if (bytes == 0 || bytes < most) continue;
      most = bytes;
      best = std::move(groups);
      census_of_growth_[g] = static_cast<int>(i);
    }
    if (census_of_growth_[g] < 0) continue;
    by_growth_[g] = Collect(censuses_[static_cast<size_t>(census_of_growth_[g])], best, findings, symbols);
  }
  const auto held_groups = [](const CensusSummary& census) {
    std::vector<const HeldGroup*> groups;
    for (const HeldGroup& group : census.groups) {
      if (group.holder >= 0) groups.push_back(&group);
    }
    return groups;
  };
  int last = -1;
  for (size_t i = 0; i < censuses_.size(); ++i) {
    if (censuses_[i].held_bytes != 0) last = static_cast<int>(i);
  }
  if (last >= 0) {
    for (const HeldGroup* group : held_groups(censuses_[static_cast<size_t>(last)])) {
      const OriginId origin = origin_of(*group);
      const bool single = group->tensors == group->allocations && (group->flags & Census::VIEW) == 0;
      if (origin == kNoOrigin || group->level != Level::kBlock || group->pooled || !single) continue;
      rounding_[origin].bytes += group->bytes;
      rounding_[origin].rounding += group->bytes - group->tensor_bytes;
    }
    census_of_largest_ = last;
    for (size_t g = 0; g < findings.growth.size(); ++g) {
      if (findings.growth[g].kind != GrowthKind::kLeak || findings.growth[g].suppressed) continue;
      if (census_of_growth_[g] >= 0 && !by_growth_[g].empty() && !by_growth_[g].front().out_of_reach())
        census_of_largest_ = census_of_growth_[g];
      break;
    }
    const CensusSummary& census = censuses_[static_cast<size_t>(census_of_largest_)];
    largest_ = Collect(census, held_groups(census), findings, symbols);
  }
  // What grew was not seen as allocations (a pool that shows only its segments): the collections of tensors
  // are the candidates, and are called so.
  for (size_t g = 0; g < findings.growth.size(); ++g) {
    if (findings.growth[g].kind != GrowthKind::kUnattributed) continue;
    for (const HeldBy& held : largest_) {
      if (held.tensors < 8 || held.items < 8 || held.shapes > held.tensors / 2) continue;
      by_growth_[g].push_back(held);
      by_growth_[g].back().reason = "a collection of many device tensors; that it grew was not seen";
      if (by_growth_[g].size() == 3) break;
    }
  }
  absl::flat_hash_map<OriginId, BytesByRole> roles;
  for (const OriginGroups& groups : by_origin) {
    for (const auto& [origin, members] : groups) {
      if (origin == kNoOrigin) continue;
      for (const HeldGroup* group : members) {
        if (static_cast<int>(group->role) < kMemoryRoleCount)
          roles[origin][static_cast<size_t>(group->role)] += group->bytes;
      }
    }
  }
  peak_roles_ = FindPeakRoles(findings, model_, seen_, roles, symbols);
}

void Holders::Note(uint64_t birth_index, uint64_t size, const Census::Role* role) {
  SeenByCensus::Allocation& seen = seen_.allocations[birth_index];
  if (role == nullptr) return;
  seen.has_object = true;
  // A later census knows better, unless it no longer knows.
  if (*role != Census::ROLE_UNKNOWN && static_cast<int>(*role) < kMemoryRoleCount)
    seen.role = static_cast<MemoryRole>(*role);
  if (*role == Census::PARAMETER) seen_.parameter_sizes.insert(size);
}

void Holders::Tell(size_t growth, std::vector<HeldBy> holders) {
  if (growth < by_growth_.size()) by_growth_[growth] = std::move(holders);
}

const std::vector<HeldBy>& Holders::HoldersOf(size_t growth) const {
  static const std::vector<HeldBy> kNone;
  return growth < by_growth_.size() ? by_growth_[growth] : kNone;
}

const CensusSummary* Holders::OfLargest() const {
  return census_of_largest_ < 0 ? nullptr : &censuses_[static_cast<size_t>(census_of_largest_)];
}

const CensusSummary* Holders::CensusOf(size_t growth) const {
  if (growth >= census_of_growth_.size() || census_of_growth_[growth] < 0) return nullptr;
  return &censuses_[static_cast<size_t>(census_of_growth_[growth])];
}

}  // namespace gpumemtrace::analyzer
