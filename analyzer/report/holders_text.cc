#include "analyzer/report/holders_text.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "analyzer/report/frameworks.h"
#include "analyzer/report/text.h"
#include "analyzer/symbols/names.h"

namespace gpumemtrace::analyzer {
namespace {

constexpr std::string_view kGraphOf = "the autograd graph of ";
// Of keys that are joined, so many are named.
constexpr size_t kMostKeys = 3;

std::string Age(const HeldBy& held) {
  if (held.oldest_steps < 0) return "";
  const auto oldest = static_cast<uint64_t>(std::lround(held.oldest_steps));
  const auto youngest = static_cast<uint64_t>(std::lround(std::max(held.youngest_steps, 0.0)));
  if (oldest == youngest) return Plural(oldest, "step") + " old";
  return FormatCount(youngest) + " to " + Plural(oldest, "step") + " old";
}

std::string Stores(const HeldBy& held) {
  if (held.file.empty() || held.line == 0) return "";
  const std::string file = std::string(BaseName(held.file)) + ":";
  std::string result = file + std::to_string(held.line);
  for (size_t i = 0; i < held.lines.size() && i < 3; ++i)
    result += " and " + file + std::to_string(held.lines[i]);
  return result;
}

std::string Facts(const AnalyzedTrace& trace, const HeldBy& held) {
  std::string facts = CountText(trace, held);
  facts += ", " + FormatBytes(held.bytes);
  if (!held.shape.empty()) {
    facts += ", " + held.shape;
    if (held.shapes > 1) facts += " and " + Plural(held.shapes - 1, "other shape");
    if (held.shapes == 0) facts += " and other shapes";
  }
  if (!held.grad_fn.empty()) facts += ", grad_fn " + held.grad_fn;
  if (const std::string age = Age(held); !age.empty()) facts += ", " + age;
  if (held.views) {
    facts += "; views of " + FormatBytes(held.tensor_bytes) + " keep " + FormatBytes(held.bytes) + " alive";
  }
  return facts;
}

std::string Row(const AnalyzedTrace& trace, const HeldBy& held) {
  std::string row = "kept by " + held.Describe();
  if (held.out_of_reach()) {
    constexpr std::string_view kMeaning = " (neither del nor gc.collect() frees it)";
    row.insert(std::string_view("kept by ").size() + HeldBy::kNoObject.size(), kMeaning);
  }
  if (const std::string stores = Stores(held); !stores.empty()) {
    row += (held.kind == "frame" ? ", running at " : ", stored at ") + stores;
  }
  row += ": " + Facts(trace, held);
  return Printable(row);
}

// Where the last key or attribute of a path begins: of "kept[…]['a.b']" at "['a.b']".
size_t LastKey(std::string_view path) {
  if (path.ends_with("']")) return path.rfind("['");
  if (path.ends_with("]")) return path.rfind('[');
  return path.rfind('.');
}

// "kept[…]['a'], …['b'] and 4 more"; "" when the paths differ in more than the last key.
std::string JoinPaths(const std::vector<std::string>& paths) {
  const std::string& first = paths.front();
  const size_t key = LastKey(first);
  std::string joined = first;
  std::set<std::string> told{first};
  for (const std::string& path : paths) {
    if (path == first) continue;
    if (key == std::string::npos || LastKey(path) != key || path.compare(0, key, first, 0, key) != 0)
      return "";
    if (!told.insert(path).second) continue;
    if (told.size() <= kMostKeys) joined += ", …" + path.substr(key);
  }
  if (told.size() > kMostKeys) joined += " and " + std::to_string(told.size() - kMostKeys) + " more";
  return joined;
}

// The first is kept, with what all of them are together.
HeldBy SumOf(const std::vector<const HeldBy*>& members) {
  HeldBy sum = *members.front();
  std::vector<std::string> paths;
  std::set<std::string> shapes;
  bool all_shapes = true;
  for (const HeldBy* member : members) {
    paths.push_back(member->text);
    shapes.insert(member->shape);
    all_shapes &= member->shapes <= 1;
    if (member == members.front()) continue;
    sum.tensors += member->tensors;
    sum.allocations += member->allocations;
    sum.bytes += member->bytes;
    sum.tensor_bytes += member->tensor_bytes;
    sum.items = std::max(sum.items, member->items);
    sum.pooled |= member->pooled;
    // Of views, what keeps what is told only where all are.
    sum.views &= member->views;
    if (sum.grad_fn.empty()) sum.grad_fn = member->grad_fn;
    if (member->oldest_steps >= 0) {
      sum.youngest_steps = sum.oldest_steps < 0 ? member->youngest_steps
                                                : std::min(sum.youngest_steps, member->youngest_steps);
      sum.oldest_steps = std::max(sum.oldest_steps, member->oldest_steps);
    }
  }
  // 0: there are others, how many is not known.
  sum.shapes = all_shapes ? shapes.size() : members.size() == 1 ? sum.shapes : 0;
  const std::set<std::string> distinct(paths.begin(), paths.end());
  if (distinct.size() > 1) {
    std::string joined = JoinPaths(paths);
    sum.text = joined.empty() ? sum.text + " and " + Plural(distinct.size() - 1, "other path") : joined;
  }
  return sum;
}

// Names the keeper, so that two lines with one keeper have one name; "" = nothing that Python code could
// change.
std::string KeeperName(const HeldBy& held) {
  if (held.out_of_reach()) return "";
  if (held.kind == "cycle") return held.detail.empty() ? held.text : held.detail;
  if (!held.container.empty()) return held.container;
  const size_t graph = held.text.find(kGraphOf);
  return graph == std::string::npos ? held.text : held.text.substr(graph + kGraphOf.size());
}

// Leaks that the report shows.
bool ShownLeak(const GrowthFinding& growth) {
  return growth.kind == GrowthKind::kLeak && !growth.suppressed && !growth.told_by_memory;
}

std::string KeeperName(const AnalyzedTrace& trace, size_t growth) {
  const std::vector<HeldBy>& list = trace.holders.HoldersOf(growth);
  return list.empty() ? "" : KeeperName(list.front());
}

}  // namespace

bool KeptByGraph(const HeldBy& held) {
  return held.kind == "autograd" || (held.kind == "native" && Contains(held.text, kGraphOf));
}

std::string CountText(const AnalyzedTrace& trace, const HeldBy& held) {
  const std::string_view noun = TensorNoun(trace.model);
  if (held.tensors == 0) return Plural(held.allocations, "allocation");
  if (held.tensors <= held.allocations || held.allocations == 0) return Plural(held.tensors, noun);
  return Plural(held.allocations, "block") + " (shared by " + Plural(held.tensors, noun) + ")";
}

std::vector<HeldBy> JoinHolders(const std::vector<HeldBy>& holders) {
  std::vector<std::vector<const HeldBy*>> groups;
  for (const HeldBy& held : holders) {
    const auto same = [&held](const std::vector<const HeldBy*>& group) {
      const HeldBy& first = *group.front();
      return !held.container.empty() && held.container == first.container && held.kind == first.kind &&
             held.container_type == first.container_type && held.file == first.file &&
             held.line == first.line && held.detail == first.detail && held.reason == first.reason &&
             !JoinPaths({first.text, held.text}).empty();
    };
    const auto group = std::ranges::find_if(groups, same);
    if (group == groups.end()) {
      groups.push_back({&held});
    } else {
      group->push_back(&held);
    }
  }
  std::vector<HeldBy> joined;
  joined.reserve(groups.size());
  for (const std::vector<const HeldBy*>& group : groups) joined.push_back(SumOf(group));
  std::stable_sort(joined.begin(), joined.end(),
                   [](const HeldBy& a, const HeldBy& b) { return a.bytes > b.bytes; });
  return joined;
}

std::vector<size_t> SameKeeper(const AnalyzedTrace& trace, size_t growth) {
  const std::vector<GrowthFinding>& list = trace.analyses.findings().growth;
  const std::string keeper = KeeperName(trace, growth);
  if (keeper.empty() || !ShownLeak(list[growth])) return {growth};
  std::vector<size_t> same;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i == growth || (ShownLeak(list[i]) && list[i].bytes_known == list[growth].bytes_known &&
                        list[i].on_host() == list[growth].on_host() && KeeperName(trace, i) == keeper)) {
      same.push_back(i);
    }
  }
  return same;
}

HolderParts KeeperOf(const AnalyzedTrace& trace, const std::vector<size_t>& growths) {
  const std::string keeper = KeeperName(trace, growths.front());
  if (keeper.empty()) return {};
  std::vector<const HeldBy*> direct;
  std::vector<const HeldBy*> graphs;
  for (const size_t growth : growths) {
    for (const HeldBy& held : trace.holders.HoldersOf(growth)) {
      if (KeeperName(held) != keeper) continue;
      // What a variable holds now is not what its graph gathered.
      const bool of_now = held.kind == "name" && held.container.empty() && held.items < 0;
      if (of_now && &held != &trace.holders.HoldersOf(growth).front()) continue;
      (KeptByGraph(held) ? graphs : direct).push_back(&held);
    }
  }
  if (direct.empty()) {
    // A path of Python objects says more than that there must be one in C++.
    std::stable_partition(graphs.begin(), graphs.end(),
                          [](const HeldBy* held) { return held->kind == "autograd"; });
    const HeldBy& first = *graphs.front();
    HeldBy sum = SumOf(graphs);
    return {Printable(first.Describe()), Printable(Stores(first)), Printable(Facts(trace, sum))};
  }
  const HeldBy named = SumOf(direct);
  std::string who = named.Describe();
  if (!graphs.empty()) who += " and the autograd graph of what it holds";
  direct.insert(direct.end(), graphs.begin(), graphs.end());
  return {Printable(who), Printable(Stores(named)), Printable(Facts(trace, SumOf(direct)))};
}

nlohmann::ordered_json HeldJson(const HeldBy& held) {
  nlohmann::ordered_json json;
  json["text"] = Printable(held.Describe());
  json["path"] = Printable(held.text);
  if (!held.example.empty()) json["example"] = Printable(held.example);
  json["kind"] = held.kind;
  json["file"] = Printable(held.file);
  json["line"] = held.line;
  if (!held.lines.empty()) json["more_lines"] = held.lines;
  if (!held.container.empty()) json["container"] = Printable(held.container);
  if (!held.container_type.empty()) json["container_type"] = Printable(held.container_type);
  if (held.items >= 0) json["items"] = held.items;
  if (!held.owner.empty()) json["owner"] = Printable(held.owner);
  if (!held.detail.empty()) json["detail"] = Printable(held.detail);
  if (!held.reason.empty()) json["reason"] = held.reason;
  json["tensors"] = held.tensors;
  json["allocations"] = held.allocations;
  json["bytes"] = held.bytes;
  json["tensor_bytes"] = held.tensor_bytes;
  if (!held.shape.empty()) json["shape"] = Printable(held.shape);
  json["shapes"] = held.shapes;
  if (!held.grad_fn.empty()) json["grad_fn"] = Printable(held.grad_fn);
  json["views"] = held.views;
  if (held.oldest_steps >= 0) json["oldest_steps"] = held.oldest_steps;
  if (held.youngest_steps >= 0) json["youngest_steps"] = held.youngest_steps;
  return json;
}

std::vector<std::string> HolderRows(const AnalyzedTrace& trace, size_t growth, size_t most) {
  const std::vector<HeldBy> list = JoinHolders(trace.holders.HoldersOf(growth));
  std::vector<std::string> rows;
  for (const HeldBy& held : list) {
    if (rows.size() == most) {
      rows.push_back("and by " + Plural(list.size() - most, "other holder"));
      break;
    }
    rows.push_back(Row(trace, held));
  }
  return rows;
}

void AddHolders(const AnalyzedTrace& trace, size_t growth, nlohmann::ordered_json& json) {
  const std::vector<HeldBy>& list = trace.holders.HoldersOf(growth);
  if (list.empty()) return;
  json["held_by"] = HeldJson(list.front());
  nlohmann::ordered_json& all = json["holders"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < list.size() && i < 20; ++i) all.push_back(HeldJson(list[i]));
}

}  // namespace gpumemtrace::analyzer
