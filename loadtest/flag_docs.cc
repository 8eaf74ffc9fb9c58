// --help, the manual page and the completions, made from the table of flags.
#include <set>

#include "absl/strings/str_format.h"
#include "base/strings.h"
#include "loadtest/flags.h"

namespace millrace {
namespace {

constexpr size_t kWidth = 96;
constexpr size_t kIndent = 6;

constexpr std::string_view kUsage =
    R"(Measures a server of language models: sends requests, and reads the answers' streams.

  millrace-loadtest [FLAG...]                          one run
  millrace-loadtest sweep --slo GOALS [FLAG...]        find the highest rate that holds the goals
  millrace-loadtest sweep --rates|--concurrencies LIST [FLAG...]
  millrace-loadtest replay [SESSIONS.jsonl] [FLAG...]  sessions of a trace, or synthetic ones
  millrace-loadtest compare A.json B.json [--html FILE] [--json FILE]

Examples:
  millrace-loadtest --concurrency 64 --num-prompts 1000 --html report.html
  millrace-loadtest --url http://gpu1:8000 --rate 20 --duration 5m --goodput ttft:200 tpot:50
  millrace-loadtest sweep --slo ttft:500 tpot:50 --duration 60s --html sweep.html
  millrace-loadtest replay --concurrency 32 --turns 8 --prefix-len 2000 --tools 4

Exit status: 0 after a run in which requests were completed; 1 if none was, or the run could not start.
)";

// Appends `text`, broken into indented lines.
void AppendWrapped(std::string_view text, std::string& to) {
  const std::string indent(kIndent, ' ');
  std::string line = indent;
  for (const std::string_view word : SplitList(text, ' ')) {
    if (line.size() + word.size() >= kWidth) {
      to += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
      line = indent;
    }
    line += StrCat(word, " ");
  }
  to += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

std::string Usage(const LoadFlag& flag) {
  return StrCat("--", flag.name, flag.value.empty() ? "" : " ", flag.value, flag.many ? "..." : "");
}

std::string Alias(const LoadFlag& flag) {
  return flag.alias.empty() ? "" : StrCat(" Also --", flag.alias, ".");
}

// Escapes text for roff, where a plain minus would be a hyphen.
std::string Roff(std::string_view text) {
  std::string escaped;
  if (text.starts_with('.') || text.starts_with('\'')) escaped += "\\&";
  for (const char c : text) escaped += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  return escaped;
}

// Escapes text for a word in single quotes, as shells and fish read it.
std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

bool IsFile(const LoadFlag& flag) { return flag.value == "FILE"; }

std::string Names(std::string_view separator) {
  std::string names;
  for (const LoadFlag& flag : LoadFlags()) names += StrCat("--", flag.name, separator);
  return names + "--help" + std::string(separator) + "--version";
}

std::string BashCompletion() {
  std::string cases;
  for (const LoadFlag& flag : LoadFlags()) {
    std::string choices;
    for (const std::string_view choice : flag.choices) choices += StrCat(choice, " ");
    if (!choices.empty()) {
      cases += StrCat("    --", flag.name, ") COMPREPLY=($(compgen -W '", choices,
                      "' -- \"$word\")); return ;;\n");
    } else if (IsFile(flag)) {
      cases += StrCat("    --", flag.name, ") compopt -o default; return ;;\n");
    } else if (!flag.value.empty()) {
      cases += StrCat("    --", flag.name, ") return ;;\n");
    }
  }
  return StrCat(
      "# Completes millrace-loadtest in bash.\n_millrace_loadtest() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]}\n  COMPREPLY=()\n"
      "  case $last in\n",
      cases, "  esac\n  if [[ $word == -* ]]; then\n    COMPREPLY=($(compgen -W '", Names(" "),
      "' -- \"$word\"))\n  elif ((COMP_CWORD == 1)); then\n"
      "    COMPREPLY=($(compgen -W 'sweep replay compare' -- \"$word\"))\n  else\n"
      "    compopt -o default\n  fi\n}\ncomplete -F _millrace_loadtest millrace-loadtest\n");
}

std::string ZshCompletion() {
  std::string lines;
  for (const LoadFlag& flag : LoadFlags()) {
    std::string help;
    for (const char c : flag.help) {
      if (c == '[' || c == ']' || c == ':' || c == '\\') help += '\\';
      help += c;
    }
    std::string action = flag.value.empty() ? "" : StrCat(":", flag.value, ":");
    for (char& c : action) c = c == ':' && &c != action.data() && &c != &action.back() ? ' ' : c;
    if (IsFile(flag)) action += "_files";
    if (!flag.choices.empty()) {
      action += "(";
      for (const std::string_view choice : flag.choices) action += StrCat(choice, " ");
      action.back() = ')';
    }
    lines += StrCat(
        "  ",
        Quoted(StrCat(flag.name == "header" ? "*" : "", "--", flag.name, "[", help, "]", action)),
        " \\\n");
  }
  return StrCat("#compdef millrace-loadtest\n_arguments \\\n", lines,
                "  '--help[print the flags]' '--version[print the version]' \\\n"
                "  '1:command:(sweep replay compare)' '*:file:_files'\n");
}

std::string FishCompletion() {
  std::string script =
      "# Completes millrace-loadtest in fish.\n"
      "complete -c millrace-loadtest -f -n __fish_use_subcommand -a 'sweep replay compare'\n"
      "complete -c millrace-loadtest -n '__fish_seen_subcommand_from replay compare' -F\n";
  for (const LoadFlag& flag : LoadFlags()) {
    std::string choices;
    for (const std::string_view choice : flag.choices) choices += StrCat(choice, " ");
    script += StrCat("complete -c millrace-loadtest -l ", flag.name,
                     flag.value.empty() ? ""
                     : IsFile(flag)     ? " -r -F"
                                        : " -x",
                     choices.empty() ? "" : StrCat(" -a '", choices, "'"), " -d ",
                     Quoted(flag.help), "\n");
  }
  return script;
}

}  // namespace

std::string LoadtestHelp() {
  std::string help(kUsage);
  std::string_view group;
  for (const LoadFlag& flag : LoadFlags()) {
    if (flag.group != group) help += StrCat("\n", flag.group, ":\n");
    group = flag.group;
    help += StrCat("  ", Usage(flag), "\n");
    AppendWrapped(StrCat(flag.help, ".", Alias(flag)), help);
  }
  return help +
         "\nOther:\n  --help, --version, --print-man-page, --print-completion bash|zsh|fish\n";
}

std::string LoadtestManPage() {
  std::string page =
      ".TH MILLRACE\\-LOADTEST 1 \"\" Millrace \"User Commands\"\n.SH NAME\nmillrace\\-loadtest "
      "\\- measure a "
      "server of language models\n.SH SYNOPSIS\n.B millrace\\-loadtest\n.RI [ FLAG ...]\n.br\n"
      ".B millrace\\-loadtest sweep\n.RI [ FLAG ...]\n.br\n"
      ".B millrace\\-loadtest replay\n.RI [ SESSIONS.jsonl \"] [\" FLAG ...]\n.br\n"
      ".B millrace\\-loadtest compare\n"
      ".I A.json B.json\n.RI [ FLAG ...]\n.SH DESCRIPTION\n"
      "Sends requests to a server with OpenAI's HTTP API or Millrace's gRPC API, reads the "
      "answers' "
      "streams, and says how fast they came. "
      "Exit status: 0 after a run in which requests were completed; 1 if none was, or the run "
      "could "
      "not start.\n";
  std::string_view group;
  for (const LoadFlag& flag : LoadFlags()) {
    if (flag.group != group)
      page += StrCat(".SH ", absl::AsciiStrToUpper(AbslView(flag.group)), "\n");
    group = flag.group;
    page += StrCat(".TP\n\\fB", Roff(StrCat("--", flag.name)), "\\fR ",
                   flag.value.empty() ? "" : StrCat("\\fI", Roff(flag.value), "\\fR"), "\n",
                   Roff(StrCat(flag.help, ".", Alias(flag))), "\n");
  }
  return page + ".SH SEE ALSO\n.BR millraced (8)\n";
}

std::string LoadtestCompletion(std::string_view shell) {
  if (shell == "bash") return BashCompletion();
  if (shell == "zsh") return ZshCompletion();
  if (shell == "fish") return FishCompletion();
  return "";
}

}  // namespace millrace
