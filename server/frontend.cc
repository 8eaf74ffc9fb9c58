#include "server/frontend.h"

#include "base/status.h"
#include "base/strings.h"

namespace millrace {

absl::StatusOr<Engine*> Frontend::FindEngine(std::string_view model) const {
  MILLRACE_ASSIGN_OR_RETURN(ServedModel* const found, Find(model));
  if (Engine* const engine = found->language()) return engine;
  return absl::InvalidArgumentError(StrCat("model is \"", found->model_name(),
                                           "\", a model of tensors; allowed here: a language "
                                           "model (Infer runs this one)"));
}

absl::StatusOr<InferEngine*> Frontend::FindInferEngine(std::string_view model) const {
  MILLRACE_ASSIGN_OR_RETURN(ServedModel* const found, Find(model));
  if (InferEngine* const engine = found->tensors()) return engine;
  return absl::InvalidArgumentError(StrCat("model is \"", found->model_name(),
                                           "\", a language model; allowed for Infer: a model of "
                                           "tensors, an AOTInductor package"));
}

}  // namespace millrace
