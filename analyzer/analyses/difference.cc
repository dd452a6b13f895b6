#include "analyzer/analyses/difference.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>

#include "analyzer/symbols/names.h"

namespace gpumemtrace::analyzer {
namespace {

// What stays when lines move and folders differ.
using FunctionKey = std::tuple<std::string, std::string, std::string, bool>;
FunctionKey KeyOf(const Place& place) {
  return {std::string(BaseName(place.file)), place.function, place.module, place.backward};
}

uint64_t Distance(uint64_t a, uint64_t b) {
  return a > b ? a - b : b - a;
}

// Pairs the lines of one function. Both lists are in order of lines; a pairing that keeps the order, with the
// least difference in bytes, is found as in comparing two texts.
void Align(const std::vector<const LineFigures*>& before, const std::vector<const LineFigures*>& after,
           std::vector<LineDifference>& out) {
  const size_t n = before.size();
  const size_t m = after.size();
  // cost[i][j]: least cost of aligning the first i with the first j. Leaving a line alone costs its bytes and
  // one.
  std::vector<std::vector<double>> cost(n + 1, std::vector<double>(m + 1, 0));
  const auto alone = [](const LineFigures* line) { return static_cast<double>(line->bytes) + 1; };
  const auto pair = [](const LineFigures* a, const LineFigures* b) {
    return static_cast<double>(Distance(a->bytes, b->bytes)) + (a->place.line == b->place.line ? 0.0 : 0.5);
  };
  for (size_t i = 1; i <= n; ++i) cost[i][0] = cost[i - 1][0] + alone(before[i - 1]);
  for (size_t j = 1; j <= m; ++j) cost[0][j] = cost[0][j - 1] + alone(after[j - 1]);
  for (size_t i = 1; i <= n; ++i) {
    for (size_t j = 1; j <= m; ++j) {
      cost[i][j] = std::min({cost[i - 1][j - 1] + pair(before[i - 1], after[j - 1]),
                             cost[i - 1][j] + alone(before[i - 1]), cost[i][j - 1] + alone(after[j - 1])});
    }
  }
  size_t i = n;
  size_t j = m;
  while (i != 0 || j != 0) {
    LineDifference difference;
    if (i != 0 && j != 0 && cost[i][j] == cost[i - 1][j - 1] + pair(before[i - 1], after[j - 1])) {
      difference.before = *before[--i];
      difference.after = *after[--j];
    } else if (i != 0 && cost[i][j] == cost[i - 1][j] + alone(before[i - 1])) {
      difference.before = *before[--i];
      difference.is_gone = true;
    } else {
      difference.after = *after[--j];
      difference.is_new = true;
    }
    out.push_back(std::move(difference));
  }
}

}  // namespace

std::vector<LineDifference> Compare(std::vector<LineFigures> before, std::vector<LineFigures> after) {
  std::map<FunctionKey, std::pair<std::vector<const LineFigures*>, std::vector<const LineFigures*>>>
      functions;
  const auto by_line = [](const LineFigures& a, const LineFigures& b) { return a.place.line < b.place.line; };
  std::stable_sort(before.begin(), before.end(), by_line);
  std::stable_sort(after.begin(), after.end(), by_line);
  for (const LineFigures& line : before) functions[KeyOf(line.place)].first.push_back(&line);
  for (const LineFigures& line : after) functions[KeyOf(line.place)].second.push_back(&line);
  std::vector<LineDifference> result;
  for (const auto& [key, sides] : functions) {
    // A function with thousands of allocating lines is generated code: pair by line alone.
    if (sides.first.size() * sides.second.size() > 1'000'000) {
      std::map<uint32_t, LineDifference> lines;
      for (const LineFigures* line : sides.first) lines[line->place.line].before = *line;
      for (const LineFigures* line : sides.second) lines[line->place.line].after = *line;
      for (auto& [number, line] : lines) {
        line.is_new = line.before.place.function.empty();
        line.is_gone = line.after.place.function.empty();
        result.push_back(std::move(line));
      }
      continue;
    }
    Align(sides.first, sides.second, result);
  }
  std::stable_sort(result.begin(), result.end(), [](const LineDifference& a, const LineDifference& b) {
    return std::llabs(a.bytes()) > std::llabs(b.bytes());
  });
  return result;
}

std::vector<LineFigures> PeakLines(const Findings& findings) {
  std::vector<LineFigures> lines;
  std::map<GroupId, size_t> index;
  for (const PeakFinding& peak : findings.peaks) {
    const bool has_blocks =
        std::any_of(findings.peaks.begin(), findings.peaks.end(), [&](const PeakFinding& other) {
          return other.device == peak.device && other.level == Level::kBlock;
        });
    if (peak.level == Level::kSegment && has_blocks) continue;
    for (const SharePlace& share : peak.by_line) {
      const auto [it, added] = index.try_emplace(share.group, lines.size());
      if (added) lines.push_back({share.place, 0, 0, 0});
      lines[it->second].bytes += share.bytes;
      lines[it->second].count += share.count;
    }
  }
  for (const GrowthFinding& growth : findings.growth) {
    if (growth.kind != GrowthKind::kLeak) continue;
    for (LineFigures& line : lines) {
      if (KeyOf(line.place) == KeyOf(growth.place) && line.place.line == growth.place.line) {
        line.bytes_per_step += growth.bytes_per_step;
        break;
      }
    }
  }
  return lines;
}

std::vector<LineFigures> SnapshotLines(const Snapshot& snapshot) {
  std::vector<LineFigures> lines;
  for (const SharePlace& share : snapshot.by_line)
    lines.push_back({share.place, share.bytes, share.count, 0});
  return lines;
}

}  // namespace gpumemtrace::analyzer
