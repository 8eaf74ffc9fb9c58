// The fields of a request that favour, allow or forbid tokens.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_TOKEN_FIELDS_H_
#define MILLRACE_SERVER_HTTP_OPENAI_TOKEN_FIELDS_H_

#include "engine/request/request.h"
#include "server/http/json/json_reader.h"

namespace millrace {

// Reads logit_bias, allowed_token_ids and bad_words.
void ReadTokenFields(FieldReader& fields, GenerateRequest& options);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_TOKEN_FIELDS_H_
