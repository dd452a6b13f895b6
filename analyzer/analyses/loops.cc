#include "analyzer/analyses/loops.h"

#include <algorithm>
#include <cmath>

namespace gpumemtrace::analyzer {
namespace {

// Fewer iterations than this are no loop that growth could be told from.
constexpr uint64_t kFewestIterations = 4;
// Threads beyond these share one root: thousands of short-lived threads have no loop of their own.
constexpr size_t kMostThreads = 256;
// Kernels beyond these are not told apart: programs that compile without end.
constexpr size_t kMostKernels = 1u << 16;

}  // namespace

double Visits::Regularity() const {
  if (positions_.size() < 3) return 0.5;
  std::vector<double> gaps;
  gaps.reserve(positions_.size() - 1);
  for (size_t i = 1; i < positions_.size(); ++i) {
    gaps.push_back(static_cast<double>(positions_[i].index - positions_[i - 1].index));
  }
  std::vector<double> sorted = gaps;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2),
                   sorted.end());
  const double median = std::max(1.0, sorted[sorted.size() / 2]);
  double deviation = 0;
  for (double gap : gaps) deviation += std::abs(gap - median);
  deviation /= static_cast<double>(gaps.size());
  return 1.0 / (1.0 + deviation / median);
}

uint32_t LoopFinder::Child(uint32_t parent, uint64_t key, FrameId frame, bool leaf) {
  const auto [it, added] = child_index_.try_emplace({parent, key}, static_cast<uint32_t>(nodes_.size()));
  if (added) {
    Node node;
    node.parent = parent;
    node.frame = frame;
    node.leaf = leaf;
    // Positions of single stacks are kept only where no frame of the user's is known: there may be very many.
    node.keeps_visits = !leaf || (parent != 0 && nodes_[parent].parent == 0);
    if (parent != 0) {
      // Stacks take no place in the order of the lines.
      if (!leaf) node.ordinal = nodes_[parent].children++;
      node.depth = static_cast<uint16_t>(nodes_[parent].depth + 1);
    }
    nodes_.push_back(std::move(node));
    root_of_.resize(nodes_.size(), 0);
    root_of_[it->second] = parent == 0 ? it->second : root_of_[parent];
  }
  return it->second;
}

void LoopFinder::SeeLaunch(SiteId site, uint64_t kernel, uint64_t index, uint64_t time_us) {
  if (leaf_of_launch_.size() >= kMostKernels) kernel = 0;
  const auto [it, added] = leaf_of_launch_.try_emplace({site, kernel}, 0);
  if (added) it->second = AddLeaf(site, kernel);
  Step(it->second, index, time_us);
}

uint32_t LoopFinder::AddLeaf(SiteId site, uint64_t kernel) {
  const SiteInfo& info = model_.Site(site);
  const ThreadId thread =
      roots_.size() < kMostThreads || roots_.contains(info.thread) ? info.thread : UINT32_MAX;
  const uint32_t root = Child(0, thread, 0, false);
  roots_[thread] = root;
  previous_.resize(std::max<size_t>(previous_.size(), root + 1), 0);
  Origin stacks;
  stacks.native = info.native_stack;
  stacks.python = info.python_stack;
  bool optimizer = false;
  for (StackId node = info.python_stack; node != 0; node = model_.Node(node).parent) {
    const FrameInfo& frame = model_.Frame(model_.Node(node).frame);
    if (!frame.is_python()) continue;
    const CodeObjectInfo& code = model_.Code(frame.code_object);
    if (model_.String(code.file).find("torch/optim/") != std::string_view::npos &&
        model_.String(code.qualified_name).find("step") != std::string_view::npos) {
      optimizer = true;
    }
  }
  uint32_t parent = root;
  for (FrameId frame : origins_.UserPath(stacks)) parent = Child(parent, frame, frame, false);
  if (optimizer && parent != root) nodes_[parent].optimizer = true;
  const uint64_t key = (uint64_t{1} << 63) | (static_cast<uint64_t>(info.native_stack) << 32 >> 1) |
                       (info.python_stack & 0x7fffffffu);
  const uint32_t leaf = Child(
      parent, key ^ (static_cast<uint64_t>(info.forward_stack) << 20) ^ (kernel * 0x9e3779b97f4a7c15u >> 1),
      0, true);
  nodes_[leaf].handle =
      info.kind == EventKind::kHandleCreate && !IsHandleOfTheDriver(model_.String(info.api));
  return leaf;
}

const Visits& LoopFinder::VisitsOf(const Node& node) const {
  if (node.strong.count() >= kFewestIterations) return node.strong;
  return node.handles.count() >= kFewestIterations ? node.handles : node.all;
}

void LoopFinder::Step(uint32_t leaf, uint64_t index, uint64_t time_us) {
  const uint32_t root = root_of_[leaf];
  uint32_t& previous = previous_[root];
  Node& node = nodes_[leaf];
  ++node.births;
  node.last_index = index;
  node.last_time_us = time_us;
  // A record among the stacks below this line: with several stacks a line, only the first of them to come
  // again counts.
  const bool again = node.births > nodes_[node.parent].most_births && node.births > 1;
  nodes_[node.parent].most_births = std::max(nodes_[node.parent].most_births, node.births);
  if (node.handle && node.births > nodes_[node.parent].most_handles) {
    nodes_[node.parent].most_handles = node.births;
    for (uint32_t at = node.parent; at != root; at = nodes_[at].parent) {
      nodes_[at].handles.Add(index, time_us);
      if (nodes_[at].ordinal != 0) break;
    }
  }
  if (previous == leaf || (previous != 0 && nodes_[previous].parent == node.parent)) {
    // Another stack below the same line. The line ran again when its most frequent stack comes again, and so
    // did every caller whose first line this is.
    previous = leaf;
    if (!again) return;
    if (node.keeps_visits) node.all.Add(index, time_us);
    for (uint32_t at = node.parent; at != root; at = nodes_[at].parent) {
      nodes_[at].all.Add(index, time_us);
      if (nodes_[at].ordinal != 0) break;
    }
    return;
  }
  uint32_t b = leaf;
  if (previous == 0) {
    for (; b != root; b = nodes_[b].parent) {
      Enter(nodes_[b], index, time_us);
    }
    previous = leaf;
    return;
  }
  // Enter the nodes below the lowest common ancestor.
  uint32_t a = previous;
  uint32_t topmost = leaf;
  while (a != b) {
    if (nodes_[b].depth >= nodes_[a].depth) {
      Node& entered = nodes_[b];
      Enter(entered, index, time_us);
      topmost = b;
      b = entered.parent;
    } else {
      a = nodes_[a].parent;
    }
  }
  previous = leaf;
  // `topmost` came again as the first child: its callers run anew.
  if (nodes_[topmost].leaf || nodes_[topmost].ordinal != 0 || nodes_[topmost].entries < 2) return;
  for (uint32_t at = b; at != root; at = nodes_[at].parent) {
    nodes_[at].strong.Add(index, time_us);
    nodes_[at].all.Add(index, time_us);
    if (nodes_[at].ordinal != 0) break;
  }
}

void LoopFinder::Collect(uint32_t root, const std::vector<std::vector<uint32_t>>& children,
                         const std::vector<uint64_t>& births, uint64_t all_births,
                         std::vector<Candidate>& out) const {
  std::vector<uint32_t> todo{root};
  const double thread_share =
      static_cast<double>(births[root]) / static_cast<double>(std::max<uint64_t>(1, all_births));
  while (!todo.empty()) {
    const uint32_t parent = todo.back();
    todo.pop_back();
    struct Vote {
      uint32_t node;
      const Visits* visits;
    };
    std::vector<Vote> votes;
    uint64_t last_index = 0;
    uint64_t last_time = 0;
    for (uint32_t child : children[parent]) {
      const Node& node = nodes_[child];
      last_index = std::max(last_index, node.last_index);
      last_time = std::max(last_time, node.last_time_us);
      if (!node.leaf) todo.push_back(child);
      // Stacks themselves vote only where no frame of the user's is known.
      if (node.leaf && parent != root) continue;
      const Visits& visits = VisitsOf(node);
      if (visits.count() >= kFewestIterations) votes.push_back({child, &visits});
    }
    std::sort(votes.begin(), votes.end(),
              [](const Vote& x, const Vote& y) { return x.visits->count() < y.visits->count(); });
    for (size_t begin = 0, alike = 0; begin < votes.size();) {
      // Lines of one loop run equally often, but for the last, unfinished iteration, ...
      if (alike <= begin) {
        const uint64_t least = votes[begin].visits->count();
        const uint64_t slack = std::max<uint64_t>(1, least / 200);
        while (alike < votes.size() && votes[alike].visits->count() <= least + slack) ++alike;
        std::sort(votes.begin() + static_cast<std::ptrdiff_t>(begin),
                  votes.begin() + static_cast<std::ptrdiff_t>(alike), [](const Vote& x, const Vote& y) {
                    return x.visits->positions().front().index < y.visits->positions().front().index;
                  });
      }
      // ... and at the same time: two phases of a program may have loops of equal length.
      uint64_t reach = votes[begin].visits->positions().back().index;
      size_t end = begin + 1;
      for (; end < alike && votes[end].visits->positions().front().index <= reach; ++end)
        reach = std::max(reach, votes[end].visits->positions().back().index);
      const uint32_t count = static_cast<uint32_t>(end - begin);
      // The line that comes first in the loop begins an iteration. Lines that ran as often by chance, e.g.
      // while as many layers were made as there are steps, span less of the run or repeat one stack only.
      const auto span = [](const Vote& vote) {
        const auto& positions = vote.visits->positions();
        return positions.back().index - positions.front().index;
      };
      uint64_t widest = 0;
      bool any_strong = false;
      for (size_t i = begin; i < end; ++i) {
        widest = std::max(widest, span(votes[i]));
        any_strong = any_strong || votes[i].visits == &nodes_[votes[i].node].strong;
      }
      size_t first = end;
      for (size_t i = begin; i < end; ++i) {
        const bool strong = votes[i].visits == &nodes_[votes[i].node].strong;
        if (span(votes[i]) * 2 < widest || (any_strong && !strong)) continue;
        if (first == end || nodes_[votes[i].node].ordinal < nodes_[votes[first].node].ordinal) first = i;
      }
      // The widest may be a repetition of one stack beside certain lines that span little.
      if (first == end) {
        first = begin;
        for (size_t i = begin; i < end; ++i) {
          if (span(votes[i]) > span(votes[first])) first = i;
        }
      }
      Candidate candidate;
      candidate.visits = votes[first].visits;
      candidate.frame = nodes_[votes[first].node].frame;
      candidate.caller = nodes_[parent].frame;
      candidate.last_index = last_index;
      candidate.last_time_us = last_time;
      candidate.votes = count;
      candidate.births = births[votes[first].node];
      candidate.native = candidate.frame != 0 && !model_.Frame(candidate.frame).is_python();
      // All that happens in the function of the loop, also in lines that run more or less often, but not in
      // other loops before or after it.
      uint64_t own = births[parent];
      const uint64_t start = votes[begin].visits->positions().front().index;
      for (const Vote& vote : votes) {
        const auto& positions = vote.visits->positions();
        if (positions.front().index > reach || positions.back().index < start) own -= births[vote.node];
      }
      const double share =
          static_cast<double>(own) / static_cast<double>(std::max<uint64_t>(1, births[root]));
      const double n = static_cast<double>(candidate.visits->count());
      candidate.score = (1.0 - std::pow(0.5, count)) * candidate.visits->Regularity() *
                        std::pow(0.8, nodes_[parent].depth) * share * std::min(1.0, n / 16.0) *
                        (0.5 + 0.5 * thread_share);
      if (candidate.frame == 0) candidate.score *= 0.01;
      candidate.weak = votes[first].visits == &nodes_[votes[first].node].all;
      if (candidate.weak) candidate.score *= 0.3;
      for (uint32_t child : children[parent]) {
        if (nodes_[child].optimizer && nodes_[child].entries > candidate.optimizer_calls) {
          candidate.optimizer_calls = nodes_[child].entries;
          candidate.optimizer_frame = nodes_[child].frame;
        }
      }
      out.push_back(candidate);
      begin = end;
    }
  }
}

void Visits::AddMany(uint64_t count, Position first, Position last) {
  for (uint64_t i = 0; i < count;) {
    const uint64_t behind = count_ % stride_;
    if (behind != 0) {
      const uint64_t skip = std::min(count - i, stride_ - behind);
      count_ += skip;
      i += skip;
      continue;
    }
    const double part = static_cast<double>(i) / static_cast<double>(count);
    Add(first.index + static_cast<uint64_t>(part * static_cast<double>(last.index - first.index)),
        first.time_us + static_cast<uint64_t>(part * static_cast<double>(last.time_us - first.time_us)));
    ++i;
  }
}

uint32_t LoopFinder::AddFolded(uint64_t first_index, uint64_t last_index, uint64_t first_time_us,
                               uint64_t last_time_us) {
  stretches_.push_back({{first_index, first_time_us},
                        {std::max(first_index, last_index), std::max(first_time_us, last_time_us)}});
  return static_cast<uint32_t>(stretches_.size() - 1);
}

void LoopFinder::SeeFolded(SiteId site, uint32_t stretch, uint64_t births) {
  if (site >= leaf_of_site_.size()) leaf_of_site_.resize(site + site / 2 + 16, 0);
  uint32_t leaf = leaf_of_site_[site];
  if (leaf == 0) leaf = leaf_of_site_[site] = AddLeaf(site, 0);
  std::vector<Seen>& seen = folded_[leaf];
  // Several sites may be one stack here.
  if (!seen.empty() && seen.back().stretch == stretch) {
    seen.back().births += births;
  } else {
    seen.push_back({stretch, births});
  }
}

Visits LoopFinder::Carried(const Visits& visits, const std::vector<Seen>& seen, uint64_t births) const {
  Visits result;
  const std::vector<Visits::Position>& positions = visits.positions();
  size_t at = 0;
  const auto take_until = [&](uint64_t index) {
    for (; at < positions.size() && positions[at].index < index; ++at) {
      const bool last = at + 1 == positions.size();
      const uint64_t count = last ? visits.count() - at * visits.stride() : visits.stride();
      result.AddMany(count, positions[at], last ? positions[at] : positions[at + 1]);
    }
  };
  for (const Seen& one : seen) {
    const Stretch& stretch = stretches_[one.stretch];
    take_until(stretch.first.index);
    const double times =
        static_cast<double>(one.births) * static_cast<double>(visits.count()) / static_cast<double>(births);
    result.AddMany(static_cast<uint64_t>(std::llround(times)), stretch.first, stretch.last);
  }
  take_until(UINT64_MAX);
  return result;
}

void LoopFinder::CarryThroughFolded() {
  if (stretches_.empty()) return;
  // The best stack below each node: whose births an iteration are nearest to a whole number, and few.
  struct Anchor {
    uint32_t leaf = 0;
    double misfit = 0;
  };
  std::vector<Anchor> strong(nodes_.size());
  std::vector<Anchor> all(nodes_.size());
  const auto offer = [](Anchor& anchor, uint32_t leaf, uint64_t births, const Visits& visits) {
    if (visits.count() < kFewestIterations || births < visits.count()) return;
    const double ratio = static_cast<double>(births) / static_cast<double>(visits.count());
    const double misfit = std::abs(ratio - std::round(ratio)) / ratio + ratio * 1e-4;
    if (anchor.leaf == 0 || misfit < anchor.misfit) anchor = {leaf, misfit};
  };
  for (const auto& [leaf, seen] : folded_) {
    const uint64_t births = nodes_[leaf].births;
    for (uint32_t at = leaf; at != 0; at = nodes_[at].parent) {
      if (!nodes_[at].keeps_visits) continue;
      offer(strong[at], leaf, births, nodes_[at].strong);
      offer(all[at], leaf, births, nodes_[at].all);
    }
  }
  for (uint32_t at = 1; at < nodes_.size(); ++at) {
    Node& node = nodes_[at];
    if (strong[at].leaf != 0) {
      node.strong = Carried(node.strong, folded_[strong[at].leaf], nodes_[strong[at].leaf].births);
      node.entries = std::max(node.entries, node.strong.count());
    }
    if (all[at].leaf != 0) node.all = Carried(node.all, folded_[all[at].leaf], nodes_[all[at].leaf].births);
  }
  for (const auto& [leaf, seen] : folded_) {
    for (const Seen& one : seen) nodes_[leaf].births += one.births;
  }
}

std::vector<LoopFinder::Candidate> LoopFinder::Candidates() {
  CarryThroughFolded();
  std::vector<std::vector<uint32_t>> children(nodes_.size());
  std::vector<uint64_t> births(nodes_.size(), 0);
  std::vector<Candidate> result;
  // Children have greater numbers than their parents.
  for (size_t i = nodes_.size(); i-- > 1;) {
    births[i] += nodes_[i].births;
    if (nodes_[i].parent != 0) {
      births[nodes_[i].parent] += births[i];
      children[nodes_[i].parent].push_back(static_cast<uint32_t>(i));
    }
  }
  // What happened below a node happened in it.
  for (size_t i = nodes_.size(); i-- > 1;) {
    Node& parent = nodes_[nodes_[i].parent];
    parent.last_index = std::max(parent.last_index, nodes_[i].last_index);
    parent.last_time_us = std::max(parent.last_time_us, nodes_[i].last_time_us);
  }
  uint64_t all = 0;
  for (const auto& [thread, root] : roots_) all += births[root];
  for (const auto& [thread, root] : roots_) Collect(root, children, births, all, result);
  std::sort(result.begin(), result.end(), [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.visits->count() > b.visits->count();
  });
  return result;
}

}  // namespace gpumemtrace::analyzer
