// The fields of other servers that Millrace takes only while their value asks for nothing.
#ifndef MILLRACE_SERVER_HTTP_NEUTRAL_FIELDS_H_
#define MILLRACE_SERVER_HTTP_NEUTRAL_FIELDS_H_

#include "server/http/json_reader.h"

namespace millrace {

// The endpoints whose bodies have such fields, as bits.
enum Endpoint : unsigned {
  kCompletionEndpoint = 1,
  kChatEndpoint = 2,
  kEmbeddingEndpoint = 4,
  kChatTokenizeEndpoint = 8,  // /tokenize with messages
  kScoringEndpoint = 16,      // /v1/score and /v1/rerank
};

// Takes the endpoint's fields with neutral values, and refuses any other value by name, with what
// is allowed.
void CheckNeutralFields(FieldReader& fields, Endpoint endpoint);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_NEUTRAL_FIELDS_H_
