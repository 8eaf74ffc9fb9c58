// The fields of a request that hold its answer to a grammar: OpenAI's response_format, vLLM's
// structured_outputs and guided_*, llama.cpp's grammar and json_schema, SGLang's ebnf and regex.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_STRUCTURED_OUTPUT_H_
#define MILLRACE_SERVER_HTTP_OPENAI_STRUCTURED_OUTPUT_H_

#include "engine/request/request.h"
#include "server/http/json/json_reader.h"

namespace millrace {

// Sets the request's grammar. Two fields that ask for something are refused.
void ReadStructuredOutput(FieldReader& fields, GenerateRequest& request);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_STRUCTURED_OUTPUT_H_
