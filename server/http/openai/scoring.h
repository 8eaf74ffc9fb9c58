// /v1/score and /v1/rerank: how well texts fit each other, with vLLM's fields.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_SCORING_H_
#define MILLRACE_SERVER_HTTP_OPENAI_SCORING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "config/settings.h"
#include "engine/engine.h"
#include "engine/request/request.h"

namespace millrace {

using SharedText = std::shared_ptr<const std::string>;

// A body of either endpoint. Pair i is of the only text of `first`, or of its i-th, and second[i].
struct ScoringRequest {
  bool rerank = false;
  std::string model;
  std::vector<SharedText> first;
  std::vector<SharedText> second;
  std::string_view first_field, second_field;  // as the client named them
  bool use_activation = true;                  // false: a cross-encoder's logits
  int32_t top_n = 0;                           // of rerank; 0: all
  bool return_documents = true;                // of rerank
  EmbedRequest options;                        // everything but the inputs and the id
};

// Errors are InvalidArgument with FieldError's param and code.
absl::StatusOr<ScoringRequest> ParseScoringRequest(bool rerank, std::string_view body,
                                                   UnknownFields unknown = UnknownFields::kRefuse);

// Returns what the model must compute: pairs of a cross-encoder, else both texts' embeddings.
absl::StatusOr<EmbedRequest> InputsOf(const ScoringRequest& request, const EngineInfo& info);

// Returns each pair's score: a cross-encoder's, else the cosine of the embeddings' angle.
std::vector<float> ScoresOf(const ScoringRequest& request, const EngineInfo& info,
                            const Embeddings& computed);

// Returns the response's body. `id`: "score-…" or "rerank-…".
std::string ScoringJson(const ScoringRequest& request, std::string_view id, std::string_view model,
                        const std::vector<float>& scores, int64_t prompt_tokens);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_SCORING_H_
