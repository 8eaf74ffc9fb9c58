#include "server/http/embedding.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "server/http/json_writer.h"

namespace millrace {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats go out as they lie in memory");

void AppendEmbedding(std::string& out, const std::vector<float>& values, bool base64) {
  if (base64) {
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                  values.size() * sizeof(float));
    out += '"';
    out += absl::Base64Escape(bytes);
    out += '"';
    return;
  }
  char separator = '[';
  for (const float value : values) {
    out += separator;
    AppendJsonFloat(out, value);
    separator = ',';
  }
  out += ']';
}

}  // namespace

Embedding::Embedding(ApiEmbeddingRequest request, Engine& engine, const Wake& wake)
    : id_(request.options.id),
      model_(engine.info().model_name),
      created_(absl::ToUnixSeconds(absl::Now())),
      base64_(request.base64),
      batch_(engine, std::move(request.options), std::move(request.inputs), wake) {}

Answer::State Embedding::Poll(HttpResponse& response, std::string& /*body*/) {
  const std::optional<absl::StatusOr<Embeddings>> embeddings = batch_.Poll();
  if (!embeddings.has_value()) return State::kWaiting;
  if (embeddings->ok()) {
    response.body = Json(**embeddings);
  } else {
    response = ErrorResponse(ErrorFromStatus(embeddings->status()));
  }
  return State::kWhole;
}

std::string Embedding::Json(const Embeddings& embeddings) const {
  std::string out = R"({"id":)";
  AppendJsonString(out, id_);
  out += R"(,"object":"list","created":)";
  AppendJsonNumber(out, created_);
  out += R"(,"model":)";
  AppendJsonString(out, model_);
  out += R"(,"data":[)";
  for (size_t i = 0; i < embeddings.vectors.size(); ++i) {
    if (i > 0) out += ',';
    out += R"({"object":"embedding","index":)";
    AppendJsonNumber(out, static_cast<int64_t>(i));
    out += R"(,"embedding":)";
    AppendEmbedding(out, embeddings.vectors[i], base64_);
    out += '}';
  }
  out += R"(],"usage":{"prompt_tokens":)";
  AppendJsonNumber(out, embeddings.prompt_tokens);
  out += R"(,"total_tokens":)";
  AppendJsonNumber(out, embeddings.prompt_tokens);
  out += "}}";
  return out;
}

}  // namespace millrace
