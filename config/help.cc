#include "config/help.h"

#include "absl/strings/str_replace.h"
#include "base/strings.h"
#include "config/settings_table.h"

namespace millrace {
namespace {

// `text` in lines of at most 96 characters, each after `indent` spaces.
std::string Wrapped(std::string_view text, size_t indent) {
  constexpr size_t kWidth = 96;
  std::string wrapped;
  size_t column = 0;
  for (const std::string_view word : SplitList(text, ' ')) {
    if (column == 0 || column + 1 + word.size() > kWidth) {
      if (column != 0) wrapped += '\n';
      wrapped.append(indent, ' ');
      column = indent;
    } else {
      wrapped += ' ';
      ++column;
    }
    wrapped += word;
    column += word.size();
  }
  return wrapped + "\n";
}

// What the command does, and how its usage begins.
std::string_view Introduction(Command command) {
  switch (command) {
    case Command::kBench:
      return "millraced bench measures what the engine takes for a step: the scheduler, the model "
             "and the\n"
             "sampler that serve, without sockets and text, on prompts of random tokens.\n\n"
             "Usage: millraced bench";
    case Command::kHealth:
      return "millraced health asks the server on this machine whether it is ready, or live. It "
             "ends with 0\n"
             "if so, and otherwise with 1 and a line that says why.\n\n"
             "Usage: millraced health";
    default:
      return "millraced serves a large language model over HTTP and gRPC.\n\nUsage: millraced";
  }
}

}  // namespace

std::string_view Version() { return MILLRACE_VERSION; }

std::string FlagUsage(const Setting& setting) {
  if (setting.kind == SettingKind::kSwitch) return StrCat("--[no-]", setting.name);
  return StrCat("--", setting.name, " ", setting.placeholder);
}

std::string VersionText() { return StrCat("millraced ", Version(), "\n"); }

std::string HelpText(Command command) {
  std::string help(Introduction(command));
  help +=
      " [--SETTING VALUE | --SETTING=VALUE | --SWITCH | --no-SWITCH]...\n"
      "\nEach setting is a flag, a key of the file that --config names (YAML or JSON), or a "
      "variable "
      "of\n"
      "the environment (--http-port is MILLRACE_HTTP_PORT). A flag wins over the environment, "
      "that\n"
      "over the file.\n";
  std::string_view group;
  for (const Setting& setting : SettingsTable()) {
    if (!IsFor(setting, command)) continue;
    if (setting.group != group) help += StrCat("\n", setting.group, "\n");
    group = setting.group;
    help += StrCat("  ", FlagUsage(setting), "\n", Wrapped(setting.help, 6));
    std::string range = StrCat("[", setting.allowed);
    if (!setting.default_text.empty()) range += StrCat("; default ", setting.default_text);
    help += Wrapped(range + "]", 6);
  }
  if (command != Command::kServe) return help;
  return help +
         "\nInstead of serving\n"
         "  millraced bench\n"
         "      measures; see millraced bench --help\n"
         "  millraced health\n"
         "      asks a running server for its health; see millraced health --help\n"
         "  --help, --version\n"
         "  --print-settings-table\n"
         "      this list as a Markdown table\n"
         "  --print-man-page\n"
         "      this list as a manual page\n"
         "  --print-completion SHELL\n"
         "      completions of these flags for bash, zsh or fish\n"
         "  --print-kernels\n"
         "      which kernels a GPU runs, as a Markdown table\n";
}

std::string SettingsTableMarkdown() {
  std::string table = "| setting | default | allowed | what it is |\n|---|---|---|---|\n";
  std::string_view group;
  for (const Setting& setting : SettingsTable()) {
    if (setting.group != group) table += StrCat("| **", setting.group, "** | | | |\n");
    group = setting.group;
    const auto cell = [](std::string_view text) {
      return absl::StrReplaceAll(AbslView(text), {{"|", "\\|"}});
    };
    const std::string default_cell =
        setting.default_text.empty() ? "" : StrCat("`", setting.default_text, "`");
    table += StrCat("| `", FlagUsage(setting), "` | ", default_cell, " | ", cell(setting.allowed),
                    " | ", cell(setting.help), " |\n");
  }
  return table;
}

}  // namespace millrace
