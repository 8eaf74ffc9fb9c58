// The items of a response's input, read as turns of a chat.
#ifndef MILLRACE_SERVER_HTTP_RESPONSES_RESPONSES_ITEMS_H_
#define MILLRACE_SERVER_HTTP_RESPONSES_RESPONSES_ITEMS_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/request/request.h"
#include "server/http/json/json_reader.h"

namespace millrace {

// Reads a field that must be there as a string. Returns whether all is well.
bool ReadItemField(FieldReader& fields, std::string_view name, std::string_view allowed,
                   std::string& value);

// Reads the field `input`: a string, which is the user's, or a list of items.
void ReadInput(FieldReader& fields, std::vector<ChatMessage>& messages);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_RESPONSES_RESPONSES_ITEMS_H_
