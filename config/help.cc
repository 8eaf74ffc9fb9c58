#include "config/help.h"

#include "absl/strings/str_replace.h"
#include "base/strings.h"
#include "config/commands.h"
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

// A line of two columns.
std::string InColumns(std::string_view left, std::string_view right) {
  constexpr size_t kColumn = 26;
  const size_t gap = left.size() + 2 < kColumn ? kColumn - left.size() : 2;
  return StrCat("  ", left, std::string(gap, ' '), right, "\n");
}

}  // namespace

std::string_view Version() { return MILLRACE_VERSION; }

std::string FlagUsage(const Setting& setting) {
  if (setting.kind == SettingKind::kSwitch) return StrCat("--[no-]", setting.name);
  return StrCat("--", setting.name, " ", setting.placeholder);
}

std::string VersionText() { return StrCat("millraced ", Version(), "\n"); }

std::string HelpText(Command command) {
  const CommandInfo& info = *FindCommand(command);
  std::string help = StrCat(Wrapped(info.text, 0), "\nUsage: millraced");
  if (command != Command::kServe) help += StrCat(" ", info.word);
  if (!info.argument.empty()) help += StrCat(" ", info.argument);
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
  help +=
      "\nFlags of vLLM's, SGLang's and llama.cpp's servers that mean the same are taken, too (-m, "
      "--port,\n"
      "-np and others); of most others an error says what replaces them.\n"
      "\nInstead of serving\n";
  for (const CommandInfo& other : Commands()) {
    help += StrCat("  millraced ", other.word, other.argument.empty() ? "" : " ", other.argument,
                   "\n      ", other.summary, "\n");
  }
  return help +
         "  --help, --help-all, --version\n"
         "  --print-settings-table\n"
         "      this list as a Markdown table\n"
         "  --print-foreign-flags\n"
         "      what becomes of other servers' flags, as Markdown tables\n"
         "  --print-man-page\n"
         "      this list as a manual page\n"
         "  --print-completion SHELL\n"
         "      completions of these flags for bash, zsh or fish\n"
         "  --print-kernels\n"
         "      which kernels a GPU runs, as a Markdown table\n";
}

std::string ShortHelpText(Command command) {
  const bool chats = command == Command::kChat;
  if (!chats && command != Command::kServe && command != Command::kDoctor) return HelpText(command);
  const CommandInfo& info = *FindCommand(command);
  std::string help = Wrapped(info.text, 0);
  if (command == Command::kServe) {
    help += "\nUsage: millraced [COMMAND] [MODEL] [--SETTING VALUE]...\n\n";
    for (const CommandInfo& other : Commands()) {
      help += InColumns(StrCat(other.word, other.argument.empty() ? "" : " ", other.argument),
                        other.summary);
    }
    help += InColumns("help [COMMAND]", "a command's settings");
  } else {
    help += StrCat("\nUsage: millraced ", info.word, " [MODEL] [--SETTING VALUE]...\n");
  }
  help +=
      "\nMODEL: a GGUF file, a Hugging Face folder, or org/name or org/name:Q4_K_M of the hub.\n\n";
  constexpr struct {
    std::string_view setting;
    std::string_view text;
    bool chat_alone = false;
    bool server_alone = false;
  } kShown[] = {
      {"url", "a server to talk to; without it the model is served for the chat", true},
      {"system", "what the model is told before the chat", true},
      {"device", "cpu, cuda (an NVIDIA GPU), torch or fake"},
      {"host", "where to listen; beyond 127.0.0.1 with --api-key", false, true},
      {"http-port", "OpenAI's API, 8000", false, true},
      {"api-key", "keys of which clients send one"},
      {"temperature", "and --top-p, --max-tokens: for requests that do not say it"},
      {"max-model-len", "longest sequence, prompt and answer together"},
      {"kv-cache-memory", "memory of the KV cache"},
      {"quantization", "round float weights to fp8, int8 or int4"},
      {"config", "a file with settings, YAML or JSON"},
      {"dry-run", "print how much memory it will take", false, true},
  };
  for (const auto& shown : kShown) {
    if (chats ? shown.server_alone : shown.chat_alone) continue;
    help += InColumns(FlagUsage(*FindSetting(shown.setting)), shown.text);
  }
  return StrCat(help, "\nAll settings: millraced ",
                command == Command::kServe ? "" : StrCat(info.word, " "), "--help-all\n");
}

std::string UsageText() {
  return "millraced serves a large language model over HTTP and gRPC. It needs a model:\n"
         "\n"
         "  millraced model.gguf                    a GGUF file\n"
         "  millraced path/to/folder                a folder with config.json and safetensors\n"
         "  millraced org/name:Q4_K_M               a model of the Hugging Face hub\n"
         "  millraced --device cuda org/name        the same on an NVIDIA GPU\n"
         "  millraced --device fake                 no model: for trying out clients\n"
         "\n"
         "It listens on http://127.0.0.1:8000 (OpenAI's API) and 127.0.0.1:8001 (gRPC); its "
         "console "
         "is\n"
         "http://127.0.0.1:8002/.\n"
         "\n"
         "  millraced chat MODEL                    talks to it here in the terminal\n"
         "  millraced doctor MODEL                  is this machine fit for it?\n"
         "  millraced --dry-run MODEL               how much memory will it take?\n"
         "  millraced --help                        commands and settings\n";
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
