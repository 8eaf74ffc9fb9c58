#include "server/http/openai/scoring.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/time/clock.h"
#include "base/status.h"
#include "base/strings.h"
#include "server/http/json/json_reader.h"
#include "server/http/json/json_writer.h"
#include "server/http/json/neutral_fields.h"
#include "server/http/openai/embedding.h"
#include "server/http/openai/openai_request.h"

namespace millrace {
namespace {

struct FieldNames {
  std::string_view first, second;
};

// vLLM's names of the two sides of a score.
constexpr FieldNames kScoreNames[] = {
    {"text_1", "text_2"}, {"data_1", "data_2"}, {"queries", "documents"}, {"queries", "items"}};

// Reads a text, or a list of texts.
void ReadTexts(FieldReader& fields, std::string_view name, bool single, bool list,
               std::vector<SharedText>& texts) {
  const std::string_view allowed = !list     ? "a non-empty string"
                                   : !single ? "a non-empty list of non-empty strings"
                                             : "a non-empty string, or a list of these";
  const OrderedJson* field = fields.Find(name);
  if (field == nullptr) return fields.FailMissing(name, allowed);
  const auto is_text = [](const OrderedJson& value) {
    return value.is_string() && !value.get_ref<const std::string&>().empty();
  };
  if (single && is_text(*field)) {
    texts.push_back(std::make_shared<const std::string>(field->get<std::string>()));
    return;
  }
  if (!list || !field->is_array() || field->empty()) return fields.FailValue(name, *field, allowed);
  if (field->size() > kMaxEmbeddingInputs) {
    return fields.Fail(
        name, "invalid_value",
        StrCat(name, " is a list of ", field->size(), "; allowed: at most ", kMaxEmbeddingInputs));
  }
  for (const OrderedJson& item : *field) {
    if (!is_text(item)) {
      return fields.FailValue(StrCat(name, "[", texts.size(), "]"), item, "a non-empty string");
    }
    texts.push_back(std::make_shared<const std::string>(item.get<std::string>()));
  }
}

FieldNames ChooseNames(FieldReader& fields) {
  for (const FieldNames& names : kScoreNames) {
    if (fields.Find(names.first) != nullptr && fields.Find(names.second) != nullptr) return names;
  }
  for (const FieldNames& names : kScoreNames) {
    if (fields.Find(names.first) != nullptr || fields.Find(names.second) != nullptr) return names;
  }
  return kScoreNames[0];
}

void ReadScore(FieldReader& fields, ScoringRequest& request) {
  const FieldNames names = ChooseNames(fields);
  for (const FieldNames& other : kScoreNames) {
    for (const std::string_view name : {other.first, other.second}) {
      if (name == names.first || name == names.second) continue;
      if (fields.Find(name) == nullptr) continue;
      fields.Fail(name, "invalid_value",
                  StrCat(name, " is given beside ", names.first, "; allowed: one of both"));
    }
  }
  request.first_field = names.first;
  request.second_field = names.second;
  ReadTexts(fields, names.first, /*single=*/true, /*list=*/true, request.first);
  ReadTexts(fields, names.second, /*single=*/true, /*list=*/true, request.second);
  if (request.first.size() > 1 && request.first.size() != request.second.size()) {
    fields.Fail(
        names.first, "invalid_value",
        StrCat(names.first, " has ", request.first.size(), " texts and ", names.second, " has ",
               request.second.size(), "; allowed: 1 and any number, or as many of both"));
  }
}

void ReadRerank(FieldReader& fields, ScoringRequest& request) {
  request.first_field = "query";
  request.second_field = "documents";
  ReadTexts(fields, "query", /*single=*/true, /*list=*/false, request.first);
  ReadTexts(fields, "documents", /*single=*/false, /*list=*/true, request.second);
  fields.Read("top_n", request.top_n);
  if (request.top_n < 0) {
    fields.FailValue("top_n", request.top_n, "0, for all documents, and more");
  }
  fields.Read("return_documents", request.return_documents);
}

float Cosine(const float* a, const float* b, int32_t size) {
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (int32_t i = 0; i < size; ++i) {
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  return static_cast<float>(ab / std::max(std::sqrt(aa) * std::sqrt(bb), 1e-8));
}

}  // namespace

absl::StatusOr<ScoringRequest> ParseScoringRequest(bool rerank, std::string_view body,
                                                   UnknownFields unknown) {
  MILLRACE_ASSIGN_OR_RETURN(const OrderedJson json, ParseBody(body));
  FieldReader fields(json, "", unknown);
  ScoringRequest request{.rerank = rerank};
  ReadModel(fields, request.model);
  if (rerank) {
    ReadRerank(fields, request);
  } else {
    ReadScore(fields, request);
  }
  fields.Read("use_activation", request.use_activation);
  ReadEmbedOptions(fields, request.options);
  CheckNeutralFields(fields, kScoringEndpoint);
  MILLRACE_RETURN_IF_ERROR(fields.Finish());
  return request;
}

absl::StatusOr<EmbedRequest> InputsOf(const ScoringRequest& request, const EngineInfo& info) {
  if (info.embedding_size == 0) {
    return absl::InvalidArgumentError(
        StrCat("model is \"", info.model_name, "\", which does not support the ",
               request.rerank ? "Rerank" : "Score", " API, but generates"));
  }
  EmbedRequest embed = request.options;
  embed.field = request.second_field;
  if (info.score.has_value()) {
    for (size_t i = 0; i < request.second.size(); ++i) {
      embed.first_texts.push_back(request.first[request.first.size() == 1 ? 0 : i]);
    }
  } else {
    embed.num_before = request.first.size();
    embed.field_before = request.first_field;
    for (const SharedText& text : request.first) embed.inputs.emplace_back(*text);
  }
  for (const SharedText& text : request.second) embed.inputs.emplace_back(*text);
  return embed;
}

std::vector<float> ScoresOf(const ScoringRequest& request, const EngineInfo& info,
                            const Embeddings& computed) {
  std::vector<float> scores;
  const float* const values = computed.values.data();
  for (size_t i = 0; i < request.second.size(); ++i) {
    if (info.score.has_value()) {
      const bool sigmoid = request.use_activation && *info.score == ScoreFunction::kSigmoid;
      scores.push_back(sigmoid ? 1 / (1 + std::exp(-values[i])) : values[i]);
    } else {
      const size_t count = request.first.size();
      scores.push_back(Cosine(values + (count == 1 ? 0 : i) * computed.size,
                              values + (count + i) * computed.size, computed.size));
    }
  }
  return scores;
}

std::string ScoringJson(const ScoringRequest& request, std::string_view id, std::string_view model,
                        const std::vector<float>& scores, int64_t prompt_tokens) {
  std::string out = R"({"id":)";
  AppendJsonString(out, id);
  if (!request.rerank) {
    out += R"(,"object":"list","created":)";
    AppendJsonNumber(out, absl::ToUnixSeconds(absl::Now()));
  }
  out += R"(,"model":)";
  AppendJsonString(out, model);
  out += request.rerank ? R"(,"results":[)" : R"(,"data":[)";
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (request.rerank) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    const auto most = static_cast<size_t>(request.top_n);
    if (most > 0 && most < order.size()) order.resize(most);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    out += i == 0 ? R"({"index":)" : R"(,{"index":)";
    AppendJsonNumber(out, static_cast<int64_t>(order[i]));
    if (request.rerank && request.return_documents) {
      out += R"(,"document":{"text":)";
      AppendJsonString(out, *request.second[order[i]]);
      out += '}';
    }
    out += request.rerank ? R"(,"relevance_score":)" : R"(,"object":"score","score":)";
    AppendJsonFloat(out, scores[order[i]]);
    out += '}';
  }
  out += R"(],"usage":)";
  AppendPromptUsage(out, prompt_tokens);
  out += '}';
  return out;
}

}  // namespace millrace
