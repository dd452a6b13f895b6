// gpumem-analyze: reads traces of libgpumemtrace.so. Only chooses the subcommand; see analyzer/commands/.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "analyzer/commands/commands.h"
#include "analyzer/exit_codes.h"

int main(int argc, char** argv) {
  namespace analyzer = gpumemtrace::analyzer;
  CLI::App app(
      "Explains the GPU memory of a process that ran under libgpumemtrace.so:\n"
      "  LD_PRELOAD=libgpumemtrace.so python train.py\n"
      "  gpumem-analyze trace.pb");
  app.name("gpumem-analyze");
  app.set_version_flag("--version", "gpumem-analyze " GPUMEMTRACE_VERSION);
  app.footer(
      "'gpumem-analyze <command> --help' tells the options of a command.\n"
      "Exit codes: 0 fine, 1 a limit was broken (check), 2 cannot be judged (check), 3 damaged and read in "
      "part,\n"
      "64 wrong use, 65 not a trace, 66 cannot be read, 67 written by a newer version.");
  app.require_subcommand(1);
  analyzer::CommandContext context;
  analyzer::AddReportCommand(app, context);
  analyzer::AddCheckCommand(app, context);
  analyzer::AddDiffCommand(app, context);
  analyzer::AddEventsCommand(app, context);
  analyzer::AddOptionsCommand(app, context);

  // `gpumem-analyze trace.pb` is short for `gpumem-analyze report trace.pb`.
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) {
    std::fputs(app.help().c_str(), stderr);
    return analyzer::kExitUsage;
  }
  const auto names_a_command = [&app](const std::string& word) {
    for (const CLI::App* command : app.get_subcommands(nullptr)) {
      if (command->get_name() == word) return true;
    }
    return false;
  };
  const std::string first = arguments.front();
  if (first != "-h" && first != "--help" && first != "--version" && !names_a_command(first)) {
    arguments.insert(arguments.begin(), "report");
  }
  // CLI11 takes them last first.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fprintf(stderr, "gpumem-analyze: %s (see --help)\n", error.what());
    return analyzer::kExitUsage;
  }
  return context.run();
}
