// The answer of /v1/embeddings.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_EMBEDDING_H_
#define MILLRACE_SERVER_HTTP_OPENAI_EMBEDDING_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/request/request.h"

namespace millrace {

// Returns the response's body: embeddings in the order of the inputs, as lists of numbers or, with
// `base64`, as little-endian float32. `id`: "embd-…". Takes milliseconds for a thousand of them.
std::string EmbeddingsJson(std::string_view id, std::string_view model,
                           const Embeddings& embeddings, bool base64);

// Appends the usage of an answer for which nothing was generated.
void AppendPromptUsage(std::string& out, int64_t prompt_tokens);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_EMBEDDING_H_
