#include "config/man_page.h"

#include <string_view>

#include "base/strings.h"
#include "config/commands.h"
#include "config/help.h"
#include "config/settings_table.h"

namespace millrace {
namespace {

// Escapes text for roff: a backslash begins a request, and a plain minus is set as a hyphen, which
// cannot be pasted into a shell. A line that begins with a dot or an apostrophe would be a request.
std::string Escaped(std::string_view text) {
  std::string escaped;
  if (text.starts_with('.') || text.starts_with('\'')) escaped += "\\&";
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// "\fB--http-port\fR \fIPORT\fR".
std::string Flag(const Setting& setting) {
  const std::string usage = FlagUsage(setting);
  const size_t space = usage.find(' ');
  std::string flag = StrCat("\\fB", Escaped(usage.substr(0, space)), "\\fR");
  if (space != usage.npos) flag += StrCat(" \\fI", Escaped(usage.substr(space + 1)), "\\fR");
  return flag;
}

std::string Entry(const Setting& setting) {
  std::string entry = StrCat(".TP\n", Flag(setting), "\n", Escaped(setting.help),
                             ".\n.br\nAllowed: ", Escaped(setting.allowed), ".");
  if (!setting.default_text.empty()) {
    entry += StrCat(" Default: ", Escaped(setting.default_text), ".");
  }
  return entry + "\n";
}

constexpr std::string_view kBeforeCommands = R"(.SH NAME
millraced \- serve a large language model over HTTP and gRPC
.SH SYNOPSIS
.B millraced
.RI [ FLAG ...]
.RI [ MODEL ]
.br
.B millraced
.RI COMMAND " [" FLAG "...] [" MODEL ]
.SH DESCRIPTION
.B millraced
serves one model with an OpenAI\-compatible HTTP API and a gRPC API until it gets SIGTERM or SIGINT.
Then it refuses new requests, lets accepted ones finish within
.BR \-\-drain\-timeout ,
and ends. A second signal ends it at once.
)";

constexpr std::string_view kBehindCommands = R"(.PP
Each setting is a flag, a key of the file that
.B \-\-config
names (YAML or JSON), or a variable of the environment:
.B \-\-http\-port
is
.BR MILLRACE_HTTP_PORT .
A flag wins over the environment, and the environment over the file.
.SH SETTINGS
)";

constexpr std::string_view kBehindSettings = R"(.SH INSTEAD OF SERVING
.TP
\fB\-\-help\fR, \fB\-\-help\-all\fR, \fB\-\-version\fR
Print the commands and the settings that most need, all settings, or the version.
.TP
\fB\-\-print\-settings\-table\fR
Print the settings as a Markdown table.
.TP
\fB\-\-print\-foreign\-flags\fR
Print what becomes of other servers' flags, as Markdown tables.
.TP
\fB\-\-print\-man\-page\fR
Print this page.
.TP
\fB\-\-print\-completion\fR \fISHELL\fR
Print completions of the flags for bash, zsh or fish.
.TP
\fB\-\-print\-kernels\fR
Print which kernels a GPU runs, as a Markdown table.
.SH EXIT STATUS
.TP
0
The server has drained, or a command has done its work: the server is well, the machine fits.
.TP
1
The server cannot start, the server that
.B millraced health
asked is not well, or
.B millraced doctor
has found something wrong.
.TP
70
The device has failed. Start the server again.
.TP
128 + \fIn\fR
A second signal \fIn\fR has ended the server at once.
.SH FILES
.TP
\fI${XDG_CACHE_HOME:\-~/.cache}/millrace\fR
The default model, and measured kernel plans of GPUs.
.TP
\fI${HF_HOME:\-~/.cache/huggingface}\fR
Models of the Hugging Face hub.
)";

}  // namespace

std::string ManPage() {
  std::string page =
      StrCat(".TH MILLRACED 8 \"\" \"Millrace ", Version(), "\" \"Millrace\"\n", kBeforeCommands);
  for (const CommandInfo& info : Commands()) {
    if (info.command == Command::kServe) continue;
    page += StrCat(".PP\n", Escaped(info.text), "\n");
  }
  page += kBehindCommands;
  std::string_view group;
  for (const Setting& setting : SettingsTable()) {
    if (setting.group != group) page += StrCat(".SS ", Escaped(setting.group), "\n");
    group = setting.group;
    page += Entry(setting);
  }
  return StrCat(page, kBehindSettings);
}

}  // namespace millrace
