// The commands of the program: words that stand first on its command line.
#ifndef MILLRACE_CONFIG_COMMANDS_H_
#define MILLRACE_CONFIG_COMMANDS_H_

#include <string_view>
#include <vector>

#include "config/settings.h"

namespace millrace {

struct CommandInfo {
  Command command;
  std::string_view word;       // "bench"
  std::string_view argument;   // what it takes beside flags: "[MODEL]"
  std::string_view purpose;    // for messages: "which asks a server"
  std::string_view summary;    // "asks a running server for its health"
  std::string_view text;       // for the top of its --help: whole sentences
  std::string_view also = "";  // other words for it, separated by spaces
};

// Returns the commands in the order of --help, the first of which, `serve`, may be left out.
const std::vector<CommandInfo>& Commands();

// Returns the command that a word calls; null for another word.
const CommandInfo* FindCommand(std::string_view word);

// Returns the command's row; null for one that no word calls.
const CommandInfo* FindCommand(Command command);

}  // namespace millrace

#endif  // MILLRACE_CONFIG_COMMANDS_H_
