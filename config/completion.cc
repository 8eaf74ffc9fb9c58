#include "config/completion.h"

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/strings.h"
#include "config/commands.h"
#include "config/flags.h"
#include "config/settings_table.h"

namespace millrace {
namespace {

// absl::StrJoin does not take std::string_view (base/strings.h).
template <typename Parts>
std::string Joined(const Parts& parts, std::string_view separator) {
  std::string joined;
  for (const auto& part : parts)
    joined += StrCat(joined.empty() ? std::string_view() : separator, part);
  return joined;
}

constexpr std::string_view kShells = "bash zsh fish";

// Returns the flags of a command: "--http-port", and for a switch "--offline" and "--no-offline".
std::vector<std::string> FlagsOf(Command command) {
  std::vector<std::string> flags;
  for (const Setting& setting : SettingsTable()) {
    if (!IsFor(setting, command)) continue;
    flags.push_back(StrCat("--", setting.name));
    if (setting.kind == SettingKind::kSwitch) flags.push_back(StrCat("--no-", setting.name));
  }
  if (command != Command::kServe) {
    flags.insert(flags.end(), {"--help", "--help-all"});
    return flags;
  }
  for (const std::string_view printer : kPrintFlags) flags.push_back(StrCat("--", printer));
  return flags;
}

// Returns the words of all commands, or of all but the one that may be left out.
std::string CommandWords() {
  std::vector<std::string_view> words;
  for (const CommandInfo& info : Commands()) words.push_back(info.word);
  return Joined(words, " ");
}
std::string OtherCommandWords() {
  std::vector<std::string_view> words;
  for (const CommandInfo& info : Commands()) {
    if (info.command != Command::kServe) words.push_back(info.word);
  }
  return Joined(words, " ");
}

std::string Bash() {
  std::string script =
      "# Completes millraced in bash; made by `millraced --print-completion bash`.\n"
      "_millraced() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
      "  # Bash splits --flag=value into three words.\n"
      "  if [[ $current == = ]]; then\n"
      "    current=\n"
      "  elif [[ $previous == = && $COMP_CWORD -ge 2 ]]; then\n"
      "    previous=${COMP_WORDS[COMP_CWORD - 2]}\n"
      "  fi\n"
      "  COMPREPLY=()\n"
      "  case $previous in\n";
  std::vector<std::string> paths;
  std::vector<std::string> values;
  for (const Setting& setting : SettingsTable()) {
    if (setting.kind == SettingKind::kSwitch) continue;
    if (!setting.choices.empty()) {
      script +=
          StrCat("    --", setting.name, ") words=\"", Joined(setting.choices, " "), "\" ;;\n");
    } else {
      (setting.is_path ? paths : values).push_back(StrCat("--", setting.name));
    }
  }
  script += StrCat("    --print-completion) words=\"", kShells, "\" ;;\n    ", Joined(paths, " | "),
                   ")\n      compopt -o default\n      return\n      ;;\n    ",
                   Joined(values, " | "), ") return ;;\n    *)\n      case ${COMP_WORDS[1]} in\n");
  for (const CommandInfo& info : Commands()) {
    if (info.command == Command::kServe) continue;
    script +=
        StrCat("        ", info.word, ") words=\"", Joined(FlagsOf(info.command), " "), "\" ;;\n");
  }
  return StrCat(script, "        *) words=\"", Joined(FlagsOf(Command::kServe), " "),
                "\" ;;\n      esac\n      [[ $COMP_CWORD -gt 1 ]] || words+=\" ", CommandWords(),
                "\"\n"
                "      ;;\n  esac\n"
                "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
                "}\n"
                "complete -F _millraced millraced\n");
}

// Quotes a text for zsh's _arguments, inside of single quotes and brackets.
std::string ZshText(std::string_view text) {
  return absl::StrReplaceAll(
      AbslView(text), {{"\\", "\\\\"}, {"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshSpecs(const Setting& setting) {
  if (setting.kind == SettingKind::kSwitch) {
    const std::string help = ZshText(setting.help);
    return StrCat("    '--", setting.name, "[", help, "]'\n    '--no-", setting.name,
                  "[not: ", help, "]'\n");
  }
  std::string action;
  if (!setting.choices.empty()) {
    action = StrCat("(", Joined(setting.choices, " "), ")");
  } else if (setting.is_path) {
    action = "_files";
  }
  return StrCat("    '", setting.kind == SettingKind::kList ? "*" : "", "--", setting.name, "=[",
                ZshText(setting.help), "]:", ZshText(setting.placeholder), ":", action, "'\n");
}

std::string Zsh() {
  std::string script =
      "#compdef millraced\n"
      "# Completes millraced in zsh; made by `millraced --print-completion zsh`.\n"
      "local -a flags\n"
      "case $words[2] in\n";
  for (const CommandInfo& info : Commands()) {
    if (info.command == Command::kServe) continue;
    script += StrCat("  ", info.word, ") flags=('1: :(", info.word,
                     ")' '--help[print the list of settings]'\n");
    for (const Setting& setting : SettingsTable()) {
      if (IsFor(setting, info.command)) script += ZshSpecs(setting);
    }
    script += "  ) ;;\n";
  }
  script += StrCat("  *) flags=('1: :(", CommandWords(), ")' '*:MODEL:_files'\n");
  for (const Setting& setting : SettingsTable()) {
    if (IsFor(setting, Command::kServe)) script += ZshSpecs(setting);
  }
  for (const std::string_view printer : kPrintFlags) {
    if (printer == "print-completion") {
      script += StrCat("    '--", printer, "=[print completions]:SHELL:(", kShells, ")'\n");
    } else {
      script += StrCat("    '--", printer, "[print, and end]'\n");
    }
  }
  return script + "  ) ;;\nesac\n_arguments $flags\n";
}

std::string FishText(std::string_view text) {
  return absl::StrReplaceAll(AbslView(text), {{"\\", "\\\\"}, {"'", "\\'"}});
}

std::string Fish() {
  std::string script =
      "# Completes millraced in fish; made by `millraced --print-completion fish`.\n"
      "complete -c millraced -f\n"
      "complete -c millraced -n __fish_use_subcommand -F\n";
  for (const CommandInfo& info : Commands()) {
    script += StrCat("complete -c millraced -n __fish_use_subcommand -a ", info.word, " -d '",
                     FishText(info.summary), "'\n");
  }
  for (const CommandInfo& info : Commands()) {
    const Command command = info.command;
    const bool serves = command == Command::kServe;
    const std::string condition =
        serves ? StrCat("not __fish_seen_subcommand_from ", OtherCommandWords())
               : StrCat("__fish_seen_subcommand_from ", info.word);
    const std::string line = StrCat("complete -c millraced -n '", condition, "' -l ");
    for (const Setting& setting : SettingsTable()) {
      if (!IsFor(setting, command)) continue;
      const std::string help = FishText(setting.help);
      script += StrCat(line, setting.name, " -d '", help, "'");
      if (setting.kind == SettingKind::kSwitch) {
        script += StrCat("\n", line, "no-", setting.name, " -d 'not: ", help, "'\n");
      } else if (!setting.choices.empty()) {
        script += StrCat(" -x -a '", Joined(setting.choices, " "), "'\n");
      } else {
        script += setting.is_path ? " -r -F\n" : " -x\n";
      }
    }
    if (!serves) {
      script += line + "help\n";
      continue;
    }
    for (const std::string_view printer : kPrintFlags) {
      script += StrCat(line, printer,
                       printer == "print-completion" ? StrCat(" -x -a '", kShells, "'") : "", "\n");
    }
  }
  return script;
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(std::string_view shell) {
  if (shell == "bash") return Bash();
  if (shell == "zsh") return Zsh();
  if (shell == "fish") return Fish();
  return absl::InvalidArgumentError(StrCat("flag --print-completion: got \"", Printable(shell),
                                           "\", expected bash, zsh or fish"));
}

}  // namespace millrace
