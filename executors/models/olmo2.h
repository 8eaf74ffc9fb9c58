// OLMo 2 (arXiv:2501.00656): blocks as Llama's whose linears take the residual as it is; what they
// add to it is normed instead, and q and k are, over all their heads together.
#ifndef MILLRACE_EXECUTORS_MODELS_OLMO2_H_
#define MILLRACE_EXECUTORS_MODELS_OLMO2_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/models/model.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<Model>> LoadOlmo2(const ModelConfig& config, int max_model_len,
                                                 WeightPlacer& placer);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_OLMO2_H_
