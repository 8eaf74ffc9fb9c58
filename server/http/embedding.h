// One request to /v1/embeddings being answered.
#ifndef MILLRACE_SERVER_HTTP_EMBEDDING_H_
#define MILLRACE_SERVER_HTTP_EMBEDDING_H_

#include <cstdint>
#include <string>

#include "server/embedding_batch.h"
#include "server/http/http_message.h"
#include "server/http/openai_request.h"

namespace millrace {

// Whole, with the inputs' embeddings in their order, as lists of numbers or, in base64, as
// little-endian float32. Destroying it cancels what is unfinished (kClientGone).
class Embedding : public Answer {
 public:
  // `request.options.id` is "embd-…"; of several inputs, each runs under it with "-<index>".
  Embedding(ApiEmbeddingRequest request, Engine& engine, const Wake& wake);

  State Poll(HttpResponse& response, std::string& body) override;

 private:
  std::string Json(const Embeddings& embeddings) const;

  const std::string id_;
  const std::string model_;
  const int64_t created_;  // seconds since 1970
  const bool base64_;
  EmbeddingBatch batch_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_EMBEDDING_H_
