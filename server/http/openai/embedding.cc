#include "server/http/openai/embedding.h"

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "server/http/json/json_writer.h"

namespace millrace {
namespace {

// Estimated size of a number, with its share of the text around the numbers.
constexpr size_t kBase64Bytes = 6;
constexpr size_t kFloatBytes = 14;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats go out as they lie in memory");

void AppendEmbedding(std::string& out, absl::Span<const float> values, bool base64) {
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

std::string EmbeddingsJson(std::string_view id, std::string_view model,
                           const Embeddings& embeddings, bool base64) {
  const absl::Span<const float> values = embeddings.values;
  std::string out;
  out.reserve(values.size() * (base64 ? kBase64Bytes : kFloatBytes));
  out += R"({"id":)";
  AppendJsonString(out, id);
  out += R"(,"object":"list","created":)";
  AppendJsonNumber(out, absl::ToUnixSeconds(absl::Now()));
  out += R"(,"model":)";
  AppendJsonString(out, model);
  out += R"(,"data":[)";
  for (size_t i = 0; i * embeddings.size < values.size(); ++i) {
    if (i > 0) out += ',';
    out += R"({"object":"embedding","index":)";
    AppendJsonNumber(out, static_cast<int64_t>(i));
    out += R"(,"embedding":)";
    AppendEmbedding(out, values.subspan(i * embeddings.size, embeddings.size), base64);
    out += '}';
  }
  out += R"(],"usage":)";
  AppendPromptUsage(out, embeddings.prompt_tokens);
  out += '}';
  return out;
}

void AppendPromptUsage(std::string& out, int64_t prompt_tokens) {
  out += R"({"prompt_tokens":)";
  AppendJsonNumber(out, prompt_tokens);
  out += R"(,"total_tokens":)";
  AppendJsonNumber(out, prompt_tokens);
  out += '}';
}

}  // namespace millrace
