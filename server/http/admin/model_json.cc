#include "server/http/admin/model_json.h"

#include <algorithm>
#include <optional>

#include "absl/time/time.h"
#include "base/percent.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/engine.h"
#include "engine/infer_engine.h"
#include "server/http/json/api_error.h"
#include "server/http/json/json_writer.h"

namespace millrace {

void AppendState(std::string& out, const EngineInfo& info) {
  out += '[';
  for (int group = 0; group < info.state.num_groups(); ++group) {
    if (group > 0) out += ',';
    const PagedState* const pages = info.state.Paged(group);
    if (pages == nullptr) {
      out += R"({"kind":"slots","bytes":)";
      AppendJsonNumber(out, std::get<SlotState>(info.state.groups[group]).bytes);
      out += R"(,"checkpoints":)";
      AppendJsonNumber(out, info.blocks_by_group[group]);
      out += '}';
      continue;
    }
    out += R"({"kind":"pages","window":)";
    if (pages->window.has_value()) {
      AppendJsonNumber(out, *pages->window);
    } else {
      out += "null";
    }
    out += R"(,"block_bytes":)";
    AppendJsonNumber(out, pages->block_bytes);
    out += R"(,"blocks":)";
    AppendJsonNumber(out, info.blocks_by_group[group]);
    out += '}';
  }
  out += ']';
}

namespace {

void AppendModel(std::string& out, const EngineInfo& info, std::string_view name) {
  out += R"({"id":)";
  AppendJsonString(out, name);
  out += R"(,"object":"model","created":)";
  AppendJsonNumber(out, absl::ToUnixSeconds(info.created));
  out += R"(,"owned_by":"millrace","root":)";
  AppendJsonString(out, info.model_name);
  out += R"(,"parent":null,"max_model_len":)";
  AppendJsonNumber(out, info.max_model_len);
  if (info.embedding_size == 0) {
    out += R"(,"kv_cache_tokens":)";
    AppendJsonNumber(out, int64_t{info.num_blocks} * info.block_size);
    out += R"(,"state":)";
    AppendState(out, info);
  }
  out += R"(,"architecture":)";
  AppendJsonString(out, info.architecture);
  out += R"(,"batch_invariant":)";
  out += info.batch_invariant ? "true" : "false";
  out += R"(,"tensor_parallel_size":)";
  AppendJsonNumber(out, info.tensor_parallel_size);
  out += R"(,"expert_parallel":)";
  out += info.expert_parallel ? "true" : "false";
  out += R"(,"default_sampling_params":{)";
  for (const auto& [name, value] : NamedDefaults(info.sampling)) {
    if (out.back() != '{') out += ',';
    AppendJsonString(out, name);
    out += ':';
    out += value;
  }
  out += "}}";
}

void AppendModel(std::string& out, const InferEngine& engine, std::string_view name) {
  out += R"({"id":)";
  AppendJsonString(out, name);
  out += R"(,"object":"model","created":)";
  AppendJsonNumber(out, absl::ToUnixSeconds(engine.created()));
  out += R"(,"owned_by":"millrace","root":)";
  AppendJsonString(out, engine.model_name());
  out += R"(,"parent":null,"architecture":)";
  AppendJsonString(out, engine.info().platform);
  out += '}';
}

// Where a page begins and how long it is at most.
struct PageQuery {
  std::optional<int32_t> limit;
  std::optional<std::string> after_id;
  std::optional<std::string> before_id;
};

absl::StatusOr<PageQuery> ReadPageQuery(std::string_view query) {
  PageQuery page;
  for (const std::string_view pair : SplitList(query, '&')) {
    const size_t sign = std::min(pair.find('='), pair.size());
    const std::string name = PercentDecoded(pair.substr(0, sign));
    const std::string value = PercentDecoded(pair.substr(std::min(sign + 1, pair.size())));
    if (name == "limit") {
      const auto limit = ParseNumber<int32_t>(value);
      if (!limit || *limit < 1 || *limit > 1000) {
        return FieldError(name, "invalid_value",
                          StrCat("limit is ", Printable(value), "; allowed: 1 to 1000"));
      }
      page.limit = *limit;
    } else if (name == "after_id") {
      page.after_id = value;
    } else if (name == "before_id") {
      page.before_id = value;
    }
  }
  if (page.after_id && page.before_id) {
    return FieldError("before_id", "invalid_value",
                      "after_id and before_id are both there; allowed: one of them");
  }
  return page;
}

// Returns the place of the model, which the parameter `field` names.
absl::StatusOr<size_t> PlaceOf(absl::Span<const NamedModel> models, std::string_view field,
                               std::string_view name) {
  for (size_t i = 0; i < models.size(); ++i) {
    if (models[i].name == name) return i;
  }
  return FieldError(field, "invalid_value",
                    StrCat(field, " is ", Printable(name), "; allowed: the id of a model"));
}

}  // namespace

void AppendAnthropicModel(std::string& out, const NamedModel& named) {
  out += R"({"type":"model","id":)";
  AppendJsonString(out, named.name);
  out += R"(,"display_name":)";
  AppendJsonString(out, named.name);
  const Engine* language = named.model->language();
  const absl::Time created =
      language != nullptr ? language->info().created : named.model->tensors()->created();
  out += StrCat(R"(,"created_at":")",
                absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", created, absl::UTCTimeZone()),
                R"(","lifecycle":"active")");
  if (language != nullptr) {
    const int32_t length = language->info().max_model_len;
    out += StrCat(R"(,"max_input_tokens":)", length, R"(,"max_tokens":)", length);
  }
  out += '}';
}

absl::StatusOr<ModelPage> PageOfModels(absl::Span<const NamedModel> models, std::string_view query,
                                       size_t limit) {
  MILLRACE_ASSIGN_OR_RETURN(const PageQuery page, ReadPageQuery(query));
  if (page.limit.has_value()) limit = static_cast<size_t>(*page.limit);
  if (page.before_id.has_value()) {
    MILLRACE_ASSIGN_OR_RETURN(const size_t end, PlaceOf(models, "before_id", *page.before_id));
    const size_t begin = end - std::min(end, limit);
    return ModelPage{.models = models.subspan(begin, end - begin), .more = begin > 0};
  }
  size_t begin = 0;
  if (page.after_id.has_value()) {
    MILLRACE_ASSIGN_OR_RETURN(begin, PlaceOf(models, "after_id", *page.after_id));
    ++begin;
  }
  return ModelPage{.models = models.subspan(begin, limit), .more = models.size() - begin > limit};
}

std::string AnthropicModelList(const ModelPage& page) {
  std::string out = R"({"data":[)";
  for (const NamedModel& named : page.models) {
    if (&named != page.models.data()) out += ',';
    AppendAnthropicModel(out, named);
  }
  out += StrCat(R"(],"has_more":)", page.more ? "true" : "false");
  for (const bool first : {true, false}) {
    out += first ? R"(,"first_id":)" : R"(,"last_id":)";
    if (page.models.empty()) {
      out += "null";
    } else {
      AppendJsonString(out, (first ? page.models.front() : page.models.back()).name);
    }
  }
  return out + "}";
}

void AppendModel(std::string& out, ServedModel& model, std::string_view name) {
  if (const Engine* language = model.language()) {
    AppendModel(out, language->info(), name);
  } else {
    AppendModel(out, *model.tensors(), name);
  }
}

}  // namespace millrace
