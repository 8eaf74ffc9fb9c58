// A model as /v1/models describes it.
#ifndef MILLRACE_SERVER_HTTP_ADMIN_MODEL_JSON_H_
#define MILLRACE_SERVER_HTTP_ADMIN_MODEL_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/served_model.h"

namespace millrace {

// Appends the list of the groups of a sequence's state: {"kind": "pages", "window", "block_bytes",
// "blocks"}, where a window of null is none, or {"kind": "slots", "bytes"} of a sequence.
void AppendState(std::string& out, const EngineInfo& info);

// Appends the JSON object that describes a model of either kind under one of its names.
void AppendModel(std::string& out, ServedModel& model, std::string_view name);

// A model under one of its names.
struct NamedModel {
  std::string name;
  ServedModel* model = nullptr;
};

// Appends the JSON object that describes a model in Anthropic's form.
void AppendAnthropicModel(std::string& out, const NamedModel& named);

// A part of a list of models.
struct ModelPage {
  absl::Span<const NamedModel> models;
  bool more = false;  // there are others behind them or, with before_id, before them
};

// Returns the page that a query (limit, after_id, before_id) asks for, of at most `limit` models
// where it says none. InvalidArgument names the parameter.
absl::StatusOr<ModelPage> PageOfModels(absl::Span<const NamedModel> models, std::string_view query,
                                       size_t limit);

// Returns the page as a list in Anthropic's form.
std::string AnthropicModelList(const ModelPage& page);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_ADMIN_MODEL_JSON_H_
