// A model as /v1/models describes it.
#ifndef MILLRACE_SERVER_HTTP_MODEL_JSON_H_
#define MILLRACE_SERVER_HTTP_MODEL_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/served_model.h"

namespace millrace {

// Appends the JSON object that describes a model of either kind under one of its names.
void AppendModel(std::string& out, ServedModel& model, std::string_view name);

// A model under one of its names.
struct NamedModel {
  std::string name;
  ServedModel* model = nullptr;
};

// Appends the JSON object that describes a model in Anthropic's form.
void AppendAnthropicModel(std::string& out, const NamedModel& named);

// Returns the page of the list that a query (limit, after_id, before_id) asks for, in Anthropic's
// form. InvalidArgument names the parameter.
absl::StatusOr<std::string> AnthropicModelPage(absl::Span<const NamedModel> models,
                                               std::string_view query);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_MODEL_JSON_H_
