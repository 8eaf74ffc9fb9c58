// `millraced chat`: a conversation in the terminal.
#ifndef MILLRACE_SERVER_CHAT_CHAT_H_
#define MILLRACE_SERVER_CHAT_CHAT_H_

#include "absl/status/status.h"
#include "config/load.h"

namespace millrace {

// Serves the model on a free port of loopback, for itself alone, or asks the server at
// settings.chat_url, and talks to it until the input ends. On a terminal it shows a prompt, and an
// error ends no more than its answer; otherwise each line of the input is a message, stdout has the
// answers alone, and the first error is returned.
// The process ends right after it: what serves is not taken down.
absl::Status RunChat(const Startup& startup);

}  // namespace millrace

#endif  // MILLRACE_SERVER_CHAT_CHAT_H_
