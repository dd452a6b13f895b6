// `gpumem-analyze options`: the recorder's options, from the table that the recorder itself parses. With
// --markdown it prints docs/options.md, and a test compares.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "analyzer/commands/commands.h"
#include "analyzer/exit_codes.h"
#include "gpumemtrace/options.h"

namespace gpumemtrace::analyzer {
namespace {

// Words of a paragraph on lines of at most `width` columns.
std::string Wrap(const std::string& text, size_t indent, size_t width) {
  std::string out;
  size_t column = 0;
  const std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  for (const std::string& word : words) {
    if (column != 0 && column + 1 + word.size() > width) {
      out += '\n';
      column = 0;
    }
    if (column == 0) {
      out.append(indent, ' ');
      column = indent;
    } else {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + "\n";
}

// What may be given, e.g. "0|1".
std::string Values(const options::Option& option) {
  std::string out;
  const std::string choices = option.choices;
  switch (option.type) {
    case options::Type::kSwitch:
      absl::StrAppend(&out, "0|1");
      break;
    case options::Type::kNumber:
      absl::StrAppend(&out, "<", option.least, "…", option.greatest, ">");
      break;
    case options::Type::kBytes:
      absl::StrAppend(&out, "<bytes, e.g. 64K, 2G>");
      break;
    case options::Type::kChoice:
      absl::StrAppend(&out, choices);
      break;
    case options::Type::kSet:
      absl::StrAppend(&out, "all or any of these, with commas");
      break;
    case options::Type::kText:
      absl::StrAppend(&out, "<text>");
      break;
  }
  return out;
}

std::string Describe(const options::Option& option) {
  const std::string choices = option.choices;
  std::string out = absl::StrCat(option.name, "=", Values(option));
  if (*option.default_value != '\0') absl::StrAppend(&out, "   (default ", option.default_value, ")");
  out += '\n';
  out += Wrap(option.text, 6, 100);
  if (option.type == options::Type::kSet) {
    out += Wrap(absl::StrCat("Kinds: ", absl::StrReplaceAll(choices, {{",", ", "}}), "."), 6, 100);
  }
  return out;
}

int RunMarkdown() {
  std::string out =
      "# Options of the recorder\n\n"
      "Set in the environment of the traced program; read once, at its first use of CUDA:\n\n"
      "    LD_PRELOAD=libgpumemtrace.so GPUMEMTRACE_OUT=/data/%h.%p.pb python train.py\n\n"
      "An unknown option or a malformed value gives one line on standard error, and the default is used.\n\n"
      "This page is what `gpumem-analyze options --markdown` prints; its source is the table in "
      "`proto/gpumemtrace/options.h`.\n";
  for (const options::Option& option : options::kOptions) {
    const std::string default_value = option.default_value;
    absl::StrAppend(&out, "\n## ", option.name, "\n\n`", Values(option), "`",
                    default_value.empty() ? "" : absl::StrCat(", default `", default_value, "`"), "\n\n");
    absl::StrAppend(&out, Wrap(option.text, 0, 110));
    if (option.type == options::Type::kSet) {
      const std::string kinds = absl::StrReplaceAll(option.choices, {{",", "`, `"}});
      absl::StrAppend(&out, "\n", Wrap(absl::StrCat("Kinds: `", kinds, "`."), 0, 110));
    }
  }
  std::fputs(out.c_str(), stdout);
  return kExitOk;
}

int RunText() {
  std::string out =
      "Options of the recorder, set in the environment of the traced program:\n"
      "  LD_PRELOAD=libgpumemtrace.so GPUMEMTRACE_OUT=/data/%h.%p.pb python train.py\n\n";
  for (const options::Option& option : options::kOptions) absl::StrAppend(&out, Describe(option), "\n");
  std::fputs(out.c_str(), stdout);
  return kExitOk;
}

}  // namespace

void AddOptionsCommand(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("options", "List the options of the recorder (environment variables)");
  auto markdown = std::make_shared<bool>(false);
  command->add_flag("--markdown", *markdown, "As a page of Markdown (docs/options.md)");
  command->callback([&context, markdown] { context.run = *markdown ? RunMarkdown : RunText; });
}

}  // namespace gpumemtrace::analyzer
