// The sampling defaults of the models that a server has.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_MODEL_DEFAULTS_H_
#define MILLRACE_SERVER_HTTP_OPENAI_MODEL_DEFAULTS_H_

#include <string>

#include "server/frontend.h"
#include "server/http/openai/openai_request.h"

namespace millrace {

// Returns the function that tells a reader how requests to a model begin. `frontend` outlives it.
inline DefaultsOf DefaultsOfModels(const Frontend& frontend) {
  return [&frontend](const std::string& model) {
    const absl::StatusOr<Engine*> engine = frontend.FindEngine(model);
    return engine.ok() ? (*engine)->info().sampling : SamplingDefaults();
  };
}

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_MODEL_DEFAULTS_H_
