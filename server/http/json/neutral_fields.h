// The fields of other servers that Millrace takes only while their value asks for nothing, and
// hints of clients, which it takes whatever they say: no answer must follow them.
#ifndef MILLRACE_SERVER_HTTP_JSON_NEUTRAL_FIELDS_H_
#define MILLRACE_SERVER_HTTP_JSON_NEUTRAL_FIELDS_H_

#include <string>
#include <utility>
#include <vector>

#include "server/http/json/json_reader.h"

namespace millrace {

// The endpoints whose bodies have such fields, as bits.
enum Endpoint : unsigned {
  kCompletionEndpoint = 1,
  kChatEndpoint = 2,
  kEmbeddingEndpoint = 4,
  kChatTokenizeEndpoint = 8,  // /tokenize with messages
  kScoringEndpoint = 16,      // /v1/score and /v1/rerank
  kMessagesEndpoint = 32,     // /v1/messages and its count_tokens
  kResponsesEndpoint = 64,
};

// Takes the endpoint's fields with neutral values, and refuses any other value by name, with what
// is allowed.
void CheckNeutralFields(FieldReader& fields, Endpoint endpoint);

// Returns JSON schemas of the endpoint's fields, by name, for /openapi.json. null is allowed
// beside.
std::vector<std::pair<std::string, nlohmann::ordered_json>> NeutralFieldSchemas(Endpoint endpoint);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_JSON_NEUTRAL_FIELDS_H_
