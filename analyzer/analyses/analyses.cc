#include "analyzer/analyses/analyses.h"

#include <map>
#include <utility>

#include "analyzer/analyses/account.h"
#include "analyzer/analyses/collector.h"
#include "analyzer/analyses/growth.h"
#include "analyzer/analyses/peak.h"
#include "analyzer/analyses/places.h"
#include "analyzer/analyses/steps.h"
#include "analyzer/analyses/suppressions.h"
#include "analyzer/analyses/verdict.h"

namespace gpumemtrace::analyzer {

class Analyses::Implementation {
 public:
  Implementation(Ledger& ledger, const AnalysesOptions& options)
      : options_(options), collector_(ledger.model(), options.user_code, options.snapshots) {
    ledger.AddObserver(&collector_);
  }

  void Conclude(Symbolizer& symbols, Findings& findings) {
    Places places(collector_.model(), collector_.origins(), symbols);
    FoundSteps found = FindSteps(collector_, places, options_.step_range);
    findings.steps = std::move(found.steps);
    findings.growth = FindGrowth(collector_, places, findings.steps);
    for (const Steps& later : found.later) AddLaterLeaks(collector_, places, later, findings.growth);
    Suppress(symbols, findings);
    findings.peaks = FindPeaks(collector_, places, findings.steps);
    findings.advice = AdvisePeaks(collector_, places, findings.steps, findings.peaks);
    findings.live = FindLive(collector_, places);
    findings.accounts = MakeAccounts(collector_, findings.steps);
    findings.fragmentation = FindFragmentation(collector_, places, findings.steps);
    for (GrowthFinding& growth : findings.growth) {
      if (growth.kind != GrowthKind::kStrandedCache) continue;
      for (const FragmentationFinding& pool : findings.fragmentation)
        growth.other_streams |= pool.device == growth.device && pool.why.other_streams * 2 > pool.why.free;
    }
    findings.out_of_memory = ExplainOutOfMemory(collector_, places, findings.steps);
    findings.out_of_memory_count = collector_.out_of_memory_count();
    findings.errors = FindErrors(collector_, places, findings.steps);
    for (const auto& [number, device] : collector_.devices()) {
      findings.timelines.push_back({number, device->timeline.points()});
    }
    Summarize(places, findings);
    NameSnapshots(places, findings);
    findings.changes = collector_.changes();
    findings.gaps = collector_.gaps();
    findings.verdict = MakeVerdict(findings, findings.changes, findings.gaps);
    findings.concluded = true;
  }

 private:
  void Suppress(Symbolizer& symbols, Findings& findings) {
    const Suppressions suppressions(options_.suppressions);
    if (suppressions.empty()) return;
    for (GrowthFinding& growth : findings.growth) {
      for (OriginId origin : growth.origins) {
        for (const MergedFrame& frame :
             symbols.Merge(collector_.model().Site(collector_.origins()[origin].site))) {
          for (const Location& location : symbols.Resolve(frame.frame)) {
            for (std::string_view name :
                 {std::string_view(location.function), std::string_view(location.file),
                  std::string_view(location.module)}) {
              const std::string_view pattern = suppressions.Match(name);
              if (pattern.empty() || growth.suppressed) continue;
              growth.suppressed = true;
              growth.suppressed_by = std::string(pattern);
            }
          }
        }
      }
    }
  }

  void Summarize(Places& places, Findings& findings) {
    OriginTable& origins = collector_.origins();
    for (OriginId id = 0; id < origins.size(); ++id) {
      const Origin& origin = origins[id];
      OriginSummary summary;
      summary.site = origin.site;
      summary.level = origin.level;
      summary.space = origin.space;
      summary.device = origin.device;
      summary.group = places.Merged(origin.group);
      summary.phase = origin.phase;
      summary.library = origins.library_name(origin.library);
      if (id < collector_.usage().size()) {
        const Usage& usage = collector_.usage()[id];
        summary.births = usage.births;
        summary.born_bytes = usage.born_bytes;
        summary.live_count = usage.count;
        summary.live_bytes = usage.bytes;
        summary.first_index = usage.first_index;
        summary.last_index = usage.last_index;
        summary.allocator_segment = collector_.allocator_origin(id);
      }
      findings.origins.push_back(std::move(summary));
    }
    for (GroupId group = 0; group < origins.group_count(); ++group)
      findings.groups.push_back(places.OfGroup(group));
  }

  void NameSnapshots(Places& places, Findings& findings) {
    for (size_t i = 0; i < collector_.snapshots().size(); ++i) {
      Snapshot snapshot;
      snapshot.index = options_.snapshots[i];
      snapshot.taken = true;
      std::map<GroupId, SharePlace> lines;
      const auto& usage = collector_.snapshots()[i];
      for (OriginId id = 0; id < usage.size(); ++id) {
        const Origin& origin = collector_.origins()[id];
        const bool counts = origin.level == Level::kBlock ||
                            (origin.level == Level::kSegment && !collector_.allocator_origin(id));
        if (!counts || usage[id].second == 0) continue;
        const GroupId group = places.Merged(origin.group);
        SharePlace& line = lines[group];
        line.group = group;
        line.bytes += usage[id].first;
        line.count += usage[id].second;
        line.origins.push_back({id, usage[id].first, usage[id].second});
        snapshot.bytes += usage[id].first;
      }
      for (auto& [group, line] : lines) {
        line.place = places.OfGroup(group);
        snapshot.by_line.push_back(std::move(line));
      }
      findings.snapshots.push_back(std::move(snapshot));
    }
  }

  AnalysesOptions options_;
  Collector collector_;
};

Analyses::Analyses(Ledger& ledger, const AnalysesOptions& options)
    : implementation_(std::make_unique<Implementation>(ledger, options)) {}
Analyses::~Analyses() = default;

void Analyses::Conclude(Symbolizer& symbols) {
  implementation_->Conclude(symbols, findings_);
}

}  // namespace gpumemtrace::analyzer
