// The `messages` of a chat.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_MESSAGES_H_
#define MILLRACE_SERVER_HTTP_OPENAI_MESSAGES_H_

#include <optional>
#include <vector>

#include "server/http/json_reader.h"
#include "server/request.h"

namespace millrace {

// Reads the field `messages`; nothing if `fields` has failed, then or before. Parts of content are
// joined by line feeds, as vLLM joins them.
std::optional<std::vector<ChatMessage>> ReadMessages(FieldReader& fields);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_MESSAGES_H_
