// The `messages` of a chat, and how they are rendered.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_OPENAI_MESSAGES_H_
#define MILLRACE_SERVER_HTTP_OPENAI_OPENAI_MESSAGES_H_

#include <optional>
#include <string>

#include "engine/request/request.h"
#include "server/http/json/json_reader.h"

namespace millrace {

// Reads the fields `messages`, `add_generation_prompt`, `continue_final_message` and
// `chat_template_kwargs`; nothing if the messages are missing or wrong. Parts of content are joined
// by line feeds, as vLLM joins them, and their sizes are kept.
std::optional<Chat> ReadChat(FieldReader& fields);

// Reads the field `prediction`: the text that the client expects the answer to be, as a message's
// content. Leaves `prediction` as it is if the field is absent.
void ReadPrediction(FieldReader& fields, std::string& prediction);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_OPENAI_MESSAGES_H_
