// `gpumem-analyze diff`: what grew and what is new between two runs, or between two steps of one run.
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "analyzer/analyses/difference.h"
#include "analyzer/commands/commands.h"
#include "analyzer/commands/trace_options.h"
#include "analyzer/report/findings_text.h"

namespace gpumemtrace::analyzer {
namespace {

struct DiffOptions {
  TraceOptions trace;
  std::vector<std::string> paths;
  std::vector<uint64_t> steps;
  size_t rows = 20;
  bool json = false;
};

void Print(const std::string& heading, const std::vector<LineDifference>& lines, const DiffOptions& options,
           nlohmann::ordered_json json) {
  if (options.json) {
    nlohmann::ordered_json& list = json["lines"] = nlohmann::ordered_json::array();
    for (const LineDifference& line : lines) {
      nlohmann::ordered_json entry;
      entry["before"] = line.is_new ? nlohmann::ordered_json(nullptr) : PlaceJson(line.before.place);
      entry["after"] = line.is_gone ? nlohmann::ordered_json(nullptr) : PlaceJson(line.after.place);
      entry["bytes_before"] = line.before.bytes;
      entry["bytes_after"] = line.after.bytes;
      entry["bytes_difference"] = line.bytes();
      entry["count_difference"] =
          static_cast<int64_t>(line.after.count) - static_cast<int64_t>(line.before.count);
      entry["growth_difference"] = line.growth();
      entry["state"] = line.is_new ? "new" : line.is_gone ? "gone" : "both";
      list.push_back(std::move(entry));
    }
    std::printf("%s\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return;
  }
  TextWriter out({.color = isatty(STDOUT_FILENO) != 0});
  out.Line(out.Bold(heading));
  std::vector<std::vector<std::string>> rows;
  size_t hidden = 0;
  for (const LineDifference& line : lines) {
    if (line.bytes() == 0 && line.growth() == 0) continue;
    if (rows.size() >= options.rows) {
      ++hidden;
      continue;
    }
    const Place& place = line.is_gone ? line.before.place : line.after.place;
    std::string note = line.is_new ? "new" : line.is_gone ? "gone" : "";
    if (!line.is_new && !line.is_gone && line.before.place.line != line.after.place.line) {
      note = "was line " + std::to_string(line.before.place.line);
    }
    std::string growth;
    if (line.growth() != 0) growth = FormatSignedBytes(static_cast<int64_t>(line.growth())) + "/step";
    rows.push_back({FormatSignedBytes(line.bytes()), FormatBytes(line.before.bytes),
                    FormatBytes(line.after.bytes), growth, Shorten(Printable(place.Short()), 60), note});
  }
  if (rows.empty()) {
    out.Line("  no difference");
  } else {
    rows.insert(rows.begin(), {"change", "before", "after", "growth", "born at", ""});
    out.Table(rows, {true, true, true, true, false, false});
    if (hidden != 0) out.Line("  … " + Plural(hidden, "other line"));
  }
  std::fputs(out.text().c_str(), stdout);
}

uint64_t Sum(const std::vector<LineFigures>& lines) {
  uint64_t sum = 0;
  for (const LineFigures& line : lines) sum += line.bytes;
  return sum;
}

int RunSteps(const DiffOptions& options) {
  int code = kExitOk;
  std::vector<uint64_t> indices;
  {
    const std::unique_ptr<AnalyzedTrace> trace = options.trace.Read(options.paths[0], code);
    if (trace == nullptr) return code;
    const Steps& steps = trace->analyses.findings().steps;
    if (!steps.real()) {
      PrintError(options.paths[0] + ": no steps were found in this trace");
      return kExitUnjudged;
    }
    for (uint64_t step : options.steps) {
      if (step >= steps.count) {
        PrintError("--steps: the trace has steps 0 to " + std::to_string(steps.count - 1));
        return kExitUsage;
      }
      indices.push_back(
          steps.begin_index[std::min<size_t>(step / steps.stride, steps.begin_index.size() - 1)]);
    }
  }
  const std::unique_ptr<AnalyzedTrace> trace = options.trace.Read(options.paths[0], code, indices);
  if (trace == nullptr) return code;
  const std::vector<Snapshot>& snapshots = trace->analyses.findings().snapshots;
  if (snapshots.size() != 2) {
    PrintError(options.paths[0] + ": the steps were not reached");
    return kExitUnjudged;
  }
  const std::vector<LineFigures> before = SnapshotLines(snapshots[0]);
  const std::vector<LineFigures> after = SnapshotLines(snapshots[1]);
  nlohmann::ordered_json json;
  json["trace"] = Printable(options.paths[0]);
  json["steps"] = options.steps;
  json["bytes_before"] = Sum(before);
  json["bytes_after"] = Sum(after);
  Print("live at the beginning of step " + std::to_string(options.steps[0]) + ": " +
            FormatBytes(Sum(before)) + ", of step " + std::to_string(options.steps[1]) + ": " +
            FormatBytes(Sum(after)),
        Compare(before, after), options, std::move(json));
  return code;
}

int Run(const DiffOptions& options) {
  if (!options.steps.empty()) {
    if (options.paths.size() != 1 || options.steps.size() != 2 || options.steps[0] >= options.steps[1]) {
      PrintError("diff --steps A,B takes one trace and two ascending steps");
      return kExitUsage;
    }
    return RunSteps(options);
  }
  if (options.paths.size() != 2) {
    PrintError("diff takes two traces, or one with --steps A,B");
    return kExitUsage;
  }
  int code_before = kExitOk;
  int code_after = kExitOk;
  const std::unique_ptr<AnalyzedTrace> before = options.trace.Read(options.paths[0], code_before);
  if (before == nullptr) return code_before;
  const std::unique_ptr<AnalyzedTrace> after = options.trace.Read(options.paths[1], code_after);
  if (after == nullptr) return code_after;
  const std::vector<LineFigures> lines_before = PeakLines(before->analyses.findings());
  const std::vector<LineFigures> lines_after = PeakLines(after->analyses.findings());
  nlohmann::ordered_json json;
  json["before"] = Printable(options.paths[0]);
  json["after"] = Printable(options.paths[1]);
  json["bytes_before"] = Sum(lines_before);
  json["bytes_after"] = Sum(lines_after);
  Print("peak " + FormatBytes(Sum(lines_before)) + " → " + FormatBytes(Sum(lines_after)) + ", by line",
        Compare(lines_before, lines_after), options, std::move(json));
  return std::max(code_before, code_after);
}

}  // namespace

void AddDiffCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<DiffOptions>();
  CLI::App* command =
      app.add_subcommand("diff", "What grew and what is new between two traces, or two steps of one");
  command->add_option("traces", options->paths, "The earlier and the later trace")->required();
  command->add_option("--steps", options->steps, "Two steps of one trace, e.g. 10,400")
      ->delimiter(',')
      ->type_name("A,B");
  command->add_option("-n,--rows", options->rows, "Lines to show");
  command->add_flag("--json", options->json, "Print JSON");
  options->trace.AddTo(*command);
  command->callback([options, &context] { context.run = [options] { return Run(*options); }; });
}

}  // namespace gpumemtrace::analyzer
