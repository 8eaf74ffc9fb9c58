// A model on disk, whatever its format: what it is, and its tensors.
#ifndef MILLRACE_FORMATS_OPEN_MODEL_H_
#define MILLRACE_FORMATS_OPEN_MODEL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "formats/model/model_config.h"
#include "formats/tensors/tensor_source.h"

namespace millrace {

struct OpenedModel {
  ModelConfig config;
  std::unique_ptr<const TensorSource>
      tensors;  // validated against config (formats/families/model_tensors.h)
};

// Opens a model: `path` is a .gguf file, or a folder as Hugging Face's transformers writes it:
// config.json with model.safetensors or, listed in model.safetensors.index.json, several such
// files. A folder with neither opens all the same: its tensors have shapes and no data
// (TensorSource::has_data), which is all that dummy weights need.
//
// Errors name the file and the field: NOT_FOUND for what is missing, INVALID_ARGUMENT for what is
// damaged or lies, UNIMPLEMENTED for a field that changes the maths in a way that is not
// implemented.
//
// A decoder makes embeddings (ModelConfig::pooler) where its files say so, by `runner`
// (formats/pooler_config.h).
absl::StatusOr<OpenedModel> OpenModel(const std::string& path,
                                      ModelRunner runner = ModelRunner::kAuto);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_OPEN_MODEL_H_
