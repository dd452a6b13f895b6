// `gpumem-analyze report`: the default command. Prints what there is to know about one trace, or several one
// after another.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analyzer/commands/commands.h"
#include "analyzer/commands/trace_options.h"
#include "analyzer/report/sections.h"
#include "analyzer/strings.h"

namespace gpumemtrace::analyzer {
namespace {

struct ReportOptions {
  TraceOptions trace;
  std::vector<std::string> paths;
  std::vector<std::string> sections;
  std::string output;
  std::string color = "auto";
  bool json = false;
  int detail = 0;
};

bool Wanted(const ReportOptions& options, const Section& section) {
  return options.sections.empty() ||
         std::find(options.sections.begin(), options.sections.end(), section.name) != options.sections.end();
}

int Write(const std::string& path, const std::string& text) {
  std::FILE* file = path.empty() ? stdout : std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    PrintError(absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
    return kExitCannotRead;
  }
  bool good = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  good = (file == stdout ? std::fflush(file) : std::fclose(file)) == 0 && good;
  if (!good && errno != EPIPE) {
    PrintError(
        absl::StrCat(path.empty() ? "standard output" : path, ": cannot be written: ", std::strerror(errno)));
    return kExitCannotRead;
  }
  return kExitOk;
}

int Run(const ReportOptions& options) {
  const bool color = options.color == "always" ||
                     (options.color == "auto" && options.output.empty() && isatty(STDOUT_FILENO) != 0);
  TextWriter text({.color = color});
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  int exit_code = kExitOk;
  for (const std::string& path : options.paths) {
    int code = kExitOk;
    const std::unique_ptr<AnalyzedTrace> trace = options.trace.Read(path, code);
    // Of several traces the worst decides: unreadable before damaged before fine.
    exit_code = std::max(exit_code, code);
    nlohmann::ordered_json& entry = json.emplace_back(nlohmann::ordered_json::object());
    entry["path"] = Printable(path);
    if (trace == nullptr) {
      entry["exit_code"] = code;
      continue;
    }
    if (options.json) {
      for (const Section* section : AllSections()) {
        if (Wanted(options, *section)) section->json(*trace, entry);
      }
      continue;
    }
    text.Heading(absl::StrCat("gpumemtrace: ", Printable(path)));
    for (const Section* section : AllSections()) {
      if (Wanted(options, *section)) section->text(*trace, options.detail, text);
    }
  }
  std::string out = text.text();
  if (options.json) {
    // Names in a trace are bytes; what is not UTF-8 was made visible, but be sure that dumping never throws.
    const auto dump = [](const nlohmann::ordered_json& value) {
      return value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    };
    out = options.paths.size() == 1 ? dump(json[0]) : dump({{"traces", json}});
  }
  if (!out.empty()) {
    const int written = Write(options.output, out);
    if (written != kExitOk) return written;
  }
  return exit_code;
}

}  // namespace

void AddReportCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = app.add_subcommand("report", "Print a report (the default when only files are given)");
  command
      ->add_option("trace", options->paths,
                   "Trace files; those of several ranks are reported one after another")
      ->required();
  command->add_flag("--json", options->json, "Print JSON: the same content, exact bytes");
  command->add_flag("-v,--verbose", options->detail, "More rows and whole stacks");
  std::string names;
  for (const Section* section : AllSections())
    absl::StrAppend(&names, names.empty() ? "" : ", ", Part(section->name));
  command->add_option("--section", options->sections, absl::StrCat("Only these sections: ", names))
      ->type_name("NAME");
  command->add_option("-o,--output", options->output, "Write to a file")->type_name("FILE");
  command->add_option("--color", options->color, "Colors: auto, always, never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("WHEN");
  options->trace.AddTo(*command);
  command->callback([options, &context] { context.run = [options] { return Run(*options); }; });
}

}  // namespace gpumemtrace::analyzer
