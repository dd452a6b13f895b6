#include "analyzer/report/remedies.h"

#include <algorithm>
#include <vector>

#include "analyzer/report/findings_text.h"
#include "analyzer/report/frameworks.h"
#include "analyzer/report/holders_text.h"
#include "analyzer/report/text.h"
#include "analyzer/symbols/names.h"

namespace gpumemtrace::analyzer {
namespace {

// What one keeper keeps, of all lines.
struct Kept {
  bool graphs = false;      // through an autograd graph
  bool direct = false;      // by itself
  bool all_scalars = true;  // of what it keeps by itself: numbers on the device, such as losses
  bool all_views = true;    // small parts of larger storages
  bool gradients = false;   // some of it has a graph of its own
  double direct_rate = 0;   // bytes per step
};

Kept WhatIsKept(const AnalyzedTrace& trace, const std::vector<size_t>& growths) {
  Kept kept;
  for (const size_t growth : growths) {
    const HeldBy& held = trace.holders.HoldersOf(growth).front();
    if (KeptByGraph(held)) {
      kept.graphs = true;
      continue;
    }
    kept.direct = true;
    kept.all_scalars &= held.shape.ends_with("()");
    kept.all_views &= held.views;
    kept.gradients |= !held.grad_fn.empty();
    kept.direct_rate += trace.analyses.findings().growth[growth].bytes_per_step;
  }
  return kept;
}

std::string_view CopyOnHost(Framework framework) {
  switch (framework) {
    case Framework::kPyTorch:
      return "storing copies on the CPU (.cpu())";
    case Framework::kJax:
      return "storing copies on the host (np.asarray(…) or jax.device_get(…))";
    case Framework::kCuPy:
      return "storing copies on the host (cupy.asnumpy(…))";
    case Framework::kOther:
      break;
  }
  return "storing copies on the host";
}

std::string_view CopyOfPart(Framework framework) {
  switch (framework) {
    case Framework::kPyTorch:
      return "keeping a copy of the part (.clone())";
    case Framework::kJax:
    case Framework::kCuPy:
      return "keeping a copy of the part (.copy())";
    case Framework::kOther:
      break;
  }
  return "keeping a copy of the part";
}

std::string OfContainer(const Kept& kept, const GrowthFinding& growth, Framework framework, bool real_steps,
                        const std::string& container) {
  // What a graph saves goes with the outputs that lead to the graph.
  if (!kept.direct) return "storing .detach() in " + container + ": what it holds keeps its autograd graph";
  if (kept.all_scalars) return "storing numbers (.item()), in " + container;
  if (growth.on_host()) return "a bound, or a few buffers that are used again, in " + container;
  if (kept.graphs) {
    return "a bound, or storing .detach().cpu(), in " + container + " (.detach() alone leaves " +
           RateText(kept.direct_rate, 0, real_steps) + ")";
  }
  if (kept.gradients)
    return "a bound, or storing .detach().cpu() (without .detach() the autograd graph stays), in " +
           container;
  return "a bound, or " + std::string(CopyOnHost(framework)) + ", in " + container;
}

std::string OfReference(const AnalyzedTrace& trace, const std::vector<size_t>& growths) {
  const Findings& findings = trace.analyses.findings();
  const GrowthFinding& growth = findings.growth[growths.front()];
  const HeldBy& held = trace.holders.HoldersOf(growths.front()).front();
  const Framework framework = FrameworkOf(trace, growth);
  const Kept kept = WhatIsKept(trace, growths);
  const auto names = [&held](std::string_view part) {
    return Contains(held.text, part) || Contains(held.detail, part);
  };
  if (kept.graphs && !kept.direct && (held.container.empty() || held.items <= 1))
    return "keeping .detach() or .item() of it instead, which lets its autograd graph go";
  if (kept.direct && kept.all_views && !kept.graphs)
    return std::string(CopyOfPart(framework)) + " instead of a view, so that the whole can go";
  if (names("__traceback__")) {
    return "keeping the text of the exception, not the exception: its traceback keeps the frames and what is "
           "in them";
  }
  if (Contains(held.container_type, "lru_cache") || names("cached value")) {
    return "a bound (maxsize) and keys that come again, such as shapes: " +
           std::string(TensorNoun(trace.model) == "tensor" ? "a tensor" : "an array") +
           " as an argument is a new key each time";
  }
  if (held.items > 1 && !held.container.empty() && (held.kind == "name" || KeptByGraph(held)))
    return OfContainer(kept, growth, framework, findings.steps.real(), Printable(held.container));
  return std::string(RemedyText(growth.remedy));
}

std::string OfCycle(const AnalyzedTrace& trace, size_t growth) {
  std::string breaking = "breaking the reference cycle that keeps it";
  const std::vector<HeldBy>& holders = trace.holders.HoldersOf(growth);
  if (!holders.empty() && holders.front().text.starts_with("ctx of ")) {
    breaking += " (ctx.save_for_backward(…) instead of an attribute of ctx)";
  } else if (!holders.empty() && Contains(holders.front().detail, ".__self__")) {
    breaking += " (weakref.WeakMethod for the bound method)";
  }
  const CensusSummary* census = trace.holders.CensusOf(growth);
  if (census == nullptr || census->collector_enabled) return "gc.collect(), or " + breaking;
  return "gc.enable() or gc.collect(), for the cyclic garbage collector, which alone frees a reference "
         "cycle, "
         "is switched off in this program; or " +
         breaking;
}

bool ForWantOfOtherStreams(const GrowthFinding& growth) {
  return growth.kind == GrowthKind::kStrandedCache && growth.other_streams && !growth.larger_requests;
}

}  // namespace

std::string WhatFrees(const AnalyzedTrace& trace, size_t number) {
  const GrowthFinding& growth = trace.analyses.findings().growth[number];
  const std::vector<HeldBy>& holders = trace.holders.HoldersOf(number);
  if (ForWantOfOtherStreams(growth)) {
    return "one stream, or a few, made once and used again; torch.cuda.empty_cache() would only give back "
           "what was stranded so far";
  }
  if (growth.remedy == Remedy::kExit && !holders.empty() && !holders.front().next.empty())
    return holders.front().next;
  if (growth.remedy == Remedy::kGarbageCollector) return OfCycle(trace, number);
  if (growth.remedy == Remedy::kReference && !holders.empty()) {
    std::vector<size_t> growths = SameKeeper(trace, number);
    std::erase_if(growths, [&](size_t other) {
      return trace.analyses.findings().growth[other].remedy != Remedy::kReference;
    });
    return OfReference(trace, growths);
  }
  if (growth.remedy == Remedy::kFree && !growth.api.empty())
    return "the release that belongs to the call that made it (seen in the driver as " +
           Printable(growth.api) + "); none came";
  return std::string(RemedyText(growth.remedy));
}

size_t FreedWith(const AnalyzedTrace& trace, size_t number) {
  const std::vector<GrowthFinding>& list = trace.analyses.findings().growth;
  const GrowthFinding& growth = list[number];
  // The cache of streams that are made anew in every step, where a workspace leaks for each of them.
  if (ForWantOfOtherStreams(growth)) {
    for (size_t i = 0; i < number; ++i) {
      const GrowthFinding& other = list[i];
      const bool streams = other.remedy == Remedy::kClearWorkspaces && other.kind == GrowthKind::kLeak;
      if (streams && !other.suppressed && other.device == growth.device) return i;
    }
  }
  const std::vector<size_t> growths = SameKeeper(trace, number);
  const size_t first = growths.front();
  return first < number && list[first].remedy == growth.remedy &&
                 WhatFrees(trace, first) == WhatFrees(trace, number)
             ? first
             : number;
}

}  // namespace gpumemtrace::analyzer
