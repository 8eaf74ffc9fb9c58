// The bodies of /v1/completions, /v1/chat/completions, /v1/embeddings, /tokenize and /detokenize,
// read into requests.
//
// Every field that OpenAI documents for the first three (API reference and openai-python 3.52,
// 2026-11) and every one that vLLM adds is honoured or refused by name; any other is unknown, and
// refused or ignored as --unknown-fields says. null, and a field's documented default, count as
// absent even where the field is refused. Types and what is HTTP's own are checked here; ranges
// that gRPC shares, by ValidateRequest.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_OPENAI_REQUEST_H_
#define MILLRACE_SERVER_HTTP_OPENAI_OPENAI_REQUEST_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "config/settings.h"
#include "engine/engine.h"
#include "engine/request/request.h"

namespace millrace {

class FieldReader;

enum class ApiKind { kCompletion, kChat };

inline constexpr size_t kMaxPrompts = 128;  // of one request, and kMaxChoices of all together
inline constexpr int32_t kDefaultCompletionTokens = 16;
inline constexpr int32_t kMaxCompletionLogprobs = 5;

struct ApiRequest {
  ApiKind kind = ApiKind::kCompletion;
  std::string model;            // empty: the only one
  std::vector<Prompt> prompts;  // at least one
  int32_t n = 1;                // choices of each that are answered with: the best of options.n
  GenerateRequest options;      // everything but id and prompt
  bool stream = false;
  bool include_usage = false;     // stream_options
  bool continuous_usage = false;  // stream_options.continuous_usage_stats: usage in every chunk
  bool echo = false;              // the prompt's text is wanted back
  bool include_reasoning = true;  // what the model thinks is a part of the answer
  bool named_call = false;        // tool_choice names a tool
  bool return_token_ids = false;  // the prompt's token ids too
  // The alternatives that are shown for each of the answer's tokens, and of the prompt's.
  // options.logprobs is the larger number, since the engine makes no difference.
  std::optional<int32_t> logprobs, prompt_logprobs;
};

// How requests to a model, named as in ApiRequest, begin. Null: with vLLM's defaults.
using DefaultsOf = std::function<SamplingDefaults(const std::string& model)>;

// Parses a body. Errors are InvalidArgument with FieldError's param and code.
absl::StatusOr<ApiRequest> ParseApiRequest(ApiKind kind, std::string_view body,
                                           const DefaultsOf& defaults = nullptr,
                                           UnknownFields unknown = UnknownFields::kRefuse,
                                           bool auto_tool_choice = true);

// Reads a field `model`, which may be absent but not empty.
void ReadModel(FieldReader& fields, std::string& model);
// Reads what all requests to encoders have beside their texts: how to cut these, priority,
// deadline.
void ReadEmbedOptions(FieldReader& fields, EmbedRequest& request);
// Reads the field of this name as `stop`: strings that end an answer.
void ReadStop(FieldReader& fields, std::string_view name, std::vector<std::string>& stop);

struct ApiEmbeddingRequest {
  std::string model;
  EmbedRequest request;  // everything but its id
  bool base64 = false;   // else lists of numbers
};
absl::StatusOr<ApiEmbeddingRequest> ParseEmbeddingRequest(
    std::string_view body, UnknownFields unknown = UnknownFields::kRefuse);

struct ApiTokenizeRequest {
  std::string model;
  TokenizeRequest request;
};
absl::StatusOr<ApiTokenizeRequest> ParseTokenizeRequest(
    std::string_view body, UnknownFields unknown = UnknownFields::kRefuse);

struct ApiDetokenizeRequest {
  std::string model;
  std::vector<Token> tokens;
};
absl::StatusOr<ApiDetokenizeRequest> ParseDetokenizeRequest(
    std::string_view body, UnknownFields unknown = UnknownFields::kRefuse);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_OPENAI_REQUEST_H_
