// Puts the assistant's turns with calls, and their results, as a chat template takes them.
#ifndef MILLRACE_ENGINE_TEXT_CALL_TURNS_H_
#define MILLRACE_ENGINE_TEXT_CALL_TURNS_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "engine/request/request.h"
#include "engine/text/template_traits.h"
#include "text/tools/output_format.h"

namespace millrace {

// Adds to a message's content, with `between` before the text if both have something.
void AppendContent(ChatMessage* message, std::string_view text, std::string_view between);

// Returns the place of the last turn of the user, or 0.
size_t LastUser(const std::vector<ChatMessage>& messages);

// Returns the number of calls in the messages.
size_t CountCalls(const std::vector<ChatMessage>& messages);

// Makes arguments JSON objects where they have to be. An empty text, null and an empty list mean
// that a call has none.
void CompleteArguments(const MessageTraits& traits, std::vector<ChatMessage>* messages);

// Gives calls and results the ids, and results the names, that the template wants. A result without
// an id belongs to the call in its place.
void NameCalls(const MessageTraits& traits, std::vector<ChatMessage>* messages);

// Puts calls, the content beside them and results where the template writes them: in turns of their
// own, or as text, of which `format` says how calls are written.
void PlaceCalls(const MessageTraits& traits, const ToolFormat& format,
                std::vector<ChatMessage>* messages);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_TEXT_CALL_TURNS_H_
