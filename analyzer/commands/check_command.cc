// `gpumem-analyze check`: a gate for nightly jobs. 0 clean, 1 a limit was broken, 2 the trace could not be
// judged.
#include <cstdio>
#include <memory>
#include <string>

#include "analyzer/analyses/gate.h"
#include "analyzer/commands/commands.h"
#include "analyzer/commands/limits.h"
#include "analyzer/commands/trace_options.h"
#include "analyzer/report/text.h"

#include <nlohmann/json.hpp>

namespace gpumemtrace::analyzer {
namespace {

struct CheckOptions {
  TraceOptions trace;
  std::string path;
  std::string baseline;
  std::string tolerance = "0%";
  std::string peak, reserved, used, growth, unattributed, fragmentation;
  bool no_leak = false;
  bool no_out_of_memory = false;
  bool json = false;
};

bool Take(const char* name, const std::string& text, bool per_step, std::optional<uint64_t>& limit) {
  if (text.empty()) return true;
  uint64_t bytes = 0;
  if (!ParseBytes(text, per_step, bytes)) {
    PrintError(std::string(name) + ": '" + text + "' is not an amount such as 512MiB");
    return false;
  }
  limit = bytes;
  return true;
}

std::string Amount(const Violation& violation, double value) {
  if (violation.what == "out of memory") return FormatCount(static_cast<uint64_t>(value));
  return FormatBytes(static_cast<uint64_t>(value)) + (violation.per_step ? "/step" : "");
}

int Run(const CheckOptions& options) {
  Limits limits;
  if (!Take("--max-peak", options.peak, false, limits.peak) ||
      !Take("--max-reserved", options.reserved, false, limits.reserved) ||
      !Take("--max-used", options.used, false, limits.used) ||
      !Take("--max-growth", options.growth, true, limits.growth) ||
      !Take("--max-unattributed", options.unattributed, false, limits.unattributed) ||
      !Take("--max-fragmentation", options.fragmentation, false, limits.fragmentation)) {
    return kExitUsage;
  }
  if (!ParseFraction(options.tolerance, limits.tolerance)) {
    PrintError("--tolerance: '" + options.tolerance + "' is not a share such as 2%");
    return kExitUsage;
  }
  limits.no_leak = options.no_leak;
  limits.no_out_of_memory = options.no_out_of_memory;
  const bool any_limit = limits.peak || limits.reserved || limits.used || limits.growth ||
                         limits.unattributed || limits.fragmentation || limits.no_leak ||
                         limits.no_out_of_memory || !options.baseline.empty();
  // Without a wish: the run must neither leak nor run out of memory.
  if (!any_limit) limits.no_leak = limits.no_out_of_memory = true;

  int code = kExitOk;
  std::vector<std::string> unjudged;
  const std::unique_ptr<AnalyzedTrace> trace = options.trace.Read(options.path, code);
  if (trace == nullptr) return kExitUnjudged;
  if (code == kExitDamaged) unjudged.push_back(options.path + " is damaged and was read in part");
  const Findings& findings = trace->analyses.findings();
  if (findings.verdict.kind == VerdictKind::kUnjudged) unjudged.push_back(findings.verdict.headline);
  const GateFigures figures = Figures(findings);
  GateFigures base;
  bool has_base = false;
  if (!options.baseline.empty()) {
    int base_code = kExitOk;
    const std::unique_ptr<AnalyzedTrace> baseline = options.trace.Read(options.baseline, base_code);
    if (baseline == nullptr) return kExitUnjudged;
    if (base_code == kExitDamaged) unjudged.push_back(options.baseline + " is damaged and was read in part");
    base = Figures(baseline->analyses.findings());
    has_base = true;
  }
  GateResult result = Check(figures, findings, limits, has_base ? &base : nullptr);
  unjudged.insert(unjudged.end(), result.unjudged.begin(), result.unjudged.end());
  const int exit_code = !result.violations.empty() ? kExitLimitBroken
                        : !unjudged.empty()        ? kExitUnjudged
                                                   : kExitOk;

  std::vector<const GrowthFinding*> suppressed;
  for (const GrowthFinding& growth : findings.growth) {
    if (growth.suppressed && IsLeak(growth.kind)) suppressed.push_back(&growth);
  }

  if (options.json) {
    nlohmann::ordered_json json;
    json["path"] = Printable(options.path);
    json["exit_code"] = exit_code;
    json["verdict"] = std::string(VerdictName(findings.verdict.kind));
    json["figures"] = {{"peak_bytes", figures.peak},
                       {"reserved_bytes", figures.reserved},
                       {"used_bytes", figures.used},
                       {"growth_bytes_per_step", figures.growth},
                       {"unattributed_bytes", figures.unattributed},
                       {"fragmentation_bytes", figures.fragmentation},
                       {"out_of_memory", figures.out_of_memory},
                       {"growth_judged", figures.growth_judged},
                       {"steps", findings.steps.real() ? findings.steps.count : 0}};
    nlohmann::ordered_json& broken = json["violations"] = nlohmann::ordered_json::array();
    for (const Violation& violation : result.violations) {
      broken.push_back({{"what", violation.what},
                        {"found", violation.found},
                        {"limit", violation.limit},
                        {"source", violation.source},
                        {"place", Printable(violation.place)}});
    }
    json["unjudged"] = unjudged;
    nlohmann::ordered_json& known = json["suppressed"] = nlohmann::ordered_json::array();
    for (const GrowthFinding* growth : suppressed) {
      known.push_back({{"place", Printable(growth->place.Short())},
                       {"bytes_per_step", growth->bytes_per_step},
                       {"by", "leak:" + Printable(growth->suppressed_by)}});
    }
    std::printf("%s\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return exit_code;
  }
  for (const Violation& violation : result.violations) {
    std::string line = violation.what + ": " + Amount(violation, violation.found) + ", " + violation.source +
                       " " + Amount(violation, violation.limit);
    if (!violation.place.empty()) line += ", at " + Printable(violation.place);
    std::printf("%s\n", line.c_str());
  }
  for (const GrowthFinding* growth : suppressed) {
    std::printf("suppressed: %s/step at %s, by leak:%s\n",
                FormatBytes(static_cast<uint64_t>(growth->bytes_per_step)).c_str(),
                Printable(growth->place.Short()).c_str(), Printable(growth->suppressed_by).c_str());
  }
  for (const std::string& reason : unjudged) std::printf("not judged: %s\n", Printable(reason).c_str());
  if (exit_code == kExitOk) {
    std::printf("ok: peak %s, growth %s/step over %s\n", FormatBytes(figures.peak).c_str(),
                FormatBytes(static_cast<uint64_t>(figures.growth)).c_str(),
                Plural(findings.steps.count, "step").c_str());
  }
  return exit_code;
}

}  // namespace

void AddCheckCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command = app.add_subcommand(
      "check", "Gate for scripts: exit 0 clean, 1 a limit was broken, 2 the trace could not be judged");
  command->add_option("trace", options->path, "Trace file")->required();
  command->add_option("--max-peak", options->peak, "Peak of tensors, e.g. 40GiB")->type_name("BYTES");
  command->add_option("--max-reserved", options->reserved, "Peak of what caching allocators hold")
      ->type_name("BYTES");
  command->add_option("--max-used", options->used, "Most that the device itself reported as used")
      ->type_name("BYTES");
  command->add_option("--max-growth", options->growth, "Growth of all leaks together, e.g. 1MiB/step")
      ->type_name("BYTES/step");
  command
      ->add_option("--max-unattributed", options->unattributed,
                   "Device memory at the end that no allocation explains")
      ->type_name("BYTES");
  command->add_option("--max-fragmentation", options->fragmentation, "Bytes in holes at the worst moment")
      ->type_name("BYTES");
  command->add_flag("--no-leak", options->no_leak,
                    "Any leak breaks the gate (the default without other limits)");
  command->add_flag("--no-oom", options->no_out_of_memory,
                    "Any failed allocation breaks the gate (the default without other limits)");
  command->add_option("--baseline", options->baseline, "Trace of an earlier run that must not be exceeded")
      ->type_name("FILE");
  command->add_option("--tolerance", options->tolerance, "How much above the baseline is fine, e.g. 2%")
      ->type_name("SHARE");
  command->add_flag("--json", options->json, "Print JSON");
  options->trace.AddTo(*command);
  command->callback([options, &context] { context.run = [options] { return Run(*options); }; });
}

}  // namespace gpumemtrace::analyzer
