// How the recording ended and what is missing from it: losses in the recorder, damage of the file, recovered
// rings.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analyzer/analyzed_trace.h"
#include "analyzer/report/sections.h"
#include "analyzer/strings.h"

namespace gpumemtrace::analyzer {
namespace {

std::string_view CauseName(Loss::Cause cause) {
  switch (cause) {
    case Loss::NO_RING:
      return "no memory for a ring";
    case Loss::STORAGE:
      return "the file could not be written";
    case Loss::REENTERED:
      return "inside the recorder itself";
    case Loss::FORMAT:
      return "could not be encoded";
    default:
      return "unknown cause";
  }
}

uint64_t EventsLostByRecorder(const TraceModel& model) {
  uint64_t lost = 0;
  for (const Loss& loss : model.statistics.loss()) lost += loss.events();
  return lost;
}

// How the process ended, as far as the trace tells.
std::string_view EndName(const AnalyzedTrace& trace) {
  if (trace.model.has_end) return "exit";
  if (trace.read.recovery.process_running) return "running";
  if (trace.read.damage.cut) return "cut";
  return "killed";
}

std::string_view StateName(RecoveryReport::State state) {
  switch (state) {
    case RecoveryReport::State::kNotNeeded:
      return "not needed";
    case RecoveryReport::State::kRead:
      return "read";
    case RecoveryReport::State::kNoRingFile:
      return "no ring file";
    case RecoveryReport::State::kForeign:
      return "foreign";
    case RecoveryReport::State::kDamaged:
      return "damaged";
    case RecoveryReport::State::kUnreadable:
      return "unreadable";
  }
  return "unknown";
}

void TextOfRecovery(const AnalyzedTrace& trace, TextWriter& out) {
  const RecoveryReport& recovery = trace.read.recovery;
  const std::string path = Printable(recovery.path);
  switch (recovery.state) {
    case RecoveryReport::State::kNotNeeded:
      break;
    case RecoveryReport::State::kRead:
      out.Field("recovered", absl::StrCat(Plural(recovery.events, "event"),
                                          " that the killed process had left in ", path));
      break;
    case RecoveryReport::State::kDamaged:
      out.Field("recovered", out.Yellow(absl::StrCat("in part: ", Plural(recovery.events, "event"), " from ",
                                                     path, " (", recovery.detail, ")")));
      break;
    case RecoveryReport::State::kNoRingFile:
      out.Field("recovered",
                out.Yellow(recovery.path.empty()
                               ? absl::StrCat("nothing: ", recovery.detail, ", its last events are lost")
                               : absl::StrCat("nothing: ", path,
                                              " is not here; read the trace on the machine that "
                                              "recorded it, or copy that file and give it with --rings")));
      break;
    case RecoveryReport::State::kForeign:
    case RecoveryReport::State::kUnreadable:
      out.Field("recovered", out.Yellow(absl::StrCat("nothing: ", path, ": ", recovery.detail)));
      break;
  }
}

void TextOfDamage(const AnalyzedTrace& trace, TextWriter& out) {
  const DamageReport& damage = trace.read.damage;
  if (damage.cut) {
    out.Field("cut", out.Yellow(absl::StrCat("the file ends inside the packet at byte ", damage.cut_at,
                                             "; everything before it was read")));
  }
  if (damage.packets_lost == 0 && damage.bytes_skipped == 0 && damage.events_lost == 0) return;
  std::vector<std::string> parts;
  if (damage.packets_lost != 0) parts.push_back(absl::StrCat(Plural(damage.packets_lost, "packet"), " lost"));
  if (damage.bytes_skipped != 0)
    parts.push_back(absl::StrCat(Plural(damage.bytes_skipped, "byte"), " skipped"));
  if (damage.events_lost != 0) parts.push_back(absl::StrCat(Plural(damage.events_lost, "event"), " missing"));
  std::string text = absl::StrJoin(parts, ", ");
  if (!damage.first_fault.empty()) absl::StrAppend(&text, ": ", damage.first_fault);
  out.Field("damaged", out.Red(text));
  if (damage.events_lost != 0) out.Field("", "what was freed in the missing part still counts as live below");
}

void CompletenessText(const AnalyzedTrace& trace, int detail, TextWriter& out) {
  const TraceModel& model = trace.model;
  const uint64_t lost = EventsLostByRecorder(model);
  std::string end;
  if (model.has_end) {
    end = "in order";
  } else if (trace.read.recovery.process_running) {
    end = "not yet: the process is running, this is what it has written so far";
  } else if (trace.read.damage.cut) {
    end = "unknown: the file is cut";
  } else {
    end = "not in order: killed, _exit, or the file is a copy made while it ran";
  }
  if (lost == 0 && !trace.read.damage.any()) {
    absl::StrAppend(&end, ", no event lost");
    if (trace.analyses.findings().out_of_memory_count == 0)
      absl::StrAppend(&end, ", no allocation failed for lack of memory");
  }
  out.Field("ended", end);
  TextOfRecovery(trace, out);
  TextOfDamage(trace, out);
  if (lost != 0) {
    std::vector<std::string> causes;
    for (const Loss& loss : model.statistics.loss()) {
      if (loss.events() != 0)
        causes.push_back(absl::StrCat(FormatCount(loss.events()), " ", Part(CauseName(loss.cause()))));
    }
    out.Field("lost", out.Red(absl::StrCat(Plural(lost, "event"),
                                           " in the recorder: ", absl::StrJoin(causes, ", "))));
  }
  for (const Note& note : model.notes) {
    if (note.severity() == Note::WARNING) {
      out.Field("warning", out.Yellow(Printable(note.text())));
    } else if (detail > 0) {
      out.Field("note", Printable(note.text()));
    }
  }
}

void CompletenessJson(const AnalyzedTrace& trace, nlohmann::ordered_json& out) {
  const TraceModel& model = trace.model;
  const ReadResult& read = trace.read;
  out["ended"] = EndName(trace);
  out["losses"] = EventsLostByRecorder(model) + read.damage.events_lost;
  nlohmann::ordered_json& completeness = out["completeness"];
  nlohmann::ordered_json& lost = completeness["lost_by_recorder"] = nlohmann::ordered_json::array();
  for (const Loss& loss : model.statistics.loss()) {
    lost.push_back({{"cause", CauseName(loss.cause())}, {"events", loss.events()}});
  }
  completeness["damage"] = {{"cut", read.damage.cut},
                            {"cut_at", read.damage.cut_at},
                            {"packets_lost", read.damage.packets_lost},
                            {"bytes_skipped", read.damage.bytes_skipped},
                            {"events_lost", read.damage.events_lost},
                            {"first_fault", read.damage.first_fault}};
  completeness["recovery"] = {{"state", StateName(read.recovery.state)},
                              {"path", Printable(read.recovery.path)},
                              {"detail", read.recovery.detail},
                              {"events", read.recovery.events},
                              {"rings", read.recovery.rings},
                              {"records_damaged", read.recovery.records_damaged}};
  nlohmann::ordered_json& notes = completeness["notes"] = nlohmann::ordered_json::array();
  for (const Note& note : model.notes) {
    notes.push_back({{"severity", note.severity() == Note::WARNING ? "warning" : "info"},
                     {"text", Printable(note.text())}});
  }
  const Statistics& statistics = model.statistics;
  out["recorder"] = {{"events", statistics.events()},
                     {"bytes_written", statistics.bytes_written()},
                     {"memory_bytes", statistics.memory_bytes()},
                     {"rings", statistics.rings()},
                     {"full_rings", statistics.full_rings()},
                     {"stack_cache_hits", statistics.stack_cache_hits()},
                     {"stack_cache_misses", statistics.stack_cache_misses()},
                     {"sampled_hook_ns", statistics.sampled_hook_ns()},
                     {"sampled_hook_events", statistics.sampled_hook_events()}};
  out["trace"] = {{"bytes", read.bytes}, {"packets", read.packets}};
}

}  // namespace

const Section kCompletenessSection = {"completeness", CompletenessText, CompletenessJson};

}  // namespace gpumemtrace::analyzer
