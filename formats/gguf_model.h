// A model in a GGUF file.
#ifndef MILLRACE_FORMATS_GGUF_MODEL_H_
#define MILLRACE_FORMATS_GGUF_MODEL_H_

#include <string>

#include "absl/status/statusor.h"
#include "formats/gguf/gguf.h"
#include "formats/model/model_config.h"

namespace millrace {

// Opens a GGUF file by GgufFile::Open. Tensors are looked up by llama.cpp's names; those that the
// family of general.architecture names in another way (Family::gguf_spellings) are translated.
absl::StatusOr<GgufFile> OpenGgufModel(const std::string& path);

// Reads and checks the metadata of a file that OpenGgufModel opened, then every tensor against it
// (ValidateTensors): after OK, a model's tensors can be looked up by name without another check. A
// key that changes the maths in a way that is not implemented (another architecture, another
// router, another rope scaling, …) ends in UNIMPLEMENTED with its name. Keys, tensors and what the
// files leave unsaid are llama.cpp's.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_GGUF_MODEL_H_
