// A model as /v1/models describes it.
#ifndef MILLRACE_SERVER_HTTP_MODEL_JSON_H_
#define MILLRACE_SERVER_HTTP_MODEL_JSON_H_

#include <string>
#include <string_view>

#include "engine/served_model.h"

namespace millrace {

// Appends the JSON object that describes a model of either kind under one of its names.
void AppendModel(std::string& out, ServedModel& model, std::string_view name);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_MODEL_JSON_H_
