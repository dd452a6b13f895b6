// `gpumem-analyze events`: every event of a trace as one line of JSON, for scripts that want the history and
// not its judgement. A place (stack, API, thread, device) is printed once, before the first event that names
// it.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analyzer/commands/commands.h"
#include "analyzer/commands/trace_options.h"
#include "analyzer/exit_codes.h"
#include "analyzer/report/findings_text.h"
#include "analyzer/report/text.h"
#include "analyzer/symbols/symbolizer.h"
#include "analyzer/trace/reader.h"

namespace gpumemtrace::analyzer {
namespace {

using Json = nlohmann::ordered_json;

struct EventsOptions {
  std::string path;
  ReaderOptions reader;
  SymbolizerOptions symbols;
  bool blocks = false;
  bool no_native = false;
  bool no_rings = false;
};

// Prints as it reads, so that memory is bounded by the number of places.
class Printer : public TraceSink {
 public:
  Printer(const TraceModel& model, const EventsOptions& options)
      : model_(model), options_(options), symbols_(model, options.symbols) {}

  void OnEvents(std::span<const TraceEvent> events) override {
    for (const TraceEvent& event : events) {
      if (options_.blocks && !IsBlock(event.kind)) continue;
      DescribePlace(event.site);
      Json line;
      line["event"] = event.index;
      line["kind"] = EventKindName(event.kind);
      line["sequence"] = event.sequence;
      line["time_us"] = event.time_us;
      line["address"] = event.address;
      line["bytes"] = event.size;
      line["place"] = event.site;
      if (event.birth_index != kNoIndex) line["born"] = event.birth_index;
      Print(line);
    }
  }

  void OnMark(const TraceMark& mark) override {
    Json line;
    line["mark"] = Printable(model_.String(mark.text));
    line["kind"] = Mark::Kind_Name(mark.kind);
    line["source"] = Mark::Source_Name(mark.source);
    line["sequence"] = mark.sequence;
    line["time_us"] = mark.time_us;
    line["thread"] = model_.Thread(mark.thread).tid;
    if (mark.domain != 0) line["domain"] = Printable(model_.String(mark.domain));
    Print(line);
  }

  void OnGap() override { Print(Json{{"gap", true}}); }

 private:
  void DescribePlace(SiteId id) {
    if (id >= described_.size()) described_.resize(id + 1);
    if (described_[id]) return;
    described_[id] = true;
    const SiteInfo& site = model_.Site(id);
    Json line;
    line["new_place"] = id;
    line["space"] = SpaceName(site.space);
    line["device"] = site.device;
    line["api"] = Printable(model_.String(site.api));
    line["thread"] = model_.Thread(site.thread).tid;
    line["thread_name"] = Printable(model_.Thread(site.thread).name);
    line["stream"] = site.stream;
    line["result"] = site.result;
    if (site.failed()) line["failed"] = true;
    Json stack = Json::array();
    for (const MergedFrame& frame : symbols_.Merge(site)) {
      if (options_.no_native && !model_.Frame(frame.frame).is_python()) continue;
      for (const Location& location : symbols_.Resolve(frame.frame)) {
        stack.push_back(LocationJson(location, frame.forward));
      }
    }
    line["stack"] = std::move(stack);
    Print(line);
  }

  static void Print(const Json& line) {
    const std::string text = line.dump() + "\n";
    std::fwrite(text.data(), 1, text.size(), stdout);
  }

  const TraceModel& model_;
  const EventsOptions& options_;
  Symbolizer symbols_;
  std::vector<bool> described_;
};

int Run(EventsOptions options) {
  options.symbols.native = !options.no_native;
  options.reader.recover = !options.no_rings;
  TraceModel model;
  Printer printer(model, options);
  const ReadResult read = ReadTrace(options.path, options.reader, model, printer);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    PrintError("standard output cannot be written");
    return kExitCannotRead;
  }
  switch (read.fault) {
    case TraceFault::kNone:
      break;
    case TraceFault::kCannotRead:
      PrintError(read.message);
      return kExitCannotRead;
    case TraceFault::kNotATrace:
      PrintError(read.message);
      return kExitNotATrace;
    case TraceFault::kNewerVersion:
      PrintError(read.message);
      return kExitNewerVersion;
  }
  if (read.damage.any()) {
    PrintError("the trace is damaged and was read in part; `gpumem-analyze report` says what is missing");
    return kExitDamaged;
  }
  return kExitOk;
}

}  // namespace

void AddEventsCommand(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("events", "Print every event and mark as a line of JSON, in order");
  auto options = std::make_shared<EventsOptions>();
  command->add_option("trace", options->path, "Trace file")->required();
  command->add_flag("--blocks", options->blocks, "Only what the caching allocator gave and took back");
  command->add_flag("--no-native", options->no_native, "Python frames only");
  command->add_flag("--no-rings", options->no_rings,
                    "Do not look for what a killed process left in its rings");
  command->callback([&context, options] { context.run = [options] { return Run(*options); }; });
}

}  // namespace gpumemtrace::analyzer
