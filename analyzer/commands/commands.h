// The subcommands of gpumem-analyze, one file each in this folder.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace gpumemtrace::analyzer {

// The chosen subcommand sets what to run; its result is the exit code.
struct CommandContext {
  std::function<int()> run;
};

void AddReportCommand(CLI::App& app, CommandContext& context);
void AddCheckCommand(CLI::App& app, CommandContext& context);
void AddDiffCommand(CLI::App& app, CommandContext& context);
void AddEventsCommand(CLI::App& app, CommandContext& context);
void AddOptionsCommand(CLI::App& app, CommandContext& context);

}  // namespace gpumemtrace::analyzer
