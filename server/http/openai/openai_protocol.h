// The endpoints of OpenAI's API, with vLLM's further ones: completions, chats, embeddings, scores,
// rankings and tokens.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_OPENAI_PROTOCOL_H_
#define MILLRACE_SERVER_HTTP_OPENAI_OPENAI_PROTOCOL_H_

#include "server/http/api/endpoint.h"

namespace millrace {

HttpProtocol OpenAiProtocol();

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_OPENAI_PROTOCOL_H_
